//! The demo without a terminal.

use std::process::Command;

#[test]
fn the_demo_runs_by_itself_and_pays_each_invoice_once() {
    let folder = tempfile::tempdir().expect("there is room");
    let state = tempfile::tempdir().expect("there is room");
    let demo = Command::new(env!("CARGO_BIN_EXE_windlass"))
        .args(["demo", "--yes"])
        .current_dir(folder.path())
        .env("XDG_STATE_HOME", state.path())
        .env_remove("WINDLASS_STORE")
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&demo.stdout).into_owned();
    let noted = String::from_utf8_lossy(&demo.stderr).into_owned();
    assert!(demo.status.success(), "{said}\n{noted}");
    assert!(said.contains("with kill -9"), "{said}");
    assert!(said.contains("each exactly once"), "{said}");
    assert!(noted.contains("had happened already, not done again"), "{noted}");
    let ledger = std::fs::read_to_string(folder.path().join("windlass-demo/bank/ledger.csv"));
    let ledger = ledger.expect("the bank has a book");
    for invoice in ["H-204", "P-77", "R-1931"] {
        assert_eq!(ledger.matches(invoice).count(), 1, "{ledger}");
    }
    let archived = std::fs::read_dir(folder.path().join("windlass-demo/paid")).expect("there is an archive");
    assert_eq!(archived.count(), 3);
}

#[test]
fn a_demo_in_a_pipe_says_that_a_payment_waits() {
    let folder = tempfile::tempdir().expect("there is room");
    let state = tempfile::tempdir().expect("there is room");
    let demo = || {
        Command::new(env!("CARGO_BIN_EXE_windlass"))
            .args(["demo"])
            .current_dir(folder.path())
            .stdin(std::process::Stdio::null())
            .env("XDG_STATE_HOME", state.path())
            .env_remove("WINDLASS_STORE")
            .output()
            .expect("it runs")
    };
    // A second demonstration begins anew, though the run has the same name.
    for _ in 0..2 {
        let demo = demo();
        let said = String::from_utf8_lossy(&demo.stdout).into_owned();
        assert_eq!(demo.status.code(), Some(3), "{said}");
        assert!(said.contains("waits for your decision"), "{said}");
    }
}
