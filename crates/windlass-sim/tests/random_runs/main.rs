//! Random worlds, one for each seed, through the public API: whatever happens, what Windlass promises holds.
//!
//! `WINDLASS_SEED=n` replays one seed; `WINDLASS_SIM_SEEDS=100000` tries more of them.

mod build;
mod checks;
mod lab;
mod life;
mod person;
mod process;
mod reach;
mod spec;
mod talk;

use std::sync::Mutex;

use windlass_sim::{Seeds, check};

use crate::reach::Reached;

const SEEDS: u64 = 3000;

#[test]
fn promises_hold_in_random_worlds() {
    let seeds = Seeds::first(SEEDS).kept(include_str!("../../seeds.txt"));
    let reached = Mutex::new(Reached::default());
    check(&seeds, |seed| {
        let account = life::simulate(seed);
        reached.lock().expect("nobody panics while counting").add(&account);
    });
    if seeds.len() >= SEEDS {
        reached.into_inner().expect("nobody panics while counting").check();
    }
}

#[test]
fn a_seed_decides_everything() {
    check(&Seeds::first(SEEDS / 20), |seed| {
        assert_eq!(life::simulate(seed), life::simulate(seed), "the same seed gave two different runs");
    });
}

#[test]
fn a_run_goes_on_from_every_prefix_of_its_journal() {
    let seeds = Seeds::first(SEEDS / 60).kept(include_str!("../../seeds.txt"));
    check(&seeds, |seed| {
        let whole = life::simulate(seed).journal;
        for upto in 1..whole.len() {
            life::simulate_from(seed, &whole[..upto]);
        }
    });
}
