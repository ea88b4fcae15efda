//! The command with MCP servers. It needs the feature `mcp`.

#![cfg(feature = "mcp")]
#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod pty_screen;
mod support;

use std::io::Write;
use std::path::PathBuf;

use pty_screen::{PtyScreen, foreign_character};
use support::{CommandOutput, TestProject, windlass_command};
use windlass_models::testing::{FAKE_KEY, FakeProvider, FakeReply};

/// Returns the filesystem server that `.ci/run` installs, if it is there.
fn filesystem_server() -> Option<String> {
    let found = std::env::var_os("WINDLASS_MCP_SERVERS")
        .map(|folder| PathBuf::from(folder).join("node_modules/.bin/mcp-server-filesystem"))
        .filter(|program| program.exists());
    if found.is_none() {
        let _ = writeln!(
            std::io::stderr(),
            "not shown: no filesystem server is here; WINDLASS_MCP_SERVERS names the folder that .ci/run fills"
        );
    }
    found.map(|program| program.display().to_string())
}

/// Creates an agent with the server in a folder; the agent writes a note there and reads it.
fn mcp_project(server: &str) -> (TestProject, PathBuf) {
    let place = tempfile::tempdir().expect("there is room");
    let folder = place.keep().canonicalize().expect("a path");
    let note = folder.join("note.txt");
    let served = format!(
        "[mcp.files]\ncommand = {server:?}\nargs = [{:?}]\nallow = [\"read_text_file\"]\n",
        folder.display().to_string()
    );
    let answers = format!(
        r#"
[[answer]]
[[answer.call]]
id = "w1"
tool = "write_file"
arguments = {{ path = {path:?}, content = "kept" }}

[[answer]]
[[answer.call]]
id = "r1"
tool = "read_text_file"
arguments = {{ path = {path:?} }}

[[answer]]
text = "Done."
"#,
        path = note.display().to_string()
    );
    (TestProject::new(&served, &answers), note)
}

