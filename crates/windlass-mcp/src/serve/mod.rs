//! The MCP server: exposes tools and agents to MCP clients.
//!
//! **Invariant:** every call is a run, with the same planning, guardrails, approvals and journal as a call of an
//! agent's own. A call that waits for a person elicits the answer through the client.

mod call;
mod caller;
mod content;
mod elicitation;
mod handler;
mod http;
mod http_auth;
mod http_connections;
mod http_sessions;
mod keyed_calls;
mod model;
mod notify;
mod prompt;
mod resource;
mod resource_updates;
mod task;

pub use elicitation::named_question;
pub use http::HttpLimits;
pub use http_auth::{McpAuthRefusal, McpClientIdentity, McpHttpRequest};
pub use prompt::{McpPrompt, McpPromptArgument, McpPromptMessage};
pub use resource::{McpResource, McpResourceContents};
pub use resource_updates::ResourceUpdateNotifier;
pub use task::TaskPolicy;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rmcp::ServiceExt;
use tokio::sync::Semaphore;
use windlass::agent::ToolUsePolicy;
use windlass::core::{id::RunId, tool::ToolKey};
use windlass::{
    agent::Agent,
    run::PausedRun,
    store::Store,
    tool::{IntoTool, IntoTools},
};

use self::caller::RequestCaller;
use self::handler::McpServerHandler;
use self::http_auth::Authenticator;
use self::keyed_calls::KeyedCallTable;
use self::task::ServerTaskTable;

/// Maximum number of calls that wait for a person between two requests; beyond it the oldest is dropped.
const MAX_HELD_CALLS: usize = 256;

/// Maximum number of calls that go on although their client has lost its connection; beyond it, the next one is
/// cancelled.
const MAX_UNATTENDED_CALLS: usize = 256;

/// An MCP server of tools and agents.
///
/// ```no_run
/// use windlass::prelude::*;
/// use windlass_mcp::McpServer;
///
/// /// Current weather for a city.
/// #[tool(effect = pure)]
/// async fn weather(city: String) -> String {
///     format!("rain in {city}")
/// }
///
/// # async fn example() -> Result<(), windlass_mcp::McpServeError> {
/// McpServer::new("weather").tool(weather).serve_stdio().await
/// # }
/// ```
pub struct McpServer<C = ()> {
    name: String,
    version: String,
    instructions: Option<String>,
    agent: Agent<C>,
    context: Arc<C>,
    store: Option<Arc<dyn Store>>,
    resources: Vec<McpResource>,
    prompts: Vec<McpPrompt>,
    task_policy: TaskPolicy,
    task_policies: BTreeMap<String, TaskPolicy>,
    update_notifier: ResourceUpdateNotifier,
    authenticator: Option<Authenticator>,
    client_context: Option<ClientContextFn<C>>,
    allowed_hosts: Vec<String>,
    http_limits: HttpLimits,
}

/// A function that returns the application's context for a client.
type ClientContextFn<C> = Arc<dyn Fn(&McpClientIdentity) -> Arc<C> + Send + Sync>;

/// An error that ended serving.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum McpServeError {
    /// The handshake with the client failed.
    #[error("the handshake with the client failed: {0}")]
    Handshake(String),
    /// An I/O error of the transport.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The task that serves the client was aborted or panicked.
    #[error("serving was aborted: {0}")]
    Aborted(String),
}

impl McpServer {
    /// Creates a server without tools.
    pub fn new(name: impl Into<String>) -> Self {
        Self::with_context(name, ())
    }
}

