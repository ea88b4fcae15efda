//! Drivers of the state machine, checked by the kit in [`windlass_sim::driver_check`]: the driver of `windlass`, and a
//! second one that shares nothing with it but the state machine.

mod careless_drivers;
mod small_driver;
mod windlass_driver;

use windlass_sim::driver_check::{DriverScenario, TestedDriver, check_driver};
use windlass_sim::{SeedList, check_seeds};

use small_driver::SmallDriver;
use windlass_driver::WindlassDriver;

/// Number of scenarios for each driver, unless `WINDLASS_SIM_SEEDS` says otherwise.
const SCENARIO_COUNT: u64 = 600;

fn check_scenarios<D: TestedDriver>(new_driver: impl Fn() -> D + Sync + std::panic::RefUnwindSafe) {
    check_seeds(&SeedList::from_zero(SCENARIO_COUNT), |seed| {
        let scenario = DriverScenario::from_seed(seed);
        let said = format!("{scenario:#?}");
        if let Err(broken) = check_driver(&new_driver(), scenario) {
            panic!("{broken}\n{said}");
        }
    });
}

#[test]
fn a_small_driver_keeps_the_promises() {
    check_scenarios(SmallDriver::default);
}

#[test]
fn the_driver_of_windlass_keeps_the_promises() {
    check_scenarios(WindlassDriver::default);
}
