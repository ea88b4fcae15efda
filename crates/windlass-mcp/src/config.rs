//! The configuration of MCP servers, from code or from a `.mcp.json` file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use windlass_net::HttpTransport;

use crate::client::{ProtocolEra, SamplingRequest, SamplingResponse, ServerRequestPolicy};
use crate::variables::VariableExpander;

/// Default time to connect and to list the tools.
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Default time for one call.
const DEFAULT_CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// Default time for a call that became a task.
const DEFAULT_TASK_TIMEOUT: Duration = Duration::from_secs(3600);
/// Maximum size of a configuration file, in bytes.
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;

/// A set of server configurations, and the entries that are disabled, with the reason.
#[derive(Clone, Debug, Default)]
pub struct McpConfig {
    pub(crate) servers: Vec<McpServerConfig>,
    pub(crate) disabled: Vec<DisabledServer>,
}

/// A server that is disabled or whose configuration is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DisabledServer {
    /// The server's name.
    pub server: String,
    /// The reason.
    pub reason: String,
}

/// An error of reading a configuration file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum McpConfigError {
    /// The file cannot be read.
    #[error("{path} cannot be read: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// The file exceeds the maximum size of 4 MiB.
    #[error("{path} is too large for a configuration file: {bytes} bytes")]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The size of the file.
        bytes: u64,
    },
    /// The file is not JSON.
    #[error("{path} is not JSON: {source}")]
    Json {
        /// The file.
        path: PathBuf,
        /// The parse error, with its position.
        source: serde_json::Error,
    },
    /// The file has no `mcpServers` object.
    #[error(
        "{path} has no object `mcpServers`; hint: {{\"mcpServers\": {{\"name\": {{\"command\": \"…\"}}}}}}"
    )]
    NoServers {
        /// The file.
        path: PathBuf,
    },
}

impl McpConfig {
    /// Creates an empty configuration.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads a `.mcp.json` file and expands the environment variables of this process. An entry that is
    /// invalid, or that needs a variable that is not set, is disabled with the reason; the other entries are
    /// unaffected.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, is too large, is not JSON or has no `mcpServers` object.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, McpConfigError> {
        let path = path.as_ref();
        let failed = |source| McpConfigError::Read { path: path.to_owned(), source };
        let bytes = std::fs::metadata(path).map_err(failed)?.len();
        if bytes > MAX_FILE_BYTES {
            return Err(McpConfigError::TooLong { path: path.to_owned(), bytes });
        }
        let text = std::fs::read_to_string(path).map_err(failed)?;
        Self::parse(&text, path, &|name| std::env::var(name).ok())
    }

    /// Parses the text of a `.mcp.json` file, as [`McpConfig::read`], with a custom lookup of variables.
    ///
    /// # Errors
    ///
    /// Returns an error if the text is not JSON or has no `mcpServers` object.
    pub fn from_text(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, McpConfigError> {
        Self::parse(text, Path::new("the configuration"), variable)
    }

    fn parse(
        text: &str,
        path: &Path,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, McpConfigError> {
        let whole: Value = serde_json::from_str(text)
            .map_err(|source| McpConfigError::Json { path: path.to_owned(), source })?;
        let Some(Value::Object(servers)) = whole.get("mcpServers") else {
            return Err(McpConfigError::NoServers { path: path.to_owned() });
        };
        let mut config = Self::default();
        for (name, server) in servers {
            match McpServerConfig::parse(name, server, &VariableExpander { lookup: variable }) {
                Ok(server) => config.servers.push(server),
                Err(why) => config.disabled.push(DisabledServer { server: name.clone(), reason: why }),
            }
        }
        Ok(config)
    }

    /// Adds a server, replacing one of the same name.
    #[must_use]
    pub fn server(mut self, server: McpServerConfig) -> Self {
        self.servers.retain(|other| other.name != server.name);
        self.disabled.retain(|other| *other.server != *server.name);
        self.servers.push(server);
        self
    }

    /// Returns the enabled servers.
    pub fn servers(&self) -> &[McpServerConfig] {
        &self.servers
    }

    /// Changes the configuration of one server, for example to trust it; does nothing if there is no such server.
    #[must_use]
    pub fn update_server(
        mut self,
        name: &str,
        change: impl FnOnce(McpServerConfig) -> McpServerConfig,
    ) -> Self {
        if let Some(at) = self.servers.iter().position(|server| *server.name == *name) {
            let server = self.servers.remove(at);
            self.servers.insert(at, change(server));
        }
        self
    }

    /// Returns the disabled servers, with the reasons.
    pub fn disabled(&self) -> &[DisabledServer] {
        &self.disabled
    }
}

/// The configuration of one server: its transport, timeouts, trust and tool selection.
#[derive(Clone)]
pub struct McpServerConfig {
    pub(crate) name: Arc<str>,
    pub(crate) transport: McpTransport,
    pub(crate) trust: ServerTrust,
    /// True if the model searches for the tools instead of reading all of them.
    pub(crate) has_deferred_tools: bool,
    pub(crate) era: Option<ProtocolEra>,
    pub(crate) connect_timeout: Duration,
    pub(crate) call_timeout: Duration,
    pub(crate) task_timeout: Duration,
    pub(crate) included_tools: Option<BTreeSet<String>>,
    pub(crate) excluded_tools: BTreeSet<String>,
    pub(crate) server_requests: ServerRequestPolicy,
}

/// The transport to a server.
#[derive(Clone)]
pub(crate) enum McpTransport {
    Stdio(StdioTransportConfig),
    Http(HttpTransportConfig),
}

#[derive(Clone)]
pub(crate) struct StdioTransportConfig {
    pub(crate) command: String,
    pub(crate) args: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) inheritance: EnvironmentInheritance,
    pub(crate) cwd: Option<PathBuf>,
}

