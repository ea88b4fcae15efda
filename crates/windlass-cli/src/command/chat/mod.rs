//! `windlass chat`: a conversation with an agent, stored in a session.

mod chat_command;
mod image_input;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use serde_json::json;
use windlass::core::usage::Usage;
use windlass::store::{RunQuery, RunStatus, StoredRun, load_paused};
use windlass::{run::RunResult, session::Session};
use windlass_text::SafeText;

use self::chat_command::{CHAT_COMMANDS, CHAT_KEYS, ChatLine, similar_command};
use self::image_input::attach_images;
use super::cancel::cancel_stored_run;
use super::tools::tool_line;
use super::{build_driver, find_agent};
use crate::agent_file::AgentFile;
use crate::args::{ChatArgs, CliArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::project::{CliProject, new_run_id};
use crate::run_driver::{DriveOutcome, RunDriver};
use crate::store_place::{ProjectStore, list_sessions, session_in_store};
use crate::terminal::{
    LineCompletions, OutputFormat, PromptInput, StyledText, Terminal, TextStyle, format_duration, paint,
    styled,
};

pub(crate) async fn run(args: &CliArgs, chat: &ChatArgs, term: &Terminal) -> Result<CommandExit, CliError> {
    let named = find_agent(args, chat.agent.as_deref())?;
    let file = AgentFile::read(&named)?;
    let project = CliProject::of_agent_file(args, file.path(), term)?;
    let store = project.open_or_create().await?;
    let name = chat.session.clone().unwrap_or_else(|| format!("chat-{}", new_run_id()));
    let session = session_in_store(&name, &store)?;
    let model = chat.drive.model.clone().or_else(|| file.effective_model_name());
    let currency = file.currency();
    let driver = build_driver(term, file, &project, store.clone(), &chat.drive).await?;
    let folder = std::env::current_dir()?;
    let mut chat = ChatSession {
        term,
        driver,
        store,
        session,
        model,
        folder,
        currency,
        usage: Usage { requests: 0, ..Usage::default() },
        last_exit: CommandExit::Success,
    };
    chat.print_greeting().await?;
    chat.resume_unfinished_run().await?;
    chat.run_loop().await
}

/// A running conversation.
struct ChatSession<'a> {
    term: &'a Terminal,
    driver: RunDriver,
    store: ProjectStore,
    session: Session,
    /// Name of the model, if one is named.
    model: Option<String>,
    /// Folder that relative paths of images begin at.
    folder: PathBuf,
    /// Currency of the prices.
    currency: String,
    /// Usage of the turns so far.
    usage: Usage,
    /// Exit of the last turn.
    last_exit: CommandExit,
}

/// The next step of the conversation.
enum NextStep {
    Prompt,
    Quit(CommandExit),
}

