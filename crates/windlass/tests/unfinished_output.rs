//! Reading the output of a run that did not finish is an error, and a run is a future that combinators take as it is.

use std::time::Duration;

use windlass::error::{OutputError, UnfinishedRun};
use windlass::prelude::*;

/// Orders a part.
#[tool(needs_approval = always)]
async fn order(part: String) -> String {
    format!("{part} is ordered")
}

fn yard() -> Agent {
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "order", json!({ "part": "a rudder" })),
        ScriptedResponse::text("Done."),
    ]);
    Agent::new("yard").model(model).tool(order)
}

#[tokio::test]
async fn a_paused_run_has_no_output_text() {
    let agent = yard();
    let result = agent.run("We need a rudder.").await.expect("it pauses");
    assert_eq!(result.output_text(), Err(UnfinishedRun::Paused { pending_calls: 1 }));
    assert!(matches!(
        result.output_as::<String>(),
        Err(OutputError::Unfinished(UnfinishedRun::Paused { .. }))
    ));

    let mut paused = result.into_paused().expect("it is paused");
    paused.approve("c1").expect("it is pending");
    let result = agent.resume(paused).await.expect("it finishes");
    assert_eq!(result.output_text(), Ok("Done."));
    assert!(matches!(result.output_as::<u32>(), Err(OutputError::Type(_))));
}

#[tokio::test]
async fn a_cancelled_run_has_no_output_text() {
    let run = yard().run("We need a rudder.");
    run.cancel_handle().cancel();
    let result = run.await.expect("it settles");
    assert_eq!(result.output_text(), Err(UnfinishedRun::Cancelled));
}

#[tokio::test]
async fn runs_are_futures_for_join_select_and_timeout() {
    let (one, other) = (yard(), yard());
    let (first, second) = tokio::join!(one.run("go"), other.run("go"));
    assert!(first.expect("it pauses").is_paused() && second.expect("it pauses").is_paused());
    let third = yard();
    let result = tokio::select! {
        result = third.run("go") => result,
        () = std::future::pending() => unreachable!("it never resolves"),
    };
    assert!(result.expect("it pauses").is_paused());
    let fourth = yard();
    let result = tokio::time::timeout(Duration::from_secs(60), fourth.run("go")).await;
    assert!(result.expect("it is in time").expect("it pauses").is_paused());
}
