//! The messages of a telephony provider's media stream, in the form that Twilio, SignalWire and Telnyx send.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::audio::AudioFormat;

/// A message of the provider.
#[derive(Debug, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum PhoneMessage {
    /// The stream begins.
    Start {
        start: Box<StreamStart>,
        #[serde(default, rename = "streamSid")]
        stream_sid: Option<String>,
        #[serde(default)]
        stream_id: Option<String>,
    },
    /// A piece of the caller's speech.
    Media { media: StreamMedia },
    /// All audio before this mark was played or cleared.
    Mark { mark: StreamMark },
    /// The call ended.
    Stop,
    /// Any other event: `connected`, `dtmf` and those of later versions.
    #[serde(other)]
    Other,
}

/// The description of a stream.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StreamStart {
    #[serde(rename = "streamSid")]
    pub(super) stream_sid: Option<String>,
    #[serde(rename = "callSid", alias = "call_control_id")]
    pub(super) call_id: Option<String>,
    #[serde(rename = "mediaFormat", alias = "media_format")]
    pub(super) media_format: StreamFormat,
    #[serde(rename = "customParameters", alias = "custom_parameters")]
    pub(super) parameters: Map<String, Value>,
}

/// The encoding of a stream's audio.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StreamFormat {
    pub(super) encoding: Option<String>,
    #[serde(rename = "sampleRate", alias = "sample_rate")]
    pub(super) sample_rate: Option<u32>,
}

/// A piece of speech.
#[derive(Debug, Deserialize)]
pub(super) struct StreamMedia {
    #[serde(default)]
    pub(super) track: Option<String>,
    pub(super) payload: String,
}

/// A mark.
#[derive(Debug, Deserialize)]
pub(super) struct StreamMark {
    #[serde(default)]
    pub(super) name: String,
}

impl StreamFormat {
    /// Returns the audio format; an error names an encoding that is not G.711 at 8 kHz.
    pub(super) fn audio_format(&self) -> Result<AudioFormat, String> {
        let named = self.encoding.as_deref().unwrap_or("audio/x-mulaw");
        let rate = self.sample_rate.unwrap_or(8_000);
        match (named.to_ascii_lowercase().as_str(), rate) {
            ("audio/x-mulaw" | "audio/pcmu" | "pcmu" | "mulaw", 8_000) => Ok(AudioFormat::Ulaw),
            ("audio/x-alaw" | "audio/pcma" | "pcma" | "alaw", 8_000) => Ok(AudioFormat::Alaw),
            _ => Err(format!("{named} at {rate} Hz")),
        }
    }
}

/// The address of a stream: the field by which the provider names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StreamAddress {
    pub(super) field: &'static str,
    pub(super) id: String,
}

impl StreamAddress {
    fn message(&self, event: &str) -> Value {
        json!({ "event": event, self.field: self.id })
    }

    pub(super) fn media(&self, payload: &str) -> Value {
        let mut message = self.message("media");
        message["media"] = json!({ "payload": payload });
        message
    }

    pub(super) fn mark(&self, name: &str) -> Value {
        let mut message = self.message("mark");
        message["mark"] = json!({ "name": name });
        message
    }

    pub(super) fn clear(&self) -> Value {
        self.message("clear")
    }
}
