//! The contract of a store for receipts.

use std::future::Future;

use futures_util::future::join_all;
use windlass_core::id::Timestamp;

use super::check::{StoreCheck, lease_claim, rich_output, sample_digest};
use crate::store::{ReceiptClaim, ReceiptKey, Store};

pub(super) async fn check_receipts<S, F, Fut>(make: &F)
where
    S: Store,
    F: Fn() -> Fut,
    Fut: Future<Output = S>,
{
    a_receipt_is_kept(StoreCheck("a receipt is kept"), make().await).await;
    a_receipt_runs_out(StoreCheck("a receipt runs out"), make().await).await;
    one_of_many_makes_the_call(StoreCheck("one of many makes the call"), make().await).await;
    a_right_is_given_back(StoreCheck("the right to make a call is given back"), make().await).await;
    a_right_runs_out(StoreCheck("the right to make a call runs out"), make().await).await;
    receipts_are_apart(StoreCheck("receipts are apart"), make().await).await;
}

fn receipt_key(scope: &str, call: &str) -> ReceiptKey {
    ReceiptKey { scope: scope.to_owned(), digest: sample_digest(call) }
}

async fn claim_receipt<S: Store>(
    check: StoreCheck,
    store: &S,
    key: &ReceiptKey,
    owner: &str,
    now: u64,
) -> ReceiptClaim {
    check.expect_ok("asking for a receipt", store.claim_receipt(key, lease_claim(owner, now)).await)
}

async fn a_receipt_is_kept<S: Store>(check: StoreCheck, store: S) {
    let key = receipt_key("", "call");
    check.expect_equal(
        "the first answer",
        claim_receipt(check, &store, &key, "ann", 1_000).await,
        ReceiptClaim::Acquired,
    );
    let busy = ReceiptClaim::InProgress { expires_at: Timestamp(2_000) };
    check.expect_equal("the answer to another", claim_receipt(check, &store, &key, "bea", 1_001).await, busy);
    check.expect_ok("keeping it", store.save_receipt(&key, "ann", &rich_output("receipt"), None).await);
    let receipt = ReceiptClaim::Completed(rich_output("receipt"));
    for (owner, now) in [("ann", 1_002), ("bea", 1_002), ("cem", u64::MAX / 4)] {
        check.expect_equal(
            "the answer after that",
            claim_receipt(check, &store, &key, owner, now).await,
            receipt.clone(),
        );
    }
    check.expect_ok(
        "keeping another without the right",
        store.save_receipt(&key, "ann", &rich_output("other"), None).await,
    );
    check.expect_ok("giving up without the right", store.release_receipt(&key, "ann").await);
    check.expect_equal(
        "the answer after that",
        claim_receipt(check, &store, &key, "bea", 1_003).await,
        receipt,
    );
}

async fn a_receipt_runs_out<S: Store>(check: StoreCheck, store: S) {
    let key = receipt_key("", "call");
    claim_receipt(check, &store, &key, "ann", 1_000).await;
    check.expect_ok(
        "keeping it",
        store.save_receipt(&key, "ann", &rich_output("receipt"), Some(Timestamp(5_000))).await,
    );
    let receipt = ReceiptClaim::Completed(rich_output("receipt"));
    check.expect_equal("just before", claim_receipt(check, &store, &key, "bea", 4_999).await, receipt);
    check.expect_equal(
        "when it has run out",
        claim_receipt(check, &store, &key, "bea", 5_000).await,
        ReceiptClaim::Acquired,
    );
    let busy = ReceiptClaim::InProgress { expires_at: Timestamp(6_000) };
    check.expect_equal("after that", claim_receipt(check, &store, &key, "cem", 5_001).await, busy);
    check.expect_ok("keeping the next", store.save_receipt(&key, "bea", &rich_output("next"), None).await);
    let next = ReceiptClaim::Completed(rich_output("next"));
    check.expect_equal("the next", claim_receipt(check, &store, &key, "cem", 9_000).await, next);
}

