use windlass::tool;

/// Is const.
#[tool]
const fn constant() {}

/// Is unsafe.
#[tool]
unsafe fn dangerous() {}

/// Is foreign.
#[tool]
extern "C" fn foreign() {}

fn main() {}
