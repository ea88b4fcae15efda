//! `windlass talk`: a voice conversation with an agent, on a page of the user's browser.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use serde_json::json;
use windlass::core::{decision::DecisionScope, id::RunId};
use windlass_realtime::openai::OpenAiRealtime;
use windlass_realtime::relay::{BrowserRelay, CallDisplay};
use windlass_realtime::settings::RealtimeSettings;
use windlass_realtime::{
    CloseReason, FolderJournal, PlaybackSource, RealtimeSession, RealtimeSessionBuilder, SessionStartError,
};

use super::{check_keys, find_agent};
use crate::agent_file::AgentFile;
use crate::agent_path::{AGENT_PATH_ARTEFACT, VOICE_CONVERSATION_PREFIX, encode_agent_path};
use crate::approver_identity::ApproverIdentity;
use crate::args::{CliArgs, TalkArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::project::{CliProject, new_run_id};
use crate::run_driver::{CallReview, SignalCounter, StopSignal, current_user, is_command_tool};
use crate::store_place::{ProjectStore, create_private_folder};
use crate::talk::{ScriptedVoice, SessionLog, SpeechSource, TalkServer};
use crate::terminal::{OutputFormat, Terminal, TextStyle, paint, styled};

/// Environment variable with the key of OpenAI's Realtime API.
const KEY_VARIABLE: &str = "OPENAI_API_KEY";

/// The voice that the user talks to.
struct VoiceBackend {
    model: OpenAiRealtime,
    /// Its description for the page and the terminal.
    description: String,
    /// Short name for scripts: `scripted`, `openai` or `server`.
    kind: &'static str,
}

pub(crate) async fn run(args: &CliArgs, talk: &TalkArgs, term: &Terminal) -> Result<CommandExit, CliError> {
    let named = find_agent(args, talk.agent.as_deref())?;
    let file = Arc::new(AgentFile::read(&named)?);
    let project = CliProject::of_agent_file(args, file.path(), term)?;
    let identity = check_keys(&project, &file)?;
    let store = project.open_or_create().await?;
    let key = std::env::var(KEY_VARIABLE).ok();
    let backend = select_backend(talk, &file, key)?;
    let VoiceBackend { model, description, kind } = backend;
    let mut signals = SignalCounter::install()?;
    let session = connect_session(talk, &file, &store, &identity, model, project.live_journals()).await?;
    let server = TalkServer::bind(talk.port)
        .await
        .map_err(|error| CliError::new(format!("the page cannot be served: {error}")))?;
    let url = server.url();
    announce(term, &file, &session, &url, &description, kind);
    let _opening_file = match term.can_prompt() && !talk.no_open {
        true => open_browser(&project, &url),
        false => None,
    };
    let log = SessionLog::new(term);
    let logging = tokio::spawn(log.follow(session.events()));
    let relay = page_relay(file, identity, &description);
    let serving = tokio::spawn(server.serve(session.clone(), relay));
    let report = tokio::select! {
        report = session.wait_closed() => report,
        signal = signals.next() => match signal {
            StopSignal::Interrupt => session.close().await,
            StopSignal::Terminate => session.detach().await,
        },
    };
    // The page gets the last events before its server stops.
    let _logged = logging.await;
    serving.abort();
    report_end(term, &session, &report.reason)
}

/// Selects the voice: another server, OpenAI with a key, or the scripted voice.
fn select_backend(talk: &TalkArgs, file: &AgentFile, key: Option<String>) -> Result<VoiceBackend, CliError> {
    let key = key.filter(|key| !key.is_empty());
    let with_model = |model: OpenAiRealtime| match &talk.model {
        Some(name) => model.model(name.clone()),
        None => model,
    };
    if let Some(url) = &talk.url {
        let mut model = with_model(OpenAiRealtime::with_url(url.clone()));
        // A key goes to another server only if the connection is encrypted.
        if let Some(key) = key.filter(|_| url.starts_with("wss://")) {
            model = model.api_key_from(move || std::future::ready(Ok(key.clone())));
        }
        let description = format!("You talk to the server {url}.");
        return Ok(VoiceBackend { model, description, kind: "server" });
    }
    if let Some(key) = key.filter(|_| !talk.scripted) {
        let model = with_model(OpenAiRealtime::new(key));
        let description = "You talk to OpenAI's realtime model; it costs money.".to_owned();
        return Ok(VoiceBackend { model, description, kind: "openai" });
    }
    let speech = SpeechSource::detect();
    let description = format!(
        "This is a scripted test server with {}, and not a model: it hears that you speak, and does not understand \
         words. Set {KEY_VARIABLE} to talk to a model.",
        speech.name()
    );
    let model = ScriptedVoice::new(speech, file.read_script()?).into_server().client_model();
    Ok(VoiceBackend { model, description, kind: "scripted" })
}

async fn connect_session(
    talk: &TalkArgs,
    file: &AgentFile,
    store: &ProjectStore,
    identity: &ApproverIdentity,
    model: OpenAiRealtime,
    journals: Option<PathBuf>,
) -> Result<RealtimeSession, CliError> {
    let agent = file.build_voice_agent().await?;
    let mut settings = RealtimeSettings::default();
    if let Some(voice) = &talk.voice {
        settings.voice = Some(voice.clone());
    }
    let session = match &talk.resume {
        Some(session) => RunId::from(session.as_str()),
        None => RunId::new(format!("{VOICE_CONVERSATION_PREFIX}{}", new_run_id())),
    };
    let path = encode_agent_path(&session, file.path(), store.mac_keys().map(|keys| &**keys));
    let mut builder = RealtimeSessionBuilder::new(agent, model)
        .session_id(session)
        .settings(settings)
        .store(store.clone())
        // `windlass approve` displays a call with the diff of its agent's workspace.
        .run_artefact(AGENT_PATH_ARTEFACT, path)
        .playback_source(PlaybackSource::Reported);
    if let Some(signer) = identity.signer() {
        builder = builder.sign_with(signer);
    }
    if let Some(folder) = journals {
        // Only the user can read the conversations, as the store beside them.
        create_private_folder(&folder)
            .map_err(|error| CliError::new(format!("`{}` cannot be created: {error}", folder.display())))?;
        builder = builder.journal(FolderJournal::new(folder));
    }
    let builder = file.with_voice_limits(builder);
    let started = if talk.resume.is_some() { builder.resume().await } else { builder.connect().await };
    started.map_err(|error| match error {
        SessionStartError::SessionNotFound(session) => {
            let message = format!("there is no record of the conversation `{session}` to go on with");
            CliError::not_found(message)
                .with_hint("conversations are recorded beside a store that is a file, and not encrypted")
        }
        error => CliError::new(error.to_string())
            .with_hint("`windlass talk --scripted` needs no key and no network"),
    })
}

/// Returns the relay of the page. It shows a call as the terminal does: every argument, or the whole diff.
fn page_relay(file: Arc<AgentFile>, identity: ApproverIdentity, description: &str) -> BrowserRelay {
    let notice = format!("{}\n{description}", file.name());
    let person = identity.name_or(current_user);
    BrowserRelay::new().notice(notice).decisions_by(person).call_display(move |held| {
        let review = CallReview::new(&held.run, &held.pending, Some(&file));
        let lines =
            review.lines(None).iter().map(|line| line.plain().as_str().trim_start().to_owned()).collect();
        let offers_standing = matches!(identity, ApproverIdentity::NotRequired)
            && held.pending.max_approval_scope == DecisionScope::ToolForRun
            && !is_command_tool(&held.pending.tool);
        CallDisplay { lines, picture: None, digest: review.digest(), offers_standing }
    })
}

fn announce(
    term: &Terminal,
    file: &AgentFile,
    session: &RealtimeSession,
    url: &str,
    description: &str,
    kind: &str,
) {
    match term.output_format() {
        OutputFormat::Json => term.print_json(&json!({
            "type": "talk", "session": session.id(), "agent": file.name(), "url": url, "voice": kind,
            "notice": description,
        })),
        OutputFormat::Text => {
            term.eprint_line(styled![
                paint(TextStyle::Title, file.name()),
                " ",
                paint(TextStyle::Faint, format!("session {} · Ctrl-C ends the conversation", session.id())),
            ]);
            term.eprint_line(description);
            term.eprint_line("Open this page in a browser on this machine; its address is a secret:");
            term.print_line(url);
        }
    }
}

fn report_end(
    term: &Terminal,
    session: &RealtimeSession,
    reason: &CloseReason,
) -> Result<CommandExit, CliError> {
    match (term.output_format(), reason) {
        (OutputFormat::Json, _) => {
            term.print_json(&json!({ "type": "end", "reason": format!("{reason:?}") }));
        }
        (OutputFormat::Text, CloseReason::Detached) => {
            term.eprint_line(format!("`windlass talk --resume {}` goes on with it", session.id()));
        }
        (OutputFormat::Text, _) => {}
    }
    match reason {
        CloseReason::Closed | CloseReason::ClosedByProvider => Ok(CommandExit::Success),
        CloseReason::Detached => Ok(CommandExit::Cancelled),
        other => Err(CliError::new(format!("the conversation ended: {other:?}"))),
    }
}

/// Opens the page in the user's browser. The user can open it by hand if that fails.
///
/// Every user of the machine can read the arguments of a process, and the address is a secret. So the browser is given a
/// file that only this user can read, and that leads to the page.
fn open_browser(project: &CliProject, url: &str) -> Option<OpeningFile> {
    let folder =
        project.store_place().file().and_then(Path::parent).map_or_else(std::env::temp_dir, Path::to_owned);
    let path = folder.join(format!("talk-{}.html", new_run_id()));
    let text = format!(
        "<!doctype html><meta charset=\"utf-8\"><meta name=\"referrer\" content=\"no-referrer\">\
         <meta http-equiv=\"refresh\" content=\"0;url={url}\"><title>windlass talk</title>"
    );
    crate::project_keys::write_private(&path, &text).ok()?;
    let file = OpeningFile(path);
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let mut command = Command::new(program);
    command.arg(&file.0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Ok(mut child) = command.spawn() {
        // The opener ends by itself; a thread reaps it.
        std::thread::spawn(move || child.wait());
    }
    Some(file)
}

/// A file that leads a browser to the page. It is deleted at the end of the conversation.
struct OpeningFile(PathBuf);

impl Drop for OpeningFile {
    fn drop(&mut self) {
        let _deleted = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
#[path = "talk_tests.rs"]
mod tests;
