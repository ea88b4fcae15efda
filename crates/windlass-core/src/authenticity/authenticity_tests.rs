use super::*;
use crate::canonical::Digest;
use crate::id::RunId;

fn key(seed: u8) -> MacKey {
    MacKey::from_bytes([seed; 32])
}

/// Verifies a MAC of one message as that of another.
fn verify(keys: &MacKeyring, message: &MacMessage<'_>, mac: &MessageMac) -> Result<(), MacError> {
    keys.verify(message, Some(mac))
}

#[test]
fn a_mac_is_the_hmac_of_the_documented_bytes() {
    // Computed with Python's `hmac` from the description in `docs/journal.md`.
    let keys = MacKeyring::new(key(7)).with_domain("test");
    let (run, head) = (RunId::from("run-1"), Digest::of_text("head"));
    let mac = keys.authenticate(&MacMessage::JournalHead { run: &run, seq: 5, head: &head });
    assert_eq!(mac.key.as_str(), "d6245921a755b271");
    assert_eq!(mac.tag.to_string(), "f2064c757af42db51c584c5404b25e953d59b24a1f309f2c75d45e0802559343");
}

#[test]
fn a_mac_is_valid_for_its_message_alone() {
    let keys = MacKeyring::new(key(1));
    let (run, other_run) = (RunId::from("one"), RunId::from("other"));
    let (head, other_head) = (Digest::of_text("a"), Digest::of_text("b"));
    let message = MacMessage::JournalHead { run: &run, seq: 5, head: &head };
    let mac = keys.authenticate(&message);
    assert_eq!(verify(&keys, &message, &mac), Ok(()));
    let mismatch = Err(MacError::Mismatch(mac.key.clone()));
    for other in [
        MacMessage::JournalHead { run: &other_run, seq: 5, head: &head },
        MacMessage::JournalHead { run: &run, seq: 6, head: &head },
        MacMessage::JournalHead { run: &run, seq: 5, head: &other_head },
        MacMessage::Snapshot { run: &run, record_count: 5, head: &head, body: &head },
        MacMessage::PausedRun { run: &run, record_count: 5, head: &head, sealed: &head },
    ] {
        assert_eq!(verify(&keys, &other, &mac), mismatch, "{other:?}");
    }
    assert_eq!(verify(&keys.clone().with_domain("elsewhere"), &message, &mac), mismatch);
    assert_eq!(keys.verify(&message, None), Err(MacError::Missing));
}

#[test]
fn snapshots_and_texts_have_different_macs_of_the_same_fields() {
    let keys = MacKeyring::new(key(1));
    let (run, head) = (RunId::from("one"), Digest::of_text("a"));
    let snapshot = MacMessage::Snapshot { run: &run, record_count: 5, head: &head, body: &head };
    let text = MacMessage::PausedRun { run: &run, record_count: 5, head: &head, sealed: &head };
    let mac = keys.authenticate(&snapshot);
    assert_eq!(verify(&keys, &text, &mac), Err(MacError::Mismatch(mac.key)));
}

#[test]
fn an_earlier_key_verifies_and_makes_no_new_macs() {
    let (old, new) = (key(1), key(2));
    let (run, head) = (RunId::from("one"), Digest::of_text("a"));
    let message = MacMessage::JournalHead { run: &run, seq: 0, head: &head };
    let by_old = MacKeyring::new(old.clone()).authenticate(&message);
    let rotated = MacKeyring::new(new.clone()).with_earlier(old.clone());
    assert_eq!(verify(&rotated, &message, &by_old), Ok(()));
    assert_eq!(rotated.authenticate(&message).key, *new.id());
    let swapped = MessageMac { key: new.id().clone(), ..by_old };
    assert_eq!(verify(&rotated, &message, &swapped), Err(MacError::Mismatch(new.id().clone())));
    let retired = MacKeyring::new(new);
    assert_eq!(verify(&retired, &message, &by_old), Err(MacError::UnknownKey(old.id().clone())));
}

#[test]
fn a_keyring_is_read_from_its_text_and_the_last_key_is_current() {
    let text = MacKeyring::text_of_secrets(&[[1; 32], [2; 32]]);
    let keys = MacKeyring::from_text(&format!("{text}\n# a comment\n")).expect("it is a keyring");
    assert_eq!(keys.current_id(), key(2).id());
    assert_eq!(keys.earlier_ids().collect::<Vec<_>>(), [key(1).id()]);
    assert_eq!(MacKeyring::from_text("").err(), Some(KeyringError::MissingHeader));
    assert_eq!(MacKeyring::from_text("windlass keys 1\n").err(), Some(KeyringError::NoKey));
    let broken = MacKeyring::from_text("windlass keys 1\n\nabc\n");
    assert_eq!(broken.err(), Some(KeyringError::InvalidKey { line: 3 }));
}

#[test]
fn no_output_has_the_secret() {
    let keys = MacKeyring::new(MacKey::from_bytes([0xab; 32])).with_earlier(MacKey::from_bytes([0xcd; 32]));
    let shown = format!("{keys:?}").to_lowercase();
    assert!(!shown.contains("abab") && !shown.contains("cdcd") && !shown.contains("171, 171"), "{shown}");
}
