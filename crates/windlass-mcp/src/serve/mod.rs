//! Tools and agents as an MCP server. Every call is a run: it is planned, guarded, decided about and journalled like a
//! call of an agent's own, and what waits for a person is asked through the client.

mod ask;
mod call;
mod changes;
mod content;
mod handler;
mod http;
mod model;
mod prompt;
mod resource;
mod task;
mod tell;

pub use ask::named_question;
pub use changes::Changes;
pub use prompt::{Argument, Message, Prompt};
pub use resource::{Contents, Resource};
pub use task::Tasks;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rmcp::ServiceExt;
use windlass::agent::ToolUse;
use windlass::core::{RunId, ToolKey};
use windlass::{Agent, IntoTool, IntoTools, Paused, Store};

use self::handler::Handler;
use self::task::Jobs;

/// How many calls may wait for a person between two requests of a client. The oldest is given up for another.
const MOST_HELD: usize = 256;

/// Tools and agents, to be served over MCP.
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
/// # async fn example() -> Result<(), windlass_mcp::ServeError> {
/// McpServer::new("weather").tools((weather,)).serve_stdio().await
/// # }
/// ```
pub struct McpServer<C = ()> {
    name: String,
    version: String,
    instructions: Option<String>,
    agent: Agent<C>,
    context: Arc<C>,
    store: Option<Arc<dyn Store>>,
    resources: Vec<Resource>,
    prompts: Vec<Prompt>,
    tasks: Tasks,
    tasks_for: BTreeMap<String, Tasks>,
    changes: Changes,
}

/// Why serving ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// A client did not begin as the protocol says.
    #[error("the client did not begin as it should: {0}")]
    Handshake(String),
    /// The network, or a pipe.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// What serves ended in a way that it should not.
    #[error("serving ended: {0}")]
    Ended(String),
}

impl McpServer {
    /// A server with a name, and no tools yet.
    pub fn new(name: impl Into<String>) -> Self {
        Self::with_context(name, ())
    }
}

impl<C: Send + Sync + 'static> McpServer<C> {
    /// A server whose tools have a context.
    pub fn with_context(name: impl Into<String>, context: impl Into<Arc<C>>) -> Self {
        let name = name.into();
        Self {
            agent: Agent::new(format!("mcp server {name}")).tool_use(ToolUse::StopOnFirst),
            name,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            instructions: None,
            context: context.into(),
            store: None,
            resources: Vec::new(),
            prompts: Vec::new(),
            tasks: Tasks::default(),
            tasks_for: BTreeMap::new(),
            changes: Changes::default(),
        }
    }

    /// The version that clients are told.
    #[must_use]
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = version.into();
        self
    }

    /// What clients are told about using it.
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

    /// Adds an agent as a tool: it is given text, and its final output is the result. What waits for a person inside
    /// it is asked through the client too.
    #[must_use]
    pub fn agent(self, agent: &Agent<C>, name: &str, description: &str) -> Self {
        self.tool(agent.as_tool(name, description))
    }

    /// Adds something that clients may read.
    #[must_use]
    pub fn resource(mut self, resource: Resource) -> Self {
        self.resources.push(resource);
        self
    }

    /// Tells clients that a resource has changed; to be kept before serving begins.
    pub fn changes(&self) -> Changes {
        self.changes.clone()
    }

    /// Adds a prompt that clients may ask for.
    #[must_use]
    pub fn prompt(mut self, prompt: Prompt) -> Self {
        self.prompts.push(prompt);
        self
    }

    /// When calls are answered with tasks that clients come back for. Without this: when they take long.
    #[must_use]
    pub fn tasks(mut self, tasks: Tasks) -> Self {
        self.tasks = tasks;
        self
    }

    /// The same for one tool, by the name that clients call it by.
    #[must_use]
    pub fn tasks_for(mut self, tool: &str, tasks: Tasks) -> Self {
        self.tasks_for.insert(tool.to_owned(), tasks);
        self
    }

    /// Where the journals of calls are kept. With a store, tasks and questions outlive this process, outputs that were
    /// too long to be told can be read whole, and decisions may also be made through it.
    #[must_use]
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = Some(store);
        self
    }

    /// Serves one client on standard input and output, until it is gone. Nothing else may write to standard output.
    pub async fn serve_stdio(self) -> Result<(), ServeError> {
        self.serve((tokio::io::stdin(), tokio::io::stdout())).await
    }

    /// Serves one client on any pair of a reader and a writer, until it is gone.
    pub async fn serve<R, W>(self, transport: (R, W)) -> Result<(), ServeError>
    where
        R: tokio::io::AsyncRead + Send + Unpin + 'static,
        W: tokio::io::AsyncWrite + Send + Unpin + 'static,
    {
        let served = Handler::new(Arc::new(self.served())).serve(transport).await;
        let running = served.map_err(|error| ServeError::Handshake(error.to_string()))?;
        running.waiting().await.map_err(|error| ServeError::Ended(error.to_string()))?;
        Ok(())
    }

    fn served(self) -> Served<C> {
        let tools =
            self.agent.tool_list().map(|tool| (served_name(tool.key()), tool.key().clone())).collect();
        Served {
            name: self.name,
            version: self.version,
            instructions: self.instructions,
            tools,
            agent: self.agent,
            context: self.context,
            store: self.store,
            resources: self.resources,
            prompts: self.prompts,
            tasks: self.tasks,
            tasks_for: self.tasks_for,
            changes: self.changes,
            held: Mutex::default(),
            jobs: Jobs::default(),
        }
    }
}

