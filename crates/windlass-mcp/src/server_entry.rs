//! The configuration of one server as a table of a file that the user writes, such as `[mcp.NAME]` in `agent.toml`.
//!
//! Unlike a `.mcp.json`, which comes with a project, such a table may grant trust and lift approvals.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::client::{McpAuth, OAuthConfig, OAuthTokenFile, ProtocolEra};
use crate::config::McpServerConfig;
use crate::variables::VariableExpander;

/// The table of one server: a command (stdio) or a URL (HTTP). Texts may contain `${NAME}` and `${NAME:-default}`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct McpServerEntry {
    command: Option<String>,
    args: Vec<String>,
    env: BTreeMap<String, String>,
    cwd: Option<String>,
    url: Option<String>,
    headers: BTreeMap<String, String>,
    transport: Option<HttpTransportName>,
    oauth: Option<OAuthEntry>,
    trusted: bool,
    deferred: bool,
    allow: Vec<String>,
    include: Option<Vec<String>>,
    exclude: Vec<String>,
    timeout: Option<String>,
    connect_timeout: Option<String>,
    task_timeout: Option<String>,
    era: Option<EraName>,
    roots: Vec<String>,
    instructions: bool,
    resources: bool,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum HttpTransportName {
    Http,
    Sse,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum EraName {
    Legacy,
    Modern,
}

/// The OAuth settings: `oauth = true`, or a table.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum OAuthEntry {
    Enabled(bool),
    Table(OAuthTable),
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct OAuthTable {
    client_id: Option<String>,
    client_secret: Option<String>,
    scopes: Vec<String>,
    token_file: Option<String>,
}

/// The surroundings of a server's table.
pub struct McpEntryContext<'a> {
    /// The folder of the file; relative paths begin there.
    pub folder: &'a Path,
    /// Returns the value of a variable.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    /// The file of OAuth credentials, unless the table names one.
    pub token_file: PathBuf,
    /// Shows a person the URL at which they authorise this program for a server.
    pub announce_url: std::sync::Arc<dyn Fn(&str, &str) + Send + Sync>,
}

impl McpServerEntry {
    /// Returns the tools that require no approval.
    pub fn allowed_tools(&self) -> &[String] {
        &self.allow
    }

    /// Returns true if the server's instructions become a part of the agent's.
    pub fn uses_instructions(&self) -> bool {
        self.instructions
    }

    /// Returns true if the model may list and read the server's resources.
    pub fn uses_resources(&self) -> bool {
        self.resources
    }

    /// Returns true if the user trusts the server.
    pub fn is_trusted(&self) -> bool {
        self.trusted
    }

