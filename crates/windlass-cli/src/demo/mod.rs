//! `windlass demo`: a minute with no key and no network. A clerk pays invoices, a person is asked, the process is
//! killed in the middle of a payment, another goes on, and the bank's own book shows that nothing happened twice.
//!
//! Each step is the command that a person would type, in a process of its own. What is shown is what happened.

mod bank;
mod files;
mod proof;
mod tools;

pub(crate) use tools::tools;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use self::bank::Bank;
use self::proof::Proof;
use crate::args::{Args, DemoArgs};
use crate::live::Signals;
use crate::problem::{Exit, Problem};
use crate::term::{Asker, Paint, Term, Typed};

const RUN: &str = "invoices";
const QUESTION: &str = "Pay the invoices in inbox/.";
/// The payment in the middle of which the process is killed.
const LARGE: &str = "R-1931";
/// How often the bank's book is looked at.
const LOOK: Duration = Duration::from_millis(30);
/// How long the person sees the payment under way before the process is killed.
const SUSPENSE: Duration = Duration::from_millis(1_200);

pub(crate) async fn run(args: &Args, demo: &DemoArgs, term: &Term) -> Result<Exit, Problem> {
    let folder = files::make(&demo.folder)?;
    let stage = Stage { args, demo, term, folder };
    stage.introduce();
    match stage.work().await? {
        Work::Killed { process } => {
            stage.show_crash(process).await?;
            if !stage.go_on().await? {
                return Ok(Exit::Cancelled);
            }
            let proof = Proof::read(&stage.folder, RUN, LARGE).await?;
            stage.show_proof(&proof)?;
            stage.show_more();
            Ok(Exit::Done)
        }
        Work::Ended(status) => {
            stage.say_it_ended(status);
            Ok(Exit::Done)
        }
    }
}

/// What became of the first process.
enum Work {
    /// It was killed while it paid.
    Killed {
        /// Its id.
        process: u32,
    },
    /// It ended by itself.
    Ended(ExitStatus),
}

struct Stage<'a> {
    args: &'a Args,
    demo: &'a DemoArgs,
    term: &'a Term,
    folder: PathBuf,
}

