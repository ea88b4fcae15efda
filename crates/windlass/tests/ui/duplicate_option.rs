use windlass::tool;

/// Gives money back.
#[tool(effect = once, timeout = "30s", effect = pure)]
fn refund(order: String) {}

fn main() {}
