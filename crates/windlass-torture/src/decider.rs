//! The decider process: a person who approves, edits, rejects, answers, corrects herself, and settles calls in doubt by
//! looking at the ledger. She also forks runs, compacts and rewinds sessions, and cancels submitted runs, hands them over and
//! adds input to them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use windlass::core::decision::{Decision, DecisionScope, HoldReason, PendingCall};
use windlass::core::id::{CallPath, RunId};
use windlass::core::inspect::ForkChange;
use windlass::core::item::Item;
use windlass::core::journal::{JournalEntry, JournalRecord};
use windlass::error::StoreErrorKind;
use windlass::fleet::QueueOrder;
use windlass::run::PausedRun;
use windlass::store::{
    PostDecisionError, RunQuery, RunStatus, StoredRun, fork_run, list_all_runs, load_paused, post_decision,
};
use windlass_sim::SimRng;

use crate::decision_log::{DecisionLine, DecisionStage, LoggedDecision, log_decision};
use crate::deployment::{WorkerBuild, without_nulls};
use crate::files::{RoundFolder, append_line};
use crate::order::{OrderedInput, RunOrder};
use crate::outside::{FenceRule, OutsideWorld};
use crate::plant::{PlantedBug, ProcessStore};
use crate::session_edits::edit_session;
use crate::tools::success_text;
use crate::worker::{load_orders, open_store};

/// Maximum number of forks in a round.
const MAX_FORKS: usize = 6;
/// Maximum number of orders for a run, other than decisions.
const MAX_QUEUE_ORDERS: u32 = 3;

/// The settings of the decider process.
#[derive(Clone, Debug)]
pub struct DeciderSettings {
    /// The folder of the round.
    pub folder: RoundFolder,
    /// The outside world.
    pub world: OutsideWorld,
    /// Name of the process.
    pub name: String,
    /// Seed of all decisions.
    pub seed: u64,
    /// True if she corrects some of her decisions.
    pub has_corrections: bool,
    /// The planted bug.
    pub planted: Option<PlantedBug>,
}

/// Time after which each process that was frozen when a call came into doubt goes on.
const FREEZE_LIMIT: Duration = Duration::from_secs(4);

struct Decider {
    settings: DeciderSettings,
    store: ProcessStore,
    /// Holds that are decided: the call, the attempt and the digest that was shown.
    decided: BTreeSet<(String, String, u32, String)>,
    /// First look at each call in doubt whose effect she has not found.
    first_looks: BTreeMap<(String, String, u32, String), Instant>,
    /// Number of orders for each run.
    posted_orders: BTreeMap<String, u32>,
    /// Number of orders and edits, also those that failed.
    attempts: u64,
    /// Chooses the runs that get orders, and the edits of sessions.
    rng: SimRng,
}

