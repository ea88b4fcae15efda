//! Arguments that cannot be used: S8.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use windlass::prelude::*;
use windlass::{How, tool_fn};

use crate::support::*;

const FAILED: &str = "An error occurred while running the tool. Please try again. Error: ";

/// A tool with a nested argument, which counts its executions.
fn order(bodies: &Arc<AtomicUsize>) -> Tool {
    let bodies = bodies.clone();
    tool_fn! {
        /// Orders things.
        name = "order",
        async |items: Vec<Line>, note: String| -> Result<String, ToolError> {
            bodies.fetch_add(1, Ordering::SeqCst);
            Ok(format!("{} lines, {note}", items.len()))
        }
    }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Line {
    #[serde(rename = "name")]
    _name: String,
    #[serde(rename = "qty")]
    _qty: u32,
}

/// The same tool, known only at run time.
fn dynamic_order(bodies: &Arc<AtomicUsize>) -> Tool {
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

/// What the model is told of the arguments that it wrote.
async fn told(surface: Surface, tool: Tool, arguments: &str) -> (Vec<(String, How)>, String) {
    let calls = Reply::items([]).and_raw_call("a", "order", arguments);
    let act = Stage::new(surface, agent([calls, Reply::text("bye")]).tools(tool)).play().await;
    let played = act.played();
    assert_eq!(played.end, Ended::Finished("bye".to_owned()), "{surface:?}");
    (act.hows(), played.said[1].clone())
}

#[tokio::test]
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
    for surface in Surface::ALL {
        for (arguments, problems) in cases {
            for make in [order, dynamic_order] {
                let bodies = Arc::default();
                let (hows, output) = told(surface, make(&bodies), arguments).await;
                assert_eq!(output, format!("output a {FAILED}{problems}"), "{surface:?}");
                assert_eq!(hows, [("a".to_owned(), How::Invalid)], "{surface:?}");
                assert_eq!(bodies.load(Ordering::SeqCst), 0, "{surface:?}");
            }
        }
    }
}

#[tokio::test]
async fn s08_ten_megabytes_are_refused_without_being_read() {
    let huge = format!(r#"{{"items":[],"note":"{}"}}"#, "x".repeat(10 * 1024 * 1024));
    for surface in Surface::ALL {
        let bodies = Arc::default();
        let (hows, output) = told(surface, order(&bodies), &huge).await;
        let problem = format!("`arguments` must be at most 4194304 bytes long, is {} bytes long", huge.len());
        assert_eq!(output, format!("output a {FAILED}{problem}"), "{surface:?}");
        assert_eq!(hows, [("a".to_owned(), How::Invalid)], "{surface:?}");
        assert_eq!(bodies.load(Ordering::SeqCst), 0, "{surface:?}");
    }
}

#[tokio::test]
async fn s08_ten_thousand_problems_are_counted_and_not_all_listed() {
    let items: Vec<_> = (0..10_000).map(|_| json!({ "name": 1, "qty": 1 })).collect();
    let many = json!({ "items": items, "note": "" }).to_string();
    let bodies = Arc::default();
    let (_, output) = told(Surface::Blocking, order(&bodies), &many).await;
    let listed: Vec<String> =
        (0..20).map(|at| format!("`items[{at}].name` must be a string, is the number 1")).collect();
    let want = format!("output a {FAILED}{}; `arguments` has 9980 more problems", listed.join("; "));
    assert_eq!(output, want);
}

/// A type's own rule, which no schema expresses.
#[derive(serde::Deserialize)]
#[serde(try_from = "u64")]
struct Even;

impl schemars::JsonSchema for Even {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Even".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        u64::json_schema(generator)
    }
}

impl TryFrom<u64> for Even {
    type Error = String;

    fn try_from(number: u64) -> Result<Self, String> {
        match number {
            13 => panic!("a test panics here"),
            number if number % 2 == 0 => Ok(Self),
            number => Err(format!("{number} is odd")),
        }
    }
}

fn even() -> Tool {
    tool_fn! {
        /// Takes even numbers.
        name = "order",
        async |number: Even| -> Result<&'static str, ToolError> {
            let Even = number;
            Ok("done")
        }
    }
}

#[tokio::test]
async fn s08_a_types_own_rule_is_told_with_its_path() {
    for surface in Surface::ALL {
        let (hows, output) = told(surface, even(), r#"{"number":7}"#).await;
        assert_eq!(output, format!("output a {FAILED}`number` 7 is odd"), "{surface:?}");
        assert_eq!(hows, [("a".to_owned(), How::Invalid)], "{surface:?}");
        assert_eq!(told(surface, even(), r#"{"number":8}"#).await.1, "output a done", "{surface:?}");
    }
}

#[tokio::test]
async fn s08_a_type_that_panics_while_it_is_read_is_that_calls_failure() {
    for surface in Surface::ALL {
        let (hows, output) = told(surface, even(), r#"{"number":13}"#).await;
        assert_eq!(output, format!("output a {FAILED}`arguments` cannot be read"), "{surface:?}");
        assert_eq!(hows, [("a".to_owned(), How::Invalid)], "{surface:?}");
    }
}
