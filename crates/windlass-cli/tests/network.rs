//! The command with a model over the network: a local fake of a provider.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod support;

use support::{CommandOutput, TestProject, windlass_command};
use windlass_models::testing::{FAKE_KEY, FakeProvider, FakeReply};

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_named_by_its_provider_and_calls_a_tool() {
    let arguments = r#"{"path":"note.txt","from_line":null,"lines":null}"#;
    let replies = [FakeReply::call("c1", "read_file", arguments), FakeReply::text("It says hello.")];
    let provider = FakeProvider::start(replies).await.expect("there is a port");
    let project = TestProject::new("tools = [\"read\"]", "");
    std::fs::write(project.file("note.txt"), "hello\n").expect("it can be written");
    let mut command =
        windlass_command(&project.folder(), &["run", ".", "What does it say?", "--model", "openai:any"]);
    command.env("OPENAI_API_KEY", FAKE_KEY).env("OPENAI_BASE_URL", provider.base_url());
    let ran =
        tokio::task::spawn_blocking(move || CommandOutput::from_output(command.output().expect("it runs")));
    let ran = ran.await.expect("it ends");
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "It says hello.\n"), "{}", ran.stderr);
    assert_eq!(provider.requests().len(), 2);
    assert!(!ran.stderr.contains(FAKE_KEY));
}

#[test]
fn a_missing_key_is_said_with_the_name_of_its_variable() {
    let project = TestProject::new("", "");
    let ran = project.run_windlass(&["run", ".", "Hello.", "--model", "openai:any"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("hint: set OPENAI_API_KEY"), "{}", ran.stderr);
    let ran = project.run_windlass(&["run", ".", "Hello.", "--model", "nobody:any"]);
    assert!(ran.stderr.contains("there is no provider `nobody`"), "{}", ran.stderr);
}
