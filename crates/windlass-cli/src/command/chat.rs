//! `windlass chat`: a conversation with an agent, stored in a session.

use std::sync::Arc;

use serde_json::json;
use windlass::store::{RunQuery, RunStatus, Store, load_paused};
use windlass::{run::RunResult, session::Session, store::SqliteStore};

use super::tools::tool_line;
use super::{build_driver, default_agent};
use crate::agent_file::AgentFile;
use crate::args::{ChatArgs, CliArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::project::{CliProject, new_run_id};
use crate::run_driver::{DriveOutcome, RunDriver};
use crate::terminal::{OutputFormat, PromptInput, StyledText, Terminal, TextStyle, paint, styled};

const CHAT_HELP: &str = "\
  /help      show this help
  /tools     list the agent's tools
  /undo      rewind the session to before your last message
  /session   show the name of this session
  /quit      quit (also Ctrl-D)
  Ctrl-C stops the current turn; a second Ctrl-C quits.";

pub(crate) async fn run(args: &CliArgs, chat: &ChatArgs, term: &Terminal) -> Result<CommandExit, CliError> {
    let named = match &chat.agent {
        Some(named) => named.clone(),
        None => default_agent(args)?,
    };
    let file = AgentFile::read(&named)?;
    let project = CliProject::of_agent_file(args, file.path(), term)?;
    let store = project.open_or_create()?;
    let name = chat.session.clone().unwrap_or_else(|| format!("chat-{}", new_run_id()));
    let session = Session::new(name.as_str(), store.clone());
    let driving = build_driver(term, file, &project, store.clone(), &chat.drive).await?;
    let mut chat = ChatSession { term, driver: driving, store, session, last_exit: CommandExit::Success };
    chat.print_greeting(args).await?;
    chat.resume_unfinished_run().await?;
    chat.run_loop().await
}

/// A running conversation.
struct ChatSession<'a> {
    term: &'a Terminal,
    driver: RunDriver,
    store: Arc<SqliteStore>,
    session: Session,
    /// Exit of the last turn.
    last_exit: CommandExit,
}

/// The meaning of an input line.
enum ChatInput {
    Message(String),
    Handled,
    Quit,
}

impl ChatSession<'_> {
    async fn print_greeting(&self, args: &CliArgs) -> Result<(), CliError> {
        let (agent, session) = (self.driver.file.name(), self.session.id());
        let count = self.session.items().await?.len();
        match self.term.output_format() {
            OutputFormat::Json => {
                let value = json!({ "type": "session", "session": session, "agent": agent, "items": count });
                self.term.print_json(&value);
            }
            OutputFormat::Text => {
                let model = match &args.command {
                    crate::args::CliCommand::Chat(chat) => chat.drive.model.clone(),
                    _ => None,
                };
                let model =
                    model.or_else(|| self.driver.file.model_name().map(str::to_owned)).unwrap_or_default();
                let facts = if count == 0 {
                    format!("{model} · session {session} · /help")
                } else {
                    format!("{model} · session {session}, {count} items so far · /help")
                };
                self.term.eprint_line(styled![
                    paint(TextStyle::Title, agent),
                    " ",
                    paint(TextStyle::Faint, facts),
                ]);
            }
        }
        Ok(())
    }

    /// Resumes an unfinished run of this session first, so that the next message follows its turn.
    async fn resume_unfinished_run(&mut self) -> Result<(), CliError> {
        let unfinished = RunQuery {
            statuses: vec![RunStatus::Running, RunStatus::Paused],
            session: Some(self.session.id().clone()),
            limit: 1,
            ..RunQuery::default()
        };
        let Some(stored) = self.store.list_runs(&unfinished).await?.into_iter().next() else { return Ok(()) };
        let known = load_paused(&*self.store, &stored.run).await?;
        if self.term.output_format() == OutputFormat::Text {
            self.term.eprint_line(format!("run {} of this session is unfinished: resuming it", stored.run));
        }
        let observer = super::resume::wait_for_lease(self.term, &*self.store, &stored.run).await?;
        let builder = self.driver.agent.recover(stored.run.clone(), self.store.clone());
        let builder = builder.lease_observer(&observer);
        let builder = self.driver.file.with_limits(builder.session(&self.session));
        let journal = known.record().journal().to_vec();
        self.last_exit = self.drive_turn(builder, &journal).await;
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
            let line = match self.driver.prompter.read_line(self.term, prompt, &mut self.driver.signals).await
            {
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
            match self.interpret_line(&line).await? {
                ChatInput::Handled => {}
                ChatInput::Quit => return Ok(self.print_farewell()),
                ChatInput::Message(message) => {
                    let id = new_run_id();
                    let builder = self.driver.agent.run(message).store(self.store.clone());
                    let builder = builder.run_id(id.clone()).session(&self.session);
                    let builder = self.driver.file.with_limits(builder);
                    self.last_exit = self.drive_turn(builder, &[]).await;
                    if self.last_exit == CommandExit::Interrupted {
                        return Ok(CommandExit::Interrupted);
                    }
                }
            }
        }
    }

    /// Drives one run to its outcome. Errors are printed, and the conversation continues.
    async fn drive_turn(
        &mut self,
        run: windlass::run::RunBuilder,
        known: &[windlass::core::journal::JournalRecord],
    ) -> CommandExit {
        match self.driver.drive_to_outcome(run, known).await {
            Ok(DriveOutcome::Outcome(outcome)) => {
                if let (RunResult::Finished(_), true) = (&*outcome, self.term.is_stdout_terminal()) {
                    return CommandExit::Success;
                }
                DriveOutcome::Outcome(outcome).report_outcome(self.term)
            }
            Ok(DriveOutcome::Interrupted) => DriveOutcome::Interrupted.report_outcome(self.term),
            Err(problem) => {
                self.term.report_error(&problem);
                problem.exit()
            }
        }
    }

    async fn interpret_line(&mut self, line: &str) -> Result<ChatInput, CliError> {
        let line = line.trim();
        match line {
            "" => {}
            "/quit" | "/exit" | "/q" => return Ok(ChatInput::Quit),
            "/help" | "/?" => CHAT_HELP.lines().for_each(|line| self.term.eprint_line(line)),
            "/session" => self.term.eprint_line(format!("  {}", self.session.id())),
            "/tools" => {
                for tool in self.driver.agent.tool_list() {
                    self.term.eprint_line(styled!["  ", tool_line(tool, self.term.width())]);
                }
            }
            "/undo" => {
                let taken = self.session.rewind(1).await?;
                self.term.eprint_line(format!(
                    "  {} items were removed from the session; the effects of tools are not undone",
                    taken.len()
                ));
            }
            word if word.starts_with('/') && !word.contains(' ') => {
                self.term.eprint_line(format!("  unknown command {word}; /help lists the commands"));
            }
            message => return Ok(ChatInput::Message(message.to_owned())),
        }
        Ok(ChatInput::Handled)
    }

    fn print_farewell(&self) -> CommandExit {
        if self.term.can_prompt() {
            let session = self.session.id();
            let windlass = self.term.command_prefix();
            let hint = format!("`{windlass} chat --session {session}` continues this conversation");
            self.term.eprint_blank();
            self.term.eprint_line(paint(TextStyle::Faint, hint));
        }
        // Without a terminal nobody sees that a call waits, unless the exit code tells it.
        match self.last_exit {
            CommandExit::WaitingForPerson if !self.term.can_prompt() => CommandExit::WaitingForPerson,
            _ => CommandExit::Success,
        }
    }
}
