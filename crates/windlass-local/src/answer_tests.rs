use std::sync::Arc;

use serde_json::json;
use windlass::core::schema;
use windlass::model::{ModelSettings, OutputSchema, ToolKind};

use super::*;

fn offered_tool(name: &str, parameters: Value) -> ToolDefinition {
    ToolDefinition {
        name: name.into(),
        namespace: None,
        description: "Does it.".into(),
        parameters: Arc::new(parameters),
        is_strict: true,
        kind: ToolKind::Function,
    }
}

/// Returns a request with these tools.
fn with_request<T>(tools: &[ToolDefinition], use_it: impl FnOnce(&ModelRequest<'_>) -> T) -> T {
    use_it(&ModelRequest {
        agent: &"desk".into(),
        turn: 1,
        instructions: None,
        input: &[],
        tools,
        deferred_tools: &[],
        handoffs: &[],
        settings: &ModelSettings::default(),
        output_schema: None,
        previous_response_id: None,
        conversation_id: None,
    })
}

fn parse(text: &str, call: &str) -> Result<Vec<Item>, AnswerFormatError> {
    with_request(&[], |request| parse_items(text, call, request))
}

/// A tool with a namespace is called by both, and its call has them apart.
#[test]
fn a_tool_with_a_namespace_can_be_called() {
    let schema = json!({ "type": "object", "properties": {} });
    let find = ToolDefinition { namespace: Some("mail".into()), ..offered_tool("find", schema.clone()) };
    let other = ToolDefinition { namespace: Some("files".into()), ..offered_tool("find", schema.clone()) };
    with_request(&[other, find, offered_tool("pay", schema)], |request| {
        let shape = response_schema(request);
        let text = json!({ "tool": "mail__find", "arguments": {} });
        assert!(is_valid(&shape, text.clone()));
        assert!(!is_valid(&shape, json!({ "tool": "find", "arguments": {} })));
        let items = parse_items(&text.to_string(), "c1", request).expect("a call");
        let [Item::Call(call)] = items.as_slice() else { panic!("a call: {items:?}") };
        assert_eq!((call.namespace.as_deref(), call.name.as_str()), (Some("mail"), "find"));
        let items = parse_items(r#"{"tool":"pay","arguments":{}}"#, "c1", request).expect("a call");
        assert_eq!(items, [Item::call("c1", "pay", "{}")]);
    });
}

fn schema_for(choice: Option<ToolChoice>, output: Option<&OutputSchema>) -> Value {
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
    let tools = [offered_tool("cut", parameters), offered_tool("pay", other)];
    let settings = ModelSettings { tool_choice: choice, ..ModelSettings::default() };
    response_schema(&ModelRequest {
        agent: &"desk".into(),
        turn: 1,
        instructions: None,
        input: &[],
        tools: &tools,
        deferred_tools: &[],
        handoffs: &[],
        settings: &settings,
        output_schema: output,
        previous_response_id: None,
        conversation_id: None,
    })
}

fn is_valid(shape: &Value, answer: Value) -> bool {
    schema::validate(shape, &answer).is_empty()
}

#[test]
fn an_answer_is_a_call_or_something_said() {
    let shape = schema_for(None, None);
    assert!(is_valid(&shape, json!({ "answer": "Good morning." })));
    assert!(is_valid(&shape, json!({ "tool": "cut", "arguments": { "size": "small" } })));
    assert!(!is_valid(&shape, json!({ "tool": "cut", "arguments": { "size": "huge" } })));
    assert!(!is_valid(&shape, json!({ "tool": "fly", "arguments": {} })));
}

#[test]
fn definitions_of_one_name_stay_apart() {
    let shape = schema_for(None, None);
    assert!(is_valid(&shape, json!({ "tool": "pay", "arguments": { "size": 3 } })));
    assert!(!is_valid(&shape, json!({ "tool": "pay", "arguments": { "size": "small" } })));
}

#[test]
fn a_forced_choice_leaves_no_other() {
    let said = json!({ "answer": "No." });
    let cut = json!({ "tool": "cut", "arguments": { "size": "small" } });
    let pay = json!({ "tool": "pay", "arguments": {} });
    let required = schema_for(Some(ToolChoice::Required), None);
    assert!(!is_valid(&required, said.clone()) && is_valid(&required, cut.clone()));
    let one = schema_for(Some(ToolChoice::Tool("pay".to_owned())), None);
    assert!(is_valid(&one, pay) && !is_valid(&one, cut.clone()));
    let none = schema_for(Some(ToolChoice::None), None);
    assert!(is_valid(&none, said) && !is_valid(&none, cut));
}

#[test]
fn a_typed_answer_has_its_shape() {
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] });
    let output = OutputSchema { name: "count".to_owned(), schema, is_strict: true };
    let shape = schema_for(None, Some(&output));
    assert!(is_valid(&shape, json!({ "answer": { "n": 3 } })));
    assert!(!is_valid(&shape, json!({ "answer": "three" })));
    assert_eq!(parse(r#"{"answer":{"n":3}}"#, "c"), Ok(vec![Item::assistant(r#"{"n":3}"#)]));
}

#[test]
fn what_came_is_read() {
    assert_eq!(parse(r#"{"answer":"Hi."}"#, "c"), Ok(vec![Item::assistant("Hi.")]));
    let call = parse(r#"{"tool": "cut", "arguments": {"size": "small"}}"#, "c7");
    assert_eq!(call, Ok(vec![Item::call("c7", "cut", r#"{"size":"small"}"#)]));
    for cut_off in ["", "{\"answer\":\"Hel", "{}", "[]", "{\"tool\":\"cut\"}"] {
        assert!(parse(cut_off, "c").is_err(), "{cut_off}");
    }
}

#[test]
fn what_is_said_is_seen_as_it_comes() {
    let whole = r#"{"answer": "Ein \"Ü\" 🦀, \u00e9\ntwo"}"#;
    let mut seen = String::new();
    for end in (0..=whole.len()).filter(|end| whole.is_char_boundary(*end)) {
        if let Some(said) = partial_text(&whole[..end]) {
            assert!(said.starts_with(&seen), "{said:?} takes back {seen:?}");
            seen = said;
        }
    }
    assert_eq!(seen, "Ein \"Ü\" 🦀, é\ntwo");
    assert_eq!(partial_text(r#"{"tool": "cut""#), None);
}

#[cfg(target_os = "linux")]
#[test]
fn fuzz_answers_are_refused_or_read() {
    let seeds = [
        r#"{"tool": "pay", "arguments": {"amount": 1e3, "to": "\ud83d\ude00"}}"#,
        r#"{"answer": "half of a te\u00"#,
        r#"{"answer": {"a": [1, null]}}"#,
    ];
    let target = windlass_fuzz::FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), "local_answers").seeds(seeds);
    target.words(["\"answer\"", "\"tool\"", ":", "\\u", "\\ud83d", "\""]).run(
        module_path!(),
        "fuzz_answers_are_refused_or_read",
        |input| {
            let text = String::from_utf8_lossy(input);
            let _ = parse(&text, "c1");
            let _ = partial_text(&text);
        },
    );
}
