//! What `#[job]` refuses at compile time, and what it says then.

#[test]
fn mistakes_are_compile_errors_with_a_remedy() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
