use super::*;
use crate::args::CliArgs;
use clap::Parser;

#[test]
fn a_panic_is_an_apology_and_an_exit_code_of_its_own() {
    let args = CliArgs::try_parse_from(["windlass", "runs"]).expect("these are words of the command");
    let term = Terminal::from_args(&args);
    let exit = run_with_panic_report(&term, || panic!("the pawl slipped"));
    assert_eq!(exit.expect("it is no error of the person's"), CommandExit::InternalError);
}
