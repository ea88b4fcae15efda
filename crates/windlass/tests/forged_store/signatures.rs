//! Decisions in a store with approvers, by somebody who can write to it and does not have the private key of an approver.
//! Each attack is first seen to work on the same store without approvers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use windlass::core::authenticity::{ApproverKey, DecisionSignature, SignatureError, SignedDecision};
use windlass::core::canonical::Digest;
use windlass::core::decision::{Decision, DecisionScope, PendingCall};
use windlass::core::id::RunId;
use windlass::core::inspect::ForkChange;
use windlass::core::journal::{DecisionRecorded, JournalFormatError, JournalLine};
use windlass::error::{DecisionError, RunError};
use windlass::run::{PausedRun, RunResult};
use windlass::store::{
    ApproverPolicy, ApproverRules, ApproverSigner, DecisionReview, PostDecisionError, PostedDecision,
    SqliteStore, Store, StoreFuture, StoreWrapper, fork_run, load_paused, load_posted_decisions,
    post_decision, post_signed_decision, verify_run, verify_stored_run,
};

use super::journal::forge_approval;
use super::snapshot::{RUN, forge_snapshot, payment, start_long_run, with_standing_approval};
use super::support::{Victim, done, is_finished, pay_response};

/// Returns the private key of a person; equal names make equal keys.
fn signer(name: &str) -> Arc<ApproverSigner> {
    let seed = *Digest::of_text(name).as_bytes();
    Arc::new(ApproverSigner::from_seed(&seed).expect("a seed of 32 bytes"))
}

fn policy() -> ApproverPolicy {
    let (ann, bob) = (signer("ann"), signer("bob"));
    ApproverPolicy::new().approver("ann", ann.key().clone()).approver("bob", bob.key().clone())
}

/// Opens the store of a victim who lists Ann and Bob as approvers.
fn guarded(victim: &Victim) -> Arc<dyn Store> {
    let store = SqliteStore::open(victim.path()).expect("a store").with_snapshot_interval(4);
    Arc::new(store.with_approvers(policy()))
}

/// Posts an approval of `c1` in a name, signed with the key of a person.
async fn post_signed(
    store: &dyn Store,
    run: &str,
    name: &str,
    key: &str,
    decision: Decision,
) -> Result<(), PostDecisionError> {
    let review = DecisionReview { decided_by: name.to_owned(), displayed: None, attempt: None };
    let scope = DecisionScope::ThisCall;
    post_signed_decision(store, &run.into(), "c1", decision, scope, review, &signer(key)).await
}

/// Writes a posted decision as the attacker does: past all checks.
async fn write_posted(store: &dyn Store, run: &str, posted: PostedDecision) {
    let run = RunId::from(run);
    let count = store.load_journal(&run, 0).await.expect("it can be read").len() as u64;
    store.post_decision(&run, posted, count).await.expect("the attacker can write");
}

/// Returns the decision that is posted for a run.
async fn read_posted(store: &dyn Store, run: &str) -> PostedDecision {
    let mut posted = store.posted_decisions(&run.into()).await.expect("it can be read");
    posted.pop().expect("one is posted")
}

/// Asserts that the decision that an attacker has posted for two runs pays in a store without approvers, and is refused
/// and named in one with them.
async fn assert_posted_is_refused(victim: &Victim, runs: [&str; 2], reason: &str) {
    let [open, run] = runs;
    let before = victim.paid().len();
    let (result, _) = victim.recover(victim.attackers_store(), open, done()).await;
    assert!(is_finished(&result.expect("it goes on")), "{reason}");
    assert_eq!(victim.paid().len(), before + 1, "the attack works without approvers: {reason}");

    let (result, warnings) = victim.recover(guarded(victim), run, done()).await;
    assert!(result.expect("it goes on").is_paused(), "{reason}");
    assert_eq!(victim.paid().len(), before + 1, "{reason}");
    let [warning] = &warnings[..] else { panic!("{reason}: {warnings:?}") };
    let start = "a posted decision is forged and was refused: an approval";
    assert!(warning.starts_with(start) && warning.contains(&format!("run `{run}`")), "{warning}");
    assert!(warning.ends_with(reason), "{reason}: {warning}");
    let verified = verify_stored_run(&*guarded(victim), &run.into()).await.expect("the journal is intact");
    assert!(verified.has_forgery());
}

