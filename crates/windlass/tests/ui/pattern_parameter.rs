use windlass::tool;

/// Adds.
#[tool]
fn add((a, b): (i64, i64), _: String) -> i64 {
    a + b
}

fn main() {}
