//! `windlass doctor`: checks the setup and reports what is missing.

use serde_json::{Value, json};
use windlass::store::{RunQuery, RunStatus, list_all_runs};

use super::find_agent;
use crate::agent_file::AgentFile;
use crate::args::{CliArgs, DoctorArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::project::CliProject;
use crate::terminal::{OutputFormat, Terminal, TextStyle, paint, styled};
use windlass_text::SafeText;

/// Environment variables that are read. Only their presence is reported, never their values.
const VARIABLES: [(&str, &str); 3] = [
    ("WINDLASS_MODEL", "the default model"),
    ("WINDLASS_STORE", "the path of the store"),
    ("NO_COLOR", "disables colours"),
];

/// The result of one check.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CheckStatus {
    Passed,
    /// Not present, and optional.
    NotPresent,
    Failed,
}

/// One line of the report.
struct DoctorFinding {
    status: CheckStatus,
    subject: &'static str,
    text: String,
    hint: Option<String>,
}

pub(crate) async fn run(
    args: &CliArgs,
    asked: &DoctorArgs,
    term: &Terminal,
) -> Result<CommandExit, CliError> {
    let mut findings = vec![DoctorFinding {
        status: CheckStatus::Passed,
        subject: "windlass",
        text: format!("{} on {} {}", env!("CARGO_PKG_VERSION"), std::env::consts::OS, std::env::consts::ARCH),
        hint: None,
    }];
    let named = find_agent(args, asked.agent.as_deref())?;
    let file = AgentFile::read(&named);
    let project = match &file {
        Ok(file) => CliProject::of_agent_file(args, file.path(), term)?,
        Err(_) => CliProject::from_args(args)?,
    };
    findings.extend(check_agent(file, asked.agent.is_some()).await);
    findings.push(check_store(&project).await);
    findings.push(check_terminal(term));
    #[cfg(unix)]
    findings.push(check_sandbox());
    #[cfg(feature = "models")]
    findings.push(check_providers());
    findings.extend(VARIABLES.map(|(variable, what)| check_variable(variable, what)));
    let is_bad = findings.iter().any(|finding| finding.status == CheckStatus::Failed);
    match term.output_format() {
        OutputFormat::Json => findings.iter().for_each(|finding| term.print_json(&finding.to_json())),
        OutputFormat::Text => findings.iter().for_each(|finding| finding.print_line(term)),
    }
    Ok(if is_bad { CommandExit::Failure } else { CommandExit::Success })
}

async fn check_agent(file: Result<AgentFile, CliError>, was_named: bool) -> Vec<DoctorFinding> {
    let file = match file {
        Ok(file) => file,
        Err(problem) => {
            let is_missing = problem.exit() == CommandExit::NotFound && !was_named;
            let health = if is_missing { CheckStatus::NotPresent } else { CheckStatus::Failed };
            return vec![DoctorFinding {
                status: health,
                subject: "agent",
                text: if is_missing { "not found".to_owned() } else { problem.to_string() },
                hint: Some(
                    "`windlass init` makes this folder an agent; `windlass demo` shows one".to_owned(),
                ),
            }];
        }
    };
    let said =
        |what, text: String| DoctorFinding { status: CheckStatus::Passed, subject: what, text, hint: None };
    let wrong = |what, problem: &CliError| DoctorFinding {
        status: CheckStatus::Failed,
        subject: what,
        text: problem.to_string(),
        hint: problem.hint_text().map(str::to_owned),
    };
    let mut found = vec![said("agent", format!("{} in {}", file.name(), file.path().display()))];
    found.push(match file.resolve_model(None) {
        Ok(_) => said("model", file.effective_model_name().unwrap_or_default()),
        Err(problem) => wrong("model", &problem),
    });
    found.push(match file.load_tools().await {
        Ok(tools) => {
            let names: Vec<String> = tools.iter().map(|tool| tool.key().to_string()).collect();
            said("tools", if names.is_empty() { "none".to_owned() } else { names.join(", ") })
        }
        Err(problem) => wrong("tools", &problem),
    });
    match file.list_mcp_tools().await {
        Ok(served) => {
            if !served.tools.is_empty() {
                found.push(said("mcp", format!("{} tools of MCP servers", served.tools.len())));
            }
            found.extend(served.unreachable.into_iter().map(|text| DoctorFinding {
                status: CheckStatus::Failed,
                subject: "mcp",
                text,
                hint: None,
            }));
        }
        Err(problem) => found.push(wrong("mcp", &problem)),
    }
    found
}

