//! The measurement of live sessions ends, with whole answers or with an error, and leaves nobody behind.

use std::process::Command;

fn live() -> Command {
    Command::new(env!("CARGO_BIN_EXE_live"))
}

/// The output comes to its end when everybody who could write to it is gone, the server included.
#[test]
fn it_measures_and_ends() {
    let output = live().args(["20", "1"]).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    for kind in ["Bare: 20 whole, 0 failed, 0 pieces lost", "Session: 20 whole, 0 failed, 0 pieces lost"] {
        assert!(said.contains(kind), "{said}");
    }
}

/// Once the server outlived a measurement that failed, and whoever read the errors waited for ever.
#[cfg(unix)]
#[test]
fn one_that_fails_ends_too() {
    // So few files that not everybody can connect.
    let script = format!("ulimit -n 40; exec {} 60 1", env!("CARGO_BIN_EXE_live"));
    let output = Command::new("sh").args(["-c", &script]).output().expect("it runs");
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(!output.stderr.is_empty());
}
