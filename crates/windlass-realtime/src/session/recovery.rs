//! Recovery of the runs that an earlier process of this session left unfinished, or that another driver has gone on with.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use windlass::agent::ResolvedAgent;
use windlass::core::id::{AgentName, CallId, RunId};
use windlass::model::ModelResponse;

use super::actor::SessionActor;
use super::call_runs::{RecoveryOrigin, RunNotice, RunRecovery, call_id};
use crate::event::{RealtimeError, RealtimeEvent};
use crate::history::RealtimeItem;
use crate::id::ResponseId;
use crate::journal::CallBatchRecord;

/// Duration of a lost driver's lease, if none is configured.
const DEFAULT_LEASE_DURATION: Duration = Duration::from_secs(30);
/// Time beyond the lease during which recovery is retried.
const LEASE_MARGIN: Duration = Duration::from_secs(5);
/// Delay between recovery attempts.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Longest time for which the session waits for another driver that has one of its runs.
const OTHER_DRIVER_TIME: Duration = Duration::from_secs(600);

/// The output of a call that cannot be executed from its redacted arguments, as the model sees it.
const SECRETS_NOT_KEPT_TEXT: &str = "The secret arguments of this call were not kept. Ask for them again.";

/// The state of an earlier process's run.
struct RecoveredRun<C> {
    /// Activation number of the agent that made the calls.
    activation: u32,
    resolved: ResolvedAgent<C>,
    /// Number of stored journal lines. With two lines, the run has recorded its calls.
    line_count: usize,
    store: Arc<dyn windlass::store::Store>,
}

