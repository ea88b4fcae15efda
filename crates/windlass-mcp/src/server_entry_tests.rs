use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::config::{HttpDialect, McpTransport, ServerTrust};

fn config_of(table: Value) -> Result<McpServerConfig, String> {
    let entry: McpServerEntry = serde_json::from_value(table).map_err(|error| error.to_string())?;
    let context = McpEntryContext {
        folder: Path::new("/project"),
        variable: &|name| (name == "TOKEN").then(|| "t0k".to_owned()),
        token_file: PathBuf::from("/home/me/tokens.json"),
        announce_url: Arc::new(|_, _| {}),
    };
    entry.to_config("it", &context)
}

fn error_of(table: Value) -> String {
    match config_of(table) {
        Ok(config) => panic!("{config:?} should be refused"),
        Err(why) => why,
    }
}

#[test]
fn a_local_server_has_variables_a_folder_and_timeouts() {
    let config = config_of(json!({
        "command": "${TOOL:-npx}", "args": ["--key", "${TOKEN}"], "env": { "KEY": "${TOKEN}" }, "cwd": "data",
        "timeout": "5m", "connect_timeout": "90s", "task_timeout": "2h", "era": "legacy", "trusted": true,
    }));
    let config = config.expect("it is valid");
    let McpTransport::Stdio(stdio) = &config.transport else { panic!("{config:?}") };
    assert_eq!(
        (stdio.command.as_str(), stdio.args[1].as_str(), stdio.env["KEY"].as_str()),
        ("npx", "t0k", "t0k")
    );
    assert_eq!(stdio.cwd.as_deref(), Some(Path::new("/project/data")));
    assert_eq!(config.call_timeout, Duration::from_secs(300));
    assert_eq!(config.connect_timeout, Duration::from_secs(90));
    assert_eq!(config.task_timeout, Duration::from_secs(7200));
    assert_eq!((config.era, config.trust), (Some(ProtocolEra::Legacy), ServerTrust::Trusted));
}

#[test]
fn a_remote_server_has_headers_and_oauth() {
    let config = config_of(json!({
        "url": "https://x.example/${TOKEN}", "headers": { "x-key": "${TOKEN}" }, "transport": "sse",
        "oauth": { "scopes": ["read"], "token_file": "tokens.json" },
    }));
    let config = config.expect("it is valid");
    let McpTransport::Http(http) = &config.transport else { panic!("{config:?}") };
    assert_eq!((http.url.as_str(), http.headers["x-key"].as_str()), ("https://x.example/t0k", "t0k"));
    assert_eq!(http.dialect, HttpDialect::LegacySse);
    assert!(matches!(http.auth, Some(McpAuth::OAuth(_))));
    let plain = config_of(json!({ "url": "https://x.example", "oauth": true })).expect("it is valid");
    let McpTransport::Http(http) = &plain.transport else { panic!("{plain:?}") };
    assert!(matches!(http.auth, Some(McpAuth::OAuth(_))));
}

#[test]
fn what_is_wrong_is_said() {
    assert!(error_of(json!({})).contains("needs a `command`"));
    assert!(error_of(json!({ "command": "a", "url": "b" })).contains("both"));
    assert!(error_of(json!({ "command": "${GONE}" })).contains("`command`: the variable `GONE` is not set"));
    assert!(
        error_of(json!({ "command": "a", "timeout": "5 minutes" })).contains("`timeout` must be a duration")
    );
    assert!(error_of(json!({ "command": "a", "oauth": true })).contains("need a `url`"));
    assert!(error_of(json!({ "url": "a", "cwd": "b" })).contains("need a `command`"));
    assert!(error_of(json!({ "command": "a", "era": "stone" })).contains("stone"));
    assert!(error_of(json!({ "command": "a", "trusts": true })).contains("trusts"));
}
