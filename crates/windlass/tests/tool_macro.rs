//! The tools that the macros generate from functions, methods and closures, tested through the public API.

#![allow(clippy::expect_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use windlass::guardrail::{ToolGuardrailVerdict, ToolInputGuardrail};
use windlass::model::{ToolDefinition, ToolKind};
use windlass::prelude::*;
use windlass::{
    error::ConfigError,
    tool,
    tool::{IntoTool, IntoTools},
    tool_fn, toolbox,
};

/// Returns the output that the model receives after it called the tool with these arguments.
async fn call_tool_with<C: Send + Sync + 'static>(
    tool: impl IntoTool<C>,
    context: C,
    arguments: Value,
) -> String {
    let tool = tool.into_tool();
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", tool.name(), arguments),
        ScriptedResponse::text("done"),
    ]);
    let agent = Agent::<C>::new("agent").model(model.clone()).tools(tool);
    agent.run_with_context("go", context).await.expect("the run ends");
    let asked = model.requests();
    let lines = asked[1].input_text();
    lines[2].strip_prefix("output c1 ").expect("the call has an output").to_owned()
}

async fn call_tool(tool: impl IntoTool<()>, arguments: Value) -> String {
    call_tool_with(tool, (), arguments).await
}

fn offer_of(tool: impl IntoTool<()>) -> ToolDefinition {
    tool.into_tool().to_definition().expect("has a strict form")
}

