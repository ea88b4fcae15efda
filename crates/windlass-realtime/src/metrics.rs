//! Latency and volume metrics of a session and its responses.

use std::time::Duration;

use crate::model::RealtimeUsage;

/// Latencies and durations of one response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnMetrics {
    /// Time from the end of the user's speech, or from the request, to the start of the response.
    pub time_to_response: Option<Duration>,
    /// Time from the same starting point to the first audio chunk.
    pub time_to_first_audio: Option<Duration>,
    /// Duration of the response.
    pub duration: Duration,
    /// Duration of the received speech.
    pub audio_duration: Duration,
    /// Time from the interruption to the end of the response.
    pub interruption_latency: Option<Duration>,
}

/// Totals of a session so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionMetrics {
    /// Number of ended responses.
    pub turns: u64,
    /// Number of interrupted responses.
    pub interruptions: u64,
    /// Number of responses that a guardrail rejected.
    pub guardrail_trips: u64,
    /// Number of accepted tool calls.
    pub tool_calls: u64,
    /// Token usage, in total and by modality.
    pub usage: RealtimeUsage,
    /// Time to the first audio chunk of the latest spoken response.
    pub last_time_to_first_audio: Option<Duration>,
    /// Longest time to a first audio chunk.
    pub longest_time_to_first_audio: Option<Duration>,
    /// Longest time from an interruption to the end of the response.
    pub longest_interruption_latency: Option<Duration>,
    /// Number of the user's audio chunks dropped because the connection was too slow or down.
    pub dropped_input_chunks: u64,
    /// Number of audio chunks that arrived after their response was interrupted.
    pub suppressed_output_chunks: u64,
    /// Number of audio chunks dropped because subscribers were too slow.
    pub dropped_output_chunks: u64,
    /// Number of successful reconnections.
    pub reconnects: u64,
}

impl SessionMetrics {
    pub(crate) fn record_turn(&mut self, turn: &TurnMetrics, usage: Option<&RealtimeUsage>) {
        self.turns += 1;
        self.usage.add(&usage.copied().unwrap_or_else(RealtimeUsage::of_unknown_request));
        if let Some(first) = turn.time_to_first_audio {
            self.last_time_to_first_audio = Some(first);
            self.longest_time_to_first_audio = self.longest_time_to_first_audio.max(Some(first));
        }
        self.longest_interruption_latency = self.longest_interruption_latency.max(turn.interruption_latency);
    }
}
