//! Which servers there are: from code, or from a `.mcp.json`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::client::Era;
use crate::vars::Variables;

/// How long a server has to come up.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long one call may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a task may take that a call became.
const TASK_TIMEOUT: Duration = Duration::from_secs(3600);
/// The longest file that is read.
const LONGEST_FILE: u64 = 4 * 1024 * 1024;

/// The servers that an agent is to have, and those that it cannot have, with the reason.
#[derive(Clone, Debug, Default)]
pub struct Config {
    pub(crate) servers: Vec<ServerConfig>,
    pub(crate) disabled: Vec<Disabled>,
}

/// A server that is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disabled {
    /// Its name.
    pub server: String,
    /// Why.
    pub why: String,
}

/// Why a configuration cannot be read at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigFileError {
    /// The file cannot be read.
    #[error("{path} cannot be read: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// It is too long to be a configuration.
    #[error("{path} is {bytes} bytes long, which no configuration is")]
    TooLong {
        /// The file.
        path: PathBuf,
        /// How long it is.
        bytes: u64,
    },
    /// It is not JSON.
    #[error("{path} is not JSON: {source}")]
    Json {
        /// The file.
        path: PathBuf,
        /// Where, and what was wrong.
        source: serde_json::Error,
    },
    /// It has no servers in the form that is known.
    #[error(
        "{path} has no object `mcpServers`; hint: {{\"mcpServers\": {{\"name\": {{\"command\": \"…\"}}}}}}"
    )]
    NoServers {
        /// The file.
        path: PathBuf,
    },
}

impl Config {
    /// No servers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads a `.mcp.json`, with the variables of this process. A server that is not as it should be, or that needs
    /// a variable that is not set, is left out alone, with the reason.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ConfigFileError> {
        let path = path.as_ref();
        let failed = |source| ConfigFileError::Read { path: path.to_owned(), source };
        let bytes = std::fs::metadata(path).map_err(failed)?.len();
        if bytes > LONGEST_FILE {
            return Err(ConfigFileError::TooLong { path: path.to_owned(), bytes });
        }
        let text = std::fs::read_to_string(path).map_err(failed)?;
        Self::parse(&text, path, &|name| std::env::var(name).ok())
    }

    /// As [`Config::read`], from text, with variables from elsewhere.
    pub fn from_text(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, ConfigFileError> {
        Self::parse(text, Path::new("the configuration"), variable)
    }

    fn parse(
        text: &str,
        path: &Path,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigFileError> {
        let whole: Value = serde_json::from_str(text)
            .map_err(|source| ConfigFileError::Json { path: path.to_owned(), source })?;
        let Some(Value::Object(servers)) = whole.get("mcpServers") else {
            return Err(ConfigFileError::NoServers { path: path.to_owned() });
        };
        let mut config = Self::default();
        for (name, server) in servers {
            match ServerConfig::parse(name, server, &Variables { look_up: variable }) {
                Ok(server) => config.servers.push(server),
                Err(why) => config.disabled.push(Disabled { server: name.clone(), why }),
            }
        }
        Ok(config)
    }

    /// And a server. One of the same name is replaced.
    #[must_use]
    pub fn server(mut self, server: ServerConfig) -> Self {
        self.servers.retain(|other| other.name != server.name);
        self.disabled.retain(|other| *other.server != *server.name);
        self.servers.push(server);
        self
    }

    /// The servers that are to be connected.
    pub fn servers(&self) -> &[ServerConfig] {
        &self.servers
    }

    /// Changes one server, where it is there: to trust it, or to give it more time.
    #[must_use]
    pub fn with(mut self, name: &str, change: impl FnOnce(ServerConfig) -> ServerConfig) -> Self {
        if let Some(at) = self.servers.iter().position(|server| *server.name == *name) {
            let server = self.servers.remove(at);
            self.servers.insert(at, change(server));
        }
        self
    }

    /// The servers that are left out, and why.
    pub fn disabled(&self) -> &[Disabled] {
        &self.disabled
    }
}

/// One server: how it is reached, and what is taken from it.
#[derive(Clone)]
pub struct ServerConfig {
    pub(crate) name: Arc<str>,
    pub(crate) transport: Transport,
    pub(crate) trust: Trust,
    pub(crate) era: Option<Era>,
    pub(crate) connect_timeout: Duration,
    pub(crate) call_timeout: Duration,
    pub(crate) task_timeout: Duration,
    pub(crate) include: Option<BTreeSet<String>>,
    pub(crate) exclude: BTreeSet<String>,
}

/// How a server is reached.
#[derive(Clone)]
pub(crate) enum Transport {
    Stdio(StdioConfig),
    Http(HttpConfig),
}

#[derive(Clone)]
pub(crate) struct StdioConfig {
    pub(crate) command: String,
    pub(crate) args: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) inherit: Inherit,
    pub(crate) cwd: Option<PathBuf>,
}

