//! Agents defined by a file: `agent.toml` has the instructions, the model, the tools and the approval policy.

mod approvers;
mod budget;
mod context;
mod duration;
mod mcp;
pub(crate) mod model;
mod policy;
mod scripted_model;
mod tools;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::Deserialize;
use windlass::context::ContextPolicy;
use windlass::core::{item::Item, tool::ToolKey};
use windlass::model::{ModelSettings, SharedModel};
use windlass::price::PriceList;
use windlass::run::{ModelRetryPolicy, RetriesExhausted, RunBuilder};
use windlass::{agent::Agent, store::ApproverPolicy, tool::Tool};

use self::approvers::ApproversSpec;
pub(crate) use self::approvers::parse_approvers;
use self::budget::BudgetSpec;
use self::context::ContextSpec;
use self::duration::HumanDuration;
use self::mcp::McpServerSpec;
pub(crate) use self::model::ProviderSpecs;
use self::policy::AgentPolicy;
#[cfg(feature = "talk")]
pub(crate) use self::scripted_model::ScriptFileModel;
pub(crate) use self::tools::{ChangePreview, PreviewStatus};
use crate::cli_error::CliError;
use crate::project::AGENT_FILE;

/// Default lease of a run. It is shorter than the library's own, because a user who watches the command may
/// want to resume soon after a crash.
const DEFAULT_LEASE: Duration = Duration::from_secs(5);
/// Environment variable with the model of agents that name none.
const MODEL_VARIABLE: &str = "WINDLASS_MODEL";
/// Default time for which a run waits for a provider that is away.
const DEFAULT_PROVIDER_WAIT: Duration = Duration::from_secs(10 * 60);
/// Maximum delay between two requests to a provider that is away and names no delay.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);
/// Default maximum number of turns.
const DEFAULT_MAX_TURNS: u32 = 30;

/// A parsed agent file.
#[derive(Debug)]
pub(crate) struct AgentFile {
    path: PathBuf,
    folder: PathBuf,
    spec: AgentFileSpec,
    policy: AgentPolicy,
    /// The prices of models, if the file names others than the shipped ones.
    prices: Option<Arc<PriceList>>,
    /// The compaction of conversations, once the agent is built: its model may need a key.
    context_policy: OnceLock<ContextPolicy>,
}

/// The contents of an agent file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AgentFileSpec {
    name: Option<String>,
    instructions: Option<String>,
    instructions_file: Option<PathBuf>,
    model: Option<String>,
    /// Names of built-in tools or of tool sets.
    #[serde(default)]
    tools: Vec<String>,
    /// Folders with skills, relative to the file.
    #[serde(default)]
    skills: Vec<PathBuf>,
    /// Folder that the tools work in, relative to the file; the folder of the file if absent.
    workspace: Option<PathBuf>,
    /// Patterns of files that the tools must not see.
    #[serde(default)]
    hidden_files: Vec<String>,
    /// Treatment of commands on a machine that cannot confine them.
    #[serde(default)]
    unconfined_commands: UnconfinedCommands,
    /// Path of a `.mcp.json` with server configurations.
    mcp_file: Option<PathBuf>,
    /// Servers, by name.
    #[serde(default)]
    mcp: BTreeMap<String, McpServerSpec>,
    /// Settings of model requests.
    #[serde(default)]
    settings: ModelSettings,
    /// Model servers, by the names that `model` can use.
    #[serde(default)]
    providers: ProviderSpecs,
    #[serde(default)]
    limits: RunLimitsSpec,
    /// The compaction of conversations.
    #[serde(default)]
    context: ContextSpec,
    /// The budget of a run.
    budget: Option<BudgetSpec>,
    /// The budget of a session.
    session_budget: Option<BudgetSpec>,
    /// Path of a price list, in place of the shipped one.
    prices_file: Option<PathBuf>,
    /// The people whose signatures count.
    approvers: Option<ApproversSpec>,
    /// The policy, which is parsed separately so that its errors name their lines.
    #[serde(default, rename = "policy")]
    _policy: Option<serde::de::IgnoredAny>,
}

