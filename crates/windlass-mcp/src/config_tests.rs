use super::*;

fn read(text: &str) -> Config {
    let variable = |name: &str| match name {
        "TOKEN" => Some("t0k".to_owned()),
        "EMPTY" => Some(String::new()),
        _ => None,
    };
    Config::from_text(text, &variable).expect("is a configuration")
}

fn one(server: &str) -> Config {
    read(&format!(r#"{{"mcpServers":{{"it":{server}}}}}"#))
}

fn why(server: &str) -> String {
    let config = one(server);
    assert!(config.servers().is_empty(), "{server} should be left out");
    config.disabled()[0].why.clone()
}

#[test]
fn servers_of_both_kinds_are_read() {
    let config = read(
        r#"{"mcpServers":{
            "files":{"command":"npx","args":["-y","${PKG:-server-files}"],"env":{"KEY":"${TOKEN}"},"cwd":"/srv"},
            "far":{"type":"http","url":"http://${HOST:-localhost}/mcp","headers":{"authorization":"Bearer ${TOKEN}"},
                   "includeTools":["a"],"excludeTools":["b"],"autoApprove":["a"]}
        },"somebodyElses":true}"#,
    );
    assert_eq!(config.disabled(), []);
    let [far, files] = config.servers() else { panic!("two servers: {config:?}") };
    let Transport::Http(http) = &far.transport else { panic!("{far:?}") };
    assert_eq!(http.url, "http://localhost/mcp");
    assert_eq!(http.headers["authorization"], "Bearer t0k");
    assert!(far.takes("a") && !far.takes("b") && !far.takes("c"));
    assert_eq!(far.trust, Trust::Untrusted, "no file grants trust");
    let Transport::Stdio(stdio) = &files.transport else { panic!("{files:?}") };
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
    let config = read(
        r#"{"mcpServers":{"a":{"command":"${NOT_SET}"},"b":{"command":"b"},"c":{"url":"http://x/${NOT_SET:-y}"}}}"#,
    );
    let names: Vec<&str> = config.servers().iter().map(ServerConfig::name).collect();
    assert_eq!(names, ["b", "c"]);
    assert_eq!(
        config.disabled(),
        [Disabled { server: "a".into(), why: "the variable `NOT_SET` is not set".into() }]
    );
}

#[test]
fn what_is_wrong_is_said() {
    assert_eq!(why(r#"{"command":"a","url":"b"}"#), "it has both `command` and `url`");
    assert_eq!(why("{}"), "it has neither `command` nor `url`");
    assert_eq!(why("[]"), "must be an object");
    assert_eq!(why(r#"{"command":7}"#), "`command` must be a string");
    assert_eq!(why(r#"{"command":"a","args":"b"}"#), "`args` must be a list of strings");
    assert_eq!(why(r#"{"command":"a","env":{"b":1}}"#), "`env` must be an object of strings");
    assert_eq!(why(r#"{"type":"http","command":"a"}"#), "`type` is `http`, and the rest is of another type");
    assert_eq!(why(r#"{"command":"a","disabled":true}"#), "it is switched off (`disabled`)");
    assert_eq!(why(r#"{"command":"${A"}"#), "a `${` has no `}`");
    assert_eq!(why(r#"{"command":"${A B}"}"#), "`${A B}` is not the name of a variable");
    assert!(why(r#"{"type":"sse","url":"http://x"}"#).contains("given up"));
}

#[test]
fn variables_stand_in_as_in_a_shell() {
    let of = |text: &str| match &one(&format!(r#"{{"command":"{text}"}}"#)).servers()[0].transport {
        Transport::Stdio(stdio) => stdio.command.clone(),
        Transport::Http(_) => panic!("is a program"),
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
    assert!(matches!(Config::from_text("{", &none), Err(ConfigFileError::Json { .. })));
    assert!(matches!(Config::from_text("{}", &none), Err(ConfigFileError::NoServers { .. })));
    assert!(matches!(Config::read("/nowhere/.mcp.json"), Err(ConfigFileError::Read { .. })));
}