#[tokio::test]
async fn an_unsigned_approval_is_refused_named_and_replaced_by_a_signed_one() {
    let victim = Victim::new();
    for run in ["open", "run"] {
        victim.start_payment(guarded(&victim), run).await;
        let (decision, scope) = (Decision::Approve, DecisionScope::ThisCall);
        let refused = post_decision(&*guarded(&victim), &run.into(), "c1", decision, scope, "ann").await;
        assert!(matches!(refused, Err(PostDecisionError::Signature(SignatureError::Missing))));
        super::support::post_approval(&victim.attackers_store(), run, "ann").await;
    }
    let reason = "of call `c1` of run `run` in the name of \"ann\": no approver has signed it";
    assert_posted_is_refused(&victim, ["open", "run"], reason).await;
    let paused = load_paused(&*guarded(&victim), &"run".into()).await.expect("it opens");
    assert!(paused.pending_calls()[0].posted.is_none(), "it is not shown as a decision");

    // Ann's own decision, which says the same, replaces the forged one.
    post_signed(&*guarded(&victim), "run", "ann", "ann", Decision::Approve).await.expect("it counts");
    let (result, warnings) = victim.recover(guarded(&victim), "run", done()).await;
    assert!(is_finished(&result.expect("it goes on")));
    assert_eq!((warnings, victim.paid().len()), (Vec::new(), 2));
    verify_run(&*guarded(&victim), &"run".into()).await.expect("the journal has her signature");
}

#[tokio::test]
async fn an_approval_of_a_stranger_or_in_the_name_of_another_approver_is_refused() {
    let stranger = format!("the key {}, which is not that of an approver", signer("mallory").key());
    for (key, reason) in [("mallory", &*stranger), ("bob", "it is signed with the key of \"bob\"")] {
        let victim = Victim::new();
        for run in ["open", "run"] {
            victim.start_payment(guarded(&victim), run).await;
            let refused = post_signed(&*guarded(&victim), run, "ann", key, Decision::Approve).await;
            assert!(matches!(refused, Err(PostDecisionError::Signature(_))), "{key}");
            let store = victim.attackers_store();
            post_signed(&*store, run, "ann", key, Decision::Approve).await.expect("nothing is checked");
        }
        assert_posted_is_refused(&victim, ["open", "run"], reason).await;
    }
}

#[tokio::test]
async fn a_signature_of_another_run_is_refused() {
    let victim = Victim::new();
    for run in ["signed", "open", "run"] {
        victim.start_payment(guarded(&victim), run).await;
    }
    post_signed(&*guarded(&victim), "signed", "ann", "ann", Decision::Approve).await.expect("it counts");
    let signed = read_posted(&*victim.attackers_store(), "signed").await;
    for run in ["open", "run"] {
        write_posted(&*victim.attackers_store(), run, signed.clone()).await;
    }
    assert_posted_is_refused(&victim, ["open", "run"], "with the key of \"ann\" does not match").await;
}

#[tokio::test]
async fn a_signature_of_another_call_is_refused() {
    let victim = Victim::new();
    for run in ["open", "run"] {
        victim.start_payment(guarded(&victim), run).await;
        post_signed(&*guarded(&victim), run, "ann", "ann", Decision::Approve).await.expect("it counts");
        let signed = read_posted(&*victim.attackers_store(), run).await;
        // The next call pays the same again.
        let (result, _) = victim.recover(guarded(&victim), run, [pay_response("c2", 9000)]).await;
        assert!(result.expect("it goes on").is_paused());
        let decision = DecisionRecorded { call: "c2".into(), ..signed.decision.clone() };
        let replayed = PostedDecision { path: "c2".into(), decision, ..signed };
        write_posted(&*victim.attackers_store(), run, replayed).await;
    }
    assert_eq!(victim.paid().len(), 2);
    assert_posted_is_refused(&victim, ["open", "run"], "with the key of \"ann\" does not match").await;
}

