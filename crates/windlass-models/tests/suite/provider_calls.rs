//! Calls of tools that a provider defines and the application executes: every one becomes a call, and its output goes
//! back in the item type that belongs to it.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass::core::item::{CallKind, CallOutput, Item, OutputStatus, ToolCall};
use windlass::model::{ModelSettings, PromptCaching, ToolKind};
use windlass::prelude::*;
use windlass::run::OnUnknownTool;
use windlass::tool::{CustomInputFormat, PatchOperation, ShellAction, ShellCommandOutput, ShellOutcome};
use windlass_models::StreamingMode;
use windlass_models::testing::{FakeProvider, FakeReply};

use crate::support::{AdapterTestRequest, AdapterUnderTest, BOTH_MODES, function_tool, send_once};

/// Items that ask the application to act, each with its call's name and arguments, and the item that its output
/// `done` becomes.
fn client_calls() -> Vec<(Value, &'static str, Value, Value)> {
    let exit = json!({ "type": "exit", "exit_code": 0 });
    vec![
        (
            json!({
                "type": "shell_call", "id": "sh_1", "call_id": "c1", "status": "completed",
                "action": { "commands": ["ls"], "timeout_ms": 5, "max_output_length": 80 },
                "environment": { "type": "local" },
            }),
            "shell",
            json!({ "commands": ["ls"], "timeout_ms": 5, "max_output_length": 80 }),
            json!({
                "type": "shell_call_output", "call_id": "c1", "max_output_length": 80,
                "output": [{ "stdout": "done", "stderr": "", "outcome": exit }],
            }),
        ),
        (
            json!({
                "type": "local_shell_call", "id": "lsh_1", "call_id": "c1", "status": "completed",
                "action": { "type": "exec", "command": ["ls"], "env": {} },
            }),
            "local_shell",
            json!({ "type": "exec", "command": ["ls"], "env": {} }),
            json!({ "type": "local_shell_call_output", "call_id": "c1", "output": "done" }),
        ),
        (
            json!({
                "type": "apply_patch_call", "id": "apc_1", "call_id": "c1", "status": "completed",
                "operation": { "type": "delete_file", "path": "a.txt" },
            }),
            "apply_patch",
            json!({ "type": "delete_file", "path": "a.txt" }),
            json!({ "type": "apply_patch_call_output", "call_id": "c1", "status": "completed", "output": "done" }),
        ),
        (
            json!({ "type": "custom_tool_call", "id": "ctc_1", "call_id": "c1", "name": "sum", "input": "1+\"2\"" }),
            "sum",
            json!({ "input": "1+\"2\"" }),
            json!({ "type": "custom_tool_call_output", "call_id": "c1", "output": "done" }),
        ),
        (
            json!({
                "type": "tool_search_call", "id": "ts_1", "call_id": "c1", "status": "completed",
                "execution": "client", "arguments": { "query": "weather" },
            }),
            "tool_search",
            json!({ "query": "weather" }),
            json!({
                "type": "tool_search_output", "call_id": "c1", "execution": "client", "status": "completed",
                "tools": [],
            }),
        ),
        (
            json!({
                "type": "teleport_call", "id": "tp_1", "call_id": "c1", "status": "completed",
                "target": "Oslo", "caller": { "type": "direct" },
            }),
            "teleport",
            json!({ "target": "Oslo", "caller": { "type": "direct" } }),
            json!({ "type": "teleport_call_output", "call_id": "c1", "output": "done" }),
        ),
    ]
}

fn only_call(items: &[Arc<Item>]) -> &ToolCall {
    let [item] = items else { panic!("{items:?}") };
    let Item::Call(call) = &**item else { panic!("{item:?}") };
    call
}

#[tokio::test]
async fn an_item_that_asks_the_client_to_act_is_a_call_and_its_output_has_its_own_type() {
    for streaming in BOTH_MODES {
        for (item, name, arguments, output) in client_calls() {
            let provider = FakeProvider::start([FakeReply::item(item.clone()), FakeReply::text("Done.")])
                .await
                .expect("one");
            let model = AdapterUnderTest::Responses.model(&provider, streaming);
            let answer = AdapterTestRequest::from_text("Go.").send(&model).await.expect("an answer");
            let call = only_call(&answer.items);
            assert_eq!((call.kind, call.name.as_str()), (CallKind::ProviderDefined, name));
            assert_eq!(call.provider_type(), item["type"].as_str());
            assert_eq!(serde_json::from_str::<Value>(&call.arguments).expect("JSON"), arguments);
            let done = CallOutput {
                call: call.id.clone(),
                content: "done".into(),
                status: OutputStatus::Ok,
                sources: Default::default(),
            };
            let mut next = AdapterTestRequest::from_text("Go.");
            // The journal keeps items as JSON.
            let kept = serde_json::to_string(&answer.items[0]).expect("JSON");
            next.input.push(Arc::new(serde_json::from_str(&kept).expect("an item")));
            next.input.push(Arc::new(Item::Output(done)));
            next.send(&model).await.expect("an answer");
            let input = &provider.requests()[1].body["input"];
            assert_eq!(input[1], item, "the call goes back as it came");
            assert_eq!(input[2], output);
        }
    }
}

