//! A process is killed while it changes a file. The file has the old or the new text, and the process that
//! recovers the run determines which one, without asking a person and without writing twice.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod support;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use support::open_workspace;
use tempfile::tempdir;
use windlass::prelude::*;
use windlass::store::{SqliteStore, Store};

const LEASE: Duration = Duration::from_secs(1);
/// Number of lines, chosen so that writing them takes a while.
const LINE_COUNT: usize = 100_000;

fn old_text() -> String {
    (0..LINE_COUNT).map(|n| format!("old line {n}\n")).collect()
}

/// The removed line. Its removal leaves no trace in the text, so the text alone is no evidence.
const REMOVED_LINE: &str = "old line 5000\n";

fn build_agent(folder: &Path, model: ScriptedModel) -> Agent {
    Agent::new("clerk").model(model).tools(open_workspace(&folder.join("work")).tools())
}

fn open_store(folder: &Path) -> Arc<dyn Store> {
    Arc::new(SqliteStore::open(folder.join("runs.db")).expect("a store"))
}

/// The program that the test below starts and kills.
#[test]
fn a_program_that_changes_a_file() {
    let Some(folder) = std::env::var_os("WINDLASS_TEST_FOLDER") else { return };
    let folder = Path::new(&folder);
    let version = std::env::var("WINDLASS_TEST_VERSION").expect("is told");
    let patch = json!({ "path": "a.txt", "version": version, "edits": [{ "old": REMOVED_LINE, "new": "" }] });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let model = ScriptedModel::new([
            ScriptedResponse::call("c1", "patch_file", patch),
            ScriptedResponse::text("done"),
        ]);
        let agent = build_agent(folder, model);
        let run = agent.run("Go.").run_id("run-1").store(open_store(folder)).lease_duration(LEASE);
        run.await.expect("it ends, unless it is killed");
    });
}

#[tokio::test]
async fn a_killed_change_happened_or_did_not_and_the_run_goes_on() {
    let (mut as_before, mut as_after) = (0, 0);
    // The rounds of a batch run concurrently, because each waits for a lease to expire.
    for batch in 0..2u64 {
        let mut rounds = tokio::task::JoinSet::new();
        for round in 0..3u64 {
            rounds
                .spawn(kill_and_recover(KillPoint::AfterTempFile(Duration::from_millis(batch * 3 + round))));
        }
        rounds.spawn(kill_and_recover(KillPoint::AfterRename));
        while let Some(found) = rounds.join_next().await {
            match found.expect("the round holds") {
                FileAfterCrash::OldText => as_before += 1,
                FileAfterCrash::NewText => as_after += 1,
            }
        }
    }
    println!("killed before the change took its place {as_before} times, after it {as_after} times");
    assert!(as_before > 0 && as_after > 0, "both are seen");
}

/// The text of the file after the kill.
enum FileAfterCrash {
    OldText,
    NewText,
}

/// The moment at which the process is killed.
enum KillPoint {
    /// This long after the temporary file appeared.
    AfterTempFile(Duration),
    /// As soon as the temporary file was renamed; the call may not be settled yet.
    AfterRename,
}

async fn kill_and_recover(moment: KillPoint) -> FileAfterCrash {
    let before = old_text();
    let after = before.replacen(REMOVED_LINE, "", 1);
    let folder = tempdir().expect("a folder");
    let work = folder.path().join("work");
    fs::create_dir(&work).expect("made");
    fs::write(work.join("a.txt"), &before).expect("written");
    let read =
        support::call_tool(&open_workspace(&work), "read_file", json!({ "path": "a.txt", "lines": 1 })).await;
    let mut program = Command::new(std::env::current_exe().expect("a test"))
        .args(["--exact", "a_program_that_changes_a_file"])
        .env("WINDLASS_TEST_FOLDER", folder.path())
        .env("WINDLASS_TEST_VERSION", support::parse_version(&read))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    wait_for_file_count(&work, 2, &mut program).await;
    match moment {
        KillPoint::AfterTempFile(delay) => tokio::time::sleep(delay).await,
        KillPoint::AfterRename => wait_for_file_count(&work, 1, &mut program).await,
    }
    program.kill().expect("can be killed");
    program.wait().expect("ends");

    let found = fs::read_to_string(work.join("a.txt")).expect("is there");
    assert!(found == before || found == after, "the file is torn");
    let written = fs::metadata(work.join("a.txt")).expect("is there").ino();

    tokio::time::sleep(LEASE * 2).await;
    let model = ScriptedModel::new([ScriptedResponse::text("done")]);
    let agent = build_agent(folder.path(), model.clone());
    let outcome = agent.recover("run-1", open_store(folder.path())).await.expect("it goes on");
    assert!(outcome.into_paused().is_none(), "nobody is asked: the disk knows");
    let told = model.requests().pop().map(|request| request.input_text().join("; "));
    assert!(fs::read_to_string(work.join("a.txt")).expect("is there") == after, "{told:?}");
    let now = fs::metadata(work.join("a.txt")).expect("is there").ino();
    assert_eq!(now == written, found == after, "what had happened is not done again");
    assert_eq!(fs::read_dir(&work).expect("a folder").count(), 1, "nothing is left beside the file");
    if found == before { FileAfterCrash::OldText } else { FileAfterCrash::NewText }
}

/// Waits until the folder has this number of files, or the program has ended.
async fn wait_for_file_count(work: &Path, files: usize, program: &mut std::process::Child) {
    for _ in 0..300_000 {
        if fs::read_dir(work).expect("a folder").count() == files {
            return;
        }
        if let Some(status) = program.try_wait().expect("can be asked") {
            assert!(status.success(), "it ended by itself, and not well: {status}");
            return;
        }
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    panic!("the program neither writes nor ends");
}
