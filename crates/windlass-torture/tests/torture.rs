//! A short crash test with every test run; `windlass-torture --kills N` runs a long one.

use std::process::Command;

#[test]
fn nothing_happens_twice_however_often_the_process_is_killed() {
    let out = Command::new(env!("CARGO_BIN_EXE_windlass-torture"))
        .args(["--kills", "40", "--seed", "7", "--folder", env!("CARGO_TARGET_TMPDIR")])
        .output()
        .expect("the program was built with this test");
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
    let last = said.lines().last().unwrap_or_default();
    assert!(last.starts_with("kills=40 ") && last.ends_with(" twice=0 lost=0 unfinished=0"), "{last}");
}
