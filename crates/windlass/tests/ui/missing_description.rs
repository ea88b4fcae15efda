use windlass::{tool::IntoTool, tool};

#[tool]
fn weather(city: String) -> String {
    city
}

#[tool(description = " ")]
fn empty() {}

fn main() {
    // The tool is still there, so that this is no second error.
    let _ = IntoTool::<()>::into_tool(weather);
}
