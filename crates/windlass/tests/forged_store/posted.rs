//! Forged and replayed decisions that are posted for a driver.

use windlass::core::canonical::Digest;
use windlass::store::{load_paused, load_posted_decisions, verify_stored_run};

use super::support::{Victim, done, is_finished, pay_response, post_approval};

#[tokio::test]
async fn a_forged_posted_decision_is_refused_named_and_replaced_by_an_authentic_one() {
    let victim = Victim::new();
    victim.start_payment(victim.attackers_store(), "open").await;
    post_approval(&victim.attackers_store(), "open", "ann").await;
    let (result, _) = victim.recover(victim.attackers_store(), "open", done()).await;
    assert!(is_finished(&result.expect("it goes on")));
    assert_eq!(victim.paid().len(), 1, "the attack works without keys");

    let victim = Victim::new();
    victim.start_payment(victim.store(), "guarded").await;
    post_approval(&victim.attackers_store(), "guarded", "ann").await;
    let (result, warnings) = victim.recover(victim.store(), "guarded", done()).await;
    assert!(result.expect("it goes on").is_paused());
    assert_eq!(
        warnings,
        [
            "a posted decision is forged and was refused: an approval of call `c1` of run `guarded` in the name of \
          \"ann\": it has no MAC"
        ]
    );
    assert_eq!(victim.paid().len(), 0);
    let found = load_posted_decisions(&*victim.store(), &"guarded".into()).await.expect("it can be read");
    assert_eq!((found.authentic.len(), found.refused.len()), (0, 1));
    let paused = load_paused(&*victim.store(), &"guarded".into()).await.expect("it opens");
    assert!(paused.pending_calls()[0].posted.is_none(), "it is not shown as a decision");
    let verified =
        verify_stored_run(&*victim.store(), &"guarded".into()).await.expect("the journal is intact");
    assert!(verified.has_forgery());

    // The approver's own decision, which says the same, replaces the forged one.
    post_approval(&victim.store(), "guarded", "ann").await;
    let (result, warnings) = victim.recover(victim.store(), "guarded", done()).await;
    assert!(is_finished(&result.expect("it goes on")));
    assert_eq!((warnings, victim.paid().len()), (Vec::new(), 1));
}

#[tokio::test]
async fn a_posted_decision_of_another_run_or_call_is_refused() {
    let copy_from = "INSERT INTO inbox (run, path, attempt, hash, body)
        SELECT (SELECT id FROM runs WHERE name = 'large'), path, attempt, hash, body FROM inbox
        WHERE run = (SELECT id FROM runs WHERE name = 'small')";
    let victim = Victim::new();
    victim.start_payment(victim.store(), "small").await;
    victim.start_payment(victim.store(), "large").await;
    post_approval(&victim.store(), "small", "ann").await;
    victim.attackers_file().execute(copy_from, []).expect("the attacker can write");
    let (result, warnings) = victim.recover(victim.store(), "large", done()).await;
    assert!(result.expect("it goes on").is_paused());
    assert!(warnings.len() == 1 && warnings[0].contains("does not match"), "{warnings:?}");
    assert_eq!(victim.paid().len(), 0);
    let (result, _) = victim.recover(victim.store(), "small", [pay_response("c2", 9000)]).await;
    assert!(result.expect("the original counts").is_paused());
    assert_eq!(victim.paid().len(), 1);

    // The decision about `c1`, rewritten for `c2`, which has the same arguments.
    let db = victim.attackers_file();
    let select = "SELECT body FROM inbox WHERE run = (SELECT id FROM runs WHERE name = 'small')";
    let body: String = db.query_row(select, [], |row| row.get(0)).expect("a row");
    let body = body.replace("\"c1\"", "\"c2\"");
    let update = "UPDATE inbox SET path = '[\"c2\"]', hash = ?1, body = ?2
        WHERE run = (SELECT id FROM runs WHERE name = 'small')";
    db.execute(update, (Digest::of_text(&body).as_bytes(), &body)).expect("the attacker can write");
    drop(db);
    let (result, warnings) = victim.recover(victim.store(), "small", done()).await;
    assert!(result.expect("it goes on").is_paused());
    assert!(warnings.len() == 1 && warnings[0].contains("call `c2`"), "{warnings:?}");
    assert_eq!(victim.paid().len(), 1);
}

#[tokio::test]
async fn a_posted_decision_whose_revision_was_raised_is_refused() {
    let victim = Victim::new();
    victim.start_payment(victim.store(), "run").await;
    post_approval(&victim.store(), "run", "ann").await;
    let db = victim.attackers_file();
    let body: String = db.query_row("SELECT body FROM inbox", [], |row| row.get(0)).expect("a row");
    let raised = body.replace("\"posted_revision\":1", "\"posted_revision\":7");
    assert_ne!(body, raised);
    db.execute("UPDATE inbox SET hash = ?1, body = ?2", (Digest::of_text(&raised).as_bytes(), &raised))
        .expect("the attacker can write");
    drop(db);
    let (result, warnings) = victim.recover(victim.store(), "run", done()).await;
    assert!(result.expect("it goes on").is_paused());
    assert!(warnings.len() == 1 && warnings[0].contains("does not match"), "{warnings:?}");
    assert_eq!(victim.paid().len(), 0);
}

#[tokio::test]
async fn a_decision_is_corrected_with_a_new_mac_and_a_repeated_one_has_no_effect() {
    use windlass::core::decision::{Decision, DecisionScope};
    let victim = Victim::new();
    victim.start_payment(victim.store(), "run").await;
    let store = victim.store();
    post_approval(&store, "run", "ann").await;
    post_approval(&store, "run", "bea").await;
    let reject = Decision::Reject { message: None };
    let run = "run".into();
    windlass::store::post_decision(&*store, &run, "c1", reject.clone(), DecisionScope::ThisCall, "ann")
        .await
        .expect("it is not taken");
    let found = load_posted_decisions(&*store, &run).await.expect("it can be read");
    let posted: Vec<_> = found
        .authentic
        .iter()
        .map(|posted| (&posted.decision.decision, posted.decision.posted_revision))
        .collect();
    assert_eq!(posted, [(&reject, 2)]);
    assert_eq!(found.refused, []);
}