impl<C: Send + Sync + 'static> SessionActor<C> {
    /// Recovers the runs that an earlier process of this session left unfinished.
    pub(super) async fn recover_runs(&mut self, open: Vec<CallBatchRecord>) {
        let deadline = Instant::now() + recovery_time(self.config.lease_duration);
        for record in open {
            self.recover_run(record, deadline).await;
        }
    }

    /// Schedules another recovery attempt for a run whose lease another process holds: the lease of a killed
    /// process expires after a while. Returns false if the time for recovery is over.
    pub(super) fn schedule_recovery_retry(&mut self, run: &RunId) -> bool {
        let Some(live) = self.runs.get_mut(run) else { return false };
        if live.recovery.as_ref().is_none_or(|recovery| Instant::now() >= recovery.deadline) {
            return false;
        }
        live.is_running = false;
        let (notify, run) = (self.notice_sender.clone(), run.clone());
        self.background_tasks.spawn(async move {
            tokio::time::sleep(RETRY_DELAY).await;
            let _ = notify.send(RunNotice::RecoveryDue { run }).await;
        });
        true
    }

    /// Retries the recovery of a run.
    pub(super) async fn retry_recovery(&mut self, run: &RunId) {
        let recovery = self.runs.get(run).and_then(|live| live.recovery.clone());
        match recovery {
            Some(RunRecovery { origin: RecoveryOrigin::EarlierProcess(record), deadline }) => {
                self.recover_run(record, deadline).await;
            }
            Some(RunRecovery { origin: RecoveryOrigin::OtherDriver, .. }) => {
                self.follow_other_driver(run, "another process still has the run");
            }
            None => {}
        }
    }

    /// Goes on with a run that another driver has gone on with, from its records in the store: takes its outputs if it has
    /// ended there. While the other driver holds the lease, this is tried again until a deadline; `message` says why the
    /// results are not known if that has passed.
    pub(super) fn follow_other_driver(&mut self, run: &RunId, message: &str) {
        let Some(live) = self.runs.get(run) else { return };
        let known_deadline = live.recovery.as_ref().map(|recovery| recovery.deadline);
        let deadline = known_deadline.unwrap_or_else(|| Instant::now() + OTHER_DRIVER_TIME);
        let resolved = self.resolved_agents.get(&live.activation).cloned();
        let (Some(store), Some(resolved), true) =
            (self.config.store.clone(), resolved, Instant::now() < deadline)
        else {
            return self.fail_run(run, message.to_owned());
        };
        let (activation, response, calls) = (live.activation, live.response.clone(), live.calls.clone());
        // The journal has the calls already.
        let answer = ModelResponse { response_id: Some(response.to_string()), ..ModelResponse::default() };
        let builder = resolved.recover_calls(run.clone(), store, answer, &self.context.conversation);
        let recovery = RunRecovery { origin: RecoveryOrigin::OtherDriver, deadline };
        self.start_run(run.clone(), activation, response, calls, builder, Some(recovery));
    }

    /// Recovers a run that an earlier process of this session left unfinished.
    pub(super) async fn recover_run(&mut self, mut record: CallBatchRecord, deadline: Instant) {
        let CallBatchRecord { run, response, agent, mut calls } = record.clone();
        match self.load_run(&run, &agent).await {
            Ok(RecoveredRun { activation: number, resolved, line_count, store }) => {
                // The journal has redacted arguments only, so a call with secret arguments cannot be executed from
                // it. The calls of the same response are.
                let is_lost = |call: &mut RealtimeItem| self.register_call(&resolved, call) && line_count < 2;
                let lost: Vec<RealtimeItem> = calls.extract_if(.., is_lost).collect();
                if !lost.is_empty() {
                    self.fail_lost_calls(&run, &response, &lost, &calls);
                    record.calls.clone_from(&calls);
                }
                if calls.is_empty() {
                    return;
                }
                let items: Vec<_> = calls.iter().filter_map(RealtimeItem::to_item).map(Arc::new).collect();
                let ids = call_ids(&calls);
                let response_id = Some(response.to_string());
                let answer = ModelResponse { items, usage: None, response_id, ..ModelResponse::default() };
                let conversation = &self.context.conversation;
                let builder = match line_count > 0 {
                    true => resolved.recover_calls(run.clone(), store, answer, conversation),
                    // The session journalled the calls and crashed before the run started.
                    false => {
                        let builder = resolved.execute_calls(Vec::new(), answer, conversation);
                        builder.run_id(run.clone()).store(store)
                    }
                };
                let recovery = RunRecovery { origin: RecoveryOrigin::EarlierProcess(record), deadline };
                self.start_run(run, number, response, ids, builder, Some(recovery));
            }
            Err(message) => {
                self.remove_run(&run);
                self.fail_calls(&run, &response, call_ids(&calls), message);
            }
        }
    }

    /// Gives their output to calls whose secret arguments are lost. `others` are the other calls of the run.
    fn fail_lost_calls(
        &mut self,
        run: &RunId,
        response: &ResponseId,
        lost: &[RealtimeItem],
        others: &[RealtimeItem],
    ) {
        let message = "the secret arguments of a call are not in the journal".to_owned();
        let ids = call_ids(lost);
        if others.is_empty() {
            self.remove_run(run);
            return self.fail_calls_with(run, response, ids, message, SECRETS_NOT_KEPT_TEXT);
        }
        let response = response.clone();
        self.emit_event(RealtimeEvent::Error(RealtimeError::CallsFailed { response, message }));
        let now = self.elapsed();
        let machine = self.machine.advance_to(now);
        ids.iter().for_each(|call| machine.on_call_settled(run, call, SECRETS_NOT_KEPT_TEXT.to_owned()));
    }

    /// Loads the stored state of a run and resolves the agent that made its calls.
    async fn load_run(&mut self, run: &RunId, agent: &AgentName) -> Result<RecoveredRun<C>, String> {
        let Some(store) = self.config.store.clone() else {
            return Err("no store is configured, so the run cannot be recovered".to_owned());
        };
        let limit = self.config.ready_timeout;
        let slow = |what: &str| format!("{what} could not be loaded within {limit:?}");
        let resolving = timeout(limit, self.resolve_for_recovery(agent)).await;
        let (number, resolved) = resolving.map_err(|_| slow("its agent"))??;
        let loading = timeout(limit, store.load_journal(run, 0)).await;
        let lines = loading.map_err(|_| slow("its journal"))?.map_err(|error| error.to_string())?;
        Ok(RecoveredRun { activation: number, resolved, line_count: lines.len(), store })
    }

    /// Returns the resolved agent of this name, resolving it if it was current only in an earlier process.
    async fn resolve_for_recovery(&mut self, name: &AgentName) -> Result<(u32, ResolvedAgent<C>), String> {
        let known = self.resolved_agents.iter().find(|(_, resolved)| resolved.agent().name() == name);
        if let Some((number, resolved)) = known {
            return Ok((*number, resolved.clone()));
        }
        let agent = match self.context.root_agent.name() == name {
            true => self.context.root_agent.clone(),
            false => {
                let mut reachable =
                    self.resolved_agents.values().filter_map(|agent| agent.reachable_agent(name));
                let unknown = || format!("agent `{name}` no longer exists");
                reachable.next().cloned().ok_or_else(unknown)?
            }
        };
        let (session, app) = (self.context.session_id.clone(), self.context.app_context.clone());
        let resolving = agent.resolve_with_context(&session, app, &self.config.known_agents);
        let resolved = resolving.await.map_err(|error| error.to_string())?;
        let number = self.next_activation;
        self.next_activation += 1;
        self.resolved_agents.insert(number, resolved.clone());
        Ok((number, resolved))
    }
}

/// Returns the ids of calls.
fn call_ids(calls: &[RealtimeItem]) -> Vec<CallId> {
    calls.iter().filter_map(RealtimeItem::to_item).filter_map(|item| call_id(&item)).collect()
}

/// Returns the time during which the recovery of a run is tried: the lease of a killed process expires in it.
pub(super) fn recovery_time(lease_duration: Option<Duration>) -> Duration {
    lease_duration.unwrap_or(DEFAULT_LEASE_DURATION) + LEASE_MARGIN
}