#[tokio::test]
async fn a_failed_call_says_so_in_the_form_of_its_output() {
    let said = "A person refused.";
    let entry = json!({ "stdout": "", "stderr": said, "outcome": { "type": "exit", "exit_code": 1 } });
    let note = json!([
        { "type": "input_text", "text": "[Of call c1]" },
        { "type": "input_text", "text": said },
    ]);
    for (kind, field, expected) in [
        ("shell_call", "output", json!([entry])),
        ("apply_patch_call", "status", json!("failed")),
        ("tool_search_call", "tools", json!([])),
    ] {
        let (item, ..) = client_calls().into_iter().find(|(item, ..)| item["type"] == kind).expect("it");
        let provider =
            FakeProvider::start([FakeReply::item(item), FakeReply::text("Done.")]).await.expect("one");
        let model = AdapterUnderTest::Responses.model(&provider, StreamingMode::Never);
        let answer = AdapterTestRequest::from_text("Go.").send(&model).await.expect("an answer");
        let mut next = AdapterTestRequest { input: answer.items, ..AdapterTestRequest::default() };
        let failed = CallOutput {
            call: "c1".into(),
            content: said.into(),
            status: OutputStatus::Failed,
            sources: Default::default(),
        };
        next.input.push(Arc::new(Item::Output(failed)));
        next.send(&model).await.expect("an answer");
        let input = &provider.requests()[1].body["input"];
        assert_eq!(input[1][field], expected, "{kind}");
        assert_eq!(
            input[2]["content"] == note,
            kind == "tool_search_call",
            "a search has no field for words"
        );
    }
}

#[tokio::test]
async fn a_call_that_the_provider_executed_stays_its_own() {
    let shell = json!({
        "type": "shell_call", "id": "sh_1", "call_id": "c1", "status": "completed",
        "action": { "commands": ["ls"] }, "environment": { "type": "container_reference", "container_id": "k" },
    });
    let output = json!({
        "type": "shell_call_output", "id": "sho_1", "call_id": "c1", "status": "completed",
        "output": [{ "stdout": "a", "stderr": "", "outcome": { "type": "exit", "exit_code": 0 } }],
    });
    let search = json!({
        "type": "tool_search_call", "id": "ts_1", "call_id": null, "execution": "server", "status": "completed",
        "arguments": { "query": "x" },
    });
    for streaming in BOTH_MODES {
        let reply = FakeReply::item(shell.clone())
            .and_item(output.clone())
            .and_item(search.clone())
            .and_text("Done.");
        let answer = send_once(AdapterUnderTest::Responses, streaming, reply).await.expect("an answer");
        for (item, raw) in answer.items.iter().zip([&shell, &output, &search]) {
            assert!(matches!(&**item, Item::HostedTool(hosted) if hosted.raw == *raw), "{item:?}");
        }
    }
}

#[tokio::test]
async fn another_provider_sees_an_ordinary_function_call() {
    let (item, ..) = client_calls().swap_remove(0);
    let answer = send_once(AdapterUnderTest::Responses, StreamingMode::Never, FakeReply::item(item))
        .await
        .expect("it");
    let mut next = AdapterTestRequest { input: answer.items, ..AdapterTestRequest::default() };
    let done = CallOutput {
        call: "c1".into(),
        content: "done".into(),
        status: OutputStatus::Ok,
        sources: Default::default(),
    };
    next.input.push(Arc::new(Item::Output(done)));
    let provider = FakeProvider::start([FakeReply::text("Done.")]).await.expect("one");
    let other = provider.openai().provider_id("another").responses("fake-1").expect("a model");
    next.send(&other.into()).await.expect("an answer");
    let arguments = r#"{"commands":["ls"],"max_output_length":80,"timeout_ms":5}"#;
    assert_eq!(
        provider.requests()[0].body["input"],
        json!([
            { "type": "function_call", "call_id": "c1", "name": "shell", "arguments": arguments },
            { "type": "function_call_output", "call_id": "c1", "output": "done" },
        ])
    );
}

