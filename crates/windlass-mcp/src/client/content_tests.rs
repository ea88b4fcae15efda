use serde_json::json;

use super::*;

fn convert(result: Value, expected: Option<&Value>) -> Result<McpToolOutput, ToolError> {
    let result = serde_json::from_value(result).unwrap_or_else(|error| panic!("it is a result: {error}"));
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
        { "type": "resource", "resource": { "uri": "a://bytes", "mimeType": "image/gif", "blob": "Yg==" } },
        { "type": "resource_link", "uri": "a://link", "name": "elsewhere" },
    ]);
    let Ok(McpToolOutput::Parts(parts)) = convert(json!({ "content": content }), None) else {
        panic!("they are parts")
    };
    let [
        McpOutputPart::Text(TextPart(words)),
        McpOutputPart::Image(image),
        McpOutputPart::File(sound),
        McpOutputPart::Text(TextPart(inside)),
        McpOutputPart::File(bytes),
        McpOutputPart::Text(TextPart(link)),
    ] = parts.as_slice()
    else {
        panic!("there are six")
    };
    assert_eq!((words.as_str(), inside.as_str()), ("words", "inside"));
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
