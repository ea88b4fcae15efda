use windlass::tool;

/// Has a space.
#[tool(name = "the weather")]
fn space() {}

/// Has an accent.
#[tool]
fn météo() {}

/// Has a dot.
#[tool(namespace = "desk.front")]
fn dot() {}

fn main() {}
