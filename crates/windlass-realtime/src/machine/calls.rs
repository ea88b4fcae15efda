//! Calls: each is carried out once, whatever the model or the connection repeats, and its output is kept until the
//! model has it.

use windlass::Usage;
use windlass::core::{CallId, RunId};

use super::{AgentKey, Answer, Batch, Effect, Machine, ToolMode};
use crate::event::LiveError;
use crate::history::{LiveItem, LiveItemKind};
use crate::id::{CommandId, ItemId, ResponseId};
use crate::journal::LiveEntry;
use crate::model::CommandKind;

/// What the model is told of calls in an answer that was cut off.
const NOT_MADE: &str = "This call was not made, because the answer that it was part of was cut off.";

/// A call that was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KnownCall {
    name: String,
    arguments: String,
    output: Option<ItemId>,
    delivery: Delivery,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    /// There is nothing to deliver, or it is on its way.
    Open,
    /// The model did not take it.
    Refused,
}

/// Whether more comes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchEnd {
    /// It waits for a person.
    Held,
    /// It has ended.
    Over,
}

/// Whether the calls of an answer may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MayRun {
    Yes,
    /// It was cut off, or objected to.
    No,
}

impl Machine {
    /// Takes the calls of an answer that has ended.
    pub(super) fn take_calls(
        &mut self,
        response: &ResponseId,
        agent: AgentKey,
        calls: Vec<LiveItem>,
        may_run: MayRun,
        usage: Option<Usage>,
    ) {
        let mut fresh = Vec::new();
        for mut item in calls {
            let LiveItemKind::Call { call, name, arguments } = &item.kind else { continue };
            let call = call.clone();
            match self.calls.get(&call) {
                Some(known) if known.name == *name && known.arguments == *arguments => {
                    self.resend_output(&call);
                    continue;
                }
                Some(_) => {
                    self.error(LiveError::CallIdTaken { call });
                    continue;
                }
                None => {}
            }
            let (name, arguments) = (name.clone(), arguments.clone());
            self.calls.insert(call, KnownCall { name, arguments, output: None, delivery: Delivery::Open });
            item.agent = Some(agent.name.clone());
            item.response = Some(response.clone());
            let change = self.history.put(item.clone(), None);
            self.changed(change);
            fresh.push(item);
        }
        if fresh.is_empty() {
            return;
        }
        if may_run == MayRun::No {
            for item in &fresh {
                if let LiveItemKind::Call { call, .. } = &item.kind {
                    self.put_output(call, NOT_MADE.to_owned(), Answer::NotYet);
                }
            }
            return;
        }
        let input = std::mem::take(&mut self.since_answer);
        let input = input.iter().filter_map(|id| self.history.get(id)?.to_item()).collect();
        let run = RunId::from(format!("{}/{response}", self.rules.session));
        let items = fresh.iter().filter_map(LiveItem::to_item).collect();
        self.out.push(Effect::Journal(LiveEntry::Calls {
            run: run.clone(),
            response: response.clone(),
            agent: agent.name.clone(),
            calls: fresh,
        }));
        self.metrics.calls = self.calls.len() as u64;
        let batch = Batch { run, response: response.clone(), agent, input, calls: items, usage };
        self.waiting.push_back(batch);
        self.start_waiting();
    }

    /// Starts the calls of answers whose turn it is.
    pub(super) fn start_waiting(&mut self) {
        while let Some(batch) = self.waiting.pop_front() {
            if self.rules.tools == ToolMode::InLine && !self.running.is_empty() {
                self.waiting.push_front(batch);
                return;
            }
            self.running.insert(batch.run.clone());
            self.out.push(Effect::CarryOut(batch));
        }
    }

