//! Tools refuse arguments that they would ignore: an approver would read them, and the body would not.

#![allow(clippy::expect_used)]

use schemars::JsonSchema;
use serde::Deserialize;
use windlass::prelude::*;
use windlass::tool::Tool;

#[derive(Debug, Deserialize, JsonSchema)]
struct Payment {
    #[expect(dead_code, reason = "only parsing is tested")]
    euros: u32,
    #[expect(dead_code, reason = "only parsing is tested")]
    lines: Option<Vec<PaymentLine>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct PaymentLine {
    #[expect(dead_code, reason = "only parsing is tested")]
    text: String,
}

/// Pays.
#[tool]
async fn pay_by_macro(euros: u32, line: PaymentLine) -> String {
    format!("{euros} {line:?}")
}

fn pay() -> Tool {
    Tool::function(
        "pay",
        "Pays.",
        |_ctx, payment: Payment| async move { Ok::<_, String>(format!("{payment:?}")) },
    )
}

#[test]
fn a_typed_tool_refuses_what_it_would_ignore() {
    let tool = pay();
    assert_eq!(tool.check_arguments(r#"{"euros":1,"lines":[{"text":"a"}]}"#), Ok(()));
    assert_eq!(
        tool.check_arguments(r#"{"euros":1,"dry_run":true}"#),
        Err("`dry_run` is not a known field; leave it out".to_owned())
    );
    assert_eq!(
        tool.check_arguments(r#"{"euros":1,"lines":[{"text":"a"},{"text":"b","free":true}],"x":null}"#),
        Err("`lines[1].free` is not a known field; leave it out; `x` is not a known field; leave it out"
            .to_owned())
    );
}

#[test]
fn the_macro_refuses_it_inside_an_argument_too() {
    let tool: Tool = pay_by_macro();
    assert_eq!(
        tool.check_arguments(r#"{"euros":1,"line":{"text":"a","free":true}}"#),
        Err("`line.free` is not a known field; leave it out".to_owned())
    );
}

#[test]
fn many_unknown_fields_are_counted() {
    let fields: Vec<String> = (0..1_000).map(|number| format!("\"x{number}\":0")).collect();
    let refused = pay().check_arguments(&format!("{{\"euros\":1,{}}}", fields.join(",")));
    assert!(refused.expect_err("it is refused").ends_with("; 992 more fields are not known"));
}
