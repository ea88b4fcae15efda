//! `windlass demo`: a one-minute tour without API key and network. An agent pays invoices, asks for an
//! approval, is killed in the middle of a payment, and is resumed by another process; the bank's ledger shows
//! that no payment was made twice.
//!
//! Each step runs the real command in its own process. The output is not simulated.

mod bank;
mod files;
mod proof;
mod tools;

pub(crate) use tools::demo_tools;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use self::bank::{BankPayment, DemoBank};
use self::proof::DemoProof;
use crate::args::{CliArgs, DemoArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::project::CliProject;
use crate::run_driver::SignalCounter;
use crate::shell_words::shell_path;
use crate::terminal::{LinePrompter, PromptInput, StyledText, Terminal, TextStyle, paint, styled};

const RUN_ID: &str = "invoices";
const QUESTION: &str = "Pay the invoices in inbox/.";
/// Invoice during whose payment the process is killed.
const LARGE_INVOICE: &str = "R-1931";
/// Interval at which the bank's ledger is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(30);
/// Time for which the payment is shown in progress before the process is killed.
const KILL_DELAY: Duration = Duration::from_millis(1_200);

pub(crate) async fn run(args: &CliArgs, demo: &DemoArgs, term: &Terminal) -> Result<CommandExit, CliError> {
    let folder = files::create_folder(&demo.folder)?;
    // The store of an earlier demonstration belongs to the folder that was deleted.
    CliProject::of_folder(&folder)?.delete_store()?;
    let stage = DemoPresenter { args, demo_args: demo, term, folder };
    stage.print_introduction();
    match stage.run_until_killed().await? {
        FirstProcessOutcome::Killed { process_id: process } => {
            stage.show_crash(process).await?;
            if !stage.resume_run().await? {
                return Ok(CommandExit::Cancelled);
            }
            let proof = DemoProof::read(&stage.folder, RUN_ID, LARGE_INVOICE).await?;
            stage.show_proof(&proof)?;
            stage.show_next_steps();
            Ok(CommandExit::Success)
        }
        FirstProcessOutcome::Exited(status) => stage.explain_exit(status),
    }
}

/// The outcome of the first process.
enum FirstProcessOutcome {
    /// The process was killed during a payment.
    Killed {
        /// Process id.
        process_id: u32,
    },
    /// The process exited by itself.
    Exited(ExitStatus),
}

/// The presenter of the demo: prints the explanations and runs the steps.
struct DemoPresenter<'a> {
    args: &'a CliArgs,
    demo_args: &'a DemoArgs,
    term: &'a Terminal,
    folder: PathBuf,
}

