//! Attacks on the built-in tools, each of which succeeded once. Every case runs the attack as a model, a command, a
//! page or a file would, and fails if the attack has an effect.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

#[path = "../support/mod.rs"]
mod support;

mod commands;
mod decoders;
mod files;
mod policy;
mod protected;

use std::io::Write;

/// Reports a part that this machine cannot show.
fn report_skipped(what: &str) {
    let _ = writeln!(std::io::stderr(), "not shown: {what}");
}

/// Returns true if a program of this machine can be run, and reports the skipped part otherwise.
fn has_program(program: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()));
    if !found {
        report_skipped(&format!("there is no `{program}`"));
    }
    found
}
