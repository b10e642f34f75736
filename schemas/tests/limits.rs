//! The page of limits names every limit that all parts share.

#[test]
fn r81_every_shared_limit_stands_on_the_page() {
    let constants = include_str!("../src/limits.rs");
    let page = include_str!("../../docs/limits.md");
    let names: Vec<_> = constants
        .lines()
        .filter_map(|line| line.strip_prefix("pub const "))
        .filter_map(|rest| rest.split_once(':'))
        .map(|(name, _)| name)
        .collect();
    assert!(names.len() >= 8, "{names:?}");
    for name in names {
        assert!(page.contains(name), "docs/limits.md does not name {name}");
    }
}
