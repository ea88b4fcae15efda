//! A small real model, loaded in the process, calls tools and answers. It runs where its weights can be had.

use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use serde_json::{Value, json};
use windlass::model::{ModelSettings, ToolChoice};
use windlass::prelude::*;
use windlass_local::{LocalModel, Weights};

/// The model, or nothing where its weights cannot be had here, which is said.
fn model() -> Option<LocalModel> {
    static MODEL: OnceLock<Option<LocalModel>> = OnceLock::new();
    MODEL.get_or_init(load).clone()
}

fn load() -> Option<LocalModel> {
    let name = std::env::var("WINDLASS_GGUF").unwrap_or_else(|_| "smollm2-135m".to_owned());
    match Weights::find(&name, &mut |_, _| {}) {
        Ok(weights) => Some(LocalModel::load(&weights).expect("the weights can be run")),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "not shown: a real model calling a tool, because {error}");
            None
        }
    }
}

fn weather(asked: &Arc<AtomicU32>) -> Tool {
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
    let Some(model) = model() else { return };
    let asked = Arc::default();
    let settings = ModelSettings { tool_choice: Some(ToolChoice::Required), ..ModelSettings::default() };
    let agent = Agent::new("guide").model(model).settings(settings).tool(weather(&asked));
    let outcome = agent.run("What is the weather in Oslo?").max_turns(6).await.expect("it ends");
    // The choice is forced once, and the engine cannot write arguments that the tool does not take.
    assert!(asked.load(Ordering::SeqCst) >= 1, "no call was valid");
    assert!(!outcome.text().is_empty());
    assert!(outcome.record().usage().output_tokens > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_streamed_is_what_is_answered() {
    use windlass::EventKind;
    let Some(model) = model() else { return };
    let agent = Agent::new("guide").instructions("Be brief.").model(model);
    let mut stream = agent.run("Say good morning.").stream();
    let mut seen = String::new();
    while let Some(event) = stream.next().await {
        if let EventKind::TextDelta { delta } = event.kind {
            seen.push_str(&delta);
        }
    }
    let outcome = stream.outcome().await.expect("it ends");
    assert_eq!(seen, outcome.text());
}
