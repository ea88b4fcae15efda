//! The file tools on a real file system.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use serde_json::json;
use support::{call_tool, open_workspace, parse_version};
use tempfile::tempdir;
use windlass_tools::{FileChange, ToolLimits};

#[tokio::test]
async fn a_file_is_read_in_parts_with_its_version() {
    let folder = tempdir().expect("a folder");
    let text: String = (1..=10).map(|n| format!("line {n}\n")).collect();
    fs::write(folder.path().join("a.txt"), &text).expect("written");
    let mut limits = ToolLimits::default();
    limits.max_shown_lines = 4;
    let workspace = open_workspace(folder.path()).limits(limits);

    let told = call_tool(&workspace, "read_file", json!({ "path": "./a.txt" })).await;
    let (head, rest) = told.split_once('\n').expect("a head");
    assert!(
        head.starts_with("a.txt, version ")
            && head.ends_with("lines 1 to 4 of 10: ask for more with from_line 5"),
        "{head}"
    );
    assert_eq!(rest, "line 1\nline 2\nline 3\nline 4\n");
    let later =
        call_tool(&workspace, "read_file", json!({ "path": "a.txt", "from_line": 9, "lines": 9 })).await;
    assert!(later.ends_with("lines 9 to 10 of 10\nline 9\nline 10\n"), "{later}");
    assert_eq!(parse_version(&later), parse_version(&told));
    let past = call_tool(&workspace, "read_file", json!({ "path": "a.txt", "from_line": 11 })).await;
    assert!(past.contains("has 10 lines"), "{past}");
}

#[tokio::test]
async fn what_git_ignores_is_neither_listed_nor_found() {
    let folder = tempdir().expect("a folder");
    let at = |path: &str| folder.path().join(path);
    for path in ["src", "target/deep", ".git", "docs"] {
        fs::create_dir_all(at(path)).expect("made");
    }
    fs::write(at(".gitignore"), "target\n*.log\n").expect("written");
    fs::write(at("docs/.gitignore"), "!kept.log\n").expect("written");
    for path in ["src/main.rs", "target/deep/x.rs", ".git/config", "a.log", "docs/kept.log", "docs/b.md"] {
        fs::write(at(path), "needle here\nand (there)\n").expect("written");
    }
    fs::write(at("picture.png"), b"\x89PNG\0needle").expect("written");
    symlink("src/main.rs", at("link.rs")).expect("linked");
    let workspace = open_workspace(folder.path());

    let listed = call_tool(&workspace, "list_files", json!({})).await;
    assert_eq!(
        listed.lines().collect::<Vec<_>>(),
        [
            ".gitignore",
            "docs/",
            "docs/.gitignore",
            "docs/b.md",
            "docs/kept.log",
            "picture.png",
            "src/",
            "src/main.rs"
        ]
    );
    let rust = call_tool(&workspace, "list_files", json!({ "pattern": "*.rs" })).await;
    assert_eq!(rust, "src/main.rs\n");
    let flat = call_tool(&workspace, "list_files", json!({ "depth": 1 })).await;
    assert_eq!(flat, ".gitignore\ndocs/\npicture.png\nsrc/\n");

    let found = call_tool(&workspace, "search_files", json!({ "text": "needle" })).await;
    assert_eq!(found, "docs/b.md:1: needle here\ndocs/kept.log:1: needle here\nsrc/main.rs:1: needle here\n");
    let literal = call_tool(&workspace, "search_files", json!({ "text": "(there)", "folder": "src" })).await;
    assert_eq!(literal, "src/main.rs:2: and (there)\n");
    let regex = json!({ "text": "^NEED.e", "kind": "regex", "case": "ignored", "pattern": "docs/*.md" });
    assert_eq!(call_tool(&workspace, "search_files", regex).await, "docs/b.md:1: needle here\n");
    let broken = call_tool(&workspace, "search_files", json!({ "text": "(", "kind": "regex" })).await;
    assert!(broken.contains("the pattern cannot be read"), "{broken}");
}

