//! The contract of a store for receipts.

use std::future::Future;

use futures_util::future::join_all;
use windlass_core::{id::Timestamp, item::OutputContent};

use super::check::{StoreCheck, journal_lines, lease_claim, rich_output, sample_digest, stored_lease};
use crate::error::{StoreError, StoreErrorKind};
use crate::store::{DerivedWrites, Durability, ReceiptClaim, ReceiptKey, ReceiptWrite, Store, StoredReceipt};

pub(super) async fn check_receipts<S, F, Fut>(make: &F)
where
    S: Store,
    F: Fn() -> Fut,
    Fut: Future<Output = S>,
{
    a_receipt_is_kept(StoreCheck("a receipt is kept"), make().await).await;
    a_receipt_runs_out(StoreCheck("a receipt runs out"), make().await).await;
    a_generation_is_kept(StoreCheck("the generation of a receipt is kept"), make().await).await;
    one_of_many_makes_the_call(StoreCheck("one of many makes the call"), make().await).await;
    a_right_is_given_back(StoreCheck("the right to make a call is given back"), make().await).await;
    a_right_is_taken_over(StoreCheck("the right to make a call is taken over"), make().await).await;
    a_receipt_is_found_without_a_claim(StoreCheck("a receipt is found without a claim"), make().await).await;
    a_receipt_comes_with_its_settlement(StoreCheck("a receipt comes with its settlement"), make().await)
        .await;
    receipts_are_apart(StoreCheck("receipts are apart"), make().await).await;
    receipts_are_listed_in_pages(StoreCheck("receipts are listed in pages"), make().await).await;
    receipts_are_imported(StoreCheck("receipts of another store are imported"), make().await).await;
}

/// A granted claim of an operation whose receipts have not expired.
const ACQUIRED: ReceiptClaim = ReceiptClaim::Acquired { generation: 0 };

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
    check.expect_ok("asking for a receipt", store.claim_receipt(key, lease_claim(owner, now), None).await)
}

/// Saves a receipt as the settlement of a call does, in a run of its own.
async fn save_receipt<S: Store>(
    check: StoreCheck,
    store: &S,
    key: &ReceiptKey,
    owner: &str,
    output: &OutputContent,
    expires_at: Option<Timestamp>,
) -> Result<(), StoreError> {
    let run = format!("settles {} {owner} {}", key.digest, uuid::Uuid::now_v7());
    let lease = check.create_run(store, &run, "x").await;
    let receipt =
        ReceiptWrite { key: key.clone(), owner: owner.to_owned(), output: output.clone(), expires_at };
    let writes = DerivedWrites { receipts: vec![receipt], ..DerivedWrites::default() };
    store.append_with_writes(&lease, 0, journal_lines(1), Durability::Sync, writes).await
}

/// The answer to a claimant while `owner` holds the claim since the time `now`.
fn in_progress(owner: &str, beat: u64, now: u64) -> ReceiptClaim {
    ReceiptClaim::InProgress(stored_lease(owner, 0, beat, now))
}

async fn a_receipt_is_kept<S: Store>(check: StoreCheck, store: S) {
    let key = receipt_key("", "call");
    check.expect_equal("the first answer", claim_receipt(check, &store, &key, "ann", 1_000).await, ACQUIRED);
    let busy = in_progress("ann", 0, 1_000);
    check.expect_equal("the answer to another", claim_receipt(check, &store, &key, "bea", 1_001).await, busy);
    check.expect_ok(
        "keeping it",
        save_receipt(check, &store, &key, "ann", &rich_output("receipt"), None).await,
    );
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
        save_receipt(check, &store, &key, "ann", &rich_output("other"), None).await,
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
        save_receipt(check, &store, &key, "ann", &rich_output("receipt"), Some(Timestamp(5_000))).await,
    );
    let receipt = ReceiptClaim::Completed(rich_output("receipt"));
    check.expect_equal("just before", claim_receipt(check, &store, &key, "bea", 4_999).await, receipt);
    check.expect_equal(
        "when it has run out",
        claim_receipt(check, &store, &key, "bea", 5_000).await,
        ReceiptClaim::Acquired { generation: 1 },
    );
    let busy = in_progress("bea", 0, 5_000);
    check.expect_equal("after that", claim_receipt(check, &store, &key, "cem", 5_001).await, busy);
    check.expect_ok(
        "keeping the next",
        save_receipt(check, &store, &key, "bea", &rich_output("next"), None).await,
    );
    let next = ReceiptClaim::Completed(rich_output("next"));
    check.expect_equal("the next", claim_receipt(check, &store, &key, "cem", 9_000).await, next);
}

