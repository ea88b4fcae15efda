//! Receipts of idempotent calls: their scopes, and the receipts and calls in flight of one run.

mod key_scopes;
mod receipt_cache;

pub(crate) use self::key_scopes::KeyScopes;
pub(crate) use self::receipt_cache::{InFlight, LocalReceiptClaim, ReceiptAge, ReceiptCache};
