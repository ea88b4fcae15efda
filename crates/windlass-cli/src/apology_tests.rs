use super::*;
use crate::args::Args;
use clap::Parser;

#[test]
fn a_panic_is_an_apology_and_an_exit_code_of_its_own() {
    let args = Args::try_parse_from(["windlass", "runs"]).expect("these are words of the command");
    let term = Term::of(&args);
    let exit = instead_of_a_panic(&term, || panic!("the pawl slipped"));
    assert_eq!(exit.expect("it is no error of the person's"), Exit::Defect);
}