fn strict_object(properties: Value) -> Value {
    let required: Vec<&String> = properties.as_object().expect("properties").keys().collect();
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Unit {
    Celsius,
    Fahrenheit,
}

/// The result of the weather tool.
#[derive(Debug, PartialEq, Serialize)]
struct WeatherReport {
    city: String,
    unit: Option<Unit>,
    days: u8,
    source: String,
}

/// Current weather
/// for a city.
///
/// Knows the larger ones.
#[tool]
async fn weather(
    /// The city,
    /// in English.
    city: String,
    unit: Option<Unit>,
    #[default = 3] days: u8,
    #[default = "station"] source: String,
) -> Result<WeatherReport, std::io::Error> {
    Ok(WeatherReport { city, unit, days, source })
}

#[test]
fn the_offer_comes_from_the_signature() {
    let mut parameters = strict_object(json!({
        "city": { "type": "string", "description": "The city, in English." },
        "days": { "type": "integer", "minimum": 0, "maximum": 255, "default": 3 },
        "source": { "type": "string", "default": "station" },
        "unit": { "anyOf": [{ "$ref": "#/$defs/Unit" }, { "type": "null" }] },
    }));
    parameters["$defs"] = json!({ "Unit": { "type": "string", "enum": ["celsius", "fahrenheit"] } });
    let want = ToolDefinition {
        name: "weather".into(),
        namespace: None,
        description: "Current weather for a city.\n\nKnows the larger ones.".into(),
        parameters: Arc::new(parameters),
        is_strict: true,
        kind: ToolKind::Function,
    };
    assert_eq!(offer_of(weather), want);
}

#[tokio::test]
async fn what_is_left_out_has_its_default() {
    let want = json!({ "city": "Rome", "days": 3, "source": "station", "unit": null });
    let told = call_tool(weather, json!({ "city": "Rome" })).await;
    assert_eq!(serde_json::from_str::<Value>(&told).expect("is JSON"), want);

    let all = json!({ "city": "Rome", "days": 1, "source": "roof", "unit": "celsius" });
    let told = call_tool(weather, all.clone()).await;
    assert_eq!(serde_json::from_str::<Value>(&told).expect("is JSON"), all);
}

#[tokio::test]
async fn the_function_itself_is_there() {
    let weather = weather::call("Oslo".into(), None, 1, "roof".into()).await.expect("does not fail");
    assert_eq!(weather, WeatherReport { city: "Oslo".into(), unit: None, days: 1, source: "roof".into() });
}

#[tokio::test]
async fn wrong_arguments_never_reach_the_function() {
    let told = call_tool(weather, json!({ "days": "many", "town": "Rome" })).await;
    for problem in [
        "`city` is missing",
        "`days` must be an integer, is the string \"many\"",
        "`town` is not a known field; known are: city, days, source, unit",
    ] {
        assert!(told.contains(problem), "{told}");
    }
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Payment {
    /// Cash.
    Cash,
    Card {
        number: String,
    },
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct Line {
    /// What.
    sku: String,
    #[serde(default)]
    quantity: u32,
    note: Option<String>,
}

/// Places an order.
#[tool(name = "place-order", effect = pure)]
fn order(lines: Vec<Line>, payment: Payment, #[serde(rename = "type")] kind: Option<Unit>) -> Value {
    json!({ "lines": lines, "payment": payment, "kind": kind })
}

#[test]
fn nested_types_are_strict_too() {
    let object = |properties: Value| strict_object(properties);
    let want = json!({
        "type": "object",
        "properties": {
            "lines": { "type": "array", "items": { "$ref": "#/$defs/Line" } },
            "payment": { "$ref": "#/$defs/Payment" },
            "type": { "anyOf": [{ "$ref": "#/$defs/Unit" }, { "type": "null" }] },
        },
        "required": ["lines", "payment", "type"],
        "additionalProperties": false,
        "$defs": {
            "Line": object(json!({
                "note": { "type": ["string", "null"] },
                "quantity": { "type": "integer", "minimum": 0, "default": 0 },
                "sku": { "type": "string", "description": "What." },
            })),
            "Payment": { "anyOf": [
                {
                    "type": "object",
                    "description": "Cash.",
                    "properties": { "kind": { "type": "string", "const": "cash" } },
                    "required": ["kind"],
                    "additionalProperties": false,
                },
                object(json!({
                    "kind": { "type": "string", "const": "card" },
                    "number": { "type": "string" },
                })),
            ] },
            "Unit": { "type": "string", "enum": ["celsius", "fahrenheit"] },
        },
    });
    let offer = offer_of(order);
    assert_eq!((&*offer.name, &*offer.parameters), ("place-order", &want));
}

#[tokio::test]
async fn nested_values_are_read() {
    let arguments = json!({
        "lines": [{ "sku": "soup", "quantity": 2, "note": null }],
        "payment": { "kind": "card", "number": "1" },
        "type": "celsius",
    });
    let told: Value = serde_json::from_str(&call_tool(order, arguments.clone()).await).expect("is JSON");
    let want = json!({ "lines": arguments["lines"], "payment": arguments["payment"], "kind": "celsius" });
    assert_eq!(told, want);
    let told = call_tool(order, json!({ "lines": [{}], "payment": { "kind": "card" } })).await;
    assert!(told.contains("`lines[0].sku` is missing; `payment.number` is missing"), "{told}");
}

/// Counts words.
#[tool(strict = false, namespace = "texts")]
fn count(words: BTreeMap<String, u32>) -> u32 {
    words.values().sum()
}

/// Counts words strictly.
#[tool]
fn count_strictly(words: BTreeMap<String, u32>) -> u32 {
    words.values().sum()
}

/// Counts anything.
#[tool]
fn count_anything(things: Value) -> usize {
    things.to_string().len()
}

#[tokio::test]
async fn maps_are_offered_as_they_are() {
    let want = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "count",
        "type": "object",
        "properties": { "words": {
            "type": "object",
            "additionalProperties": { "type": "integer", "format": "uint32", "minimum": 0 },
        } },
        "required": ["words"],
        "additionalProperties": false,
    });
    let offer = offer_of(count);
    assert_eq!(
        (&*offer.parameters, offer.is_strict, offer.namespace.as_deref()),
        (&want, false, Some("texts"))
    );
    assert!(!offer_of(count_strictly).is_strict, "a map has no strict form");
    let refused = IntoTool::<()>::into_tool(count_anything).to_definition();
    assert!(matches!(refused, Err(ConfigError::ToolNotStrict { .. })), "{refused:?}");
}

/// The context of the refund tools.
struct RefundDesk {
    limit: u64,
}

/// An alias that hides `Result` from the macro.
type FallibleResult<T> = Result<T, String>;

fn is_large(args: &RefundArgs) -> bool {
    args.cents > 100
}

/// Gives money back.
#[tool(args = RefundArgs, effect = once, needs_approval = is_large, timeout = "5m", on_failure = show_error)]
async fn refund(ctx: &ToolContext<RefundDesk>, cents: u64) -> FallibleResult<String> {
    if cents > ctx.limit {
        return Err(format!("at most {}", ctx.limit));
    }
    Ok(format!("{} gave {cents}", ctx.agent()))
}

#[tokio::test]
async fn the_context_is_given_and_not_shown() {
    let tool = refund.into_tool();
    let want = strict_object(json!({ "cents": { "type": "integer", "minimum": 0 } }));
    assert_eq!(*tool.to_definition().expect("has a strict form").parameters, want);
    assert_eq!(call_tool_with(refund, RefundDesk { limit: 50 }, json!({ "cents": 5 })).await, "agent gave 5");
}

#[tokio::test]
async fn an_alias_of_result_is_a_result() {
    let told = call_tool_with(refund, RefundDesk { limit: 50 }, json!({ "cents": 60 })).await;
    assert_eq!(told, "An error occurred while running the tool. Please try again. Error: at most 50");
}

/// Returns the number of calls that wait for a person after the model called the tool.
async fn count_held<C: Send + Sync + 'static>(tool: impl IntoTool<C>, context: C, arguments: Value) -> usize {
    let tool = tool.into_tool();
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", tool.name(), arguments),
        ScriptedResponse::text("done"),
    ]);
    let agent = Agent::<C>::new("agent").model(model).tools(tool);
    let outcome = agent.run_with_context("go", context).await.expect("the run stops or ends");
    outcome.into_paused().map_or(0, |paused| paused.pending_calls().len())
}

