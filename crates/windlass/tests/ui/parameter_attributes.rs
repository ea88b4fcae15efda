use windlass::tool;

/// Has a range.
#[tool]
fn range(#[range(1..3)] days: u8) {}

/// Has two defaults.
#[tool]
fn defaults(#[default = 1] #[default = 2] days: u8, #[default] #[serde(default)] nights: u8) {}

/// Has a default of another form.
#[tool]
fn form(#[default(3)] days: u8) {}

/// Has a default of another type.
#[tool]
fn other_type(#[default = "three"] _letter: char) {}

/// Is flat.
#[tool]
fn flat(#[serde(flatten)] order: std::collections::BTreeMap<String, String>) {}

fn main() {}
