//! Forged, edited, replayed and stripped decisions in a journal.

use windlass::core::authenticity::MacKeyring;
use windlass::core::journal::{JournalEntry, JournalFormatError};
use windlass::error::RunError;
use windlass::run::PausedRun;
use windlass::store::{Durability, OpenRunError, SqliteStore, Store, load_paused, verify_run};

use super::support::{Victim, acquire, done, edit_lines, is_finished, key, pay_response, post_approval};

/// Appends an approval to a run's journal, with a correct hash chain and without a MAC.
pub(crate) async fn forge_approval(store: &SqliteStore, run: &str) {
    let mut paused = load_paused(store, &run.into()).await.expect("it opens");
    let count = paused.record().journal().len();
    paused.decide_as("ann");
    paused.approve("c1").expect("it waits");
    let lines = lines_of(&paused);
    let lease = acquire(store, &run.into()).await;
    let forged = lines[count..].to_vec();
    store.append_journal(&lease, count as u64, forged, Durability::Sync).await.expect("it is written");
    store.release_lease(&lease).await.expect("it is released");
}

fn lines_of(paused: &PausedRun) -> Vec<windlass::core::journal::JournalLine> {
    let mut chain = windlass::core::journal::HashChain::default();
    paused.record().journal().iter().map(|record| chain.append(record)).collect()
}

