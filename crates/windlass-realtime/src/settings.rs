//! Settings of a realtime model: audio formats, voice, turn detection and transcription.

use std::time::Duration;

use serde_json::{Map, Value};
use windlass::core::id::AgentName;
use windlass::model::{ModelSettings, ToolDefinition};

use crate::audio::AudioFormat;

/// The voice used if none is set.
const DEFAULT_VOICE: &str = "ash";

/// Settings of a realtime model. Absent values use the provider's defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct RealtimeSettings {
    /// The output modality.
    pub output_modality: OutputModality,
    /// Encoding of the audio sent to the model. It is sent to the provider only if set; PCM at 24 kHz is assumed
    /// otherwise.
    pub input_audio_format: Option<AudioFormat>,
    /// Encoding of the audio received from the model. It is sent to the provider only if set; PCM at 24 kHz is assumed
    /// otherwise.
    pub output_audio_format: Option<AudioFormat>,
    /// The voice; `ash` by default.
    pub voice: Option<String>,
    /// Speed of the speech; 1 is normal.
    pub speed: Option<f64>,
    /// The detector of the end of the user's turn.
    pub turn_detection: TurnDetection,
    /// Transcription of the user's speech; none if absent.
    pub input_transcription: Option<InputTranscription>,
    /// Noise reduction of the user's audio.
    pub noise_reduction: Option<NoiseReduction>,
    /// The provider's tracing of the session; the provider's default if absent. A provider accepts it once per
    /// connection, so it is sent with the first configuration only.
    pub tracing: Option<ProviderTracing>,
    /// Provider-specific session fields, merged over all others.
    pub extra: Map<String, Value>,
}

impl Default for RealtimeSettings {
    fn default() -> Self {
        Self {
            output_modality: OutputModality::Audio,
            input_audio_format: None,
            output_audio_format: None,
            voice: Some(DEFAULT_VOICE.to_owned()),
            speed: None,
            turn_detection: TurnDetection::default(),
            input_transcription: Some(InputTranscription::default()),
            noise_reduction: None,
            tracing: None,
            extra: Map::new(),
        }
    }
}

impl RealtimeSettings {
    /// Returns the encoding of the audio sent to the model.
    pub fn input_format(&self) -> AudioFormat {
        self.input_audio_format.unwrap_or_default()
    }

    /// Returns the encoding of the audio received from the model.
    pub fn output_format(&self) -> AudioFormat {
        self.output_audio_format.unwrap_or_default()
    }
}

/// Tracing of a session by the provider.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ProviderTracing {
    /// The provider traces with its default names.
    Auto,
    /// The provider does not trace.
    Disabled,
    /// The provider traces under these names.
    Named {
        /// Name of the workflow.
        workflow_name: Option<String>,
        /// Id of the group of traces.
        group_id: Option<String>,
        /// Metadata of the trace.
        metadata: Map<String, Value>,
    },
}

/// The modality of the model's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutputModality {
    /// Speech, with a transcript.
    #[default]
    Audio,
    /// Text.
    Text,
}

/// The detector of the end of the user's turn.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum TurnDetection {
    /// The server detects silence (voice activity detection).
    ServerVad(ServerVad),
    /// The server judges from the user's words whether the user has finished.
    SemanticVad(SemanticVad),
    /// The application commits the audio and requests the response.
    Application,
}

/// Actions that the server takes by itself on the user's turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerTurnActions {
    /// True if the server creates a response when the user stops speaking.
    pub create_response: bool,
    /// True if the server interrupts a response when the user starts to speak.
    pub interrupt_response: bool,
}

impl Default for ServerTurnActions {
    fn default() -> Self {
        Self { create_response: true, interrupt_response: true }
    }
}

/// Turn detection by silence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerVad {
    /// Actions of the server.
    pub server_actions: ServerTurnActions,
    /// Loudness above which audio counts as speech, from 0 to 1.
    pub threshold: Option<f64>,
    /// Audio before the detected start of speech that is included in the turn.
    pub prefix_padding: Option<Duration>,
    /// Silence that ends the turn.
    pub silence_duration: Option<Duration>,
    /// Silence after which the model speaks without being asked.
    pub idle_timeout: Option<Duration>,
}

/// Turn detection by meaning.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SemanticVad {
    /// Actions of the server.
    pub server_actions: ServerTurnActions,
    /// Eagerness to respond: `low`, `medium`, `high` or `auto`.
    pub eagerness: Option<String>,
}

impl Default for TurnDetection {
    fn default() -> Self {
        Self::SemanticVad(SemanticVad::default())
    }
}

impl TurnDetection {
    /// Leaves the responses to the user's turns to the session. Returns true if the server had made them.
    pub(crate) fn take_over_responses(&mut self) -> bool {
        let actions = match self {
            Self::ServerVad(silence) => {
                silence.idle_timeout = None;
                &mut silence.server_actions
            }
            Self::SemanticVad(meaning) => &mut meaning.server_actions,
            Self::Application => return false,
        };
        std::mem::replace(&mut actions.create_response, false)
    }

    /// Returns the actions of the server; `None` if the application detects turns.
    pub fn server_actions(&self) -> Option<ServerTurnActions> {
        match self {
            Self::ServerVad(silence) => Some(silence.server_actions),
            Self::SemanticVad(meaning) => Some(meaning.server_actions),
            Self::Application => None,
        }
    }
}

/// Transcription of the user's speech.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputTranscription {
    /// The transcription model.
    pub model: String,
    /// The language of the speech, such as `en`.
    pub language: Option<String>,
    /// Prompt with vocabulary to expect.
    pub prompt: Option<String>,
}

impl Default for InputTranscription {
    fn default() -> Self {
        Self { model: "gpt-4o-mini-transcribe".to_owned(), language: None, prompt: None }
    }
}

/// Noise reduction, by the distance of the microphone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoiseReduction {
    /// For a microphone close to the mouth.
    NearField,
    /// For a microphone across the room.
    FarField,
}

/// The full configuration sent to a realtime model when an agent becomes current.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionConfiguration {
    /// The agent.
    pub agent: AgentName,
    /// The agent's instructions.
    pub instructions: Option<String>,
    /// The agent's tools.
    pub tools: Vec<ToolDefinition>,
    /// The agent's handoffs; the model sees them as tools.
    pub handoffs: Vec<ToolDefinition>,
    /// Settings shared with other models, such as the temperature.
    pub model_settings: ModelSettings,
    /// Settings of the realtime model.
    pub realtime_settings: RealtimeSettings,
}
