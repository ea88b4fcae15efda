//! Every misuse of a macro produces an error that points at the author's token and says how to fix it.

#[test]
fn misuse_is_explained() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