fn shell_tool() -> Tool {
    Tool::shell(|_, action: ShellAction| async move {
        let run = |command: String| ShellCommandOutput {
            stdout: format!("ran {command}"),
            stderr: String::new(),
            outcome: ShellOutcome::Exit { exit_code: 0 },
        };
        Ok::<_, String>(action.commands.into_iter().map(run).collect())
    })
}

#[tokio::test]
async fn a_run_executes_the_tools_that_the_agent_has_for_them() {
    let calls = client_calls();
    let item = |at: usize| {
        let mut item = calls[at].0.clone();
        item["call_id"] = format!("c{at}").into();
        item
    };
    let reply = FakeReply::item(item(0)).and_item(item(2)).and_item(item(3));
    let provider = FakeProvider::start([reply, FakeReply::text("Done.")]).await.expect("one");
    let patch: Tool = Tool::apply_patch(|_, operation: PatchOperation| async move {
        match operation {
            PatchOperation::DeleteFile { path } => Ok::<_, String>(format!("deleted {path}")),
            other => Err(format!("{other:?}")),
        }
    });
    let format = CustomInputFormat::Lark("start: /.+/");
    let sum: Tool = Tool::custom("sum", "Adds.", format, |_, text: String| async move {
        Ok::<_, String>(format!("{text}=3"))
    });
    let agent = Agent::new("clerk").model(provider.openai().responses("fake-1").expect("a model")).tools((
        shell_tool(),
        patch,
        sum,
    ));
    let outcome = agent.run("Go.").await.expect("it ends");
    assert_eq!(outcome.output_text().expect("it finished"), "Done.");
    let requests = provider.requests();
    assert_eq!(
        requests[0].body["tools"],
        json!([
            { "type": "shell", "environment": { "type": "local" } },
            { "type": "apply_patch" },
            {
                "type": "custom", "name": "sum", "description": "Adds.",
                "format": { "type": "grammar", "syntax": "lark", "definition": "start: /.+/" },
            },
        ])
    );
    let exit = json!({ "type": "exit", "exit_code": 0 });
    let input = requests[1].body["input"].as_array().expect("a list");
    assert_eq!(
        input[4..],
        [
            json!({
                "type": "shell_call_output", "call_id": "c0", "max_output_length": 80,
                "output": [{ "stdout": "ran ls", "stderr": "", "outcome": exit }],
            }),
            json!({
                "type": "apply_patch_call_output", "call_id": "c2", "status": "completed", "output": "deleted a.txt",
            }),
            json!({ "type": "custom_tool_call_output", "call_id": "c3", "output": "1+\"2\"=3" }),
        ]
    );
}

#[tokio::test]
async fn a_call_that_nobody_offered_is_answered_as_an_unknown_tool() {
    for (item, name, ..) in client_calls() {
        let provider = FakeProvider::start([FakeReply::item(item.clone()), FakeReply::text("Done.")])
            .await
            .expect("one");
        let agent = Agent::new("clerk").model(provider.openai().responses("fake-1").expect("a model"));
        agent.run("Go.").on_unknown_tool(OnUnknownTool::TellModel).await.expect("it ends");
        let body = &provider.requests()[1].body["input"];
        let answered = body.as_array().expect("a list").iter().filter(|item| item["call_id"] == "c1").count();
        assert_eq!(answered, 2, "a call and its output: {body}");
        assert!(body.to_string().contains(&format!("Tool '{name}' not found.")), "{body}");

        let provider = FakeProvider::start([FakeReply::item(item)]).await.expect("one");
        let agent = Agent::new("clerk").model(provider.openai().responses("fake-1").expect("a model"));
        let failed = agent.run("Go.").on_unknown_tool(OnUnknownTool::FailRun).await;
        assert!(failed.is_err(), "{name} fails the run where unknown tools do");
    }
}

