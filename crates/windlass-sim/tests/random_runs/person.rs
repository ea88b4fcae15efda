//! The person who is asked: honest as a rule, hasty at times, and in no hurry.

use windlass::Paused;
use windlass::core::{CallPath, Decided, Decision, HoldReason, Pending, Reach};
use windlass::store::{Posted, Store};
use windlass_sim::Life;

use crate::life::Whole;
use crate::process::Origin;

/// After so many rounds everything is decided.
const ROUNDS: u64 = 4;

impl Whole {
    /// Says something about what waits, and how the run goes on.
    pub(crate) fn decide(&mut self, mut paused: Paused) -> Origin {
        self.rounds += 1;
        let pending = paused.pending();
        if pending.is_empty() {
            self.lab.wrong("the run is paused and waits for nothing");
            return Origin::Stored;
        }
        let sim = self.lab.sim.clone();
        let by_post = sim.chance(30);
        let mut posts = Vec::new();
        for pending in pending {
            if self.rounds <= ROUNDS && sim.chance(25) {
                continue;
            }
            let (decision, reach) = self.say(&pending);
            if by_post {
                let (call, by) = (pending.call().clone(), Some("somebody".to_owned()));
                let decided = Decided { call, digest: pending.digest, decision, reach, by };
                posts.push(Posted { path: pending.path.clone(), attempt: pending.attempt, decided });
                continue;
            }
            if is_covered(&paused, &pending.path) {
                continue;
            }
            if sim.chance(10) {
                self.say_twice(paused.clone(), &pending);
            }
            if let Err(error) = paused.decide(pending.path.clone(), decision, reach) {
                self.lab.wrong(format!("a decision about call {} does not count: {error}", pending.path));
            }
        }
        if by_post { self.post(posts) } else { self.go_on(paused) }
    }

    fn go_on(&self, mut paused: Paused) -> Origin {
        let sim = &self.lab.sim;
        if sim.chance(5)
            && let Err(error) = paused.add_input("And one more thing.")
        {
            self.lab.wrong(format!("input cannot be added: {error}"));
        }
        if let Some(standing) = paused.standing().first().filter(|_| sim.chance(10))
            && let Err(error) = paused.revoke(standing)
        {
            self.lab.wrong(format!("a decision cannot be taken back: {error}"));
        }
        if sim.chance(60) {
            return Origin::Paused(Box::new(paused));
        }
        match Paused::from_text(&paused.to_text()) {
            Ok(restored) => Origin::Paused(Box::new(restored)),
            Err(error) => {
                self.lab.wrong(format!("a saved run cannot be restored: {error}"));
                Origin::Stored
            }
        }
    }

    /// Sends decisions through the store, where whoever drives the run finds them.
    fn post(&self, posts: Vec<Posted>) -> Origin {
        let lab = self.lab.clone();
        let posted = self.lab.sim.live(async move {
            for post in posts {
                let path = post.path.clone();
                // The disk may fail; a person then says it again later.
                if let Err(error) = lab.store.post(&lab.run, post).await
                    && !error.to_string().contains("disk")
                {
                    lab.wrong(format!("a decision about call {path} cannot be posted: {error}"));
                }
            }
        });
        debug_assert_eq!(posted, Life::Ended(()));
        Origin::Stored
    }

    /// The same decision twice is one; another one does not count.
    fn say_twice(&self, mut paused: Paused, pending: &Pending) {
        if pending.reason != HoldReason::Approval {
            return;
        }
        let first = paused.approve(pending.path.clone());
        let again = paused.approve(pending.path.clone());
        let otherwise = paused.reject(pending.path.clone());
        if first.is_err() || again.is_err() || otherwise.is_ok() {
            self.lab
                .wrong(format!("decisions about call {}: {first:?}, {again:?}, {otherwise:?}", pending.path));
        }
    }

    fn say(&self, pending: &Pending) -> (Decision, Reach) {
        let sim = &self.lab.sim;
        if pending.reason == HoldReason::InDoubt {
            return (self.say_what_happened(pending), Reach::Call);
        }
        if let HoldReason::Question(_) = &pending.reason {
            let answer = Decision::Answer { value: "this".into() };
            let decision = if sim.chance(80) { answer } else { Decision::Reject { message: None } };
            return (decision, Reach::Call);
        }
        let is_agent = pending.value().get("input").is_some();
        match sim.draw(|rng| rng.below(10)) {
            0 | 1 => (Decision::Reject { message: None }, Reach::Call),
            2 => (Decision::Reject { message: Some("not today".to_owned()) }, Reach::Call),
            3 => (Decision::Reject { message: None }, Reach::Always),
            4 => (Decision::Approve, pending.reach),
            5 if !is_agent => {
                let arguments = format!("{{\"n\":{}}}", sim.draw(|rng| rng.below(3)));
                (Decision::ApproveEdited { arguments }, Reach::Call)
            }
            _ => (Decision::Approve, Reach::Call),
        }
    }

    fn say_what_happened(&self, pending: &Pending) -> Decision {
        let sim = &self.lab.sim;
        let happened = self.lab.world.by_call(pending.path.clone()) > 0;
        let lies = sim.chance(self.lab.spec.faults.lies);
        match (sim.chance(25), happened != lies) {
            (true, _) => Decision::Unknown,
            (false, true) => Decision::Happened { output: "it had happened".into() },
            (false, false) => {
                self.lab.denied(&pending.path);
                Decision::DidNotHappen
            }
        }
    }
}

/// Whether a decision for good about another call has covered this one.
fn is_covered(paused: &Paused, path: &CallPath) -> bool {
    paused.pending().iter().all(|pending| pending.path != *path)
}