/// Decides until the process is killed.
///
/// # Errors
/// Returns the message of an error of the outside world. Errors of the store are retried.
pub async fn decide(settings: DeciderSettings) -> Result<(), String> {
    let store = open_store(&settings.folder, settings.planted, WorkerBuild::Base).await;
    // A decider goes on otherwise than the one before it did.
    let rng = SimRng::for_purpose(settings.seed, &format!("orders of {}", settings.name));
    let posted_orders = BTreeMap::new();
    let (decided, first_looks) = (BTreeSet::new(), BTreeMap::new());
    let mut decider = Decider { settings, store, decided, first_looks, posted_orders, attempts: 0, rng };
    loop {
        if let Err(error) = decider.decide_round().await {
            eprintln!("decider: {error}");
            // A store whose disk failed has to be opened again.
            let DeciderSettings { folder, planted, .. } = &decider.settings;
            decider.store = open_store(folder, *planted, WorkerBuild::Base).await;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

impl Decider {
    async fn decide_round(&mut self) -> Result<(), String> {
        let orders = load_orders(&self.settings.folder).map_err(|error| error.to_string())?;
        let orders: BTreeMap<String, RunOrder> =
            orders.into_iter().map(|order| (order.run.clone(), order)).collect();
        let query = |statuses| RunQuery { statuses, ..RunQuery::default() };
        // A run whose worker was killed between its hold and its pause is listed as running.
        let open = list_all_runs(&*self.store.runs, query(vec![RunStatus::Paused, RunStatus::Running]));
        for stored in open.await.map_err(|error| error.to_string())? {
            let Some(order) = orders.get(stored.run.as_str()) else { continue };
            let paused =
                load_paused(&*self.store.runs, &stored.run).await.map_err(|error| error.to_string())?;
            for pending in paused.pending_calls() {
                self.decide_call(order, &paused, &pending).await?;
            }
            self.order_sometimes(order).await?;
            self.fork_sometimes(order, &stored, &orders).await?;
        }
        self.edit_sometimes(&orders).await?;
        let ended = list_all_runs(&*self.store.runs, query(vec![RunStatus::Finished]));
        let ended = ended.await.map_err(|error| error.to_string())?;
        for stored in ended {
            if let Some(order) = orders.get(stored.run.as_str()) {
                self.fork_sometimes(order, &stored, &orders).await?;
            }
        }
        Ok(())
    }

    async fn decide_call(
        &mut self,
        order: &RunOrder,
        paused: &PausedRun,
        pending: &PendingCall,
    ) -> Result<(), String> {
        let call = pending.path.to_string();
        let hold = (order.run.clone(), call.clone(), pending.attempt, pending.digest.to_string());
        if self.decided.contains(&hold) {
            return Ok(());
        }
        let purpose = format!("{} {call} {} {}", order.run, pending.attempt, pending.digest);
        let mut rng = SimRng::for_purpose(self.settings.seed, &purpose);
        let plan = match &pending.reason {
            HoldReason::InDoubt => {
                let looked = self.look_at_ledger(order, paused, pending)?;
                // The bank knows no fences: a frozen process may be about to pay.
                if looked.1 == LoggedDecision::ConfirmNotExecuted
                    && self.settings.world.fence_rule() == FenceRule::RefuseStale
                    && self.first_looks.entry(hold.clone()).or_insert_with(Instant::now).elapsed()
                        < FREEZE_LIMIT
                {
                    return Ok(());
                }
                vec![looked]
            }
            HoldReason::Question(_) => plan_answers(&mut rng),
            _ => plan_approval(&mut rng, pending),
        };
        let steps = if self.settings.has_corrections { plan.len() } else { 1 };
        for (place, (decision, logged)) in plan.into_iter().take(steps).enumerate() {
            if place > 0 {
                tokio::time::sleep(Duration::from_micros(rng.below(15_000))).await;
            }
            self.post(order, pending, decision, logged).await?;
        }
        self.decided.insert(hold);
        Ok(())
    }

    /// Logs a decision, posts it, and logs the reply.
    async fn post(
        &self,
        order: &RunOrder,
        pending: &PendingCall,
        decision: Decision,
        logged: LoggedDecision,
    ) -> Result<(), String> {
        let mut line = DecisionLine {
            run: order.run.clone(),
            call: pending.path.to_string(),
            attempt: pending.attempt,
            decision: logged,
            stage: DecisionStage::Posting,
            reply: None,
        };
        log_decision(&self.settings.folder, &line).map_err(|error| error.to_string())?;
        let run = RunId::new(order.run.as_str());
        let path = pending.path.clone();
        let posted =
            post_decision(&*self.store.runs, &run, path, decision, DecisionScope::ThisCall, "decider").await;
        line.stage = match &posted {
            Ok(()) => DecisionStage::Accepted,
            Err(PostDecisionError::Decide(_) | PostDecisionError::AlreadyTaken(_)) => DecisionStage::Refused,
            Err(PostDecisionError::Store(error)) if error.kind() == StoreErrorKind::AlreadyDecided => {
                self.check_taken(&run, pending).await
            }
            Err(_) => DecisionStage::Unknown,
        };
        line.reply = posted.err().map(|error| error.to_string());
        log_decision(&self.settings.folder, &line).map_err(|error| error.to_string())?;
        if line.stage == DecisionStage::Unknown { Err(line.reply.unwrap_or_default()) } else { Ok(()) }
    }

    /// Returns the stage of a refused decision: the journal must show that the earlier one was taken.
    async fn check_taken(&self, run: &RunId, pending: &PendingCall) -> DecisionStage {
        let Ok(paused) = load_paused(&*self.store.runs, run).await else { return DecisionStage::Unknown };
        let is_pending = paused
            .pending_calls()
            .iter()
            .any(|other| other.path == pending.path && other.attempt == pending.attempt);
        if is_pending { DecisionStage::RefusedUntaken } else { DecisionStage::Refused }
    }

    fn look_at_ledger(
        &self,
        order: &RunOrder,
        paused: &PausedRun,
        pending: &PendingCall,
    ) -> Result<(Decision, LoggedDecision), String> {
        let key = recorded_key(paused.record().journal(), &pending.path)
            .ok_or_else(|| format!("{}: {} is in doubt without a start", order.run, pending.path))?;
        let world = &self.settings.world;
        // A keyed call that cannot run again is in doubt too: its effect is in the bank's book.
        let transfers = world.load_transfers().map_err(|error| error.to_string())?;
        let has_effect = transfers.iter().any(|transfer| transfer.key == key)
            || world.has_effect(order, &key, None).map_err(|error| error.to_string())?;
        Ok(if has_effect {
            let output = success_text(&order.run, &pending.path.to_string());
            (Decision::ConfirmExecuted { output: output.into() }, LoggedDecision::ConfirmExecuted)
        } else {
            (Decision::ConfirmNotExecuted, LoggedDecision::ConfirmNotExecuted)
        })
    }

    /// Returns a name that no other attempt of any decider has.
    fn next_name(&mut self) -> String {
        self.attempts += 1;
        format!("{}-{}", std::process::id(), self.attempts)
    }

    /// Compacts or rewinds a session beside its runs.
    async fn edit_sometimes(&mut self, orders: &BTreeMap<String, RunOrder>) -> Result<(), String> {
        let sessions: BTreeSet<&str> = orders.values().filter_map(|order| order.session.as_deref()).collect();
        let sessions: Vec<&str> = sessions.into_iter().collect();
        if sessions.is_empty() || !self.rng.chance(6) {
            return Ok(());
        }
        let session = *self.rng.pick(&sessions);
        let (id, store) = (self.next_name(), self.store.sessions_of(session).clone());
        let edited = edit_session(&self.settings.folder, (session, &store), id, &mut self.rng).await;
        edited.map_err(|error| error.to_string())
    }

    /// Cancels a submitted run, orders it to another worker, or adds input to it.
    async fn order_sometimes(&mut self, order: &RunOrder) -> Result<(), String> {
        let Some(queue) = &self.store.queue else { return Ok(()) };
        let queue = queue.clone();
        let posted = self.posted_orders.get(&order.run).copied().unwrap_or_default();
        // A run that nobody cancels in time ends by itself.
        let chance = if order.is_cancelled { 15 } else { 3 };
        if posted >= MAX_QUEUE_ORDERS || !self.rng.chance(chance) {
            return Ok(());
        }
        let text = format!("and mind point {} of {}", self.next_name(), order.run);
        let given = match self.rng.chance(50) {
            true if order.is_cancelled => QueueOrder::Cancel,
            true => QueueOrder::AddInput { items: vec![Arc::new(Item::user(text.clone()))] },
            false if self.rng.chance(50) => {
                QueueOrder::AddInput { items: vec![Arc::new(Item::user(text.clone()))] }
            }
            false => QueueOrder::HandOver,
        };
        let run = RunId::new(order.run.as_str());
        match queue.post_order(&run, &given).await {
            Ok(number) => {
                self.posted_orders.insert(order.run.clone(), posted + 1);
                if let QueueOrder::AddInput { .. } = given
                    && let Ok(Some(lease)) = queue.load_lease(&run).await
                {
                    let (run, epoch) = (order.run.clone(), lease.epoch);
                    let input = OrderedInput { run, order: number, text, epoch };
                    append_line(&self.settings.folder.ordered_inputs(), &input)
                        .map_err(|error| error.to_string())?;
                }
            }
            // Nobody has submitted it yet.
            Err(error) if error.kind() == StoreErrorKind::RunNotFound => {}
            Err(error) => return Err(error.to_string()),
        }
        Ok(())
    }

    /// Forks a run that has ended, or one that goes on beside its fork. A fork belongs to no session, and an agent
    /// with a tool whose receipts are the session's is refused in it.
    async fn fork_sometimes(
        &self,
        order: &RunOrder,
        stored: &StoredRun,
        orders: &BTreeMap<String, RunOrder>,
    ) -> Result<(), String> {
        let new_run = format!("fork-of-{}", order.run);
        let mut rng = SimRng::for_purpose(self.settings.seed, &new_run);
        let fork_count = orders.values().filter(|order| order.fork_of.is_some()).count();
        let is_wanted =
            rng.chance(50) && !order.has_session_key && order.fork_of.is_none() && !order.is_cancelled;
        let is_due = match rng.chance(50) {
            true => stored.status == RunStatus::Finished,
            false => stored.record_count > 3 + rng.below(15),
        };
        if !is_wanted || !is_due || fork_count >= MAX_FORKS || orders.contains_key(&new_run) {
            return Ok(());
        }
        let at = rng.below(stored.record_count.saturating_sub(1));
        let from = RunId::new(order.run.as_str());
        let made =
            fork_run(&*self.store.runs, &from, at, RunId::new(new_run.as_str()), ForkChange::Unchanged).await;
        if let Err(error) = made {
            eprintln!("decider: {new_run}: {error}");
            // A decider that was killed after the fork and before the line below finds the fork there.
            if load_paused(&*self.store.runs, &RunId::new(new_run.as_str())).await.is_err() {
                return Ok(());
            }
        }
        let fork_of = Some(order.run.clone());
        let (seed, has_session_key, is_cancelled) = (order.seed, false, false);
        let fork = RunOrder { run: new_run, seed, session: None, has_session_key, fork_of, is_cancelled };
        append_line(&self.settings.folder.forks(), &fork).map_err(|error| error.to_string())
    }
}

/// Returns the idempotency key of a call in the journal.
pub fn recorded_key(records: &[JournalRecord], path: &CallPath) -> Option<String> {
    let mut starts = records.iter().filter_map(|record| match &record.entry {
        JournalEntry::CallStarted(started)
            if started.call == *path.call() && record.path == path.parent_calls() =>
        {
            Some(started.idempotency_key.to_string())
        }
        _ => None,
    });
    starts.next_back()
}

/// Plans the decisions about a call: each after the first is a correction.
fn plan_approval(rng: &mut SimRng, pending: &PendingCall) -> Vec<(Decision, LoggedDecision)> {
    let shown = without_nulls(pending.arguments_value());
    let approve = (Decision::Approve, LoggedDecision::Approve { arguments: shown.clone() });
    let reject = || {
        let message = Some(format!("rejected {}", pending.path));
        (Decision::Reject { message }, LoggedDecision::Reject)
    };
    let edited_what = format!("{}-edited", shown["what"].as_str().unwrap_or_default());
    let mut edited = pending.arguments_value();
    edited["what"] = json!(edited_what);
    let edit = (
        Decision::ApproveEdited { arguments: edited.to_string() },
        LoggedDecision::Edit { arguments: without_nulls(edited) },
    );
    match rng.below(20) {
        0..=5 => vec![approve],
        6..=7 => vec![edit],
        8..=9 => vec![reject()],
        10..=12 => vec![approve, reject()],
        13..=15 => vec![reject(), approve],
        16..=17 => vec![approve, edit],
        _ => vec![edit, reject(), approve],
    }
}

fn plan_answers(rng: &mut SimRng) -> Vec<(Decision, LoggedDecision)> {
    let answer = |value: u64| {
        let value = json!(format!("answer-{value}"));
        (Decision::Answer { value: value.clone() }, LoggedDecision::Answer { value })
    };
    let first = answer(rng.below(1000));
    match rng.below(10) {
        0..=6 => vec![first],
        7..=8 => vec![first, answer(1000 + rng.below(1000))],
        _ => {
            let message = Some("not answered".to_owned());
            vec![first, (Decision::Reject { message }, LoggedDecision::Reject)]
        }
    }
}
