//! The server under test of the official conformance suite, with the tools, resources and prompts that the suite
//! requires.
//!
//! Usage: `conformance-server`. It prints its URL on one line, and serves until its standard input ends.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use windlass::core::{decision::PersonQuestion, item::MediaSource};
use windlass::prelude::*;
use windlass::tool::{FilePart, ImagePart, OutputPart, TextPart};
use windlass_mcp::{
    McpPrompt, McpPromptArgument, McpPromptMessage, McpResource, McpResourceContents, McpServer, TaskPolicy,
    named_question,
};

const PNG_BASE64: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const WAV_BASE64: &str = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA=";

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}/mcp", listener.local_addr()?);
    let stop = async {
        let _ended = tokio::io::stdin().read_to_end(&mut Vec::new()).await;
    };
    build_server().serve_http(listener, stop).await?;
    Ok(())
}

fn build_server() -> McpServer {
    let server = McpServer::new("windlass-conformance").instructions("What the conformance suite wants.");
    let server = content_tools()
        .into_iter()
        .chain(elicitation_tools())
        .chain(task_tools())
        .fold(server, McpServer::tool);
    let server = server.agent(&two_question_agent(), "multi_input", "Asks two things at once.");
    let server = server
        .task_policy_for("greet", TaskPolicy::Never)
        .task_policy_for("slow_compute", TaskPolicy::Always)
        .task_policy_for("failing_job", TaskPolicy::Required)
        .task_policy_for("protocol_error_job", TaskPolicy::Always)
        .task_policy_for("confirm_delete", TaskPolicy::Always)
        .task_policy_for("multi_input", TaskPolicy::Always)
        .task_policy_for("test_tool_with_task", TaskPolicy::WhenSlow(Duration::from_secs(2)));
    test_prompts().into_iter().fold(add_resources(server), McpServer::prompt)
}

/// Creates a tool without arguments.
fn tool_without_arguments<F, Fut, T>(name: &str, body: F) -> Tool
where
    F: Fn(ToolContext, Value) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, ToolError>> + Send + 'static,
    T: serde::Serialize + 'static,
{
    tool_with_schema(name, json!({ "type": "object", "properties": {} }), body)
}

fn tool_with_schema<F, Fut, T>(name: &str, schema: Value, body: F) -> Tool
where
    F: Fn(ToolContext, Value) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, ToolError>> + Send + 'static,
    T: serde::Serialize + 'static,
{
    Tool::dynamic(name, &format!("What the suite wants of {name}."), schema, body).non_strict()
}

fn file_output(name: &str, media_type: &str, base64: &str) -> FilePart {
    FilePart(MediaSource {
        name: Some(name.to_owned()),
        data: Some(base64.to_owned()),
        media_type: Some(media_type.to_owned()),
        ..MediaSource::default()
    })
}

fn image_output() -> ImagePart {
    ImagePart::from_url(format!("data:image/png;base64,{PNG_BASE64}"))
}

