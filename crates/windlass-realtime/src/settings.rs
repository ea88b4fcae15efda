//! How a live model listens, speaks and takes turns.

use std::time::Duration;

use serde_json::{Map, Value};
use windlass::core::AgentName;
use windlass::model::{ModelSettings, OfferedTool};

use crate::audio::AudioFormat;

/// How a live model listens, speaks and takes turns. What is absent is left to the provider.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveSettings {
    /// Whether it speaks or writes.
    pub output: OutputKind,
    /// The form of the audio that it is sent.
    pub input_format: AudioFormat,
    /// The form of the audio that it sends.
    pub output_format: AudioFormat,
    /// Its voice.
    pub voice: Option<String>,
    /// How fast it speaks; 1 is as usual.
    pub speed: Option<f64>,
    /// Who finds out when the user has finished speaking.
    pub turns: TurnDetection,
    /// How the user's speech is written down.
    pub transcription: Option<Transcription>,
    /// How noise is taken out of what it hears.
    pub noise_reduction: Option<NoiseReduction>,
    /// Fields of the session that only this provider knows, put over all others.
    pub extra: Map<String, Value>,
}

impl Default for LiveSettings {
    fn default() -> Self {
        Self {
            output: OutputKind::Audio,
            input_format: AudioFormat::Pcm24k,
            output_format: AudioFormat::Pcm24k,
            voice: None,
            speed: None,
            turns: TurnDetection::default(),
            transcription: Some(Transcription::default()),
            noise_reduction: None,
            extra: Map::new(),
        }
    }
}

/// Whether a model speaks or writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputKind {
    /// It speaks, and what it says comes as text too.
    #[default]
    Audio,
    /// It writes.
    Text,
}

/// Who finds out when the user has finished speaking.
#[derive(Clone, Debug, PartialEq)]
pub enum TurnDetection {
    /// The server, by silence.
    Silence(SilenceDetection),
    /// The server, by what is said.
    Meaning(MeaningDetection),
    /// The application: it commits the audio and asks for the answer.
    Application,
}

/// Whether the server begins to answer by itself, and whether it stops answering when the user speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerTurns {
    /// Whether it begins to answer when the user has finished.
    pub answers: bool,
    /// Whether it stops answering when the user begins to speak.
    pub interrupts: bool,
}

impl Default for ServerTurns {
    fn default() -> Self {
        Self { answers: true, interrupts: true }
    }
}

/// Turns by silence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SilenceDetection {
    /// What the server does by itself.
    pub turns: ServerTurns,
    /// How loud speech is, from 0 to 1.
    pub threshold: Option<f64>,
    /// How much audio from before the speech belongs to it.
    pub prefix: Option<Duration>,
    /// How long the silence after it is.
    pub silence: Option<Duration>,
    /// After how much silence the model speaks up by itself.
    pub idle: Option<Duration>,
}

/// Turns by meaning.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeaningDetection {
    /// What the server does by itself.
    pub turns: ServerTurns,
    /// How soon it answers: `low`, `medium`, `high` or `auto`.
    pub eagerness: Option<String>,
}

impl Default for TurnDetection {
    fn default() -> Self {
        Self::Meaning(MeaningDetection::default())
    }
}

impl TurnDetection {
    /// What the server does by itself; none where the application detects turns.
    pub fn server(&self) -> Option<ServerTurns> {
        match self {
            Self::Silence(silence) => Some(silence.turns),
            Self::Meaning(meaning) => Some(meaning.turns),
            Self::Application => None,
        }
    }
}

/// How the user's speech is written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transcription {
    /// The model that does it.
    pub model: String,
    /// The language that is spoken, such as `en`.
    pub language: Option<String>,
    /// Words to expect.
    pub prompt: Option<String>,
}

impl Default for Transcription {
    fn default() -> Self {
        Self { model: "gpt-4o-mini-transcribe".to_owned(), language: None, prompt: None }
    }
}

/// Where the microphone is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoiseReduction {
    /// Close to the mouth.
    NearField,
    /// Across the room.
    FarField,
}

/// Everything that a live model is told when an agent becomes current.
#[derive(Clone, Debug, PartialEq)]
pub struct Configuration {
    /// The agent.
    pub agent: AgentName,
    /// What it is told to do.
    pub instructions: Option<String>,
    /// Its tools.
    pub tools: Vec<OfferedTool>,
    /// Its handoffs; models see them as tools.
    pub handoffs: Vec<OfferedTool>,
    /// How it should answer.
    pub model: ModelSettings,
    /// How it listens and speaks.
    pub live: LiveSettings,
}
