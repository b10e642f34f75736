//! A look at the tests: no instrument that only claims to be raised.

use std::path::Path;

use crate::bounds::sources;

/// What no process can be made to do from outside, and the test that makes it happen in-process.
const ELSEWHERE: [(&str, &str); 1] = [
    // A supervised loop breaks by a fault of ours alone; there it is one that was put in.
    (
        "bellwether.loop.failures",
        "../ticker/tests/ticker/planning.rs",
    ),
];

/// The names in the first column of the page's tables.
fn documented(page: &str) -> Vec<&str> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let names = rows
        .filter_map(|row| row.split_once("` |"))
        .map(|(name, _)| name);
    names.collect()
}

/// A real role raises each instrument by a real cause, exports it, and a test reads it: else a page
/// of instruments proves no more than that somebody has thought of them.
#[test]
fn each_instrument_of_the_page_is_read_by_a_test_of_real_processes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("../docs/metrics.md")).unwrap();
    let names = documented(&page);
    assert!(names.len() > 45, "{names:?}");
    let mut files = Vec::new();
    sources(&root.join("tests"), &mut files);
    // This file names those that nothing reads.
    files.retain(|file| !file.ends_with("commands/instruments.rs"));
    let tests = files
        .iter()
        .map(|file| std::fs::read_to_string(file).unwrap());
    let tests: String = tests.collect();
    let reads = |text: &str, name: &str| text.contains(&format!("\"{name}\""));

    for (name, file) in ELSEWHERE {
        assert!(names.contains(&name), "{name} is no instrument");
        assert!(!reads(&tests, name), "{name} is read here: no exception");
        let there = std::fs::read_to_string(root.join(file)).unwrap();
        assert!(reads(&there, name), "{file} does not read {name}");
    }
    let excepted = |name: &str| ELSEWHERE.iter().any(|(one, _)| *one == name);
    let unread = names
        .iter()
        .filter(|name| !excepted(name) && !reads(&tests, name));
    let unread: Vec<_> = unread.collect();
    assert!(unread.is_empty(), "no test of cli/tests reads {unread:#?}");
}
