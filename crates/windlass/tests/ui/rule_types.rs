use windlass::tool;

/// Gives money back.
#[tool(needs_approval = |args| args._cents)]
fn not_a_bool(_cents: u64) {}

/// Gives money back.
#[tool(needs_approval = |args| args.euros > 10)]
fn no_such_argument(_cents: u64) {}

/// Gives money back.
#[tool(conflict_key = |args| args._order)]
fn moved_out(_order: String) {}

fn main() {}
