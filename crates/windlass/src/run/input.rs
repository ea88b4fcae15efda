//! The input of a run.

use std::sync::Arc;

use windlass_core::item::{Item, Message};

/// A type that converts to the input of a run: text, a message, or items.
pub trait IntoInput {
    /// Converts to items.
    fn into_input(self) -> Vec<Arc<Item>>;
}

impl IntoInput for &str {
    fn into_input(self) -> Vec<Arc<Item>> {
        vec![Arc::new(Item::user(self))]
    }
}

impl IntoInput for String {
    fn into_input(self) -> Vec<Arc<Item>> {
        vec![Arc::new(Item::user(self))]
    }
}

impl IntoInput for Message {
    fn into_input(self) -> Vec<Arc<Item>> {
        vec![Arc::new(Item::Message(self))]
    }
}

impl IntoInput for Vec<Item> {
    fn into_input(self) -> Vec<Arc<Item>> {
        self.into_iter().map(Arc::new).collect()
    }
}

impl IntoInput for Vec<Arc<Item>> {
    fn into_input(self) -> Self {
        self
    }
}
