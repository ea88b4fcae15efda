//! A run that is stopped while a function of the application does not return: in each function, awaited, streamed and
//! inside a nested agent. The run ends or is left in time, every call has its output, and whoever goes on with a run that
//! was left finishes it.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::Notify;
use windlass::agent::{Handoff, ToolUsePolicy};
use windlass::core::{
    decision::HoldReason,
    failure::RunFailure,
    history::keep_pairs,
    item::Item,
    journal::{CallStatus, JournalEntry, JournalRecord},
    run::{Run, RunEnd},
    tool::ToolEffect,
};
use windlass::error::RunError;
use windlass::guardrail::{
    GuardrailVerdict, InputGuardrail, OutputGuardrail, ToolGuardrailVerdict, ToolInputGuardrail,
    ToolOutputGuardrail,
};
use windlass::hook::{Hook, HookEvent};
use windlass::model::{DeltaSink, Model, ModelError, ModelRequest, ModelResponse};
use windlass::prelude::*;
use windlass::run::{CancelHandle, RunBuilder};
use windlass::tool::{OnFailure, SourcedTools, ToolSource, ToolSourceRequest};

/// Time after which a test counts as stuck.
const STUCK: Duration = Duration::from_secs(30);

/// A function of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Instructions,
    ToolSource,
    InputFilter,
    BlockingInputGuardrail,
    ConcurrentInputGuardrail,
    ModelRequest,
    AgentStartedHook,
    ModelRequestStartedHook,
    ModelRespondedHook,
    ApprovalRule,
    ToolInputGuardrail,
    EnabledRule,
    PermitWait,
    TwinWait,
    CallStartedHook,
    CallLayer,
    Body,
    ProgressHook,
    RetryDelay,
    ToolOutputGuardrail,
    CallEndedHook,
    FinalOutputFunction,
    HandoffFunction,
    HandedOffHook,
    AgentEndedHook,
    OutputGuardrail,
}

const PHASES: [Phase; 26] = [
    Phase::Instructions,
    Phase::ToolSource,
    Phase::InputFilter,
    Phase::BlockingInputGuardrail,
    Phase::ConcurrentInputGuardrail,
    Phase::ModelRequest,
    Phase::AgentStartedHook,
    Phase::ModelRequestStartedHook,
    Phase::ModelRespondedHook,
    Phase::ApprovalRule,
    Phase::ToolInputGuardrail,
    Phase::EnabledRule,
    Phase::PermitWait,
    Phase::TwinWait,
    Phase::CallStartedHook,
    Phase::CallLayer,
    Phase::Body,
    Phase::ProgressHook,
    Phase::RetryDelay,
    Phase::ToolOutputGuardrail,
    Phase::CallEndedHook,
    Phase::FinalOutputFunction,
    Phase::HandoffFunction,
    Phase::HandedOffHook,
    Phase::AgentEndedHook,
    Phase::OutputGuardrail,
];

/// The surface of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Surface {
    Awaited,
    Streamed,
    Nested,
}

/// Hangs in one phase, and says that it was reached.
#[derive(Clone)]
struct Trap {
    phase: Option<Phase>,
    reached: Arc<Notify>,
    bodies: Arc<AtomicU32>,
    hook_log: Arc<Mutex<Vec<String>>>,
}

impl Trap {
    fn new(phase: Option<Phase>) -> Self {
        Self { phase, reached: Arc::default(), bodies: Arc::default(), hook_log: Arc::default() }
    }

    /// Does not return if this is the phase of the trap.
    fn enter(&self, phase: Phase) -> BoxFuture<'static, ()> {
        let (is_it, reached) = (self.phase == Some(phase), self.reached.clone());
        async move {
            if is_it {
                reached.notify_one();
                std::future::pending::<()>().await;
            }
        }
        .boxed()
    }

    fn disarmed(&self) -> Self {
        Self { phase: None, ..self.clone() }
    }
}

/// A model whose responses depend on the turn alone, so that a run that lost a response receives it again.
struct TurnModel {
    trap: Trap,
    turns: Vec<Vec<(&'static str, &'static str)>>,
}

