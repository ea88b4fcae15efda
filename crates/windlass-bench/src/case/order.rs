//! Arguments: read and checked as a call's are, beside what the JSON library alone takes for them.

use std::hint::black_box;

use serde_json::{Map, Value, json};

use super::{Case, Report};
use crate::arguments::{ORDER, Order, tool};
use crate::measure::{Clock, Timing};

pub(super) fn read(case: &Case, report: &Report) -> Result<(), String> {
    let order = order();
    // The quantity of the second position is text: the error names `items[1].qty`.
    let wrong = order.replace("\"qty\":1,", "\"qty\":\"one\",");
    if wrong == order {
        return Err("the order has no quantity to spoil".to_owned());
    }
    once(&order, &wrong, case.warm_n)?;
    for rep in 0..case.reps {
        let mut row = Map::new();
        row.insert("rep".to_owned(), rep.into());
        row.insert("n_done".to_owned(), case.n.into());
        for (label, took) in once(&order, &wrong, case.n)? {
            row.insert(format!("us_{label}"), json!(took.wall / case.n as f64 * 1e6));
            row.insert(format!("us_{label}_cpu"), json!(took.cpu / case.n as f64 * 1e6));
        }
        report.row(Value::Object(row));
    }
    Ok(())
}

/// The fixture that all peers read, where there is one.
fn order() -> String {
    let root = std::env::var("PERF_ROOT").unwrap_or_else(|_| ".".to_owned());
    let fixture = std::fs::read_to_string(format!("{root}/fixtures/args.json"));
    fixture.map_or_else(|_| ORDER.to_owned(), |text| text.trim().to_owned())
}

fn once(order: &str, wrong: &str, times: usize) -> Result<Vec<(&'static str, Timing)>, String> {
    let tool = tool();
    tool.check(order)?;
    match tool.check(wrong) {
        Err(problems) if problems.contains("items[1].qty") => {}
        other => return Err(format!("the problem was not named: {other:?}")),
    }
    Ok(vec![
        ("validate", repeat(times, || tool.check(black_box(order)).is_ok())),
        ("serde_typed", repeat(times, || serde_json::from_str::<Order>(black_box(order)).is_ok())),
        ("validate_wrong", repeat(times, || tool.check(black_box(wrong)).is_ok())),
        ("serde_typed_wrong", repeat(times, || serde_json::from_str::<Order>(black_box(wrong)).is_ok())),
    ])
}

fn repeat(times: usize, mut work: impl FnMut() -> bool) -> Timing {
    let clock = Clock::start();
    for _ in 0..times {
        black_box(work());
    }
    clock.stop()
}