/// Gives money back, by a rule of the desk.
#[tool(context = RefundDesk, needs_approval = |ctx, args| args.cents > ctx.limit, enabled = |ctx| ctx.limit > 0)]
fn refund_by_rule(cents: u64) -> u64 {
    cents
}

/// Asks first.
#[tool(needs_approval = always)]
fn ask_first() {}

/// Asks each time.
#[tool(needs_approval = each_time)]
fn ask_each_time() {}

/// Asks about large ones.
#[tool(needs_approval = |args| args.cents > 100, conflict_key = |args| args.cents.to_string())]
fn ask_about_large(cents: u64) -> u64 {
    cents
}

#[tokio::test]
async fn rules_see_the_arguments_and_the_context() {
    assert_eq!(count_held(refund, RefundDesk { limit: 500 }, json!({ "cents": 100 })).await, 0);
    assert_eq!(count_held(refund, RefundDesk { limit: 500 }, json!({ "cents": 101 })).await, 1);
    assert_eq!(count_held(refund_by_rule, RefundDesk { limit: 7 }, json!({ "cents": 7 })).await, 0);
    assert_eq!(count_held(refund_by_rule, RefundDesk { limit: 7 }, json!({ "cents": 8 })).await, 1);
    assert_eq!(count_held(ask_first, (), json!({})).await, 1);
    assert_eq!(count_held(ask_each_time, (), json!({})).await, 1);
    assert_eq!(
        IntoTool::<()>::into_tool(ask_each_time).approval_policy(),
        windlass::core::tool::ApprovalPolicy::RequiredEachTime
    );
    assert_eq!(count_held(ask_about_large, (), json!({ "cents": 100 })).await, 0);
    assert_eq!(count_held(ask_about_large, (), json!({ "cents": 101 })).await, 1);
}

/// Is not there.
#[tool(enabled = false)]
fn absent() {}

#[tokio::test]
async fn a_tool_can_be_absent() {
    let model = ScriptedModel::new([ScriptedResponse::text("done"), ScriptedResponse::text("done")]);
    let agent = Agent::new("agent").model(model.clone()).tools((absent, refund_by_rule));
    agent.run_with_context("go", RefundDesk { limit: 0 }).await.expect("the run ends");
    agent.run_with_context("go", RefundDesk { limit: 1 }).await.expect("the run ends");
    let offered: Vec<_> = model.requests().into_iter().map(|request| request.tools).collect();
    assert_eq!(offered, [vec![], vec!["refund_by_rule".to_owned()]]);
}

