//! A misbehaving server: faults that a seed determines.

use std::time::Duration;

use serde_json::json;

use super::fault::{FaultTrigger, WireFault};
use super::server::LoopbackServer;

/// The faults of a server, drawn from a seed: loops, refusals, late, lost and repeated acknowledgements, and some that
/// never come, restarting ids, floods, half-closes, speech that never ends, errors without ids, and closes at every event.
#[derive(Clone, Debug, PartialEq)]
pub struct Misbehaviour {
    /// The seed.
    pub seed: u64,
    /// The faults.
    pub faults: Vec<WireFault>,
    /// True if responses and items are numbered from one on each connection.
    pub has_restarting_ids: bool,
    /// True if a fault hides the start or the end of a response from the client.
    pub hides_responses: bool,
}

/// Events that a server sends.
const SERVER_EVENTS: [&str; 13] = [
    "session.updated",
    "conversation.item.added",
    "conversation.item.done",
    "response.created",
    "response.output_item.added",
    "response.output_item.done",
    "response.output_audio.delta",
    "response.output_audio_transcript.delta",
    "response.function_call_arguments.done",
    "response.done",
    "rate_limits.updated",
    "input_audio_buffer.speech_started",
    "input_audio_buffer.speech_stopped",
];
/// Events that a client sends and a server may refuse.
const CLIENT_EVENTS: [&str; 4] =
    ["session.update", "conversation.item.create", "response.create", "conversation.item.truncate"];
/// Events without which a client does not know of an active response.
const RESPONSE_EVENTS: [&str; 2] = ["response.created", "response.done"];
/// Codes of close frames.
const CLOSE_CODES: [u16; 5] = [1000, 1001, 1008, 1011, 1012];

impl Misbehaviour {
    /// Draws the faults of a server from a seed.
    pub fn from_seed(seed: u64) -> Self {
        let mut draw = SeededDraw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d);
        let mut plan = Self { seed, faults: Vec::new(), has_restarting_ids: false, hides_responses: false };
        plan.has_restarting_ids = draw.below(2) == 0;
        for _ in 0..=draw.below(4) {
            let fault = plan.draw_fault(&mut draw);
            let skip = u32::try_from(draw.below(6)).unwrap_or_default();
            plan.faults.push(fault.after_occurrences(skip));
        }
        plan
    }

    fn draw_fault(&mut self, draw: &mut SeededDraw) -> WireFault {
        let sent = *draw.pick(&SERVER_EVENTS);
        let received = *draw.pick(&CLIENT_EVENTS);
        let late = Duration::from_millis(draw.below(15_000));
        let anonymous = json!({ "type": "error", "error": {
            "type": "server_error", "code": "server_error", "message": "something went wrong", "param": null,
            "event_id": null,
        } });
        match draw.below(15) {
            0 => WireFault::drop_connection(FaultTrigger::on_receive("response.create")).repeated(),
            1 => WireFault::reject_event(received, "invalid_value"),
            2 => WireFault::reject_anonymously(received, "invalid_value"),
            3 => WireFault::reject_event("conversation.item.create", "server_error").repeated(),
            4 => WireFault::drop_event(FaultTrigger::on_send("session.updated")),
            5 => WireFault::delay_event(FaultTrigger::on_send("session.updated"), late),
            6 => WireFault::duplicate_event(FaultTrigger::on_send("session.updated")),
            7 => WireFault::flood(FaultTrigger::on_send(sent), json!({ "type": "moon.rising" }), 500),
            8 => WireFault::half_close(FaultTrigger::on_send(sent)),
            9 => WireFault::drop_event(FaultTrigger::on_send("input_audio_buffer.speech_stopped")),
            10 => WireFault::insert_event(FaultTrigger::on_send(sent), anonymous),
            11 => {
                self.hides_responses |= RESPONSE_EVENTS.contains(&sent);
                match draw.below(3) {
                    0 => WireFault::drop_event(FaultTrigger::on_send(sent)),
                    1 => WireFault::delay_event(FaultTrigger::on_send(sent), late),
                    _ => WireFault::duplicate_event(FaultTrigger::on_send(sent)),
                }
            }
            // Acknowledgements that never come, and items or requests whose acknowledgements come very late.
            12 => WireFault::drop_event(FaultTrigger::on_send("session.updated")).repeated(),
            13 => {
                self.hides_responses |= RESPONSE_EVENTS.contains(&sent);
                WireFault::delay_event(FaultTrigger::on_send(sent), late + Duration::from_secs(15))
            }
            _ => {
                let code = *draw.pick(&CLOSE_CODES);
                let trigger = match draw.below(2) {
                    0 => FaultTrigger::on_send(sent),
                    _ => FaultTrigger::on_receive(received),
                };
                match draw.below(2) {
                    0 => WireFault::close_connection(trigger, code),
                    _ => WireFault::drop_connection(trigger),
                }
            }
        }
    }

    /// Gives a server this misbehaviour.
    #[must_use]
    pub fn apply_to(&self, server: LoopbackServer) -> LoopbackServer {
        for fault in &self.faults {
            server.inject_fault(fault.clone());
        }
        if self.has_restarting_ids { server.with_restarting_ids() } else { server }
    }
}

/// A sequence of numbers that a seed determines (SplitMix64).
struct SeededDraw(u64);

impl SeededDraw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    fn pick<'a, T>(&mut self, values: &'a [T]) -> &'a T {
        let index = usize::try_from(self.below(values.len() as u64)).unwrap_or_default();
        &values[index]
    }
}
