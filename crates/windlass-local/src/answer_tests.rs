use std::sync::Arc;

use serde_json::json;
use windlass::core::schema;
use windlass::model::{ModelSettings, OutputShape};

use super::*;

fn offered(name: &str, parameters: Value) -> OfferedTool {
    OfferedTool {
        name: name.into(),
        namespace: None,
        description: "Does it.".into(),
        parameters: Arc::new(parameters),
        strict: true,
        kind: OfferedKind::Function,
    }
}

fn asked(choice: Option<ToolChoice>, output: Option<&OutputShape>) -> Value {
    let size = json!({ "type": "string", "enum": ["small", "large"] });
    let parameters = json!({
        "type": "object",
        "properties": { "size": { "$ref": "#/$defs/Size" } },
        "required": ["size"],
        "$defs": { "Size": size },
    });
    let other = json!({
        "type": "object",
        "properties": { "size": { "$ref": "#/$defs/Size" } },
        "$defs": { "Size": { "type": "integer" } },
    });
    let tools = [offered("cut", parameters), offered("pay", other)];
    let settings = ModelSettings { tool_choice: choice, ..ModelSettings::default() };
    shape(&ModelRequest {
        agent: &"desk".into(),
        turn: 1,
        instructions: None,
        input: &[],
        tools: &tools,
        handoffs: &[],
        settings: &settings,
        output,
        previous_response: None,
    })
}

fn fits(shape: &Value, answer: Value) -> bool {
    schema::check(shape, &answer).is_empty()
}

#[test]
fn an_answer_is_a_call_or_something_said() {
    let shape = asked(None, None);
    assert!(fits(&shape, json!({ "answer": "Good morning." })));
    assert!(fits(&shape, json!({ "tool": "cut", "arguments": { "size": "small" } })));
    assert!(!fits(&shape, json!({ "tool": "cut", "arguments": { "size": "huge" } })));
    assert!(!fits(&shape, json!({ "tool": "fly", "arguments": {} })));
}

#[test]
fn definitions_of_one_name_stay_apart() {
    let shape = asked(None, None);
    assert!(fits(&shape, json!({ "tool": "pay", "arguments": { "size": 3 } })));
    assert!(!fits(&shape, json!({ "tool": "pay", "arguments": { "size": "small" } })));
}

#[test]
fn a_forced_choice_leaves_no_other() {
    let said = json!({ "answer": "No." });
    let cut = json!({ "tool": "cut", "arguments": { "size": "small" } });
    let pay = json!({ "tool": "pay", "arguments": {} });
    let required = asked(Some(ToolChoice::Required), None);
    assert!(!fits(&required, said.clone()) && fits(&required, cut.clone()));
    let one = asked(Some(ToolChoice::Tool("pay".to_owned())), None);
    assert!(fits(&one, pay) && !fits(&one, cut.clone()));
    let none = asked(Some(ToolChoice::None), None);
    assert!(fits(&none, said) && !fits(&none, cut));
}

#[test]
fn a_typed_answer_has_its_shape() {
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] });
    let output = OutputShape { name: "count".to_owned(), schema };
    let shape = asked(None, Some(&output));
    assert!(fits(&shape, json!({ "answer": { "n": 3 } })));
    assert!(!fits(&shape, json!({ "answer": "three" })));
    assert_eq!(items(r#"{"answer":{"n":3}}"#, "c"), Ok(vec![Item::assistant(r#"{"n":3}"#)]));
}

#[test]
fn what_came_is_read() {
    assert_eq!(items(r#"{"answer":"Hi."}"#, "c"), Ok(vec![Item::assistant("Hi.")]));
    let call = items(r#"{"tool": "cut", "arguments": {"size": "small"}}"#, "c7");
    assert_eq!(call, Ok(vec![Item::call("c7", "cut", r#"{"size":"small"}"#)]));
    for cut_off in ["", "{\"answer\":\"Hel", "{}", "[]", "{\"tool\":\"cut\"}"] {
        assert!(items(cut_off, "c").is_err(), "{cut_off}");
    }
}

#[test]
fn what_is_said_is_seen_as_it_comes() {
    let whole = r#"{"answer": "Ein \"Ü\" 🦀, \u00e9\ntwo"}"#;
    let mut seen = String::new();
    for end in (0..=whole.len()).filter(|end| whole.is_char_boundary(*end)) {
        if let Some(said) = said_so_far(&whole[..end]) {
            assert!(said.starts_with(&seen), "{said:?} takes back {seen:?}");
            seen = said;
        }
    }
    assert_eq!(seen, "Ein \"Ü\" 🦀, é\ntwo");
    assert_eq!(said_so_far(r#"{"tool": "cut""#), None);
}
