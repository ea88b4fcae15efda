//! The runs of recent requests, so that a client that repeats a request joins its run.
//!
//! The official clients of OpenAI repeat a request after a timeout or a lost connection, and send no idempotency key.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use windlass::core::canonical::Digest;
use windlass::core::id::RunId;

use crate::lock_unpoisoned;

/// Number of requests whose runs are known.
const MAX_REQUESTS: usize = 16_384;
/// Time after a request, or its last repetition, in which a client repeats it. The clients give an attempt ten minutes, and
/// wait for some seconds between two.
const REPETITION_TIME: Duration = Duration::from_secs(15 * 60);

/// The runs of the last requests, by the digest of their person and content.
#[derive(Default)]
pub(crate) struct RecentRequests {
    inner: Mutex<KnownRequests>,
}

#[derive(Default)]
struct KnownRequests {
    /// The last run of each content, and the time of the last request for it.
    runs: HashMap<Digest, (RunId, Instant)>,
    order: VecDeque<(Digest, RunId)>,
}

impl RecentRequests {
    /// Notes the run of a request, and forgets the oldest request if there are too many.
    pub(super) fn note_run(&self, digest: Digest, run: RunId) {
        let mut known = lock_unpoisoned(&self.inner);
        known.runs.insert(digest, (run.clone(), Instant::now()));
        known.order.push_back((digest, run));
        if known.order.len() > MAX_REQUESTS
            && let Some((oldest, run)) = known.order.pop_front()
            && known.runs.get(&oldest).is_some_and(|(last, _)| *last == run)
        {
            known.runs.remove(&oldest);
        }
    }

    /// Returns the run of the last request with this content, if a client may still repeat it. An equal request of another
    /// day is another one.
    pub(super) fn find_run(&self, digest: &Digest) -> Option<RunId> {
        self.find_run_at(digest, Instant::now())
    }

    fn find_run_at(&self, digest: &Digest, now: Instant) -> Option<RunId> {
        let mut known = lock_unpoisoned(&self.inner);
        let (run, last) = known.runs.get_mut(digest)?;
        if now.saturating_duration_since(*last) > REPETITION_TIME {
            return None;
        }
        *last = now.max(*last);
        Some(run.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_of_another_day_is_another_one() {
        let requests = RecentRequests::default();
        let digest = Digest::of_parts(&["request"]);
        requests.note_run(digest, "today".into());
        let start = Instant::now();
        // Each repetition may be followed by another one.
        for minutes in [10, 20, 30] {
            let at = start + Duration::from_secs(minutes * 60);
            assert_eq!(requests.find_run_at(&digest, at), Some("today".into()));
        }
        assert_eq!(requests.find_run_at(&digest, start + Duration::from_secs(24 * 3600)), None);
    }

    #[test]
    fn the_oldest_request_is_forgotten_and_a_repeated_content_names_its_last_run() {
        let requests = RecentRequests::default();
        let digest = |n: usize| Digest::of_parts(&["request", &n.to_string()]);
        let run = |n: usize| RunId::new(format!("r{n}"));
        requests.note_run(digest(0), run(0));
        requests.note_run(digest(0), run(1));
        for n in 2..=MAX_REQUESTS {
            requests.note_run(digest(n), run(n));
        }
        // The first run is forgotten, and not the second one of the same content.
        assert_eq!(requests.find_run(&digest(0)), Some(run(1)));
        requests.note_run(digest(MAX_REQUESTS + 1), run(0));
        requests.note_run(digest(MAX_REQUESTS + 2), run(0));
        assert_eq!(requests.find_run(&digest(0)), None);
        assert_eq!(requests.find_run(&digest(3)), Some(run(3)));
        assert_eq!(lock_unpoisoned(&requests.inner).order.len(), MAX_REQUESTS);
    }
}
