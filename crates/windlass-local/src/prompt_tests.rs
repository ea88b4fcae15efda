use std::sync::Arc;

use windlass::core::{Carried, Output, OutputStatus};
use windlass::model::ModelSettings;

use super::*;

fn told(tools: &[OfferedTool], input: &[Item]) -> Vec<Line> {
    let input: Vec<Arc<Item>> = input.iter().cloned().map(Arc::new).collect();
    lines(&ModelRequest {
        agent: &"desk".into(),
        turn: 1,
        instructions: Some("Be kind."),
        input: &input,
        tools,
        handoffs: &[],
        settings: &ModelSettings::default(),
        output: None,
        previous_response: None,
    })
}

fn weather() -> OfferedTool {
    OfferedTool {
        name: "weather".into(),
        namespace: None,
        description: "Current\n  weather.".into(),
        parameters: Arc::new(json!({ "type": "object", "properties": { "city": { "type": "string" } } })),
        strict: true,
        kind: OfferedKind::Function,
    }
}

#[test]
fn a_conversation_is_told_line_by_line() {
    let output = Item::Output(Output { call: "c1".into(), content: "rain".into(), status: OutputStatus::Ok });
    let hosted = Item::Hosted(Carried { kind: "web_search_call".to_owned(), raw: json!({}) });
    let input = [
        Item::user("Weather in Oslo?"),
        hosted,
        Item::call("c1", "weather", r#"{"city":"Oslo"}"#),
        output,
        Item::assistant("It rains."),
        Item::user("Thanks"),
    ];
    let told = told(&[weather()], &input);
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
fn without_tools_nothing_is_said_of_them() {
    let told = told(&[], &[Item::user("Hello")]);
    assert_eq!(told.len(), 2);
    assert!(!told[0].text.contains("tool"));
}
