//! Every misuse of a macro has an error that points at the author's own token and says what to do.

#[test]
fn misuse_is_explained() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