/// Asserts that a run is refused because of a decision, named with its record, its author and the reason.
async fn assert_refused(victim: &Victim, store: std::sync::Arc<SqliteStore>, run: &str, parts: &[&str]) {
    let (result, _) = victim.recover(store.clone(), run, done()).await;
    let Err(RunError::JournalFormat(error)) = result else { panic!("it is not refused") };
    assert!(matches!(error, JournalFormatError::ForgedDecision { .. }), "{error}");
    for part in parts {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
    assert!(matches!(
        verify_run(&*store, &run.into()).await,
        Err(OpenRunError::JournalFormat { source: JournalFormatError::ForgedDecision { .. }, .. })
    ));
    assert!(load_paused(&*store, &run.into()).await.is_err());
}

#[tokio::test]
async fn a_forged_decision_with_a_new_hash_chain_is_refused_and_named() {
    let victim = Victim::new();
    victim.start_payment(victim.attackers_store(), "open").await;
    forge_approval(&victim.attackers_store(), "open").await;
    let (result, _) = victim.recover(victim.attackers_store(), "open", done()).await;
    assert!(is_finished(&result.expect("the forgery is believed without keys")));
    assert_eq!(victim.paid().len(), 1, "the attack works without keys");

    let victim = Victim::new();
    victim.start_payment(victim.store(), "guarded").await;
    forge_approval(&victim.attackers_store(), "guarded").await;
    let parts = ["an approval of call `c1`", "\"ann\"", "it has no MAC"];
    assert_refused(&victim, victim.store(), "guarded", &parts).await;
    assert_eq!(victim.paid().len(), 0);
}

/// Runs a payment with an approval to its end.
async fn finish_payment(victim: &Victim, run: &str) {
    victim.start_payment(victim.store(), run).await;
    post_approval(&victim.store(), run, "ann").await;
    let replies = [pay_response("c2", 1)];
    let (result, warnings) = victim.recover(victim.store(), run, replies).await;
    assert!(result.expect("it goes on").is_paused(), "the second payment waits");
    assert_eq!(warnings, Vec::<String>::new());
}

#[tokio::test]
async fn a_decision_has_a_mac_and_the_run_goes_on() {
    let victim = Victim::new();
    finish_payment(&victim, "run").await;
    assert_eq!(victim.paid().len(), 1);
    let verified = verify_run(&*victim.store(), &"run".into()).await.expect("all is well");
    let keys: Vec<_> = verified.decisions.iter().map(|decision| decision.verified_by.clone()).collect();
    assert_eq!(keys, [Some(key(1).id().clone())]);
}

#[tokio::test]
async fn an_edited_decision_and_an_edited_call_are_refused() {
    for (from, to) in [("\"ann\"", "\"bea\""), ("9000", "9001")] {
        let victim = Victim::new();
        finish_payment(&victim, "run").await;
        edit_lines(&victim.attackers_file(), "run", |body| body.replace(from, to));
        assert_refused(&victim, victim.store(), "run", &["does not match"]).await;
    }
}

#[tokio::test]
async fn a_stripped_mac_is_refused() {
    let victim = Victim::new();
    finish_payment(&victim, "run").await;
    edit_lines(&victim.attackers_file(), "run", |body| match body.split_once(",\"mac\":") {
        Some((rest, _)) => format!("{rest}}}}}"),
        None => body,
    });
    // Without keys the journal is as good as any other.
    verify_run(&*victim.attackers_store(), &"run".into()).await.expect("the hash chain is intact");
    assert_refused(&victim, victim.store(), "run", &["it has no MAC"]).await;
}

#[tokio::test]
async fn a_decision_of_another_run_is_refused() {
    let victim = Victim::new();
    finish_payment(&victim, "small").await;
    victim.start_payment(victim.store(), "large").await;
    let small = victim.store().load_journal(&"small".into(), 0).await.expect("it is there");
    let decision = small.iter().find(|line| line.body.contains("decision_recorded")).expect("a decision");
    // The attacker copies the line with its MAC, and chains it to the journal of the other run.
    let store = victim.attackers_store();
    let large = store.load_journal(&"large".into(), 0).await.expect("it is there");
    let mut head = large.last().expect("a line").hash.as_bytes().to_vec();
    head.extend_from_slice(decision.body.as_bytes());
    let hash = windlass::core::canonical::Digest::of_bytes(&head);
    let replayed = windlass::core::journal::JournalLine { hash, body: decision.body.clone() };
    let lease = acquire(&store, &"large".into()).await;
    let at = large.len() as u64;
    store.append_journal(&lease, at, vec![replayed], Durability::Sync).await.expect("it is written");
    store.release_lease(&lease).await.expect("it is released");
    verify_run(&*store, &"large".into()).await.expect("without keys it is as good as any other");
    assert_refused(&victim, victim.store(), "large", &["does not match"]).await;
    assert_eq!(victim.paid().len(), 1, "the small one alone");
}

#[tokio::test]
async fn keys_rotate_and_their_ids_cannot_be_swapped() {
    let victim = Victim::new();
    finish_payment(&victim, "run").await;
    let rotated = MacKeyring::new(key(2)).with_earlier(key(1));
    post_second_approval(&victim, rotated.clone()).await;
    let (result, _) = victim.recover(victim.store_with(rotated.clone()), "run", done()).await;
    assert!(is_finished(&result.expect("both keys count")));
    let verified =
        verify_run(&*victim.store_with(rotated.clone()), &"run".into()).await.expect("all is well");
    let keys: Vec<_> =
        verified.decisions.iter().filter_map(|decision| decision.verified_by.clone()).collect();
    assert_eq!(keys, [key(1).id().clone(), key(2).id().clone()]);

    // A key that is not in the keyring any more does not count.
    assert_refused_by_verify(&victim, MacKeyring::new(key(2)), "is not in the keyring").await;
    let (old, new) = (key(1).id().to_string(), key(2).id().to_string());
    edit_lines(&victim.attackers_file(), "run", |body| body.replace(&old, &new));
    assert_refused_by_verify(&victim, rotated, "does not match").await;
}

async fn post_second_approval(victim: &Victim, keys: MacKeyring) {
    let store = victim.store_with(keys);
    let (decision, scope) = (windlass::core::decision::Decision::Approve, Default::default());
    windlass::store::post_decision(&*store, &"run".into(), "c2", decision, scope, "ann")
        .await
        .expect("it waits");
}

async fn assert_refused_by_verify(victim: &Victim, keys: MacKeyring, part: &str) {
    let error = verify_run(&*victim.store_with(keys), &"run".into()).await.expect_err("it is forged");
    assert!(error.to_string().contains(part), "{error}");
}

#[tokio::test]
async fn a_value_does_not_bring_a_forged_decision_of_the_store_along() {
    let victim = Victim::new();
    victim.start_payment(victim.store(), "run").await;
    forge_approval(&victim.attackers_store(), "run").await;
    // The application reads the run without keys by mistake, and drives it with them.
    let paused = load_paused(&*victim.attackers_store(), &"run".into()).await.expect("it opens");
    let result = victim.agent(done()).resume(paused).store(victim.store()).await;
    assert!(matches!(result, Err(RunError::JournalFormat(JournalFormatError::ForgedDecision { .. }))));
    assert_eq!(victim.paid().len(), 0);
}

#[tokio::test]
async fn a_decision_on_a_value_gets_its_mac_when_the_run_resumes() {
    let victim = Victim::new();
    victim.start_payment(victim.store(), "run").await;
    let mut paused = load_paused(&*victim.store(), &"run".into()).await.expect("it opens");
    paused.approve_always("c1").expect("it waits");
    let standing = paused.standing_decisions();
    paused.revoke(&standing[0]).expect("it stands");
    let result = victim.agent(done()).resume(paused).store(victim.store()).await.expect("it goes on");
    assert!(is_finished(&result));
    assert_eq!(victim.paid().len(), 1);
    let verified = verify_run(&*victim.store(), &"run".into()).await.expect("all is well");
    let decided = |record: &&windlass::core::journal::JournalRecord| {
        matches!(record.entry, JournalEntry::DecisionRecorded(_) | JournalEntry::DecisionRevoked(_))
    };
    assert_eq!(verified.records.iter().filter(decided).count(), 2);
    assert!(verified.decisions.iter().all(|decision| decision.verified_by.is_some()));
}

#[tokio::test]
async fn a_fork_has_macs_of_its_own() {
    let victim = Victim::new();
    finish_payment(&victim, "run").await;
    let store = victim.store();
    let last = store.load_journal(&"run".into(), 0).await.expect("it is there").len() as u64 - 1;
    let change = windlass::core::inspect::ForkChange::Unchanged;
    windlass::store::fork_run(&*store, &"run".into(), last, "fork".into(), change).await.expect("it forks");
    verify_run(&*store, &"fork".into()).await.expect("all is well");
    load_paused(&*store, &"fork".into()).await.expect("it opens");
}

/// A limit: whoever can write to the store can put an older state of it back. The head of the journal, noted elsewhere,
/// shows it.
#[tokio::test]
async fn a_truncated_journal_is_seen_only_by_its_head() {
    let victim = Victim::new();
    finish_payment(&victim, "run").await;
    let whole = verify_run(&*victim.store(), &"run".into()).await.expect("all is well");
    let decision = i64::try_from(whole.decisions[0].seq).expect("small");
    let db = victim.attackers_file();
    db.execute("DELETE FROM lines WHERE seq > ?1", [decision]).expect("the attacker can write");
    db.execute("UPDATE runs SET records = ?1", [decision + 1]).expect("the attacker can write");
    drop(db);
    let cut = verify_run(&*victim.store(), &"run".into()).await.expect("what is left is authentic");
    assert_ne!(cut.head_hash, whole.head_hash);
}

/// The plan of a call says whether it needs approval. Before the first decision it has no MAC, so the tool's own policy
/// counts when the run is recovered.
#[tokio::test]
async fn a_forged_plan_does_not_free_a_call_from_its_approval() {
    for has_started in [false, true] {
        let victim = Victim::new();
        victim.start_payment(victim.store(), "run").await;
        let db = victim.attackers_file();
        let held = "SELECT max(seq) FROM lines WHERE body LIKE '%call_held%'";
        let held: i64 = db.query_row(held, [], |row| row.get(0)).expect("it is held");
        match has_started {
            false => db.execute("DELETE FROM lines WHERE seq = ?1", [held]).and_then(|_| {
                db.execute("UPDATE runs SET records = ?1", [held])
            }),
            true => db.execute(
                "UPDATE lines SET body = '{\"at\":1,\"call_started\":{\"call\":\"c1\",\"key\":\"k\"}}' WHERE seq = ?1",
                [held],
            ),
        }
        .expect("the attacker can write");
        edit_lines(&db, "run", |body| {
            let unasked = body.replace(",\"approval_policy\":\"required\"", "");
            unasked.replace("\"effect\":\"once\"", "\"effect\":\"pure\"")
        });
        drop(db);
        verify_run(&*victim.store(), &"run".into()).await.expect("there is no decision that vouches for it");
        let (result, _) = victim.recover(victim.store(), "run", done()).await;
        assert!(result.expect("it goes on").is_paused(), "somebody is asked: {has_started}");
        assert_eq!(victim.paid().len(), 0, "{has_started}");
    }
}
