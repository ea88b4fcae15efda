//! The command with MCP servers. It needs the feature `mcp`.

#![cfg(feature = "mcp")]
#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod support;

use std::io::Write;
use std::path::PathBuf;

use support::TestProject;

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