#[tokio::test]
async fn a_signed_decision_with_other_arguments_scope_or_name_is_refused() {
    type ChangeDecision = fn(&mut DecisionRecorded);
    let changes: [(ChangeDecision, &str); 3] = [
        (
            |decided| decided.decision = Decision::ApproveEdited { arguments: "{\"euros\":1}".to_owned() },
            "with the key of \"ann\" does not match",
        ),
        (|decided| decided.scope = DecisionScope::ToolForRun, "with the key of \"ann\" does not match"),
        (|decided| decided.decided_by = Some("bob".to_owned()), "it is signed with the key of \"ann\""),
    ];
    for (change, reason) in changes {
        let victim = Victim::new();
        for run in ["open", "run"] {
            victim.start_payment(guarded(&victim), run).await;
            post_signed(&*guarded(&victim), run, "ann", "ann", Decision::Approve).await.expect("it counts");
            let mut signed = read_posted(&*victim.attackers_store(), run).await;
            change(&mut signed.decision);
            write_posted(&*victim.attackers_store(), run, signed).await;
        }
        assert_posted_is_refused(&victim, ["open", "run"], reason).await;
    }
}

#[tokio::test]
async fn an_unsigned_approval_in_the_journal_is_refused_and_named() {
    let victim = Victim::new();
    for run in ["open", "run"] {
        victim.start_payment(guarded(&victim), run).await;
        forge_approval(&victim.attackers_store(), run).await;
    }
    let (result, _) = victim.recover(victim.attackers_store(), "open", done()).await;
    assert!(is_finished(&result.expect("the forgery is believed without approvers")));
    assert_eq!(victim.paid().len(), 1);

    let (result, _) = victim.recover(guarded(&victim), "run", done()).await;
    let Err(RunError::JournalFormat(error @ JournalFormatError::ForgedDecision { .. })) = result else {
        panic!("it is not refused")
    };
    for part in ["an approval of call `c1`", "\"ann\"", "no approver has signed it"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    assert!(verify_run(&*guarded(&victim), &"run".into()).await.is_err());
    assert!(load_paused(&*guarded(&victim), &"run".into()).await.is_err());
    assert_eq!(victim.paid().len(), 1);
}

#[tokio::test]
async fn a_decision_on_a_value_counts_with_a_signature_only() {
    let victim = Victim::new();
    victim.start_payment(guarded(&victim), "run").await;
    let mut paused = load_paused(&*guarded(&victim), &"run".into()).await.expect("it opens");
    paused.decide_as("ann");
    let refused = paused.approve("c1").expect_err("she has not signed");
    assert!(matches!(refused, DecisionError::Signature(SignatureError::Missing)), "{refused}");
    assert_eq!(paused.pending_calls().len(), 1, "it still waits");
    // A value that another process made knows nothing of approvers; the driver does.
    let mut unsigned = PausedRun::from_text(&paused.to_text()).expect("it can be read");
    unsigned.decide_as("ann");
    unsigned.approve("c1").expect("it waits");
    let result = victim.agent(done()).resume(unsigned).store(guarded(&victim)).await;
    assert!(matches!(result, Err(RunError::JournalFormat(JournalFormatError::ForgedDecision { .. }))));
    assert_eq!(victim.paid().len(), 0);

    paused.sign_with(Some(signer("ann")));
    paused.approve_edited("c1", "{\"euros\": 5}").expect("it waits");
    let result = victim.agent(done()).resume(paused).store(guarded(&victim)).await;
    assert!(is_finished(&result.expect("it goes on")));
    assert_eq!(victim.paid(), [serde_json::json!({ "euros": 5 })]);
    verify_run(&*guarded(&victim), &"run".into()).await.expect("the journal has her signature");
}

#[tokio::test]
async fn a_paused_run_refuses_an_unsigned_decision_where_it_is_driven() {
    let victim = Victim::new();
    let result =
        victim.agent([pay_response("c1", 9000)]).run("pay").run_id("run").store(guarded(&victim)).await;
    let Ok(RunResult::Paused(mut paused)) = result else { panic!("it waits: {result:?}") };
    let refused = paused.approve_always("c1").expect_err("nobody has signed");
    assert!(matches!(refused, DecisionError::Signature(SignatureError::Missing)), "{refused}");
    let refused = paused.approve_edited("c1", "{\"euros\": 5}").expect_err("nobody has signed");
    assert!(matches!(refused, DecisionError::Signature(SignatureError::Missing)), "{refused}");
    paused.sign_with(Some(signer("mallory")));
    let refused = paused.approve("c1").expect_err("she is no approver");
    assert!(matches!(refused, DecisionError::Signature(SignatureError::UnknownKey(_))), "{refused}");
    assert_eq!((paused.pending_calls().len(), victim.paid().len()), (1, 0));
    paused.sign_with(None);
    paused.reject("c1").expect("a rejection needs no signature");
}

#[tokio::test]
async fn a_fork_whose_decisions_would_not_count_is_refused_before_it_is_made() {
    let victim = Victim::new();
    victim.start_payment(guarded(&victim), "run").await;
    post_signed(&*guarded(&victim), "run", "ann", "ann", Decision::Approve).await.expect("it counts");
    let (result, _) = victim.recover(guarded(&victim), "run", done()).await;
    assert!(is_finished(&result.expect("it goes on")));
    let store = guarded(&victim);
    let last = store.load_journal(&"run".into(), 0).await.expect("it can be read").len() as u64 - 1;
    let forked = fork_run(&*store, &"run".into(), last, "fork".into(), ForkChange::Unchanged).await;
    assert!(
        forked.is_err_and(|error| error.to_string().contains("forged")),
        "her signature is of the origin"
    );
    assert!(store.load_journal(&"fork".into(), 0).await.expect("it can be read").is_empty());
}

#[tokio::test]
async fn a_standing_approval_in_a_snapshot_does_not_count() {
    for has_approvers in [false, true] {
        let victim = Victim::new();
        start_long_run(&victim, victim.attackers_store()).await;
        forge_snapshot(&victim.attackers_store(), with_standing_approval).await;
        let store: Arc<dyn Store> = if has_approvers { guarded(&victim) } else { victim.attackers_store() };
        let review = DecisionReview { decided_by: "ann".to_owned(), displayed: None, attempt: None };
        let (decision, scope) = (Decision::Approve, DecisionScope::ThisCall);
        post_signed_decision(&*store, &RUN.into(), "c0", decision, scope, review, &signer("ann"))
            .await
            .expect("it counts");
        let (result, _) = victim.recover(store, RUN, payment()).await;
        let result = result.expect("the journal is enough");
        assert_eq!(
            (result.is_paused(), victim.paid().len()),
            if has_approvers { (true, 0) } else { (false, 1) }
        );
    }
}

#[tokio::test]
async fn a_rejection_needs_no_signature() {
    let victim = Victim::new();
    victim.start_payment(guarded(&victim), "run").await;
    let (decision, scope) = (Decision::Reject { message: None }, DecisionScope::ThisCall);
    post_decision(&*guarded(&victim), &"run".into(), "c1", decision, scope, "carl").await.expect("it counts");
    let (result, warnings) = victim.recover(guarded(&victim), "run", done()).await;
    assert!(is_finished(&result.expect("it goes on")));
    assert_eq!((warnings, victim.paid().len()), (Vec::new(), 0));
    let found = load_posted_decisions(&*guarded(&victim), &"run".into()).await.expect("it can be read");
    assert_eq!(found.refused, []);
}

#[test]
fn a_signature_is_of_every_part_of_a_decision() {
    let (run, path) = (RunId::from("run"), "outer/c1".into());
    let decision = DecisionRecorded {
        call: "c1".into(),
        digest: Digest::of_text("call"),
        decision: Decision::Answer { value: serde_json::json!("yes") },
        scope: DecisionScope::ThisCall,
        decided_by: Some("ann".to_owned()),
        displayed: Some(Digest::of_text("shown")),
        posted_revision: 0,
        signature: None,
        mac: None,
    };
    let signature =
        signer("ann").sign(&SignedDecision { run: &run, path: &path, attempt: 1, decision: &decision });
    let decision = DecisionRecorded { signature: Some(Box::new(signature)), ..decision };
    let signed = SignedDecision { run: &run, path: &path, attempt: 1, decision: &decision };
    assert_eq!(policy().verify(&signed), Ok(()));

    let mismatch = Err(SignatureError::Mismatch("ann".to_owned()));
    let (other_run, other_path, inner_path) = (RunId::from("other"), "outer/c2".into(), "c1".into());
    assert_eq!(policy().verify(&SignedDecision { run: &other_run, ..signed }), mismatch);
    assert_eq!(policy().verify(&SignedDecision { path: &other_path, ..signed }), mismatch);
    assert_eq!(policy().verify(&SignedDecision { path: &inner_path, ..signed }), mismatch);
    assert_eq!(policy().verify(&SignedDecision { attempt: 2, ..signed }), mismatch);
    assert_eq!(policy().with_domain("elsewhere").verify(&signed), mismatch);
    let answer = Decision::Answer { value: serde_json::json!("no") };
    let key: ApproverKey = signer("ann").key().clone();
    let empty = Some(Box::new(DecisionSignature { key, value: String::new() }));
    for changed in [
        DecisionRecorded { digest: Digest::of_text("other"), ..decision.clone() },
        DecisionRecorded { decision: answer, ..decision.clone() },
        DecisionRecorded { decision: Decision::Reject { message: None }, ..decision.clone() },
        DecisionRecorded { scope: DecisionScope::ToolForRun, ..decision.clone() },
        DecisionRecorded { displayed: None, ..decision.clone() },
        DecisionRecorded { signature: empty, ..decision.clone() },
    ] {
        assert_eq!(
            policy().verify(&SignedDecision { decision: &changed, ..signed }),
            mismatch,
            "{changed:?}"
        );
    }
    let nobody = DecisionRecorded { decided_by: None, ..decision.clone() };
    let other_name = Err(SignatureError::OtherName("ann".to_owned()));
    assert_eq!(policy().verify(&SignedDecision { decision: &nobody, ..signed }), other_name);
    let unsigned = DecisionRecorded { signature: None, ..decision.clone() };
    let missing = Err(SignatureError::Missing);
    assert_eq!(policy().verify(&SignedDecision { decision: &unsigned, ..signed }), missing);
}

/// Large payments are Ann's to decide.
#[derive(Debug)]
struct LargePayments;

impl ApproverRules for LargePayments {
    fn deciders(&self, call: &PendingCall) -> Option<BTreeSet<String>> {
        let is_large = call.arguments_value()["euros"].as_u64().is_none_or(|euros| euros >= 1000);
        (call.tool.name() == "pay" && is_large).then(|| BTreeSet::from(["ann".to_owned()]))
    }
}

/// Opens the store of a victim with a rule about large payments.
fn ruled(victim: &Victim) -> Arc<dyn Store> {
    let store = SqliteStore::open(victim.path()).expect("a store").with_snapshot_interval(4);
    Arc::new(store.with_approvers(policy().with_rules(Arc::new(LargePayments))))
}

/// Bob is an approver, and not of this call: his signature counts in a store without the rule.
#[tokio::test]
async fn an_approver_who_does_not_decide_about_the_call_is_refused_everywhere() {
    let reason = "\"bob\" has signed it, and only ann decides about this call";
    let victim = Victim::new();
    for run in ["open", "run"] {
        victim.start_payment(ruled(&victim), run).await;
        let refused = post_signed(&*ruled(&victim), run, "bob", "bob", Decision::Approve).await;
        let Err(PostDecisionError::Signature(refused)) = refused else { panic!("{refused:?}") };
        assert_eq!(refused.to_string(), reason);
        // Nobody checks the rule when it is posted.
        post_signed(&*guarded(&victim), run, "bob", "bob", Decision::Approve)
            .await
            .expect("he is an approver");
    }
    let (result, _) = victim.recover(guarded(&victim), "open", done()).await;
    assert!(is_finished(&result.expect("it goes on")), "without the rule it counts");
    let (result, warnings) = victim.recover(ruled(&victim), "run", done()).await;
    assert!(result.expect("it goes on").is_paused());
    assert!(warnings.len() == 1 && warnings[0].ends_with(reason), "{warnings:?}");
    assert_eq!(victim.paid().len(), 1);
    let verified = verify_stored_run(&*ruled(&victim), &"run".into()).await.expect("the journal is intact");
    assert!(verified.has_forgery());
    // The run that went on without the rule has his decision in its journal.
    let refused = verify_run(&*ruled(&victim), &"open".into()).await.expect_err("it is forged");
    assert!(refused.to_string().contains(reason), "{refused}");

    // Ann decides, in the place of the refused decision.
    post_signed(&*ruled(&victim), "run", "ann", "ann", Decision::Approve).await.expect("it counts");
    let (result, warnings) = victim.recover(ruled(&victim), "run", done()).await;
    assert!(is_finished(&result.expect("it goes on")), "{warnings:?}");
    assert_eq!(victim.paid().len(), 2);
    verify_run(&*ruled(&victim), &"run".into()).await.expect("the journal has her signature");
}

/// The rule is about the call that runs: Bob may make it small, and may not make a small one large.
#[tokio::test]
async fn an_edit_is_judged_by_its_own_arguments() {
    let victim = Victim::new();
    victim.start_payment(ruled(&victim), "run").await;
    let paused = load_paused(&*ruled(&victim), &"run".into()).await.expect("it opens");
    let arguments = paused.pending_calls()[0].arguments.clone();
    let with_euros = |euros: u64| {
        let mut edited: serde_json::Value = serde_json::from_str(&arguments).expect("an object");
        edited["euros"] = euros.into();
        Decision::ApproveEdited { arguments: windlass::core::canonical::canonical_json(&edited) }
    };
    let refused = post_signed(&*ruled(&victim), "run", "bob", "bob", with_euros(5000)).await;
    assert!(
        matches!(refused, Err(PostDecisionError::Signature(SignatureError::OtherDeciders { .. }))),
        "{refused:?}"
    );
    // A rejection is anybody's.
    post_signed(&*ruled(&victim), "run", "bob", "bob", Decision::Reject { message: None })
        .await
        .expect("it counts");
    post_signed(&*ruled(&victim), "run", "bob", "bob", with_euros(7)).await.expect("it is small");
    let (result, warnings) = victim.recover(ruled(&victim), "run", done()).await;
    assert!(is_finished(&result.expect("it goes on")), "{warnings:?}");
    assert_eq!(victim.paid().len(), 1);
}

/// A store that counts how often a journal is read.
struct ReadCounter {
    inner: Arc<dyn Store>,
    reads: AtomicU32,
}

impl ReadCounter {
    fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self { inner, reads: AtomicU32::new(0) })
    }

    fn take_reads(&self) -> u32 {
        self.reads.swap(0, Ordering::SeqCst)
    }
}

