//! The server that the official conformance suite is run against: tools, resources and prompts as the suite wants them,
//! served by the library as any other.
//!
//! `conformance-server`: says its address on a line, and serves until its input ends.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use windlass::core::{Media, Question};
use windlass::prelude::*;
use windlass::tool::{File, Image, Part, Text};
use windlass_mcp::{Argument, Contents, McpServer, Message, Prompt, Resource, Tasks, named_question};

const PICTURE: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const SOUND: &str = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA=";

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}/mcp", listener.local_addr()?);
    let stop = async {
        let _ended = tokio::io::stdin().read_to_end(&mut Vec::new()).await;
    };
    server().serve_http(listener, stop).await?;
    Ok(())
}

fn server() -> McpServer {
    let server = McpServer::new("windlass-conformance").instructions("What the conformance suite wants.");
    let server = contents().into_iter().chain(questions()).chain(jobs()).fold(server, McpServer::tool);
    let server = server.agent(&two_questions(), "multi_input", "Asks two things at once.");
    let server = server
        .tasks_for("greet", Tasks::Never)
        .tasks_for("slow_compute", Tasks::Always)
        .tasks_for("failing_job", Tasks::Only)
        .tasks_for("protocol_error_job", Tasks::Always)
        .tasks_for("confirm_delete", Tasks::Always)
        .tasks_for("multi_input", Tasks::Always)
        .tasks_for("test_tool_with_task", Tasks::WhenSlow(Duration::from_secs(2)));
    prompts().into_iter().fold(resources(server), McpServer::prompt)
}

/// A tool without arguments.
fn plain<F, Fut, T>(name: &str, body: F) -> Tool
where
    F: Fn(ToolContext, Value) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, ToolError>> + Send + 'static,
    T: serde::Serialize + 'static,
{
    with(name, json!({ "type": "object", "properties": {} }), body)
}

fn with<F, Fut, T>(name: &str, schema: Value, body: F) -> Tool
where
    F: Fn(ToolContext, Value) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, ToolError>> + Send + 'static,
    T: serde::Serialize + 'static,
{
    Tool::dynamic(name, &format!("What the suite wants of {name}."), schema, body).non_strict()
}

fn file(name: &str, media_type: &str, base64: &str) -> File {
    File(Media {
        name: Some(name.to_owned()),
        data: Some(base64.to_owned()),
        media_type: Some(media_type.to_owned()),
        ..Media::default()
    })
}

fn picture() -> Image {
    Image::at(format!("data:image/png;base64,{PICTURE}"))
}

fn contents() -> Vec<Tool> {
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
        plain("test_simple_text", |_, _| async { Ok("This is a simple text response for testing.") }),
        plain("test_image_content", |_, _| async { Ok(vec![picture()]) }),
        plain("test_audio_content", |_, _| async { Ok(file("sound.wav", "audio/wav", SOUND)) }),
        plain("test_embedded_resource", |_, _| async {
            Ok(file("test://embedded-resource", "text/plain", "VGhpcyBpcyBlbWJlZGRlZC4="))
        }),
        plain("test_multiple_content_types", |_, _| async {
            let media = |media: File| windlass::core::Content::File(media.0);
            Ok(vec![
                Part(windlass::core::Content::text("Multiple content types test:")),
                Part(windlass::core::Content::Image(picture().0)),
                Part(media(file(
                    "test://mixed-content-resource",
                    "application/json",
                    "eyJ0ZXN0Ijp0cnVlfQ==",
                ))),
            ])
        }),
        plain("test_tool_with_logging", |ctx, _| async move {
            for words in ["Tool execution started", "Tool processing data", "Tool execution completed"] {
                ctx.progress(words);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Ok("Logging test completed")
        }),
        plain("test_logging_tool", |ctx, _| async move {
            ctx.progress("nobody asked to hear this");
            Ok("done")
        }),
        plain("test_error_handling", |_, _| async {
            Err::<(), _>(ToolError::tell("This tool intentionally returns an error for testing"))
        }),
        plain("test_tool_with_progress", |ctx, _| async move {
            for (progress, message) in [(0, "Starting"), (50, "Halfway"), (100, "Complete")] {
                ctx.progress(json!({ "progress": progress, "total": 100, "message": message }));
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Ok("Progress test completed")
        }),
        plain("test_reconnection", |_, _| async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            Ok("Reconnection test completed")
        }),
        with("json_schema_2020_12_tool", schema_2020, |_, given| async move {
            Ok(format!("Hello, {}!", given["name"].as_str().unwrap_or("world")))
        }),
        with("test_custom_header", header, |_, given| async move {
            Ok(given["value"].as_str().unwrap_or_default().to_owned())
        }),
        // It needs a person, so it needs a client that can ask one.
        plain("test_missing_capability", |_, _| async { Ok("asked") }).approve_always(),
    ]
}