async fn one_of_many_makes_the_call<S: Store>(check: StoreCheck, store: S) {
    let key = receipt_key("session:s", "call");
    let owners: Vec<String> = (0..16).map(|one| format!("owner-{one}")).collect();
    let answers = join_all(owners.iter().map(|owner| claim_receipt(check, &store, &key, owner, 1_000))).await;
    let mine = answers.iter().filter(|answer| **answer == ReceiptClaim::Acquired).count();
    check.expect_equal("how many of sixteen may make it", mine, 1);
    let busy = ReceiptClaim::InProgress { expires_at: Timestamp(2_000) };
    check.expect_equal("how many wait", answers.iter().filter(|answer| **answer == busy).count(), 15);
}

async fn a_right_is_given_back<S: Store>(check: StoreCheck, store: S) {
    let key = receipt_key("", "call");
    claim_receipt(check, &store, &key, "ann", 1_000).await;
    check.expect_ok("giving up somebody else's", store.release_receipt(&key, "bea").await);
    let busy = ReceiptClaim::InProgress { expires_at: Timestamp(2_000) };
    check.expect_equal("the answer", claim_receipt(check, &store, &key, "bea", 1_001).await, busy);
    check.expect_ok("giving up", store.release_receipt(&key, "ann").await);
    check.expect_ok("giving up again", store.release_receipt(&key, "ann").await);
    check.expect_equal(
        "the answer after that",
        claim_receipt(check, &store, &key, "bea", 1_002).await,
        ReceiptClaim::Acquired,
    );
}

async fn a_right_runs_out<S: Store>(check: StoreCheck, store: S) {
    let key = receipt_key("", "call");
    claim_receipt(check, &store, &key, "ann", 1_000).await;
    check.expect_equal(
        "asking again, which renews it",
        claim_receipt(check, &store, &key, "ann", 1_500).await,
        ReceiptClaim::Acquired,
    );
    let busy = ReceiptClaim::InProgress { expires_at: Timestamp(2_500) };
    check.expect_equal("the answer to another", claim_receipt(check, &store, &key, "bea", 2_499).await, busy);
    check.expect_equal(
        "when it has run out",
        claim_receipt(check, &store, &key, "bea", 2_500).await,
        ReceiptClaim::Acquired,
    );
    check.expect_ok(
        "keeping what comes late",
        store.save_receipt(&key, "ann", &rich_output("late"), None).await,
    );
    check.expect_ok("giving up late", store.release_receipt(&key, "ann").await);
    let busy = ReceiptClaim::InProgress { expires_at: Timestamp(3_500) };
    check.expect_equal("the answer to a third", claim_receipt(check, &store, &key, "cem", 2_600).await, busy);
    check.expect_ok(
        "keeping what is in time",
        store.save_receipt(&key, "bea", &rich_output("in time"), None).await,
    );
    let receipt = ReceiptClaim::Completed(rich_output("in time"));
    check.expect_equal("the receipt", claim_receipt(check, &store, &key, "cem", 2_700).await, receipt);
}

async fn receipts_are_apart<S: Store>(check: StoreCheck, store: S) {
    let keys = [
        receipt_key("", "a"),
        receipt_key("", "b"),
        receipt_key("session:s", "a"),
        receipt_key("session:t", "a"),
    ];
    for key in &keys {
        check.expect_equal(
            "the first answer",
            claim_receipt(check, &store, key, "ann", 1_000).await,
            ReceiptClaim::Acquired,
        );
    }
    for (at, key) in keys.iter().enumerate() {
        check.expect_ok("keeping", store.save_receipt(key, "ann", &rich_output(&at.to_string()), None).await);
    }
    for (at, key) in keys.iter().enumerate() {
        let receipt = ReceiptClaim::Completed(rich_output(&at.to_string()));
        check.expect_equal("the receipt", claim_receipt(check, &store, key, "bea", 1_000).await, receipt);
    }
}
