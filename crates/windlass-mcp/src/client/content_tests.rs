use serde_json::json;

use super::*;

fn convert(result: Value, expected: Option<&Value>) -> Result<McpToolOutput, ToolError> {
    let Some(result) = ServerToolResult::from_value(result) else { panic!("it is a result") };
    let expected = expected.map(|schema| CompiledSchema::new(schema.clone().into()));
    convert_result(result, expected.as_ref())
}

#[test]
fn every_kind_of_content_is_passed_on() {
    let content = json!([
        { "type": "text", "text": "words" },
        { "type": "image", "data": "aQ==", "mimeType": "image/png" },
        { "type": "audio", "data": "YQ==", "mimeType": "audio/wav" },
        { "type": "resource", "resource": { "uri": "a://text", "mimeType": "text/plain", "text": "inside" } },
        { "type": "resource", "resource": { "uri": "a://bytes", "mimeType": "application/zip", "blob": "Yg==" } },
        { "type": "resource_link", "uri": "a://link", "name": "elsewhere" },
    ]);
    let Ok(McpToolOutput::Parts(parts)) = convert(json!({ "content": content }), None) else {
        panic!("they are parts")
    };
    let [
        McpOutputPart::Text(TextPart(words)),
        McpOutputPart::Image(image),
        McpOutputPart::File(sound),
        McpOutputPart::Text(TextPart(uri)),
        McpOutputPart::Text(TextPart(inside)),
        McpOutputPart::Text(TextPart(other_uri)),
        McpOutputPart::File(bytes),
        McpOutputPart::Text(TextPart(link)),
    ] = parts.as_slice()
    else {
        panic!("there are eight")
    };
    assert_eq!((words.as_str(), inside.as_str()), ("words", "inside"));
    assert_eq!((uri.as_str(), other_uri.as_str()), ("[resource a://text]", "[resource a://bytes]"));
    assert_eq!(image.0.url.as_deref(), Some("data:image/png;base64,aQ=="));
    assert_eq!((sound.0.media_type.as_deref(), sound.0.data.as_deref()), (Some("audio/wav"), Some("YQ==")));
    assert_eq!((bytes.0.name.as_deref(), bytes.0.data.as_deref()), (Some("a://bytes"), Some("Yg==")));
    assert!(link.contains("a://link") && link.contains("elsewhere"), "{link}");
}

#[test]
fn a_structured_result_is_held_against_what_was_promised() {
    let promised =
        json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] });
    let fits = convert(json!({ "content": [], "structuredContent": { "n": 1 } }), Some(&promised));
    assert!(matches!(fits, Ok(McpToolOutput::Text(text)) if text == r#"{"n":1}"#));
    for result in [
        json!({ "content": [{ "type": "text", "text": "one" }], "structuredContent": { "n": "one" } }),
        json!({ "content": [{ "type": "text", "text": "one" }] }),
    ] {
        let Err(error) = convert(result, Some(&promised)) else { panic!("it does not fit") };
        let words = error.model_message().unwrap_or_default();
        assert!(words.starts_with("The call was made") && words.contains("one"), "{words}");
    }
    // The output schema does not apply to a failure.
    let failed =
        convert(json!({ "content": [{ "type": "text", "text": "no" }], "isError": true }), Some(&promised));
    let Err(error) = failed else { panic!("it failed") };
    assert_eq!(error.model_message(), Some("no"));
}

fn texts_of(result: Value) -> Vec<String> {
    match convert(result, None) {
        Ok(McpToolOutput::Text(text)) => vec![text],
        Ok(McpToolOutput::Parts(parts)) => {
            parts.iter().filter_map(McpOutputPart::as_text).map(str::to_owned).collect()
        }
        Err(error) => vec![error.message().to_owned()],
    }
}

#[test]
fn an_unknown_type_takes_nothing_with_it() {
    let texts = texts_of(json!({ "content": [
        { "type": "text", "text": "kept" },
        { "type": "hologram", "data": "xyz" },
        { "type": "image", "data": 7 },
    ] }));
    assert_eq!(texts, ["kept", r#"{"data":"xyz","type":"hologram"}"#, r#"{"data":7,"type":"image"}"#]);
}

#[test]
fn structured_content_is_kept_unless_the_text_is_the_same_json() {
    let both = |text: &str| {
        texts_of(
            json!({ "content": [{ "type": "text", "text": text }], "structuredContent": { "a": 1, "b": 2 } }),
        )
    };
    assert_eq!(both(r#"{ "b": 2, "a": 1 }"#), [r#"{ "b": 2, "a": 1 }"#]);
    let wrapped =
        json!({ "content": [{ "type": "text", "text": "kept" }], "structuredContent": { "result": "kept" } });
    assert_eq!(texts_of(wrapped), ["kept"]);
    // The values 1 and 2 occur in the text, but not which of them is which.
    assert_eq!(both("1 or 2"), ["1 or 2", r#"{"a":1,"b":2}"#]);
}

#[test]
fn parts_above_the_limit_are_counted() {
    let many = vec![json!({ "type": "text", "text": "x" }); MAX_OUTPUT_PARTS + 3];
    let texts = texts_of(json!({ "content": many }));
    assert_eq!(texts.len(), MAX_OUTPUT_PARTS + 1);
    assert_eq!(texts.last().map(String::as_str), Some("[3 more parts of this result were left out]"));
}

#[test]
fn the_picture_of_a_failure_reaches_the_model() {
    let failed = convert(
        json!({ "content": [
            { "type": "text", "text": "no" }, { "type": "image", "data": "aQ==", "mimeType": "image/png" },
        ], "isError": true }),
        None,
    );
    let Err(error) = failed else { panic!("it failed") };
    let picture = ContentPart::Image(ImagePart::from_url("data:image/png;base64,aQ==").0);
    assert_eq!(error, ToolError::visible("no").with_attachments(picture));
}