/// The answer to a question, or the question.
fn asked(ctx: &ToolContext, question: Question) -> Result<Value, ToolError> {
    ctx.reply(&question).cloned().ok_or_else(|| ToolError::ask(question))
}

fn form(properties: Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required })
}

fn of_name(text: &str) -> Question {
    named_question(
        "user_name",
        Question::new(text).schema(form(json!({ "name": { "type": "string" } }), &["name"])),
    )
}

fn questions() -> Vec<Tool> {
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
        plain(name, |ctx, _| async move {
            let wanted = form(json!({ "ok": { "type": "boolean" } }), &["ok"]);
            asked(&ctx, named_question("confirm", Question::new("Please confirm").schema(wanted)))?;
            Ok("Confirmed: state-ok")
        })
    };
    let named = |name: &'static str| {
        plain(name, |ctx, _| async move {
            let said = asked(&ctx, of_name("What is your name?"))?;
            Ok(format!("Hello, {}!", said["name"].as_str().unwrap_or("friend")))
        })
    };
    vec![
        with("test_elicitation", message, |ctx, given| async move {
            let text = json!({ "type": "string" });
            let wanted = form(json!({ "username": text, "email": text }), &["username", "email"]);
            let said =
                asked(&ctx, Question::new(given["message"].as_str().unwrap_or_default()).schema(wanted))?;
            Ok(format!("User response: {said}"))
        }),
        plain("test_elicitation_sep1034_defaults", move |ctx, _| {
            let question = Question::new("Please provide values").schema(form(defaults.clone(), &[]));
            async move { Ok(format!("Elicitation completed: {}", asked(&ctx, question)?)) }
        }),
        plain("test_elicitation_sep1330_enums", move |ctx, _| {
            let question = Question::new("Please choose").schema(form(choices.clone(), &[]));
            async move { Ok(format!("Elicitation completed: {}", asked(&ctx, question)?)) }
        }),
        plain("test_streaming_elicitation", |ctx, _| async move {
            ctx.progress("about to ask");
            asked(&ctx, of_name("Who?"))?;
            Ok("done")
        }),
        named("test_input_required_result_elicitation"),
        named("test_input_required_result_capabilities"),
        confirm("test_input_required_result_request_state"),
        confirm("test_input_required_result_tampered_state"),
        plain("test_input_required_result_multi_round", |ctx, _| async move {
            let name = form(json!({ "name": { "type": "string" } }), &["name"]);
            asked(&ctx, named_question("step1", Question::new("Step 1: who?").schema(name)))?;
            let colour = form(json!({ "color": { "type": "string" } }), &["color"]);
            asked(&ctx, named_question("step2", Question::new("Step 2: which colour?").schema(colour)))?;
            Ok("Multi-round flow complete")
        }),
    ]
}

