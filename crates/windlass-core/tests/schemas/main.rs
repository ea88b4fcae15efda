//! Schema validation compared with an independent implementation, the Python package `jsonschema`.
//!
//! Its verdicts on random schemas and values are recorded beside this file, so that the comparison runs
//! everywhere. If Python and the package are installed, many more are compared. `WINDLASS_PYTHON` names the
//! Python interpreter.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]
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
use windlass_core::canonical::canonical_json;
use windlass_core::schema::{CompiledSchema, validate};

const RECORDED_FILE: &str = "judged.jsonl";

#[derive(Deserialize)]
struct JudgedCase {
    schema: Value,
    value: Value,
    fits: bool,
}

fn test_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/schemas").join(name)
}

/// Compares the recorded verdicts with ours. Returns the numbers of valid and invalid values.
fn compare_verdicts(lines: &str) -> [usize; 2] {
    let mut counts = [0, 0];
    for line in lines.lines() {
        let JudgedCase { schema, value, fits } = serde_json::from_str(line).expect("a line of JSON");
        let problems = validate(&schema, &value);
        assert_eq!(problems.is_empty(), fits, "{line}\n{problems:?}");
        assert_eq!(
            CompiledSchema::new(schema.into()).validate_text(&canonical_json(&value)),
            problems,
            "{line}"
        );
        counts[usize::from(fits)] += 1;
    }
    counts
}

#[test]
fn what_fits_is_what_fits_elsewhere() {
    let recorded = std::fs::read_to_string(test_file(RECORDED_FILE)).expect("the record is there");
    let [wrong, right] = compare_verdicts(&recorded);
    assert!(wrong > 60 && right > 60, "{wrong} and {right}");
}

#[test]
fn many_more_are_judged_alike_where_the_other_is_here() {
    let python = std::env::var("WINDLASS_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let judged = Command::new(&python).arg(test_file("judged.py")).args(["7", "5000"]).output();
    match judged {
        Ok(judged) if judged.status.success() => {
            let [wrong, right] = compare_verdicts(&String::from_utf8(judged.stdout).expect("it is text"));
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
