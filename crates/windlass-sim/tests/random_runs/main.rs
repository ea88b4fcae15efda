//! Random worlds, one for each seed, through the public API: whatever happens, what Windlass promises holds.
//!
//! `WINDLASS_SEED=n` replays one seed; `WINDLASS_SIM_SEEDS=100000` tries more of them.

mod build;
mod lab;
mod life;
mod spec;
mod talk;

use windlass_sim::{Seeds, check};

const SEEDS: u64 = 3000;

#[test]
fn promises_hold_in_random_worlds() {
    check(&Seeds::first(SEEDS).kept(include_str!("../../seeds.txt")), |seed| {
        life::simulate(seed);
    });
}

#[test]
fn a_seed_decides_everything() {
    check(&Seeds::first(SEEDS / 20), |seed| {
        let (first, second) = (life::simulate(seed), life::simulate(seed));
        assert_eq!(first, second, "the same seed gave two different runs");
    });
}

// SURVEY
#[test]
fn survey() {
    let Ok(n) = std::env::var("SURVEY") else { return };
    let (from, to) = n.split_once("..").unwrap();
    let (from, to): (u64, u64) = (from.parse().unwrap(), to.parse().unwrap());
    std::panic::set_hook(Box::new(|_| {}));
    let mut kinds: std::collections::BTreeMap<String, Vec<u64>> = Default::default();
    for seed in from..to {
        if let Err(panic) = std::panic::catch_unwind(|| life::simulate(seed)) {
            let text = panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "?".into());
            let line = text.lines().next().unwrap_or_default().to_owned();
            let kind: String = line.split(|c: char| !c.is_ascii_alphabetic()).filter(|w| w.len() > 2).take(14).collect::<Vec<_>>().join(" ");
            kinds.entry(kind).or_default().push(seed);
        }
    }
    for (kind, seeds) in kinds {
        println!("{:5} {:?} {kind}", seeds.len(), &seeds[..seeds.len().min(6)]);
    }
}
