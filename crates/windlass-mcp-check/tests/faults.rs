//! Faults of a server, in both protocol eras.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod common;

use std::time::Duration;

use common::{ERAS, FaultyServerFixture, call_outputs, scripted_server};
use windlass::core::decision::HoldReason;
use windlass::prelude::*;
use windlass_mcp::{
    McpApprovalPolicy, McpConfig, McpConnections, McpServerConfig, McpServerState, ProtocolEra,
    SamplingResponse, ToolNaming,
};

#[tokio::test]
async fn calls_and_their_results() {
    for era in ERAS {
        let desk = FaultyServerFixture::new(era, &["broken"]).await;
        let model = ScriptedModel::new([
            ScriptedResponse::call("c1", "echo", json!({ "text": "hello" }))
                .and_call("c2", "fail", json!({}))
                .and_call("c3", "refuse", json!({}))
                .and_call("c4", "picture", json!({}))
                .and_call("c5", "structured", json!({}))
                .and_call("c6", "echo", json!({ "text": 7 }))
                .and_call("c7", "dangling", json!({ "text": "unchecked" }))
                .and_call("c8", "misfit", json!({}))
                .and_call("c9", "wordless", json!({})),
            ScriptedResponse::text("done"),
        ]);
        let outcome =
            desk.build_agent(&model, McpApprovalPolicy::Never).run("go").await.expect("the run ends well");
        let said = call_outputs(&outcome);
        assert_eq!(said["c1"], "hello");
        assert!(said["c2"].contains("the drawer is stuck"), "{said:?}");
        assert!(said["c3"].contains("not like this"), "{said:?}");
        assert_eq!(said["c4"], "a dot");
        assert_eq!(said["c5"], r#"{"degrees":21}"#);
        assert!(
            said["c6"].contains("must be a string"),
            "checked here, before the server is asked: {said:?}"
        );
        assert_eq!(said["c7"], "unchecked");
        for word in ["The call was made", "degrees", "must be a number", "warm"] {
            assert!(said["c8"].contains(word), "{word} in {}", said["c8"]);
        }
        assert!(said["c9"].contains("no structured part") && said["c9"].contains("21"), "{}", said["c9"]);
        let items = outcome.record().run_items();
        let has_picture = items.iter().any(|item| {
            let text = serde_json::to_string(&item.item).expect("items are written");
            text.contains("data:image/png;base64,iVBORw0KGgo=")
        });
        assert!(has_picture);
        assert_eq!(desk.ledger_lines("called echo").len(), 1, "what does not fit is not sent");
        desk.servers.close().await;
        desk.servers.close().await;
    }
}

#[tokio::test]
async fn one_bad_tool_is_left_out_alone() {
    for era in ERAS {
        let desk = FaultyServerFixture::new(era, &["broken"]).await;
        let report = desk.servers.report().await;
        let expected = if era == "modern" { ProtocolEra::Modern } else { ProtocolEra::Legacy };
        assert_eq!(report.servers[0].state, McpServerState::Ready { era: Some(expected), tools: 15 });
        let warnings = report.servers[0].warnings.join("\n");
        for word in ["`no_schema`", "`text_schema`", "`list_schema`", "without a name", "`echo` twice"] {
            assert!(warnings.contains(word), "{word} in {warnings}");
        }
        let kept = desk.servers.list_tools().await;
        let echo = kept.iter().find(|tool| &*tool.name == "echo").expect("echo is there");
        assert_eq!(echo.input_schema["$defs"]["kept"]["$anchor"], "kept", "schemas are not touched");
        let config = McpConfig::new().server(scripted_server(era, &desk.ledger(), &["broken"]));
        let error = McpConnections::connect_strict(config).await.err().expect("strict means all");
        assert!(error.to_string().contains("no_schema"), "{error}");
    }
}

#[tokio::test]
async fn a_server_that_dies_in_a_call_is_told_and_the_call_is_not_repeated() {
    for era in ERAS {
        let desk = FaultyServerFixture::new(era, &[]).await;
        let model = ScriptedModel::new([
            ScriptedResponse::call("c1", "die", json!({})),
            ScriptedResponse::call("c2", "echo", json!({ "text": "again" })),
            ScriptedResponse::text("done"),
        ]);
        let outcome =
            desk.build_agent(&model, McpApprovalPolicy::Never).run("go").await.expect("the run ends well");
        let said = call_outputs(&outcome);
        assert!(said["c1"].contains("is not known: find out"), "{said:?}");
        assert!(!said["c1"].contains("try again"), "{said:?}");
        assert_eq!(said["c2"], "again", "it was started anew");
        assert_eq!(desk.ledger_lines("called die").len(), 1, "never repeated by itself");
    }
}

#[tokio::test]
async fn a_deadline_tells_the_server_to_stop() {
    for era in ERAS {
        let folder = tempfile::tempdir().expect("a folder");
        let ledger = folder.path().join("ledger");
        let server = scripted_server(era, &ledger, &[]).call_timeout(Duration::from_millis(200));
        let servers = McpConnections::connect(McpConfig::new().server(server)).await;
        let model = ScriptedModel::new([
            ScriptedResponse::call("c1", "slow", json!({})),
            ScriptedResponse::text("done"),
        ]);
        let agent =
            Agent::new("desk").model(model).tool_source(servers.tools().approve(McpApprovalPolicy::Never));
        let outcome = agent.run("go").await.expect("the run ends well");
        assert!(call_outputs(&outcome)["c1"].contains("timed out"), "{:?}", call_outputs(&outcome));
        common::wait_until(|| {
            windlass_mcp_check::read_lines(&ledger).iter().any(|line| line.starts_with("cancelled"))
        })
        .await;
    }
}

#[tokio::test]
async fn progress_is_told_while_a_call_runs() {
    for era in ERAS {
        let desk = FaultyServerFixture::new(era, &[]).await;
        let model = ScriptedModel::new([
            ScriptedResponse::call("c1", "steps", json!({})),
            ScriptedResponse::text("done"),
        ]);
        let mut stream = desk.build_agent(&model, McpApprovalPolicy::Never).run("go").stream();
        let mut told = Vec::new();
        while let Some(event) = stream.next().await {
            if let RunEventKind::CallProgress { progress, .. } = event.kind {
                told.push(progress["message"].as_str().unwrap_or_default().to_owned());
            }
        }
        assert_eq!(told, ["step 1", "step 2", "step 3"], "{era}");
    }
}

#[tokio::test]
async fn five_hundred_tools_are_listed_once_and_offered_in_order() {
    for era in ERAS {
        let desk = FaultyServerFixture::new(era, &["many"]).await;
        let calls = (0..10).map(|at| {
            ScriptedResponse::call(&format!("c{at}"), "tool_499", json!({ "text": at.to_string() }))
        });
        let model = ScriptedModel::new(calls.chain([ScriptedResponse::text("done")]));
        desk.build_agent(&model, McpApprovalPolicy::Never)
            .run("go")
            .max_turns(20)
            .await
            .expect("the run ends well");
        let requests = model.requests();
        assert_eq!(requests.len(), 11);
        assert!(requests.iter().all(|request| request.tools.len() == 500));
        assert_eq!(
            (requests[0].tools[0].as_str(), requests[0].tools[499].as_str()),
            ("tool_000", "tool_499")
        );
        assert!(
            desk.ledger_lines("listed").len() <= 10,
            "five pages, and once more when the subscription stands"
        );
    }
}

#[tokio::test]
async fn a_list_that_changes_is_asked_for_again() {
    for era in ERAS {
        let desk = FaultyServerFixture::new(era, &[]).await;
        let model = ScriptedModel::new([
            ScriptedResponse::call("c1", "grow", json!({})),
            ScriptedResponse::call("c2", "grown_0", json!({})),
            ScriptedResponse::text("done"),
        ]);
        let outcome =
            desk.build_agent(&model, McpApprovalPolicy::Never).run("go").await.expect("the run ends well");
        assert_eq!(call_outputs(&outcome)["c2"], "grown_0 is here", "{era}: {:?}", model.requests()[1].tools);
    }
}

#[tokio::test]
async fn a_list_without_an_end_ends() {
    for era in ERAS {
        let desk = FaultyServerFixture::new(era, &["circle"]).await;
        let report = desk.servers.report().await;
        assert!(
            report.servers[0].warnings.iter().any(|warning| warning.contains("repeats a page cursor")),
            "{report:?}"
        );
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_takes_nobody_with_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = folder.path().join("ledger");
    let named = |name: &str, faults: &[&str]| {
        let mut words = vec!["legacy".to_owned(), ledger.display().to_string()];
        words.extend(faults.iter().map(|&fault| fault.to_owned()));
        McpServerConfig::stdio(name, env!("CARGO_BIN_EXE_scripted"))
            .args(words)
            .connect_timeout(Duration::from_secs(120))
    };
    let config = McpConfig::new()
        .server(named("good", &[]))
        .server(named("dead", &["dead"]))
        .server(named("mute", &["mute"]).connect_timeout(Duration::from_millis(1500)))
        .server(McpServerConfig::stdio("gone", "/nowhere/at/all"))
        .server(
            McpServerConfig::http("closed", "http://127.0.0.1:1/mcp")
                .connect_timeout(Duration::from_secs(60)),
        );
    let servers = McpConnections::connect(config.clone()).await;
    let missing = servers.report().await.unavailable_servers().join("\n");
    for word in [
        "`dead`",
        "I was never any good",
        "`mute`",
        "did not answer",
        "`gone`",
        "cannot be started",
        "`closed`",
    ] {
        assert!(missing.contains(word), "{word} in {missing}");
    }
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "echo", json!({ "text": "still here" })),
        ScriptedResponse::text("done"),
        ScriptedResponse::text("alone"),
    ]);
    let agent =
        Agent::new("desk").model(model).tool_source(servers.tools().approve(McpApprovalPolicy::Never));
    let outcome = agent.run("go").await.expect("the run ends well");
    assert_eq!(call_outputs(&outcome)["c1"], "still here");

    let strict = McpConnections::connect_strict(config).await;
    assert!(strict.is_err(), "all or nothing");
    servers.close().await;
    let error = agent.run("go").await;
    assert!(error.is_ok(), "closed servers have no tools, and the agent goes on without: {error:?}");
}

