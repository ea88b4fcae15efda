//! The command with a model over the network: a provider on this machine that speaks as the real one does.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

mod support;

use support::{Project, Ran, command};
use windlass_models::testing::{FAKE_KEY, FakeProvider, FakeReply};

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_named_by_its_provider_and_calls_a_tool() {
    let arguments = r#"{"path":"note.txt","from_line":null,"lines":null}"#;
    let replies = [FakeReply::call("c1", "read_file", arguments), FakeReply::text("It says hello.")];
    let provider = FakeProvider::start(replies).await.expect("there is a port");
    let project = Project::new("tools = [\"read\"]", "");
    std::fs::write(project.file("note.txt"), "hello\n").expect("it can be written");
    let mut command = command(project.folder(), &["run", ".", "What does it say?", "--model", "openai:any"]);
    command.env("OPENAI_API_KEY", FAKE_KEY).env("OPENAI_BASE_URL", provider.base_url());
    let ran = tokio::task::spawn_blocking(move || Ran::of(command.output().expect("it runs")));
    let ran = ran.await.expect("it ends");
    assert_eq!((ran.code, ran.said.as_str()), (Some(0), "It says hello.\n"), "{}", ran.noted);
    assert_eq!(provider.requests().len(), 2);
    assert!(!ran.noted.contains(FAKE_KEY));
}

#[test]
fn a_missing_key_is_said_with_the_name_of_its_variable() {
    let project = Project::new("", "");
    let ran = project.windlass(&["run", ".", "Hello.", "--model", "openai:any"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.noted.contains("hint: set OPENAI_API_KEY"), "{}", ran.noted);
    let ran = project.windlass(&["run", ".", "Hello.", "--model", "nobody:any"]);
    assert!(ran.noted.contains("there is no provider `nobody`"), "{}", ran.noted);
}
