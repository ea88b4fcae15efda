use windlass::tool;

/// Gives money back.
#[tool(time_out = "30s")]
fn refund(order: String) {}

/// Gives money back, in time.
#[tool(timeout)]
fn refund_in_time(order: String) {}

fn main() {}
