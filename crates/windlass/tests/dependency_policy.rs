//! The dependency policy, checked with cargo alone. `docs/dependencies.md` gives the reason for each
//! dependency.

#![allow(clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Allowed licence expressions, as crates write them. A person reviews every new spelling.
const ALLOWED_LICENCES: &[&str] = &[
    "Apache-2.0",
    "MIT",
    "(Apache-2.0 OR MIT) AND BSD-3-Clause",
    "(MIT OR Apache-2.0) AND Unicode-3.0",
    "Apache-2.0 / MIT",
    "Apache-2.0 AND ISC",
    "Apache-2.0 OR BSD-3-Clause",
    "Apache-2.0 OR BSL-1.0",
    "Apache-2.0 OR BSL-1.0 OR MIT",
    "Apache-2.0 OR ISC OR MIT",
    "Apache-2.0 OR MIT",
    "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT",
    "BSD-2-Clause OR Apache-2.0 OR MIT",
    "BSD-3-Clause",
    "ISC",
    "MIT AND BSD-3-Clause",
    "MIT OR Apache-2.0",
    "0BSD OR MIT OR Apache-2.0",
    "MIT OR Zlib OR Apache-2.0",
    "MIT/Apache-2.0",
    "Unicode-3.0",
    "Unlicense OR MIT",
    "Unlicense/MIT",
    "Zlib",
    "Zlib OR Apache-2.0 OR MIT",
];

/// Crates that are banned, also as transitive dependencies, each with the reason.
const BANNED_CRATES: &[(&str, &str)] = &[
    ("async-std", "there is one runtime, and it is tokio"),
    ("smol", "there is one runtime, and it is tokio"),
    ("lazy_static", "the standard library has it"),
    ("native-tls", "it needs a library of the system"),
    ("openssl", "it needs a library of the system"),
    ("openssl-sys", "it needs a library of the system"),
];

/// Crates present in several versions, each with the reason why it cannot be avoided today.
const KNOWN_DUPLICATES: &[(&str, &str)] = &[
    ("base64", "oauth2, behind rmcp, is at 0.22"),
    ("block-buffer", "sha2 0.10, behind oauth2, brings it"),
    ("cpufeatures", "sha2 0.10, behind oauth2, brings it"),
    ("crypto-common", "sha2 0.10, behind oauth2, brings it"),
    ("digest", "sha2 0.10, behind oauth2, brings it"),
    ("fallible-iterator", "tokio-postgres is at 0.2, rusqlite at 0.3"),
    ("rand", "oauth2, behind rmcp, is at 0.8"),
    ("rand_chacha", "rand 0.8, behind oauth2, brings it; opentelemetry_sdk is at 0.9"),
    ("rand_core", "rand 0.8, behind oauth2, brings it"),
    ("sha2", "oauth2, behind rmcp, is at 0.10"),
    ("thiserror", "oauth2, behind rmcp, is at 1"),
    ("thiserror-impl", "thiserror 1, behind oauth2, brings it"),
    ("getrandom", "ring, behind rustls, is at 0.2"),
    ("miniz_oxide", "png asks for 0.8, and flate2 below it for 0.9"),
    ("syn", "our macros are at 3; many derives are at 2"),
];

/// The allowed dependencies of the core: no runtime, no I/O, no clock, no randomness.
const CORE_DEPENDENCIES: [&str; 5] = ["hmac", "serde", "serde_json", "sha2", "thiserror"];

#[test]
fn licences_are_allowed() {
    let metadata = cargo_metadata();
    let others: Vec<String> = packages(&metadata)
        .filter(|package| {
            !package["license"].as_str().is_some_and(|licence| ALLOWED_LICENCES.contains(&licence))
        })
        .map(|package| format!("{}: {}", package["name"], package["license"]))
        .collect();
    assert!(others.is_empty(), "licences that nobody has looked at: {others:#?}");
}

