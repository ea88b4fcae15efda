//! The gate in front of answers: one is under way at a time, and reasons for another wait and become one.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::id::{CommandId, ItemId, ResponseId};

/// Reasons for an answer that have not been met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Items that the answer must be able to see.
    after: BTreeSet<ItemId>,
    /// When the first of the reasons came up.
    since: Duration,
    /// The provider refused the question, so an answer that was not asked for cannot be the one to it.
    was_refused: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Idle,
    /// Asked for, and not begun.
    Asked {
        command: CommandId,
        wanted: Wanted,
        at: Duration,
    },
    /// Under way. `asked` is a question that this answer may or may not be the answer to.
    Active {
        response: ResponseId,
        asked: Option<(CommandId, Wanted)>,
        heard: Duration,
        stopping: Option<Duration>,
    },
}

/// What the passing of time asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Overdue {
    /// It was asked for and never began.
    NeverBegan,
    /// It went silent: stop it.
    Stop(ResponseId),
    /// It was stopped, and did not even say so.
    GiveUp(ResponseId),
}

/// How long is too long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub(crate) begin: Duration,
    pub(crate) silence: Duration,
    pub(crate) stop: Duration,
}

#[derive(Debug)]
pub(crate) struct Gate {
    state: State,
    wanted: Option<Wanted>,
    patience: Patience,
    /// The provider says which question an answer belongs to.
    says_who_asked: bool,
    /// A question was refused because of an answer that has not been told of: wait before asking again.
    not_before: Option<Duration>,
    /// Questions in a row that nothing came of.
    unanswered: u32,
}

/// How long to wait before a refused question is asked again, where nothing says when.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// So many questions in a row may come to nothing.
const TRIES: u32 = 3;

impl Gate {
    pub(crate) fn new(patience: Patience) -> Self {
        Self {
            state: State::Idle,
            wanted: None,
            patience,
            says_who_asked: false,
            not_before: None,
            unanswered: 0,
        }
    }

    /// There is a reason for an answer, which must be able to see `after`.
    pub(crate) fn want(&mut self, now: Duration, after: Option<ItemId>) {
        let wanted = self.wanted.get_or_insert_with(|| Wanted { since: now, ..Wanted::default() });
        wanted.after.extend(after);
    }

    /// Whether an answer is to be asked for now. It then is: under `command`.
    pub(crate) fn ask(&mut self, now: Duration, command: impl FnOnce() -> CommandId) -> Option<CommandId> {
        if self.state != State::Idle || self.not_before.is_some_and(|before| now < before) {
            return None;
        }
        let wanted = self.wanted.take()?;
        let command = command();
        self.state = State::Asked { command: command.clone(), wanted, at: now };
        Some(command)
    }

    /// An answer has begun. Gives since when it was waited for, where it was.
    pub(crate) fn started(
        &mut self,
        now: Duration,
        response: ResponseId,
        asked_by: Option<&CommandId>,
        is_known: impl Fn(&ItemId) -> bool,
    ) -> Option<Duration> {
        self.says_who_asked |= asked_by.is_some();
        (self.not_before, self.unanswered) = (None, 0);
        let mut since = None;
        let asked = match std::mem::replace(&mut self.state, State::Idle) {
            State::Asked { command, wanted, .. } => {
                since = Some(wanted.since);
                // It may be another answer than the one that was asked for. What the provider says of the question
                // decides; where it says nothing at all, the question has been met.
                (asked_by != Some(&command)).then_some((command, wanted))
            }
            State::Active { asked, .. } => asked,
            State::Idle => None,
        };
        // Reasons that came up before it began, and whose items it can see, are met by it, whoever asked.
        if self.wanted.as_ref().is_some_and(|wanted| {
            !wanted.was_refused && !wanted.after.is_empty() && wanted.after.iter().all(is_known)
        }) {
            since = since.or(self.wanted.take().map(|wanted| wanted.since));
        }
        self.state = State::Active { response, asked, heard: now, stopping: None };
        since
    }

    /// The provider says who asked for an answer that is known, or has ended, already.
    pub(crate) fn confirmed(&mut self, asked_by: &CommandId) {
        self.says_who_asked = true;
        self.refused(asked_by);
    }

