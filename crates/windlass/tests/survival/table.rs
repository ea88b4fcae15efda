//! Checks that `docs/guarantees.md` names every test of this folder, and no other.

use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn the_table_names_every_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("../../docs/guarantees.md")).expect("the page is there");
    let named: BTreeSet<String> = page
        .split("/survival/")
        .filter_map(|link| link.split_once(".rs)`::"))
        .map(|(module, rest)| format!("{module}::{}", rest.split('`').next().unwrap_or_default()))
        .collect();
    let mut written = BTreeSet::new();
    for file in std::fs::read_dir(root.join("tests/survival")).expect("the folder is there") {
        let path = file.expect("can be read").path();
        let module = path.file_stem().expect("has a name").to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).expect("can be read");
        let tests = text.lines().filter_map(|line| line.strip_prefix("async fn s")?.split_once('('));
        let rows = tests.filter(|(name, _)| name.starts_with(|first: char| first.is_ascii_digit()));
        written.extend(rows.map(|(name, _)| format!("{module}::s{name}")));
    }
    assert_eq!(named, written);
}
