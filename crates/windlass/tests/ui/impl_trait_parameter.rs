use windlass::tool;

/// Greets.
#[tool]
fn greet(name: impl Into<String>, others: Vec<impl Into<String>>) -> String {
    name.into()
}

fn main() {}