impl Model for TurnModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        _: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        let input = request.input.to_vec();
        assert_eq!(keep_pairs(input.clone()).items, input, "the model receives a valid history");
        self.trap.enter(Phase::ModelRequest).await;
        let items = match self.turns.get(usize::try_from(request.turn).expect("few") - 1) {
            Some(calls) => {
                calls.iter().map(|(id, tool)| Item::call(*id, *tool, r#"{"input":"go"}"#)).collect()
            }
            None => vec![Item::assistant("bye")],
        };
        Ok(ModelResponse { items: items.into_iter().map(Arc::new).collect(), ..ModelResponse::default() })
    }
}

fn tool<Fut>(name: &str, body: impl Fn(ToolContext, Value) -> Fut + Send + Sync + 'static) -> Tool
where
    Fut: Future<Output = Result<String, ToolError>> + Send + 'static,
{
    Tool::dynamic(name, "A tool.", json!({ "type": "object" }), body).non_strict()
}

struct TrapSource(Trap);

impl ToolSource<()> for TrapSource {
    fn list_tools<'a>(
        &'a self,
        _: ToolSourceRequest<'a, ()>,
    ) -> BoxFuture<'a, Result<SourcedTools<()>, String>> {
        let entered = self.0.enter(Phase::ToolSource);
        async move {
            entered.await;
            Ok(SourcedTools { tools: Arc::new([]), warnings: Arc::new([]) })
        }
        .boxed()
    }
}

/// The tool that has every feature.
fn work_tool(trap: &Trap) -> Tool {
    let (bodies, in_body, in_rule, in_check, in_enabled, in_output) =
        (trap.clone(), trap.clone(), trap.clone(), trap.clone(), trap.clone(), trap.clone());
    let asked = Arc::new(AtomicU32::new(0));
    tool("work", move |ctx, _| {
        let (trap, attempt) = (in_body.clone(), bodies.bodies.fetch_add(1, Ordering::SeqCst));
        async move {
            ctx.report_progress(json!(1));
            if trap.phase == Some(Phase::ProgressHook) {
                tokio::task::yield_now().await;
            }
            trap.enter(Phase::Body).await;
            if trap.phase == Some(Phase::RetryDelay) && attempt == 0 {
                trap.reached.notify_one();
                return Err(ToolError::visible("again"));
            }
            Ok("worked".to_owned())
        }
    })
    .needs_approval_if_async(move |_, _: &Value| {
        let entered = in_rule.enter(Phase::ApprovalRule);
        async move {
            entered.await;
            false
        }
    })
    .input_guardrail(ToolInputGuardrail::new("input", move |_| {
        let entered = in_check.enter(Phase::ToolInputGuardrail);
        async move {
            entered.await;
            Ok(ToolGuardrailVerdict::Allow)
        }
    }))
    .enabled_if_async(move |_| {
        // It is asked when it is offered, when it is called, and before its body.
        let count = asked.fetch_add(1, Ordering::SeqCst);
        let trap = in_enabled.clone();
        async move {
            if count >= 2 {
                trap.enter(Phase::EnabledRule).await;
            }
            true
        }
    })
    .output_guardrail(ToolOutputGuardrail::new("output", move |_, _| {
        let entered = in_output.enter(Phase::ToolOutputGuardrail);
        async move {
            entered.await;
            Ok(ToolGuardrailVerdict::Allow)
        }
    }))
    .retry(2, Duration::from_secs(3600))
}

fn hanging_hook(trap: &Trap) -> Hook {
    let trap = trap.clone();
    Hook::new(move |event: HookEvent| {
        let phase = match &event {
            HookEvent::AgentStarted { .. } => Phase::AgentStartedHook,
            HookEvent::AgentEnded { .. } => Phase::AgentEndedHook,
            HookEvent::ModelRequestStarted { .. } => Phase::ModelRequestStartedHook,
            HookEvent::ModelResponded { .. } => Phase::ModelRespondedHook,
            HookEvent::HandedOff { .. } => Phase::HandedOffHook,
            HookEvent::CallStarted { ctx, .. } => {
                trap.hook_log.lock().expect("no panic").push(format!("start {}", ctx.call_id()));
                Phase::CallStartedHook
            }
            HookEvent::CallEnded { ctx, .. } => {
                trap.hook_log.lock().expect("no panic").push(format!("end {}", ctx.call_id()));
                Phase::CallEndedHook
            }
            _ => Phase::ProgressHook,
        };
        let entered = trap.enter(phase);
        async move {
            entered.await;
            Ok(())
        }
    })
}

