//! The relay of a browser: a microphone, a speaker, the transcript, and, if the application grants it, tool calls and
//! their approvals.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;
use std::sync::Arc;

use futures_util::{Sink, Stream};
use serde_json::{Value, json};
use windlass::core::decision::{Decision, DecisionScope};
use windlass::core::id::{CallPath, RunId};

use super::browser_messages::{
    BrowserDecision, BrowserEncoder, BrowserMessage, CallVisibility, encode_held_call, safe_line, safe_prose,
};
use super::call_display::CallDisplay;
use super::client::RelayClient;
use super::{RelayEnd, RelayMessage};
use crate::audio::AudioFormat;
use crate::event::{AudioChunk, HeldCall, RealtimeEvent};
use crate::id::ItemId;
use crate::session::{RealtimeSession, SessionClosed, SessionRequestError};

/// Number of tracks whose playback a browser can report; older ones have been heard long ago.
const MAX_TRACKS: usize = 64;
/// Number of displayed calls that a browser can decide; the oldest one is forgotten first.
const MAX_DISPLAYED_CALLS: usize = 256;

/// A function that writes the display of a held call.
type CallDisplayWriter = Arc<dyn Fn(&HeldCall) -> CallDisplay + Send + Sync>;

/// Relays a session to a browser, which speaks and listens. It sees and decides no tool call; [`BrowserRelay`] grants
/// more.
pub async fn serve_browser<S, E, C>(socket: S, session: &RealtimeSession<C>) -> RelayEnd
where
    S: Stream<Item = Result<RelayMessage, E>> + Sink<RelayMessage, Error = E> + Send + Unpin,
    E: Display,
    C: Send + Sync + 'static,
{
    BrowserRelay::new().serve(socket, session).await
}

/// A relay of a session to a browser. `docs/guide/realtime.md` has its messages.
///
/// Build the session with [`PlaybackSource::Reported`](crate::PlaybackSource::Reported), because the browser reports what
/// was played.
#[derive(Clone)]
pub struct BrowserRelay {
    notice: Option<String>,
    decided_by: Option<String>,
    visibility: CallVisibility,
    write_display: CallDisplayWriter,
}

impl Default for BrowserRelay {
    fn default() -> Self {
        Self::new()
    }
}

impl BrowserRelay {
    /// Creates a relay for a browser that speaks and listens, and sees no tool call.
    pub fn new() -> Self {
        Self {
            notice: None,
            decided_by: None,
            visibility: CallVisibility::Hidden,
            write_display: Arc::new(CallDisplay::new),
        }
    }

    /// Sets a notice for the user, which the browser gets first.
    #[must_use]
    pub fn notice(mut self, notice: impl Into<String>) -> Self {
        self.notice = Some(notice.into());
        self
    }

    /// Shows the tool calls, their arguments and their outputs to the browser.
    #[must_use]
    pub fn show_calls(mut self) -> Self {
        self.visibility = CallVisibility::Shown;
        self
    }

    /// Accepts the browser's decisions on held calls, in the name of this person, and shows the calls. The application
    /// has authenticated the person.
    #[must_use]
    pub fn decisions_by(mut self, person: impl Into<String>) -> Self {
        self.decided_by = Some(person.into());
        self.show_calls()
    }

    /// Sets the function that writes the display of a held call; [`CallDisplay::new`] by default. The relay adds what the
    /// tool saw ([`RealtimeSession::call_evidence`]). It is called again
    /// before a decision is accepted, and a call whose display has changed is displayed anew.
    #[must_use]
    pub fn call_display(mut self, write: impl Fn(&HeldCall) -> CallDisplay + Send + Sync + 'static) -> Self {
        self.write_display = Arc::new(write);
        self
    }

