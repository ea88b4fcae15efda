use std::time::Duration;

use super::jitter_fraction;
use crate::model::RetryAdvice;
use crate::run::{ModelRetryPolicy, RetriesExhausted};

const RETRY: ModelRetryPolicy = ModelRetryPolicy {
    max_attempts: 4,
    base_delay: Duration::from_millis(400),
    max_delay: Duration::from_secs(2),
    max_provider_delay: Duration::from_secs(150),
    when_exhausted: RetriesExhausted::Leave,
};

#[test]
fn waits_grow_within_their_bounds_whatever_the_chance() {
    for chance in [0.0, 0.3, 1.0] {
        let waits: Vec<Duration> =
            (1..4).filter_map(|attempt| RETRY.delay_after(attempt, RetryAdvice::Safe, chance)).collect();
        for (wait, usual) in waits.iter().zip([400, 800, 1600].map(Duration::from_millis)) {
            assert!(*wait <= usual && *wait >= usual / 2, "{wait:?} for {usual:?}");
        }
        assert_eq!(waits.len(), 3);
        assert_eq!(RETRY.delay_after(4, RetryAdvice::Safe, chance), None);
    }
}

#[test]
fn a_provider_is_never_asked_sooner_than_it_said() {
    // Also longer than the policy's own delays.
    let said = Duration::from_secs(120);
    for chance in [0.0, 0.5, 1.0] {
        let wait = RETRY.delay_after(1, RetryAdvice::After(said), chance).expect("it is within the limit");
        assert!(wait >= said && wait <= RETRY.max_provider_delay, "{wait:?}");
    }
    let longer = Duration::from_secs(151);
    assert_eq!(
        RETRY.delay_after(1, RetryAdvice::After(longer), 0.0),
        None,
        "and not at all where it is too long"
    );
}

#[test]
fn runs_spread_and_a_run_is_the_same_again() {
    let chances: Vec<f64> = (0..100).map(|run| jitter_fraction(&format!("run-{run}"), 1, 1)).collect();
    assert!(chances.iter().all(|chance| (0.0..=1.0).contains(chance)));
    let low = chances.iter().filter(|chance| **chance < 0.5).count();
    assert!((25..75).contains(&low), "{low} of 100 are in the lower half");
    assert_eq!(jitter_fraction("run-7", 2, 1).to_bits(), jitter_fraction("run-7", 2, 1).to_bits());
    assert_ne!(jitter_fraction("run-7", 2, 1).to_bits(), jitter_fraction("run-7", 2, 2).to_bits());
}