/// Creates an agent all of whose functions the trap watches.
fn trapped_agent(trap: &Trap) -> Agent {
    let (of_wait, of_instructions, of_blocking, of_concurrent, of_output, of_judge, of_handoff) =
        (trap.clone(), trap.clone(), trap.clone(), trap.clone(), trap.clone(), trap.clone(), trap.clone());
    // Holds the permit and the claim that its twin waits for.
    let hold = tool("hold", move |_, _| {
        let trap = of_wait.clone();
        async move {
            if matches!(trap.phase, Some(Phase::PermitWait | Phase::TwinWait)) {
                trap.reached.notify_one();
                std::future::pending::<()>().await;
            }
            Ok("held".to_owned())
        }
    });
    let hold = match trap.phase {
        Some(Phase::TwinWait) => hold.effect(ToolEffect::Idempotent),
        _ => hold.max_concurrent_calls(1),
    };
    let turns = vec![vec![("w", "work"), ("h1", "hold"), ("h2", "hold")], vec![("t", "transfer_to_next")]];
    let model = TurnModel { trap: trap.clone(), turns };
    let next = Agent::new("next")
        .model(TurnModel { trap: trap.clone(), turns: Vec::new() })
        .output_guardrail(OutputGuardrail::new("output", move |_, _| {
            let entered = of_output.enter(Phase::OutputGuardrail);
            async move {
                entered.await;
                Ok(GuardrailVerdict::Pass)
            }
        }));
    let handoff = Handoff::to(next.hook(hanging_hook(trap))).on_handoff(move |_| {
        let entered = of_handoff.enter(Phase::HandoffFunction);
        async move {
            entered.await;
            Ok(())
        }
    });
    let input_guardrail = |name, trap: Trap, phase| {
        InputGuardrail::new(name, move |_, _| {
            let entered = trap.enter(phase);
            async move {
                entered.await;
                Ok(GuardrailVerdict::Pass)
            }
        })
    };
    Agent::new("main")
        .model(model)
        .dynamic_instructions(move |_| {
            let entered = of_instructions.enter(Phase::Instructions);
            async move {
                entered.await;
                "Work.".to_owned()
            }
        })
        .tools((work_tool(trap), hold))
        .tool_source(TrapSource(trap.clone()))
        .hook(hanging_hook(trap))
        .handoff(handoff)
        .input_guardrail(input_guardrail("blocking", of_blocking, Phase::BlockingInputGuardrail).blocking())
        .input_guardrail(input_guardrail("concurrent", of_concurrent, Phase::ConcurrentInputGuardrail))
        .tool_use_policy(ToolUsePolicy::custom_function(move |_, _| {
            let entered = of_judge.enter(Phase::FinalOutputFunction);
            async move {
                entered.await;
                None
            }
        }))
}

fn outer_agent(trap: &Trap, surface: Surface, timeout: Option<Duration>) -> Agent {
    let agent = trapped_agent(trap);
    if surface != Surface::Nested {
        return agent;
    }
    let inside = agent.as_tool("ask", "Asks.");
    let inside = match timeout {
        Some(timeout) => inside.timeout(timeout),
        None => inside,
    };
    let outer = TurnModel { trap: trap.disarmed(), turns: vec![vec![("a", "ask")]] };
    Agent::new("outer").model(outer).tool(inside)
}

