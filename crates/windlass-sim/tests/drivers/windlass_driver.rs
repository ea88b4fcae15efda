//! The driver of `windlass` behind the kit's interface: its model, tools, guardrails and store act on the kit's world.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::json;
use windlass::core::{
    decision::DecisionScope,
    id::{AgentName, CallId, CallPath, RunId},
    item::{Item, OutputContent},
    journal::{DecisionRecorded, JournalLine, decode_record},
    run::ReconcileReport,
    tool::ApprovalPolicy,
};
use windlass::error::RunError;
use windlass::guardrail::{ToolGuardrailVerdict, ToolInputGuardrail, ToolOutputGuardrail};
use windlass::model::ModelError;
use windlass::prelude::*;
use windlass::run::{CancelHandle, RunBuilder};
use windlass::store::{
    Durability, Lease, LeaseClaim, MemoryStore, PostedDecision, Store, StoreFuture, StoreWrapper,
    StoredLease, load_paused,
};
use windlass::tool::{OnFailure, ReceiptPolicy, ReceiptScope, ReconcileOutcome};
use windlass_sim::driver_check::{
    BodyStep, DriverWorld, GuardrailStep, ProcessCrash, RECEIPT_LIFETIME_MS, ScenarioTool, StopKind,
    TURN_TIME_MS, TestedDriver,
};
use windlass_sim::{ProcessExit, Sim, SimModel};

const RUN_ID: &str = "run";
/// Time in which a body that does not hang returns, with its guardrails and its records.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The driver of `windlass`. Its store outlives its processes.
#[derive(Default)]
pub(crate) struct WindlassDriver {
    store: Arc<MemoryStore>,
}

impl TestedDriver for WindlassDriver {
    fn drive(&self, world: &Arc<DriverWorld>) -> Result<(), ProcessCrash> {
        let sim = Sim::new(world.scenario().seed);
        let process = Process {
            world: world.clone(),
            sim: sim.clone(),
            store: self.store.clone(),
            cancel: Arc::default(),
        };
        let store = Arc::new(WorldStore { inner: self.store.clone(), process: process.clone() });
        match sim.run_process(process.drive(store)) {
            ProcessExit::Completed(()) => Ok(()),
            ProcessExit::Crashed => Err(ProcessCrash),
        }
    }
}

/// One process of the driver.
#[derive(Clone)]
struct Process {
    world: Arc<DriverWorld>,
    sim: Sim,
    store: Arc<MemoryStore>,
    /// Handle of the run that the process drives.
    cancel: Arc<Mutex<Option<CancelHandle>>>,
}

impl Process {
    async fn drive(self, store: Arc<WorldStore>) {
        let agent = self.agent();
        let mut run = match self.world.records().is_empty() {
            true => agent.run("go").run_id(RUN_ID),
            false => agent.recover(RUN_ID, store.clone()),
        };
        loop {
            let outcome = self.configure(run, store.clone()).await;
            let mut paused = match outcome {
                Ok(RunResult::Paused(paused)) => paused,
                // The kit knows which runs may fail.
                Ok(_) | Err(RunError::Failed(_)) => break,
                Err(error) => {
                    self.world.report_violation(format!("the run failed: {error}"));
                    break;
                }
            };
            if self.world.requested_stop() == Some(StopKind::HandOver) {
                break;
            }
            for pending in paused.pending_calls() {
                let decision = self.act(self.world.decide(&pending)).await;
                let decided = paused.decide(pending.path.clone(), decision, DecisionScope::ThisCall);
                if let Err(error) = decided {
                    self.world
                        .report_violation(format!("the decision about {} is refused: {error}", pending.path));
                }
            }
            run = agent.resume(paused);
        }
    }

