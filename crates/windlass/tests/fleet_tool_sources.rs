//! A tool source that is away delays the runs of a worker, and does not refuse them.

#![allow(clippy::expect_used)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::Value;
use windlass::core::decision::{Decision, DecisionScope};
use windlass::core::id::{RunId, Timestamp};
use windlass::fleet::{
    AgentRegistry, QueuedRun, QueuedState, RetryBackoff, RunQueue, RunSubmission, Worker, WorkerReport,
};
use windlass::prelude::*;
use windlass::store::{MemoryStore, post_decision};
use windlass::tool::{SourcedTools, ToolSource, ToolSourceRequest};

fn empty_schema() -> Value {
    json!({ "type": "object", "properties": {}, "additionalProperties": false })
}

async fn submit(queue: &dyn RunQueue, run: &str) {
    let submission = RunSubmission::new(run, "desk", "go");
    queue.submit_run(&submission, Timestamp(0)).await.expect("it is submitted");
}

async fn load(queue: &dyn RunQueue, run: &str) -> QueuedRun {
    let queued = queue.load_queued_run(&RunId::from(run)).await.expect("it loads");
    queued.expect("it was submitted")
}

/// A tool source that answers from a list of answers, and with the last one for ever.
#[derive(Clone)]
struct FlakySource(Arc<Mutex<Vec<Result<Vec<Tool>, String>>>>);

impl FlakySource {
    fn answering(answers: impl IntoIterator<Item = Result<Vec<Tool>, String>>) -> Self {
        Self(Arc::new(Mutex::new(answers.into_iter().collect())))
    }
}

impl ToolSource<()> for FlakySource {
    fn list_tools<'a>(
        &'a self,
        _: ToolSourceRequest<'a, ()>,
    ) -> BoxFuture<'a, Result<SourcedTools<()>, String>> {
        let mut answers = self.0.lock().expect("a lock");
        let answer = if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() };
        let listed = answer.map(|tools| SourcedTools {
            tools: tools.into_iter().map(Arc::new).collect(),
            warnings: Arc::default(),
        });
        std::future::ready(listed).boxed()
    }
}

fn sourced_tool() -> Tool {
    Tool::dynamic("step", "Steps.", empty_schema(), |_: ToolContext, _: Value| async {
        Ok::<_, ToolError>("done")
    })
    .mcp_identity("far", "step")
}

fn sourced_agent(source: &FlakySource) -> Agent {
    let model = ScriptedModel::from_fn(move |request| {
        match request.input_text().iter().any(|line| line.starts_with("output")) {
            false => ScriptedResponse::call("c0", "step", json!({})),
            true => ScriptedResponse::text("finished"),
        }
    });
    Agent::new("desk").model(model).tool_source(source.clone())
}

/// Works until there is nothing to take, again and again until the run has ended or nobody takes it.
async fn work_until_settled(queue: &Arc<MemoryStore>, agent: &Agent) -> WorkerReport {
    let mut total = WorkerReport::default();
    loop {
        let backoff =
            RetryBackoff { base_delay: Duration::from_millis(5), max_delay: Duration::from_millis(5) };
        let worker = Worker::new(queue.clone(), AgentRegistry::from(agent.clone())).retry_backoff(backoff);
        let report = worker.run_until_idle().await.expect("it works");
        total.ended += report.ended;
        total.failed += report.failed;
        total.declined += report.declined;
        total.parked += report.parked;
        match load(&**queue, "run").await.state {
            QueuedState::Waiting { .. } => tokio::time::sleep(Duration::from_millis(5)).await,
            _ => return total,
        }
    }
}

#[tokio::test]
async fn a_tool_source_that_is_away_delays_a_run() {
    let queue = Arc::new(MemoryStore::default());
    submit(&*queue, "run").await;
    let away = || Err("connection refused".to_owned());
    let agent = sourced_agent(&FlakySource::answering([away(), away(), Ok(vec![sourced_tool()])]));
    let report = work_until_settled(&queue, &agent).await;
    assert_eq!((report.failed, report.declined, report.ended), (2, 0, 1));
    assert_eq!(load(&*queue, "run").await.declined_by, []);
}

/// A source that leaves out what it cannot reach returns an empty list for a while.
#[tokio::test]
async fn a_tool_that_its_source_lacks_for_a_while_delays_a_run() {
    let queue = Arc::new(MemoryStore::default());
    submit(&*queue, "run").await;
    let source = FlakySource::answering([Ok(vec![sourced_tool().needs_approval()])]);
    let agent = sourced_agent(&source);
    assert_eq!(work_until_settled(&queue, &agent).await.parked, 1);
    *source.0.lock().expect("a lock") =
        vec![Ok(Vec::new()), Ok(Vec::new()), Ok(vec![sourced_tool().needs_approval()])];
    post_decision(&*queue, &RunId::from("run"), "c0", Decision::Approve, DecisionScope::ThisCall, "ann")
        .await
        .expect("it is posted");
    let report = work_until_settled(&queue, &agent).await;
    assert_eq!((report.failed, report.declined, report.ended), (2, 0, 1));
}

/// A tool that is gone for good: another build may have it.
#[tokio::test]
async fn a_tool_that_its_source_never_has_again_is_a_refusal() {
    let queue = Arc::new(MemoryStore::default());
    submit(&*queue, "run").await;
    let source = FlakySource::answering([Ok(vec![sourced_tool().needs_approval()])]);
    let agent = sourced_agent(&source);
    assert_eq!(work_until_settled(&queue, &agent).await.parked, 1);
    *source.0.lock().expect("a lock") = vec![Ok(Vec::new())];
    post_decision(&*queue, &RunId::from("run"), "c0", Decision::Approve, DecisionScope::ThisCall, "ann")
        .await
        .expect("it is posted");
    let report = work_until_settled(&queue, &agent).await;
    assert_eq!((report.declined, report.ended), (1, 0));
    let queued = load(&*queue, "run").await;
    assert_eq!((queued.state, queued.declined_by.len()), (QueuedState::Ready, 1));
}