impl<C: Send + Sync + 'static> McpServer<C> {
    /// Creates a server whose tools share a context.
    pub fn with_context(name: impl Into<String>, context: impl Into<Arc<C>>) -> Self {
        let name = name.into();
        Self {
            agent: Agent::new(format!("mcp server {name}")).tool_use_policy(ToolUsePolicy::StopOnFirstTool),
            name,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            instructions: None,
            context: context.into(),
            store: None,
            resources: Vec::new(),
            prompts: Vec::new(),
            task_policy: TaskPolicy::default(),
            task_policies: BTreeMap::new(),
            update_notifier: ResourceUpdateNotifier::default(),
            authenticator: None,
            client_context: None,
            allowed_hosts: Vec::new(),
            http_limits: HttpLimits::default(),
        }
    }

    /// Sets the server version that clients see. Default: the version of this crate.
    #[must_use]
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = version.into();
        self
    }

    /// Sets the usage instructions for clients.
    #[must_use]
    pub fn instructions(mut self, text: impl Into<String>) -> Self {
        self.instructions = Some(text.into());
        self
    }

    /// Adds tools.
    #[must_use]
    pub fn tools(mut self, tools: impl IntoTools<C>) -> Self {
        self.agent = self.agent.tools(tools);
        self
    }

    /// Adds one tool.
    #[must_use]
    pub fn tool(mut self, tool: impl IntoTool<C>) -> Self {
        self.agent = self.agent.tool(tool);
        self
    }

    /// Adds an agent as a tool: its argument is the input text, its result the agent's final output. Calls
    /// inside the agent that wait for a person elicit the answer through the client too.
    #[must_use]
    pub fn agent(self, agent: &Agent<C>, name: &str, description: &str) -> Self {
        self.tool(agent.as_tool(name, description))
    }

    /// Adds a resource that clients can read.
    #[must_use]
    pub fn resource(mut self, resource: McpResource) -> Self {
        self.resources.push(resource);
        self
    }

    /// Returns the notifier of resource updates; take it before serving begins.
    pub fn resource_updates(&self) -> ResourceUpdateNotifier {
        self.update_notifier.clone()
    }

    /// Adds a prompt that clients can get.
    #[must_use]
    pub fn prompt(mut self, prompt: McpPrompt) -> Self {
        self.prompts.push(prompt);
        self
    }

    /// Sets the task policy: which calls are answered with a task that the client polls. Default: calls that take
    /// longer than 10 seconds.
    #[must_use]
    pub fn task_policy(mut self, tasks: TaskPolicy) -> Self {
        self.task_policy = tasks;
        self
    }

    /// Sets the task policy of one tool, by the name that clients use.
    #[must_use]
    pub fn task_policy_for(mut self, tool: &str, tasks: TaskPolicy) -> Self {
        self.task_policies.insert(tool.to_owned(), tasks);
        self
    }

    /// Sets the store of the calls' journals. With a store, tasks and questions survive this process, truncated
    /// outputs can be read in full, and approvers can also decide through the store.
    #[must_use]
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = Some(store);
        self
    }

    /// Sets the function that authenticates every HTTP request. Sessions, tasks, held calls, idempotency keys and
    /// full outputs then belong to the identity that created them. Without it, everybody who reaches the listener is
    /// served.
    #[must_use]
    pub fn authenticate<Fut>(
        mut self,
        authenticate: impl Fn(McpHttpRequest) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = Result<McpClientIdentity, McpAuthRefusal>> + Send + 'static,
    {
        self.authenticator = Some(http_auth::new_authenticator(authenticate));
        self
    }

    /// Sets the function that returns the context of an authenticated client's calls. By default all clients share the
    /// server's context.
    #[must_use]
    pub fn client_context(
        mut self,
        context: impl Fn(&McpClientIdentity) -> Arc<C> + Send + Sync + 'static,
    ) -> Self {
        self.client_context = Some(Arc::new(context));
        self
    }

    /// Accepts HTTP requests for these hosts (`name` or `name:port`) besides the loopback ones.
    #[must_use]
    pub fn allowed_hosts<S: Into<String>>(mut self, hosts: impl IntoIterator<Item = S>) -> Self {
        self.allowed_hosts.extend(hosts.into_iter().map(Into::into));
        self
    }

    /// Sets the limits of serving over HTTP.
    #[must_use]
    pub fn http_limits(mut self, limits: HttpLimits) -> Self {
        self.http_limits = limits;
        self
    }

    /// Serves one client on standard input and output until it disconnects. Nothing else may write to
    /// standard output.
    ///
    /// # Errors
    ///
    /// Returns an error if the handshake fails or serving is aborted.
    pub async fn serve_stdio(self) -> Result<(), McpServeError> {
        self.serve((tokio::io::stdin(), tokio::io::stdout())).await
    }

    /// Serves one client on a reader and a writer until it disconnects.
    ///
    /// # Errors
    ///
    /// Returns an error if the handshake fails or serving is aborted.
    pub async fn serve<R, W>(self, transport: (R, W)) -> Result<(), McpServeError>
    where
        R: tokio::io::AsyncRead + Send + Unpin + 'static,
        W: tokio::io::AsyncWrite + Send + Unpin + 'static,
    {
        let served = McpServerHandler::new(Arc::new(self.into_shared())).serve(transport).await;
        let running = served.map_err(|error| McpServeError::Handshake(error.to_string()))?;
        running.waiting().await.map_err(|error| McpServeError::Aborted(error.to_string()))?;
        Ok(())
    }

    fn into_shared(self) -> SharedMcpServer<C> {
        let tools =
            self.agent.tool_list().map(|tool| (exposed_name(tool.key()), tool.key().clone())).collect();
        SharedMcpServer {
            name: self.name,
            version: self.version,
            instructions: self.instructions,
            tools,
            agent: self.agent,
            context: self.context,
            store: self.store,
            resources: self.resources,
            prompts: self.prompts,
            task_policy: self.task_policy,
            task_policies: self.task_policies,
            update_notifier: self.update_notifier,
            authenticator: self.authenticator,
            client_context: self.client_context,
            allowed_hosts: self.allowed_hosts,
            http_limits: self.http_limits,
            held_calls: Mutex::default(),
            parked_calls: Mutex::default(),
            keyed_calls: KeyedCallTable::default(),
            unattended_calls: Arc::new(Semaphore::new(MAX_UNATTENDED_CALLS)),
            task_table: ServerTaskTable::default(),
        }
    }
}

