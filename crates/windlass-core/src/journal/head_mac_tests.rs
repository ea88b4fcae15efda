use super::*;
use crate::authenticity::{ForgeryReason, MacKey};
use crate::canonical::Digest;
use crate::decision::{Decision, DecisionScope};
use crate::id::{AgentName, Timestamp};
use crate::journal::{DecisionRecorded, RunStarted};

fn keys() -> MacKeyring {
    MacKeyring::new(MacKey::from_bytes([1; 32]))
}

/// Returns the start of a run, a decision about its call, and another record.
fn records(run: &str) -> Vec<JournalRecord> {
    let decided = DecisionRecorded {
        call: "c1".into(),
        digest: Digest::of_text("pay 5"),
        decision: Decision::Approve,
        scope: DecisionScope::ThisCall,
        decided_by: Some("ann".to_owned()),
        displayed: None,
        posted_revision: 0,
        signature: None,
        mac: None,
    };
    let started = RunStarted::new(run.into(), AgentName::from("desk"));
    let entries = [
        JournalEntry::RunStarted(started.into()),
        JournalEntry::DecisionRecorded(decided),
        JournalEntry::TurnContinued,
    ];
    let records = (0..).zip(entries);
    records.map(|(seq, entry)| JournalRecord { seq, at: Timestamp(seq), path: Vec::new(), entry }).collect()
}

fn authentic_lines(run: &str) -> Vec<JournalLine> {
    authenticate_records(HashChain::default(), &run.into(), &mut records(run), Some(&keys()))
}

/// Chains texts anew, as an attacker does who can write and has no key.
fn rechained(bodies: impl IntoIterator<Item = String>) -> Vec<JournalLine> {
    let mut chain = HashChain::default();
    let lines = bodies.into_iter().map(|body| {
        let hash = chain.next_hash(&body);
        chain = HashChain::from_head(hash);
        JournalLine { hash, body }
    });
    lines.collect()
}

fn read(run: &str, lines: &[JournalLine], keys: Option<&MacKeyring>) -> Result<(), JournalFormatError> {
    let mut chain = HashChain::default();
    (0..)
        .zip(lines)
        .try_for_each(|(seq, line)| chain.read_authentic(&run.into(), seq, line, keys).map(|_| ()))
}

/// Returns the record and the reason of a refusal.
fn refusal(run: &str, lines: &[JournalLine]) -> Option<(u64, MacError)> {
    assert!(read(run, lines, None).is_ok(), "the hash chain is intact");
    match read(run, lines, Some(&keys())) {
        Err(JournalFormatError::ForgedDecision { seq, forged }) => match forged.reason {
            ForgeryReason::Mac(reason) => Some((seq, reason)),
            other => panic!("another reason: {other}"),
        },
        Err(error) => panic!("another error: {error}"),
        Ok(()) => None,
    }
}

#[test]
fn a_decision_gets_a_mac_and_other_records_do_not() {
    let lines = authentic_lines("run");
    let with_mac: Vec<bool> = lines.iter().map(|line| line.body.contains("\"mac\":")).collect();
    assert_eq!(with_mac, [false, true, false]);
    assert_eq!(refusal("run", &lines), None);
}

#[test]
fn a_record_that_is_read_is_written_as_it_was() {
    let lines = authentic_lines("run");
    let mut chain = HashChain::default();
    let mut read: Vec<JournalRecord> = (0..)
        .zip(&lines)
        .map(|(seq, line)| chain.read_authentic(&"run".into(), seq, line, Some(&keys())).expect("authentic"))
        .collect();
    let other = MacKeyring::new(MacKey::from_bytes([2; 32]));
    let again = authenticate_records(HashChain::default(), &"run".into(), &mut read, Some(&other));
    assert_eq!(again, lines);
}

#[test]
fn a_decision_that_was_made_without_the_key_is_refused() {
    let forged = authenticate_records(HashChain::default(), &"run".into(), &mut records("run"), None);
    assert_eq!(refusal("run", &forged), Some((1, MacError::Missing)));
    let others = MacKeyring::new(MacKey::from_bytes([2; 32]));
    let forged =
        authenticate_records(HashChain::default(), &"run".into(), &mut records("run"), Some(&others));
    assert_eq!(refusal("run", &forged), Some((1, MacError::UnknownKey(others.current_id().clone()))));
}

#[test]
fn an_edited_decision_and_an_edited_record_before_it_are_refused() {
    let mismatch = Some((1, MacError::Mismatch(keys().current_id().clone())));
    for (from, to) in [("approve", "outcome_unknown"), ("\"ann\"", "\"bea\""), ("\"desk\"", "\"bank\"")] {
        let bodies: Vec<String> =
            authentic_lines("run").iter().map(|line| line.body.replace(from, to)).collect();
        let edited = rechained(bodies);
        assert_ne!(edited, authentic_lines("run"), "{from} is in the journal");
        assert_eq!(refusal("run", &edited), mismatch, "{from} to {to}");
    }
}

#[test]
fn a_stripped_mac_is_refused() {
    let bodies = authentic_lines("run").into_iter().map(|line| match line.body.split_once(",\"mac\":") {
        Some((rest, _)) => format!("{rest}}}}}"),
        None => line.body,
    });
    assert_eq!(refusal("run", &rechained(bodies)), Some((1, MacError::Missing)));
}

#[test]
fn a_decision_of_another_run_is_refused() {
    let other = authentic_lines("other");
    let mut bodies: Vec<String> = authentic_lines("run").into_iter().map(|line| line.body).collect();
    bodies[1] = other[1].body.clone();
    let mismatch = MacError::Mismatch(keys().current_id().clone());
    assert_eq!(refusal("run", &rechained(bodies)), Some((1, mismatch.clone())));
    // The whole journal of another run, under this run's id.
    assert_eq!(refusal("run", &other), Some((1, mismatch)));
}

#[test]
fn a_repeated_decision_is_refused_at_its_second_place() {
    let mut bodies: Vec<String> = authentic_lines("run").into_iter().map(|line| line.body).collect();
    bodies.push(bodies[1].clone());
    let mismatch = MacError::Mismatch(keys().current_id().clone());
    assert_eq!(refusal("run", &rechained(bodies)), Some((3, mismatch)));
}

#[test]
fn the_refusal_names_the_decision() {
    let forged = authenticate_records(HashChain::default(), &"run".into(), &mut records("run"), None);
    let error = read("run", &forged, Some(&keys())).expect_err("it is forged");
    assert_eq!(
        error.to_string(),
        "record 1 is forged, or a record before it was changed: an approval of call `c1` in the name of \"ann\": \
         it has no MAC"
    );
    assert_eq!(error.first_bad_seq(), Some(1));
}