fn content_tools() -> Vec<Tool> {
    let schema_2020 = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": { "address": {
            "$anchor": "address", "type": "object",
            "properties": { "street": { "type": "string" }, "city": { "type": "string" } },
        } },
        "properties": { "name": { "type": "string" }, "address": { "$ref": "#/$defs/address" } },
        "allOf": [{ "anyOf": [{ "required": ["name"] }, { "required": ["address"] }] }],
        "if": { "required": ["address"] },
        "then": { "properties": { "address": { "required": ["street"] } } },
        "else": { "required": ["name"] },
        "additionalProperties": false,
    });
    let header = json!({
        "type": "object",
        "properties": { "value": { "type": "string", "x-mcp-header": "Value" } },
        "required": ["value"],
    });
    vec![
        tool_without_arguments("test_simple_text", |_, _| async {
            Ok("This is a simple text response for testing.")
        }),
        tool_without_arguments("test_image_content", |_, _| async { Ok(vec![image_output()]) }),
        tool_without_arguments("test_audio_content", |_, _| async {
            Ok(file_output("sound.wav", "audio/wav", WAV_BASE64))
        }),
        tool_without_arguments("test_embedded_resource", |_, _| async {
            Ok(file_output("test://embedded-resource", "text/plain", "VGhpcyBpcyBlbWJlZGRlZC4="))
        }),
        tool_without_arguments("test_multiple_content_types", |_, _| async {
            let media = |media: FilePart| windlass::core::item::ContentPart::File(media.0);
            Ok(vec![
                OutputPart(windlass::core::item::ContentPart::text("Multiple content types test:")),
                OutputPart(windlass::core::item::ContentPart::Image(image_output().0)),
                OutputPart(media(file_output(
                    "test://mixed-content-resource",
                    "application/json",
                    "eyJ0ZXN0Ijp0cnVlfQ==",
                ))),
            ])
        }),
        tool_without_arguments("test_tool_with_logging", |ctx, _| async move {
            for words in ["Tool execution started", "Tool processing data", "Tool execution completed"] {
                ctx.report_progress(words);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Ok("Logging test completed")
        }),
        tool_without_arguments("test_logging_tool", |ctx, _| async move {
            ctx.report_progress("nobody asked to hear this");
            Ok("done")
        }),
        tool_without_arguments("test_error_handling", |_, _| async {
            Err::<(), _>(ToolError::visible("This tool intentionally returns an error for testing"))
        }),
        tool_without_arguments("test_tool_with_progress", |ctx, _| async move {
            for (progress, message) in [(0, "Starting"), (50, "Halfway"), (100, "Complete")] {
                ctx.report_progress(json!({ "progress": progress, "total": 100, "message": message }));
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Ok("Progress test completed")
        }),
        tool_without_arguments("test_reconnection", |_, _| async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            Ok("Reconnection test completed")
        }),
        tool_with_schema("json_schema_2020_12_tool", schema_2020, |_, given| async move {
            Ok(format!("Hello, {}!", given["name"].as_str().unwrap_or("world")))
        }),
        tool_with_schema("test_custom_header", header, |_, given| async move {
            Ok(given["value"].as_str().unwrap_or_default().to_owned())
        }),
        // The tool requires approval, so the client must support elicitation.
        tool_without_arguments("test_missing_capability", |_, _| async { Ok("asked") }).needs_approval(),
    ]
}

/// Returns the answer to a question, or the question as an error if there is none yet.
fn answer_or_ask(ctx: &ToolContext, question: PersonQuestion) -> Result<Value, ToolError> {
    ctx.answer_to(&question).cloned().ok_or_else(|| ToolError::ask_person(question))
}

fn form_schema(properties: Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required })
}

fn name_question(text: &str) -> PersonQuestion {
    named_question(
        "user_name",
        PersonQuestion::new(text)
            .with_schema(form_schema(json!({ "name": { "type": "string" } }), &["name"])),
    )
}

