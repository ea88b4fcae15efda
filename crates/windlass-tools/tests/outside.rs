//! Path traversal: no path reads, lists, creates or changes anything outside the workspace.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use serde_json::json;
use support::{call_tool, open_workspace};
use tempfile::{TempDir, tempdir};
use windlass_tools::Workspace;

/// The text of files outside the workspace, which must never reach the model.
const SECRET: &str = "the-secret-of-the-outside";

/// Creates a workspace with links of every kind, next to a folder with a secret.
fn make_world() -> (TempDir, Workspace) {
    let world = tempdir().expect("a folder");
    let at = |path: &str| world.path().join(path);
    fs::create_dir_all(at("outside/deep")).expect("made");
    fs::create_dir_all(at("work/inner/deep")).expect("made");
    for path in ["outside/s.txt", "outside/deep/s.txt", "s.txt"] {
        fs::write(at(path), SECRET).expect("written");
    }
    fs::write(at("work/inner/a.txt"), "inside\n").expect("written");
    symlink(at("outside/s.txt"), at("work/file")).expect("linked");
    symlink("../outside", at("work/folder")).expect("linked");
    symlink("../../s.txt", at("work/inner/up")).expect("linked");
    symlink("/proc/self/root", at("work/root")).expect("linked");
    symlink("loop", at("work/loop")).expect("linked");
    symlink("inner/a.txt", at("work/good")).expect("linked");
    symlink(at("outside/new.txt"), at("work/dangling")).expect("linked");
    let workspace = open_workspace(&at("work"));
    (world, workspace)
}

/// Returns every path under a folder with its contents; links are not followed.
fn snapshot_tree(folder: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let kind = fs::symlink_metadata(&path).expect("is there").file_type();
        if kind.is_dir() {
            found.extend(snapshot_tree(&path));
            found.insert(path, "folder".into());
        } else if kind.is_symlink() {
            found.insert(path.clone(), format!("link {}", fs::read_link(&path).expect("a link").display()));
        } else {
            found.insert(path.clone(), fs::read_to_string(&path).expect("text"));
        }
    }
    found
}

fn snapshot_outside(world: &TempDir) -> BTreeMap<PathBuf, String> {
    let work = world.path().join("work");
    snapshot_tree(world.path()).into_iter().filter(|(path, _)| !path.starts_with(&work)).collect()
}

#[tokio::test]
async fn links_that_lead_out_are_refused_in_words() {
    let (world, workspace) = make_world();
    let before = snapshot_outside(&world);
    for path in [
        "file",
        "folder/s.txt",
        "inner/up",
        "root/etc/passwd",
        "loop",
        "../s.txt",
        "/etc/passwd",
        "inner/../../s.txt",
    ] {
        let told = call_tool(&workspace, "read_file", json!({ "path": path })).await;
        assert!(!told.contains(SECRET) && !told.contains("root:x"), "{path}: {told}");
        assert!(told.contains("workspace") && !told.contains("/tmp"), "{path}: {told}");
        let told = call_tool(&workspace, "write_file", json!({ "path": path, "content": "x" })).await;
        assert!(told.contains("workspace"), "{path}: {told}");
    }
    for path in ["dangling", "folder/new.txt", "good"] {
        let told = call_tool(&workspace, "write_file", json!({ "path": path, "content": "x" })).await;
        assert!(told.contains("link"), "{path}: {told}");
    }
    for folder in ["folder", "root", "..", "/"] {
        let told = call_tool(&workspace, "list_files", json!({ "folder": folder })).await;
        assert!(told.contains("workspace"), "{folder}: {told}");
    }
    assert!(call_tool(&workspace, "read_file", json!({ "path": "good" })).await.ends_with("inside\n"));
    let absolute = workspace.folder().join("inner/a.txt");
    assert!(call_tool(&workspace, "read_file", json!({ "path": absolute })).await.ends_with("inside\n"));
    assert_eq!(snapshot_outside(&world), before);
}

