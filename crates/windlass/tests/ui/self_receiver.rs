use windlass::tool;

struct Desk;

impl Desk {
    /// Opens the desk.
    #[tool]
    fn open(&self) {}
}

fn main() {}
