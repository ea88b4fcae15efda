use windlass::tool;

/// Asks about nothing.
#[tool(needs_approval = || true)]
fn approve() {}

/// Is there for two.
#[tool(enabled = |a, b| true)]
fn enabled() {}

/// Conflicts with nothing.
#[tool(conflict_key = || String::new())]
fn conflict() {}

/// Says too little.
#[tool(on_failure = |error| String::new())]
fn on_failure() {}

fn main() {}