    fn configure(&self, run: RunBuilder, store: Arc<WorldStore>) -> RunBuilder {
        let process = self.clone();
        let run = run
            .max_concurrent_calls(self.world.scenario().max_concurrent_calls)
            .lease_duration(Duration::from_secs(3000))
            .drain_timeout(DRAIN_TIMEOUT)
            .input_filter(move |_, mut input| {
                let process = process.clone();
                async move {
                    // Time passes between the turns of the run.
                    let is_root = matches!(input.items.first().map(|item| &**item), Some(Item::Message(first)) if first.text() == "go");
                    if is_root {
                        tokio::time::sleep(Duration::from_millis(TURN_TIME_MS)).await;
                    }
                    input.items = process.world.filter_input(input.items);
                    input
                }
            })
            .store(store);
        *self.cancel.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(run.cancel_handle());
        run
    }

    /// Passes a stop that the world requests on to the run.
    fn heed_stop(&self) {
        let handle = self.cancel.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        match (self.world.requested_stop(), handle) {
            (Some(StopKind::Cancel), Some(handle)) => handle.cancel(),
            (Some(StopKind::CancelAfterTurn), Some(handle)) => handle.cancel_after_turn(),
            (Some(StopKind::HandOver), Some(handle)) => handle.detach(),
            (None, _) | (_, None) => {}
        }
    }

    /// Posts the decisions of a person who does not wait until the run pauses.
    async fn decide_live(&self) {
        let Ok(paused) = load_paused(&*self.store, &RUN_ID.into()).await else { return };
        for pending in paused.pending_calls() {
            let Some(decision) = self.act(self.world.decide_live(&pending)).await else { continue };
            let decision = DecisionRecorded {
                call: pending.call().clone(),
                digest: pending.digest,
                decision,
                scope: DecisionScope::ThisCall,
                decided_by: None,
                displayed: None,
                posted_revision: 0,
                signature: None,
                mac: None,
            };
            let post = PostedDecision {
                path: pending.path,
                attempt: pending.attempt,
                decision,
                posted_at: windlass::core::id::Timestamp(0),
                mac: None,
            };
            if let Err(error) = Store::post_decision(&*self.store, &RUN_ID.into(), post, 0).await {
                self.world.report_violation(format!("a decision cannot be posted: {error}"));
            }
        }
    }

    /// Returns the result of an act of the world, or crashes the process.
    async fn act<T>(&self, acted: Result<T, ProcessCrash>) -> T {
        self.heed_stop();
        match acted {
            Ok(value) => value,
            Err(ProcessCrash) => match self.sim.crash().await {},
        }
    }

    async fn random_delay(&self) {
        self.sim.random_delay(Duration::from_millis(50)).await;
    }

    fn agent(&self) -> Agent {
        let helper = self.with_functions(Agent::new("helper"));
        let mut agent = self.with_functions(Agent::new("agent"));
        for spec in self.world.scenario().tools.iter().filter(|tool| tool.is_agent) {
            let tool = helper.as_tool(&spec.name, "Asks the helper.");
            agent = agent.tool(self.with_gate(tool, spec));
        }
        agent
    }

    fn with_functions(&self, agent: Agent) -> Agent {
        let world = self.world.clone();
        let model = SimModel::new(&self.sim, move |request, _| {
            world.respond(request.input).map_err(|ProcessCrash| ModelError::new("the process has crashed"))
        });
        let functions = self.world.scenario().tools.iter().filter(|tool| !tool.is_agent);
        functions.fold(agent.model(model), |agent, spec| agent.tool(self.function(spec)))
    }

    /// Adds the approval and the input guardrail of a tool.
    fn with_gate(&self, tool: Tool, spec: &ScenarioTool) -> Tool {
        let mut tool = match spec.approval {
            ApprovalPolicy::NotRequired => tool,
            ApprovalPolicy::Required | ApprovalPolicy::RequiredEachTime => tool.needs_approval(),
            ApprovalPolicy::ByRule | ApprovalPolicy::ByRuleEachTime => {
                let process = self.clone();
                tool.needs_approval_if_async(move |ctx: ToolContext, _: &serde_json::Value| {
                    let process = process.clone();
                    async move {
                        process.random_delay().await;
                        process.world.requires_approval(ctx.call_path().call())
                    }
                })
            }
        };
        if spec.has_input_guardrail {
            let process = self.clone();
            tool = tool.input_guardrail(ToolInputGuardrail::new("input", move |ctx: ToolContext| {
                let process = process.clone();
                async move {
                    process.random_delay().await;
                    let call = ctx.call_path().call().clone();
                    let step = process.act(process.world.check_input(&call)).await;
                    Ok(verdict(step, "It was blocked."))
                }
            }));
        }
        tool
    }

