//! Ids of a realtime conversation: newtypes over shared text.

use windlass::core::text_id;

text_id! {
    /// The id of one item of the conversation.
    ItemId
}
text_id! {
    /// The id of one response of the model.
    ResponseId
}
text_id! {
    /// The id of one command sent to the model; the model's replies and errors refer to it.
    CommandId
}
