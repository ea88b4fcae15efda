use windlass::{tool::ToolContext, toolbox};

struct Desk;
struct Till;
struct Generic<T>(T);

#[toolbox]
impl Desk {
    fn open(&self) {}
}

#[toolbox(timeout = "30s")]
impl Desk {
    /// Takes itself.
    #[tool]
    fn takes(self) {}

    /// Changes itself.
    #[tool]
    fn changes(&mut self) {}

    /// Has no self.
    #[tool]
    fn has_no_self(_order: String) {}

    /// Takes another of its kind.
    #[tool]
    fn other(&self, _other: Self) {}

    #[tool]
    fn undescribed(&self) {}
}

#[toolbox]
impl Till {
    /// Of the desk.
    #[tool]
    fn desk(&self, _ctx: &ToolContext<Desk>) {}

    /// Of the till.
    #[tool]
    fn till(&self, _ctx: &ToolContext<Till>) {}
}

#[toolbox]
impl<T: Send + Sync> Generic<T> {
    /// Opens.
    #[tool]
    fn open(&self) {}
}

#[toolbox]
impl Clone for Till {
    /// Clones.
    #[tool]
    fn clone(&self) -> Self {
        Till
    }
}

fn main() {}