#[test]
fn tools_of_a_real_server_are_listed_and_used_when_a_person_says_so() {
    let Some(server) = filesystem_server() else { return };
    let (project, note) = mcp_project(&server);
    let listed = project.run_windlass(&["tools", "."]);
    assert_eq!(listed.code, Some(0), "{}", listed.stderr);
    assert!(listed.stdout.contains("mcp:files/write_file"), "{}", listed.stdout);

    let ran = project.run_windlass(&["run", ".", "Keep it.", "--run-id", "one"]);
    assert_eq!(ran.code, Some(3), "it waits: {}", ran.stderr);
    assert!(!note.exists(), "nobody has said yes");
    // The server's tool has the name and the arguments of the workspace's, and is displayed as what it is.
    let shown = project.run_windlass(&["show", "one"]).stdout;
    assert!(shown.contains("mcp:files/write_file") && shown.contains(r#"content  "kept""#), "{shown}");
    assert!(!shown.contains("would be refused") && !shown.contains("creates"), "{shown}");
    let digest = project.digest_of("one");
    let approved = project.run_windlass(&["approve", "one", "w1", "--digest", &digest]);
    assert_eq!(approved.code, Some(0), "{}", approved.stderr);
    let resumed = project.run_windlass(&["resume", "one"]);
    assert_eq!((resumed.code, resumed.stdout.as_str()), (Some(0), "Done.\n"), "{}", resumed.stderr);
    assert_eq!(std::fs::read_to_string(&note).expect("it was written"), "kept");
    let shown = project.run_windlass(&["show", "one"]).stdout;
    assert!(shown.contains("read_text_file") && shown.contains("kept"), "{shown}");
    std::fs::remove_dir_all(note.parent().expect("its folder")).expect("it is removed");
}

#[test]
fn a_server_that_is_not_there_is_told_of_and_the_run_goes_on() {
    let project =
        TestProject::new("[mcp.gone]\ncommand = \"/nowhere/at/all\"\n", "[[answer]]\ntext = \"Alone.\"\n");
    let listed = project.run_windlass(&["tools", "."]);
    assert!(listed.stderr.contains("MCP server `gone` cannot be reached"), "{}", listed.stderr);
    let ran = project.run_windlass(&["run", ".", "Go."]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "Alone.\n"), "{}", ran.stderr);
    assert!(ran.stderr.contains("`gone`"), "{}", ran.stderr);
}

#[test]
fn a_server_that_needs_25_seconds_to_start_works() {
    let Some(server) = filesystem_server() else { return };
    let folder = tempfile::tempdir().expect("there is room");
    let script = format!("sleep 25; exec {server} {}", folder.path().display());
    let served = format!("[mcp.slow]\ncommand = \"sh\"\nargs = [\"-c\", {script:?}]\n");
    let project = TestProject::new(&served, "[[answer]]\ntext = \"Done.\"\n");
    let listed = project.run_windlass(&["tools", "."]);
    assert_eq!(listed.code, Some(0), "{}", listed.stderr);
    assert!(listed.stdout.contains("mcp:slow/read_text_file"), "{}{}", listed.stdout, listed.stderr);
}

#[test]
fn what_a_server_wrote_before_it_failed_is_shown() {
    let script = "echo 'the licence file is missing' >&2; exit 3";
    let served = format!("[mcp.broken]\ncommand = \"sh\"\nargs = [\"-c\", {script:?}]\n");
    let project = TestProject::new(&served, "[[answer]]\ntext = \"Done.\"\n");
    let listed = project.run_windlass(&["tools", "."]);
    assert!(listed.stderr.contains("the licence file is missing"), "{}{}", listed.stdout, listed.stderr);
}

/// A server with one tool that takes any arguments.
const OPEN_SERVER: &str = r#"
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    results = {
        "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}, "resources": {}, "prompts": {}}, "serverInfo": {"name": "open", "version": "1"}, "instructions": "Note every visitor."},
        "prompts/list": {"prompts": [{"name": "greet", "description": "Greets.", "arguments": [{"name": "who", "required": True}, {"name": "how"}]}]},
        "prompts/get": {"messages": [{"role": "user", "content": {"type": "text", "text": "Greet " + message.get("params", {}).get("arguments", {}).get("who", "nobody") + "."}}]},
        "resources/list": {"resources": [{"uri": "open://book", "name": "book"}]},
        "resources/templates/list": {"resourceTemplates": []},
        "resources/read": {"contents": [{"uri": "open://book", "text": "Ida was here."}]},
        "tools/list": {"tools": [{"name": "note", "description": "Notes.", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": "noted"}]},
    }
    reply = {"jsonrpc": "2.0", "id": message["id"]}
    params = message.get("params", {})
    if message["method"] == "prompts/get" and params.get("name") != "greet":
        reply["error"] = {"code": -32602, "message": "no such prompt"}
    elif message["method"] in results:
        reply["result"] = results[message["method"]]
    else:
        reply["error"] = {"code": -32601, "message": "no such method"}
    print(json.dumps(reply), flush=True)
"#;

/// A tool of a server may take arguments of any name, and the name is displayed in a terminal before the call is approved.
#[test]
fn the_name_of_an_argument_is_no_control_sequence() {
    if std::process::Command::new("python3").arg("--version").output().is_err() {
        let _ = writeln!(std::io::stderr(), "not shown: there is no python3 for a server");
        return;
    }
    let served = format!("[mcp.open]\ncommand = \"python3\"\nargs = [\"-c\", {OPEN_SERVER:?}]\n");
    let answers = serde_json::json!({ "call": [{ "id": "n1", "tool": "note", "arguments": {
        "a\u{1b}[2J\u{1b}]52;c;cm0=\u{7}": 1,
        "b\u{9b}1A\u{202e}": "x",
        "c\n  Allow it? [y]es › y": 2,
        "│ d": 3,
        "e": 4,
    } }] });
    let project = TestProject::new(&served, "");
    let agent = format!("name = \"helper\"\nmodel = \"scripted:answers.jsonl\"\n{served}");
    std::fs::write(project.file("agent.toml"), agent).expect("it can be written");
    std::fs::write(project.file("answers.jsonl"), format!("{answers}\n{{\"text\":\"Done.\"}}"))
        .expect("written");
    let mut screen = PtyScreen::start(project.folder(), 40, 100, &["run", ".", "Go."]);
    screen.wait_for_question("Allow it?");
    let rows = screen.screen_rows();
    let body: Vec<&str> = rows
        .iter()
        .filter_map(|row| row.strip_prefix("  │ "))
        .filter(|row| !row.starts_with("The model"))
        .collect();
    assert_eq!(
        body,
        [
            r#""a\u{1b}[2J\u{1b}]52;c;cm0=\u{7}"  1"#,
            r#""b\u{9b}1A\u{202e}"  "x""#,
            r#""c\n  Allow it? [y]es › y"  2"#,
            r#"e                 4"#,
            r#""│ d"             3"#,
        ],
        "{rows:?}"
    );
    let written = screen.written();
    screen.type_keys("l\n");
    screen.wait_for_exit();
    assert_eq!(foreign_character(&written), None);
}

/// The model reads the resources of a server whose table says so, with approval unless the server is trusted; the
/// instructions of a trusted server become a part of the agent's.
#[tokio::test(flavor = "multi_thread")]
async fn instructions_and_resources_of_a_server_are_used_if_its_table_says_so() {
    if std::process::Command::new("python3").arg("--version").output().is_err() {
        let _ = writeln!(std::io::stderr(), "not shown: there is no python3 for a server");
        return;
    }
    let table = format!("[mcp.open]\ncommand = \"python3\"\nargs = [\"-c\", {OPEN_SERVER:?}]\n");
    let read = || FakeReply::call("c1", "read_mcp_resource", r#"{"server":"open","uri":"open://book"}"#);
    for (keys, code, has_instructions) in [
        ("resources = true\ntrusted = true\ninstructions = true\n", 0, true),
        ("resources = true\n", 3, false),
        ("resources = true\ntrusted = true\n", 0, false),
    ] {
        let provider =
            FakeProvider::start([read(), FakeReply::text("Read.")]).await.expect("there is a port");
        let project = TestProject::new("", "");
        let agent = format!("name = \"helper\"\ninstructions = \"Be brief.\"\n{table}{keys}");
        std::fs::write(project.file("agent.toml"), agent).expect("it can be written");
        let mut command =
            windlass_command(&project.folder(), &["run", ".", "Who was here?", "--model", "openai:any"]);
        command.env("OPENAI_API_KEY", FAKE_KEY).env("OPENAI_BASE_URL", provider.base_url());
        let ran = tokio::task::spawn_blocking(move || {
            CommandOutput::from_output(command.output().expect("it runs"))
        });
        let ran = ran.await.expect("it ends");
        assert_eq!(ran.code, Some(code), "{keys}: {}", ran.stderr);
        let requests: Vec<String> =
            provider.requests().iter().map(|request| format!("{request:?}")).collect();
        assert_eq!(requests[0].contains("Note every visitor."), has_instructions, "{keys}: {requests:?}");
        assert!(requests[0].contains("Be brief."), "{keys}: {requests:?}");
        if code == 0 {
            assert!(requests[1].contains("Ida was here."), "{keys}: {requests:?}");
        }
    }
    // The instructions of a server that is not trusted direct nothing, and the file says so.
    let project =
        TestProject::new(&format!("{table}instructions = true\n"), "[[answer]]\ntext = \"Done.\"\n");
    let ran = project.run_windlass(&["run", ".", "Go."]);
    assert!(ran.code != Some(0) && ran.stderr.contains("needs `trusted = true`"), "{}", ran.stderr);
}

/// A run begins with a prompt of a server, whose text is marked as text from there.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_begins_with_a_prompt_of_a_server() {
    if std::process::Command::new("python3").arg("--version").output().is_err() {
        let _ = writeln!(std::io::stderr(), "not shown: there is no python3 for a server");
        return;
    }
    let table =
        format!("tools = [\"shell\"]\n[mcp.open]\ncommand = \"python3\"\nargs = [\"-c\", {OPEN_SERVER:?}]\n");
    let project = TestProject::new(&table, "");
    let listed = project.run_windlass(&["tools", "."]);
    assert!(
        listed.stdout.contains("prompt open/greet who=… [how=…]  Greets."),
        "{}{}",
        listed.stdout,
        listed.stderr
    );
    let call = FakeReply::call("c1", "run_command", r#"{"program":"true","args":[]}"#);
    let provider = FakeProvider::start([call]).await.expect("there is a port");
    let words = [
        "run",
        ".",
        "Be kind.",
        "--mcp-prompt",
        "open/greet",
        "--mcp-argument",
        "who=Ida",
        "--model",
        "openai:any",
        "--run-id",
        "one",
    ];
    let mut command = windlass_command(&project.folder(), &words);
    command.env("OPENAI_API_KEY", FAKE_KEY).env("OPENAI_BASE_URL", provider.base_url());
    let ran =
        tokio::task::spawn_blocking(move || CommandOutput::from_output(command.output().expect("it runs")));
    let ran = ran.await.expect("it ends");
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    let request = format!("{:?}", provider.requests()[0]);
    let places = ["Greet Ida.", "Be kind."].map(|text| request.find(text));
    assert!(places[0].is_some() && places[0] < places[1], "{request}");
    let shown = project.run_windlass(&["show", "one"]).stdout;
    assert!(shown.contains("The model could read text from an MCP server before this call."), "{shown}");
    for (words, reason) in [
        (["run", ".", "--mcp-prompt", "greet"], "SERVER/NAME"),
        (["run", ".", "--mcp-prompt", "nobody/greet"], "nobody"),
        (["run", ".", "--mcp-prompt", "open/none"], "open/none"),
    ] {
        let ran = project.run_windlass(&words);
        assert!(ran.code != Some(0) && ran.stderr.contains(reason), "{words:?}: {}", ran.stderr);
    }
}
