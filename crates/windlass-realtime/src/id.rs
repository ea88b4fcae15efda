//! Ids of a live conversation: newtypes over shared text.

use windlass::core::text_id;

text_id! {
    /// Names one item of the conversation.
    ItemId
}
text_id! {
    /// Names one answer of the model.
    ResponseId
}
text_id! {
    /// Names one command that was sent to the model, so that what the model says of it can be told apart.
    CommandId
}
