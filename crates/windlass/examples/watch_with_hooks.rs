//! A hook receives every lifecycle event of a run, and the run waits for it. A hook can prevent an action that
//! has not started.

use std::sync::{Arc, Mutex};

use windlass::hook::{Hook, HookEvent};
use windlass::prelude::*;

/// Opens a door.
#[tool]
async fn open(door: String) -> String {
    format!("the {door} door is open")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "open", json!({ "door": "front" })).and_call(
            "c2",
            "open",
            json!({ "door": "safe" }),
        ),
        ScriptedResponse::text("The front door is open."),
    ]);
    let log: Arc<Mutex<Vec<String>>> = Arc::default();
    let watcher = {
        let log = log.clone();
        Hook::new(move |moment: HookEvent| {
            if let Ok(mut log) = log.lock() {
                log.push(moment.name().to_owned());
            }
            async move {
                match moment {
                    HookEvent::CallStarted { ctx, .. } if ctx.arguments().contains("safe") => {
                        Err("not that one".into())
                    }
                    _ => Ok(()),
                }
            }
        })
    };
    let agent = Agent::new("porter").model(model.clone()).tool(open);

    println!("{}", agent.run("Open up.").sequential_calls().hook(watcher).await?.output_text()?);

    let log = log.lock().map_err(|_| "the hook panicked")?.join(" ");
    println!("{log}");
    assert_eq!(
        log,
        "agent_started model_request_started model_responded call_started call_ended call_started call_ended \
         model_request_started model_responded agent_ended"
    );
    let told = model.requests()[1].input_text();
    println!("{}\n{}", told[3], told[4]);
    assert_eq!(told[3], "output c1 the front door is open");
    assert!(told[4].contains("An error occurred") && !told[4].contains("not that one"));
    Ok(())
}
