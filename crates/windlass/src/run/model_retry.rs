//! Delays between the requests of a model that fails.

use std::time::Duration;

use super::{ModelRetryPolicy, RetriesExhausted};
use crate::model::RetryAdvice;

impl ModelRetryPolicy {
    /// Returns the delay before a retry, or `None` if a retry is useless or the provider asks for a longer delay
    /// than the policy allows. `chance` (0 to 1) is jitter: it shortens the policy's own delay by up to a half, and
    /// lengthens the provider's delay by up to a quarter, because an earlier retry would fail.
    pub(crate) fn delay_after(&self, attempt: u32, advice: RetryAdvice, chance: f64) -> Option<Duration> {
        if attempt >= self.max_attempts {
            return None;
        }
        match advice {
            RetryAdvice::Never => None,
            RetryAdvice::Safe => {
                let usual = self.base_delay.saturating_mul(1 << (attempt - 1).min(16)).min(self.max_delay);
                Some(usual.mul_f64(1.0 - chance / 2.0))
            }
            RetryAdvice::After(wait) if wait > self.max_provider_delay => None,
            RetryAdvice::After(wait) => Some(wait.mul_f64(1.0 + chance / 4.0).min(self.max_provider_delay)),
        }
    }

    /// Returns the delay after which a later driver can repeat the request, or `None` if the run fails: after an error that
    /// no retry mends, or because the policy does not leave runs.
    pub(crate) fn delay_of_left_run(&self, advice: RetryAdvice, is_stored: bool) -> Option<Duration> {
        let leaves = match self.when_exhausted {
            RetriesExhausted::LeaveIfStored => is_stored,
            RetriesExhausted::Leave => true,
            RetriesExhausted::Fail => false,
        };
        match advice {
            RetryAdvice::Safe if leaves => Some(self.max_delay),
            RetryAdvice::After(wait) if leaves => Some(wait),
            _ => None,
        }
    }
}

/// Returns a number from 0 to 1 that differs between runs, turns and attempts, and is the same in every
/// simulation of a run.
pub(crate) fn jitter_fraction(run: &str, turn: u32, attempt: u32) -> f64 {
    // FNV-1a, with a last mixing step because short inputs leave its upper bits alike.
    let bytes = run.bytes().chain(turn.to_le_bytes()).chain(attempt.to_le_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    f64::from((mixed >> 32) as u32) / f64::from(u32::MAX)
}

#[cfg(test)]
#[path = "model_retry_tests.rs"]
mod tests;
