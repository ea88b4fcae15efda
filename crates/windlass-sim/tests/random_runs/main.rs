//! Random worlds, one per seed, driven through the public API: the guarantees of Windlass hold in all of them.
//!
//! `WINDLASS_SEED=n` replays one seed; `WINDLASS_SIM_SEEDS=100000` tries more of them.

mod approver;
mod build;
mod checks;
mod coverage;
mod model_replies;
mod observer;
mod process;
mod simulated_run;
mod spec;

use std::sync::Mutex;

use windlass_sim::{SeedList, check_seeds};

use crate::coverage::CoverageCounts;

const SEED_COUNT: u64 = 3000;

#[test]
fn promises_hold_in_random_worlds() {
    let seeds = SeedList::from_zero(SEED_COUNT).with_regressions(include_str!("../../seeds.txt"));
    let reached = Mutex::new(CoverageCounts::default());
    check_seeds(&seeds, |seed| {
        let account = simulated_run::simulate(seed);
        reached.lock().expect("nobody panics while counting").add_report(&account);
    });
    if seeds.len() >= SEED_COUNT {
        reached.into_inner().expect("nobody panics while counting").assert_complete();
    }
}

#[test]
fn a_seed_decides_everything() {
    check_seeds(&SeedList::from_zero(SEED_COUNT / 20), |seed| {
        assert_eq!(
            simulated_run::simulate(seed),
            simulated_run::simulate(seed),
            "the same seed gave two different runs"
        );
    });
}

#[test]
fn a_run_goes_on_from_every_prefix_of_its_journal() {
    let seeds = SeedList::from_zero(SEED_COUNT / 60).with_regressions(include_str!("../../seeds.txt"));
    check_seeds(&seeds, |seed| {
        let whole = simulated_run::simulate(seed).journal;
        for upto in 1..whole.len() {
            simulated_run::simulate_from(seed, &whole[..upto]);
        }
    });
}
