//! Receipts of idempotent calls: their scopes, the receipts and calls in flight of one run, and the claims to execute
//! them; what a body holds while it runs: permits, some of which are claims too, its conflict key and its claim.

mod body_hold;
mod key_scopes;
mod receipt_cache;
mod shared_permit;
mod store_claim;

pub(crate) use self::body_hold::{
    BodyHold, BodyLimit, BodyPatience, BodyPermits, ClaimVerdict, ExecutionClaim, LateConflictKeys,
    ReceiptDestination, ReceiptRequest, RunReceipts, WaitVerdict,
};
pub(crate) use self::key_scopes::KeyScopes;
pub(crate) use self::receipt_cache::ReceiptCache;

use self::receipt_cache::{InFlight, LocalReceiptClaim, ReceiptAge};