async fn check_store(project: &CliProject) -> DoctorFinding {
    let place = project.store_place();
    if !place.may_exist() {
        let text = format!("{place} does not exist yet; the first run creates it");
        return DoctorFinding { status: CheckStatus::NotPresent, subject: "store", text, hint: None };
    }
    let runs = match project.open_existing().await {
        Ok(store) => list_all_runs(&*store, RunQuery::default()).await.map_err(CliError::from),
        Err(problem) => Err(problem),
    };
    match runs {
        Ok(runs) => {
            let waiting = runs.iter().filter(|run| run.status == RunStatus::Paused).count();
            let text = format!("{place}: {} runs, {waiting} wait for a person", runs.len());
            if project.is_store_in_folder() {
                let text = format!("{text}; it is in the project, where the tools of the agent can reach it");
                let hint = Some("move it out of the project, and name it with --store".to_owned());
                return DoctorFinding { status: CheckStatus::Failed, subject: "store", text, hint };
            }
            DoctorFinding { status: CheckStatus::Passed, subject: "store", text, hint: None }
        }
        Err(problem) => {
            let hint = problem.hint_text().map(str::to_owned);
            DoctorFinding { status: CheckStatus::Failed, subject: "store", text: problem.to_string(), hint }
        }
    }
}

fn check_terminal(term: &Terminal) -> DoctorFinding {
    let asks =
        if term.can_prompt() { "interactive" } else { "not interactive: a run that needs a person pauses" };
    DoctorFinding {
        status: CheckStatus::Passed,
        subject: "terminal",
        text: format!("{} columns; {asks}", term.width()),
        hint: None,
    }
}

/// Reports the sandbox support for agents' commands.
#[cfg(unix)]
fn check_sandbox() -> DoctorFinding {
    use windlass_tools::sandbox::{ConfinementLevel, confinement_support};
    let (health, text) = match confinement_support() {
        ConfinementLevel::Full => (CheckStatus::Passed, "commands are sandboxed: files, network, signals"),
        ConfinementLevel::Partial => {
            (CheckStatus::Passed, "commands are partly sandboxed: files, but not all of network and signals")
        }
        ConfinementLevel::None => {
            (CheckStatus::NotPresent, "this kernel cannot sandbox commands; limits and timeouts still apply")
        }
    };
    DoctorFinding { status: health, subject: "sandbox", text: text.to_owned(), hint: None }
}

/// Reports the providers whose keys are set.
#[cfg(feature = "models")]
fn check_providers() -> DoctorFinding {
    let providers = windlass_models::ProviderRegistry::from_env().providers();
    let needs_key = windlass_models::ProviderRegistry::from_vars(|_| None).providers();
    let is_set_up = |provider: &&windlass_models::ProviderInfo| {
        provider.is_configured
            && needs_key.iter().any(|known| known.name == provider.name && !known.is_configured)
    };
    let names: Vec<&str> =
        providers.iter().filter(is_set_up).map(|provider| provider.name.as_str()).collect();
    let (status, text) = match names.is_empty() {
        true => (CheckStatus::NotPresent, "no key of a provider is set".to_owned()),
        false => (CheckStatus::Passed, format!("set up: {}", names.join(", "))),
    };
    let hint = "`windlass models` lists the providers and their variables".to_owned();
    DoctorFinding { status, subject: "providers", text, hint: Some(hint) }
}

fn check_variable(name: &'static str, what: &str) -> DoctorFinding {
    let is_set = std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let (health, state) =
        if is_set { (CheckStatus::Passed, "is set") } else { (CheckStatus::NotPresent, "is not set") };
    DoctorFinding { status: health, subject: name, text: format!("{state}: {what}"), hint: None }
}

impl DoctorFinding {
    fn to_json(&self) -> Value {
        let health = match self.status {
            CheckStatus::Passed => "ok",
            CheckStatus::NotPresent => "absent",
            CheckStatus::Failed => "bad",
        };
        json!({ "what": self.subject, "health": health, "text": self.text, "hint": self.hint })
    }

    fn print_line(&self, term: &Terminal) {
        let mark = match self.status {
            CheckStatus::Passed => paint(TextStyle::Success, "✓"),
            CheckStatus::NotPresent => paint(TextStyle::Faint, "–"),
            CheckStatus::Failed => paint(TextStyle::Failure, "✗"),
        };
        let mut subject = SafeText::from_line(self.subject).pad(18);
        for (place, line) in SafeText::from_lines(&self.text).into_iter().enumerate() {
            let mark = if place == 0 { mark.clone() } else { " ".into() };
            term.print_line(styled![mark, " ", &subject, "  ", line]);
            subject = SafeText::default().pad(18);
        }
        if let (Some(hint), CheckStatus::Failed | CheckStatus::NotPresent) = (&self.hint, self.status) {
            term.print_line(styled![
                "  ",
                subject,
                "  ",
                paint(TextStyle::Hint, "hint:"),
                format!(" {hint}")
            ]);
        }
    }
}