#[tokio::test]
async fn a_tool_of_the_messages_api_is_offered_in_its_form_and_found_by_its_name() {
    let block = json!({
        "type": "tool_use", "id": "c1", "name": "bash", "input": { "command": "ls" },
        "caller": { "type": "direct" },
    });
    for streaming in BOTH_MODES {
        let provider = FakeProvider::start([FakeReply::item(block.clone()), FakeReply::text("Done.")])
            .await
            .expect("one");
        let definition = json!({ "type": "bash_20250124", "name": "bash" });
        let search = json!({ "type": "web_search_20250305", "name": "web_search", "max_uses": 2 });
        let shell: Tool = Tool::dynamic(
            "terminal",
            "",
            json!({ "type": "object", "properties": { "command": { "type": "string" } } }),
            |_, arguments: Value| async move { Ok::<_, String>(format!("ran {}", arguments["command"])) },
        )
        .provider_form(definition.clone());
        let model = provider.anthropic().messages("fake-1").expect("a model").streaming(streaming);
        let settings = ModelSettings { prompt_cache: Some(PromptCaching::Off), ..ModelSettings::default() };
        let agent = Agent::new("clerk").model(model).tools((shell, Tool::hosted(search.clone())));
        let agent = agent.model_settings(settings);
        agent.run("Go.").await.expect("it ends");
        let requests = provider.requests();
        assert_eq!(requests[0].body["tools"], json!([definition, search]));
        assert_eq!(requests[1].body["messages"][1]["content"], json!([block]), "it goes back as it came");
        assert_eq!(
            requests[1].body["messages"][2]["content"],
            json!([{ "type": "tool_result", "tool_use_id": "c1", "content": "ran \"ls\"" }])
        );
    }
}

#[tokio::test]
async fn a_custom_call_of_chat_completions_is_a_call() {
    let call = json!({ "id": "c1", "type": "custom", "custom": { "name": "sum", "input": "1+2" } });
    let plain = json!({
        "id": "chatcmpl-1",
        "choices": [{
            "index": 0, "finish_reason": "tool_calls",
            "message": { "role": "assistant", "content": null, "tool_calls": [call] },
        }],
    });
    let streamed = "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"c1\",\"type\":\"custom\",\"custom\":{\"name\":\"sum\",\"input\":\"1\"}}]}}]}\n\n\
                    data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"custom\":{\"input\":\"+2\"}}]},\"finish_reason\":\"tool_calls\"}]}\n\n";
    for (streaming, reply) in [
        (StreamingMode::Never, FakeReply::json_body(plain.to_string())),
        (StreamingMode::Always, FakeReply::event_body(streamed)),
    ] {
        let provider = FakeProvider::start([reply, FakeReply::text("Done.")]).await.expect("one");
        let sum: Tool =
            Tool::custom("sum", "Adds.", CustomInputFormat::Regex("[0-9+]+"), |_, text: String| async move {
                Ok::<_, String>(format!("{text}=3"))
            });
        let model = provider.openai().chat("fake-1").expect("a model").streaming(streaming);
        Agent::new("clerk").model(model).tool(sum).run("Go.").await.expect("it ends");
        let requests = provider.requests();
        assert_eq!(
            requests[0].body["tools"],
            json!([{
                "type": "custom",
                "custom": {
                    "name": "sum", "description": "Adds.",
                    "format": { "type": "grammar", "grammar": { "syntax": "regex", "definition": "[0-9+]+" } },
                },
            }])
        );
        let messages = requests[1].body["messages"].as_array().expect("a list");
        assert_eq!(
            messages[1..],
            [
                json!({ "role": "assistant", "content": null, "tool_calls": [call] }),
                json!({ "role": "tool", "tool_call_id": "c1", "content": "1+2=3" }),
            ]
        );
    }
}

#[tokio::test]
async fn a_tool_of_another_api_is_refused_before_anything_runs() {
    let provider = FakeProvider::start([]).await.expect("one");
    let mut tool = function_tool("bash");
    let dated = Arc::new(json!({ "type": "bash_20250124", "name": "bash" }));
    let shell = Arc::new(json!({ "type": "shell" }));
    for (adapter, definition, is_supported) in [
        (AdapterUnderTest::Responses, &shell, true),
        (AdapterUnderTest::Responses, &dated, false),
        (AdapterUnderTest::Messages, &shell, false),
        (AdapterUnderTest::Messages, &dated, true),
        (AdapterUnderTest::Chat, &shell, false),
        (AdapterUnderTest::Chat, &dated, false),
    ] {
        for kind in [ToolKind::ProviderDefined(definition.clone()), ToolKind::Hosted(definition.clone())] {
            tool.kind = kind;
            let model = adapter.model(&provider, StreamingMode::Never);
            assert_eq!(model.check_tool_support(&tool).is_ok(), is_supported, "{adapter:?}: {definition}");
        }
    }
}
