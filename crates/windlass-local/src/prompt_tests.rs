use std::sync::Arc;

use windlass::core::item::{CallOutput, OpaqueItem, OutputStatus};
use windlass::model::{ModelSettings, OutputSchema};

use super::*;

fn messages_for(tools: &[ToolDefinition], input: &[Item]) -> Vec<PromptMessage> {
    messages_with(tools, input, None)
}

fn messages_with(
    tools: &[ToolDefinition],
    input: &[Item],
    output_schema: Option<&OutputSchema>,
) -> Vec<PromptMessage> {
    let input: Vec<Arc<Item>> = input.iter().cloned().map(Arc::new).collect();
    prompt_messages(&ModelRequest {
        agent: &"desk".into(),
        turn: 1,
        instructions: Some("Be kind."),
        input: &input,
        tools,
        deferred_tools: &[],
        handoffs: &[],
        settings: &ModelSettings::default(),
        output_schema,
        previous_response_id: None,
        conversation_id: None,
    })
}

fn weather_tool() -> ToolDefinition {
    ToolDefinition {
        name: "weather".into(),
        namespace: None,
        description: "Current\n  weather.".into(),
        parameters: Arc::new(json!({ "type": "object", "properties": { "city": { "type": "string" } } })),
        is_strict: true,
        kind: ToolKind::Function,
    }
}

#[test]
fn a_conversation_is_told_line_by_line() {
    let output = Item::Output(CallOutput {
        call: "c1".into(),
        content: "rain".into(),
        status: OutputStatus::Ok,
        sources: Default::default(),
    });
    let hosted = Item::HostedTool(OpaqueItem::new("web_search_call", json!({})));
    let input = [
        Item::user("Weather in Oslo?"),
        hosted,
        Item::call("c1", "weather", r#"{"city":"Oslo"}"#),
        output,
        Item::assistant("It rains."),
        Item::user("Thanks"),
    ];
    let told = messages_for(&[weather_tool()], &input);
    assert!(told[0].text.contains("- weather: Current weather. Arguments: {\"city\":{\"type\":\"string\"}}"));
    let rest: Vec<_> = told[7..].iter().map(|line| (line.role, line.text.as_str())).collect();
    assert_eq!(
        rest,
        [
            ("user", "Weather in Oslo?"),
            ("assistant", r#"{"tool":"weather","arguments":{"city":"Oslo"}}"#),
            ("user", "Result of weather: rain"),
            ("assistant", r#"{"answer":"It rains."}"#),
            ("user", "Thanks"),
        ]
    );
}

#[test]
fn a_tool_with_a_namespace_is_shown_with_it() {
    let tool = ToolDefinition { namespace: Some("sky".into()), ..weather_tool() };
    let mut call = Item::call("c1", "weather", "{}");
    if let Item::Call(call) = &mut call {
        call.namespace = Some("sky".to_owned());
    }
    let messages = messages_for(&[tool], &[Item::user("Weather?"), call]);
    assert!(messages[0].text.contains("- sky__weather: "), "{}", messages[0].text);
    assert_eq!(messages[8].text, r#"{"tool":"sky__weather","arguments":{}}"#);
}

#[test]
fn without_tools_nothing_is_said_of_them() {
    let told = messages_for(&[], &[Item::user("Hello")]);
    assert_eq!(told.len(), 2);
    assert!(!told[0].text.contains("tool"));
}

/// The constraint gives the form of a typed answer; the model must also see what its fields are.
#[test]
fn the_schema_of_a_typed_answer_is_shown() {
    let schema = json!({
        "type": "object",
        "properties": { "celsius": { "type": "number", "description": "Degrees outside." } },
    });
    let output = OutputSchema { name: "weather".to_owned(), schema: schema.clone(), is_strict: true };
    for tools in [vec![], vec![weather_tool()]] {
        let messages = messages_with(&tools, &[Item::user("How warm is it?")], Some(&output));
        assert!(messages[0].text.contains(&schema.to_string()), "{}", messages[0].text);
        assert!(!messages[0].text.contains("what you say"), "{}", messages[0].text);
    }
}

#[test]
fn a_note_stands_for_an_image_in_the_output_of_a_tool() {
    use windlass::core::item::MediaSource;
    let parts = vec![ContentPart::text("Seen:"), ContentPart::Image(MediaSource::default())];
    let output = Item::Output(CallOutput {
        call: "c1".into(),
        content: OutputContent::Parts(parts),
        status: OutputStatus::Ok,
        sources: Default::default(),
    });
    let lines =
        messages_for(&[weather_tool()], &[Item::user("Look."), Item::call("c1", "weather", "{}"), output]);
    let last = &lines.last().expect("a message").text;
    assert!(last.contains("Seen:") && last.contains("an image, which this model cannot read"), "{last}");
}
