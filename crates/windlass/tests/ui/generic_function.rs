use windlass::tool;

/// Counts things.
#[tool]
fn count<T: Send>(things: Vec<T>) -> usize {
    things.len()
}

fn main() {}
