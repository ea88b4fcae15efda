//! Folders with unreadable or unusual entries: these are reported, and the rest is indexed.

#![cfg(unix)]
#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use windlass_search::{Index, IndexingReport, SearchError, SearchSignals};

const FOLDER_VARIABLE: &str = "WINDLASS_TEST_LOCKED";

fn problem_reason(report: &IndexingReport, name: &str) -> String {
    let found = report.problems.iter().find(|problem| problem.path.ends_with(name));
    found.map(|problem| problem.reason.clone()).unwrap_or_default()
}

fn search_names(index: &Index, question: &str) -> Vec<String> {
    let found = index.search(question).signals(SearchSignals::Bm25Only).run().expect("searches");
    found.hits.into_iter().map(|hit| hit.file_name).collect()
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("is ours");
}

/// Entry point of the next test's child process, which lacks read permissions; does nothing without its variable.
#[test]
fn child_that_may_not_read_everything() {
    let Some(folder) = std::env::var_os(FOLDER_VARIABLE).map(PathBuf::from) else { return };
    let (docs, locked) = (folder.join("docs"), folder.join("docs/locked"));
    if fs::read_dir(&locked).is_ok() {
        println!("everything can be read here");
        return;
    }
    let index = Index::open(folder.join("locked.index")).expect("opens");
    let report = index.refresh().expect("runs");
    assert!(problem_reason(&report, "locked").contains("folder cannot be read"), "{report}");
    assert!(problem_reason(&report, "secret.txt").contains("cannot be read"), "{report}");
    assert_eq!((report.changed, report.removed), (1, 0), "{report}");
    assert_eq!(search_names(&index, "heron"), ["open.txt"], "what can be read is brought up to date");
    assert_eq!(
        search_names(&index, "zeppelin"),
        ["inside.txt"],
        "what could not be looked at stays as it was"
    );
    let report = index.add_path(docs.join("locked")).run().expect_err("is asked for by name");
    assert!(matches!(&report, SearchError::PathAccess { .. }), "{report}");
    println!("the child is content");
}

#[test]
fn what_may_not_be_read_is_named_and_the_rest_is_indexed() {
    let folder = tempfile::tempdir().expect("a folder");
    let docs = folder.path().join("docs");
    fs::create_dir_all(docs.join("locked")).expect("made");
    fs::write(docs.join("open.txt"), "the quiet lantern").expect("written");
    fs::write(docs.join("secret.txt"), "the secret valve").expect("written");
    fs::write(docs.join("locked/inside.txt"), "a zeppelin lands").expect("written");
    let index = Index::open(folder.path().join("locked.index")).expect("opens");
    assert_eq!(index.add_path(&docs).run().expect("runs").added, 3);
    fs::write(docs.join("open.txt"), "the quiet heron, and more of it").expect("written");
    fs::write(docs.join("secret.txt"), "the secret valve, and more of it").expect("written");
    set_mode(&docs.join("secret.txt"), 0);
    set_mode(&docs.join("locked"), 0);
    // Root bypasses file permissions, so the child runs without those capabilities.
    let exe = std::env::current_exe().expect("has a path");
    let rights = "-dac_override,-dac_read_search";
    let with_less = ["--bounding-set", rights, "--inh-caps", rights];
    let mut child = if fs::read_dir(docs.join("locked")).is_ok() {
        let mut child = Command::new("setpriv");
        child.args(with_less).arg(exe);
        child
    } else {
        Command::new(exe)
    };
    let output = child
        .args(["--exact", "child_that_may_not_read_everything", "--nocapture"])
        .env(FOLDER_VARIABLE, folder.path())
        .stderr(Stdio::inherit())
        .output();
    set_mode(&docs.join("locked"), 0o755);
    set_mode(&docs.join("secret.txt"), 0o644);
    let said = match output {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(error) => {
            let _ = writeln!(
                std::io::stderr(),
                "not shown: an unreadable folder, because `setpriv` does not run: {error}"
            );
            return;
        }
    };
    if said.contains("everything can be read here") {
        let _ = writeln!(
            std::io::stderr(),
            "not shown: an unreadable folder, because this user may read everything"
        );
        return;
    }
    assert!(said.contains("the child is content"), "{said}");
    // Files that become readable again are indexed.
    let report = index.refresh().expect("runs");
    assert!(report.problems.is_empty(), "{report}");
    assert_eq!(search_names(&index, "secret"), ["secret.txt"]);
}

