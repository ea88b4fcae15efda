//! The inspector in a real browser. It needs node, Chromium, and `playwright-core` and `axe-core` in the folder that
//! `WINDLASS_BROWSER_MODULES` names.

use std::path::{Path, PathBuf};
use std::process::Command;

fn find_program(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    names
        .iter()
        .flat_map(|name| std::env::split_paths(&path).map(move |folder| folder.join(name)))
        .find(|program| program.is_file())
}

/// Returns the example server, which cargo builds beside the tests.
fn example_server() -> PathBuf {
    let test = std::env::current_exe().unwrap_or_default();
    let profile = test.ancestors().nth(2).unwrap_or(Path::new("."));
    profile.join("examples").join("clerk_server")
}

#[test]
fn a_run_is_started_watched_approved_killed_forked_and_read_in_a_browser() {
    let modules = std::env::var_os("WINDLASS_BROWSER_MODULES").map(PathBuf::from);
    let modules = modules.filter(|folder| folder.join("node_modules/playwright-core").is_dir());
    let (node, chromium) =
        (find_program(&["node"]), find_program(&["chromium", "chromium-browser", "google-chrome"]));
    let (Some(modules), Some(node), Some(chromium)) = (modules, node, chromium) else {
        eprintln!("not shown: the inspector in a browser needs node, chromium and WINDLASS_BROWSER_MODULES");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser/inspector.mjs");
    let output = Command::new(node)
        .args([script.as_os_str(), example_server().as_os_str(), folder.path().as_os_str()])
        .env("WINDLASS_BROWSER_MODULES", modules)
        .env("WINDLASS_CHROMIUM", chromium)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.ends_with("all seen\n"),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