/// What of this process's environment a child is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inherit {
    Basics,
    All,
}

#[derive(Clone)]
pub(crate) struct HttpConfig {
    pub(crate) url: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) auth: Option<crate::client::Auth>,
}

/// Whether what a server says of its own tools is believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// It is not: every tool is taken to be one that must not happen twice, and a person decides.
    #[default]
    Untrusted,
    /// The user has decided that it is: tools that it says only read are taken to be such.
    Trusted,
}

impl ServerConfig {
    /// A server that is a program: it is started as a child, and spoken to on its standard input and output.
    pub fn stdio(name: impl Into<Arc<str>>, command: impl Into<String>) -> Self {
        Self::new(
            name.into(),
            Transport::Stdio(StdioConfig {
                command: command.into(),
                args: Vec::new(),
                env: BTreeMap::new(),
                inherit: Inherit::Basics,
                cwd: None,
            }),
        )
    }

    /// A server at an address, spoken to by streamable HTTP.
    pub fn http(name: impl Into<Arc<str>>, url: impl Into<String>) -> Self {
        let http = HttpConfig { url: url.into(), headers: BTreeMap::new(), auth: None };
        Self::new(name.into(), Transport::Http(http))
    }

    fn new(name: Arc<str>, transport: Transport) -> Self {
        Self {
            name,
            transport,
            trust: Trust::Untrusted,
            era: None,
            connect_timeout: CONNECT_TIMEOUT,
            call_timeout: CALL_TIMEOUT,
            task_timeout: TASK_TIMEOUT,
            include: None,
            exclude: BTreeSet::new(),
        }
    }