fn jobs() -> Vec<Tool> {
    let greet =
        json!({ "type": "object", "properties": { "name": { "type": "string" } }, "required": ["name"] });
    let slow = json!({
        "type": "object", "properties": { "seconds": { "type": "number" }, "label": { "type": "string" } },
    });
    let delete = json!({ "type": "object", "properties": { "filename": { "type": "string" } } });
    vec![
        with("greet", greet, |_, given| async move {
            Ok(format!("Hello, {}!", given["name"].as_str().unwrap_or("friend")))
        }),
        with("slow_compute", slow, |_, given| async move {
            let seconds = given["seconds"].as_f64().unwrap_or(1.0);
            tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
            Ok(format!("done after {seconds} s"))
        }),
        plain("failing_job", |_, _| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Err::<(), _>(ToolError::tell("it failed, as it should"))
        }),
        plain("protocol_error_job", |_, _| async { Err::<(), _>(ToolError::hidden("it ends the run")) })
            .on_failure(windlass::OnFailure::Fail),
        with("confirm_delete", delete, |ctx, given| async move {
            let wanted = form(json!({ "confirm": { "type": "boolean" } }), &["confirm"]);
            let name = given["filename"].as_str().unwrap_or("file").to_owned();
            let said = asked(&ctx, Question::new(format!("Delete {name}?")).schema(wanted))?;
            Ok(format!("{name}: {}", said["confirm"]))
        }),
        plain("test_tool_with_task", |ctx, _| async move {
            let said = asked(&ctx, of_name("What is your name?"))?;
            tokio::time::sleep(Duration::from_secs(4)).await;
            Ok(Text(format!("Hello, {}!", said["name"].as_str().unwrap_or("friend"))))
        }),
    ]
}

/// An agent both of whose calls wait for an answer at the same time.
fn two_questions() -> Agent {
    let ask = plain("ask", |ctx, _| async move {
        let wanted = form(json!({ "name": { "type": "string" } }), &[]);
        asked(&ctx, Question::new("Who?").schema(wanted)).map(|said| said.to_string())
    });
    let once = |_| {
        [
            Reply::call("a", "ask", json!({})).and_call("b", "ask", json!({})),
            Reply::text("both were answered"),
        ]
    };
    let model = ScriptedModel::new((0..20).flat_map(once));
    Agent::new("asker").model(model).tool(ask)
}

fn resources(server: McpServer) -> McpServer {
    server
        .resource(Resource::text(
            "test://static-text",
            "Static text",
            "This is the content of the static text resource.",
        ))
        .resource(Resource::text("test://watched-resource", "Watched text", "Watched."))
        .resource(Resource::base64("test://static-binary", "Static bytes", PICTURE).media_type("image/png"))
        .resource(
            Resource::reading(
                "test://template/{id}/data",
                "By number",
                |places: BTreeMap<String, String>| async move {
                    let id = &places["id"];
                    Ok(Some(Contents::Text(json!({ "id": id, "templateTest": true }).to_string())))
                },
            )
            .media_type("application/json")
            .suggest("id", ["1", "2", "3"]),
        )
}

fn prompts() -> Vec<Prompt> {
    let says = |text: String| async move { Ok(vec![Message::User(text)]) };
    vec![
        Prompt::new("test_simple_prompt", "Simple.", move |_| {
            says("This is a simple prompt for testing.".to_owned())
        }),
        Prompt::new("test_prompt_with_arguments", "With places.", move |given| {
            let of = |name: &str| given.get(name).cloned().unwrap_or_default();
            says(format!("Prompt with arguments: arg1='{}', arg2='{}'", of("arg1"), of("arg2")))
        })
        .argument(Argument::required("arg1", "The first.").suggest(["paris", "park", "party"]))
        .argument(Argument::optional("arg2", "The second.")),
        Prompt::new("test_prompt_with_embedded_resource", "With a resource.", |given| async move {
            let uri =
                given.get("resourceUri").cloned().unwrap_or_else(|| "test://example-resource".to_owned());
            Ok(vec![
                Message::Resource { uri, media_type: "text/plain".to_owned(), text: "Embedded.".to_owned() },
                Message::User("Please process the embedded resource above.".to_owned()),
            ])
        })
        .argument(Argument::optional("resourceUri", "Where it is.")),
        Prompt::new("test_prompt_with_image", "With a picture.", |_| async {
            Ok(vec![
                Message::Image { base64: PICTURE.to_owned(), media_type: "image/png".to_owned() },
                Message::User("Please analyse the picture above.".to_owned()),
            ])
        }),
    ]
}
