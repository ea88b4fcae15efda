//! The command with a model over the network: a local fake of a provider.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

#[cfg(unix)]
mod pty_screen;
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

/// Runs the command with a model of a fake provider.
async fn run_with(provider: &FakeProvider, project: &TestProject, words: &[&str]) -> CommandOutput {
    let mut command = windlass_command(&project.folder(), words);
    command.env("OPENAI_API_KEY", FAKE_KEY).env("OPENAI_BASE_URL", provider.base_url());
    let ran =
        tokio::task::spawn_blocking(move || CommandOutput::from_output(command.output().expect("it runs")));
    ran.await.expect("it ends")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_is_away_for_many_requests_does_not_end_the_run() {
    let away = || FakeReply::status(503).header("retry-after", "0");
    let replies = (0..6).map(|_| away()).chain([FakeReply::text("Here again.")]);
    let provider = FakeProvider::start(replies).await.expect("there is a port");
    let project = TestProject::new("", "");
    let ran = run_with(&provider, &project, &["run", ".", "Hello?", "--model", "openai:any"]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "Here again.\n"), "{}", ran.stderr);
    assert!(ran.stderr.contains("the model is away"), "{}", ran.stderr);
    assert!(ran.stderr.contains("attempt 7"), "{}", ran.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_waited_too_long_is_left_and_resumed() {
    let replies = [FakeReply::status(503).header("retry-after", "50")];
    let provider = FakeProvider::start(replies).await.expect("there is a port");
    let project = TestProject::new("[limits]\nprovider_wait = \"100ms\"\n", "");
    let words = ["run", ".", "Hello?", "--model", "openai:any", "--run-id", "away"];
    let left = run_with(&provider, &project, &words).await;
    assert_eq!(left.code, Some(8), "{}", left.stderr);
    assert!(left.stderr.contains("`windlass resume away` goes on"), "{}", left.stderr);
    provider.push(FakeReply::text("Here again."));
    let resumed = run_with(&provider, &project, &["resume", "away", "--model", "openai:any"]).await;
    assert_eq!((resumed.code, resumed.stdout.as_str()), (Some(0), "Here again.\n"), "{}", resumed.stderr);
}

/// The command does not wait for half a minute first: the provider has said that it is away for longer.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_provider_asks_for_too_long_a_pause_is_left_at_once() {
    let replies = [FakeReply::status(429).header("retry-after", "120")];
    let provider = FakeProvider::start(replies).await.expect("there is a port");
    let project = TestProject::new("[limits]\nprovider_wait = \"60s\"\n", "");
    let words = ["run", ".", "Hello?", "--model", "openai:any", "--run-id", "away"];
    let left = run_with(&provider, &project, &words).await;
    assert_eq!(left.code, Some(8), "{}", left.stderr);
    assert!(left.stderr.contains("`windlass resume away` goes on"), "{}", left.stderr);
    provider.push(FakeReply::text("Here again."));
    let resumed = run_with(&provider, &project, &["resume", "away", "--model", "openai:any"]).await;
    assert_eq!((resumed.code, resumed.stdout.as_str()), (Some(0), "Here again.\n"), "{}", resumed.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_no_retry_mends_fails_at_once() {
    let provider = FakeProvider::start([FakeReply::status(401)]).await.expect("there is a port");
    let project = TestProject::new("", "");
    let ran = run_with(&provider, &project, &["run", ".", "Hello?", "--model", "openai:any"]).await;
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert_eq!(provider.requests().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ban_on_live_requests_holds_for_the_command() {
    let provider = FakeProvider::start([FakeReply::text("Here.")]).await.expect("there is a port");
    let project = TestProject::new("", "");
    let words = ["run", ".", "Hello?", "--model", "openai:any"];
    let run_under = async |ban: &'static str, url: String| {
        let mut command = windlass_command(&project.folder(), &words);
        command.env("OPENAI_API_KEY", FAKE_KEY).env("OPENAI_BASE_URL", url).env("WINDLASS_NETWORK_BAN", ban);
        let ran = tokio::task::spawn_blocking(move || command.output().expect("it runs"));
        CommandOutput::from_output(ran.await.expect("it ends"))
    };
    // The run fails at once and does not wait for a provider that is away.
    for (ban, url) in
        [("all", provider.base_url()), ("except-loopback", "https://api.openai.com/v1".to_owned())]
    {
        let ran = run_under(ban, url).await;
        assert_eq!(ran.code, Some(1), "{ban}: {}", ran.stderr);
        assert!(ran.stderr.contains("live requests are banned in this process"), "{ban}: {}", ran.stderr);
    }
    assert_eq!(provider.requests().len(), 0);
    let ran = run_under("except-loopback", provider.base_url()).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "Here.\n"), "{}", ran.stderr);
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn retries_are_one_line_with_a_countdown() {
    let away = || FakeReply::status(503).header("retry-after", "0");
    // The provider may ask for more than the command's own longest delay.
    let replies = [away(), away(), FakeReply::status(503).header("retry-after", "120")];
    let provider = FakeProvider::start(replies).await.expect("there is a port");
    let project = TestProject::new("", "");
    let url = provider.base_url();
    let shown = tokio::task::spawn_blocking(move || {
        let variables = [("OPENAI_API_KEY", FAKE_KEY), ("OPENAI_BASE_URL", url.as_str())];
        let words = ["run", ".", "Hello?", "--model", "openai:any"];
        let mut screen = pty_screen::PtyScreen::start_with(project.folder(), 20, 100, &words, &variables);
        screen.wait_for("s, attempt 4");
        let shown = screen.screen_text();
        screen.type_keys("\x03");
        let (status, last) = screen.wait_for_exit();
        assert_eq!(status.code(), Some(4), "{last}");
        shown
    });
    let shown = shown.await.expect("it ends");
    assert_eq!(shown.matches("the model is away").count(), 1, "{shown}");
    assert!(shown.contains("again in "), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_file_names_its_own_server_with_settings() {
    let provider = FakeProvider::start([FakeReply::text("Good morning.")]).await.expect("there is a port");
    let file = format!(
        "model = \"lab:qwen\"\n[providers.lab]\nbase_url = \"{}?tenant=7\"\napi = \"chat\"\nkey_variable = \"LAB_KEY\"\n\
         headers = {{ x-team = \"env:TEAM\" }}\n[settings]\nseed = 7\nstop = [\"END\"]\n[settings.extra]\ntop_k = 3\n\
         [context]\nwindow = 32000\nsummary_model = \"lab:small\"\npinned_texts = [\"ticket\"]\n",
        provider.base_url()
    );
    let project = TestProject::new("", "");
    std::fs::write(project.file("agent.toml"), file).expect("it can be written");
    let mut command = windlass_command(&project.folder(), &["run", ".", "Hello."]);
    command.env("LAB_KEY", FAKE_KEY).env("TEAM", "a");
    let ran =
        tokio::task::spawn_blocking(move || CommandOutput::from_output(command.output().expect("it runs")));
    let ran = ran.await.expect("it ends");
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "Good morning.\n"), "{}", ran.stderr);
    let sent = provider.requests().remove(0);
    assert!(sent.path.ends_with("/chat/completions?tenant=7"), "{}", sent.path);
    assert_eq!(
        (sent.headers["x-team"].as_str(), sent.headers["authorization"].as_str()),
        ("a", format!("Bearer {FAKE_KEY}").as_str())
    );
    let body = &sent.body;
    assert_eq!((&body["seed"], &body["stop"][0], &body["top_k"]), (&7.into(), &"END".into(), &3.into()));

    let listed = project.run_windlass(&["models", "--json"]).json_lines();
    let find = |name: &str| listed.iter().find(|one| one["provider"] == name).expect("it is listed");
    assert_eq!(find("lab")["missing_variables"][0], "LAB_KEY");
    assert_eq!((&find("lab")["model"], &find("lab")["is_configured"]), (&"lab:qwen".into(), &false.into()));
    assert_eq!(find("ollama")["is_configured"], true);
    assert_eq!(find("openai")["missing_variables"][0], "OPENAI_API_KEY");
}

/// AWS credentials sign requests only in a build with the feature, which the hint says.
#[cfg(not(feature = "bedrock"))]
#[test]
fn aws_credentials_need_another_build() {
    let project = TestProject::new("", "");
    let run = |words: &[&str]| {
        let mut command = windlass_command(&project.folder(), words);
        command
            .env("AWS_ACCESS_KEY_ID", "AKIA1")
            .env("AWS_SECRET_ACCESS_KEY", "s")
            .env("AWS_REGION", "eu-west-1");
        command.env_remove("AWS_BEARER_TOKEN_BEDROCK");
        CommandOutput::from_output(command.output().expect("it runs"))
    };
    let refused = run(&["run", ".", "Hello?", "--model", "bedrock:amazon.nova-lite-v1:0"]);
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    let hint = refused.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(hint.contains("a build with `--features bedrock`"), "{hint}");
    let listed = run(&["models"]).stdout;
    let line = listed.lines().find(|line| line.starts_with("bedrock ")).expect("it is listed");
    assert!(line.contains("needs a build with `--features bedrock`"), "{line}");
}

/// A model of the environment is named like one of the agent file.
#[test]
fn the_model_of_the_environment_is_named() {
    let project = TestProject::new("", "[[answer]]\ntext = \"Hello.\"\n");
    let file = project.file("agent.toml");
    let agent = std::fs::read_to_string(&file).expect("it is there");
    std::fs::write(&file, agent.replace("model = \"scripted:answers.toml\"\n", ""))
        .expect("it can be written");
    let run = |words: &[&str]| {
        let mut command = windlass_command(&project.folder(), words);
        command.env("WINDLASS_MODEL", "scripted:answers.toml").env("GROQ_API_KEY", "k");
        CommandOutput::from_output(command.output().expect("it runs"))
    };
    let checked = run(&["doctor", "--json"]).json_lines();
    let find = |what: &str| checked.iter().find(|one| one["what"] == what).expect("it is checked");
    assert_eq!(find("model")["text"], "scripted:answers.toml");
    assert!(find("providers")["text"].as_str().expect("a text").contains("groq"), "{}", find("providers"));
    assert!(run(&["run", ".", "Hello?"]).stderr.contains("scripted:answers.toml · run"));
}

#[test]
fn a_setting_that_is_misspelt_is_said() {
    let project = TestProject::new("[settings]\ntemprature = 0.5\n", "");
    let ran = project.run_windlass(&["run", ".", "Hello."]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("temprature"), "{}", ran.stderr);
}

#[test]
fn the_providers_are_listed_without_an_agent() {
    let project = TestProject::new("", "");
    std::fs::remove_file(project.file("agent.toml")).expect("it is there");
    let ran = project.run_windlass(&["models"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let line = ran.stdout.lines().find(|line| line.starts_with("azure ")).expect("azure is listed");
    assert!(line.contains("needs AZURE_OPENAI_ENDPOINT and AZURE_OPENAI_API_KEY"), "{line}");
}

/// A project whose provider may be away for a moment only, and a provider that is.
async fn project_with_provider_away() -> (TestProject, FakeProvider) {
    let away = FakeReply::status(503).header("retry-after", "50");
    let provider = FakeProvider::start([away]).await.expect("there is a port");
    (TestProject::new("[limits]\nprovider_wait = \"100ms\"\n", ""), provider)
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn a_chat_goes_on_after_an_outage_that_ended_elsewhere() {
    let (project, provider) = project_with_provider_away().await;
    let url = provider.base_url();
    let shown = tokio::task::spawn_blocking(move || {
        let variables = [("OPENAI_API_KEY", FAKE_KEY), ("OPENAI_BASE_URL", url.as_str())];
        let words = ["chat", "--session", "s", "--model", "openai:any"];
        let mut screen = pty_screen::PtyScreen::start_with(project.folder(), 30, 100, &words, &variables);
        screen.wait_for_prompt();
        screen.type_keys("first\r");
        screen.wait_for("goes on where the run stopped");
        screen.wait_for_prompt();
        let runs = project.run_windlass(&["runs", "--json"]).json_lines();
        let run = runs[0]["run"].as_str().expect("a run").to_owned();
        assert_eq!(project.run_windlass(&["cancel", &run]).code, Some(0));
        provider.push(FakeReply::text("I am here."));
        screen.type_keys("second\r");
        screen.wait_for("I am here.");
        screen.wait_for_prompt();
        screen.type_keys("/quit\r");
        screen.wait_for_exit().1
    });
    let shown = shown.await.expect("it ends");
    assert!(!shown.contains("your message was not sent"), "{shown}");
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn what_was_undone_does_not_go_on() {
    let (project, provider) = project_with_provider_away().await;
    let url = provider.base_url();
    let provider = tokio::task::spawn_blocking(move || {
        let variables = [("OPENAI_API_KEY", FAKE_KEY), ("OPENAI_BASE_URL", url.as_str())];
        let words = ["chat", "--session", "s", "--model", "openai:any"];
        let mut screen = pty_screen::PtyScreen::start_with(project.folder(), 30, 100, &words, &variables);
        screen.wait_for_prompt();
        screen.type_keys("delete the old logs\r");
        screen.wait_for("goes on where the run stopped");
        screen.wait_for_prompt();
        screen.type_keys("/undo\r");
        screen.wait_for("is cancelled");
        screen.wait_for("were removed from the session");
        screen.wait_for_prompt();
        provider.push(FakeReply::text("Good morning."));
        screen.type_keys("hello\r");
        screen.wait_for("Good morning.");
        screen.wait_for_prompt();
        screen.type_keys("/quit\r");
        screen.wait_for_exit();
        provider
    });
    let provider = provider.await.expect("it ends");
    let requests = provider.requests();
    assert_eq!(requests.len(), 2);
    assert!(!requests[1].body.to_string().contains("delete the old logs"), "{}", requests[1].body);
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_broke_off_is_not_a_part_of_the_next() {
    let half = FakeReply::text("The total is four, or perhaps it is five after all.").in_deltas_of(4);
    let replies = [half.header("retry-after", "0").end_at(700), FakeReply::text("The total is 42.")];
    let provider = FakeProvider::start(replies).await.expect("there is a port");
    let project = TestProject::new("", "");
    let url = provider.base_url();
    let shown = tokio::task::spawn_blocking(move || {
        let variables = [("OPENAI_API_KEY", FAKE_KEY), ("OPENAI_BASE_URL", url.as_str())];
        let words = ["run", ".", "How much?", "--model", "openai-chat:any"];
        let mut screen = pty_screen::PtyScreen::start_with(project.folder(), 20, 100, &words, &variables);
        screen.wait_for("the answer broke off");
        screen.wait_for("The total is 42.");
        screen.wait_for_exit().1
    });
    let shown = shown.await.expect("it ends");
    assert!(shown.lines().any(|line| line.trim() == "The total is 42."), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_in_a_pipe_ends_with_the_exit_of_its_last_turn() {
    for (reply, code) in [
        (FakeReply::status(401), 1),
        (FakeReply::status(503).header("retry-after", "50"), 8),
        (FakeReply::text("Hello."), 0),
    ] {
        let provider = FakeProvider::start([reply]).await.expect("there is a port");
        let project = TestProject::new("[limits]\nprovider_wait = \"100ms\"\n", "");
        let mut command = windlass_command(&project.folder(), &["chat", "--model", "openai:any"]);
        command.env("OPENAI_API_KEY", FAKE_KEY).env("OPENAI_BASE_URL", provider.base_url());
        command.stdin(std::process::Stdio::piped());
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let ran = tokio::task::spawn_blocking(move || {
            let mut chat = command.spawn().expect("it runs");
            std::io::Write::write_all(&mut chat.stdin.take().expect("it is piped"), b"hi\n")
                .expect("it reads");
            CommandOutput::from_output(chat.wait_with_output().expect("it ends"))
        });
        let ran = ran.await.expect("it ends");
        assert_eq!(ran.code, Some(code), "{}", ran.stderr);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hint_for_a_wrong_key_names_the_variable_of_the_file() {
    let provider = FakeProvider::start([FakeReply::status(401)]).await.expect("there is a port");
    let file = format!(
        "model = \"lab:qwen\"\n[providers.lab]\nbase_url = \"{}\"\napi = \"chat\"\nkey_variable = \"LAB_KEY\"\n",
        provider.base_url()
    );
    let project = TestProject::new("", "");
    std::fs::write(project.file("agent.toml"), file).expect("it can be written");
    let mut command = windlass_command(&project.folder(), &["run", ".", "Hello."]);
    command.env("LAB_KEY", FAKE_KEY);
    let ran =
        tokio::task::spawn_blocking(move || CommandOutput::from_output(command.output().expect("it runs")));
    let ran = ran.await.expect("it ends");
    assert!(ran.stderr.contains("check the key in LAB_KEY"), "{}", ran.stderr);
}