/// The treatment of commands on a machine that cannot confine them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum UnconfinedCommands {
    /// A person is asked about each, whatever the policy allows.
    #[default]
    Ask,
    /// They run as the policy says.
    Run,
    /// They are refused.
    Refuse,
}

/// The `[limits]` of an agent file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RunLimitsSpec {
    turns: Option<u32>,
    concurrency: Option<usize>,
    lease: Option<HumanDuration>,
    approvals_expire_after: Option<HumanDuration>,
    provider_wait: Option<HumanDuration>,
}

impl AgentFile {
    /// Reads the agent file of a folder, or the named file.
    pub(crate) fn read(named: &Path) -> Result<Self, CliError> {
        let path = if named.is_dir() { named.join(AGENT_FILE) } else { named.to_owned() };
        let shown = path.display();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(CliError::not_found(format!("there is no agent at `{}`", named.display()))
                    .with_hint("an agent is a folder with an agent.toml; `windlass init` makes one"));
            }
            Err(error) => return Err(CliError::new(format!("`{shown}` cannot be read: {error}"))),
        };
        let spec = toml::from_str(&text).map_err(|error| {
            CliError::new(format!("`{shown}` is not a valid agent file:\n{}", error.to_string().trim_end()))
                .with_hint("docs/guide/command.md lists the valid keys")
        })?;
        let shown = shown.to_string();
        let path = std::path::absolute(&path)?;
        let folder = path.parent().unwrap_or(Path::new("/")).to_owned();
        let mut file = Self {
            path,
            folder,
            spec,
            policy: AgentPolicy::default(),
            prices: None,
            context_policy: OnceLock::new(),
        };
        file.prices = file.load_prices()?;
        file.policy = AgentPolicy::parse(&shown, &text, &file.workspace_folder())?;
        Ok(file)
    }

    /// Returns true if a folder or file has an agent.
    pub(crate) fn has_agent(named: &Path) -> bool {
        if named.is_dir() {
            named.join(AGENT_FILE).is_file()
        } else {
            named.extension().is_some_and(|extension| extension == "toml") && named.is_file()
        }
    }

    /// Returns the absolute path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the name of the agent: from the file, or else that of the folder.
    pub(crate) fn name(&self) -> String {
        let of_folder = || self.folder.file_name().map(|name| name.to_string_lossy().into_owned());
        self.spec.name.clone().or_else(of_folder).unwrap_or_else(|| "agent".to_owned())
    }

    /// Returns the model servers of the file, by name.
    pub(crate) fn providers(&self) -> &ProviderSpecs {
        &self.spec.providers
    }

    /// Returns the name of the model in the file.
    pub(crate) fn model_name(&self) -> Option<&str> {
        self.spec.model.as_deref()
    }

    /// Returns the name of the model that the agent uses: the one in the file, or else the one in `WINDLASS_MODEL`.
    pub(crate) fn effective_model_name(&self) -> Option<String> {
        let from_environment = || std::env::var(MODEL_VARIABLE).ok().filter(|model| !model.is_empty());
        self.model_name().map(str::to_owned).or_else(from_environment)
    }

    /// Builds the agent, with `model` in place of its own if given.
    pub(crate) async fn build_agent(&self, model: Option<&str>) -> Result<Agent, CliError> {
        let context_policy = self.spec.context.to_policy(&self.folder, &self.spec.providers)?;
        let _built_before = self.context_policy.set(context_policy);
        Ok(self.build_base().await?.model(self.resolve_model(model)?))
    }

    /// Builds the agent for a voice conversation, whose model is not the agent's own.
    #[cfg(feature = "talk")]
    pub(crate) async fn build_voice_agent(&self) -> Result<Agent, CliError> {
        self.build_base().await
    }

    /// Builds the agent without a model.
    async fn build_base(&self) -> Result<Agent, CliError> {
        let agent = mcp::connect_servers(Agent::new(self.name()), self.load_instructions()?, self).await?;
        Ok(agent.tools(self.load_tools().await?).model_settings(self.spec.settings.clone()))
    }

    /// Returns the tools with the policy applied.
    pub(crate) async fn load_tools(&self) -> Result<Vec<Tool>, CliError> {
        self.policy.apply_to(tools::find_tools(self)?, mcp::resource_tool_names(self))
    }

    /// Returns true if the agent has tools that work in the workspace.
    pub(crate) fn has_workspace_tools(&self) -> Result<bool, CliError> {
        tools::has_workspace_tools(self)
    }

    /// Returns the policy of the file.
    pub(crate) fn policy(&self) -> &AgentPolicy {
        &self.policy
    }

    /// Returns the approvers in the file, if there are any.
    pub(crate) fn approvers(&self) -> Result<Option<ApproverPolicy>, CliError> {
        let policy = self.spec.approvers.as_ref().map(ApproversSpec::to_policy).transpose();
        policy.map_err(|error| CliError::new(format!("`{}`: {error}", self.path.display())))
    }

    /// Lists the tools of the MCP servers, and the servers that cannot be reached.
    pub(crate) async fn list_mcp_tools(&self) -> Result<mcp::McpToolListing, CliError> {
        mcp::list_tools(self).await
    }

    /// Returns the messages of a prompt of an MCP server, `SERVER/NAME`, with arguments `NAME=VALUE`.
    pub(crate) async fn fetch_mcp_prompt(
        &self,
        prompt: &str,
        arguments: &[String],
    ) -> Result<Vec<Item>, CliError> {
        mcp::fetch_prompt(self, prompt, arguments).await
    }

    /// Previews the change that a call of one of the workspace's own tools would make to a file, for the approver; `None`
    /// for other tools.
    pub(crate) fn preview_change(&self, tool: &ToolKey, arguments: &str) -> Option<ChangePreview> {
        // The tool of a server or of a namespace is not the workspace's, whatever its name is.
        match tool {
            ToolKey::Bare(name) => tools::preview_change(self, name, arguments),
            ToolKey::Namespaced { .. } | ToolKey::Deferred(_) | ToolKey::Mcp { .. } => None,
        }
    }

    /// Returns the folder that the tools work in.
    pub(crate) fn workspace_folder(&self) -> PathBuf {
        match &self.spec.workspace {
            Some(folder) => self.folder.join(folder),
            None => self.folder.clone(),
        }
    }

    /// Resolves the model: `named`, or else the one in the file, or else the one in `WINDLASS_MODEL`.
    pub(crate) fn resolve_model(&self, named: Option<&str>) -> Result<SharedModel, CliError> {
        let named = named.map(str::to_owned).or_else(|| self.effective_model_name()).ok_or_else(|| {
            CliError::new(format!("agent `{}` has no model", self.name())).with_hint(
                "write `model = \"provider:name\"` in the agent file, pass --model provider:name, or set WINDLASS_MODEL",
            )
        })?;
        model::resolve_model(&named, &self.folder, &self.spec.providers)
    }

    /// Applies the limits of the file to a run.
    pub(crate) fn with_limits(&self, run: RunBuilder) -> RunBuilder {
        let limits = &self.spec.limits;
        let mut run = run
            .max_turns(limits.turns.unwrap_or(DEFAULT_MAX_TURNS))
            .lease_duration(limits.lease.map_or(DEFAULT_LEASE, HumanDuration::as_duration))
            // The command ends the attempts: a provider that is away does not fail the run. If it asks for a longer delay
            // than the command waits, the run is left at once.
            .model_retry(ModelRetryPolicy {
                max_attempts: u32::MAX,
                max_delay: MAX_RETRY_DELAY,
                max_provider_delay: self.provider_wait(),
                when_exhausted: RetriesExhausted::Leave,
                ..ModelRetryPolicy::default()
            });
        if let Some(concurrency) = limits.concurrency {
            run = run.max_concurrent_calls(concurrency);
        }
        if let Some(expiry) = limits.approvals_expire_after {
            run = run.approvals_expire_after(expiry.as_duration());
        }
        if let Some(policy) = self.context_policy.get() {
            run = run.context_policy(policy.clone());
        }
        if let Some(budget) = &self.spec.budget {
            run = run.budget(budget.to_budget());
        }
        if let Some(prices) = &self.prices {
            run = run.prices(prices.clone());
        }
        run
    }

    /// Applies the budget of sessions to a run that has one.
    pub(crate) fn with_session_budget(&self, run: RunBuilder) -> RunBuilder {
        match &self.spec.session_budget {
            Some(budget) => run.session_budget(budget.to_budget()),
            None => run,
        }
    }

    /// Returns the prices of models, if the file names others than the shipped ones.
    #[cfg(feature = "serve")]
    pub(crate) fn prices(&self) -> Option<&Arc<PriceList>> {
        self.prices.as_ref()
    }

    /// Returns the currency of the prices of models.
    pub(crate) fn currency(&self) -> String {
        self.prices
            .as_ref()
            .map_or_else(|| PriceList::shipped().currency.clone(), |prices| prices.currency.clone())
    }

    fn load_prices(&self) -> Result<Option<Arc<PriceList>>, CliError> {
        let Some(file) = &self.spec.prices_file else { return Ok(None) };
        let file = self.folder.join(file);
        let prices = PriceList::load(&file)
            .map_err(|error| CliError::new(format!("`{}`: {error}", file.display())))?;
        Ok(Some(Arc::new(prices)))
    }

    /// Returns the time for which a run waits for a provider that is away.
    pub(crate) fn provider_wait(&self) -> Duration {
        self.spec.limits.provider_wait.map_or(DEFAULT_PROVIDER_WAIT, HumanDuration::as_duration)
    }

    /// Applies the limits of the file to a voice conversation.
    #[cfg(feature = "talk")]
    pub(crate) fn with_voice_limits(
        &self,
        session: windlass_realtime::RealtimeSessionBuilder,
    ) -> windlass_realtime::RealtimeSessionBuilder {
        let limits = &self.spec.limits;
        let mut session =
            session.lease_duration(limits.lease.map_or(DEFAULT_LEASE, HumanDuration::as_duration));
        if let Some(concurrency) = limits.concurrency {
            session = session.max_concurrent_calls(concurrency);
        }
        if let Some(expiry) = limits.approvals_expire_after {
            session = session.approvals_expire_after(expiry.as_duration());
        }
        // A conversation is a session, and is covered by the budget of a run where there is no other.
        if let Some(budget) = self.spec.session_budget.as_ref().or(self.spec.budget.as_ref()) {
            session = session.budget(budget.to_budget());
        }
        if let Some(prices) = &self.prices {
            session = session.prices(prices.clone());
        }
        session
    }

    /// Reads the script of the file's model, if that is a scripted one.
    #[cfg(feature = "talk")]
    pub(crate) fn read_script(&self) -> Result<Option<ScriptFileModel>, CliError> {
        let named = self.model_name().and_then(|model| model.strip_prefix(model::SCRIPTED_PREFIX));
        named.map(|file| ScriptFileModel::read(&self.folder.join(file))).transpose()
    }

    fn load_instructions(&self) -> Result<Option<String>, CliError> {
        match (&self.spec.instructions, &self.spec.instructions_file) {
            (Some(_), Some(_)) => Err(CliError::new(format!(
                "`{}` has both `instructions` and `instructions_file`",
                self.path.display()
            ))
            .with_hint("keep one of them")),
            (Some(text), None) => Ok(Some(text.clone())),
            (None, Some(file)) => {
                let file = self.folder.join(file);
                let text = std::fs::read_to_string(&file);
                text.map(Some).map_err(|error| {
                    CliError::not_found(format!(
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
