//! The connection is lost or closed at every event of either side, one after the other.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use windlass::prelude::*;
use windlass_realtime::audio::AudioFormat;
use windlass_realtime::settings::{RealtimeSettings, ServerVad, TurnDetection};
use windlass_realtime::testing::{FaultTrigger, LoopbackReply, WireFault, find_wire_violations, tone};
use windlass_realtime::{CloseReason, CloseReport, RealtimeItemKind, RealtimeSessionBuilder};

use crate::support::*;

const SERVER_EVENTS: [&str; 18] = [
    "session.created",
    "session.updated",
    "conversation.item.added",
    "conversation.item.done",
    "conversation.item.truncated",
    "conversation.item.deleted",
    "conversation.item.input_audio_transcription.completed",
    "input_audio_buffer.committed",
    "input_audio_buffer.speech_started",
    "input_audio_buffer.speech_stopped",
    "input_audio_buffer.cleared",
    "response.created",
    "response.output_item.added",
    "response.output_item.done",
    "response.output_audio.delta",
    "response.output_audio.done",
    "response.function_call_arguments.done",
    "response.done",
];
const CLIENT_EVENTS: [&str; 9] = [
    "session.update",
    "conversation.item.create",
    "conversation.item.delete",
    "conversation.item.truncate",
    "input_audio_buffer.append",
    "input_audio_buffer.commit",
    "input_audio_buffer.clear",
    "response.create",
    "response.cancel",
];

/// Holds a conversation with speech, a call, an interruption and a deletion while this fault waits for its event.
async fn converse(fault: WireFault) -> (Arc<CloseReport>, Vec<String>, u32) {
    let runs = Arc::default();
    let server = loopback_server([
        LoopbackReply::message("One moment.").and_call("a", "look", "{}"),
        LoopbackReply::message("Once upon a time there was a windlass.").with_speed(2),
    ]);
    server.inject_fault(fault);
    let builder = || {
        let turns = TurnDetection::ServerVad(ServerVad::default());
        RealtimeSessionBuilder::new(
            Agent::new("desk").tools(counting_tool("look", &runs)),
            server.client_model(),
        )
        .settings(RealtimeSettings { turn_detection: turns, ..RealtimeSettings::default() })
    };
    let session = match builder().connect().await {
        Ok(session) => session,
        Err(_) => builder().connect().await.expect("connects at the second attempt"),
    };
    let asked = session.send_text("Go").await.expect("is there");
    tokio::time::sleep(Duration::from_secs(2)).await;
    session.interrupt().await.expect("is there");
    for audio in [tone(500), vec![0; 24 * 600]] {
        for piece in audio.chunks(2400) {
            session.send_audio(AudioFormat::Pcm24k.encode(piece)).expect("is there");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    session.delete_item(&asked).await.expect("is there");
    session.send_audio(AudioFormat::Pcm24k.encode(&tone(200))).expect("is there");
    session.commit_audio().await.expect("is there");
    session.clear_audio().await.expect("is there");
    tokio::time::sleep(Duration::from_secs(60)).await;
    session.send_text("And?").await.expect("is there");
    tokio::time::sleep(Duration::from_secs(60)).await;
    let report = session.close().await;
    (report, find_wire_violations(&server.wire_log()), run_count(&runs))
}

#[tokio::test(start_paused = true)]
async fn a_session_survives_a_loss_at_every_event() {
    let sending = SERVER_EVENTS.map(FaultTrigger::on_send);
    let receiving = CLIENT_EVENTS.map(FaultTrigger::on_receive);
    for trigger in sending.into_iter().chain(receiving) {
        for fault in
            [WireFault::drop_connection(trigger.clone()), WireFault::close_connection(trigger.clone(), 1011)]
        {
            let (report, violations, runs) = converse(fault).await;
            assert_eq!(report.reason, CloseReason::Closed, "{trigger:?}");
            assert_eq!(violations, Vec::<String>::new(), "{trigger:?}");
            let (mut calls, mut outputs) = (BTreeSet::new(), BTreeSet::new());
            for item in report.history.items() {
                match &item.kind {
                    RealtimeItemKind::Call { call, .. } => assert!(calls.insert(call.clone()), "{trigger:?}"),
                    RealtimeItemKind::Output { call, .. } => {
                        assert!(outputs.insert(call.clone()), "{trigger:?}: two outputs")
                    }
                    _ => {}
                }
            }
            assert_eq!(calls, outputs, "{trigger:?}");
            assert!(runs as usize <= calls.len(), "{trigger:?}: a call ran twice");
            let answered = report.history.items().iter().rev().find_map(|item| match &item.kind {
                RealtimeItemKind::Message { role, .. } => Some(*role),
                _ => None,
            });
            assert_eq!(
                answered,
                Some(windlass::core::item::Role::Assistant),
                "{trigger:?}: nothing was answered"
            );
        }
    }
}
