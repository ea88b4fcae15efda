//! What fits a schema, held against an independent implementation: the `jsonschema` package for Python.
//!
//! What it said of schemas and values by chance is recorded beside this file, so that the comparison is made
//! everywhere; where Python and the package are, it is made anew with many more. `WINDLASS_PYTHON` names the Python.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    clippy::disallowed_types,
    reason = "the other implementation is a program"
)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use serde_json::Value;
use windlass_core::canonical;
use windlass_core::schema::{Shape, check};

const RECORDED: &str = "judged.jsonl";

#[derive(Deserialize)]
struct Judged {
    schema: Value,
    value: Value,
    fits: bool,
}

fn beside(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/schemas").join(name)
}

/// Holds what was judged against what we find. Says how many values fit.
fn compare(lines: &str) -> [usize; 2] {
    let mut counts = [0, 0];
    for line in lines.lines() {
        let Judged { schema, value, fits } = serde_json::from_str(line).expect("a line of JSON");
        let problems = check(&schema, &value);
        assert_eq!(problems.is_empty(), fits, "{line}\n{problems:?}");
        assert_eq!(Shape::new(schema.into()).check(&canonical(&value)), problems, "{line}");
        counts[usize::from(fits)] += 1;
    }
    counts
}

#[test]
fn what_fits_is_what_fits_elsewhere() {
    let recorded = std::fs::read_to_string(beside(RECORDED)).expect("the record is there");
    let [wrong, right] = compare(&recorded);
    assert!(wrong > 60 && right > 60, "{wrong} and {right}");
}

#[test]
fn many_more_are_judged_alike_where_the_other_is_here() {
    let python = std::env::var("WINDLASS_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let judged = Command::new(&python).arg(beside("judged.py")).args(["7", "5000"]).output();
    match judged {
        Ok(judged) if judged.status.success() => {
            let [wrong, right] = compare(&String::from_utf8(judged.stdout).expect("it is text"));
            assert!(wrong > 1_000 && right > 1_000, "{wrong} and {right}");
        }
        _ => {
            let _ = writeln!(
                std::io::stderr(),
                "not shown with many schemas: `{python}` with the package jsonschema is not here"
            );
        }
    }
}