#[tokio::test]
async fn special_files_are_refused_and_nobody_waits_for_them() {
    let (world, workspace) = make_world();
    let work = world.path().join("work");
    let made = std::process::Command::new("mkfifo").arg(work.join("pipe")).status().expect("mkfifo runs");
    assert!(made.success());
    let _socket = std::os::unix::net::UnixListener::bind(work.join("socket")).expect("bound");
    for (path, is) in [("pipe", "a pipe"), ("inner", "a folder")] {
        let told = call_tool(&workspace, "read_file", json!({ "path": path })).await;
        assert!(told.contains(is), "{told}");
        let told =
            call_tool(&workspace, "write_file", json!({ "path": path, "content": "x", "version": "0" }))
                .await;
        assert!(told.contains(is), "{told}");
    }
    for tool in ["read_file", "write_file"] {
        let told = call_tool(&workspace, tool, json!({ "path": "socket", "content": "x" })).await;
        assert!(!told.contains("is written"), "{told}");
    }
    let socket = fs::symlink_metadata(work.join("socket")).expect("is there");
    assert!(!socket.file_type().is_file());
}

/// A thread replaces a folder by a link and back continuously; no interleaving touches anything outside.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_becomes_a_link_meanwhile_leads_nowhere() {
    let (world, workspace) = make_world();
    let before = snapshot_outside(&world);
    let (work, done) = (world.path().join("work"), std::sync::Arc::new(AtomicBool::new(false)));
    fs::create_dir(work.join("turn")).expect("made");
    fs::write(work.join("turn/s.txt"), "inside\n").expect("written");
    let turning = {
        let (work, done) = (work.clone(), done.clone());
        std::thread::spawn(move || {
            let mut turns = 0u32;
            while !done.load(Ordering::Relaxed) {
                fs::rename(work.join("turn"), work.join("aside")).expect("moved");
                if symlink("../outside", work.join("turn")).is_ok() {
                    fs::remove_file(work.join("turn")).expect("removed");
                }
                // A tool may have created the folder again while it was moved away.
                while fs::rename(work.join("aside"), work.join("turn")).is_err() {
                    fs::remove_dir_all(work.join("turn")).ok();
                }
                turns += 1;
            }
            turns
        })
    };
    for n in 0..150 {
        let told = call_tool(&workspace, "read_file", json!({ "path": "turn/s.txt" })).await;
        assert!(!told.contains(SECRET), "{told}");
        call_tool(&workspace, "write_file", json!({ "path": format!("turn/{n}.txt"), "content": "x" })).await;
        let told = call_tool(&workspace, "search_files", json!({ "text": "secret", "folder": "turn" })).await;
        assert!(!told.contains(SECRET), "{told}");
    }
    done.store(true, Ordering::Relaxed);
    assert!(turning.join().expect("the thread ends") > 0);
    assert_eq!(snapshot_outside(&world), before);
}

fn any_path() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        Just("..".to_owned()),
        Just(".".into()),
        Just("".into()),
        Just("/".into()),
        Just("inner".into()),
        Just("deep".into()),
        Just("file".into()),
        Just("folder".into()),
        Just("up".into()),
        Just("root".into()),
        Just("loop".into()),
        Just("good".into()),
        Just("dangling".into()),
        Just("a.txt".into()),
        Just("s.txt".into()),
        Just("outside".into()),
        Just("work".into()),
        Just("new".into()),
        Just("proc/self/cwd".into()),
        Just("~".into()),
        Just("etc/passwd".into()),
        "\\PC{0,6}",
        "[\\x00-\\x1f/.]{1,4}",
    ];
    (
        prop_oneof![
            Just(""),
            Just("/"),
            Just("./"),
            Just("../"),
            Just("//"),
            Just("<work>/"),
            Just("<work>/../")
        ],
        prop::collection::vec(part, 0..6),
    )
        .prop_map(|(start, parts)| format!("{start}{}", parts.join("/")))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn no_path_touches_anything_outside(paths in prop::collection::vec(any_path(), 1..6)) {
        let (world, workspace) = make_world();
        let before = snapshot_outside(&world);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        for path in paths {
            let path = path.replace("<work>", &workspace.folder().display().to_string());
            for (tool, arguments) in [
                ("read_file", json!({ "path": path })),
                ("list_files", json!({ "folder": path })),
                ("search_files", json!({ "text": "secret", "folder": path })),
                ("write_file", json!({ "path": path, "content": "written" })),
                ("patch_file", json!({ "path": path, "version": "0", "edits": [{ "old": "the", "new": "x" }] })),
            ] {
                workspace.preview(tool, &arguments.to_string());
                let told = runtime.block_on(call_tool(&workspace, tool, arguments));
                prop_assert!(!told.contains(SECRET) && !told.contains("root:x"), "{tool} {path:?}: {told}");
            }
        }
        prop_assert_eq!(snapshot_outside(&world), before);
    }
}