#[tokio::test]
async fn much_is_cut_and_said_to_be() {
    let folder = tempdir().expect("a folder");
    for n in 0..30 {
        fs::write(folder.path().join(format!("{n:02}.txt")), "hit\n").expect("written");
    }
    fs::write(folder.path().join("big.txt"), vec![b'a'; 5000]).expect("written");
    let mut limits = ToolLimits::default();
    (limits.max_entries, limits.max_file_bytes) = (10, 1000);
    let workspace = open_workspace(folder.path()).limits(limits);
    let listed = call_tool(&workspace, "list_files", json!({})).await;
    assert!(
        listed.ends_with("[21 more paths are left out: name a folder or a narrower pattern]\n"),
        "{listed}"
    );
    let found = call_tool(&workspace, "search_files", json!({ "text": "hit" })).await;
    assert!(found.contains("[20 more lines") && found.contains("[1 files are too large"), "{found}");
    let big = call_tool(&workspace, "read_file", json!({ "path": "big.txt" })).await;
    assert!(big.contains("has 5000 bytes, more than the 1000"), "{big}");
    fs::create_dir(folder.path().join("sub")).expect("made");
    let folder = call_tool(&workspace, "read_file", json!({ "path": "sub" })).await;
    assert!(folder.ends_with("`sub` is a folder, and read_file needs a file"), "{folder}");
}

/// Renames of Rust types must not change the schemas that models receive.
#[test]
fn schemas_name_their_definitions_as_before() {
    let folder = tempdir().expect("a folder");
    let tools: Vec<windlass::tool::Tool> = open_workspace(folder.path()).tools();
    let names = |tool: &str| {
        let tool = tools.iter().find(|found| found.name() == tool).expect("a tool");
        let definitions = tool.arguments_schema()["$defs"].as_object().cloned().unwrap_or_default();
        definitions.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!(names("patch_file"), ["Edit", "Places"]);
    assert_eq!(names("search_files"), ["Case", "Kind"]);
}

#[tokio::test]
async fn a_file_is_made_once_and_replaced_by_those_who_have_read_it() {
    let folder = tempdir().expect("a folder");
    let workspace = open_workspace(folder.path());
    let made = call_tool(&workspace, "write_file", json!({ "path": "a/b/c.txt", "content": "one\n" })).await;
    assert!(made.starts_with("a/b/c.txt is written, 1 lines, version "), "{made}");
    let again = call_tool(&workspace, "write_file", json!({ "path": "a/b/c.txt", "content": "two\n" })).await;
    assert!(again.contains("is there already") && again.contains("read_file"), "{again}");

    let file = folder.path().join("a/b/c.txt");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o750)).expect("changed");
    let replace = |version: String| json!({ "path": "a/b/c.txt", "content": "two\n", "version": version });
    let done = call_tool(&workspace, "write_file", replace(parse_version(&made))).await;
    assert!(done.contains("is written"), "{done}");
    assert_eq!(fs::read_to_string(&file).expect("read"), "two\n");
    assert_eq!(fs::metadata(&file).expect("is there").permissions().mode() & 0o777, 0o750);

    fs::write(&file, "somebody else\n").expect("written");
    let stale = call_tool(&workspace, "write_file", replace(parse_version(&done))).await;
    assert!(stale.contains("has changed since that version"), "{stale}");
    assert_eq!(fs::read_to_string(&file).expect("read"), "somebody else\n");
    assert_eq!(
        fs::read_dir(folder.path().join("a/b")).expect("a folder").count(),
        1,
        "nothing is left beside it"
    );
}

