//! The relay of a telephone call: G.711 audio over the WebSocket of a telephony provider's media stream.

use std::collections::VecDeque;
use std::fmt::Display;
use std::time::Duration;

use data_encoding::BASE64;
use futures_util::{Sink, Stream};
use serde_json::{Map, Value};

use super::client::RelayClient;
use super::phone_messages::{PhoneMessage, StreamAddress};
use super::{RelayEnd, RelayMessage};
use crate::audio::{AudioFormat, resample};
use crate::event::{AudioChunk, RealtimeEvent};
use crate::id::ItemId;
use crate::session::{RealtimeSession, SessionClosed};
use crate::settings::RealtimeSettings;

/// Time for the provider to begin its stream.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of messages before the start of the stream.
const MAX_EARLY_MESSAGES: usize = 16;
/// Number of marks that the provider may not have returned yet.
const MAX_OPEN_MARKS: usize = 4096;

/// A telephone call whose media stream has begun.
pub struct PhoneCall<S> {
    client: RelayClient<S>,
    start: PhoneCallStart,
    address: StreamAddress,
}

/// The description of a telephone call.
#[derive(Clone, Debug, PartialEq)]
pub struct PhoneCallStart {
    /// The provider's id of the stream.
    pub stream_id: String,
    /// The provider's id of the call, if it names one.
    pub call_id: Option<String>,
    /// The application's parameters of the stream.
    pub parameters: Map<String, Value>,
    /// The encoding of the audio in both directions.
    pub format: AudioFormat,
}

impl PhoneCallStart {
    /// Returns settings with the call's audio format in both directions, so that nothing is converted.
    pub fn apply_format(&self, settings: RealtimeSettings) -> RealtimeSettings {
        RealtimeSettings {
            input_audio_format: Some(self.format),
            output_audio_format: Some(self.format),
            ..settings
        }
    }
}

/// An error from accepting a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PhoneCallError {
    /// The socket ended before the stream began.
    #[error("the media stream ended before it began: {0:?}")]
    Ended(RelayEnd),
    /// The stream did not begin in time.
    #[error("the media stream did not begin within {} seconds", START_TIMEOUT.as_secs())]
    NotStarted,
    /// The messages are not those of a media stream.
    #[error("the messages are not those of a media stream: {0}")]
    NotMediaStream(String),
    /// The audio is not G.711 at 8 kHz.
    #[error("the media stream has audio in the format {0}; only G.711 at 8 kHz is supported")]
    UnsupportedFormat(String),
}

impl<S, E> PhoneCall<S>
where
    S: Stream<Item = Result<RelayMessage, E>> + Sink<RelayMessage, Error = E> + Send + Unpin,
    E: Display,
{
    /// Waits for the start of the media stream. The application has checked that the request comes from its provider.
    ///
    /// # Errors
    ///
    /// Returns [`PhoneCallError`] if the stream does not begin, or has audio that is not G.711 at 8 kHz.
    pub async fn accept(socket: S) -> Result<Self, PhoneCallError> {
        let mut client = RelayClient::new(socket);
        let started = tokio::time::timeout(START_TIMEOUT, read_start(&mut client)).await;
        let (start, address) = started.map_err(|_| PhoneCallError::NotStarted)??;
        Ok(Self { client, start, address })
    }

    /// Returns the description of the call.
    pub fn start(&self) -> &PhoneCallStart {
        &self.start
    }

    /// Relays the call until it or the session ends. The caller interrupts by speaking: the provider's buffer is cleared,
    /// and the session knows from the returned marks how much was played.
    ///
    /// Build the session with [`PlaybackSource::Reported`](crate::PlaybackSource::Reported) and with the settings of
    /// [`PhoneCallStart::apply_format`]; audio in another format is converted.
    pub async fn serve<C: Send + Sync + 'static>(mut self, session: &RealtimeSession<C>) -> RelayEnd {
        let mut events = session.events();
        let mut marks = OpenMarks::default();
        let end = loop {
            let step = tokio::select! {
                message = self.client.next() => match message {
                    Ok(message) => self.on_message(message, session, &mut marks).await,
                    Err(end) => Err(end),
                },
                event = events.next() => match event {
                    Some(event) => self.on_event(event, session, &mut marks).await,
                    None => Err(RelayEnd::SessionEnded),
                },
            };
            if let Err(end) = step {
                break end;
            }
        };
        self.client.close().await;
        end
    }

    async fn on_message<C: Send + Sync + 'static>(
        &mut self,
        message: RelayMessage,
        session: &RealtimeSession<C>,
        marks: &mut OpenMarks,
    ) -> Result<(), RelayEnd> {
        let RelayMessage::Text(text) = message else { return Ok(()) };
        // A message that is not understood is no reason to hang up.
        let Ok(message) = serde_json::from_str(&text) else {
            tracing::debug!("a message of the media stream is not valid");
            return Ok(());
        };
        match message {
            PhoneMessage::Media { media } => {
                // A stream of both directions repeats the agent's own speech.
                if media.track.is_some_and(|track| !track.starts_with("inbound")) {
                    return Ok(());
                }
                let Ok(audio) = BASE64.decode(media.payload.as_bytes()) else { return Ok(()) };
                let audio = convert_audio(&audio, self.start.format, session.input_format());
                session.send_audio(audio).map_err(session_ended)
            }
            PhoneMessage::Mark { mark } => match marks.take_returned(&mark.name) {
                Some(MarkedSpeech { item, content_index, bytes, .. }) => {
                    session.report_played_bytes(&item, content_index, bytes).await.map_err(session_ended)
                }
                None => Ok(()),
            },
            PhoneMessage::Stop => Err(RelayEnd::ClientLeft),
            PhoneMessage::Start { .. } | PhoneMessage::Other => Ok(()),
        }
    }

    async fn on_event<C: Send + Sync + 'static>(
        &mut self,
        event: RealtimeEvent,
        session: &RealtimeSession<C>,
        marks: &mut OpenMarks,
    ) -> Result<(), RelayEnd> {
        match event {
            RealtimeEvent::Audio(chunk) => {
                let audio = convert_audio(&chunk.bytes, session.output_format(), self.start.format);
                self.client.send_json(&self.address.media(&BASE64.encode(&audio))).await?;
                let name = marks.push(&chunk);
                self.client.send_json(&self.address.mark(&name)).await
            }
            RealtimeEvent::AudioInterrupted { .. } => {
                // The provider returns the marks of the audio that it clears; they were not played.
                marks.forget_open();
                self.client.send_json(&self.address.clear()).await
            }
            RealtimeEvent::Closed(_) => Err(RelayEnd::SessionEnded),
            _ => Ok(()),
        }
    }
}