    /// The program's arguments. They mean nothing to a server at an address.
    #[must_use]
    pub fn args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        if let Transport::Stdio(stdio) = &mut self.transport {
            stdio.args.extend(args.into_iter().map(Into::into));
        }
        self
    }

    /// A variable of the program's environment. Of this process's own it is given only the basics, such as `PATH`
    /// and `HOME`, so that keys are not handed to programs that nobody meant them for.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        if let Transport::Stdio(stdio) = &mut self.transport {
            stdio.env.insert(name.into(), value.into());
        }
        self
    }

    /// Gives the program all of this process's environment.
    #[must_use]
    pub fn inherit_env(mut self) -> Self {
        if let Transport::Stdio(stdio) = &mut self.transport {
            stdio.inherit = Inherit::All;
        }
        self
    }

    /// The folder that the program starts in.
    #[must_use]
    pub fn cwd(mut self, folder: impl Into<PathBuf>) -> Self {
        if let Transport::Stdio(stdio) = &mut self.transport {
            stdio.cwd = Some(folder.into());
        }
        self
    }

    /// A header of every request to the address. It is shown nowhere.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        if let Transport::Http(http) = &mut self.transport {
            http.headers.insert(name.into(), value.into());
        }
        self
    }

    /// How to be let in, where the address asks for it.
    #[must_use]
    pub fn auth(mut self, auth: crate::client::Auth) -> Self {
        if let Transport::Http(http) = &mut self.transport {
            http.auth = Some(auth);
        }
        self
    }

    /// What the server says of its own tools is believed: one that only reads may run again after a crash, and no
    /// person is asked about it unless the policy says so.
    #[must_use]
    pub fn trusted(mut self) -> Self {
        self.trust = Trust::Trusted;
        self
    }

    /// Which life of the protocol the server leads, where that is known. Without this it is found out, which a server
    /// that answers to what it does not know may mislead.
    #[must_use]
    pub fn era(mut self, era: Era) -> Self {
        self.era = Some(era);
        self
    }

    /// How long the server has to come up and to list its tools.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long one call may take. Then the server is told to stop it.
    #[must_use]
    pub fn call_timeout(mut self, timeout: Duration) -> Self {
        self.call_timeout = timeout;
        self
    }

    /// How long a task may take that a call became, counted from when this process began to follow it. Then the server
    /// is told to stop it. An hour, without this.
    #[must_use]
    pub fn task_timeout(mut self, timeout: Duration) -> Self {
        self.task_timeout = timeout;
        self
    }

    /// Only these of its tools.
    #[must_use]
    pub fn include<S: Into<String>>(mut self, tools: impl IntoIterator<Item = S>) -> Self {
        self.include.get_or_insert_default().extend(tools.into_iter().map(Into::into));
        self
    }

    /// None of these of its tools.
    #[must_use]
    pub fn exclude<S: Into<String>>(mut self, tools: impl IntoIterator<Item = S>) -> Self {
        self.exclude.extend(tools.into_iter().map(Into::into));
        self
    }

    /// Its name, by which its tools are told from those of other servers.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn takes(&self, tool: &str) -> bool {
        self.include.as_ref().is_none_or(|included| included.contains(tool)) && !self.exclude.contains(tool)
    }

    /// Reads one server of a `.mcp.json`. Keys that are not known are left alone: other programs have their own. What
    /// would lift an approval or grant trust is among them, because a file that comes with a project is not its user.
    fn parse(name: &str, value: &Value, variables: &Variables<'_>) -> Result<Self, String> {
        let Value::Object(server) = value else { return Err("must be an object".to_owned()) };
        if server.get("disabled") == Some(&Value::Bool(true)) {
            return Err("it is switched off (`disabled`)".to_owned());
        }
        let text = |key: &str| text_at(server, key, variables);
        let kind = text("type")?;
        let mut config = match (kind.as_deref(), text("command")?, text("url")?) {
            (None | Some("stdio"), Some(command), None) => Self::stdio(name, command),
            (None | Some("http" | "streamable-http" | "streamableHttp"), None, Some(url)) => {
                Self::http(name, url)
            }
            (Some("sse"), ..) => {
                return Err(
                    "`type` is `sse`, which MCP has given up; hint: most such servers have `http` too".into(),
                );
            }
            (Some(other), None, None) => return Err(format!("`type` is `{other}`, which is not known")),
            (_, Some(_), Some(_)) => return Err("it has both `command` and `url`".to_owned()),
            (_, None, None) => return Err("it has neither `command` nor `url`".to_owned()),
            (Some(kind), ..) => return Err(format!("`type` is `{kind}`, and the rest is of another type")),
        };
        config = config.args(texts_at(server, "args", variables)?.unwrap_or_default());
        for (name, value) in pairs_at(server, "env", variables)? {
            config = config.env(name, value);
        }
        for (name, value) in pairs_at(server, "headers", variables)? {
            config = config.header(name, value);
        }
        if let Some(folder) = text("cwd")? {
            config = config.cwd(folder);
        }
        if let Some(tools) = texts_at(server, "includeTools", variables)? {
            config = config.include(tools);
        }
        Ok(config.exclude(texts_at(server, "excludeTools", variables)?.unwrap_or_default()))
    }
}

/// Values of variables and headers are often secret, so only their names are shown.
impl fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ServerConfig");
        shown.field("name", &self.name).field("trust", &self.trust);
        match &self.transport {
            Transport::Stdio(stdio) => shown
                .field("command", &stdio.command)
                .field("args", &stdio.args.len())
                .field("env", &stdio.env.keys().collect::<Vec<_>>()),
            Transport::Http(http) => {
                let address = http.url.split(['?', '#']).next().unwrap_or_default();
                shown.field("url", &address).field("headers", &http.headers.keys().collect::<Vec<_>>())
            }
        };
        shown.finish_non_exhaustive()
    }
}

fn text_at(
    server: &Map<String, Value>,
    key: &str,
    variables: &Variables<'_>,
) -> Result<Option<String>, String> {
    match server.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => variables.expand(text).map(Some),
        Some(_) => Err(format!("`{key}` must be a string")),
    }
}

fn texts_at(
    server: &Map<String, Value>,
    key: &str,
    variables: &Variables<'_>,
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

fn pairs_at(
    server: &Map<String, Value>,
    key: &str,
    variables: &Variables<'_>,
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
