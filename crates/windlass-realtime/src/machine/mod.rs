//! The session as a pure machine: what is said goes in, with the time; what is to be done comes out. It does no I/O,
//! reads no clock and starts nothing, so that every order of events can be tried.
//!
//! **The driver's contract: feed events in the order in which they came, carry out every [`Effect`] in order, and call
//! [`Machine::tick`] no later than [`Machine::deadline`].**

mod agents;
mod calls;
mod gate;
mod input;
mod listen;
mod playback;
mod turns;

pub use input::Answer;
pub use playback::PlaybackSource;

pub(crate) use calls::BatchEnd;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use windlass::core::{AgentName, CallId, RunId};
use windlass::{Item, Usage};

use crate::event::{ChangeCause, LiveEvent};
use crate::history::{History, HistoryChange, ItemStatus, LiveItem};
use crate::id::{CommandId, ItemId, ResponseId};
use crate::journal::LiveEntry;
use crate::metrics::SessionMetrics;
use crate::model::{Command, CommandKind, ResponseStatus};
use crate::settings::Configuration;

use self::calls::KnownCall;
use self::gate::{Gate, Overdue, Patience};
use self::playback::Playback;
use self::turns::Turn;

/// An agent as it was when it became current. Two times current, two keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AgentKey {
    pub(crate) number: u32,
    pub(crate) name: AgentName,
}

/// What the machine asks for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Effect {
    /// Send this to the model.
    Send(Command),
    /// Tell whoever watches.
    Emit(LiveEvent),
    /// Write this down, before what follows.
    Journal(LiveEntry),
    /// Carry out these calls.
    CarryOut(Batch),
    /// Let guardrails look at this.
    Check(Check),
    /// A change of agents has come about, or has not.
    Changed { agent: AgentKey, result: Result<(), String> },
}

/// The calls of one answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Batch {
    pub(crate) run: RunId,
    pub(crate) response: ResponseId,
    pub(crate) agent: AgentKey,
    pub(crate) input: Vec<Item>,
    pub(crate) calls: Vec<Item>,
    pub(crate) usage: Option<Usage>,
}

/// A text for guardrails to look at.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Check {
    pub(crate) response: ResponseId,
    pub(crate) agent: AgentKey,
    pub(crate) text: Arc<str>,
}

/// How a session goes, where it may go one way or another.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) session: RunId,
    pub(crate) debounce: usize,
    pub(crate) tools: ToolMode,
    pub(crate) playback: PlaybackSource,
    pub(crate) patience: Patience,
    pub(crate) acknowledge: Duration,
    pub(crate) release: AudioRelease,
    pub(crate) follow_up: FollowUp,
}

/// How calls go on beside the conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolMode {
    /// The conversation goes on while calls run.
    #[default]
    Background,
    /// No answer is asked for while calls run, and those of one answer run after those of the one before.
    InLine,
}

/// When speech reaches the application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AudioRelease {
    /// At once: a guardrail may come too late for what was played already.
    #[default]
    AtOnce,
    /// When the guardrails have passed what is said in it. It begins later, and nothing that they object to is heard.
    Checked,
}

/// What the model is told after a guardrail tripped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FollowUp {
    /// That it did, and by which; and it answers anew.
    #[default]
    Name,
    /// This, and it answers anew.
    Say(String),
    /// Nothing.
    Nothing,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            session: RunId::from("session"),
            debounce: 100,
            tools: ToolMode::Background,
            playback: PlaybackSource::Clock,
            patience: Patience {
                begin: Duration::from_secs(10),
                silence: Duration::from_secs(30),
                stop: Duration::from_secs(5),
            },
            acknowledge: Duration::from_secs(10),
            release: AudioRelease::AtOnce,
            follow_up: FollowUp::Name,
        }
    }
}

/// Whether the model can be spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Down,
    Up,
}

/// A configuration that was sent and is not in force yet.
#[derive(Clone, Debug)]
struct Change {
    agent: AgentKey,
    configuration: Arc<Configuration>,
    is_checked: bool,
    cause: ChangeCause,
    sent: Option<CommandId>,
}