#[test]
fn nothing_banned_comes_in() {
    let locked = locked_crates();
    for &(name, why) in BANNED_CRATES {
        assert!(
            !locked.contains_key(name),
            "`{name}` must not come in: {why}; `cargo tree -i {name}` says whence"
        );
    }
}

#[test]
fn duplicates_are_named() {
    let built = built_crates();
    let several = built.iter().filter(|(_, versions)| versions.len() > 1);
    let found: BTreeSet<&str> = several.map(|(name, _)| name.as_str()).collect();
    let named: BTreeSet<&str> = KNOWN_DUPLICATES.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        found, named,
        "left: crates in several versions; right: those that are named here with a reason"
    );
}

#[test]
fn the_core_knows_nothing() {
    let metadata = cargo_metadata();
    let core =
        packages(&metadata).find(|package| package["name"] == "windlass-core").expect("is in the workspace");
    assert_eq!(
        direct_dependencies(core, |kind| kind.is_null()),
        CORE_DEPENDENCIES.into_iter().map(str::to_owned).collect()
    );
}

#[test]
fn every_direct_dependency_has_its_reason() {
    let metadata = cargo_metadata();
    let members: BTreeSet<&str> = packages(&metadata)
        .filter(|package| package["source"].is_null())
        .filter_map(|package| package["name"].as_str())
        .collect();
    let wanted: BTreeSet<String> = packages(&metadata)
        .filter(|package| package["source"].is_null())
        .flat_map(|package| direct_dependencies(package, |_| true))
        .filter(|name| !members.contains(name.as_str()))
        .collect();
    let page =
        std::fs::read_to_string(workspace_root().join("docs/dependencies.md")).expect("the page is there");
    // The tables after these name our own crates.
    let given: BTreeSet<String> = page
        .lines()
        .take_while(|line| *line != "## Features")
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(name, _)| name.to_owned())
        .collect();
    assert_eq!(wanted, given, "left: direct dependencies; right: rows of docs/dependencies.md");
}

fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns cargo's metadata of all packages of the workspace for the host platform.
fn cargo_metadata() -> Value {
    let version = Command::new(env!("CARGO")).arg("-vV").output().expect("cargo runs");
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).expect("cargo knows its host");
    let output = Command::new(env!("CARGO"))
        // Without the filter, cargo would fetch the dependencies of every platform.
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", host])
        .current_dir(workspace_root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo writes JSON")
}

fn packages(metadata: &Value) -> impl Iterator<Item = &Value> {
    metadata["packages"].as_array().expect("a list").iter()
}

fn direct_dependencies(package: &Value, is_wanted: impl Fn(&Value) -> bool) -> BTreeSet<String> {
    let dependencies = package["dependencies"].as_array().expect("a list").iter();
    dependencies
        .filter(|dependency| is_wanted(&dependency["kind"]))
        .filter_map(|dependency| dependency["name"].as_str().map(str::to_owned))
        .collect()
}

/// Returns every crate of the default build, with its versions.
fn built_crates() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--workspace", "--edges", "normal", "--prefix", "none", "--locked"])
        .current_dir(workspace_root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let mut words = line.split_whitespace();
        if let (Some(name), Some(version)) = (words.next(), words.next()) {
            found.entry(name.to_owned()).or_default().insert(version.to_owned());
        }
    }
    found
}

/// Returns every crate of the lock file with its versions, for all platforms.
fn locked_crates() -> BTreeMap<String, BTreeSet<String>> {
    let text = std::fs::read_to_string(workspace_root().join("Cargo.lock")).expect("the lock file is there");
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut name = String::new();
    for line in text.lines() {
        if let Some(value) = quoted_value(line, "name = ") {
            name = value.to_owned();
        } else if let Some(value) = quoted_value(line, "version = ") {
            found.entry(name.clone()).or_default().insert(value.to_owned());
        }
    }
    found
}

fn quoted_value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.strip_prefix(key)?.strip_prefix('"')?.strip_suffix('"')
}