impl ChatSession<'_> {
    async fn print_greeting(&self) -> Result<(), CliError> {
        let (agent, session) = (self.driver.file.name(), self.session.id());
        let count = self.session.items().await?.len();
        match self.term.output_format() {
            OutputFormat::Json => {
                let value = json!({ "type": "session", "session": session, "agent": agent, "items": count });
                self.term.print_json(&value);
            }
            OutputFormat::Text => {
                let model = self.model.as_deref().unwrap_or_default();
                let facts = if count == 0 {
                    format!("{model} · session {session} · /help")
                } else {
                    format!("{model} · session {session}, {count} items so far · /help")
                };
                self.term.eprint_words(styled![
                    paint(TextStyle::Title, agent),
                    " ",
                    paint(TextStyle::Faint, facts),
                ]);
            }
        }
        Ok(())
    }

    /// Returns the unfinished run of this session, if there is one.
    async fn find_unfinished_run(&self) -> Result<Option<StoredRun>, CliError> {
        let unfinished = RunQuery {
            statuses: vec![RunStatus::Running, RunStatus::Paused],
            session: Some(self.session.id().clone()),
            limit: 1,
            ..RunQuery::default()
        };
        Ok(self.store.list_runs(&unfinished).await?.into_iter().next())
    }

    /// Resumes an unfinished run of this session first, so that the next message follows its turn.
    async fn resume_unfinished_run(&mut self) -> Result<(), CliError> {
        // What became of an earlier turn says nothing about this one, which may have ended elsewhere.
        self.last_exit = CommandExit::Success;
        let Some(stored) = self.find_unfinished_run().await? else { return Ok(()) };
        let known = load_paused(&*self.store, &stored.run).await?;
        if self.term.output_format() == OutputFormat::Text {
            self.term.eprint_line(format!("run {} of this session is unfinished: resuming it", stored.run));
        }
        let observer = super::resume::wait_for_lease(self.term, &*self.store, &stored.run).await?;
        let builder = self.driver.agent.recover(stored.run.clone(), self.store.clone());
        let builder = builder.lease_observer(&observer);
        let builder = self.driver.file.with_limits(builder.session(&self.session));
        let journal = known.record().journal().to_vec();
        self.last_exit = self.drive_turn(&stored.run, builder, &journal).await;
        Ok(())
    }

    async fn run_loop(&mut self) -> Result<CommandExit, CliError> {
        let mut interrupts = 0;
        loop {
            let prompt = if self.term.can_prompt() {
                self.term.eprint_blank();
                styled![paint(TextStyle::Hint, "›"), " "]
            } else {
                StyledText::default()
            };
            let completions = Arc::new(self.list_completions().await);
            let RunDriver { prompter, signals, .. } = &mut self.driver;
            let line = match prompter.read_message(self.term, prompt, completions, signals).await {
                PromptInput::Line(line) => line,
                PromptInput::EndOfInput => return Ok(self.print_farewell()),
                PromptInput::Interrupted if interrupts > 0 => return Ok(self.print_farewell()),
                PromptInput::Interrupted => {
                    interrupts += 1;
                    self.term.eprint_blank();
                    self.term.eprint_line("press Ctrl-C again or type /quit to quit");
                    continue;
                }
            };
            interrupts = 0;
            // A command that fails says so, and the conversation goes on.
            match self.handle_line(&line).await {
                Ok(NextStep::Prompt) => {}
                Ok(NextStep::Quit(exit)) => return Ok(exit),
                Err(problem) => self.term.report_error(&problem),
            }
        }
    }

    async fn handle_line(&mut self, line: &str) -> Result<NextStep, CliError> {
        match ChatLine::parse(line) {
            ChatLine::Empty => {}
            ChatLine::Quit => return Ok(NextStep::Quit(self.print_farewell())),
            ChatLine::Help => self.print_help(),
            ChatLine::Model(None) => {
                let model = self.model.as_deref().unwrap_or("no model is named");
                self.term.eprint_line(format!("  {model}; `/model NAME` goes on with another one"));
            }
            ChatLine::Model(Some(name)) => {
                self.driver.agent = self.driver.file.build_agent(Some(name)).await?;
                self.model = Some(name.to_owned());
                self.term.eprint_line(format!("  the next message goes to {name}"));
            }
            ChatLine::Tools => {
                for tool in self.driver.agent.tool_list() {
                    self.term.eprint_line(styled!["  ", tool_line(tool, self.term.width())]);
                }
            }
            ChatLine::Undo(count) => {
                // A turn that waits would go on with the next message, and act on what was undone.
                if let Some(stored) = self.find_unfinished_run().await? {
                    let doubt = cancel_stored_run(self.term, &self.store, &stored.run).await?;
                    self.term.eprint_line(format!("  run {} is cancelled", stored.run));
                    for call in doubt {
                        let line = format!("  nobody knows what became of call {call}");
                        self.term.eprint_line(SafeText::from_words(&line));
                    }
                }
                self.last_exit = CommandExit::Success;
                let taken = self.session.rewind(count).await?.len();
                self.term.eprint_line(match taken {
                    0 => "  there is nothing to undo".to_owned(),
                    _ => format!(
                        "  {taken} items were removed from the session; the effects of tools are not undone"
                    ),
                });
            }
            ChatLine::Sessions => self.print_sessions().await?,
            ChatLine::Session(None) => self.term.eprint_line(format!("  {}", self.session.id())),
            ChatLine::Session(Some(name)) => {
                self.session = session_in_store(name, &self.store)?;
                self.print_greeting().await?;
                self.resume_unfinished_run().await?;
            }
            ChatLine::Usage => {
                self.term.eprint_line(format!("  {}", usage_words(&self.usage, &self.currency)))
            }
            ChatLine::Misused(word) => {
                let known = CHAT_COMMANDS.iter().find(|(name, ..)| *name == word);
                let usage =
                    known.map_or(word.to_owned(), |(name, parameter, _)| format!("{name} {parameter}"));
                self.term.eprint_line(format!("  usage: {}; nothing was sent", usage.trim_end()));
            }
            ChatLine::Unknown(word) => {
                let hint =
                    similar_command(word).map_or(String::new(), |name| format!("did you mean {name}? "));
                self.term.eprint_line(format!("  unknown command {word}; {hint}/help lists the commands"));
            }
            ChatLine::Message(message) => return self.send_message(message).await,
        }
        Ok(NextStep::Prompt)
    }

    async fn send_message(&mut self, text: &str) -> Result<NextStep, CliError> {
        if self.last_exit == CommandExit::ProviderAway {
            // The session has an unfinished turn, which comes first.
            self.resume_unfinished_run().await?;
            match self.last_exit {
                CommandExit::ProviderAway => {
                    self.term
                        .eprint_line("  your message was not sent: the turn before it has no answer yet");
                    return Ok(NextStep::Prompt);
                }
                CommandExit::Interrupted => return Ok(NextStep::Quit(CommandExit::Interrupted)),
                _ => {}
            }
        }
        // The lines of a pipe may come from elsewhere, so only a user at the terminal can name images.
        let input = if self.term.can_prompt() {
            let attached = attach_images(text, &self.folder)?;
            for (name, bytes) in &attached.images {
                let line =
                    format!("  attached {} ({} kB)", SafeText::from_words(name), bytes.div_ceil(1_000));
                self.term.eprint_line(paint(TextStyle::Faint, line));
            }
            attached.message
        } else {
            windlass::core::item::Message::new(windlass::core::item::Role::User, text)
        };
        let builder = self.driver.agent.run(input).store(self.store.clone());
        let id = new_run_id();
        let builder = builder.run_id(id.clone()).session(&self.session);
        let builder = self.driver.file.with_session_budget(self.driver.file.with_limits(builder));
        self.last_exit = self.drive_turn(&id, builder, &[]).await;
        Ok(match self.last_exit {
            CommandExit::Interrupted => NextStep::Quit(CommandExit::Interrupted),
            _ => NextStep::Prompt,
        })
    }

    /// Drives one run to its outcome. Errors are printed, and the conversation continues.
    async fn drive_turn(
        &mut self,
        run: &windlass::core::id::RunId,
        builder: windlass::run::RunBuilder,
        known: &[windlass::core::journal::JournalRecord],
    ) -> CommandExit {
        let started_at = Instant::now();
        match self.driver.drive_to_outcome(run, builder, known).await {
            Ok(DriveOutcome::Outcome(outcome)) => {
                let usage = *outcome.record().usage();
                self.usage.add(&usage);
                let exit = match &*outcome {
                    RunResult::Finished(_) if self.term.is_stdout_terminal() => CommandExit::Success,
                    _ => DriveOutcome::Outcome(outcome).report_outcome(self.term),
                };
                self.print_status(&usage, started_at);
                exit
            }
            Ok(DriveOutcome::Interrupted) => DriveOutcome::Interrupted.report_outcome(self.term),
            Err(problem) => {
                self.term.report_error(&problem);
                problem.exit()
            }
        }
    }

    /// Prints the model, the tokens and the time of a turn.
    fn print_status(&self, usage: &Usage, started_at: Instant) {
        if !self.term.can_prompt() {
            return;
        }
        let model = self.model.as_deref().unwrap_or("model");
        let line = format!(
            "{model} · {} · {}",
            usage_words(usage, &self.currency),
            format_duration(started_at.elapsed())
        );
        let line = SafeText::from_words(&line).truncate(self.term.width().saturating_sub(1));
        self.term.eprint_line(paint(TextStyle::Faint, line));
    }

    fn print_help(&self) {
        for (name, parameter, about) in CHAT_COMMANDS {
            let command = format!("{name} {parameter}");
            self.term.eprint_line(format!("  {command:<16} {about}"));
        }
        for (key, about) in CHAT_KEYS {
            self.term.eprint_line(format!("  {key:<16} {about}"));
        }
    }

    async fn print_sessions(&self) -> Result<(), CliError> {
        let sessions = list_sessions(&self.store).await?;
        if sessions.is_empty() {
            self.term.eprint_line("  there are no sessions yet");
        }
        for id in sessions {
            let count = session_in_store(id.as_str(), &self.store)?.items().await?.len();
            let mark = if id == *self.session.id() { "*" } else { " " };
            let line = SafeText::from_line(&format!("{id}  {count} items"));
            self.term
                .eprint_line(styled![format!("{mark} "), line.truncate(self.term.width().saturating_sub(3))]);
        }
        Ok(())
    }

    /// Lists the commands, the models and sessions that are known, and the folder of files.
    async fn list_completions(&self) -> LineCompletions {
        if !self.term.can_edit() {
            return LineCompletions::default();
        }
        let sessions = list_sessions(&self.store).await.unwrap_or_default();
        let sessions: Vec<String> = sessions.iter().map(ToString::to_string).collect();
        let models: Vec<String> = self
            .driver
            .file
            .model_name()
            .into_iter()
            .chain(self.model.as_deref())
            .map(str::to_owned)
            .collect();
        let commands = CHAT_COMMANDS.iter().map(|(name, _, _)| {
            let arguments = match *name {
                "/session" => sessions.clone(),
                "/model" => models.clone(),
                _ => Vec::new(),
            };
            ((*name).to_owned(), arguments)
        });
        LineCompletions { commands: commands.collect(), folder: self.folder.clone() }
    }

    fn print_farewell(&self) -> CommandExit {
        if self.term.can_prompt() {
            let session = self.session.id();
            let windlass = self.term.command_prefix();
            let hint = format!("`{windlass} chat --session {session}` continues this conversation");
            self.term.eprint_blank();
            self.term.eprint_line(paint(TextStyle::Faint, hint));
        }
        // Without a terminal nobody sees that a call waits or that the last turn failed, unless the exit code tells it.
        if self.term.can_prompt() { CommandExit::Success } else { self.last_exit }
    }
}

/// Describes usage in words: `1,204 tokens in, 35 out`. Requests whose cost is unknown are named.
fn usage_words(usage: &Usage, currency: &str) -> String {
    let mut words =
        format!("{} tokens in, {} out", group_digits(usage.input_tokens), group_digits(usage.output_tokens));
    if usage.unknown_requests > 0 {
        words.push_str(&format!(", {} of {} requests unknown", usage.unknown_requests, usage.requests));
    }
    if let Some(cost) = usage.describe_cost(currency).filter(|_| usage.priced_requests > 0) {
        words.push_str(&format!(", {cost}"));
    }
    words
}

/// Writes a number with a comma after each group of three digits.
fn group_digits(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
