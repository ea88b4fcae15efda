//! A model that makes the same calls turn after turn.

use serde_json::json;
use windlass::core::failure::RunFailure;
use windlass::error::RunError;
use windlass::prelude::*;
use windlass::run::LoopPolicy;

/// Looks at something.
#[tool]
async fn look(name: String) -> String {
    format!("{name} is there")
}

#[tokio::test]
async fn a_run_fails_after_the_same_calls_too_often() -> Result<(), Box<dyn std::error::Error>> {
    let again = |id: &str| ScriptedResponse::call(id, "look", json!({ "name": "ship" }));
    let replies = [again("a"), again("b"), again("c"), ScriptedResponse::text("bye")];
    let agent = Agent::new("watch").model(ScriptedModel::new(replies)).tool(look);
    let policy = LoopPolicy { warn_after: 1, fail_after: 3 };
    match agent.run("go").loop_policy(policy).await {
        Err(RunError::Failed(failed)) => {
            assert_eq!(failed.failure, RunFailure::LoopDetected { repetitions: 3 });
            Ok(())
        }
        other => Err(format!("{other:?}").into()),
    }
}