impl<S> std::fmt::Debug for PhoneCall<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PhoneCall").field("start", &self.start).finish_non_exhaustive()
    }
}

async fn read_start<S, E>(
    client: &mut RelayClient<S>,
) -> Result<(PhoneCallStart, StreamAddress), PhoneCallError>
where
    S: Stream<Item = Result<RelayMessage, E>> + Sink<RelayMessage, Error = E> + Send + Unpin,
    E: Display,
{
    for _ in 0..MAX_EARLY_MESSAGES {
        let RelayMessage::Text(text) = client.next().await.map_err(PhoneCallError::Ended)? else {
            return Err(PhoneCallError::NotMediaStream("a binary message".to_owned()));
        };
        let message =
            serde_json::from_str(&text).map_err(|error| PhoneCallError::NotMediaStream(error.to_string()))?;
        let PhoneMessage::Start { start, stream_sid, stream_id } = message else { continue };
        let address = match (stream_sid.or(start.stream_sid), stream_id) {
            (Some(id), _) => StreamAddress { field: "streamSid", id },
            (None, Some(id)) => StreamAddress { field: "stream_id", id },
            (None, None) => {
                return Err(PhoneCallError::NotMediaStream("the stream has no id".to_owned()));
            }
        };
        let format = start.media_format.audio_format().map_err(PhoneCallError::UnsupportedFormat)?;
        let stream_id = address.id.clone();
        let start =
            PhoneCallStart { stream_id, call_id: start.call_id, parameters: start.parameters, format };
        return Ok((start, address));
    }
    Err(PhoneCallError::NotMediaStream("the stream does not begin".to_owned()))
}

/// The marks that the provider has not returned yet, oldest first.
#[derive(Debug, Default)]
struct OpenMarks {
    count: u64,
    open: VecDeque<MarkedSpeech>,
}

/// The speech up to a mark.
#[derive(Debug)]
struct MarkedSpeech {
    name: String,
    item: ItemId,
    content_index: u32,
    /// Position of the mark in the content part, in bytes of the session's format.
    bytes: u64,
}

impl OpenMarks {
    /// Adds the mark after a chunk of speech, and returns its name.
    fn push(&mut self, chunk: &AudioChunk) -> String {
        let bytes = chunk.position + chunk.bytes.len() as u64;
        self.count += 1;
        let name = format!("windlass-{}", self.count);
        if self.open.len() >= MAX_OPEN_MARKS {
            self.open.pop_front();
        }
        let (item, content_index) = (chunk.item.clone(), chunk.content_index);
        self.open.push_back(MarkedSpeech { name: name.clone(), item, content_index, bytes });
        name
    }

    /// Returns the speech that was played up to a returned mark; `None` if the mark is unknown or was forgotten.
    fn take_returned(&mut self, name: &str) -> Option<MarkedSpeech> {
        let place = self.open.iter().position(|mark| mark.name == name)?;
        self.open.drain(..=place).next_back()
    }

    fn forget_open(&mut self) {
        self.open.clear();
    }
}

fn convert_audio(audio: &[u8], from: AudioFormat, to: AudioFormat) -> Vec<u8> {
    if from == to {
        return audio.to_vec();
    }
    to.encode(&resample(&from.decode(audio), from.sample_rate(), to.sample_rate()))
}

fn session_ended(_: SessionClosed) -> RelayEnd {
    RelayEnd::SessionEnded
}