/// The generation rises with every receipt that runs out, whoever asks and whatever the store has deleted, and with
/// nothing else.
async fn a_generation_is_kept<S: Store>(check: StoreCheck, store: S) {
    let acquired = |generation| ReceiptClaim::Acquired { generation };
    let key = receipt_key("", "call");
    for generation in 0..3 {
        let now = 1_000 + u64::from(generation) * 10_000;
        let claimed = claim_receipt(check, &store, &key, "ann", now).await;
        check.expect_equal("the generation", claimed, acquired(generation));
        check.expect_ok("giving up", store.release_receipt(&key, "ann").await);
        let claimed = claim_receipt(check, &store, &key, "bea", now + 1).await;
        check.expect_equal("the generation after a failure", claimed, acquired(generation));
        let claimed = claim_receipt(check, &store, &key, "bea", now + 2).await;
        check.expect_equal("the generation of a renewed claim", claimed, acquired(generation));
        let seen = stored_lease("bea", 0, 1, now + 2);
        let claimed = store.claim_receipt(&key, lease_claim("cem", now + 5_000), Some(&seen)).await;
        let claimed = check.expect_ok("taking over", claimed);
        check.expect_equal("the generation of a claim taken over", claimed, acquired(generation));
        let expires = Some(Timestamp(now + 6_000));
        check.expect_ok(
            "keeping",
            save_receipt(check, &store, &key, "cem", &rich_output("receipt"), expires).await,
        );
        // Claims of other operations may make the store delete the output.
        for other in ["a", "b", "c", "d"] {
            claim_receipt(check, &store, &receipt_key("", other), "ann", now + 7_000).await;
        }
    }
}

async fn one_of_many_makes_the_call<S: Store>(check: StoreCheck, store: S) {
    let key = receipt_key("session:s", "call");
    let owners: Vec<String> = (0..16).map(|one| format!("owner-{one}")).collect();
    let answers = join_all(owners.iter().map(|owner| claim_receipt(check, &store, &key, owner, 1_000))).await;
    let mine = answers.iter().filter(|answer| matches!(answer, ReceiptClaim::Acquired { .. })).count();
    check.expect_equal("how many of sixteen may make it", mine, 1);
    let is_busy = |answer: &&ReceiptClaim| matches!(answer, ReceiptClaim::InProgress(_));
    check.expect_equal("how many wait", answers.iter().filter(is_busy).count(), 15);
}

async fn a_right_is_given_back<S: Store>(check: StoreCheck, store: S) {
    let key = receipt_key("", "call");
    claim_receipt(check, &store, &key, "ann", 1_000).await;
    check.expect_ok("giving up somebody else's", store.release_receipt(&key, "bea").await);
    let busy = in_progress("ann", 0, 1_000);
    check.expect_equal("the answer", claim_receipt(check, &store, &key, "bea", 1_001).await, busy);
    check.expect_ok("giving up", store.release_receipt(&key, "ann").await);
    check.expect_ok("giving up again", store.release_receipt(&key, "ann").await);
    check.expect_equal(
        "the answer after that",
        claim_receipt(check, &store, &key, "bea", 1_002).await,
        ACQUIRED,
    );
}