impl Stage<'_> {
    fn introduce(&self) {
        let paint = self.term.paint_out();
        self.say(&paint.of(Paint::Title, "Windlass in a minute"));
        self.wrapped(&format!(
            "A clerk made of software pays three invoices. The files are real (they are in {}), a payment is a \
             line in the bank's book, and the crash will be real too. Only the model is a script, so that you \
             need no key and no network.",
            self.shown_folder()
        ));
    }

    /// The clerk works, until it ends or is killed.
    async fn work(&self) -> Result<Work, Problem> {
        self.heading("1", "The clerk works, and asks you about the large payment");
        let folder = self.shown_folder();
        self.command(&format!("run {folder} \"{QUESTION}\""));
        let silent = if self.demo.by_hand { "by hand" } else { "demo" };
        let mut child = self
            .windlass(&["run", &self.folder.to_string_lossy(), QUESTION, "--run-id", RUN])
            .env(tools::SILENT, silent)
            .stdin(if self.demo.yes { Stdio::null() } else { Stdio::inherit() })
            .spawn()
            .map_err(|error| Problem::new(format!("a second process cannot be started: {error}")))?;
        let process = child.id();
        let bank = Bank::of(&self.folder);
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            let is_paying = bank.payments()?.iter().any(|payment| payment.invoice == LARGE);
            if is_paying && !self.demo.by_hand {
                tokio::time::sleep(SUSPENSE).await;
                break kill(&mut child)?;
            }
            tokio::time::sleep(LOOK).await;
        };
        Ok(if was_killed(status) { Work::Killed { process } } else { Work::Ended(status) })
    }

    async fn show_crash(&self, process: u32) -> Result<(), Problem> {
        self.heading("2", "The process is killed in the middle of the payment");
        let paint = self.term.paint_out();
        let by = if self.demo.by_hand { "you killed it" } else { "killed" };
        self.say(&format!(
            "  {} process {process} is gone: {by} with kill -9, which no program can catch",
            paint.of(Paint::Bad, "✗")
        ));
        let proof = Proof::read(&self.folder, RUN, LARGE).await?;
        let paid = proof.paid(LARGE);
        self.say(&format!(
            "    the bank     has taken the money: {} euros to Ropeworks",
            paid.map_or(0, |paid| paid.euros)
        ));
        self.say(&format!(
            "    the journal  says that the payment was started; {}",
            if proof.is_settled() { "and how it ended" } else { "it does not say how it ended" }
        ));
        self.wrapped(
            "Trying again would pay twice. Giving up would leave two invoices paid and one in the dark. Windlass \
             had written down that the payment was about to start, so the next process knows what to ask the bank.",
        );
        Ok(())
    }

    /// Another process goes on. Says whether the person wanted it to.
    async fn go_on(&self) -> Result<bool, Problem> {
        self.heading("3", "Another process goes on where the journal ends");
        self.command(&format!("-C {} resume {RUN}", self.shown_folder()));
        if !self.demo.yes && self.term.can_ask() {
            let mut signals = Signals::listen()?;
            let prompt = self.term.paint().of(Paint::Note, "  Press Enter to resume the run. ");
            match Asker::start().line(self.term, &prompt, &mut signals).await {
                Typed::Line(_) => {}
                Typed::End | Typed::Interrupt => {
                    self.term.note("");
                    return Ok(false);
                }
            }
        }
        let status = self
            .windlass(&["-C", &self.folder.to_string_lossy(), "resume", RUN])
            .stdin(if self.demo.yes { Stdio::null() } else { Stdio::inherit() })
            .status()?;
        if status.success() {
            return Ok(true);
        }
        Err(Problem::new(format!("`windlass resume` ended with {status}")).hint(format!(
            "`{} -C {} show {RUN} --journal` tells what happened",
            self.name(),
            self.shown_folder()
        )))
    }

    fn show_proof(&self, proof: &Proof) -> Result<(), Problem> {
        self.heading("4", "The proof: the bank's own book");
        for payment in proof.payments() {
            self.say(&format!("    {:>4} euros  {:<16} {}", payment.euros, payment.to, payment.invoice));
        }
        let mark = self.term.paint_out().of(Paint::Good, "✓");
        for line in proof.shown()? {
            self.say(&format!("  {mark} {line}"));
        }
        Ok(())
    }

    fn show_more(&self) {
        let (name, folder) = (self.name(), self.shown_folder());
        let paint = self.term.paint_out();
        self.say("");
        self.say(&paint.of(Paint::Title, "Look closer"));
        for (command, what) in [
            (format!("-C {folder} show {RUN} --journal"), "every record"),
            (format!("-C {folder} verify {RUN}"), "who decided what"),
            ("demo --by-hand".to_owned(), "kill it yourself"),
        ] {
            self.say(&format!("  {name} {command}  {}", paint.of(Paint::Faint, &format!("# {what}"))));
        }
        self.say(&paint.of(Paint::Title, "The same with a real model"));
        self.say(&format!("  {name} chat {folder} --model openai:gpt-5-mini"));
        self.say(&paint.of(Paint::Title, "An agent of your own"));
        self.say(&format!("  {name} new my-agent"));
    }

    fn say_it_ended(&self, status: ExitStatus) {
        self.say("");
        match status.code() {
            Some(0) => self.wrapped(
                "The clerk is done, and the large payment was never made: you said no. A call that was rejected \
                 cannot run. Say yes next time to see the crash.",
            ),
            _ => self.wrapped(&format!(
                "The run was left where it stands, and nothing is lost: `{} -C {} resume {RUN}` goes on with it.",
                self.name(),
                self.shown_folder()
            )),
        }
    }

    /// This program, with these words, and the choices of this one.
    fn windlass(&self, words: &[&str]) -> Command {
        let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("windlass"));
        let mut command = Command::new(program);
        command.args(words).env_remove("WINDLASS_STORE");
        if self.demo.yes {
            command.arg("--yes");
        }
        let colour = match self.args.colour {
            crate::args::ColourChoice::Auto => "auto",
            crate::args::ColourChoice::Always => "always",
            crate::args::ColourChoice::Never => "never",
        };
        command.args(["--color", colour]);
        command
    }

    fn heading(&self, number: &str, title: &str) {
        let paint = self.term.paint_out();
        self.say("");
        self.say(&format!("{} {}", paint.of(Paint::Note, number), paint.of(Paint::Title, title)));
    }

    fn command(&self, words: &str) {
        let line = format!("  $ {} {words}", self.name());
        self.say(&self.term.paint_out().of(Paint::Faint, &line));
    }

    /// What a person types to get this program.
    fn name(&self) -> &'static str {
        if std::env::var_os("CARGO").is_some() { "cargo run -q --" } else { "windlass" }
    }

    /// The folder as it was named, which is shorter than where it is.
    fn shown_folder(&self) -> String {
        let named: &Path = &self.demo.folder;
        named.display().to_string()
    }

    fn say(&self, line: &str) {
        self.term.say(line);
    }

    /// A paragraph, wrapped to the terminal.
    fn wrapped(&self, text: &str) {
        let width = self.term.width().min(100).saturating_sub(3);
        let mut line = String::new();
        for word in text.split_whitespace() {
            if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
                self.say(&format!("  {line}"));
                line.clear();
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        self.say(&format!("  {line}"));
    }
}

/// Kills a process that this one started, in a way that it cannot notice.
fn kill(child: &mut Child) -> Result<ExitStatus, Problem> {
    child.kill()?;
    Ok(child.wait()?)
}

#[cfg(unix)]
fn was_killed(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    status.signal() == Some(9)
}

#[cfg(not(unix))]
fn was_killed(status: ExitStatus) -> bool {
    !status.success()
}
