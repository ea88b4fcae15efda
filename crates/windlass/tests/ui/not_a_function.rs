use windlass::{tool, toolbox};

/// A desk.
#[tool]
struct Desk;

/// A drawer.
#[toolbox]
struct Drawer;

fn main() {}