/// The part of this process's environment that a server process inherits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EnvironmentInheritance {
    AllowList,
    FullEnvironment,
}

#[derive(Clone)]
pub(crate) struct HttpTransportConfig {
    pub(crate) url: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) auth: Option<crate::client::McpAuth>,
    pub(crate) dialect: HttpDialect,
    pub(crate) http_client: Option<Arc<dyn HttpTransport>>,
}

/// The transport over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpDialect {
    /// Streamable HTTP; the older transport is tried if the server refuses it.
    Streamable,
    /// An event stream and a URL for messages, from before streamable HTTP.
    LegacySse,
}

/// The user's trust in a server's annotations of its own tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServerTrust {
    /// Annotations are ignored: every call is treated as at-most-once and, by default, requires approval.
    #[default]
    Untrusted,
    /// Annotations such as read-only and idempotent are believed.
    Trusted,
}

impl McpServerConfig {
    /// Creates the configuration of a server that runs as a child process, over standard input and output.
    pub fn stdio(name: impl Into<Arc<str>>, command: impl Into<String>) -> Self {
        Self::new(
            name.into(),
            McpTransport::Stdio(StdioTransportConfig {
                command: command.into(),
                args: Vec::new(),
                env: BTreeMap::new(),
                inheritance: EnvironmentInheritance::AllowList,
                cwd: None,
            }),
        )
    }

    /// Creates the configuration of a server at a URL, over streamable HTTP.
    pub fn http(name: impl Into<Arc<str>>, url: impl Into<String>) -> Self {
        let http = HttpTransportConfig {
            url: url.into(),
            headers: BTreeMap::new(),
            auth: None,
            dialect: HttpDialect::Streamable,
            http_client: None,
        };
        Self::new(name.into(), McpTransport::Http(http))
    }

    fn new(name: Arc<str>, transport: McpTransport) -> Self {
        Self {
            name,
            transport,
            trust: ServerTrust::Untrusted,
            has_deferred_tools: false,
            era: None,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            call_timeout: DEFAULT_CALL_TIMEOUT,
            task_timeout: DEFAULT_TASK_TIMEOUT,
            included_tools: None,
            excluded_tools: BTreeSet::new(),
            server_requests: ServerRequestPolicy::default(),
        }
    }