fn builder(agent: &Agent, trap: &Trap) -> RunBuilder {
    let (of_filter, of_layer) = (trap.clone(), trap.clone());
    agent
        .run("go")
        .drain_timeout(Duration::from_millis(50))
        .input_filter(move |ctx, input| {
            let entered = of_filter.enter(Phase::InputFilter);
            async move {
                if ctx.agent().as_str() == "main" {
                    entered.await;
                }
                input
            }
        })
        .call_layer(move |ctx, next| {
            let entered = of_layer.enter(Phase::CallLayer);
            async move {
                if ctx.tool_key().name() == "work" {
                    entered.await;
                }
                next.run().await
            }
        })
}

async fn drive(run: RunBuilder, surface: Surface) -> Result<RunResult, RunError> {
    match surface {
        Surface::Streamed => {
            let mut stream = run.stream();
            while stream.next().await.is_some() {}
            stream.result().await
        }
        Surface::Awaited | Surface::Nested => run.await,
    }
}

fn records_of(result: &Result<RunResult, RunError>) -> Vec<JournalRecord> {
    match result {
        Ok(result) => result.record().journal().to_vec(),
        Err(error) => error.record().expect("a failed run has a record").journal().to_vec(),
    }
}

fn assert_complete(run: &Run) {
    let history = run.history().to_vec();
    assert!(!run.is_between_turns() || keep_pairs(history.clone()).items == history, "{history:?}");
}

/// Asserts that each call that was announced as started was announced as ended.
fn assert_hooks_paired(trap: &Trap, context: &str) {
    let log = trap.hook_log.lock().expect("no panic");
    for line in log.iter().filter_map(|line| line.strip_prefix("start ")) {
        let ends = log.iter().filter(|other| **other == format!("end {line}")).count();
        assert_eq!(ends, 1, "{context}: {log:?}");
    }
}

/// Asserts that the end of every call that has settled was announced once, by whichever driver, if its start was.
fn assert_ended_once(trap: &Trap, result: &RunResult, context: &str) {
    let log = trap.hook_log.lock().expect("no panic");
    let settled = result.record().journal().iter().filter_map(|record| match &record.entry {
        JournalEntry::CallSettled(settled) => Some(settled.call.as_str()),
        _ => None,
    });
    for call in settled {
        let count =
            |line: &str| log.iter().filter(|other| other.starts_with(&format!("{line} {call}"))).count();
        let (starts, ends) = (count("start"), count("end"));
        assert!(starts == 0 || ends == 1, "{context}, call {call}: {log:?}");
    }
}

