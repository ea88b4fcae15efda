//! Invalid arguments: S8.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use windlass::prelude::*;
use windlass::{core::journal::CallStatus, tool_fn};

use crate::support::*;

const FAILED: &str = "An error occurred while running the tool. Please try again. Error: ";

/// Creates a tool with a nested argument; it counts its executions.
fn order_tool(bodies: &Arc<AtomicUsize>) -> Tool {
    let bodies = bodies.clone();
    tool_fn! {
        /// Orders things.
        name = "order",
        async |items: Vec<OrderedItem>, note: String| -> Result<String, ToolError> {
            bodies.fetch_add(1, Ordering::SeqCst);
            Ok(format!("{} lines, {note}", items.len()))
        }
    }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct OrderedItem {
    #[serde(rename = "name")]
    _name: String,
    #[serde(rename = "qty")]
    _qty: u32,
}

/// Creates the same tool as a dynamic tool.
fn dynamic_order_tool(bodies: &Arc<AtomicUsize>) -> Tool {
    let bodies = bodies.clone();
    let line = json!({
        "type": "object",
        "properties": { "name": { "type": "string" }, "qty": { "type": "integer", "minimum": 0 } },
        "required": ["name", "qty"],
        "additionalProperties": false,
    });
    let schema = json!({
        "type": "object",
        "properties": { "items": { "type": "array", "items": line }, "note": { "type": "string" } },
        "required": ["items", "note"],
        "additionalProperties": false,
    });
    Tool::dynamic("order", "Orders things.", schema, move |_, _| {
        bodies.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, ToolError>("done") }
    })
}

/// Runs one call with these arguments and returns the call statuses and the output that the model receives.
async fn output_for(surface: RunSurface, tool: Tool, arguments: &str) -> (Vec<(String, CallStatus)>, String) {
    let calls = ScriptedResponse::items([]).and_raw_call("a", "order", arguments);
    let act =
        ScenarioRunner::new(surface, scripted_agent([calls, ScriptedResponse::text("bye")]).tools(tool))
            .run_to_pause()
            .await;
    let played = act.result();
    assert_eq!(played.end, ScenarioEnd::Finished("bye".to_owned()), "{surface:?}");
    (act.call_statuses().0, played.items[1].clone())
}