    /// Something came of an answer.
    pub(crate) fn heard(&mut self, now: Duration, response: &ResponseId) {
        if let State::Active { response: active, heard, .. } = &mut self.state
            && active == response
        {
            *heard = now;
        }
    }

    /// A question was not taken because an answer was under way: it is asked again when that has ended.
    pub(crate) fn ask_again(&mut self, now: Duration, command: Option<&CommandId>) -> bool {
        let is_it = |asked: &CommandId| command.is_none_or(|command| command == asked);
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Asked { command, wanted, .. } if is_it(&command) => {
                self.put_back(Wanted { was_refused: true, ..wanted });
                // The answer that is in the way has not been told of yet, or has just ended.
                self.not_before = Some(now + ASK_AGAIN);
                true
            }
            State::Active { response, asked: Some((command, wanted)), heard, stopping }
                if is_it(&command) =>
            {
                self.put_back(Wanted { was_refused: true, ..wanted });
                self.state = State::Active { response, asked: None, heard, stopping };
                true
            }
            state => {
                self.state = state;
                false
            }
        }
    }

    /// A question was not taken for another reason. Asking again would not help.
    pub(crate) fn refused(&mut self, command: &CommandId) -> bool {
        match &mut self.state {
            State::Asked { command: asked, .. } if asked == command => {
                self.state = State::Idle;
                true
            }
            State::Active { asked, .. } if asked.as_ref().is_some_and(|(asked, _)| asked == command) => {
                *asked = None;
                true
            }
            State::Asked { .. } | State::Active { .. } | State::Idle => false,
        }
    }

    /// An answer has ended. Says whether it was the one under way.
    pub(crate) fn ended(&mut self, now: Duration, response: &ResponseId) -> bool {
        self.not_before = None;
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Active { response: active, asked, .. } if active == *response => {
                if let Some((command, wanted)) = asked.filter(|_| self.says_who_asked) {
                    // Somebody else's answer came first; the one that was asked for has yet to begin.
                    self.state = State::Asked { command, wanted, at: now };
                }
                true
            }
            state => {
                self.state = state;
                false
            }
        }
    }

    /// The answer under way is told to stop.
    pub(crate) fn stopping(&mut self, now: Duration, response: &ResponseId) {
        if let State::Active { response: active, stopping, .. } = &mut self.state
            && active == response
        {
            stopping.get_or_insert(now);
        }
    }

    /// The connection is gone. Questions that were not answered are asked again on the next one.
    pub(crate) fn lost(&mut self) {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Asked { wanted, .. } | State::Active { asked: Some((_, wanted)), .. } => {
                self.put_back(wanted)
            }
            State::Active { asked: None, .. } | State::Idle => {}
        }
    }

    /// The answer under way.
    pub(crate) fn active(&self) -> Option<&ResponseId> {
        match &self.state {
            State::Active { response, .. } => Some(response),
            State::Asked { .. } | State::Idle => None,
        }
    }

    /// When something becomes overdue.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        match &self.state {
            State::Idle => self.not_before.filter(|_| self.wanted.is_some()),
            State::Asked { at, .. } => Some(*at + self.patience.begin),
            State::Active { stopping: Some(at), .. } => Some(*at + self.patience.stop),
            State::Active { heard, .. } => Some(*heard + self.patience.silence),
        }
    }

    /// What is overdue now.
    pub(crate) fn overdue(&mut self, now: Duration) -> Option<Overdue> {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return None;
        }
        match &mut self.state {
            State::Idle => {
                self.not_before = None;
                None
            }
            State::Asked { wanted, .. } => {
                let wanted = std::mem::take(wanted);
                self.state = State::Idle;
                self.unanswered += 1;
                if self.unanswered < TRIES {
                    self.put_back(wanted);
                }
                Some(Overdue::NeverBegan)
            }
            State::Active { response, stopping: Some(_), .. } => Some(Overdue::GiveUp(response.clone())),
            State::Active { response, stopping, .. } => {
                *stopping = Some(now);
                Some(Overdue::Stop(response.clone()))
            }
        }
    }

    fn put_back(&mut self, wanted: Wanted) {
        match &mut self.wanted {
            Some(waiting) => {
                waiting.after.extend(wanted.after);
                waiting.since = waiting.since.min(wanted.since);
                waiting.was_refused |= wanted.was_refused;
            }
            None => self.wanted = Some(wanted),
        }
    }
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