/// Returns the name of a tool for clients.
fn exposed_name(key: &ToolKey) -> String {
    match key {
        ToolKey::Bare(name) | ToolKey::Deferred(name) => name.to_string(),
        ToolKey::Namespaced { namespace, name } => format!("{namespace}.{name}"),
        ToolKey::Mcp { server, name, .. } => format!("{server}.{name}"),
    }
}

/// The state of a server that all its clients share.
struct SharedMcpServer<C> {
    name: String,
    version: String,
    instructions: Option<String>,
    tools: BTreeMap<String, ToolKey>,
    agent: Agent<C>,
    context: Arc<C>,
    store: Option<Arc<dyn Store>>,
    resources: Vec<McpResource>,
    prompts: Vec<McpPrompt>,
    task_policy: TaskPolicy,
    task_policies: BTreeMap<String, TaskPolicy>,
    update_notifier: ResourceUpdateNotifier,
    authenticator: Option<Authenticator>,
    client_context: Option<ClientContextFn<C>>,
    allowed_hosts: Vec<String>,
    http_limits: HttpLimits,
    task_table: ServerTaskTable,
    keyed_calls: KeyedCallTable,
    /// The permits of calls whose client has lost its connection.
    unattended_calls: Arc<Semaphore>,
    /// Calls that wait for a person whom nobody could ask, by their parking name.
    parked_calls: Mutex<VecDeque<(String, PausedRun)>>,
    /// Calls that wait for a client's answer, by their request state token.
    held_calls: Mutex<VecDeque<(String, PausedRun)>>,
}

impl<C: Send + Sync + 'static> SharedMcpServer<C> {
    fn task_policy_of(&self, tool: &str) -> TaskPolicy {
        self.task_policies.get(tool).copied().unwrap_or(self.task_policy)
    }

    /// Returns true if a resource or a prompt has suggestions for `completion/complete`.
    fn has_suggestions(&self) -> bool {
        self.resources.iter().any(|resource| !resource.suggestions.is_empty())
            || self.prompts.iter().any(McpPrompt::has_suggestions)
    }

    /// Holds a call until the client answers, and returns its request state token. The token is unguessable, and
    /// valid once and for one set of questions.
    fn hold_call(&self, paused: PausedRun) -> String {
        let word = request_state_token(&paused);
        let mut held = self.held_calls.lock().unwrap_or_else(PoisonError::into_inner);
        if held.len() == MAX_HELD_CALLS {
            held.pop_front();
        }
        held.push_back((word.clone(), paused));
        word
    }

    /// Keeps a call that waits for a person, until the client repeats it.
    fn park_call(&self, name: &str, paused: PausedRun) {
        let mut parked = self.parked_calls.lock().unwrap_or_else(PoisonError::into_inner);
        if parked.len() == MAX_HELD_CALLS {
            parked.pop_front();
        }
        parked.push_back((name.to_owned(), paused));
    }

    fn take_parked_call(&self, name: &str) -> Option<PausedRun> {
        let mut parked = self.parked_calls.lock().unwrap_or_else(PoisonError::into_inner);
        let at = parked.iter().position(|(other, _)| other == name)?;
        parked.remove(at).map(|(_, paused)| paused)
    }

    /// Takes the call of a run that waits for a client's answer.
    fn take_held_call_of(&self, run: &RunId) -> Option<PausedRun> {
        let mut held = self.held_calls.lock().unwrap_or_else(PoisonError::into_inner);
        let at = held.iter().position(|(_, paused)| paused.record().run_id() == run)?;
        held.remove(at).map(|(_, paused)| paused)
    }

    /// Takes the call that waits under a token, from memory or, if another process held it, from the store.
    async fn take_held_call(&self, word: &str, caller: &RequestCaller<C>) -> Option<PausedRun> {
        if !caller.owns(word) {
            return None;
        }
        {
            let mut held = self.held_calls.lock().unwrap_or_else(PoisonError::into_inner);
            let at = held.iter().position(|(other, _)| other == word);
            if let Some(at) = at {
                return held.remove(at).map(|(_, paused)| paused);
            }
        }
        let (run, _) = word.rsplit_once('.')?;
        let stored = windlass::store::load_paused(&**self.store.as_ref()?, &RunId::new(run)).await.ok()?;
        let is_ours = stored.record().last_agent() == self.agent.name();
        (is_ours && request_state_token(&stored) == word && !stored.pending_calls().is_empty())
            .then_some(stored)
    }
}

/// Returns the request state token of a paused run: its unguessable id, and the journal length, which
/// distinguishes its successive questions.
fn request_state_token(paused: &PausedRun) -> String {
    format!("{}.{}", paused.record().run_id(), paused.record().journal().len())
}

impl<C> fmt::Debug for McpServer<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpServer").field("name", &self.name).finish_non_exhaustive()
    }
}
