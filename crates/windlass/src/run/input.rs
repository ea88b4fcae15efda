//! What a run can be given.

use std::sync::Arc;

use windlass_core::{Item, Message};

/// Something that a run can be given: text, a message, or items.
pub trait IntoInput {
    /// The items.
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
