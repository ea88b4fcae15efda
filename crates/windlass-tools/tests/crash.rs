//! A process is killed while it changes a file: the file is the old one or the new one, and whoever goes on
//! with the run knows which, without asking anybody and without changing it twice.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

mod support;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use support::open;
use tempfile::tempdir;
use windlass::prelude::*;
use windlass::{SqliteStore, Store};

const LEASE: Duration = Duration::from_secs(1);
/// Long enough that writing it takes a while.
const LINES: usize = 100_000;

fn before() -> String {
    (0..LINES).map(|n| format!("old line {n}\n")).collect()
}

/// The text that is taken away leaves nothing by which it could be seen that it was there.
const TAKEN: &str = "old line 5000\n";

fn agent(folder: &Path, model: ScriptedModel) -> Agent {
    Agent::new("clerk").model(model).tools(open(&folder.join("work")).tools())
}

fn store(folder: &Path) -> Arc<dyn Store> {
    Arc::new(SqliteStore::open(folder.join("runs.db")).expect("a store"))
}

/// The process that is killed: see below.
#[test]
fn a_program_that_changes_a_file() {
    let Some(folder) = std::env::var_os("WINDLASS_TEST_FOLDER") else { return };
    let folder = Path::new(&folder);
    let version = std::env::var("WINDLASS_TEST_VERSION").expect("is told");
    let patch = json!({ "path": "a.txt", "version": version, "edits": [{ "old": TAKEN, "new": "" }] });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let model = ScriptedModel::new([Reply::call("c1", "patch_file", patch), Reply::text("done")]);
        let agent = agent(folder, model);
        let run = agent.run("Go.").run_id("run-1").store(store(folder)).lease(LEASE);
        run.await.expect("it ends, unless it is killed");
    });
}

#[tokio::test]
async fn a_killed_change_happened_or_did_not_and_the_run_goes_on() {
    let (mut as_before, mut as_after) = (0, 0);
    // Some at once, for each waits for the end of a lease.
    for batch in 0..2u64 {
        let mut rounds = tokio::task::JoinSet::new();
        for round in 0..3u64 {
            rounds.spawn(kill_and_go_on(Moment::AfterItStands(Duration::from_millis(batch * 3 + round))));
        }
        rounds.spawn(kill_and_go_on(Moment::InPlace));
        while let Some(found) = rounds.join_next().await {
            match found.expect("the round holds") {
                Found::Before => as_before += 1,
                Found::After => as_after += 1,
            }
        }
    }
    println!("killed before the change took its place {as_before} times, after it {as_after} times");
    assert!(as_before > 0 && as_after > 0, "both are seen");
}

/// What a killed process left.
enum Found {
    Before,
    After,
}

/// When a process is killed.
enum Moment {
    /// So long after the new text began to stand beside the old one.
    AfterItStands(Duration),
    /// As soon as the new text has taken its place: the call may not be settled yet.
    InPlace,
}

async fn kill_and_go_on(moment: Moment) -> Found {
    let before = before();
    let after = before.replacen(TAKEN, "", 1);
    let folder = tempdir().expect("a folder");
    let work = folder.path().join("work");
    fs::create_dir(&work).expect("made");
    fs::write(work.join("a.txt"), &before).expect("written");
    let read = support::call(&open(&work), "read_file", json!({ "path": "a.txt", "lines": 1 })).await;
    let mut program = Command::new(std::env::current_exe().expect("a test"))
        .args(["--exact", "a_program_that_changes_a_file"])
        .env("WINDLASS_TEST_FOLDER", folder.path())
        .env("WINDLASS_TEST_VERSION", support::version(&read))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    wait_for(&work, 2, &mut program).await;
    match moment {
        Moment::AfterItStands(delay) => tokio::time::sleep(delay).await,
        Moment::InPlace => wait_for(&work, 1, &mut program).await,
    }
    program.kill().expect("can be killed");
    program.wait().expect("ends");

    let found = fs::read_to_string(work.join("a.txt")).expect("is there");
    assert!(found == before || found == after, "the file is torn");
    let written = fs::metadata(work.join("a.txt")).expect("is there").ino();

    tokio::time::sleep(LEASE * 2).await;
    let model = ScriptedModel::new([Reply::text("done")]);
    let agent = agent(folder.path(), model.clone());
    let outcome = agent.recover("run-1", store(folder.path())).await.expect("it goes on");
    assert!(outcome.paused().is_none(), "nobody is asked: the disk knows");
    let told = model.requests().pop().map(|request| request.input_text().join("; "));
    assert!(fs::read_to_string(work.join("a.txt")).expect("is there") == after, "{told:?}");
    let now = fs::metadata(work.join("a.txt")).expect("is there").ino();
    assert_eq!(now == written, found == after, "what had happened is not done again");
    assert_eq!(fs::read_dir(&work).expect("a folder").count(), 1, "nothing is left beside the file");
    if found == before { Found::Before } else { Found::After }
}

/// Waits until there are so many files.
async fn wait_for(work: &Path, files: usize, program: &mut std::process::Child) {
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
