//! `windlass doctor`: what is set up, and what is missing.

use serde_json::{Value, json};
use windlass::store::{RunStatus, Store};

use super::agent_here;
use crate::agent_file::AgentFile;
use crate::args::{Args, DoctorArgs};
use crate::problem::{Exit, Problem};
use crate::project::Project;
use crate::term::{Form, Paint, Term, pad};

/// Variables that models and stores look at. Their values are nobody's business.
const VARIABLES: [(&str, &str); 6] = [
    ("WINDLASS_MODEL", "the model of agents that name none"),
    ("OPENAI_API_KEY", "models called openai:…"),
    ("OPENAI_BASE_URL", "another server that speaks as OpenAI does"),
    ("ANTHROPIC_API_KEY", "models called anthropic:…"),
    ("WINDLASS_STORE", "another file for runs and sessions"),
    ("NO_COLOR", "no colours"),
];

/// How something stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Health {
    Good,
    /// It is not there, and need not be.
    Absent,
    Bad,
}

struct Finding {
    health: Health,
    what: &'static str,
    text: String,
    hint: Option<String>,
}

pub(crate) async fn run(args: &Args, asked: &DoctorArgs, term: &Term) -> Result<Exit, Problem> {
    let mut findings = vec![Finding {
        health: Health::Good,
        what: "windlass",
        text: format!("{} on {} {}", env!("CARGO_PKG_VERSION"), std::env::consts::OS, std::env::consts::ARCH),
        hint: None,
    }];
    let named = match &asked.agent {
        Some(named) => named.clone(),
        None => agent_here(args)?,
    };
    let file = AgentFile::read(&named);
    let project = match &file {
        Ok(file) => Project::of_agent(args, file.path())?,
        Err(_) => Project::find(args)?,
    };
    findings.extend(agent(file, asked.agent.is_some()).await);
    findings.push(store(&project).await);
    findings.push(terminal(term));
    #[cfg(unix)]
    findings.push(sandbox());
    findings.extend(VARIABLES.map(|(variable, what)| self::variable(variable, what)));
    let is_bad = findings.iter().any(|finding| finding.health == Health::Bad);
    match term.form() {
        Form::Json => findings.iter().for_each(|finding| term.say_json(&finding.in_json())),
        Form::Human => findings.iter().for_each(|finding| finding.show(term)),
    }
    Ok(if is_bad { Exit::Failed } else { Exit::Done })
}

async fn agent(file: Result<AgentFile, Problem>, was_named: bool) -> Vec<Finding> {
    let file = match file {
        Ok(file) => file,
        Err(problem) => {
            let is_missing = problem.exit() == Exit::NotFound && !was_named;
            let health = if is_missing { Health::Absent } else { Health::Bad };
            return vec![Finding {
                health,
                what: "agent",
                text: if is_missing { "none here".to_owned() } else { problem.to_string() },
                hint: Some(
                    "`windlass demo` makes one to look at; an agent is a folder with an agent.toml"
                        .to_owned(),
                ),
            }];
        }
    };
    let said = |what, text: String| Finding { health: Health::Good, what, text, hint: None };
    let wrong = |what, problem: &Problem| Finding {
        health: Health::Bad,
        what,
        text: problem.to_string(),
        hint: problem.hint_text().map(str::to_owned),
    };
    let mut found = vec![said("agent", format!("{} in {}", file.name(), file.path().display()))];
    found.push(match file.find_model(None) {
        Ok(_) => said("model", file.model().unwrap_or_default().to_owned()),
        Err(problem) => wrong("model", &problem),
    });
    found.push(match file.tools().await {
        Ok(tools) => {
            let names: Vec<String> = tools.iter().map(|tool| tool.key().to_string()).collect();
            said("tools", if names.is_empty() { "none".to_owned() } else { names.join(", ") })
        }
        Err(problem) => wrong("tools", &problem),
    });
    match file.mcp_tools().await {
        Ok(served) => {
            if !served.tools.is_empty() {
                found.push(said("mcp", format!("{} tools of servers", served.tools.len())));
            }
            found.extend(served.missing.into_iter().map(|text| Finding {
                health: Health::Bad,
                what: "mcp",
                text,
                hint: None,
            }));
        }
        Err(problem) => found.push(wrong("mcp", &problem)),
    }
    found
}

async fn store(project: &Project) -> Finding {
    let path = project.store_path();
    if !path.exists() {
        let text = format!("{} is not there yet; the first run makes it", path.display());
        return Finding { health: Health::Absent, what: "store", text, hint: None };
    }
    let runs = match project.open() {
        Ok(store) => store.runs().await.map_err(Problem::from),
        Err(problem) => Err(problem),
    };
    match runs {
        Ok(runs) => {
            let waiting = runs.iter().filter(|run| run.status == RunStatus::Paused).count();
            let text = format!("{}: {} runs, {waiting} wait for a person", path.display(), runs.len());
            Finding { health: Health::Good, what: "store", text, hint: None }
        }
        Err(problem) => {
            let hint = problem.hint_text().map(str::to_owned);
            Finding { health: Health::Bad, what: "store", text: problem.to_string(), hint }
        }
    }
}

fn terminal(term: &Term) -> Finding {
    let asks =
        if term.can_ask() { "questions can be asked here" } else { "nobody can be asked here: runs wait" };
    Finding {
        health: Health::Good,
        what: "terminal",
        text: format!("{} columns; {asks}", term.width()),
        hint: None,
    }
}

/// How far commands of agents can be restricted here.
#[cfg(unix)]
fn sandbox() -> Finding {
    use windlass_tools::sandbox::{Confinement, support};
    let (health, text) = match support() {
        Confinement::Full => (Health::Good, "commands are restricted: files, connections, signals"),
        Confinement::Partial => (Health::Good, "commands are restricted: files, and not all of the rest"),
        Confinement::None => {
            (Health::Absent, "this kernel cannot restrict commands; limits and times still hold")
        }
    };
    Finding { health, what: "sandbox", text: text.to_owned(), hint: None }
}

fn variable(name: &'static str, what: &str) -> Finding {
    let is_set = std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let (health, state) = if is_set { (Health::Good, "is set") } else { (Health::Absent, "is not set") };
    Finding { health, what: name, text: format!("{state}: {what}"), hint: None }
}

impl Finding {
    fn in_json(&self) -> Value {
        let health = match self.health {
            Health::Good => "ok",
            Health::Absent => "absent",
            Health::Bad => "bad",
        };
        json!({ "what": self.what, "health": health, "text": self.text, "hint": self.hint })
    }

    fn show(&self, term: &Term) {
        let paint = term.paint_out();
        let mark = match self.health {
            Health::Good => paint.of(Paint::Good, "✓"),
            Health::Absent => paint.of(Paint::Faint, "–"),
            Health::Bad => paint.of(Paint::Bad, "✗"),
        };
        term.say(format!("{mark} {}  {}", pad(self.what, 18), self.text));
        if let (Some(hint), Health::Bad | Health::Absent) = (&self.hint, self.health) {
            term.say(format!("  {}  {} {hint}", pad("", 18), paint.of(Paint::Note, "hint:")));
        }
    }
}