fn elicitation_tools() -> Vec<Tool> {
    let message = json!({
        "type": "object", "properties": { "message": { "type": "string" } }, "required": ["message"],
    });
    let defaults = json!({
        "name": { "type": "string", "default": "John Doe" },
        "age": { "type": "integer", "default": 30 },
        "score": { "type": "number", "default": 95.5 },
        "status": { "type": "string", "enum": ["active", "inactive", "pending"], "default": "active" },
        "verified": { "type": "boolean", "default": true },
    });
    let titled = json!([
        { "const": "value1", "title": "First Option" },
        { "const": "value2", "title": "Second Option" },
        { "const": "value3", "title": "Third Option" },
    ]);
    let options = json!(["option1", "option2", "option3"]);
    let choices = json!({
        "untitledSingle": { "type": "string", "enum": options },
        "titledSingle": { "type": "string", "oneOf": titled },
        "legacyEnum": {
            "type": "string", "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": { "type": "array", "items": { "type": "string", "enum": options } },
        "titledMulti": { "type": "array", "items": { "anyOf": titled } },
    });
    let confirm = |name: &'static str| {
        tool_without_arguments(name, |ctx, _| async move {
            let wanted = form_schema(json!({ "ok": { "type": "boolean" } }), &["ok"]);
            answer_or_ask(
                &ctx,
                named_question("confirm", PersonQuestion::new("Please confirm").with_schema(wanted)),
            )?;
            Ok("Confirmed: state-ok")
        })
    };
    let named = |name: &'static str| {
        tool_without_arguments(name, |ctx, _| async move {
            let said = answer_or_ask(&ctx, name_question("What is your name?"))?;
            Ok(format!("Hello, {}!", said["name"].as_str().unwrap_or("friend")))
        })
    };
    vec![
        tool_with_schema("test_elicitation", message, |ctx, given| async move {
            let text = json!({ "type": "string" });
            let wanted = form_schema(json!({ "username": text, "email": text }), &["username", "email"]);
            let said = answer_or_ask(
                &ctx,
                PersonQuestion::new(given["message"].as_str().unwrap_or_default()).with_schema(wanted),
            )?;
            Ok(format!("User response: {said}"))
        }),
        tool_without_arguments("test_elicitation_sep1034_defaults", move |ctx, _| {
            let question =
                PersonQuestion::new("Please provide values").with_schema(form_schema(defaults.clone(), &[]));
            async move { Ok(format!("Elicitation completed: {}", answer_or_ask(&ctx, question)?)) }
        }),
        tool_without_arguments("test_elicitation_sep1330_enums", move |ctx, _| {
            let question =
                PersonQuestion::new("Please choose").with_schema(form_schema(choices.clone(), &[]));
            async move { Ok(format!("Elicitation completed: {}", answer_or_ask(&ctx, question)?)) }
        }),
        tool_without_arguments("test_streaming_elicitation", |ctx, _| async move {
            ctx.report_progress("about to ask");
            answer_or_ask(&ctx, name_question("Who?"))?;
            Ok("done")
        }),
        named("test_input_required_result_elicitation"),
        named("test_input_required_result_capabilities"),
        confirm("test_input_required_result_request_state"),
        confirm("test_input_required_result_tampered_state"),
        tool_without_arguments("test_input_required_result_multi_round", |ctx, _| async move {
            let name = form_schema(json!({ "name": { "type": "string" } }), &["name"]);
            answer_or_ask(
                &ctx,
                named_question("step1", PersonQuestion::new("Step 1: who?").with_schema(name)),
            )?;
            let colour = form_schema(json!({ "color": { "type": "string" } }), &["color"]);
            answer_or_ask(
                &ctx,
                named_question("step2", PersonQuestion::new("Step 2: which colour?").with_schema(colour)),
            )?;
            Ok("Multi-round flow complete")
        }),
    ]
}

fn task_tools() -> Vec<Tool> {
    let greet =
        json!({ "type": "object", "properties": { "name": { "type": "string" } }, "required": ["name"] });
    let slow = json!({
        "type": "object", "properties": { "seconds": { "type": "number" }, "label": { "type": "string" } },
    });
    let delete = json!({ "type": "object", "properties": { "filename": { "type": "string" } } });
    vec![
        tool_with_schema("greet", greet, |_, given| async move {
            Ok(format!("Hello, {}!", given["name"].as_str().unwrap_or("friend")))
        }),
        tool_with_schema("slow_compute", slow, |_, given| async move {
            let seconds = given["seconds"].as_f64().unwrap_or(1.0);
            tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
            Ok(format!("done after {seconds} s"))
        }),
        tool_without_arguments("failing_job", |_, _| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Err::<(), _>(ToolError::visible("it failed, as it should"))
        }),
        tool_without_arguments("protocol_error_job", |_, _| async {
            Err::<(), _>(ToolError::hidden("it ends the run"))
        })
        .on_failure(windlass::tool::OnFailure::FailRun),
        tool_with_schema("confirm_delete", delete, |ctx, given| async move {
            let wanted = form_schema(json!({ "confirm": { "type": "boolean" } }), &["confirm"]);
            let name = given["filename"].as_str().unwrap_or("file").to_owned();
            let said =
                answer_or_ask(&ctx, PersonQuestion::new(format!("Delete {name}?")).with_schema(wanted))?;
            Ok(format!("{name}: {}", said["confirm"]))
        }),
        tool_without_arguments("test_tool_with_task", |ctx, _| async move {
            let said = answer_or_ask(&ctx, name_question("What is your name?"))?;
            tokio::time::sleep(Duration::from_secs(4)).await;
            Ok(TextPart(format!("Hello, {}!", said["name"].as_str().unwrap_or("friend"))))
        }),
    ]
}