    /// Adds arguments of the program. No effect on an HTTP server.
    #[must_use]
    pub fn args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        if let McpTransport::Stdio(stdio) = &mut self.transport {
            stdio.args.extend(args.into_iter().map(Into::into));
        }
        self
    }

    /// Sets an environment variable of the program. From this process it inherits only an allow-list of variables,
    /// such as `PATH` and `HOME`, so that secrets do not leak to servers.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        if let McpTransport::Stdio(stdio) = &mut self.transport {
            stdio.env.insert(name.into(), value.into());
        }
        self
    }

    /// Lets the program inherit this process's whole environment.
    #[must_use]
    pub fn inherit_env(mut self) -> Self {
        if let McpTransport::Stdio(stdio) = &mut self.transport {
            stdio.inheritance = EnvironmentInheritance::FullEnvironment;
        }
        self
    }

    /// Sets the working directory of the program.
    #[must_use]
    pub fn cwd(mut self, folder: impl Into<PathBuf>) -> Self {
        if let McpTransport::Stdio(stdio) = &mut self.transport {
            stdio.cwd = Some(folder.into());
        }
        self
    }

    /// Adds a header to every HTTP request. Its value is never logged or shown.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        if let McpTransport::Http(http) = &mut self.transport {
            http.headers.insert(name.into(), value.into());
        }
        self
    }

    /// Sets the HTTP client: an [`HttpClient`](crate::net::HttpClient) with other proxies or certificates, or the
    /// application's own. The default client uses the proxies of the environment. No effect on a child process.
    #[must_use]
    pub fn http_client(mut self, client: impl HttpTransport) -> Self {
        if let McpTransport::Http(http) = &mut self.transport {
            http.http_client = Some(Arc::new(client));
        }
        self
    }

    /// Sets the authorisation of an HTTP server.
    #[must_use]
    pub fn auth(mut self, auth: crate::client::McpAuth) -> Self {
        if let McpTransport::Http(http) = &mut self.transport {
            http.auth = Some(auth);
        }
        self
    }

    /// Trusts the server's annotations: a call of a read-only tool may be repeated after a crash, and requires no
    /// approval unless the policy demands it.
    #[must_use]
    pub fn trusted(mut self) -> Self {
        self.trust = ServerTrust::Trusted;
        self
    }

    /// Defers the server's tools: a model with hundreds of tools searches for those that it needs
    /// ([`Tool::deferred`](windlass::tool::Tool::deferred)).
    #[must_use]
    pub fn deferred_tools(mut self) -> Self {
        self.has_deferred_tools = true;
        self
    }

    /// Sets the server's protocol era. By default it is detected; a server that responds to unknown methods can
    /// mislead the detection.
    #[must_use]
    pub fn era(mut self, era: ProtocolEra) -> Self {
        self.era = Some(era);
        self
    }

    /// Sets the maximum time to connect and to list the tools. Default: 30 seconds.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets the maximum time for one call, after which it is cancelled at the server. Default: 2 minutes.
    #[must_use]
    pub fn call_timeout(mut self, timeout: Duration) -> Self {
        self.call_timeout = timeout;
        self
    }

    /// Sets the maximum time for a call that became a task, counted from the moment this process starts to
    /// poll it; then the task is cancelled at the server. Default: 1 hour.
    #[must_use]
    pub fn task_timeout(mut self, timeout: Duration) -> Self {
        self.task_timeout = timeout;
        self
    }

    /// Uses the HTTP+SSE transport from before streamable HTTP at once. By default it is tried after the server refused
    /// streamable HTTP. No effect on a child process.
    #[must_use]
    pub fn legacy_sse(mut self) -> Self {
        if let McpTransport::Http(http) = &mut self.transport {
            http.dialect = HttpDialect::LegacySse;
        }
        self
    }

    /// Names a folder to the server as one of its roots. By default the server is not offered any roots.
    #[must_use]
    pub fn root(mut self, folder: impl AsRef<Path>) -> Self {
        self.server_requests.add_root(folder.as_ref());
        self
    }

    /// Sets the function that answers the server's requests for a model response (sampling). By default the server is
    /// not offered sampling.
    #[must_use]
    pub fn sampling<Fut>(mut self, handler: impl Fn(SamplingRequest) -> Fut + Send + Sync + 'static) -> Self
    where
        Fut: Future<Output = Result<SamplingResponse, String>> + Send + 'static,
    {
        self.server_requests.set_sampling(handler);
        self
    }

    /// Offers only the given tools of the server.
    #[must_use]
    pub fn include_tools<S: Into<String>>(mut self, tools: impl IntoIterator<Item = S>) -> Self {
        self.included_tools.get_or_insert_default().extend(tools.into_iter().map(Into::into));
        self
    }

    /// Hides the given tools of the server.
    #[must_use]
    pub fn exclude_tools<S: Into<String>>(mut self, tools: impl IntoIterator<Item = S>) -> Self {
        self.excluded_tools.extend(tools.into_iter().map(Into::into));
        self
    }

    /// Returns the server's name, which identifies its tools among those of other servers.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns true if a person may have to authorise a connection.
    pub(crate) fn uses_oauth(&self) -> bool {
        matches!(
            &self.transport,
            McpTransport::Http(HttpTransportConfig { auth: Some(crate::client::McpAuth::OAuth(_)), .. })
        )
    }

    pub(crate) fn allows_tool(&self, tool: &str) -> bool {
        self.included_tools.as_ref().is_none_or(|included| included.contains(tool))
            && !self.excluded_tools.contains(tool)
    }

    /// Parses one entry of a `.mcp.json` file. Unknown keys are ignored, because other programs have their
    /// own. Keys that lift approvals or grant trust are ignored on purpose: a file that comes with a project
    /// must not do that.
    fn parse(name: &str, value: &Value, variables: &VariableExpander<'_>) -> Result<Self, String> {
        let Value::Object(server) = value else { return Err("must be an object".to_owned()) };
        if server.get("disabled") == Some(&Value::Bool(true)) {
            return Err("it is switched off (`disabled`)".to_owned());
        }
        let text = |key: &str| string_at(server, key, variables);
        let kind = text("type")?;
        let mut config = match (kind.as_deref(), text("command")?, text("url")?) {
            (None | Some("stdio"), Some(command), None) => Self::stdio(name, command),
            (None | Some("http" | "streamable-http" | "streamableHttp"), None, Some(url)) => {
                Self::http(name, url)
            }
            (Some("sse"), None, Some(url)) => Self::http(name, url).legacy_sse(),
            (Some(other), None, None) => return Err(format!("`type` is `{other}`, which is not known")),
            (_, Some(_), Some(_)) => return Err("it has both `command` and `url`".to_owned()),
            (_, None, None) => return Err("it has neither `command` nor `url`".to_owned()),
            (Some(kind), ..) => {
                return Err(format!("`type` is `{kind}`, and the other keys belong to another type"));
            }
        };
        config = config.args(strings_at(server, "args", variables)?.unwrap_or_default());
        for (name, value) in string_map_at(server, "env", variables)? {
            config = config.env(name, value);
        }
        for (name, value) in string_map_at(server, "headers", variables)? {
            config = config.header(name, value);
        }
        if let Some(folder) = text("cwd")? {
            config = config.cwd(folder);
        }
        if let Some(tools) = strings_at(server, "includeTools", variables)? {
            config = config.include_tools(tools);
        }
        Ok(config.exclude_tools(strings_at(server, "excludeTools", variables)?.unwrap_or_default()))
    }
}