#[tokio::test]
async fn a_question_of_a_server_pauses_the_run() {
    for era in ERAS {
        let desk = FaultyServerFixture::new(era, &[]).await;
        let model = ScriptedModel::new([
            ScriptedResponse::call("c1", "ask", json!({})),
            ScriptedResponse::text("done"),
        ]);
        let agent = desk.build_agent(&model, McpApprovalPolicy::Never);
        let outcome = agent.run("go").await.expect("it pauses");
        let RunResult::Paused(paused) = outcome else { panic!("{era}: {outcome:?}") };
        let mut paused = PausedRun::from_text(&paused.to_text()).expect("it is whole");
        let pending = &paused.pending_calls()[0];
        let HoldReason::Question(question) = &pending.reason else { panic!("{pending:?}") };
        assert_eq!(question.text, "Which colour?");
        assert!(paused.answer_question("c1", json!({ "colour": 3 })).is_err(), "the server said what fits");
        paused.answer_question("c1", json!({ "colour": "blue" })).expect("it fits");
        let outcome = agent.resume(paused).await.expect("the run ends well");
        assert_eq!(call_outputs(&outcome)["c1"], "painted blue", "{era}");
        let painted = desk.ledger_lines("painted");
        assert_eq!(painted.len(), 1, "{era}: {painted:?}");
        assert!(painted[0].contains("blue"), "{painted:?}");
    }
}

