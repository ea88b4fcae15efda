//! An agent from a file: `agent.toml` says who it is, what it may use, and whom it must ask.

mod duration;
mod mcp;
mod model;
mod policy;
mod script;
mod tools;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use windlass::model::{ModelSettings, SharedModel};
use windlass::{Agent, RunBuilder, Tool};

use self::duration::Span;
use self::mcp::McpServer;
use self::policy::Policy;
pub(crate) use self::tools::Preview;
use crate::problem::Problem;
use crate::project::AGENT_FILE;

/// How long a run stays owned after its process is gone. A command is watched by a person who may want to go on
/// soon, so it is shorter than the library's own.
const LEASE: Duration = Duration::from_secs(5);
/// The variable that names a model for agents that name none.
const MODEL_VARIABLE: &str = "WINDLASS_MODEL";
/// How many turns a run may take, unless the agent says otherwise.
const TURNS: u32 = 30;

/// An agent's file, read.
#[derive(Debug)]
pub(crate) struct AgentFile {
    path: PathBuf,
    folder: PathBuf,
    spec: Spec,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Spec {
    name: Option<String>,
    instructions: Option<String>,
    instructions_file: Option<PathBuf>,
    model: Option<String>,
    /// Built-in tools, by their names or by the names of sets.
    #[serde(default)]
    tools: Vec<String>,
    /// The folder that they work in, beside the file; its own where absent.
    workspace: Option<PathBuf>,
    /// Files that they do as if they were not there.
    #[serde(default)]
    hide: Vec<String>,
    /// A `.mcp.json` with servers.
    mcp_file: Option<PathBuf>,
    /// Servers, by their names.
    #[serde(default)]
    mcp: BTreeMap<String, McpServer>,
    #[serde(default)]
    settings: Settings,
    #[serde(default)]
    limits: Limits,
    #[serde(default)]
    policy: Policy,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    temperature: Option<f64>,
    top_p: Option<f64>,
    max_tokens: Option<u64>,
    reasoning_effort: Option<String>,
    parallel_calls: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Limits {
    turns: Option<u32>,
    concurrency: Option<usize>,
    lease: Option<Span>,
    approvals_expire_after: Option<Span>,
}

impl AgentFile {
    /// Reads the agent of a folder, or of a file.
    pub(crate) fn read(named: &Path) -> Result<Self, Problem> {
        let path = if named.is_dir() { named.join(AGENT_FILE) } else { named.to_owned() };
        let shown = path.display();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(Problem::not_found(format!("there is no agent at `{}`", named.display()))
                    .hint("an agent is a folder with an agent.toml; `windlass new NAME` makes one"));
            }
            Err(error) => return Err(Problem::new(format!("`{shown}` cannot be read: {error}"))),
        };
        let spec = toml::from_str(&text).map_err(|error| {
            Problem::new(format!("`{shown}` is not an agent's file:\n{}", error.to_string().trim_end()))
                .hint("docs/guide/command.md lists what may stand in it")
        })?;
        let path = std::path::absolute(&path)?;
        let folder = path.parent().unwrap_or(Path::new("/")).to_owned();
        Ok(Self { path, folder, spec })
    }

    /// Whether a folder or file is an agent's.
    pub(crate) fn is_there(named: &Path) -> bool {
        if named.is_dir() {
            named.join(AGENT_FILE).is_file()
        } else {
            named.extension().is_some_and(|extension| extension == "toml") && named.is_file()
        }
    }

    /// Its file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Its name: what the file says, or else that of the folder.
    pub(crate) fn name(&self) -> String {
        let of_folder = || self.folder.file_name().map(|name| name.to_string_lossy().into_owned());
        self.spec.name.clone().or_else(of_folder).unwrap_or_else(|| "agent".to_owned())
    }

    /// The model that it names.
    pub(crate) fn model(&self) -> Option<&str> {
        self.spec.model.as_deref()
    }

    /// The agent, ready to run, with another model where one is named.
    pub(crate) async fn build(&self, model: Option<&str>) -> Result<Agent, Problem> {
        let mut agent = Agent::new(self.name()).model(self.find_model(model)?);
        if let Some(text) = self.instructions()? {
            agent = agent.instructions(text);
        }
        agent = mcp::connected(agent, self).await?;
        let Settings { temperature, top_p, max_tokens, reasoning_effort, parallel_calls } =
            &self.spec.settings;
        Ok(agent.tools(self.tools().await?).settings(ModelSettings {
            temperature: *temperature,
            top_p: *top_p,
            max_tokens: *max_tokens,
            reasoning_effort: reasoning_effort.clone(),
            parallel_calls: *parallel_calls,
            ..ModelSettings::default()
        }))
    }

    /// Its tools, each with the rule of its policy.
    pub(crate) async fn tools(&self) -> Result<Vec<Tool>, Problem> {
        self.spec.policy.applied_to(tools::find(self)?)
    }

    /// Its MCP servers' tools, by name, with what they say of themselves; and what is not there, and why.
    pub(crate) async fn mcp_tools(&self) -> Result<mcp::Listing, Problem> {
        mcp::list(self).await
    }

    /// What a call would change in a file, for the person who decides about it.
    pub(crate) fn preview(&self, tool: &str, arguments: &str) -> Option<Preview> {
        tools::preview(self, tool, arguments)
    }

    /// The folder that its tools work in.
    fn workspace(&self) -> PathBuf {
        match &self.spec.workspace {
            Some(folder) => self.folder.join(folder),
            None => self.folder.clone(),
        }
    }

    /// Its model, or the one that is named in its place.
    pub(crate) fn find_model(&self, named: Option<&str>) -> Result<SharedModel, Problem> {
        let from_environment = std::env::var(MODEL_VARIABLE).ok().filter(|model| !model.is_empty());
        let named = named.or(self.model()).or(from_environment.as_deref()).ok_or_else(|| {
            Problem::new(format!("agent `{}` names no model", self.name())).hint(
                "write `model = \"provider:name\"` in its file, give --model provider:name, or set WINDLASS_MODEL",
            )
        })?;
        model::find(named, &self.folder)
    }

    /// Puts the agent's limits on a run.
    pub(crate) fn limited(&self, run: RunBuilder) -> RunBuilder {
        let limits = &self.spec.limits;
        let mut run =
            run.max_turns(limits.turns.unwrap_or(TURNS)).lease(limits.lease.map_or(LEASE, Span::get));
        if let Some(concurrency) = limits.concurrency {
            run = run.concurrency(concurrency);
        }
        if let Some(expiry) = limits.approvals_expire_after {
            run = run.approvals_expire_after(expiry.get());
        }
        run
    }

    fn instructions(&self) -> Result<Option<String>, Problem> {
        match (&self.spec.instructions, &self.spec.instructions_file) {
            (Some(_), Some(_)) => Err(Problem::new(format!(
                "`{}` has both `instructions` and `instructions_file`",
                self.path.display()
            ))
            .hint("keep one of them")),
            (Some(text), None) => Ok(Some(text.clone())),
            (None, Some(file)) => {
                let file = self.folder.join(file);
                let text = std::fs::read_to_string(&file);
                text.map(Some).map_err(|error| {
                    Problem::not_found(format!(
                        "the instructions `{}` cannot be read: {error}",
                        file.display()
                    ))
                })
            }
            (None, None) => Ok(None),
        }
    }
}

#[cfg(test)]
#[path = "agent_file_tests.rs"]
mod tests;
