//! Runs that an earlier life of a session left open are gone on with.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use windlass::agent::Resolved;
use windlass::core::{AgentName, CallId, RunId};
use windlass::model::Answer;

use super::actor::Actor;
use super::keep::secrets;
use super::runs::{Notice, Recovery, call_id};
use crate::history::LiveItem;
use crate::journal::CallsRecord;

/// How long a driver that is gone owns its runs, where nothing else is said.
const LEASE: Duration = Duration::from_secs(30);
/// How much longer than that it is tried.
const MARGIN: Duration = Duration::from_secs(5);
/// How long to wait before it is tried again.
const AGAIN: Duration = Duration::from_millis(500);

/// What the model is told of a call that cannot be made from what was written down.
const SECRET_GONE: &str = "The secret arguments of this call were not kept. Ask for them again.";

/// What there is of a run of an earlier life.
struct Found<C> {
    /// The agent that made its calls.
    number: u32,
    resolved: Resolved<C>,
    /// How much of it is stored. With two lines it has taken in what it is to do.
    lines: usize,
    store: Arc<dyn windlass::Store>,
}

impl<C: Send + Sync + 'static> Actor<C> {
    /// Goes on with runs that an earlier life of this session left open.
    pub(super) async fn recover(&mut self, open: Vec<CallsRecord>) {
        let until = Instant::now() + self.plan.lease.unwrap_or(LEASE) + MARGIN;
        for record in open {
            self.recover_run(Recovery { record, until }).await;
        }
    }

    /// A run belongs to somebody else. A process that was killed owns its runs a while longer; so it is tried again,
    /// for as long as that takes. Says whether it is.
    pub(super) fn is_tried_again(&mut self, run: &RunId) -> bool {
        let Some(live) = self.runs.get_mut(run) else { return false };
        if live.recovery.as_ref().is_none_or(|recovery| Instant::now() >= recovery.until) {
            return false;
        }
        live.is_running = false;
        let (notify, run) = (self.notify.clone(), run.clone());
        self.forwarders.spawn(async move {
            tokio::time::sleep(AGAIN).await;
            let _ = notify.send(Notice::Again { run }).await;
        });
        true
    }

    /// Tries again to go on with a run.
    pub(super) async fn try_again(&mut self, run: &RunId) {
        let recovery = self.runs.get(run).and_then(|live| live.recovery.clone());
        if let Some(recovery) = recovery {
            self.recover_run(recovery).await;
        }
    }

    async fn recover_run(&mut self, recovery: Recovery) {
        let CallsRecord { run, response, agent, calls } = recovery.record.clone();
        let items: Vec<_> = calls.iter().filter_map(LiveItem::to_item).map(Arc::new).collect();
        let ids: Vec<CallId> = items.iter().filter_map(|item| call_id(item)).collect();
        match self.recovered(&run, &agent).await {
            // What was written down has no secrets, so a call that needs them cannot be made from it.
            Ok(Found { resolved, lines, .. })
                if lines < 2 && items.iter().any(|item| secrets(&resolved, item).are_gone) =>
            {
                let message = "the secret arguments of a call were not kept".to_owned();
                self.runs.remove(&run);
                self.give_up_as(&run, &response, ids, message, SECRET_GONE);
            }
            Ok(Found { number, resolved, lines, store }) => {
                let response_id = Some(response.to_string());
                let answer = Answer { items, usage: None, response_id, ..Answer::default() };
                let receipts = &self.setting.receipts;
                let builder = match lines > 0 {
                    true => resolved.recover(run.clone(), store, answer, receipts),
                    // The session wrote down that it would, and was gone before it did.
                    false => {
                        resolved.carry_out(Vec::new(), answer, receipts).run_id(run.clone()).store(store)
                    }
                };
                self.start(run, number, response, ids, builder, Some(recovery));
            }
            Err(message) => {
                self.runs.remove(&run);
                self.give_up(&run, &response, ids, message);
            }
        }
    }

    /// What there is of a run, and the agent that made its calls.
    async fn recovered(&mut self, run: &RunId, agent: &AgentName) -> Result<Found<C>, String> {
        let Some(store) = self.plan.store.clone() else {
            return Err("there is no store that its run could be in".to_owned());
        };
        let patience = self.plan.patience;
        let slow = |what: &str| format!("{what} was not there within {patience:?}");
        let resolving = timeout(patience, self.resolved_for(agent)).await;
        let (number, resolved) = resolving.map_err(|_| slow("its agent"))??;
        let loading = timeout(patience, store.load(run, 0)).await;
        let lines = loading.map_err(|_| slow("its journal"))?.map_err(|error| error.to_string())?;
        Ok(Found { number, resolved, lines: lines.len(), store })
    }

    /// An agent that was current in an earlier life.
    async fn resolved_for(&mut self, name: &AgentName) -> Result<(u32, Resolved<C>), String> {
        let known = self.agents.iter().find(|(_, resolved)| resolved.agent().name() == name);
        if let Some((number, resolved)) = known {
            return Ok((*number, resolved.clone()));
        }
        let agent = match self.setting.root.name() == name {
            true => self.setting.root.clone(),
            false => {
                let mut reachable = self.agents.values().filter_map(|agent| agent.reachable(name));
                let unknown = || format!("there is no agent `{name}` any more");
                reachable.next().cloned().ok_or_else(unknown)?
            }
        };
        let (session, app) = (self.setting.session.clone(), self.setting.app.clone());
        let resolving = agent.resolve_with(&session, app, &self.plan.known);
        let resolved = resolving.await.map_err(|error| error.to_string())?;
        let number = self.next_agent;
        self.next_agent += 1;
        self.agents.insert(number, resolved.clone());
        Ok((number, resolved))
    }
}