/// Says who calls, for every application.
#[tool(on_failure = |ctx, error| format!("{} could not: {error}", ctx.agent()))]
async fn who(ctx: &ToolContext<_>, fail: bool) -> Result<String, ToolError> {
    if fail { Err(ToolError::hidden("a secret")) } else { Ok(ctx.call_id().to_owned()) }
}

#[tokio::test]
async fn a_tool_for_any_context_and_its_own_words_for_failure() {
    assert_eq!(call_tool(who, json!({ "fail": false })).await, "c1");
    assert_eq!(
        call_tool_with(who, RefundDesk { limit: 1 }, json!({ "fail": true })).await,
        "agent could not: a secret"
    );
}

/// Has a name that derives use for variables, and an argument of that name.
#[tool]
fn schema(schema: String) -> String {
    schema
}

#[tokio::test]
async fn names_of_tools_are_free_for_variables() {
    let told = call_tool(schema, json!({ "schema": "x" })).await;
    let schema = schema::call(told);
    assert_eq!(schema, "x");
}

/// Does nothing.
#[tool]
fn nothing() {}

#[tokio::test]
async fn no_arguments_and_no_result() {
    assert_eq!(*offer_of(nothing).parameters, strict_object(json!({})));
    assert_eq!(call_tool(nothing, json!({})).await, "null");
}

/// Is stopped.
#[tool(input_guardrails = [stopping()], retry = (2, "1ms"), max_concurrent_calls = 1, max_output_bytes = 100)]
fn stopped() -> &'static str {
    "ran"
}

fn stopping<C: Send + Sync + 'static>() -> ToolInputGuardrail<C> {
    ToolInputGuardrail::new("stopping", async |_| Ok(ToolGuardrailVerdict::RejectCall("not today".into())))
}

#[tokio::test]
async fn guardrails_stand_in_the_options() {
    assert_eq!(call_tool(stopped, json!({})).await, "not today");
}

#[toolbox(namespace = "desk")]
impl RefundDesk {
    /// What the desk may give.
    #[tool(effect = pure)]
    async fn limit(&self, #[default = 1] factor: u64) -> u64 {
        self.limit * factor
    }

    /// Changes nothing.
    #[tool(name = "change", namespace = "till", needs_approval = |args| args.by > 10)]
    fn change_limit(
        &self,
        /// How much.
        by: u64,
    ) -> Result<u64, String> {
        self.limit.checked_sub(by).ok_or_else(|| "too much".to_owned())
    }

    /// Says which call it is.
    #[tool]
    fn which(&self, ctx: &ToolContext<_>) -> String {
        ctx.call_id().to_owned()
    }

    fn doubled(&self) -> u64 {
        self.limit * 2
    }
}

#[tokio::test]
async fn methods_are_tools_and_stay_methods() {
    let desk = Arc::new(RefundDesk { limit: 7 });
    assert_eq!((desk.limit(2).await, desk.change_limit(3), desk.doubled()), (14, Ok(4), 14));
    let offers: Vec<ToolDefinition> =
        desk.tools::<()>().iter().map(|tool| tool.to_definition().expect("has a strict form")).collect();
    let offered = |name: &str, namespace: &str, description: &str, properties: Value| ToolDefinition {
        name: name.into(),
        namespace: Some(namespace.into()),
        description: description.into(),
        parameters: Arc::new(strict_object(properties)),
        is_strict: true,
        kind: ToolKind::Function,
    };
    let want = [
        offered(
            "limit",
            "desk",
            "What the desk may give.",
            json!({ "factor": { "type": "integer", "minimum": 0, "default": 1 } }),
        ),
        offered(
            "change",
            "till",
            "Changes nothing.",
            json!({ "by": { "type": "integer", "minimum": 0, "description": "How much." } }),
        ),
        offered("which", "desk", "Says which call it is.", json!({})),
    ];
    assert_eq!(offers, want);
}

/// A toolbox with a concrete context.
struct LetterInbox {
    letters: Vec<String>,
}