#[tokio::test]
async fn names_that_two_servers_share_are_told_apart() {
    let folder = tempfile::tempdir().expect("a folder");
    let (one, other) = (folder.path().join("one"), folder.path().join("other"));
    let config = McpConfig::new()
        .server(scripted_server("legacy", &one, &[]).include_tools(["echo"]))
        .server(common::scripted_server_named("second", "modern", &other, &[]).include_tools(["echo"]));
    let servers = McpConnections::connect(config).await;
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "mcp_second__echo", json!({ "text": "hi" })),
        ScriptedResponse::text("done"),
        ScriptedResponse::text("prefixed"),
    ]);
    let agent = Agent::new("desk")
        .model(model.clone())
        .tool_source(servers.tools().approve(McpApprovalPolicy::Never));
    let mut stream = agent.run("go").stream();
    let mut warnings = Vec::new();
    while let Some(event) = stream.next().await {
        if let RunEventKind::Warning { message } = event.kind {
            warnings.push(message);
        }
    }
    assert_eq!(model.requests()[0].tools, ["mcp_scripted__echo", "mcp_second__echo"]);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(windlass_mcp_check::read_lines(&one).iter().all(|line| !line.starts_with("called")));
    assert_eq!(
        windlass_mcp_check::read_lines(&other).iter().filter(|line| line.starts_with("called")).count(),
        1
    );
    let prefixed = servers.tools().naming(ToolNaming::Prefixed);
    Agent::new("desk").model(model.clone()).tool_source(prefixed).run("go").await.expect("the run ends well");
    assert_eq!(model.requests()[2].tools, ["mcp_scripted__echo", "mcp_second__echo"]);
}