#[tokio::test]
async fn a_file_is_patched_as_a_whole_or_not_at_all() {
    let folder = tempdir().expect("a folder");
    let file = folder.path().join("a.rs");
    fs::write(&file, "fn a() {}\nfn b() {}\nfn b2() {}\n").expect("written");
    let workspace = open_workspace(folder.path());
    let read = parse_version(&call_tool(&workspace, "read_file", json!({ "path": "a.rs" })).await);
    let patch = |edits| json!({ "path": "a.rs", "version": read, "edits": edits });

    let twice = call_tool(
        &workspace,
        "patch_file",
        patch(json!([{ "old": "a()", "new": "x()" }, { "old": "fn b", "new": "y" }])),
    )
    .await;
    assert!(twice.contains("the text of edit 2 is there 2 times"), "{twice}");
    assert!(
        fs::read_to_string(&file).expect("read").starts_with("fn a()"),
        "the first edit was not made alone"
    );

    let asked = patch(json!([{ "old": "fn b", "new": "pub fn b", "places": "all" }]));
    let diff = workspace.preview("patch_file", &asked.to_string()).expect("it changes a file");
    assert_eq!(
        (diff.path.as_str(), &diff.change, diff.added, diff.removed),
        ("a.rs", &FileChange::Modifies, 2, 2)
    );
    assert!(diff.text.contains("-fn b() {}\n") && diff.text.contains("+pub fn b2() {}\n"), "{}", diff.text);
    let done = call_tool(&workspace, "patch_file", asked.clone()).await;
    assert!(done.contains("is written"), "{done}");
    let refused = workspace.preview("patch_file", &asked.to_string()).expect("it would change a file");
    assert!(matches!(refused.change, FileChange::Refused(why) if why.contains("has changed")));

    let now = parse_version(&call_tool(&workspace, "read_file", json!({ "path": "a.rs" })).await);
    let diff = "--- a.rs\n+++ a.rs\n@@ -1,2 +1,1 @@\n-fn a() {}\n pub fn b() {}\n";
    call_tool(&workspace, "patch_file", json!({ "path": "a.rs", "version": now, "diff": diff })).await;
    assert_eq!(fs::read_to_string(&file).expect("read"), "pub fn b() {}\npub fn b2() {}\n");
}

#[tokio::test]
async fn the_repository_and_hidden_files_are_kept() {
    let folder = tempdir().expect("a folder");
    fs::create_dir_all(folder.path().join(".git/hooks")).expect("made");
    fs::write(folder.path().join(".env"), "KEY=needle\n").expect("written");
    fs::create_dir(folder.path().join("secret")).expect("made");
    fs::write(folder.path().join("secret/a.txt"), "needle\n").expect("written");
    fs::write(folder.path().join("open.txt"), "open\n").expect("written");
    fs::create_dir(folder.path().join("sub")).expect("made");
    for name in ["sub/key.pem", "sub/other.txt"] {
        fs::write(folder.path().join(name), "needle\n").expect("written");
    }
    for (target, link) in
        [(".env", "to_file"), ("secret", "to_folder"), ("open.txt", "to_open"), ("sub", "to_sub")]
    {
        symlink(target, folder.path().join(link)).expect("linked");
    }
    let workspace = open_workspace(folder.path()).hide([".env", "secret/", "/sub/*.pem"]).expect("patterns");
    for path in ["to_file", "to_folder/a.txt"] {
        let told = call_tool(&workspace, "read_file", json!({ "path": path })).await;
        assert!(told.contains("leads to what is kept from agents"), "{told}");
    }
    for tool in ["list_files", "search_files"] {
        let told = call_tool(&workspace, tool, json!({ "folder": "to_folder", "text": "needle" })).await;
        assert!(!told.contains("a.txt"), "{told}");
    }
    assert!(call_tool(&workspace, "read_file", json!({ "path": "to_open" })).await.ends_with("open\n"));
    for path in [".git/hooks/pre-commit", ".GIT/x", "sub/.git/config"] {
        let told = call_tool(&workspace, "write_file", json!({ "path": path, "content": "x" })).await;
        assert!(told.contains("belongs to Git"), "{told}");
    }
    for (tool, arguments) in [
        ("read_file", json!({ "path": ".env" })),
        ("write_file", json!({ "path": "secret/x", "content": "x" })),
        ("list_files", json!({ "folder": "secret" })),
    ] {
        let told = call_tool(&workspace, tool, arguments).await;
        assert!(told.contains("is kept from agents"), "{told}");
    }
    for arguments in [json!({ "text": "needle" }), json!({ "text": "needle", "folder": "to_sub" })] {
        assert_eq!(call_tool(&workspace, "search_files", arguments).await, "sub/other.txt:1: needle\n");
    }
}
