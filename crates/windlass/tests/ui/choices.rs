use windlass::tool;

/// Has another effect.
#[tool(effect = none)]
fn effect() {}

/// Does something else then.
#[tool(timeout = "1s", on_timeout = "fail")]
fn on_timeout() {}

/// Does something else then.
#[tool(on_failure = panic)]
fn on_failure() {}

/// Is so so.
#[tool(strict = maybe)]
fn strict() {}

/// Asks oddly.
#[tool(needs_approval = 3)]
fn approve() {}

/// Tries again oddly.
#[tool(retry = 3)]
fn retry() {}

/// Does not try again.
#[tool(retry = (1, "1s"))]
fn retry_once() {}

/// Never runs.
#[tool(max_concurrent_calls = 0)]
fn concurrency() {}

/// Says nothing.
#[tool(max_output_bytes = 0)]
fn output_budget() {}

/// Has a lone guardrail.
#[tool(input_guardrails = guardrail())]
fn input_guardrails() {}

fn main() {}
