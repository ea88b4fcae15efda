use std::fs;
use std::path::Path;

use tempfile::{TempDir, tempdir};

use super::{GitAccess, MountState, ProtectedFiles, ProtectionLimits};

const GENEROUS: ProtectionLimits =
    ProtectionLimits { entries: 1000, mounts: 1000, listed_files: 1000, kept_bytes: 1 << 20 };

/// Creates a folder with these files, whose texts are `old`.
fn make_files(paths: &[&str]) -> TempDir {
    let world = tempdir().expect("a folder");
    for path in paths {
        write(world.path(), path, "old\n");
    }
    world
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("has one")).expect("made");
    fs::write(path, text).expect("written");
}

fn read(root: &Path, path: &str) -> Option<String> {
    fs::read_to_string(root.join(path)).ok()
}

/// Changes files as a command on a machine without mount namespaces could, and undoes that.
fn run_unmounted(root: &Path, limits: ProtectionLimits, command: impl FnOnce()) -> (Vec<String>, bool) {
    // The clock of a file system stands still for some milliseconds.
    let fresh = loop {
        let fresh = tempdir().expect("a folder");
        let newest = newest_change(root);
        if super::changed_at(&fs::symlink_metadata(fresh.path()).expect("is there")) > newest {
            break fresh;
        }
    };
    let files = ProtectedFiles::find(root, &[root.join("rules")], GitAccess::ReadOnly, fresh.path(), limits);
    command();
    (files.restore(MountState::NotMounted), files.is_complete)
}

fn newest_change(path: &Path) -> super::ChangeTime {
    let found = fs::symlink_metadata(path).expect("is there");
    let beneath =
        fs::read_dir(path).into_iter().flatten().flatten().map(|entry| newest_change(&entry.path()));
    beneath.chain([super::changed_at(&found)]).max().expect("has one")
}

/// A command that makes many instruction files, which stay, uses up no place that a rule needs.
#[test]
fn planted_instructions_use_up_no_limit() {
    let world = make_files(&[".git/config", "proj/.git/config", "proj/agent.toml", "proj/.mcp.json"]);
    let root = world.path();
    for number in 0..600 {
        write(root, &format!("a{number}/AGENTS.md"), "x");
        write(root, &format!("proj/a{number}/AGENTS.md"), "x");
    }
    let files = ProtectedFiles::find(root, &[], GitAccess::ReadOnly, root, ProtectionLimits::default());
    assert!(!files.is_complete, "more than the maximum number of mounts");
    for path in [".git", "proj/.git", "proj/agent.toml", "proj/.mcp.json"] {
        assert!(files.read_only.contains(&root.join(path)), "{path}");
    }
    let (told, _) = run_unmounted(root, ProtectionLimits::default(), || {
        write(root, ".git/hooks/post-checkout", "evil\n");
        for path in [".git/config", "proj/.git/config", "proj/agent.toml", "proj/.mcp.json"] {
            write(root, path, "evil\n");
        }
    });
    assert_eq!(read(root, ".git/hooks/post-checkout"), None, "{told:?}");
    for path in [".git/config", "proj/.git/config", "proj/agent.toml", "proj/.mcp.json"] {
        assert_eq!(read(root, path).as_deref(), Some("old\n"), "{path}: {told:?}");
    }
}

/// A rule whose text was not kept is renamed when it has changed.
#[test]
fn changes_beyond_every_limit_are_set_aside() {
    let paths =
        [".git/config", ".git/hooks/pre-commit", "agent.toml", "z/.mcp.json", ".claude/settings.json"];
    for (limits, is_complete) in [
        (ProtectionLimits { kept_bytes: 0, ..GENEROUS }, true),
        (ProtectionLimits { listed_files: 0, ..GENEROUS }, true),
        (ProtectionLimits { entries: 1, ..GENEROUS }, false),
        (ProtectionLimits { mounts: 1, ..GENEROUS }, false),
    ] {
        let world = make_files(&paths);
        let root = world.path();
        fs::create_dir(root.join("prepared")).expect("made");
        write(root, "prepared/post-checkout", "evil\n");
        let (told, was_complete) = run_unmounted(root, limits, || {});
        assert_eq!((told.len(), was_complete), (0, is_complete), "{limits:?}: {told:?}");
        let (told, _) = run_unmounted(root, limits, || {
            for path in paths {
                write(root, path, "evil\n");
            }
            fs::remove_dir_all(root.join(".git/hooks")).expect("removed");
            fs::rename(root.join("prepared"), root.join(".git/hooks")).expect("moved");
        });
        for path in paths.into_iter().chain([".git/hooks/post-checkout"]) {
            assert_ne!(read(root, path).as_deref(), Some("evil\n"), "{limits:?} {path}: {told:?}");
        }
    }
}

/// The files of a protected folder are restored, too, and those that are new in it are renamed.
#[test]
fn protected_folders_are_restored_and_those_beneath_them_are_found() {
    let world = make_files(&[
        ".claude/settings.json",
        ".husky/pre-commit",
        ".hg/hgrc",
        "rules/policy.toml",
        "x/.claude/a.md",
        ".windlass/runs.db",
    ]);
    let root = world.path();
    let (told, is_complete) = run_unmounted(root, GENEROUS, || {
        for path in [".claude/settings.json", ".husky/pre-commit", ".hg/hgrc", "rules/policy.toml"] {
            write(root, path, "evil\n");
        }
        for path in
            [".claude/hooks/new", "rules/new.toml", "x/.claude/repo/.git/config", ".claude/repo/agent.toml"]
        {
            write(root, path, "evil\n");
        }
        write(root, "x/.claude/new.md", "a package's own\n");
        write(root, ".windlass/runs.db", "the program's own\n");
    });
    assert!(is_complete);
    for path in [".claude/settings.json", ".husky/pre-commit", ".hg/hgrc", "rules/policy.toml"] {
        assert_eq!(read(root, path).as_deref(), Some("old\n"), "{path}: {told:?}");
    }
    for path in
        [".claude/hooks/new", "rules/new.toml", "x/.claude/repo/.git/config", ".claude/repo/agent.toml"]
    {
        assert_eq!(read(root, path), None, "{path}: {told:?}");
    }
    assert_eq!(read(root, "x/.claude/new.md").as_deref(), Some("a package's own\n"));
    assert_eq!(read(root, ".windlass/runs.db").as_deref(), Some("the program's own\n"));
}

/// A file that the command could not change belongs to whoever changed it meanwhile.
#[test]
fn changes_beneath_an_intact_mount_are_left_alone() {
    let world = make_files(&["agent.toml", ".idea/workspace.xml", "sub/agent.toml"]);
    let root = world.path();
    let files = ProtectedFiles::find(root, &[], GitAccess::ReadOnly, root, GENEROUS);
    write(root, ".idea/workspace.xml", "the editor's\n");
    write(root, ".idea/new.xml", "the editor's\n");
    write(root, "agent.toml", "the person's\n");
    // A command can move the folder of a mounted file away, and make another one.
    fs::rename(root.join("sub"), root.join("moved")).expect("moved");
    write(root, "sub/agent.toml", "evil\n");
    let told = files.restore(MountState::Mounted);
    assert_eq!(read(root, ".idea/workspace.xml").as_deref(), Some("the editor's\n"), "{told:?}");
    assert_eq!(read(root, ".idea/new.xml").as_deref(), Some("the editor's\n"), "{told:?}");
    assert_eq!(read(root, "agent.toml").as_deref(), Some("the person's\n"), "{told:?}");
    assert_eq!(read(root, "sub/agent.toml").as_deref(), Some("old\n"), "{told:?}");
}
