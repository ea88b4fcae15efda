use std::borrow::Cow;

use windlass::tool;

/// Greets.
#[tool]
fn greet(name: &str, words: &[String], title: Option<&str>, suffix: Cow<'_, str>) -> String {
    name.to_owned()
}

fn main() {}