#[toolbox]
impl LetterInbox {
    /// Reads a letter.
    #[tool(needs_approval = |args| args.number > 10)]
    async fn read(&self, ctx: &ToolContext<RefundDesk>, number: usize) -> Result<String, ToolError> {
        let letter = self.letters.get(number).ok_or_else(|| ToolError::visible("no such letter"))?;
        Ok(format!("{letter} {}", ctx.limit))
    }
}

#[tokio::test]
async fn a_box_is_given_whole_or_shared() {
    let inbox = || LetterInbox { letters: vec!["Dear desk".to_owned()] };
    let only = |tools: Vec<Tool<RefundDesk>>| tools.into_iter().next().expect("has a tool");
    let whole = only(inbox().into_tools());
    assert_eq!(call_tool_with(whole, RefundDesk { limit: 1 }, json!({ "number": 0 })).await, "Dear desk 1");
    let inbox = Arc::new(inbox());
    let shared = only(inbox.tools());
    assert_eq!(
        call_tool_with(shared.clone(), RefundDesk { limit: 2 }, json!({ "number": 0 })).await,
        "Dear desk 2"
    );
    let told = call_tool_with(shared.clone(), RefundDesk { limit: 2 }, json!({ "number": 1 })).await;
    assert!(told.ends_with("no such letter"), "{told}");
    assert_eq!(count_held(shared, RefundDesk { limit: 2 }, json!({ "number": 11 })).await, 1);
}

#[tokio::test]
async fn closures_lend_what_they_capture_to_every_call() {
    let (greeting, limit) = (String::from("hello"), 2);
    let greet: Tool = tool_fn! {
        /// Greets somebody.
        name = "greet",
        needs_approval = |args| args.times > limit,
        async |
            /// Who.
            name: String,
            #[default = 1] times: usize,
        | {
            std::future::ready(()).await;
            format!("{greeting} {name} ").repeat(times)
        }
    };
    let want = ToolDefinition {
        name: "greet".into(),
        namespace: None,
        description: "Greets somebody.".into(),
        parameters: Arc::new(strict_object(json!({
            "name": { "type": "string", "description": "Who." },
            "times": { "type": "integer", "minimum": 0, "default": 1 },
        }))),
        is_strict: true,
        kind: ToolKind::Function,
    };
    assert_eq!(greet.to_definition(), Ok(want));
    assert_eq!(call_tool(greet.clone(), json!({ "name": "Ann" })).await, "hello Ann ");
    assert_eq!(call_tool(greet.clone(), json!({ "name": "Bob", "times": 2 })).await, "hello Bob hello Bob ");
    assert_eq!(count_held(greet, (), json!({ "name": "Cy", "times": 3 })).await, 1);
}

#[tokio::test]
async fn closures_can_block_fail_and_take_the_context() {
    let words = vec!["a", "b"];
    let blocking = tool_fn!(
        /// The words.
        name = "words",
        || words.clone()
    );
    assert_eq!(call_tool(blocking, json!({})).await, r#"["a","b"]"#);

    let unit = String::from("cents");
    let failing = tool_fn!(
        name = "give",
        description = "Gives.",
        |ctx: &ToolContext<RefundDesk>, cents: u64| async move {
            if cents > ctx.limit {
                return Err(format!("at most {} {unit}", ctx.limit));
            }
            Ok(cents)
        }
    );
    assert_eq!(call_tool_with(failing.clone(), RefundDesk { limit: 9 }, json!({ "cents": 9 })).await, "9");
    assert!(
        call_tool_with(failing, RefundDesk { limit: 9 }, json!({ "cents": 10 }))
            .await
            .contains("at most 9 cents")
    );
}

#[test]
fn tools_of_all_kinds_go_together() {
    let closure = tool_fn!(name = "closure", description = "A closure.", |a: u8| a);
    let model = ScriptedModel::default();
    let agent = Agent::<RefundDesk>::new("agent")
        .model(model)
        .tools((weather, refund, closure))
        .tools(RefundDesk { limit: 1 });
    let names: Vec<&str> = agent.tool_list().map(Tool::name).collect();
    assert_eq!(names, ["weather", "refund", "closure", "limit", "change", "which"]);
}
