//! The scripted voice: the test server of the realtime crate in the place of a provider, for a conversation without an
//! API key. It does not recognise words.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

use serde_json::{Value, json};
use windlass::core::item::Item;
use windlass_realtime::audio::{WavAudio, resample};
use windlass_realtime::openai::decode_item;
use windlass_realtime::testing::{ConversationView, LoopbackReply, LoopbackServer};

use crate::agent_file::ScriptFileModel;

/// Sample rate of the session's speech.
const SPEECH_RATE: u32 = 24_000;
/// Speed at which speech is sent, relative to real time. A provider sends faster than a person listens, too.
const SEND_SPEED: u32 = 4;
/// Maximum number of characters of a tool's output that are spoken.
const MAX_SPOKEN_OUTPUT: usize = 160;

/// The source of the scripted voice's speech.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpeechSource {
    /// The program espeak-ng.
    EspeakNg,
    /// A tone of the length that the text would take.
    Tone,
}

impl SpeechSource {
    /// Returns espeak-ng if it is installed.
    pub(crate) fn detect() -> Self {
        if synthesize_speech("windlass").is_some() { Self::EspeakNg } else { Self::Tone }
    }

    /// Returns the source's name for people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::EspeakNg => "speech by espeak-ng",
            Self::Tone => "a tone in place of speech, because espeak-ng is not installed",
        }
    }
}

/// A voice that replies from a script: that of the agent file, or one that shows a tool call and an approval.
pub(crate) struct ScriptedVoice {
    speech: SpeechSource,
    script: Option<ScriptFileModel>,
}

/// The words and the calls of a reply.
#[derive(Debug, Default, PartialEq)]
struct VoiceReply {
    text: String,
    /// Id, tool and arguments of each call.
    calls: Vec<(String, String, Value)>,
}

impl ScriptedVoice {
    pub(crate) fn new(speech: SpeechSource, script: Option<ScriptFileModel>) -> Self {
        Self { speech, script }
    }

    /// Returns the server that speaks with this voice.
    pub(crate) fn into_server(self) -> LoopbackServer {
        let transcribe = |samples: &[i16]| {
            let seconds = samples.len() as f64 / f64::from(SPEECH_RATE);
            format!("(speech of {seconds:.1} s; the test server does not recognise words)")
        };
        LoopbackServer::with_reply_function(move |view| self.reply(view)).with_transcriber(transcribe)
    }

    fn reply(&self, view: &ConversationView) -> LoopbackReply {
        let reply = match &self.script {
            Some(script) => script_reply(script, view),
            None => demonstration_reply(view),
        };
        let speech = match self.speech {
            // The process of espeak-ng takes a few milliseconds.
            SpeechSource::EspeakNg => tokio::task::block_in_place(|| synthesize_speech(&reply.text)),
            SpeechSource::Tone => None,
        };
        let mut spoken = match speech {
            _ if reply.text.is_empty() => LoopbackReply::default(),
            Some(samples) => LoopbackReply::speech(reply.text, samples),
            None => LoopbackReply::message(reply.text),
        };
        for (id, tool, arguments) in reply.calls {
            spoken = spoken.and_call(&id, &tool, arguments.to_string());
        }
        spoken.with_speed(SEND_SPEED)
    }
}

/// Returns the reply of the agent file's script.
fn script_reply(script: &ScriptFileModel, view: &ConversationView) -> VoiceReply {
    // An interrupted message has no words, and is a reply nevertheless.
    let is_model = |item: &Value| item["role"] == "assistant" || item["type"] == "function_call";
    let is_first = |place: usize| place == 0 || !is_model(&view.items[place - 1]);
    let count =
        (0..view.items.len()).filter(|place| is_model(&view.items[*place]) && is_first(*place)).count();
    let items: Vec<Arc<Item>> =
        view.items.iter().filter_map(decode_item).filter_map(|item| item.to_item()).map(Arc::new).collect();
    match script.reply_at(count, &items) {
        Some((text, calls)) => VoiceReply { text: text.to_owned(), calls },
        None => VoiceReply { text: "The script has no more answers.".to_owned(), calls: Vec::new() },
    }
}

/// Returns the reply of the demonstration: it shows a tool call and an approval, if the agent has tools of files.
fn demonstration_reply(view: &ConversationView) -> VoiceReply {
    let said = |text: &str| VoiceReply { text: text.to_owned(), calls: Vec::new() };
    if let Some(output) = view.new_call_outputs().first() {
        let short: String = output.split_whitespace().collect::<Vec<_>>().join(" ");
        let short: String = short.chars().take(MAX_SPOKEN_OUTPUT).collect();
        return said(&format!("The tool says: {short}."));
    }
    let has_tool = |name: &str| {
        view.session["tools"].as_array().is_some_and(|tools| tools.iter().any(|tool| tool["name"] == name))
    };
    let turns = view.items.iter().filter(|item| item["role"] == "user").count();
    let call = |name: &str, arguments: Value| vec![(format!("talk-{turns}"), name.to_owned(), arguments)];
    match turns {
        0 | 1 => said(
            "Hello. I am a scripted voice, and not a model: I hear that you speak, and not what you say. Interrupt \
             me at any time. Say something more, and I use a tool.",
        ),
        2 if has_tool("list_files") => VoiceReply {
            text: "Let me look at your files.".to_owned(),
            calls: call("list_files", json!({ "folder": null, "pattern": null, "depth": 1 })),
        },
        3 if has_tool("write_file") => VoiceReply {
            text: "I would like to write a note. Please approve or reject it.".to_owned(),
            calls: call(
                "write_file",
                json!({ "path": "windlass-talk-note.txt", "content": "A note of the scripted voice.\n", "version": null }),
            ),
        },
        _ => said(&format!("That was your turn number {turns}. {}", view.last_user_text())),
    }
}

/// Returns speech at the session's sample rate, if espeak-ng is installed.
fn synthesize_speech(text: &str) -> Option<Vec<i16>> {
    let mut child = Command::new("espeak-ng")
        .args(["--stdin", "--stdout"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    // The text is short, so that it fits into the pipe before espeak-ng writes.
    child.stdin.take()?.write_all(text.as_bytes()).ok()?;
    let output = child.wait_with_output().ok()?;
    let wav = WavAudio::from_bytes(&output.stdout).ok()?;
    Some(resample(&wav.samples, wav.sample_rate, SPEECH_RATE)).filter(|samples| !samples.is_empty())
}

#[cfg(test)]
#[path = "scripted_voice_tests.rs"]
mod tests;