#[test]
fn names_that_are_not_text_and_things_that_are_not_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let docs = folder.path().join("docs");
    let odd_folder = docs.join(OsStr::from_bytes(b"d\xff"));
    fs::create_dir_all(&odd_folder).expect("made");
    // Two names that differ only in bytes that are not UTF-8.
    fs::write(docs.join(OsStr::from_bytes(b"caf\xe9.txt")), "the first lantern").expect("written");
    fs::write(docs.join(OsStr::from_bytes(b"caf\xe8.txt")), "the second zeppelin").expect("written");
    fs::write(odd_folder.join("inside.txt"), "the third heron").expect("written");
    symlink(docs.join("nowhere"), docs.join("dangling")).expect("linked");
    symlink("/", docs.join("away")).expect("linked");
    let _socket = UnixListener::bind(docs.join("socket.txt")).expect("binds");
    let piped =
        Command::new("mkfifo").arg(docs.join("pipe.txt")).status().is_ok_and(|status| status.success());
    let index = Index::open(folder.path().join("odd.index")).expect("opens");
    let report = index.add_path(&docs).run().expect("runs");
    assert_eq!(report.added, 3, "{report}");
    assert!(
        problem_reason(&report, "dangling").contains("link")
            && problem_reason(&report, "away").contains("link"),
        "{report}"
    );
    assert!(problem_reason(&report, "socket.txt").contains("neither"), "{report}");
    assert!(
        !piped || problem_reason(&report, "pipe.txt").contains("neither"),
        "nobody waits for a pipe: {report}"
    );
    for word in ["lantern", "zeppelin", "heron"] {
        assert_eq!(search_names(&index, word).len(), 1, "{word}");
    }
    let again = index.refresh().expect("runs");
    assert_eq!((again.added, again.changed, again.unchanged, again.removed), (0, 0, 3, 0), "{again}");
    fs::remove_file(docs.join(OsStr::from_bytes(b"caf\xe8.txt"))).expect("removed");
    assert_eq!(index.refresh().expect("runs").removed, 1);
    assert_eq!((search_names(&index, "lantern").len(), search_names(&index, "zeppelin").len()), (1, 0));
    let error = index.add_path(&odd_folder).run().expect_err("could not be found again");
    assert!(error.to_string().contains("not UTF-8"), "{error}");
}

#[test]
fn files_that_go_and_grow_while_they_are_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let docs = folder.path().join("docs");
    fs::create_dir(&docs).expect("made");
    for at in 0..200 {
        fs::write(docs.join(format!("file{at:03}.txt")), format!("lantern number{at}")).expect("written");
    }
    let index = Index::open(folder.path().join("moving.index")).expect("opens");
    let (last, before_last) = (docs.join("file199.txt"), docs.join("file198.txt"));
    let mut bars = Vec::new();
    let report = index
        .add_path(&docs)
        .progress(|progress| {
            bars.push(progress.to_string());
            if progress.files_done == 1 {
                fs::remove_file(&last).expect("was there");
                fs::remove_file(&before_last).expect("was there");
                fs::create_dir(&before_last).expect("a folder in place of a file");
            }
        })
        .run()
        .expect("runs");
    assert_eq!(report.added, 198, "{report}");
    assert!(problem_reason(&report, "file199.txt").contains("cannot be read"), "{report}");
    assert!(problem_reason(&report, "file198.txt").contains("cannot be read"), "{report}");
    assert_eq!(bars.len(), 200);
    assert_eq!(bars[0], "[------------------------------]   0 %, 1 of 200 files, 0 of 0 MB");
    assert_eq!(bars[199], "[##############################] 100 %, 200 of 200 files, 0 of 0 MB");
    assert_eq!(search_names(&index, "number7"), ["file007.txt"]);
    let later = index.refresh().expect("runs");
    assert_eq!((later.unchanged, later.problems.len()), (198, 0), "{later}");
}
