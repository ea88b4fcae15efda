//! Forged texts of paused runs.

use windlass::core::authenticity::MacKeyring;
use windlass::error::RestoreError;
use windlass::run::{PausedRun, TextAuthenticity};
use windlass::store::{load_paused, verify_run};

use super::support::{Victim, done, is_finished, key};

async fn decided_text(victim: &Victim) -> String {
    victim.start_payment(victim.store(), "run").await;
    let mut paused = load_paused(&*victim.store(), &"run".into()).await.expect("it opens");
    paused.reject("c1").expect("it waits");
    paused.to_text()
}

/// Approves the call in a text, as somebody without the key can.
fn forge_text(text: &str) -> String {
    let mut forged = PausedRun::from_text(text).expect("it can be read");
    forged.approve("c1").expect("the decision is not taken");
    forged.to_text()
}

#[tokio::test]
async fn a_text_says_whether_it_was_verified() {
    let victim = Victim::new();
    let text = decided_text(&victim).await;
    let keys = MacKeyring::new(key(1));
    let restored = PausedRun::from_text(&text).expect("it can be read");
    assert_eq!(restored.text_authenticity(), Some(&TextAuthenticity::NoKeys));
    let restored = PausedRun::from_text_with_keys(&text, keys.clone()).expect("it is authentic");
    let id = key(1).id().clone();
    assert_eq!(restored.text_authenticity(), Some(&TextAuthenticity::Verified { key: id.clone() }));
    let other = PausedRun::from_text_with_keys(&text, MacKeyring::new(key(2))).expect("it can be read");
    assert_eq!(other.text_authenticity(), Some(&TextAuthenticity::UnknownKey { key: id }));
    let plain = PausedRun::from_text_with_keys(&forge_text(&text), keys).expect("it can be read");
    assert_eq!(plain.text_authenticity(), Some(&TextAuthenticity::NoMac));
    let rotated = MacKeyring::new(key(2)).with_earlier(key(1));
    let restored = PausedRun::from_text_with_keys(&text, rotated).expect("it is authentic");
    assert!(matches!(restored.text_authenticity(), Some(TextAuthenticity::Verified { .. })));
}

#[tokio::test]
async fn a_forged_text_is_refused() {
    let victim = Victim::new();
    let text = decided_text(&victim).await;
    // The attacker keeps the MAC of the authentic text.
    let mac = text.lines().last().expect("a line");
    assert!(mac.starts_with("mac "));
    let forged = format!("{}{mac}\n", forge_text(&text));
    let paused = PausedRun::from_text(&forged).expect("without keys it is believed");
    let result = victim.agent(done()).resume(paused).await.expect("it goes on");
    assert!(is_finished(&result));
    assert_eq!(victim.paid().len(), 1, "the attack works without keys");
    let error = PausedRun::from_text_with_keys(&forged, MacKeyring::new(key(1))).expect_err("it is forged");
    assert!(matches!(error, RestoreError::ForgedText { .. }), "{error}");
    assert!(error.to_string().contains("run `run`"), "{error}");
}

#[tokio::test]
async fn a_text_that_is_moved_to_another_store_gets_the_macs_of_its_keys() {
    let victim = Victim::new();
    let text = decided_text(&victim).await;
    let elsewhere = Victim::new();
    let keys = MacKeyring::new(key(5));
    let paused = PausedRun::from_text_with_keys(&text, MacKeyring::new(key(1))).expect("it is authentic");
    let store = elsewhere.store_with(keys);
    let result = elsewhere.agent(done()).resume(paused).store(store.clone()).await.expect("it goes on");
    assert!(is_finished(&result));
    let verified = verify_run(&*store, &"run".into()).await.expect("all is well");
    assert_eq!(verified.decisions[0].verified_by.as_ref(), Some(key(5).id()));
}
