use windlass::{tool::ToolContext, tool};

struct Desk;

/// Comes too late.
#[tool]
fn late(order: String, ctx: &ToolContext<Desk>) {}

/// Comes twice.
#[tool]
fn twice(ctx: &ToolContext<Desk>, again: &ToolContext<Desk>) {}

/// Is owned.
#[tool]
fn owned(ctx: ToolContext<Desk>) {}

/// Is changed.
#[tool]
fn changed(ctx: &mut ToolContext<Desk>) {}

/// Is described.
#[tool]
fn described(
    /// The desk.
    ctx: &ToolContext<Desk>,
) {
}

/// Is said twice.
#[tool(context = Desk)]
fn said_twice(ctx: &ToolContext<Desk>) {}

fn main() {}
