use windlass::{agent::Agent, tool::ToolContext, tool};

struct Desk;
struct Till;

/// Opens the desk.
#[tool]
fn open(ctx: &ToolContext<Desk>) {
    let _ = ctx;
}

fn not_a_tool() {}

fn main() {
    let _ = Agent::<Till>::new("till").tools((open,));
    let _ = Agent::<Till>::new("till").tools((not_a_tool,));
}