#[tokio::test]
async fn approvals_belong_to_the_server_and_its_tool() {
    let desk = FaultyServerFixture::new("legacy", &[]).await;
    let asked = |approve: McpApprovalPolicy, trusted: bool| {
        let desk = &desk;
        async move {
            let server = scripted_server("legacy", &desk.ledger(), &[]);
            let server = if trusted { server.trusted() } else { server };
            let servers = McpConnections::connect(McpConfig::new().server(server)).await;
            let model = ScriptedModel::new([
                ScriptedResponse::call("c1", "echo", json!({ "text": "a" })).and_call(
                    "c2",
                    "steps",
                    json!({}),
                ),
                ScriptedResponse::text("done"),
            ]);
            let agent = Agent::new("desk").model(model).tool_source(servers.tools().approve(approve));
            match agent.run("go").await.expect("it ends or pauses") {
                RunResult::Paused(paused) => {
                    paused.pending_calls().iter().map(|pending| pending.tool.to_string()).collect::<Vec<_>>()
                }
                _ => Vec::new(),
            }
        }
    };
    let key = |name: &str| format!("mcp:scripted/{name}");
    assert_eq!(asked(McpApprovalPolicy::Never, false).await, [""; 0]);
    assert_eq!(asked(McpApprovalPolicy::Always, true).await, [key("echo"), key("steps")]);
    assert_eq!(
        asked(McpApprovalPolicy::ByHints, false).await,
        [key("echo"), key("steps")],
        "a server's word lifts nothing"
    );
    assert_eq!(
        asked(McpApprovalPolicy::ByHints, true).await,
        [""; 0],
        "a trusted one's does: both are harmless, it says"
    );
    assert_eq!(asked(McpApprovalPolicy::always_except(["echo"]), false).await, [key("steps")]);
    let rule = McpApprovalPolicy::when(|_, tool, arguments| async move {
        &*tool.name == "echo" && arguments["text"] == "a"
    });
    assert_eq!(asked(rule, false).await, [key("echo")]);
    let panics = McpApprovalPolicy::when(|_, _, _| async { panic!("a rule that fails asks") });
    assert_eq!(asked(panics, false).await.len(), 2);
}

#[tokio::test]
async fn a_filter_that_fails_hides_its_tool() {
    let desk = FaultyServerFixture::new("legacy", &[]).await;
    let model = ScriptedModel::new([ScriptedResponse::text("done")]);
    let tools = desk.servers.tools().filter(|_, tool| match &*tool.name {
        "fail" => panic!("not today"),
        name => name == "echo" || name == "ask",
    });
    let tools = tools.filter_async(|ctx: RunContext<()>, tool| async move {
        assert_eq!(ctx.agent().as_str(), "desk");
        if &*tool.name == "ask" { Err("no opinion") } else { Ok(true) }
    });
    let agent = Agent::new("desk").model(model.clone()).tool_source(tools);
    agent.run("go").await.expect("the run ends well");
    assert_eq!(model.requests()[0].tools, ["echo"]);
}

/// A list of tools that hangs after a change does not take the tools away, and does not hold up calls.
#[tokio::test]
async fn the_last_list_stays_while_a_new_one_hangs() {
    for era in ERAS {
        let desk = FaultyServerFixture::new(era, &["hang_list"]).await;
        let model = ScriptedModel::new([
            ScriptedResponse::call("c1", "grow", json!({})),
            ScriptedResponse::call("c2", "echo", json!({ "text": "still here" })),
            ScriptedResponse::text("done"),
        ]);
        let outcome =
            desk.build_agent(&model, McpApprovalPolicy::Never).run("go").await.expect("the run ends well");
        assert_eq!(call_outputs(&outcome)["c2"], "still here", "{era}: {:?}", model.requests()[1].tools);
        assert_eq!(model.requests()[1].tools, model.requests()[0].tools, "{era}");
    }
}

#[tokio::test]
async fn a_url_that_a_server_requires_is_a_question() {
    for (era, answer, output) in
        [("legacy", json!("done"), "visit is here"), ("modern", json!(null), "the person declined")]
    {
        let desk = FaultyServerFixture::new(era, &[]).await;
        let model = ScriptedModel::new([
            ScriptedResponse::call("c1", "visit", json!({})),
            ScriptedResponse::text("done"),
        ]);
        let agent = desk.build_agent(&model, McpApprovalPolicy::Never);
        let RunResult::Paused(mut paused) = agent.run("go").await.expect("it pauses") else {
            panic!("{era}: it should wait")
        };
        let HoldReason::Question(question) = &paused.pending_calls()[0].reason else { panic!("a question") };
        assert!(
            question.text.contains("Allow the payment.")
                && question.text.contains("https://bank.example/allow")
        );
        paused.answer_question("c1", answer).expect("it fits");
        let outcome = agent.resume(paused).await.expect("the run ends well");
        assert!(call_outputs(&outcome)["c1"].contains(output), "{era}: {:?}", call_outputs(&outcome));
    }
}