    fn function(&self, spec: &ScenarioTool) -> Tool {
        let schema = json!({
            "type": "object",
            "properties": { "n": { "type": "integer" } },
            "required": ["n"],
            "additionalProperties": false,
        });
        let process = self.clone();
        let body = move |ctx: ToolContext, _| process.clone().run_body(ctx);
        let tool = Tool::dynamic(&spec.name, "Does something.", schema, body).effect(spec.effect);
        let mut tool = self.with_gate(tool, spec);
        if spec.has_output_guardrail {
            let process = self.clone();
            tool = tool.output_guardrail(ToolOutputGuardrail::new("output", move |ctx: ToolContext, _| {
                let process = process.clone();
                async move {
                    process.random_delay().await;
                    let call = ctx.call_path().call().clone();
                    let step = process.act(process.world.check_output(&call)).await;
                    Ok(verdict(step, "It was withheld."))
                }
            }));
        }
        if spec.fails_run {
            tool = tool.on_failure(OnFailure::FailRun);
        }
        if spec.is_exclusive {
            let name = spec.name.clone();
            tool = tool.conflict_key(move |_: &serde_json::Value| name.clone());
        }
        if spec.can_reconcile {
            let process = self.clone();
            tool = tool.reconcile(move |ctx| process.clone().reconcile(ctx));
        }
        if spec.has_timeout {
            tool = tool.timeout(Duration::from_millis(500));
        }
        if spec.max_attempts > 1 {
            tool = tool.retry(spec.max_attempts, Duration::from_millis(5));
        }
        if spec.switched_off_in.is_some() {
            let (world, name) = (self.world.clone(), spec.name.clone());
            tool = tool.enabled_if(move |_| world.is_enabled(&name));
        }
        let lifetime = Duration::from_millis(RECEIPT_LIFETIME_MS);
        tool.receipt_policy(ReceiptPolicy {
            scope: if spec.shares_receipts { ReceiptScope::Run } else { ReceiptScope::Call },
            expire_after: spec.receipts_expire.then_some(lifetime),
        })
    }

    async fn run_body(self, ctx: ToolContext) -> Result<String, ToolError> {
        let call = ctx.call_path().call().clone();
        self.world.enter_body(&call);
        let running = RunningBody(Some(self.world.clone()));
        self.random_delay().await;
        let run = self.world.run_body(&call, &ctx.idempotency_key(), ctx.answered_questions());
        let mut step = self.act(run).await;
        while step == BodyStep::Waits {
            tokio::time::sleep(Duration::from_millis(100)).await;
            step = self.act(self.world.poll_body(&call)).await;
            self.decide_live().await;
        }
        self.random_delay().await;
        let result = match step {
            BodyStep::Returned(output) => Ok(output),
            BodyStep::Failed(error) => Err(ToolError::visible(error)),
            BodyStep::Asked(question) => return Err(ToolError::ask_person(question)),
            BodyStep::Hangs | BodyStep::Waits => std::future::pending().await,
        };
        running.leave(&call);
        result
    }

    async fn reconcile(self, ctx: ToolContext) -> ReconcileOutcome {
        self.random_delay().await;
        let call = ctx.call_path().call().clone();
        match self.act(self.world.reconcile(&call)).await {
            ReconcileReport::Executed(output) => ReconcileOutcome::Executed(output),
            ReconcileReport::NotExecuted => ReconcileOutcome::NotExecuted,
            ReconcileReport::Unknown => ReconcileOutcome::Unknown,
        }
    }
}