/// A claim ends when its owner releases it, or when a contender has seen it unchanged; no time ends it.
async fn a_right_is_taken_over<S: Store>(check: StoreCheck, store: S) {
    let key = receipt_key("", "call");
    claim_receipt(check, &store, &key, "ann", 1_000).await;
    let first = stored_lease("ann", 0, 0, 1_000);
    check.expect_equal(
        "asking again, which renews it",
        claim_receipt(check, &store, &key, "ann", 1_500).await,
        ACQUIRED,
    );
    for now in [0, 2_499, 3_600_000] {
        let answer = claim_receipt(check, &store, &key, "bea", now).await;
        check.expect_equal("the answer to another", answer, in_progress("ann", 1, 1_500));
    }
    let stale = store.claim_receipt(&key, lease_claim("bea", 9_000), Some(&first)).await;
    check.expect_equal("what was renewed", check.expect_ok("asking", stale), in_progress("ann", 1, 1_500));
    let seen = stored_lease("ann", 0, 1, 1_500);
    let taken = store.claim_receipt(&key, lease_claim("bea", 2_500), Some(&seen)).await;
    check.expect_equal("what was seen unchanged", check.expect_ok("asking", taken), ACQUIRED);
    check.expect_ok(
        "keeping what comes late",
        save_receipt(check, &store, &key, "ann", &rich_output("late"), None).await,
    );
    check.expect_ok("giving up late", store.release_receipt(&key, "ann").await);
    let busy = in_progress("bea", 0, 2_500);
    check.expect_equal("the answer to a third", claim_receipt(check, &store, &key, "cem", 2_600).await, busy);
    check.expect_ok(
        "keeping what is in time",
        save_receipt(check, &store, &key, "bea", &rich_output("in time"), None).await,
    );
    let receipt = ReceiptClaim::Completed(rich_output("in time"));
    check.expect_equal("the receipt", claim_receipt(check, &store, &key, "cem", 2_700).await, receipt);
}

async fn a_receipt_is_found_without_a_claim<S: Store>(check: StoreCheck, store: S) {
    let key = receipt_key("", "call");
    let find = async |now| check.expect_ok("finding", store.find_receipt(&key, Timestamp(now)).await);
    check.expect_equal("no receipt", find(1_000).await, None);
    claim_receipt(check, &store, &key, "ann", 1_000).await;
    check.expect_equal("a claim is no receipt", find(1_000).await, None);
    let expires = Some(Timestamp(5_000));
    check.expect_ok(
        "keeping it",
        save_receipt(check, &store, &key, "ann", &rich_output("done"), expires).await,
    );
    check.expect_equal("the receipt", find(4_999).await, Some(rich_output("done")));
    check.expect_equal("when it has run out", find(5_000).await, None);
    let renewed = claim_receipt(check, &store, &key, "bea", 4_999).await;
    check.expect_equal("looking changes nothing", renewed, ReceiptClaim::Completed(rich_output("done")));
}