    /// Relays until the client leaves or the session ends. A client that connects again, or later, gets the conversation
    /// so far first.
    pub async fn serve<S, E, C>(&self, socket: S, session: &RealtimeSession<C>) -> RelayEnd
    where
        S: Stream<Item = Result<RelayMessage, E>> + Sink<RelayMessage, Error = E> + Send + Unpin,
        E: Display,
        C: Send + Sync + 'static,
    {
        let mut connection = BrowserConnection {
            relay: self,
            session,
            client: RelayClient::new(socket),
            encoder: BrowserEncoder::new(self.visibility),
            tracks: BTreeMap::new(),
            next_track: 1,
            displayed: VecDeque::new(),
        };
        let end = match connection.run().await {
            Ok(never) => match never {},
            Err(end) => end,
        };
        connection.client.close().await;
        end
    }
}

impl std::fmt::Debug for BrowserRelay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BrowserRelay").field("decided_by", &self.decided_by).finish_non_exhaustive()
    }
}

/// The message about a call that a person cannot see as its tool saw it.
const EVIDENCE_UNREADABLE: &str = "what the tool saw cannot be displayed, so the call can only be rejected";

/// The state of what a tool saw, on the display of its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EvidenceState {
    Displayed,
    Unreadable,
}

/// A relay loop has no result but its end.
enum Endless {}

/// The relay of one socket.
struct BrowserConnection<'a, S, C> {
    relay: &'a BrowserRelay,
    session: &'a RealtimeSession<C>,
    client: RelayClient<S>,
    encoder: BrowserEncoder,
    /// The pieces of speech, by the number that binary messages begin with.
    tracks: BTreeMap<u32, SpeechTrack>,
    next_track: u32,
    /// The displayed calls with the digests of their displays, oldest first.
    displayed: VecDeque<(String, HeldCall)>,
}

/// Speech of one content part without a gap. A content part has more than one if audio was dropped.
struct SpeechTrack {
    item: ItemId,
    content_index: u32,
    /// Position of the first byte in the content part. It is not zero for a client that connects in the middle of it.
    start: u64,
    /// Number of bytes sent.
    sent: u64,
}

