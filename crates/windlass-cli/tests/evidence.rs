//! What a tool saw when its call was held is shown to the person who decides, in `windlass show` and `windlass approve`.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod support;

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use support::{CommandOutput, TestProject, windlass_command};
use windlass::prelude::*;
use windlass::store::SqliteStore;
use windlass::tool::{CallEvidence, ImagePart};

const PICTURE: &[u8] = b"\x89PNG\r\n\x1a\n and so on";

/// Creates a tool that saves evidence when its call is held, as a tool with a screen does.
fn pay_tool(button: &'static str) -> Tool {
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    Tool::dynamic("pay", "Pays.", schema, |_, _: Value| async { Ok::<_, ToolError>("paid") })
        .needs_approval_if_async(move |ctx: ToolContext, _: &Value| async move {
            let picture = data_encoding::BASE64.encode(PICTURE);
            let picture = ctx.save_media("image/png", &picture).await.expect("it is stored");
            let summary =
                format!("The page is https://shop.example/pay.\nclick: button \"{button}\"\u{1b}[2J");
            let evidence = CallEvidence::new(summary).with_picture(picture);
            ctx.save_evidence(&evidence).await.expect("it is stored");
            true
        })
}

async fn pause_run(store: &PathBuf, run: &str, button: &'static str) {
    let store = Arc::new(SqliteStore::open(store).expect("a store"));
    let model = ScriptedModel::new([ScriptedResponse::call("c1", "pay", json!({}))]);
    let agent = Agent::new("clerk").model(model).tools(pay_tool(button));
    let paused = agent.run("go").store(store).run_id(run).await.expect("the run pauses");
    assert!(paused.into_paused().is_some(), "the call waits");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approver_is_shown_what_the_tool_saw_and_decides_about_that() {
    let project = TestProject::new("", "");
    let store = project.folder().join("app.db");
    pause_run(&store, "one", "Pay €40").await;
    pause_run(&store, "two", "Pay €4000").await;
    let run_windlass = |words: &[&str]| {
        let mut command = windlass_command(&project.folder(), words);
        CommandOutput::from_output(command.env("WINDLASS_STORE", &store).output().expect("it runs"))
    };
    let shown = run_windlass(&["show", "one"]);
    assert!(shown.stdout.contains("The page is https://shop.example/pay."), "{shown:?}");
    assert!(shown.stdout.contains("click: button \"Pay €40\""), "{shown:?}");
    assert!(!shown.stdout.contains('\u{1b}'), "evidence is untrusted text");
    let (_, path) = shown.stdout.split_once("The picture is ").expect("the path of the picture");
    let path = PathBuf::from(path.lines().next().expect("a line").trim());
    assert_eq!(std::fs::read(&path).expect("the picture"), PICTURE);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(&path).expect("the file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "only the user can read it");
    }
    // The digest is that of the displayed screen.
    let digest = |run: &str| {
        let shown = run_windlass(&["show", run, "--json"]);
        shown.json_lines()[0]["pending"][0]["digest"].as_str().expect("a call is pending").to_owned()
    };
    let (one, two) = (digest("one"), digest("two"));
    let refused = run_windlass(&["approve", "one", "--digest", &two]);
    assert_ne!(refused.code, Some(0), "the digest of another screen: {refused:?}");
    let approved = run_windlass(&["approve", "one", "--digest", &one]);
    assert_eq!(approved.code, Some(0), "{approved:?}");
}

/// The same call, with another screen, has another digest.
#[tokio::test(flavor = "multi_thread")]
async fn a_digest_does_not_fit_another_screen_of_the_same_call() {
    let digests = |button: &'static str| async move {
        let project = TestProject::new("", "");
        let store = project.folder().join("app.db");
        pause_run(&store, "one", button).await;
        let mut command = windlass_command(&project.folder(), &["show", "one", "--json"]);
        let shown =
            CommandOutput::from_output(command.env("WINDLASS_STORE", &store).output().expect("it runs"));
        shown.json_lines()[0]["pending"][0]["digest"].clone()
    };
    assert_eq!(digests("Pay €40").await, digests("Pay €40").await);
    assert_ne!(digests("Pay €40").await, digests("Pay €4000").await);
}

/// An exported run has the pictures of its tools, and its text is verified as before.
#[tokio::test(flavor = "multi_thread")]
async fn an_exported_run_has_the_pictures_of_its_tools() {
    let project = TestProject::new("", "");
    let path = project.folder().join("app.db");
    let picture = data_encoding::BASE64.encode(PICTURE);
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let look = Tool::dynamic("look", "Looks.", schema, |ctx: ToolContext, _: Value| async move {
        let picture = data_encoding::BASE64.encode(PICTURE);
        let picture = ctx.save_media("image/png", &picture).await.expect("it is stored");
        Ok::<_, ToolError>(ImagePart(picture))
    });
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "look", json!({})),
        ScriptedResponse::text("Seen."),
    ]);
    let agent = Agent::new("clerk").model(model).tools(look);
    let store = Arc::new(SqliteStore::open(&path).expect("a store"));
    agent.run("go").store(store).run_id("one").await.expect("the run finishes");
    let run_windlass = |words: &[&str]| {
        let mut command = windlass_command(&project.folder(), words);
        CommandOutput::from_output(command.env("WINDLASS_STORE", &path).output().expect("it runs"))
    };
    let exported = run_windlass(&["export", "one", "--output", "one.windlass"]);
    assert_eq!(exported.code, Some(0), "{exported:?}");
    let text = std::fs::read_to_string(project.file("one.windlass")).expect("the file");
    assert_eq!(text.matches(&picture).count(), 1, "{text}");
    let verified = run_windlass(&["verify", "one.windlass"]);
    assert_eq!(verified.code, Some(0), "{verified:?}");
    PausedRun::from_text(&text).expect("it can be read");
}
