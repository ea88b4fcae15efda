//! The command with tools of MCP servers. It is built with them where it is asked for: `--features mcp`.

#![cfg(feature = "mcp")]
#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

mod support;

use std::io::Write;
use std::path::PathBuf;

use support::Project;

/// The filesystem server that `.ci/run` installs, where it is there.
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

/// An agent with the server in a folder, which writes a note there and reads it.
fn project(server: &str) -> (Project, PathBuf) {
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
    (Project::new(&served, &answers), note)
}

#[test]
fn tools_of_a_real_server_are_listed_and_used_when_a_person_says_so() {
    let Some(server) = filesystem_server() else { return };
    let (project, note) = project(&server);
    let listed = project.windlass(&["tools", "."]);
    assert_eq!(listed.code, Some(0), "{}", listed.noted);
    assert!(listed.said.contains("mcp:files/write_file"), "{}", listed.said);

    let ran = project.windlass(&["run", ".", "Keep it.", "--run-id", "one"]);
    assert_eq!(ran.code, Some(3), "it waits: {}", ran.noted);
    assert!(!note.exists(), "nobody has said yes");
    let approved = project.windlass(&["approve", "one", "w1"]);
    assert_eq!(approved.code, Some(0), "{}", approved.noted);
    let resumed = project.windlass(&["resume", "one"]);
    assert_eq!((resumed.code, resumed.said.as_str()), (Some(0), "Done.\n"), "{}", resumed.noted);
    assert_eq!(std::fs::read_to_string(&note).expect("it was written"), "kept");
    let shown = project.windlass(&["show", "one"]).said;
    assert!(shown.contains("read_text_file") && shown.contains("kept"), "{shown}");
    std::fs::remove_dir_all(note.parent().expect("its folder")).expect("it is removed");
}

#[test]
fn a_server_that_is_not_there_is_told_of_and_the_run_goes_on() {
    let project =
        Project::new("[mcp.gone]\ncommand = \"/nowhere/at/all\"\n", "[[answer]]\ntext = \"Alone.\"\n");
    let listed = project.windlass(&["tools", "."]);
    assert!(listed.noted.contains("MCP server `gone` cannot be reached"), "{}", listed.noted);
    let ran = project.windlass(&["run", ".", "Go."]);
    assert_eq!((ran.code, ran.said.as_str()), (Some(0), "Alone.\n"), "{}", ran.noted);
    assert!(ran.noted.contains("`gone`"), "{}", ran.noted);
}
