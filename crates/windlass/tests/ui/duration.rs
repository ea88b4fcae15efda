use windlass::tool;

/// Has no unit.
#[tool(timeout = "30")]
fn no_unit() {}

/// Is no text.
#[tool(timeout = 30)]
fn no_text() {}

/// Leaves no time.
#[tool(timeout = "0s")]
fn no_time() {}

/// Never has one.
#[tool(on_timeout = fail_run)]
fn never() {}

fn main() {}
