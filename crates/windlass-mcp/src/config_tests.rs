use super::*;

fn parse_config(text: &str) -> McpConfig {
    let variable = |name: &str| match name {
        "TOKEN" => Some("t0k".to_owned()),
        "EMPTY" => Some(String::new()),
        _ => None,
    };
    McpConfig::from_text(text, &variable).expect("is a configuration")
}

fn parse_server(server: &str) -> McpConfig {
    parse_config(&format!(r#"{{"mcpServers":{{"it":{server}}}}}"#))
}

fn disabled_reason(server: &str) -> String {
    let config = parse_server(server);
    assert!(config.servers().is_empty(), "{server} should be left out");
    config.disabled()[0].reason.clone()
}

#[test]
fn servers_of_both_kinds_are_read() {
    let config = parse_config(
        r#"{"mcpServers":{
            "files":{"command":"npx","args":["-y","${PKG:-server-files}"],"env":{"KEY":"${TOKEN}"},"cwd":"/srv"},
            "far":{"type":"http","url":"http://${HOST:-localhost}/mcp","headers":{"authorization":"Bearer ${TOKEN}"},
                   "includeTools":["a"],"excludeTools":["b"],"autoApprove":["a"]}
        },"somebodyElses":true}"#,
    );
    assert_eq!(config.disabled(), []);
    let [far, files] = config.servers() else { panic!("two servers: {config:?}") };
    let McpTransport::Http(http) = &far.transport else { panic!("{far:?}") };
    assert_eq!(http.url, "http://localhost/mcp");
    assert_eq!(http.headers["authorization"], "Bearer t0k");
    assert!(far.allows_tool("a") && !far.allows_tool("b") && !far.allows_tool("c"));
    assert_eq!(far.trust, ServerTrust::Untrusted, "no file grants trust");
    let McpTransport::Stdio(stdio) = &files.transport else { panic!("{files:?}") };
    assert_eq!(
        (stdio.command.as_str(), stdio.args.as_slice()),
        ("npx", &["-y".into(), "server-files".into()][..])
    );
    assert_eq!(stdio.env["KEY"], "t0k");
    let shown = format!("{config:?}");
    assert!(!shown.contains("t0k"), "values are not shown: {shown}");
}

#[test]
fn a_missing_variable_leaves_out_that_server_alone() {
    let config = parse_config(
        r#"{"mcpServers":{"a":{"command":"${NOT_SET}"},"b":{"command":"b"},"c":{"url":"http://x/${NOT_SET:-y}"}}}"#,
    );
    let names: Vec<&str> = config.servers().iter().map(McpServerConfig::name).collect();
    assert_eq!(names, ["b", "c"]);
    assert_eq!(
        config.disabled(),
        [DisabledServer { server: "a".into(), reason: "the variable `NOT_SET` is not set".into() }]
    );
}

#[test]
fn what_is_wrong_is_said() {
    assert_eq!(disabled_reason(r#"{"command":"a","url":"b"}"#), "it has both `command` and `url`");
    assert_eq!(disabled_reason("{}"), "it has neither `command` nor `url`");
    assert_eq!(disabled_reason("[]"), "must be an object");
    assert_eq!(disabled_reason(r#"{"command":7}"#), "`command` must be a string");
    assert_eq!(disabled_reason(r#"{"command":"a","args":"b"}"#), "`args` must be a list of strings");
    assert_eq!(disabled_reason(r#"{"command":"a","env":{"b":1}}"#), "`env` must be an object of strings");
    assert_eq!(
        disabled_reason(r#"{"type":"http","command":"a"}"#),
        "`type` is `http`, and the other keys belong to another type"
    );
    assert_eq!(disabled_reason(r#"{"command":"a","disabled":true}"#), "it is switched off (`disabled`)");
    assert_eq!(disabled_reason(r#"{"command":"${A"}"#), "a `${` has no `}`");
    assert_eq!(disabled_reason(r#"{"command":"${A B}"}"#), "`${A B}` is not the name of a variable");
    let older = parse_server(r#"{"type":"sse","url":"http://x"}"#);
    let McpTransport::Http(http) = &older.servers()[0].transport else { panic!("{older:?}") };
    assert_eq!(http.dialect, HttpDialect::LegacySse);
}

#[test]
fn variables_stand_in_as_in_a_shell() {
    let of = |text: &str| match &parse_server(&format!(r#"{{"command":"{text}"}}"#)).servers()[0].transport {
        McpTransport::Stdio(stdio) => stdio.command.clone(),
        McpTransport::Http(_) => panic!("is a program"),
    };
    assert_eq!(of("${TOKEN}${TOKEN}"), "t0kt0k");
    assert_eq!(of("[${EMPTY}]"), "[]");
    assert_eq!(of("${EMPTY:-other}"), "other");
    assert_eq!(of("${TOKEN:-other}"), "t0k");
    assert_eq!(of("$HOME and ${NOT_SET:-}"), "$HOME and ");
    assert_eq!(of("${NOT_SET:-${TOKEN}"), "${TOKEN", "what stands in is not expanded");
}

#[test]
fn what_is_no_configuration_is_an_error() {
    let none = |_: &str| None;
    assert!(matches!(McpConfig::from_text("{", &none), Err(McpConfigError::Json { .. })));
    assert!(matches!(McpConfig::from_text("{}", &none), Err(McpConfigError::NoServers { .. })));
    assert!(matches!(McpConfig::read("/nowhere/.mcp.json"), Err(McpConfigError::Read { .. })));
}