async fn stop_when_reached(
    trap: &Trap,
    surface: Surface,
    stop: impl FnOnce(CancelHandle),
) -> Result<RunResult, RunError> {
    let agent = outer_agent(trap, surface, None);
    let run = builder(&agent, trap);
    let handle = run.cancel_handle();
    let reached = trap.reached.clone();
    let driven = tokio::spawn(drive(run, surface));
    let context = format!("{:?} {surface:?}", trap.phase);
    tokio::time::timeout(STUCK, reached.notified()).await.expect(&context);
    stop(handle);
    let ended = tokio::time::timeout(STUCK, driven).await;
    ended.unwrap_or_else(|_| unreachable!("{context}: the run does not stop")).expect(&context)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_cancelled_in_every_phase() {
    for surface in [Surface::Awaited, Surface::Streamed, Surface::Nested] {
        for phase in PHASES {
            let trap = Trap::new(Some(phase));
            let result = stop_when_reached(&trap, surface, |handle| handle.cancel()).await;
            let context = format!("{phase:?} {surface:?}");
            assert!(matches!(result, Ok(RunResult::Cancelled(_))), "{context}: {result:?}");
            let records = records_of(&result);
            for length in 1..=records.len() {
                let run = Run::replay(&records[..length]).expect("the journal adds up").run;
                assert_complete(&run);
            }
            assert_hooks_paired(&trap, &context);
            let text = format!("{records:?}");
            assert!(!text.contains("stopped before it finished") || text.contains("Cancelled"), "{context}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_is_left_in_any_phase_is_finished_by_the_next_driver() {
    for surface in [Surface::Awaited, Surface::Streamed, Surface::Nested] {
        for phase in PHASES {
            let trap = Trap::new(Some(phase));
            let result = stop_when_reached(&trap, surface, |handle| handle.detach()).await;
            let context = format!("{phase:?} {surface:?}");
            let Ok(RunResult::Detached(left)) = result else { panic!("{context}: {result:?}") };
            let next = trap.disarmed();
            let agent = outer_agent(&next, surface, None);
            let text = left.to_text();
            let restored = PausedRun::from_text(&text).expect("it can be read");
            let resumed = agent.resume(restored).await.unwrap_or_else(|error| panic!("{context}: {error}"));
            match &resumed {
                RunResult::Paused(paused) => {
                    // The bodies that did not finish may have taken effect.
                    for pending in paused.pending_calls() {
                        assert_eq!(pending.reason, HoldReason::InDoubt, "{context}");
                    }
                }
                RunResult::Finished(_) => {
                    assert_eq!(resumed.output_text().expect("finished"), "bye", "{context}");
                }
                other => panic!("{context}: {other:?}"),
            }
            let bodies = trap.bodies.load(Ordering::SeqCst);
            assert!(bodies <= 2, "{context}: {bodies}");
            assert_ended_once(&trap, &resumed, &context);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_timeout_of_a_nested_agent_holds_in_every_phase() {
    for phase in PHASES {
        let trap = Trap::new(Some(phase));
        let agent = outer_agent(&trap, Surface::Nested, Some(Duration::from_millis(200)));
        let run = builder(&agent, &trap);
        let context = format!("{phase:?}");
        let result = tokio::time::timeout(STUCK, run.into_future()).await.expect(&context);
        let result = result.unwrap_or_else(|error| panic!("{context}: {error}"));
        assert_eq!(result.output_text().expect(&context), "bye");
        let records = result.record().journal();
        let settled: Vec<_> = records
            .iter()
            .filter_map(|record| match &record.entry {
                JournalEntry::CallSettled(settled) if record.path.is_empty() => Some(settled.status.clone()),
                _ => None,
            })
            .collect();
        assert_eq!(settled, [CallStatus::TimedOut], "{context}");
        assert_hooks_paired(&trap, &context);
        for length in 1..=records.len() {
            let run = Run::replay(&records[..length]).expect("the journal adds up").run;
            assert_complete(&run);
            assert!(!run.is_cancelling(), "{context}: nobody cancelled it: {:#?}", records[length - 1]);
        }
    }
}

/// A sibling of the agent fails the run while the agent does not return.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sibling_fails_the_run_while_a_nested_agent_is_in_any_phase() {
    for is_first in [true, false] {
        for phase in PHASES {
            let trap = Trap::new(Some(phase));
            let reached = trap.reached.clone();
            let fail = tool("fail", move |_, _| {
                let reached = reached.clone();
                async move {
                    reached.notified().await;
                    Err(ToolError::visible("over"))
                }
            })
            .on_failure(OnFailure::FailRun);
            let calls =
                if is_first { vec![("f", "fail"), ("a", "ask")] } else { vec![("a", "ask"), ("f", "fail")] };
            let model = TurnModel { trap: trap.disarmed(), turns: vec![calls] };
            let agent =
                Agent::new("outer").model(model).tools((fail, trapped_agent(&trap).as_tool("ask", "Asks.")));
            let context = format!("{phase:?} {is_first}");
            let ended =
                tokio::time::timeout(STUCK, builder(&agent, &trap).into_future()).await.expect(&context);
            let failure = ended.as_ref().err().and_then(RunError::failure).cloned();
            let expected =
                RunFailure::ToolFailed { tool: "fail".into(), call: "f".into(), message: "over".into() };
            assert_eq!(failure, Some(expected.clone()), "{context}: {ended:?}");
            let records = records_of(&ended);
            assert_hooks_paired(&trap, &context);
            for length in 1..=records.len() {
                let run = Run::replay(&records[..length]).expect("the journal adds up").run;
                assert_complete(&run);
                assert!(!run.is_cancelling(), "{context}: nobody cancelled it");
                if let Some(end) = run.outcome() {
                    assert_eq!(*end, RunEnd::Failed(expected.clone()), "{context}");
                }
            }
        }
    }
}