impl<S, E, C> BrowserConnection<'_, S, C>
where
    S: Stream<Item = Result<RelayMessage, E>> + Sink<RelayMessage, Error = E> + Send + Unpin,
    E: Display,
    C: Send + Sync + 'static,
{
    async fn run(&mut self) -> Result<Endless, RelayEnd> {
        let mut events = self.session.events();
        // Events from before this client are in the history that it gets.
        while events.try_next().is_some() {}
        self.send_state().await?;
        loop {
            tokio::select! {
                message = self.client.next() => self.on_message(message?).await?,
                event = events.next() => match event {
                    Some(event) => self.on_event(event).await?,
                    None => return Err(RelayEnd::SessionEnded),
                },
            }
        }
    }

    /// Sends the state of the session to a new client.
    async fn send_state(&mut self) -> Result<(), RelayEnd> {
        let format = |format: AudioFormat| {
            let name = serde_json::to_value(format).unwrap_or_default();
            json!({ "format": name, "sample_rate": format.sample_rate() })
        };
        let ready = json!({
            "type": "ready",
            "session": safe_line(self.session.id().as_str()),
            "input": format(self.session.input_format()),
            "output": format(self.session.output_format()),
            "notice": self.relay.notice.as_deref().map(safe_prose),
            "shows_calls": self.relay.visibility == CallVisibility::Shown,
            "can_decide": self.relay.decided_by.is_some(),
        });
        self.client.send_json(&ready).await?;
        let history = self.session.redacted_history().await.map_err(session_ended)?;
        for item in history.items() {
            if let Some(value) = self.encoder.encode_item(item) {
                self.client.send_json(&value).await?;
            }
        }
        for held in self.session.held_calls().await.map_err(session_ended)? {
            self.display_call(held).await?;
        }
        let is_connected = self.session.is_connected();
        self.client.send_json(&json!({ "type": "live", "is_connected": is_connected })).await
    }

    async fn on_event(&mut self, event: RealtimeEvent) -> Result<(), RelayEnd> {
        match event {
            RealtimeEvent::Audio(chunk) => self.send_audio(&chunk).await,
            RealtimeEvent::AudioEnded { item, content_index } => {
                let track = self.track_of(&item, content_index);
                self.client.send_json(&json!({ "type": "audio_ended", "track": track })).await
            }
            RealtimeEvent::AudioInterrupted { item, content_index, heard_ms } => {
                let track = self.track_of(&item, content_index);
                let value = json!({ "type": "audio_interrupted", "track": track, "heard_ms": heard_ms });
                self.client.send_json(&value).await
            }
            RealtimeEvent::CallHeld { run, pending } => {
                self.display_call(HeldCall { run, pending: *pending }).await
            }
            RealtimeEvent::CallReleased { run, call } => self.release_call(&run, &call).await,
            event => {
                let is_closed = matches!(event, RealtimeEvent::Closed(_));
                if let Some(value) = self.encoder.encode_event(&event) {
                    self.client.send_json(&value).await?;
                }
                if is_closed { Err(RelayEnd::SessionEnded) } else { Ok(()) }
            }
        }
    }

    /// Returns the newest track of a content part.
    fn track_of(&self, item: &ItemId, content_index: u32) -> Option<u32> {
        let is_it =
            |(_, known): &(&u32, &SpeechTrack)| known.item == *item && known.content_index == content_index;
        self.tracks.iter().rev().find(is_it).map(|(track, _)| *track)
    }

    /// Returns the track that a chunk continues.
    fn continued_track(&self, chunk: &AudioChunk) -> Option<u32> {
        let number = self.track_of(&chunk.item, chunk.content_index)?;
        let is_next = |track: &&SpeechTrack| track.start + track.sent == chunk.position;
        self.tracks.get(&number).filter(is_next).map(|_| number)
    }

    /// Sends a chunk of speech: the number of its track, in four bytes, and the audio.
    async fn send_audio(&mut self, chunk: &AudioChunk) -> Result<(), RelayEnd> {
        let track = match self.continued_track(chunk) {
            Some(track) => track,
            None => {
                let track = self.next_track;
                self.next_track = self.next_track.wrapping_add(1);
                if self.tracks.len() >= MAX_TRACKS {
                    self.tracks.pop_first();
                }
                let (item, content_index) = (chunk.item.clone(), chunk.content_index);
                let begun = SpeechTrack { item, content_index, start: chunk.position, sent: 0 };
                self.tracks.insert(track, begun);
                let item = safe_line(chunk.item.as_str());
                self.client.send_json(&json!({ "type": "track", "track": track, "item": item })).await?;
                track
            }
        };
        if let Some(known) = self.tracks.get_mut(&track) {
            known.sent += chunk.bytes.len() as u64;
        }
        let mut message = Vec::with_capacity(4 + chunk.bytes.len());
        message.extend_from_slice(&track.to_le_bytes());
        message.extend_from_slice(&chunk.bytes);
        self.client.send(RelayMessage::Binary(message)).await
    }

    /// Displays a held call, if calls are shown.
    async fn display_call(&mut self, held: HeldCall) -> Result<(), RelayEnd> {
        if self.relay.visibility == CallVisibility::Hidden {
            return Ok(());
        }
        let (display, _) = self.write_display(&held).await;
        let can_decide = self.relay.decided_by.is_some();
        let value = encode_held_call(held.run.as_str(), &held.pending, &display, can_decide);
        let digest = display.digest.to_string();
        self.forget_displayed(&digest);
        if self.displayed.len() >= MAX_DISPLAYED_CALLS {
            self.displayed.pop_front();
        }
        self.displayed.push_back((digest, held));
        self.client.send_json(&value).await
    }

    fn forget_displayed(&mut self, digest: &str) {
        self.displayed.retain(|(known, _)| known != digest);
    }

    /// Tells the client that a held call no longer waits for a decision.
    async fn release_call(&mut self, run: &RunId, call: &CallPath) -> Result<(), RelayEnd> {
        if self.relay.visibility == CallVisibility::Hidden {
            return Ok(());
        }
        self.displayed.retain(|(_, held)| held.run != *run || held.pending.path != *call);
        let (run, path) = (safe_line(run.as_str()), safe_line(&call.to_string()));
        self.client.send_json(&json!({ "type": "call_released", "run": run, "path": path })).await
    }

    /// Returns the display of a call with what its tool saw, and whether that could be read.
    async fn write_display(&self, held: &HeldCall) -> (CallDisplay, EvidenceState) {
        let mut display = (self.relay.write_display)(held);
        match self.session.call_evidence(held).await {
            Ok(None) => (display, EvidenceState::Displayed),
            Ok(Some(evidence)) => (display.with_evidence(&evidence), EvidenceState::Displayed),
            Err(error) => {
                tracing::warn!(%error, call = %held.pending.path, "the evidence of a call cannot be read");
                display.lines.push(format!("{EVIDENCE_UNREADABLE}: {error}"));
                (display, EvidenceState::Unreadable)
            }
        }
    }

    async fn on_message(&mut self, message: RelayMessage) -> Result<(), RelayEnd> {
        let text = match message {
            RelayMessage::Binary(audio) => return self.session.send_audio(audio).map_err(session_ended),
            RelayMessage::Text(text) => text,
        };
        let message = match serde_json::from_str(&text) {
            Ok(message) => message,
            Err(error) => return self.refuse(&format!("the message is not valid: {error}")).await,
        };
        let session = self.session;
        match message {
            BrowserMessage::Text { text } if text.trim().is_empty() => Ok(()),
            BrowserMessage::Text { text } => session.send_text(text).await.map(|_| ()).map_err(session_ended),
            BrowserMessage::Played { track, bytes } => match self.tracks.get(&track) {
                Some(SpeechTrack { item, content_index, start, .. }) => {
                    let position = start.saturating_add(bytes);
                    session.report_played_bytes(item, *content_index, position).await.map_err(session_ended)
                }
                None => Ok(()),
            },
            BrowserMessage::Interrupt {} => session.interrupt().await.map_err(session_ended),
            BrowserMessage::Commit {} => session.commit_audio().await.map_err(session_ended),
            BrowserMessage::ClearAudio {} => session.clear_audio().await.map_err(session_ended),
            BrowserMessage::Decide { digest, decision, standing } => {
                self.decide(&digest, decision, standing).await
            }
        }
    }

    async fn refuse(&mut self, message: &str) -> Result<(), RelayEnd> {
        self.client.send_json(&json!({ "type": "refused", "message": safe_prose(message) })).await
    }

    /// Makes a decision on a call that was displayed, if its display is still the same.
    async fn decide(
        &mut self,
        digest: &str,
        decision: BrowserDecision,
        standing: bool,
    ) -> Result<(), RelayEnd> {
        let Some(person) = self.relay.decided_by.clone() else {
            return self.refuse("decisions are not accepted here").await;
        };
        let displayed = self.displayed.iter().rfind(|(known, _)| known == digest);
        let Some(held) = displayed.map(|(_, held)| held.clone()) else {
            return self.refuse("no displayed call has this digest").await;
        };
        let (display, evidence) = self.write_display(&held).await;
        if evidence == EvidenceState::Unreadable && !matches!(decision, BrowserDecision::Reject { .. }) {
            return self.refuse(EVIDENCE_UNREADABLE).await;
        }
        if display.digest.to_string() != digest {
            self.forget_displayed(digest);
            self.display_call(held).await?;
            return self.refuse("the effect of the call has changed; it is displayed anew").await;
        }
        if standing && !display.offers_standing {
            return self.refuse("a decision on this call does not cover later ones").await;
        }
        let scope = if standing { DecisionScope::ToolForRun } else { DecisionScope::ThisCall };
        let decision = Decision::from(decision);
        let decided = self
            .session
            .decide_displayed(&held, decision, scope, Some(person.clone()), Some(display.digest))
            .await;
        match decided {
            Ok(()) => {
                self.forget_displayed(digest);
                let value: Value = json!({ "type": "decided", "digest": digest, "by": safe_line(&person) });
                self.client.send_json(&value).await
            }
            Err(SessionRequestError::Closed(closed)) => Err(session_ended(closed)),
            Err(error) => self.refuse(&error.to_string()).await,
        }
    }
}

fn session_ended(_: SessionClosed) -> RelayEnd {
    RelayEnd::SessionEnded
}