#[derive(Debug)]
pub(crate) struct Machine {
    rules: Rules,
    out: Vec<Effect>,
    now: Duration,
    link: Link,
    history: History,
    gate: Gate,
    playback: Playback,
    agent: AgentKey,
    configuration: Arc<Configuration>,
    is_checked: bool,
    /// Configurations that were sent, oldest first, and not acknowledged, and since when.
    configuring: VecDeque<(CommandId, Duration)>,
    changes: VecDeque<Change>,
    turns: BTreeMap<ResponseId, Turn>,
    newest: Option<ResponseId>,
    /// Answers that have ended, the newest last.
    over: VecDeque<ResponseId>,
    calls: BTreeMap<CallId, KnownCall>,
    /// Runs that are under way, oldest first, and those that wait for them in line.
    running: BTreeSet<RunId>,
    waiting: VecDeque<Batch>,
    /// Items that were sent and that the other side has not confirmed.
    unconfirmed: BTreeMap<CommandId, ItemId>,
    /// What became of the first configuration.
    ready: Option<Result<(), String>>,
    speaking_since: Option<Duration>,
    /// The user's last word, or the last reason to answer.
    asked_at: Option<Duration>,
    /// What the user said since the last answer.
    since_answer: Vec<ItemId>,
    /// Answers in a row that were objected to and followed up.
    follow_ups: u32,
    commands: u64,
    items: u64,
    metrics: SessionMetrics,
}

/// Speech that never stops is a lost event.
const LONGEST_SPEECH: Duration = Duration::from_secs(120);

impl Machine {
    pub(crate) fn new(
        rules: Rules,
        agent: AgentKey,
        configuration: Arc<Configuration>,
        is_checked: bool,
        history: History,
    ) -> Self {
        Self {
            gate: Gate::new(rules.patience),
            playback: Playback::new(rules.playback, configuration.live.output_format),
            rules,
            out: Vec::new(),
            now: Duration::ZERO,
            link: Link::Down,
            history,
            agent,
            configuration,
            is_checked,
            configuring: VecDeque::new(),
            changes: VecDeque::new(),
            turns: BTreeMap::new(),
            newest: None,
            over: VecDeque::new(),
            calls: BTreeMap::new(),
            running: BTreeSet::new(),
            waiting: VecDeque::new(),
            unconfirmed: BTreeMap::new(),
            ready: None,
            speaking_since: None,
            asked_at: None,
            since_answer: Vec::new(),
            follow_ups: 0,
            commands: 0,
            items: 0,
            metrics: SessionMetrics::default(),
        }
    }

    /// What is to be done, in order.
    pub(crate) fn effects(&mut self) -> Vec<Effect> {
        self.pump();
        std::mem::take(&mut self.out)
    }

    /// The time.
    pub(crate) fn at(&mut self, now: Duration) -> &mut Self {
        self.now = self.now.max(now);
        self
    }