/// Lines and the receipt of a call that they settle are written together or not at all.
async fn a_receipt_comes_with_its_settlement<S: Store>(check: StoreCheck, store: S) {
    let earlier = check.create_run(&store, "run", "x").await;
    let lease = check.take_over(&store, &earlier, "y").await;
    let lines = journal_lines(1);
    let key = receipt_key("", "call");
    let writes = |owner: &str, expires_at| {
        let (key, owner, output) = (key.clone(), owner.to_owned(), rich_output("receipt"));
        let receipts = vec![ReceiptWrite { key, owner, output, expires_at }];
        DerivedWrites { receipts, ..DerivedWrites::default() }
    };
    let append =
        |lease, at: u64, writes| store.append_with_writes(lease, at, lines.clone(), Durability::Sync, writes);
    let find = async |now| check.expect_ok("finding", store.find_receipt(&key, Timestamp(now)).await);
    claim_receipt(check, &store, &key, "ann", 1_000).await;
    let stale = append(&lease, 1, writes("ann", None)).await;
    check.expect_error("a receipt with lines that leave a gap", stale, StoreErrorKind::Stale);
    let fenced = append(&earlier, 0, writes("ann", None)).await;
    check.expect_error("a receipt of an earlier driver", fenced, StoreErrorKind::Fenced);
    check.expect_equal("no receipt", find(1_000).await, None);
    let busy = in_progress("ann", 0, 1_000);
    check.expect_equal("the claim", claim_receipt(check, &store, &key, "bea", 1_001).await, busy.clone());
    let nothing =
        store.append_with_writes(&lease, 0, Vec::new(), Durability::Sync, writes("bea", None)).await;
    check.expect_ok("a receipt without the right", nothing);
    check.expect_equal("the claim", claim_receipt(check, &store, &key, "bea", 1_001).await, busy);
    check.expect_ok(
        "a receipt with its lines",
        append(&lease, 0, writes("ann", Some(Timestamp(5_000)))).await,
    );
    check.expect_equal("the receipt", find(4_999).await, Some(rich_output("receipt")));
    check.expect_equal("the receipt after its expiry", find(5_000).await, None);
    let stored = check.expect_ok("loading", store.load_journal(&"run".into(), 0).await);
    check.expect_equal("the lines", stored, lines.clone());
    let again = claim_receipt(check, &store, &key, "bea", 5_000).await;
    check.expect_equal("the next claim", again, ReceiptClaim::Acquired { generation: 1 });
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
            ACQUIRED,
        );
    }
    for (at, key) in keys.iter().enumerate() {
        check.expect_ok(
            "keeping",
            save_receipt(check, &store, key, "ann", &rich_output(&at.to_string()), None).await,
        );
    }
    for (at, key) in keys.iter().enumerate() {
        let receipt = ReceiptClaim::Completed(rich_output(&at.to_string()));
        check.expect_equal("the receipt", claim_receipt(check, &store, key, "bea", 1_000).await, receipt);
    }
}

async fn receipts_are_listed_in_pages<S: Store>(check: StoreCheck, store: S) {
    let mut expected = Vec::new();
    for number in 0..25 {
        let scope = if number % 2 == 0 { "" } else { "session" };
        let key = receipt_key(scope, &format!("call-{number}"));
        claim_receipt(check, &store, &key, "ann", 1_000).await;
        let expires_at = (number % 3 == 0).then_some(Timestamp(50_000));
        check.expect_ok(
            "keeping it",
            save_receipt(check, &store, &key, "ann", &rich_output("x"), expires_at).await,
        );
        expected.push(StoredReceipt { key, generation: 0, output: Some(rich_output("x")), expires_at });
    }
    claim_receipt(check, &store, &receipt_key("", "claimed"), "ann", 1_000).await;
    expected.sort_by(|one, other| one.key.cmp(&other.key));
    let mut listed: Vec<StoredReceipt> = Vec::new();
    loop {
        let after = listed.last().map(|receipt| receipt.key.clone());
        let page = check.expect_ok("listing", store.list_receipts(after.as_ref(), 10).await);
        check.expect_equal("the length of a page", page.len() <= 10, true);
        if page.is_empty() {
            break;
        }
        listed.extend(page);
    }
    check.expect_equal("the receipts", listed, expected);
}

async fn receipts_are_imported<S: Store>(check: StoreCheck, store: S) {
    let key = receipt_key("", "call");
    let receipt = |generation, output: Option<&str>| StoredReceipt {
        key: key.clone(),
        generation,
        output: output.map(Into::into),
        expires_at: None,
    };
    for (imported, expected) in [
        (receipt(2, None), receipt(2, None)),
        (receipt(2, Some("second")), receipt(2, Some("second"))),
        (receipt(2, Some("other")), receipt(2, Some("second"))),
        (receipt(1, Some("older")), receipt(2, Some("second"))),
        (receipt(3, Some("third")), receipt(3, Some("third"))),
    ] {
        check.expect_ok("importing", store.import_receipt(&imported).await);
        let listed = check.expect_ok("listing", store.list_receipts(None, 10).await);
        check.expect_equal("the receipts", listed, vec![expected]);
    }
    check.expect_equal(
        "the answer",
        claim_receipt(check, &store, &key, "ann", 1_000).await,
        ReceiptClaim::Completed("third".into()),
    );
}
