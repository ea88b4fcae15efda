//! Receipts of idempotent calls: their scopes, the receipts and calls in flight of one run, and the claims to execute
//! them.

mod execution_claim;
mod key_scopes;
mod receipt_cache;

pub(crate) use self::execution_claim::{
    ClaimVerdict, ExecutionClaim, ReceiptDestination, ReceiptRequest, RunReceipts,
};
pub(crate) use self::key_scopes::KeyScopes;
pub(crate) use self::receipt_cache::ReceiptCache;

use self::receipt_cache::{InFlight, LocalReceiptClaim, ReceiptAge};
