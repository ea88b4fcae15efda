use windlass::tool;

/// Gives money back.
#[tool(approve = |args| args._cents)]
fn not_a_bool(_cents: u64) {}

/// Gives money back.
#[tool(approve = |args| args.euros > 10)]
fn no_such_argument(_cents: u64) {}

/// Gives money back.
#[tool(conflict = |args| args._order)]
fn moved_out(_order: String) {}

fn main() {}