/// Creates an agent with two calls that wait for an answer at the same time.
fn two_question_agent() -> Agent {
    let ask = tool_without_arguments("ask", |ctx, _| async move {
        let wanted = form_schema(json!({ "name": { "type": "string" } }), &[]);
        answer_or_ask(&ctx, PersonQuestion::new("Who?").with_schema(wanted)).map(|said| said.to_string())
    });
    let once = |_| {
        [
            ScriptedResponse::call("a", "ask", json!({})).and_call("b", "ask", json!({})),
            ScriptedResponse::text("both were answered"),
        ]
    };
    let model = ScriptedModel::new((0..20).flat_map(once));
    Agent::new("asker").model(model).tool(ask)
}

fn add_resources(server: McpServer) -> McpServer {
    server
        .resource(McpResource::text(
            "test://static-text",
            "Static text",
            "This is the content of the static text resource.",
        ))
        .resource(McpResource::text("test://watched-resource", "Watched text", "Watched."))
        .resource(
            McpResource::base64("test://static-binary", "Static bytes", PNG_BASE64).media_type("image/png"),
        )
        .resource(
            McpResource::with_reader(
                "test://template/{id}/data",
                "By number",
                |places: BTreeMap<String, String>| async move {
                    let id = &places["id"];
                    Ok(Some(McpResourceContents::Text(json!({ "id": id, "templateTest": true }).to_string())))
                },
            )
            .media_type("application/json")
            .suggest("id", ["1", "2", "3"]),
        )
}

fn test_prompts() -> Vec<McpPrompt> {
    let says = |text: String| async move { Ok(vec![McpPromptMessage::User(text)]) };
    vec![
        McpPrompt::new("test_simple_prompt", "Simple.", move |_| {
            says("This is a simple prompt for testing.".to_owned())
        }),
        McpPrompt::new("test_prompt_with_arguments", "With places.", move |given| {
            let of = |name: &str| given.get(name).cloned().unwrap_or_default();
            says(format!("Prompt with arguments: arg1='{}', arg2='{}'", of("arg1"), of("arg2")))
        })
        .argument(McpPromptArgument::required("arg1", "The first.").suggest(["paris", "park", "party"]))
        .argument(McpPromptArgument::optional("arg2", "The second.")),
        McpPrompt::new("test_prompt_with_embedded_resource", "With a resource.", |given| async move {
            let uri =
                given.get("resourceUri").cloned().unwrap_or_else(|| "test://example-resource".to_owned());
            Ok(vec![
                McpPromptMessage::Resource {
                    uri,
                    media_type: "text/plain".to_owned(),
                    text: "Embedded.".to_owned(),
                },
                McpPromptMessage::User("Please process the embedded resource above.".to_owned()),
            ])
        })
        .argument(McpPromptArgument::optional("resourceUri", "Where it is.")),
        McpPrompt::new("test_prompt_with_image", "With a picture.", |_| async {
            Ok(vec![
                McpPromptMessage::Image { base64: PNG_BASE64.to_owned(), media_type: "image/png".to_owned() },
                McpPromptMessage::User("Please analyse the picture above.".to_owned()),
            ])
        }),
    ]
}