/// A person declines a question, and the server hears of it.
#[tokio::test]
async fn a_person_can_decline_a_question() {
    let desk = FaultyServerFixture::new("legacy", &[]).await;
    let model =
        ScriptedModel::new([ScriptedResponse::call("c1", "ask", json!({})), ScriptedResponse::text("done")]);
    let agent = desk.build_agent(&model, McpApprovalPolicy::Never);
    let RunResult::Paused(mut paused) = agent.run("go").await.expect("it pauses") else { panic!("it waits") };
    paused.answer_question("c1", json!(null)).expect("it fits");
    let outcome = agent.resume(paused).await.expect("the run ends well");
    assert_eq!(call_outputs(&outcome)["c1"], "nobody said a colour");
    assert_eq!(desk.ledger_lines("answered"), ["answered cancel", "answered decline"]);
}

/// Two calls of a legacy server ask at the same time; both questions reach the person, and each answer its call.
#[tokio::test]
async fn parallel_questions_are_both_asked() {
    let desk = FaultyServerFixture::new("legacy", &[]).await;
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "ask", json!({ "text": "door" })).and_call(
            "c2",
            "ask",
            json!({ "text": "roof" }),
        ),
        ScriptedResponse::text("done"),
    ]);
    let agent = desk.build_agent(&model, McpApprovalPolicy::Never);
    let mut outcome = agent.run("go").await.expect("it pauses");
    for _ in 0..4 {
        let RunResult::Paused(mut paused) = outcome else { break };
        for pending in paused.pending_calls() {
            let HoldReason::Question(question) = &pending.reason else { panic!("{pending:?}") };
            let colour = if question.text.contains("door") { "red" } else { "grey" };
            paused.answer_question(pending.path.clone(), json!({ "colour": colour })).expect("it fits");
        }
        outcome = agent.resume(paused).await.expect("the run goes on");
    }
    let said = call_outputs(&outcome);
    assert_eq!((said["c1"].as_str(), said["c2"].as_str()), ("painted red", "painted grey"));
    let mut painted = desk.ledger_lines("painted");
    painted.sort();
    assert_eq!(painted, [r#"painted "grey""#, r#"painted "red""#], "each once");
}

#[tokio::test]
async fn an_unknown_version_of_the_protocol_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let config =
        McpConfig::new().server(scripted_server("legacy", &folder.path().join("ledger"), &["future"]));
    let servers = McpConnections::connect(config).await;
    let missing = servers.report().await.unavailable_servers().join("\n");
    assert!(missing.contains("`2099-01-01`") && missing.contains("2025-11-25"), "{missing}");
}

#[tokio::test]
async fn the_instructions_of_a_server_can_be_read() {
    let desk = FaultyServerFixture::new("legacy", &[]).await;
    let all = desk.servers.server_instructions().await;
    assert_eq!((all[0].server.as_str(), all[0].text.as_str()), ("scripted", "Be gentle."));
}

/// Roots and sampling are offered by policy, in both protocol eras.
#[tokio::test]
async fn a_server_gets_roots_and_sampling_if_it_may() {
    for era in ERAS {
        let folder = tempfile::tempdir().expect("a folder");
        let server = scripted_server(era, &folder.path().join("ledger"), &[]);
        let allowed = server.clone().root("/srv/my files").sampling(|request| async move {
            assert_eq!((request.server.as_str(), request.max_tokens), ("scripted", 9));
            assert_eq!(request.system_prompt.as_deref(), Some("Be brief."));
            Ok(SamplingResponse { model: "abacus".into(), text: format!("{} 4", request.messages[0].text) })
        });
        for (server, output) in [(allowed, "file:///srv/my%20files 2+2? 4"), (server, "not offered")] {
            let servers = McpConnections::connect(McpConfig::new().server(server)).await;
            let model = ScriptedModel::new([
                ScriptedResponse::call("c1", "sample", json!({})),
                ScriptedResponse::text("done"),
            ]);
            let agent = Agent::new("desk")
                .model(model)
                .tool_source(servers.tools().approve(McpApprovalPolicy::Never));
            let outcome = agent.run("go").await.expect("the run ends well");
            assert!(call_outputs(&outcome)["c1"].contains(output), "{era}: {:?}", call_outputs(&outcome));
        }
    }
}
