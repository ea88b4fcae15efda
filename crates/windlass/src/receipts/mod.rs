//! Receipts of idempotent calls: their scopes, the receipts and calls in flight of one run, and the claims to execute
//! them; permits of limits that processes share, which are claims too.

mod execution_claim;
mod key_scopes;
mod receipt_cache;
mod shared_permit;

pub(crate) use self::execution_claim::{
    ClaimVerdict, ExecutionClaim, ReceiptDestination, ReceiptRequest, RunReceipts,
};
pub(crate) use self::key_scopes::KeyScopes;
pub(crate) use self::receipt_cache::ReceiptCache;
pub(crate) use self::shared_permit::BodyPermits;

use self::receipt_cache::{InFlight, LocalReceiptClaim, ReceiptAge};