async fn s08_every_problem_is_listed_by_path_and_the_body_never_runs() {
    let deep = format!("{}1{}", r#"{"items":"#.repeat(10_000), "}".repeat(10_000));
    let wrong = r#"{"items":[{"name":"a","qty":1},{"name":2,"qty":"many","size":1}],"note":null,"speed":9}"#;
    let cases = [
        (
            wrong,
            concat!(
                "`items[1].name` must be a string, is the number 2; `items[1].qty` must be an integer, is the string \"many\"; ",
                "`items[1].size` is not a known field; known are: name, qty; `note` must be a string, is null; ",
                "`speed` is not a known field; known are: items, note",
            ),
        ),
        ("{}", "`items` is missing; `note` is missing"),
        ("", "`items` is missing; `note` is missing"),
        ("null", "`arguments` must be a JSON object, is null"),
        ("[]", "`arguments` must be a JSON object, is a list"),
        ("\"{}\"", "`arguments` must be a JSON object, is a string"),
        ("{\"items\":", "`arguments` must be JSON: EOF while parsing a value at line 1 column 9"),
        ("{'items': []}", "`arguments` must be JSON: key must be a string at line 1 column 2"),
        ("{\"note\":NaN}", "`arguments` must be JSON: expected value at line 1 column 9"),
        (&deep, "`arguments` must be JSON: recursion limit exceeded at line 1 column 1144"),
    ];
    for surface in RunSurface::ALL {
        for (arguments, problems) in cases {
            for make in [order_tool, dynamic_order_tool] {
                let bodies = Arc::default();
                let (hows, output) = output_for(surface, make(&bodies), arguments).await;
                assert_eq!(output, format!("output a {FAILED}{problems}"), "{surface:?}");
                assert_eq!(hows, [("a".to_owned(), CallStatus::InvalidArguments)], "{surface:?}");
                assert_eq!(bodies.load(Ordering::SeqCst), 0, "{surface:?}");
            }
        }
    }
}

async fn s08_ten_megabytes_are_refused_without_being_read() {
    let huge = format!(r#"{{"items":[],"note":"{}"}}"#, "x".repeat(10 * 1024 * 1024));
    for surface in RunSurface::ALL {
        let bodies = Arc::default();
        let (hows, output) = output_for(surface, order_tool(&bodies), &huge).await;
        let problem = format!("`arguments` must be at most 4194304 bytes long, is {} bytes long", huge.len());
        assert_eq!(output, format!("output a {FAILED}{problem}"), "{surface:?}");
        assert_eq!(hows, [("a".to_owned(), CallStatus::InvalidArguments)], "{surface:?}");
        assert_eq!(bodies.load(Ordering::SeqCst), 0, "{surface:?}");
    }
}

async fn s08_ten_thousand_problems_are_counted_and_not_all_listed() {
    let items: Vec<_> = (0..10_000).map(|_| json!({ "name": 1, "qty": 1 })).collect();
    let many = json!({ "items": items, "note": "" }).to_string();
    let bodies = Arc::default();
    let (_, output) = output_for(RunSurface::Blocking, order_tool(&bodies), &many).await;
    let listed: Vec<String> =
        (0..20).map(|at| format!("`items[{at}].name` must be a string, is the number 1")).collect();
    let want = format!("output a {FAILED}{}; `arguments` has 9980 more problems", listed.join("; "));
    assert_eq!(output, want);
}

/// A type with a validation rule that no schema expresses.
#[derive(serde::Deserialize)]
#[serde(try_from = "u64")]
struct EvenNumber;

impl schemars::JsonSchema for EvenNumber {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Even".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        u64::json_schema(generator)
    }
}

impl TryFrom<u64> for EvenNumber {
    type Error = String;

    fn try_from(number: u64) -> Result<Self, String> {
        match number {
            13 => panic!("a test panics here"),
            number if number % 2 == 0 => Ok(Self),
            number => Err(format!("{number} is odd")),
        }
    }
}

fn even_tool() -> Tool {
    tool_fn! {
        /// Takes even numbers.
        name = "order",
        async |number: EvenNumber| -> Result<&'static str, ToolError> {
            let EvenNumber = number;
            Ok("done")
        }
    }
}

async fn s08_a_types_own_rule_is_told_with_its_path() {
    for surface in RunSurface::ALL {
        let (hows, output) = output_for(surface, even_tool(), r#"{"number":7}"#).await;
        assert_eq!(output, format!("output a {FAILED}`number` 7 is odd"), "{surface:?}");
        assert_eq!(hows, [("a".to_owned(), CallStatus::InvalidArguments)], "{surface:?}");
        assert_eq!(
            output_for(surface, even_tool(), r#"{"number":8}"#).await.1,
            "output a done",
            "{surface:?}"
        );
    }
}

async fn s08_a_type_that_panics_while_it_is_read_is_that_calls_failure() {
    for surface in RunSurface::ALL {
        let (hows, output) = output_for(surface, even_tool(), r#"{"number":13}"#).await;
        assert_eq!(output, format!("output a {FAILED}`arguments` cannot be read"), "{surface:?}");
        assert_eq!(hows, [("a".to_owned(), CallStatus::InvalidArguments)], "{surface:?}");
    }
}

on_both_runtimes! {
    real_clock:
        s08_every_problem_is_listed_by_path_and_the_body_never_runs,
        s08_ten_megabytes_are_refused_without_being_read,
        s08_ten_thousand_problems_are_counted_and_not_all_listed,
        s08_a_types_own_rule_is_told_with_its_path,
        s08_a_type_that_panics_while_it_is_read_is_that_calls_failure;
}
