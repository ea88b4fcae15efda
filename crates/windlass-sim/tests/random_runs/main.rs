//! Random worlds, one per seed, driven through the public API: the guarantees of Windlass hold in all of them.
//!
//! `WINDLASS_SEED=n` replays one seed; `WINDLASS_SIM_SEEDS=100000` tries more of them.

mod additions;
mod approver;
mod build;
mod checks;
mod coverage;
mod live_approver;
mod model_replies;
mod observer;
mod process;
mod simulated_run;
mod spec;
mod withheld;

use std::sync::Mutex;

use windlass_sim::{SeedList, check_seeds};

use crate::coverage::{ATTENDED_LABELS, CoverageCounts, PLAIN_LABELS};
use crate::simulated_run::{simulate, simulate_from};
use crate::spec::WorldSpec;

const SEED_COUNT: u64 = 3000;
const ATTENDED_SEED_COUNT: u64 = 1000;

/// Simulates each seed, and checks that the worlds reached every required label.
#[expect(clippy::expect_used, reason = "a failed precondition fails the test")]
fn check_worlds(seeds: &SeedList, count: u64, spec_of: fn(u64) -> WorldSpec, required: &[&str]) {
    let reached = Mutex::new(CoverageCounts::default());
    check_seeds(seeds, |seed| {
        let account = simulate(seed, spec_of(seed));
        reached.lock().expect("nobody panics while counting").add_report(&account);
    });
    if seeds.len() >= count {
        reached.into_inner().expect("nobody panics while counting").assert_complete(required);
    }
}

#[test]
fn promises_hold_in_random_worlds() {
    let seeds = SeedList::from_zero(SEED_COUNT).with_regressions(include_str!("../../seeds.txt"));
    check_worlds(&seeds, SEED_COUNT, WorldSpec::from_seed, PLAIN_LABELS);
}

/// A person decides while calls run, filters break histories, and bodies on threads outlive their calls.
#[test]
fn promises_hold_in_attended_worlds() {
    let kept = include_str!("../../attended_seeds.txt");
    let seeds = SeedList::from_zero(ATTENDED_SEED_COUNT).with_regressions(kept);
    check_worlds(&seeds, ATTENDED_SEED_COUNT, WorldSpec::attended, ATTENDED_LABELS);
}

#[test]
fn a_seed_decides_everything() {
    // The machine, and not the seed, decides when a thread of a blocking body ends and wakes others.
    let attended: fn(u64) -> WorldSpec = |seed| {
        let mut spec = WorldSpec::attended(seed);
        spec.additions.blocking_tools.clear();
        spec
    };
    for spec_of in [WorldSpec::from_seed, attended] {
        check_seeds(&SeedList::from_zero(SEED_COUNT / 20), |seed| {
            assert_eq!(
                simulate(seed, spec_of(seed)),
                simulate(seed, spec_of(seed)),
                "the same seed gave two different runs"
            );
        });
    }
}

#[test]
fn a_run_goes_on_from_every_prefix_of_its_journal() {
    let plain = SeedList::from_zero(SEED_COUNT / 60).with_regressions(include_str!("../../seeds.txt"));
    let attended = SeedList::from_zero(SEED_COUNT / 60);
    let worlds: [(SeedList, fn(u64) -> WorldSpec); 2] =
        [(plain, WorldSpec::from_seed), (attended, WorldSpec::attended)];
    for (seeds, spec_of) in worlds {
        check_seeds(&seeds, |seed| {
            let whole = simulate(seed, spec_of(seed)).journal;
            for upto in 1..whole.len() {
                simulate_from(seed, spec_of(seed), &whole[..upto]);
            }
        });
    }
}