    /// Returns the configuration of the server.
    ///
    /// # Errors
    ///
    /// Returns the reason if the table is contradictory, a variable is not set, or a value is invalid.
    pub fn to_config(&self, name: &str, context: &McpEntryContext<'_>) -> Result<McpServerConfig, String> {
        let variables = VariableExpander { lookup: context.variable };
        let expand = |key: &str, text: &str| variables.expand(text).map_err(|why| format!("`{key}`: {why}"));
        let expand_all = |key: &str, texts: &[String]| -> Result<Vec<String>, String> {
            texts.iter().map(|text| expand(key, text)).collect()
        };
        if self.instructions && !self.trusted {
            return Err("`instructions = true` needs `trusted = true`: the text directs the agent".to_owned());
        }
        let mut config = match (&self.command, &self.url) {
            (Some(command), None) => {
                if !self.headers.is_empty() || self.oauth.is_some() || self.transport.is_some() {
                    return Err("`headers`, `oauth` and `transport` need a `url`".to_owned());
                }
                let config = McpServerConfig::stdio(name, expand("command", command)?);
                let folder = self.cwd.as_deref().map(|cwd| expand("cwd", cwd)).transpose()?;
                let config = config.args(expand_all("args", &self.args)?);
                match folder {
                    Some(folder) => config.cwd(context.folder.join(folder)),
                    None => config,
                }
            }
            (None, Some(url)) => {
                if !self.args.is_empty() || !self.env.is_empty() || self.cwd.is_some() {
                    return Err("`args`, `env` and `cwd` need a `command`".to_owned());
                }
                let config = McpServerConfig::http(name, expand("url", url)?);
                match self.transport {
                    Some(HttpTransportName::Sse) => config.legacy_sse(),
                    Some(HttpTransportName::Http) | None => config,
                }
            }
            (Some(_), Some(_)) => return Err("it has both `command` and `url`".to_owned()),
            (None, None) => {
                return Err("it needs a `command`, which starts a local server, or a `url`".to_owned());
            }
        };
        for (variable, value) in &self.env {
            config = config.env(variable.as_str(), expand("env", value)?);
        }
        for (header, value) in &self.headers {
            config = config.header(header.as_str(), expand("headers", value)?);
        }
        if let Some(auth) = self.authorisation(name, context)? {
            config = config.auth(auth);
        }
        if self.trusted {
            config = config.trusted();
        }
        if self.deferred {
            config = config.deferred_tools();
        }
        if let Some(era) = self.era {
            config = config.era(match era {
                EraName::Legacy => ProtocolEra::Legacy,
                EraName::Modern => ProtocolEra::Modern,
            });
        }
        for root in expand_all("roots", &self.roots)? {
            config = config.root(context.folder.join(root));
        }
        let duration = |key: &str, text: &Option<String>| -> Result<Option<Duration>, String> {
            text.as_deref().map(|text| parse_duration(key, text)).transpose()
        };
        if let Some(timeout) = duration("timeout", &self.timeout)? {
            config = config.call_timeout(timeout);
        }
        if let Some(timeout) = duration("connect_timeout", &self.connect_timeout)? {
            config = config.connect_timeout(timeout);
        }
        if let Some(timeout) = duration("task_timeout", &self.task_timeout)? {
            config = config.task_timeout(timeout);
        }
        if let Some(include) = &self.include {
            config = config.include_tools(include.iter().cloned());
        }
        Ok(config.exclude_tools(self.exclude.iter().cloned()))
    }

    fn authorisation(&self, name: &str, context: &McpEntryContext<'_>) -> Result<Option<McpAuth>, String> {
        let table = match &self.oauth {
            None | Some(OAuthEntry::Enabled(false)) => return Ok(None),
            Some(OAuthEntry::Enabled(true)) => OAuthTable::default(),
            Some(OAuthEntry::Table(table)) => table.clone(),
        };
        let variables = VariableExpander { lookup: context.variable };
        let expand = |text: Option<String>| -> Result<Option<String>, String> {
            text.map(|text| variables.expand(&text).map_err(|why| format!("`oauth`: {why}"))).transpose()
        };
        let (announce, server) = (context.announce_url.clone(), name.to_owned());
        let mut oauth = OAuthConfig::loopback(move |url| announce(&server, url))
            .map_err(|error| format!("`oauth`: no port can be opened for the redirect: {error}"))?
            .scopes(table.scopes);
        if let Some(id) = expand(table.client_id)? {
            oauth = oauth.preregistered_client(id, expand(table.client_secret)?);
        }
        let token_file = match expand(table.token_file)? {
            Some(path) => context.folder.join(path),
            None => context.token_file.clone(),
        };
        Ok(Some(McpAuth::OAuth(oauth.token_store(OAuthTokenFile::new(token_file)))))
    }
}

/// Parses a duration such as `500ms`, `5s`, `10m` or `2h`.
fn parse_duration(key: &str, text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{key}` must be a duration such as `500ms`, `30s`, `10m` or `2h`");
    let at = text.find(|one: char| !one.is_ascii_digit()).ok_or_else(wrong)?;
    let number: u64 = text[..at].parse().map_err(|_| wrong())?;
    let milliseconds = match &text[at..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(wrong()),
    };
    Ok(Duration::from_millis(number.saturating_mul(milliseconds)))
}

#[cfg(test)]
#[path = "server_entry_tests.rs"]
mod tests;
