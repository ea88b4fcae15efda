//! `windlass chat`: a conversation with an agent, kept in a session.

use std::sync::Arc;

use serde_json::json;
use windlass::core::RunId;
use windlass::store::{Store, paused};
use windlass::{Outcome, Session, SqliteStore};

use super::tools::tool_line;
use super::{agent_here, driving};
use crate::agent_file::AgentFile;
use crate::args::{Args, ChatArgs};
use crate::live::{Driven, Driving};
use crate::problem::{Exit, Problem};
use crate::project::{Project, is_open, new_run_id};
use crate::term::{Form, Paint, Term, Typed};

const HELP: &str = "\
  /help      this
  /tools     what the agent can use
  /undo      takes the session back to before your last message
  /session   the name of this conversation
  /quit      leaves (so does Ctrl-D)
  Ctrl-C stops the turn that is under way; twice, it leaves.";

pub(crate) async fn run(args: &Args, chat: &ChatArgs, term: &Term) -> Result<Exit, Problem> {
    let named = match &chat.agent {
        Some(named) => named.clone(),
        None => agent_here(args)?,
    };
    let file = AgentFile::read(&named)?;
    let store = Project::of_agent(args, file.path())?.open_or_make()?;
    let name = chat.session.clone().unwrap_or_else(|| format!("chat-{}", new_run_id()));
    let session = Session::new(name.as_str(), store.clone());
    let driving = driving(term, file, store.clone(), &chat.drive).await?;
    let mut chat = Chat { term, driving, store, session };
    chat.greet(args).await?;
    chat.finish_what_is_open().await?;
    chat.talk().await
}

struct Chat<'a> {
    term: &'a Term,
    driving: Driving,
    store: Arc<SqliteStore>,
    session: Session,
}

/// What is to be done with a line.
enum Meant {
    Message(String),
    Done,
    Leave,
}

impl Chat<'_> {
    async fn greet(&self, args: &Args) -> Result<(), Problem> {
        let (agent, session) = (self.driving.file.name(), self.session.id());
        let count = self.session.items().await?.len();
        match self.term.form() {
            Form::Json => {
                let value = json!({ "type": "session", "session": session, "agent": agent, "items": count });
                self.term.say_json(&value);
            }
            Form::Human => {
                let paint = self.term.paint();
                let model = match &args.command {
                    crate::args::Command::Chat(chat) => chat.drive.model.clone(),
                    _ => None,
                };
                let model =
                    model.or_else(|| self.driving.file.model().map(str::to_owned)).unwrap_or_default();
                let facts = if count == 0 {
                    format!("{model} · session {session} · /help")
                } else {
                    format!("{model} · session {session}, {count} items so far · /help")
                };
                self.term.note(format!(
                    "{} {}",
                    paint.of(Paint::Title, &agent),
                    paint.of(Paint::Faint, &facts)
                ));
            }
        }
        Ok(())
    }

    /// A turn of this session that was cut short comes first: what is said next should stand after it.
    async fn finish_what_is_open(&mut self) -> Result<(), Problem> {
        for stored in self.store.runs().await?.into_iter().filter(is_open) {
            let known = paused(&*self.store, &stored.run).await?;
            if known.record().state().session() != Some(self.session.id()) {
                continue;
            }
            if self.term.form() == Form::Human {
                self.term.note(format!("run {} of this session is not over: going on with it", stored.run));
            }
            super::resume::wait_for_lease(self.term, &*self.store, &stored.run).await?;
            let builder = self.driving.agent.recover(stored.run.clone(), self.store.clone());
            let builder = self.driving.file.limited(builder.session(&self.session));
            let journal = known.record().journal().to_vec();
            self.see(&stored.run, builder, &journal).await;
            return Ok(());
        }
        Ok(())
    }

    async fn talk(&mut self) -> Result<Exit, Problem> {
        let mut interrupts = 0;
        loop {
            let paint = self.term.paint();
            let prompt = if self.term.can_ask() {
                format!("\n{} ", paint.of(Paint::Note, "›"))
            } else {
                String::new()
            };
            let line = match self.driving.asker.line(self.term, &prompt, &mut self.driving.signals).await {
                Typed::Line(line) => line,
                Typed::End => return Ok(self.leave()),
                Typed::Interrupt if interrupts > 0 => return Ok(self.leave()),
                Typed::Interrupt => {
                    interrupts += 1;
                    self.term.note("\nCtrl-C again leaves; so does /quit");
                    continue;
                }
            };
            interrupts = 0;
            match self.understood(&line).await? {
                Meant::Done => {}
                Meant::Leave => return Ok(self.leave()),
                Meant::Message(message) => {
                    let id = new_run_id();
                    let builder = self.driving.agent.run(message).store(self.store.clone());
                    let builder = builder.run_id(id.clone()).session(&self.session);
                    let builder = self.driving.file.limited(builder);
                    if self.see(&id, builder, &[]).await == Exit::Left {
                        return Ok(Exit::Left);
                    }
                }
            }
        }
    }

    /// Sees one run through. What goes wrong in it is told, and the conversation goes on.
    async fn see(&mut self, id: &RunId, run: windlass::RunBuilder, known: &[windlass::core::Record]) -> Exit {
        match self.driving.see_through(id, run, known).await {
            Ok(Driven::Outcome(outcome)) => {
                if let (Outcome::Finished(_), true) = (&*outcome, self.term.answers_on_screen()) {
                    return Exit::Done;
                }
                Driven::Outcome(outcome).told(self.term)
            }
            Ok(Driven::Left) => Driven::Left.told(self.term),
            Err(problem) => {
                self.term.problem(&problem);
                problem.exit()
            }
        }
    }

    async fn understood(&mut self, line: &str) -> Result<Meant, Problem> {
        let line = line.trim();
        match line {
            "" => {}
            "/quit" | "/exit" | "/q" => return Ok(Meant::Leave),
            "/help" | "/?" => self.term.note(HELP),
            "/session" => self.term.note(format!("  {}", self.session.id())),
            "/tools" => {
                for tool in self.driving.agent.tool_list() {
                    self.term.note(format!("  {}", tool_line(tool, self.term.paint(), self.term.width())));
                }
            }
            "/undo" => {
                let taken = self.session.rewind(1).await?;
                self.term.note(format!("  {} items were taken back; what tools did stays done", taken.len()));
            }
            word if word.starts_with('/') && !word.contains(' ') => {
                self.term.note(format!("  there is no {word}; /help lists what there is"));
            }
            message => return Ok(Meant::Message(message.to_owned())),
        }
        Ok(Meant::Done)
    }

    fn leave(&self) -> Exit {
        if self.term.can_ask() {
            let session = self.session.id();
            let hint = format!("\n`windlass chat --session {session}` goes on with this conversation");
            self.term.note(self.term.paint().of(Paint::Faint, &hint));
        }
        Exit::Done
    }
}