/// Shows only the names of variables and headers, because their values are often secret.
impl fmt::Debug for McpServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("McpServerConfig");
        shown.field("name", &self.name).field("trust", &self.trust);
        match &self.transport {
            McpTransport::Stdio(stdio) => shown
                .field("command", &stdio.command)
                .field("args", &stdio.args.len())
                .field("env", &stdio.env.keys().collect::<Vec<_>>()),
            McpTransport::Http(http) => {
                let address = http.url.split(['?', '#']).next().unwrap_or_default();
                shown.field("url", &address).field("headers", &http.headers.keys().collect::<Vec<_>>())
            }
        };
        shown.finish_non_exhaustive()
    }
}

fn string_at(
    server: &Map<String, Value>,
    key: &str,
    variables: &VariableExpander<'_>,
) -> Result<Option<String>, String> {
    match server.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => variables.expand(text).map(Some),
        Some(_) => Err(format!("`{key}` must be a string")),
    }
}

fn strings_at(
    server: &Map<String, Value>,
    key: &str,
    variables: &VariableExpander<'_>,
) -> Result<Option<Vec<String>>, String> {
    let wrong = || format!("`{key}` must be a list of strings");
    match server.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Array(texts)) => texts
            .iter()
            .map(|text| variables.expand(text.as_str().ok_or_else(wrong)?))
            .collect::<Result<_, _>>()
            .map(Some),
        Some(_) => Err(wrong()),
    }
}

fn string_map_at(
    server: &Map<String, Value>,
    key: &str,
    variables: &VariableExpander<'_>,
) -> Result<Vec<(String, String)>, String> {
    let wrong = || format!("`{key}` must be an object of strings");
    match server.get(key) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Object(pairs)) => pairs
            .iter()
            .map(|(name, value)| Ok((name.clone(), variables.expand(value.as_str().ok_or_else(wrong)?)?)))
            .collect(),
        Some(_) => Err(wrong()),
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
