//! A small real model in the process calls tools and answers. The tests are skipped if its weights are not
//! available.

use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use serde_json::{Value, json};
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