    /// A call of an earlier life of this session is open, and a run is under way for it.
    pub(crate) fn adopt(&mut self, run: &RunId, item: &LiveItem) {
        if let LiveItemKind::Call { call, name, arguments } = &item.kind {
            let (name, arguments) = (name.clone(), arguments.clone());
            let output = self.history.output_of(call).map(|item| item.id.clone());
            if output.is_none() {
                self.running.insert(run.clone());
            }
            self.calls.insert(call.clone(), KnownCall { name, arguments, output, delivery: Delivery::Open });
        }
    }

    /// All that was open in an earlier life is adopted. What that life could not finish is: calls that nobody carries
    /// out get their output, and a question without an answer is asked again.
    pub(crate) fn resumed(&mut self, entries: u64, unanswered: Option<ItemId>) {
        // Every item of ours is an entry at least, so ids that are counted from here on are new ones.
        self.items = self.items.max(entries);
        let is_open = |item: &&LiveItem| match &item.kind {
            LiveItemKind::Call { call, .. } => !self.calls.contains_key(call),
            _ => false,
        };
        let open: Vec<LiveItem> = self.history.items().iter().filter(is_open).cloned().collect();
        for item in open {
            let LiveItemKind::Call { call, name, arguments } = item.kind else { continue };
            let output = self.history.output_of(&call).map(|item| item.id.clone());
            let known = KnownCall { name, arguments, output, delivery: Delivery::Open };
            self.calls.insert(call.clone(), known);
            self.put_output(&call, NOT_MADE.to_owned(), Answer::NotYet);
        }
        if unanswered.is_some() {
            self.gate.want(self.now, unanswered);
        }
    }

    /// Outputs came of a run. The model gets them, and is asked for an answer to them.
    pub(crate) fn calls_settled(&mut self, run: &RunId, outputs: Vec<(CallId, String)>, end: BatchEnd) {
        if end == BatchEnd::Over {
            self.running.remove(run);
        }
        for (call, text) in outputs {
            if let Some(item) = self.put_output(&call, text, Answer::Wanted) {
                self.gate.want(self.now, Some(item));
            }
        }
    }

    /// Gives a call its output, which it has once.
    pub(super) fn put_output(&mut self, call: &CallId, text: String, answer: Answer) -> Option<ItemId> {
        let known = self.calls.get(call)?;
        if known.output.is_some() {
            return None;
        }
        let id = self.next_item();
        if let Some(known) = self.calls.get_mut(call) {
            known.output = Some(id.clone());
        }
        let output = LiveItemKind::Output { call: call.clone(), text };
        self.add(LiveItem::new(id.clone(), output), None, answer);
        Some(id)
    }

    /// An item was not taken by the model.
    pub(super) fn item_refused(&mut self, command: &CommandId, message: &str) -> bool {
        let Some(item) = self.unconfirmed.remove(command) else { return false };
        let of = self.calls.iter_mut().find(|(_, known)| known.output.as_ref() == Some(&item));
        match of {
            Some((call, known)) => {
                known.delivery = Delivery::Refused;
                let call = call.clone();
                self.error(LiveError::OutputNotSent { call, message: message.to_owned() });
                true
            }
            None => false,
        }
    }

    /// Sends an output again that the model did not take. The call does not run again.
    fn resend_output(&mut self, call: &CallId) {
        let Some(known) = self.calls.get_mut(call).filter(|known| known.delivery == Delivery::Refused) else {
            return;
        };
        known.delivery = Delivery::Open;
        let Some(item) = known.output.as_ref().and_then(|id| self.history.get(id)).cloned() else { return };
        let id = self.send(CommandKind::Add { item: item.clone(), after: None });
        self.unconfirmed.insert(id, item.id.clone());
        self.gate.want(self.now, Some(item.id));
    }

    /// Sends every output again that the model did not take.
    pub(crate) fn resend_outputs(&mut self) {
        let refused: Vec<CallId> = self
            .calls
            .iter()
            .filter(|(_, known)| known.delivery == Delivery::Refused)
            .map(|(call, _)| call.clone())
            .collect();
        for call in refused {
            self.resend_output(&call);
        }
    }
}
