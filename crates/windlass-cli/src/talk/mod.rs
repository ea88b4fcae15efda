//! A voice conversation with an agent on a local page: the session, the page's server, and the events in the terminal.

mod local_server;
mod request_head;
mod scripted_voice;
mod session_log;

pub(crate) use local_server::TalkServer;
pub(crate) use scripted_voice::{ScriptedVoice, SpeechSource};
pub(crate) use session_log::SessionLog;
