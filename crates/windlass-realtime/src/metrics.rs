//! How long things took, and how much of everything there was.

use std::time::Duration;

use windlass::Usage;

/// How long the parts of one answer took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnMetrics {
    /// From the user's last word, or the reason to answer, to the beginning of the answer.
    pub to_response: Option<Duration>,
    /// From there to the first piece of speech.
    pub to_first_audio: Option<Duration>,
    /// How long the answer was under way.
    pub length: Duration,
    /// How much speech came.
    pub audio: Duration,
    /// From the interruption to the end of the answer.
    pub interruption: Option<Duration>,
}

/// What a session amounts to so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionMetrics {
    /// Answers that ended.
    pub turns: u64,
    /// Answers that were interrupted.
    pub interruptions: u64,
    /// Guardrails that tripped, at most one for an answer.
    pub trips: u64,
    /// Calls that were carried out.
    pub calls: u64,
    /// Tokens.
    pub usage: Usage,
    /// The first piece of speech of the latest answer took so long.
    pub last_to_first_audio: Option<Duration>,
    /// The longest that the first piece of speech took.
    pub longest_to_first_audio: Option<Duration>,
    /// The longest from an interruption to the end of the answer.
    pub longest_interruption: Option<Duration>,
    /// Pieces of the user's audio that were not sent, because the connection could not keep up.
    pub dropped_input: u64,
    /// Pieces of speech that came after their answer was interrupted.
    pub suppressed_output: u64,
    /// Pieces of speech that watchers were too slow for.
    pub dropped_output: u64,
    /// How often the connection was made again.
    pub reconnects: u64,
}

impl SessionMetrics {
    pub(crate) fn turn(&mut self, turn: &TurnMetrics, usage: Option<&Usage>) {
        self.turns += 1;
        self.usage.add(&usage.copied().unwrap_or_else(Usage::unknown));
        if let Some(first) = turn.to_first_audio {
            self.last_to_first_audio = Some(first);
            self.longest_to_first_audio = self.longest_to_first_audio.max(Some(first));
        }
        self.longest_interruption = self.longest_interruption.max(turn.interruption);
    }
}
