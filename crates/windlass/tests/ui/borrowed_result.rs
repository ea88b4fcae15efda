use windlass::{tool::ToolContext, tool};

struct Desk {
    name: String,
}

/// Who is at the desk.
#[tool]
fn who(ctx: &ToolContext<Desk>) -> &str {
    &ctx.name
}

fn main() {}