impl DemoPresenter<'_> {
    fn print_introduction(&self) {
        self.print_line(paint(TextStyle::Title, "Windlass in a minute"));
        self.print_wrapped(&format!(
            "An agent pays three invoices. The files are real (they are in {}), a payment is a line in the bank's \
             ledger, and the crash is real too. Only the model is scripted, so you need no API key and no network.",
            self.shown_folder()
        ));
    }

    /// Runs the agent until it exits or is killed.
    async fn run_until_killed(&self) -> Result<FirstProcessOutcome, CliError> {
        self.print_heading("1", "The agent works, and asks you to approve the large payment");
        let folder = self.shown_folder();
        self.print_command(&format!("run {folder} \"{QUESTION}\""));
        let silent = if self.demo_args.by_hand { "by hand" } else { "demo" };
        let mut child = self
            .windlass_command(&["run", &self.folder.to_string_lossy(), QUESTION, "--run-id", RUN_ID])
            .env(tools::SILENT_BANK_VARIABLE, silent)
            .stdin(if self.demo_args.yes { Stdio::null() } else { Stdio::inherit() })
            .spawn()
            .map_err(|error| CliError::new(format!("a second process cannot be started: {error}")))?;
        let process = child.id();
        let bank = DemoBank::in_folder(&self.folder);
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            // The bank answers a small payment at once, so there is no moment in which to kill the process.
            let is_paying = bank.payments()?.iter().any(|payment| payment.euros > tools::APPROVAL_THRESHOLD);
            if is_paying && !self.demo_args.by_hand {
                tokio::time::sleep(KILL_DELAY).await;
                break kill_and_wait(&mut child)?;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        };
        Ok(if was_killed(status) {
            FirstProcessOutcome::Killed { process_id: process }
        } else {
            FirstProcessOutcome::Exited(status)
        })
    }

    async fn show_crash(&self, process: u32) -> Result<(), CliError> {
        self.print_heading("2", "The process is killed in the middle of the payment");
        let by = if self.demo_args.by_hand { "you killed it" } else { "killed" };
        self.print_line(styled![
            "  ",
            paint(TextStyle::Failure, "✗"),
            format!(" process {process} is dead: {by} with kill -9, which no program can catch"),
        ]);
        let proof = DemoProof::read(&self.folder, RUN_ID, LARGE_INVOICE).await?;
        self.print_line(match proof.large_payment() {
            // The person may have changed any of its arguments.
            Some(BankPayment { euros, to, .. }) => {
                format!("    the bank     has taken the money: {euros} euros to {to}")
            }
            None => "    the bank     has taken no large payment".to_owned(),
        });
        self.print_line(format!(
            "    the journal  records that the payment started, {}",
            if proof.is_settled() { "and how it ended" } else { "but not how it ended" }
        ));
        self.print_wrapped(
            "Retrying would pay twice. Giving up would leave the outcome of the payment unknown. Windlass journalled \
             the start of the payment before it was made, so the next process knows that it must ask the bank.",
        );
        Ok(())
    }

    /// Resumes the run in another process. Returns false if the user aborted.
    async fn resume_run(&self) -> Result<bool, CliError> {
        self.print_heading("3", "Another process resumes the run from its journal");
        self.print_command(&format!("-C {} resume {RUN_ID}", self.shown_folder()));
        if !self.demo_args.yes && self.term.can_prompt() {
            let mut signals = SignalCounter::install()?;
            let prompt = paint(TextStyle::Hint, "  Press Enter to resume the run. ");
            match LinePrompter::spawn_reader(None).read_line(self.term, prompt, &mut signals).await {
                PromptInput::Line(_) => {}
                PromptInput::EndOfInput | PromptInput::Interrupted => {
                    self.term.eprint_blank();
                    return Ok(false);
                }
            }
        }
        let status = self
            .windlass_command(&["-C", &self.folder.to_string_lossy(), "resume", RUN_ID])
            .stdin(if self.demo_args.yes { Stdio::null() } else { Stdio::inherit() })
            .status()?;
        if status.success() {
            return Ok(true);
        }
        Err(CliError::new(format!("`windlass resume` ended with {status}")).with_hint(format!(
            "`{} -C {} show {RUN_ID} --journal` shows what happened",
            self.program_name(),
            self.shown_folder()
        )))
    }

    fn show_proof(&self, proof: &DemoProof) -> Result<(), CliError> {
        self.print_heading("4", "The proof: the bank's own ledger");
        for payment in proof.payments() {
            self.print_line(format!(
                "    {:>4} euros  {:<16} {}",
                payment.euros, payment.to, payment.invoice
            ));
        }
        for line in proof.evidence_lines()? {
            self.print_line(styled!["  ", paint(TextStyle::Success, "✓"), format!(" {line}")]);
        }
        Ok(())
    }

    fn show_next_steps(&self) {
        let (name, folder) = (self.program_name(), self.shown_folder());
        self.print_line("");
        self.print_line(paint(TextStyle::Title, "More details"));
        for (command, what) in [
            (format!("-C {folder} show {RUN_ID} --journal"), "every record"),
            (format!("-C {folder} verify {RUN_ID}"), "the decisions"),
            ("demo --by-hand".to_owned(), "kill it yourself"),
        ] {
            let comment = paint(TextStyle::Faint, format!("# {what}"));
            self.term.print_line(styled![format!("  {name} {command}  "), comment]);
        }
        self.print_line(paint(TextStyle::Title, "The same with a real model"));
        self.term.print_line(format!("  {name} chat {folder} --model openai:gpt-5-mini"));
        self.print_line(paint(TextStyle::Title, "Your own agent"));
        self.term.print_line(format!("  {name} init"));
        self.term.print_line(format!("  {name} new my-agent"));
    }

    /// Explains why the first process ended before it could be killed, from the bank's ledger and its exit code.
    fn explain_exit(&self, status: ExitStatus) -> Result<CommandExit, CliError> {
        self.print_line("");
        let bank = DemoBank::in_folder(&self.folder);
        let payments = bank.payments()?;
        let is_large = |payment: &&BankPayment| {
            payment.invoice == LARGE_INVOICE || payment.euros > tools::APPROVAL_THRESHOLD
        };
        // The two small payments need no approval. A third one is the large one, whatever was changed in it.
        let large = payments.iter().find(is_large).or_else(|| payments.get(2)).cloned();
        let resume = format!("`{} -C {} resume {RUN_ID}`", self.program_name(), self.shown_folder());
        match (status.code(), large) {
            (Some(0), None) => {
                self.print_wrapped(&format!(
                    "The agent is done, and invoice {LARGE_INVOICE} was not paid, as you decided. A rejected call \
                     cannot run. Approve it next time to see the crash."
                ));
                Ok(CommandExit::Success)
            }
            (Some(0), Some(payment)) => {
                self.print_wrapped(&format!(
                    "The agent is done. You changed the payment of invoice {LARGE_INVOICE}: {} euros went to {}. It \
                     was over before the process could be killed; approve it unchanged to see the crash.",
                    payment.euros, payment.to
                ));
                Ok(CommandExit::Success)
            }
            (Some(code), _) if code == i32::from(CommandExit::WaitingForPerson.code()) => {
                self.print_wrapped(&format!(
                    "The payment of invoice {LARGE_INVOICE} waits for your decision, and nothing is lost: {resume} asks \
                     for it, today or next week. `demo --yes` shows the whole tour without a question."
                ));
                Ok(CommandExit::WaitingForPerson)
            }
            (Some(code), _) if code == i32::from(CommandExit::Failure.code()) => {
                // A run that has failed has ended. One that could not begin has no journal to show.
                self.print_wrapped(&format!(
                    "The agent has failed, so there is nothing to resume: see the message above. `{} -C {} show \
                     {RUN_ID} --journal` shows what happened before.",
                    self.program_name(),
                    self.shown_folder()
                ));
                Ok(CommandExit::Failure)
            }
            (code, _) => {
                self.print_wrapped(&format!(
                    "The run was interrupted, and nothing is lost: {resume} resumes it."
                ));
                let is_cancelled = code == Some(i32::from(CommandExit::Cancelled.code()));
                Ok(if is_cancelled { CommandExit::Cancelled } else { CommandExit::Failure })
            }
        }
    }

    /// Returns a command that runs this program with these arguments and the options of this invocation.
    fn windlass_command(&self, words: &[&str]) -> Command {
        let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("windlass"));
        let mut command = Command::new(program);
        command.args(words).env_remove("WINDLASS_STORE");
        if self.demo_args.yes {
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

    fn print_heading(&self, number: &str, title: &str) {
        self.print_line("");
        self.print_line(styled![paint(TextStyle::Hint, number), " ", paint(TextStyle::Title, title)]);
    }

    fn print_command(&self, words: &str) {
        // A command stays one line, so that it can be copied.
        let line = format!("  $ {} {words}", self.program_name());
        self.term.print_line(paint(TextStyle::Faint, line));
    }

    /// Returns the command that the user types to start this program.
    fn program_name(&self) -> &'static str {
        if std::env::var_os("CARGO").is_some() { "cargo run -q --" } else { "windlass" }
    }

    /// Returns the folder as given on the command line, which is shorter than the absolute path.
    fn shown_folder(&self) -> String {
        let named: &Path = &self.demo_args.folder;
        shell_path(named)
    }

    /// Prints a line, broken between words if the terminal is too narrow for it.
    fn print_line(&self, line: impl Into<StyledText>) {
        self.term.print_words(line);
    }

    /// Prints a paragraph, wrapped to the width of the terminal.
    fn print_wrapped(&self, text: &str) {
        let width = self.term.width().min(100).saturating_sub(3);
        let mut line = String::new();
        for word in text.split_whitespace() {
            if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
                self.print_line(format!("  {line}"));
                line.clear();
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        self.print_line(format!("  {line}"));
    }
}

/// Kills a child process with SIGKILL, which it cannot catch.
fn kill_and_wait(child: &mut Child) -> Result<ExitStatus, CliError> {
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
