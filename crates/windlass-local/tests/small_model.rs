//! A small real model in the process calls tools and answers. The tests are not shown if its weights are not available.

#![allow(clippy::expect_used)]

use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use serde_json::{Value, json};
use windlass::agent::ToolChoiceReset;
use windlass::model::{ModelSettings, ToolChoice};
use windlass::prelude::*;
use windlass_local::{LocalModel, Weights};

/// Returns the model, or `None` with a message on standard error if its weights are not available.
fn shared_model() -> Option<LocalModel> {
    static MODEL: OnceLock<Option<LocalModel>> = OnceLock::new();
    MODEL.get_or_init(load_model).clone()
}

fn load_model() -> Option<LocalModel> {
    let name = std::env::var("WINDLASS_GGUF").unwrap_or_else(|_| "smollm2-135m".to_owned());
    match Weights::find(&name, &mut |_, _| {}) {
        Ok(weights) => Some(LocalModel::load(&weights).expect("the weights can be run")),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "not shown: a real model calling a tool, because {error}");
            None
        }
    }
}

fn weather_tool(asked: &Arc<AtomicU32>) -> Tool {
    let asked = asked.clone();
    let schema = json!({
        "type": "object",
        "properties": {
            "city": { "type": "string", "maxLength": 40 },
            "unit": { "type": "string", "enum": ["celsius", "fahrenheit"] },
        },
        "required": ["city", "unit"],
        "additionalProperties": false,
    });
    Tool::dynamic("weather", "The weather in a city.", schema, move |_: ToolContext, arguments: Value| {
        asked.fetch_add(1, Ordering::SeqCst);
        async move {
            Ok::<_, String>(format!("It rains in {}, 7 degrees.", arguments["city"].as_str().unwrap_or("?")))
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_model_calls_a_tool_and_answers() {
    let Some(model) = shared_model() else { return };
    let asked = Arc::default();
    let settings = ModelSettings { tool_choice: Some(ToolChoice::Required), ..ModelSettings::default() };
    let agent = Agent::new("guide").model(model).model_settings(settings).tool(weather_tool(&asked));
    let outcome = agent.run("What is the weather in Oslo?").max_turns(6).await.expect("it ends");
    // The first call is forced, and constrained decoding gives only arguments that match the tool's schema.
    assert!(asked.load(Ordering::SeqCst) >= 1, "no call was valid");
    assert!(!outcome.output_text().expect("the run finished").is_empty());
    assert!(outcome.record().usage().output_tokens > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_streamed_is_what_is_answered() {
    use windlass::event::RunEventKind;
    let Some(model) = shared_model() else { return };
    let agent = Agent::new("guide").instructions("Be brief.").model(model);
    let mut stream = agent.run("Say good morning.").stream();
    let mut seen = String::new();
    while let Some(event) = stream.next().await {
        if let RunEventKind::TextDelta { delta } = event.kind {
            seen.push_str(&delta);
        }
    }
    let outcome = stream.result().await.expect("it ends");
    assert_eq!(seen, outcome.output_text().expect("the run finished"));
}

/// Returns the five tools of the test, with a check of every call's arguments against the schema.
fn checked_tools(valid: &Arc<AtomicU32>, invalid: &Arc<AtomicU32>) -> Vec<Tool> {
    let text = || json!({ "type": "string", "maxLength": 30 });
    let tools = [
        (
            "weather",
            "The weather in a city.",
            json!({ "city": text(), "unit": { "enum": ["celsius", "fahrenheit"] } }),
        ),
        (
            "add",
            "Adds two numbers.",
            json!({
                "one": { "type": "integer", "minimum": -1000, "maximum": 1000 },
                "other": { "type": "integer", "minimum": -1000, "maximum": 1000 },
            }),
        ),
        (
            "remind",
            "Reminds of something.",
            json!({
                "about": text(),
                "when": { "type": "object", "properties": { "hour": { "type": "integer", "minimum": 0, "maximum": 23 } },
                          "required": ["hour"], "additionalProperties": false },
            }),
        ),
        (
            "translate",
            "Translates words.",
            json!({
                "words": { "type": "array", "items": text(), "minItems": 1, "maxItems": 3 },
                "into": { "enum": ["French", "German", "Norwegian"] },
            }),
        ),
        (
            "light",
            "Switches a light.",
            json!({ "room": { "enum": ["kitchen", "hall"] }, "on": { "type": "boolean" } }),
        ),
    ];
    let tools = tools.map(|(name, about, properties)| {
        let names: Vec<String> =
            properties.as_object().into_iter().flat_map(|fields| fields.keys().cloned()).collect();
        let schema = json!({
            "type": "object", "properties": properties, "required": names, "additionalProperties": false,
        });
        let (valid, invalid, checked) = (valid.clone(), invalid.clone(), schema.clone());
        Tool::dynamic(name, about, schema, move |_: ToolContext, arguments: Value| {
            let problems = windlass::core::schema::validate(&checked, &arguments);
            if problems.is_empty() { &valid } else { &invalid }.fetch_add(1, Ordering::SeqCst);
            async { Ok::<_, String>("Done.".to_owned()) }
        })
    });
    tools.into_iter().collect()
}

/// The calls are valid by construction: 50 prompts over five tools, and no call that its schema refuses.
#[tokio::test(flavor = "multi_thread")]
async fn fifty_prompts_over_five_tools_give_valid_calls() {
    let Some(model) = shared_model() else { return };
    let (valid, invalid) = (Arc::default(), Arc::default());
    let settings = ModelSettings {
        tool_choice: Some(ToolChoice::Required),
        max_tokens: Some(200),
        ..ModelSettings::default()
    };
    let agent = Agent::new("guide").instructions("Use the tools.").model(model).model_settings(settings);
    let agent = checked_tools(&valid, &invalid).into_iter().fold(agent, Agent::tool);
    let places = ["Oslo", "Paris", "Rome", "Tromsø", "Berlin", "Lima", "Cairo", "Kyoto", "Quito", "Riga"];
    let mut called = 0;
    for (number, place) in places.iter().enumerate() {
        for prompt in [
            format!("What is the weather in {place}?"),
            format!("What is {number} plus {}?", number * 7),
            format!("Remind me at {} o'clock to call {place}.", 8 + number),
            format!("Translate \"good morning {place}\" into German."),
            format!("Switch the light in the {} on.", if number % 2 == 0 { "kitchen" } else { "hall" }),
        ] {
            // The first turn must call a tool; the run ends after it.
            let outcome = agent.run(prompt.as_str()).max_turns(1).await;
            let error = outcome.expect_err("one turn is not enough to answer");
            let items = error.record().map_or(0, |record| record.run_items().len());
            assert!(items > 0, "{prompt}: {error}");
            called += 1;
        }
    }
    assert_eq!(called, 50);
    assert_eq!((valid.load(Ordering::SeqCst), invalid.load(Ordering::SeqCst)), (50, 0));
}

/// Each turn reads what is new since the turn before. The counts are those of the usage.
#[tokio::test(flavor = "multi_thread")]
async fn ten_turns_of_a_real_model_read_each_token_once() {
    let Some(model) = shared_model() else { return };
    let settings = ModelSettings {
        tool_choice: Some(ToolChoice::Required),
        max_tokens: Some(100),
        ..ModelSettings::default()
    };
    let agent = Agent::new("guide")
        .model(model)
        .model_settings(settings)
        .tool_choice_reset(ToolChoiceReset::Never)
        .tool(weather_tool(&Arc::default()));
    let error = agent.run("What is the weather in Oslo?").max_turns(10).await.expect_err("it never answers");
    let usage = *error.record().expect("the run was recorded").usage();
    assert_eq!(usage.requests, 10);
    let read = usage.input_tokens - usage.cached_tokens;
    let _ = writeln!(std::io::stderr(), "{read} of {} prompt tokens were read", usage.input_tokens);
    // The last prompt is longer than the average, and is read once in all, with what differs at the end of each prompt.
    assert!(read * 4 < usage.input_tokens, "{read} of {} tokens were read", usage.input_tokens);
}