/// What a client calls a tool by.
fn served_name(key: &ToolKey) -> String {
    match key {
        ToolKey::Bare(name) | ToolKey::Deferred(name) => name.to_string(),
        ToolKey::Namespaced { namespace, name } => format!("{namespace}.{name}"),
        ToolKey::Mcp { server, name } => format!("{server}.{name}"),
    }
}

/// A server as all its clients share it.
struct Served<C> {
    name: String,
    version: String,
    instructions: Option<String>,
    tools: BTreeMap<String, ToolKey>,
    agent: Agent<C>,
    context: Arc<C>,
    store: Option<Arc<dyn Store>>,
    resources: Vec<Resource>,
    prompts: Vec<Prompt>,
    tasks: Tasks,
    tasks_for: BTreeMap<String, Tasks>,
    changes: Changes,
    jobs: Jobs,
    /// Calls that wait for a client to come back with an answer, by the word that it was given.
    held: Mutex<VecDeque<(String, Paused)>>,
}

impl<C: Send + Sync + 'static> Served<C> {
    fn tasks_of(&self, tool: &str) -> Tasks {
        self.tasks_for.get(tool).copied().unwrap_or(self.tasks)
    }

    /// Whether there is anything that a client may offer a person.
    fn suggests(&self) -> bool {
        self.resources.iter().any(|resource| !resource.suggestions.is_empty())
            || self.prompts.iter().any(Prompt::suggests)
    }

    /// Keeps a call until the client comes back. The word is not to be guessed, and stands for one question once.
    fn hold(&self, paused: Paused) -> String {
        let word = word_for(&paused);
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.len() == MOST_HELD {
            held.pop_front();
        }
        held.push_back((word.clone(), paused));
        word
    }

    /// The call that waits under a word: held here, or in the store where another process held it.
    async fn take(&self, word: &str) -> Option<Paused> {
        {
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            let at = held.iter().position(|(other, _)| other == word);
            if let Some(at) = at {
                return held.remove(at).map(|(_, paused)| paused);
            }
        }
        let (run, _) = word.rsplit_once('.')?;
        let stored = windlass::store::paused(&**self.store.as_ref()?, &RunId::new(run)).await.ok()?;
        let is_ours = stored.record().last_agent() == self.agent.name();
        (is_ours && word_for(&stored) == word && !stored.pending().is_empty()).then_some(stored)
    }
}

/// A run's id is not to be guessed, and how far it has come tells its questions apart.
fn word_for(paused: &Paused) -> String {
    format!("{}.{}", paused.record().run_id(), paused.record().journal().len())
}

impl<C> fmt::Debug for McpServer<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpServer").field("name", &self.name).finish_non_exhaustive()
    }
}
