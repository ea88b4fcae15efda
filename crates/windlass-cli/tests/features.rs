//! The table of features in `docs/dependencies.md`: every feature of a published crate is in it, with the number of
//! crates that it costs.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The target whose crates are counted: crates for other systems are not part of the build.
const COUNTED_TARGET: &str = "x86_64-unknown-linux-gnu";

struct FeatureRow {
    part: String,
    /// The features that are enabled by name. None of them is `default` if the default features are off.
    enabled: Vec<String>,
    /// All features that the row names.
    named: Vec<String>,
    crates: usize,
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn cargo_output(words: &[&str]) -> String {
    let output =
        Command::new(env!("CARGO")).args(words).current_dir(repository()).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("cargo writes text")
}

/// Returns the words in backticks.
fn quoted_words(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Returns the rows of the table.
fn feature_rows() -> Vec<FeatureRow> {
    let page = std::fs::read_to_string(repository().join("docs/dependencies.md")).expect("the page is there");
    let (_, section) = page.split_once("## Features").expect("it has the section");
    let table =
        section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let rows = table.skip(2).map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let listed = cells[2].split('(').next().unwrap_or_default();
        FeatureRow {
            part: cells[1].trim_matches('`').to_owned(),
            enabled: quoted_words(listed),
            named: [quoted_words(cells[2]), quoted_words(cells[4])].concat(),
            crates: cells[3].parse().expect("it is a number"),
        }
    });
    rows.collect()
}

#[test]
fn every_feature_of_a_published_crate_is_in_the_table() {
    let metadata: Value =
        serde_json::from_str(&cargo_output(&["metadata", "--no-deps", "--locked", "--format-version=1"]))
            .expect("cargo writes JSON");
    let mut named: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in feature_rows() {
        named.entry(row.part).or_default().extend(row.named);
    }
    let mut missing = Vec::new();
    let mut features = 0;
    for package in metadata["packages"].as_array().expect("there are packages") {
        // An unpublished package has an empty list of registries.
        if package["publish"].as_array().is_some_and(Vec::is_empty) {
            continue;
        }
        let part = package["name"].as_str().expect("it has a name");
        for feature in package["features"].as_object().expect("they are named").keys() {
            features += 1;
            if feature != "default" && !named.get(part).is_some_and(|words| words.contains(feature)) {
                missing.push(format!("{part}: {feature}"));
            }
        }
    }
    assert!(features > 0, "there are features");
    assert!(missing.is_empty(), "docs/dependencies.md does not say what these features cost: {missing:#?}");
}

#[test]
fn the_table_of_features_has_the_numbers_of_crates_that_are_built() {
    let mut wrong = Vec::new();
    let rows = feature_rows();
    assert!(!rows.is_empty(), "the table has rows");
    for row in rows {
        let named: Vec<&str> =
            row.enabled.iter().map(String::as_str).filter(|word| *word != "default").collect();
        let features = format!("--features={}", named.join(","));
        let mut words = vec!["tree", "--locked", "-e", "normal", "--prefix", "none", "--no-dedupe"];
        words.extend(["--target", COUNTED_TARGET, "-p", &row.part, &features]);
        if !row.enabled.iter().any(|word| word == "default") {
            words.push("--no-default-features");
        }
        let tree = cargo_output(&words);
        // A line is a name, a version and remarks.
        let built: BTreeSet<Vec<&str>> = tree
            .lines()
            .map(|line| line.split(' ').take(2).collect())
            .filter(|line: &Vec<_>| line.len() == 2)
            .collect();
        if built.len() != row.crates {
            wrong.push(format!(
                "{} {:?}: {} in the table, {} built",
                row.part,
                row.enabled,
                row.crates,
                built.len()
            ));
        }
    }
    assert!(wrong.is_empty(), "docs/dependencies.md: {wrong:#?}");
}
