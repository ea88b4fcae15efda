//! The check of a call's arguments, compared with deserialisation by the JSON library alone.

use std::hint::black_box;

use serde_json::{Map, Value, json};

use super::{BenchCase, CaseReport};
use crate::arguments::{OrderArguments, SAMPLE_ORDER, order_tool};
use crate::measure::{BenchClock, BenchTiming};

pub(super) fn measure_argument_check(case: &BenchCase, report: &CaseReport) -> Result<(), String> {
    let order = load_order();
    // The quantity of the second position is text: the error names `items[1].qty`.
    let wrong = order.replace("\"qty\":1,", "\"qty\":\"one\",");
    if wrong == order {
        return Err("the order has no quantity to spoil".to_owned());
    }
    measure_checks(&order, &wrong, case.warm_n)?;
    for rep in 0..case.reps {
        let mut row = Map::new();
        row.insert("rep".to_owned(), rep.into());
        row.insert("n_done".to_owned(), case.n.into());
        for (label, took) in measure_checks(&order, &wrong, case.n)? {
            row.insert(format!("us_{label}"), json!(took.wall / case.n as f64 * 1e6));
            row.insert(format!("us_{label}_cpu"), json!(took.cpu / case.n as f64 * 1e6));
        }
        report.print_row(Value::Object(row));
    }
    Ok(())
}

/// Returns the fixture shared by all peers, or the sample order if there is none.
fn load_order() -> String {
    let root = std::env::var("PERF_ROOT").unwrap_or_else(|_| ".".to_owned());
    let fixture = std::fs::read_to_string(format!("{root}/fixtures/args.json"));
    fixture.map_or_else(|_| SAMPLE_ORDER.to_owned(), |text| text.trim().to_owned())
}

fn measure_checks(
    order: &str,
    wrong: &str,
    times: usize,
) -> Result<Vec<(&'static str, BenchTiming)>, String> {
    let tool = order_tool();
    tool.check_arguments(order)?;
    match tool.check_arguments(wrong) {
        Err(problems) if problems.contains("items[1].qty") => {}
        other => return Err(format!("the problem was not named: {other:?}")),
    }
    Ok(vec![
        ("validate", time_repeated(times, || tool.check_arguments(black_box(order)).is_ok())),
        (
            "serde_typed",
            time_repeated(times, || serde_json::from_str::<OrderArguments>(black_box(order)).is_ok()),
        ),
        ("validate_wrong", time_repeated(times, || tool.check_arguments(black_box(wrong)).is_ok())),
        (
            "serde_typed_wrong",
            time_repeated(times, || serde_json::from_str::<OrderArguments>(black_box(wrong)).is_ok()),
        ),
    ])
}

fn time_repeated(times: usize, mut work: impl FnMut() -> bool) -> BenchTiming {
    let clock = BenchClock::start();
    for _ in 0..times {
        black_box(work());
    }
    clock.stop()
}
