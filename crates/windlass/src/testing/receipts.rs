//! What every store must do with receipts.

use std::future::Future;

use futures_util::future::join_all;
use windlass_core::Timestamp;

use super::check::{Check, claim, digest, output};
use crate::store::{ReceiptClaim, ReceiptKey, Store};

pub(super) async fn suite<S, F, Fut>(make: &F)
where
    S: Store,
    F: Fn() -> Fut,
    Fut: Future<Output = S>,
{
    a_receipt_is_kept(Check("a receipt is kept"), make().await).await;
    a_receipt_runs_out(Check("a receipt runs out"), make().await).await;
    one_of_many_makes_the_call(Check("one of many makes the call"), make().await).await;
    a_right_is_given_back(Check("the right to make a call is given back"), make().await).await;
    a_right_runs_out(Check("the right to make a call runs out"), make().await).await;
    receipts_are_apart(Check("receipts are apart"), make().await).await;
}

fn key(scope: &str, call: &str) -> ReceiptKey {
    ReceiptKey { scope: scope.to_owned(), digest: digest(call) }
}

async fn ask<S: Store>(check: Check, store: &S, key: &ReceiptKey, owner: &str, now: u64) -> ReceiptClaim {
    check.done("asking for a receipt", store.claim_receipt(key, claim(owner, now)).await)
}

async fn a_receipt_is_kept<S: Store>(check: Check, store: S) {
    let key = key("", "call");
    check.same("the first answer", ask(check, &store, &key, "ann", 1_000).await, ReceiptClaim::Mine);
    let busy = ReceiptClaim::Busy { until: Timestamp(2_000) };
    check.same("the answer to another", ask(check, &store, &key, "bea", 1_001).await, busy);
    check.done("keeping it", store.keep_receipt(&key, "ann", &output("receipt"), None).await);
    let receipt = ReceiptClaim::Receipt(output("receipt"));
    for (owner, now) in [("ann", 1_002), ("bea", 1_002), ("cem", u64::MAX / 4)] {
        check.same("the answer after that", ask(check, &store, &key, owner, now).await, receipt.clone());
    }
    check.done(
        "keeping another without the right",
        store.keep_receipt(&key, "ann", &output("other"), None).await,
    );
    check.done("giving up without the right", store.give_up_receipt(&key, "ann").await);
    check.same("the answer after that", ask(check, &store, &key, "bea", 1_003).await, receipt);
}

async fn a_receipt_runs_out<S: Store>(check: Check, store: S) {
    let key = key("", "call");
    ask(check, &store, &key, "ann", 1_000).await;
    check.done(
        "keeping it",
        store.keep_receipt(&key, "ann", &output("receipt"), Some(Timestamp(5_000))).await,
    );
    let receipt = ReceiptClaim::Receipt(output("receipt"));
    check.same("just before", ask(check, &store, &key, "bea", 4_999).await, receipt);
    check.same("when it has run out", ask(check, &store, &key, "bea", 5_000).await, ReceiptClaim::Mine);
    let busy = ReceiptClaim::Busy { until: Timestamp(6_000) };
    check.same("after that", ask(check, &store, &key, "cem", 5_001).await, busy);
    check.done("keeping the next", store.keep_receipt(&key, "bea", &output("next"), None).await);
    let next = ReceiptClaim::Receipt(output("next"));
    check.same("the next", ask(check, &store, &key, "cem", 9_000).await, next);
}

async fn one_of_many_makes_the_call<S: Store>(check: Check, store: S) {
    let key = key("session:s", "call");
    let owners: Vec<String> = (0..16).map(|one| format!("owner-{one}")).collect();
    let answers = join_all(owners.iter().map(|owner| ask(check, &store, &key, owner, 1_000))).await;
    let mine = answers.iter().filter(|answer| **answer == ReceiptClaim::Mine).count();
    check.same("how many of sixteen may make it", mine, 1);
    let busy = ReceiptClaim::Busy { until: Timestamp(2_000) };
    check.same("how many wait", answers.iter().filter(|answer| **answer == busy).count(), 15);
}

async fn a_right_is_given_back<S: Store>(check: Check, store: S) {
    let key = key("", "call");
    ask(check, &store, &key, "ann", 1_000).await;
    check.done("giving up somebody else's", store.give_up_receipt(&key, "bea").await);
    let busy = ReceiptClaim::Busy { until: Timestamp(2_000) };
    check.same("the answer", ask(check, &store, &key, "bea", 1_001).await, busy);
    check.done("giving up", store.give_up_receipt(&key, "ann").await);
    check.done("giving up again", store.give_up_receipt(&key, "ann").await);
    check.same("the answer after that", ask(check, &store, &key, "bea", 1_002).await, ReceiptClaim::Mine);
}

async fn a_right_runs_out<S: Store>(check: Check, store: S) {
    let key = key("", "call");
    ask(check, &store, &key, "ann", 1_000).await;
    check.same(
        "asking again, which renews it",
        ask(check, &store, &key, "ann", 1_500).await,
        ReceiptClaim::Mine,
    );
    let busy = ReceiptClaim::Busy { until: Timestamp(2_500) };
    check.same("the answer to another", ask(check, &store, &key, "bea", 2_499).await, busy);
    check.same("when it has run out", ask(check, &store, &key, "bea", 2_500).await, ReceiptClaim::Mine);
    check.done("keeping what comes late", store.keep_receipt(&key, "ann", &output("late"), None).await);
    check.done("giving up late", store.give_up_receipt(&key, "ann").await);
    let busy = ReceiptClaim::Busy { until: Timestamp(3_500) };
    check.same("the answer to a third", ask(check, &store, &key, "cem", 2_600).await, busy);
    check.done("keeping what is in time", store.keep_receipt(&key, "bea", &output("in time"), None).await);
    let receipt = ReceiptClaim::Receipt(output("in time"));
    check.same("the receipt", ask(check, &store, &key, "cem", 2_700).await, receipt);
}

async fn receipts_are_apart<S: Store>(check: Check, store: S) {
    let keys = [key("", "a"), key("", "b"), key("session:s", "a"), key("session:t", "a")];
    for key in &keys {
        check.same("the first answer", ask(check, &store, key, "ann", 1_000).await, ReceiptClaim::Mine);
    }
    for (at, key) in keys.iter().enumerate() {
        check.done("keeping", store.keep_receipt(key, "ann", &output(&at.to_string()), None).await);
    }
    for (at, key) in keys.iter().enumerate() {
        let receipt = ReceiptClaim::Receipt(output(&at.to_string()));
        check.same("the receipt", ask(check, &store, key, "bea", 1_000).await, receipt);
    }
}
