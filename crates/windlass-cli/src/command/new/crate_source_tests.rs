//! Sources in the records of cargo.

use std::path::Path;

use super::{GitSource, find_installed_source, is_cargo_folder};

const REVISION: &str = "0123456789abcdef0123456789abcdef01234567";

#[test]
fn the_record_of_an_installation_names_the_repository_and_the_revision() {
    let record = |source: &str| {
        let name = concat!("windlass-cli ", env!("CARGO_PKG_VERSION"));
        format!(
            "[v1]\n\"mdbook 0.5.4 (registry+https://x.test/index)\" = [\"mdbook\"]\n\"{name} ({source})\" = [\"windlass\"]\n"
        )
    };
    let expected = Some(GitSource {
        url: "https://example.test/windlass".to_owned(),
        revision: Some(REVISION.to_owned()),
    });
    for options in ["", "?branch=main", "?tag=v1", "?rev=0123456"] {
        let source = format!("git+https://example.test/windlass{options}#{REVISION}");
        assert_eq!(find_installed_source(&record(&source)), expected, "{source}");
    }
    for other in [
        "path+file:///home/ann/windlass/crates/windlass-cli",
        "git+https://x.test/w",
        "git+https://x.test/w#main",
    ] {
        assert_eq!(find_installed_source(&record(other)), None, "{other}");
    }
    let older = format!("[v1]\n\"windlass-cli 0.0.1 (git+https://x.test/w#{REVISION})\" = [\"windlass\"]\n");
    assert_eq!(find_installed_source(&older), None, "that is another version");
    assert_eq!(find_installed_source("not TOML ["), None);
}

#[test]
fn folders_that_cargo_may_delete_are_recognised() {
    assert!(is_cargo_folder(Path::new("/home/ann/.cargo/git/checkouts/windlass-1a2b/0123456/crates")));
    assert!(is_cargo_folder(Path::new("/home/ann/.cargo/registry/src/index-1a2b")));
    assert!(!is_cargo_folder(Path::new("/home/ann/src/windlass/crates")));
}