    /// When the machine wants to be asked again, at the latest.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        if self.link == Link::Down {
            return None;
        }
        let configured = self.configuring.front().map(|(_, at)| *at + self.rules.acknowledge);
        let speech = self.speaking_since.map(|since| since + LONGEST_SPEECH);
        [self.gate.deadline(), configured, speech].into_iter().flatten().min()
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self) {
        if self.link == Link::Down {
            return;
        }
        if self.speaking_since.is_some_and(|since| self.now >= since + LONGEST_SPEECH) {
            self.speaking_since = None;
        }
        self.give_up_configuring();
        match self.gate.overdue(self.now) {
            None => {}
            Some(Overdue::NeverBegan) => self.error(crate::event::LiveError::NoAnswer),
            Some(Overdue::Stop(response)) => {
                self.error(crate::event::LiveError::Stalled { response: response.clone() });
                self.send(CommandKind::Cancel { response });
            }
            Some(Overdue::GiveUp(response)) => {
                self.response_ended(&response, ResponseStatus::Lost, None, Vec::new());
            }
        }
    }

    /// The connection is there, for the first time or again: the model is told everything.
    pub(crate) fn connected(&mut self) {
        self.link = Link::Up;
        self.configuring.clear();
        self.unconfirmed.clear();
        let configuration = Box::new((*self.configuration).clone());
        let id = self.send(CommandKind::Configure(configuration));
        self.configuring.push_back((id, self.now));
        for item in self.history.items().to_vec() {
            // Speech cannot be given back; what was said in it can.
            if !item.is_sendable() {
                continue;
            }
            let id = self.send(CommandKind::Add { item: item.clone(), after: None });
            self.unconfirmed.insert(id, item.id);
        }
        for change in &mut self.changes {
            change.sent = None;
        }
    }

    /// The connection is gone.
    pub(crate) fn disconnected(&mut self) {
        self.link = Link::Down;
        self.speaking_since = None;
        self.interrupt_playback(None);
        let open: Vec<ResponseId> =
            self.turns.iter().filter(|(_, turn)| !turn.is_over()).map(|(id, _)| id.clone()).collect();
        for response in open {
            // Nothing was heard of it: whoever asked for it still wants it.
            let is_wanted = self.gate.active() == Some(&response)
                && self.turns.get(&response).is_some_and(Turn::is_silent);
            self.response_ended(&response, ResponseStatus::Lost, None, Vec::new());
            if is_wanted {
                self.gate.want(self.now, None);
            }
        }
        self.gate.lost();
        self.configuring.clear();
    }

    pub(crate) fn history(&self) -> &History {
        &self.history
    }

    pub(crate) fn agent(&self) -> &AgentKey {
        &self.agent
    }

    /// What the model is told of the current agent.
    pub(crate) fn configuration(&self) -> Arc<Configuration> {
        self.configuration.clone()
    }

    pub(crate) fn metrics(&self) -> &SessionMetrics {
        &self.metrics
    }

    pub(crate) fn metrics_mut(&mut self) -> &mut SessionMetrics {
        &mut self.metrics
    }

    /// What became of the first configuration, once it is known.
    pub(crate) fn ready(&self) -> Option<&Result<(), String>> {
        self.ready.as_ref()
    }

    /// Begins what can begin now: a change of agents, calls that waited in line, an answer that is wanted.
    fn pump(&mut self) {
        if self.link == Link::Down {
            return;
        }
        self.send_change();
        self.start_waiting();
        let is_busy = !self.changes.is_empty()
            || self.speaking_since.is_some()
            || (self.rules.tools == ToolMode::InLine && !self.running.is_empty());
        if is_busy {
            return;
        }
        let (now, next) = (self.now, self.commands + 1);
        if let Some(command) = self.gate.ask(now, || command_id(next)) {
            self.commands = next;
            self.out
                .push(Effect::Send(Command { id: command, kind: CommandKind::Respond(Default::default()) }));
        }
    }

    fn send(&mut self, kind: CommandKind) -> CommandId {
        self.commands += 1;
        let id = command_id(self.commands);
        if self.link == Link::Up {
            self.out.push(Effect::Send(Command { id: id.clone(), kind }));
        }
        id
    }

    fn emit(&mut self, event: LiveEvent) {
        self.out.push(Effect::Emit(event));
    }

    fn error(&mut self, error: crate::event::LiveError) {
        self.emit(LiveEvent::Error(error));
    }

    /// Tells of a change, and writes down what is settled in it.
    fn changed(&mut self, change: Option<HistoryChange>) {
        self.changed_for(change, Answer::Wanted);
    }

    /// The same, for an item that is to be answered or is not.
    fn changed_for(&mut self, change: Option<HistoryChange>, answer: Answer) {
        let Some(change) = change else { return };
        let entry = match &change {
            HistoryChange::Added { item, .. } | HistoryChange::Updated(item)
                if item.status == ItemStatus::InProgress =>
            {
                None
            }
            HistoryChange::Added { item, .. } | HistoryChange::Updated(item) => {
                let after = self.history.before(&item.id).cloned();
                Some(LiveEntry::Item { item: item.clone(), after, answer })
            }
            HistoryChange::Removed(item) => Some(LiveEntry::Removed { item: item.clone() }),
        };
        if let Some(entry) = entry {
            self.out.push(Effect::Journal(entry));
        }
        self.emit(LiveEvent::History(change));
    }

    /// A new item of ours: into the history, and to the model.
    fn add(&mut self, item: LiveItem, after: Option<ItemId>, answer: Answer) {
        let change = self.history.put(item.clone(), after.as_ref());
        self.changed_for(change, answer);
        let id = self.send(CommandKind::Add { item: item.clone(), after });
        if self.link == Link::Up {
            self.unconfirmed.insert(id, item.id);
        }
    }

    fn next_item(&mut self) -> ItemId {
        self.items += 1;
        ItemId::from(format!("wl_{}_{}", self.short_session(), self.items))
    }

    /// Ids of items are bounded by providers.
    fn short_session(&self) -> String {
        let text = self.rules.session.as_str();
        text.chars().rev().filter(char::is_ascii_alphanumeric).take(12).collect()
    }
}

fn command_id(number: u64) -> CommandId {
    CommandId::from(format!("wl_{number}"))
}

impl LiveItem {
    /// Whether the model can be given it again.
    fn is_sendable(&self) -> bool {
        use crate::history::{LiveItemKind, Part};
        match &self.kind {
            LiveItemKind::Message { parts, .. } => parts.iter().any(|part| match part {
                Part::Text { text } => !text.is_empty(),
                Part::Audio { transcript, .. } => transcript.as_ref().is_some_and(|text| !text.is_empty()),
                Part::Image { .. } => true,
            }),
            LiveItemKind::Call { .. } | LiveItemKind::Output { .. } => true,
            LiveItemKind::Other { .. } => false,
        }
    }
}
