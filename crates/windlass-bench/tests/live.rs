//! The load test of realtime sessions terminates, with complete responses or an error, and leaves no process
//! behind.

use std::process::Command;

fn live_command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_live"))
}

/// The output ends only when every process that holds it has exited, including the server.
#[test]
fn it_measures_and_ends() {
    let output = live_command().args(["20", "1"]).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    for kind in ["Bare: 20 whole, 0 failed, 0 pieces lost", "Session: 20 whole, 0 failed, 0 pieces lost"] {
        assert!(said.contains(kind), "{said}");
    }
}

/// Regression test: the server outlived a failed measurement, and the reader of the errors waited forever.
#[cfg(unix)]
#[test]
fn one_that_fails_ends_too() {
    // The file limit is too low for all clients to connect.
    let script = format!("ulimit -n 40; exec {} 60 1", env!("CARGO_BIN_EXE_live"));
    let output = Command::new("sh").args(["-c", &script]).output().expect("it runs");
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(!output.stderr.is_empty());
}