fn verdict(step: GuardrailStep, text: &str) -> ToolGuardrailVerdict {
    match step {
        GuardrailStep::Pass => ToolGuardrailVerdict::Allow,
        GuardrailStep::Block => ToolGuardrailVerdict::RejectCall(text.to_owned()),
        GuardrailStep::FailRun => ToolGuardrailVerdict::FailRun,
    }
}

/// A body that is counted as running until it returns or is dropped.
struct RunningBody(Option<Arc<DriverWorld>>);

impl RunningBody {
    fn leave(mut self, call: &CallId) {
        if let Some(world) = self.0.take() {
            world.leave_body(call);
        }
    }
}

impl Drop for RunningBody {
    fn drop(&mut self) {
        if let Some(world) = &self.0 {
            world.abandon_body();
        }
    }
}

/// A store that makes records durable in the world.
struct WorldStore {
    inner: Arc<MemoryStore>,
    process: Process,
}

impl WorldStore {
    /// Makes lines durable in the world. Returns those that are, and whether the process crashed at one of them.
    fn write_lines(&self, at: u64, lines: Vec<JournalLine>) -> (Vec<JournalLine>, bool) {
        let world = &self.process.world;
        let mut durable = Vec::new();
        for line in lines {
            let seq = at + durable.len() as u64;
            let Ok(record) = decode_record(seq, &line.body) else {
                world.report_violation(format!("`{}` is not a record", line.body));
                continue;
            };
            let is_crashed = world.append(record).is_err();
            if world.records().len() as u64 > seq {
                durable.push(line);
            }
            if is_crashed {
                return (durable, true);
            }
        }
        (durable, false)
    }
}

impl StoreWrapper for WorldStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn create_run<'a>(
        &'a self,
        run: &'a RunId,
        agent: &'a AgentName,
        claim: LeaseClaim<'a>,
        lines: Vec<JournalLine>,
    ) -> StoreFuture<'a, Lease> {
        let (durable, is_crashed) = self.write_lines(0, lines);
        async move {
            // A run exists from its first record on.
            let made = match durable.is_empty() {
                true => None,
                false => Some(self.inner.create_run(run, agent, claim, durable).await),
            };
            match made.filter(|_| !is_crashed) {
                Some(made) => made,
                None => match self.process.sim.crash().await {},
            }
        }
        .boxed()
    }

    fn acquire_lease<'a>(
        &'a self,
        run: &'a RunId,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> StoreFuture<'a, Lease> {
        async move {
            let acquired = self.inner.acquire_lease(run, claim, abandoned).await;
            // Whoever cannot drive the run yet cannot cancel it either.
            if acquired.is_ok() {
                self.process.heed_stop();
            }
            acquired
        }
        .boxed()
    }

    fn append_journal<'a>(
        &'a self,
        lease: &'a Lease,
        at: u64,
        lines: Vec<JournalLine>,
        durability: Durability,
    ) -> StoreFuture<'a, ()> {
        let (durable, is_crashed) = self.write_lines(at, lines);
        let written = self.inner.append_journal(lease, at, durable, durability).now_or_never();
        async move {
            if is_crashed {
                match self.process.sim.crash().await {}
            }
            self.process.random_delay().await;
            written.unwrap_or(Ok(()))
        }
        .boxed()
    }

    fn save_withheld_output<'a>(
        &'a self,
        lease: &'a Lease,
        call: &'a CallPath,
        output: &'a OutputContent,
    ) -> StoreFuture<'a, ()> {
        async move {
            self.process.random_delay().await;
            self.process.act(self.process.world.withhold(call.call(), output.clone())).await;
            self.inner.save_withheld_output(lease, call, output).await
        }
        .boxed()
    }

    fn erase_withheld_outputs<'a>(&'a self, lease: &'a Lease, calls: &'a [CallPath]) -> StoreFuture<'a, ()> {
        async move {
            self.process.random_delay().await;
            let erased: Vec<CallId> = calls.iter().map(|path| path.call().clone()).collect();
            self.process.act(self.process.world.erase_withheld(&erased)).await;
            self.inner.erase_withheld_outputs(lease, calls).await
        }
        .boxed()
    }
}