impl StoreWrapper for ReadCounter {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn load_journal<'a>(&'a self, run: &'a RunId, from: u64) -> StoreFuture<'a, Vec<JournalLine>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.inner.load_journal(run, from)
    }
}

/// A rule is about the call, which only the journal has. The driver of the run knows it, and whoever opens the run reads it
/// anyway.
#[tokio::test]
async fn rules_read_no_run_again_for_the_decisions_that_are_posted() {
    let victim = Victim::new();
    let mut reads = Vec::new();
    for store in [guarded(&victim), ruled(&victim)] {
        let run = RunId::from(format!("run-{}", reads.len()));
        let pays = ["c2", "c3", "c4"].into_iter().fold(pay_response("c1", 9000), |pays, call| {
            pays.and_call(call, "pay", serde_json::json!({ "euros": 9000 }))
        });
        let begun = victim.agent([pays]).run("pay").run_id(run.clone()).store(store.clone()).await;
        assert!(begun.expect("the run goes on").is_paused());
        for call in ["c1", "c2", "c3", "c4"] {
            let review = DecisionReview { decided_by: "ann".to_owned(), displayed: None, attempt: None };
            let (decision, scope) = (Decision::Approve, DecisionScope::ThisCall);
            let ann = signer("ann");
            let posted = post_signed_decision(&*store, &run, call, decision, scope, review, &ann);
            posted.await.expect("it counts");
        }
        let counter = ReadCounter::new(store);
        let posted = load_posted_decisions(&*counter, &run).await.expect("it can be read");
        assert_eq!((posted.authentic.len(), posted.refused.len()), (4, 0));
        let to_list = counter.take_reads();
        load_paused(&*counter, &run).await.expect("it opens");
        let to_open = counter.take_reads();
        let (result, warnings) = victim.recover(counter.clone(), run.as_str(), done()).await;
        assert!(is_finished(&result.expect("it goes on")), "{warnings:?}");
        reads.push((to_list, to_open, counter.take_reads()));
    }
    assert_eq!(victim.paid().len(), 8);
    let [without, with] = reads[..] else { panic!("{reads:?}") };
    assert_eq!((without.0, with.0), (0, 1), "four decisions are judged after one reading");
    assert_eq!((without.1, without.2), (with.1, with.2), "what is known is not read again");
}
