//! The README shows programs that compile: what stands there is the file itself.

use std::path::Path;

const MARK: &str = "<!-- examples/src/bin/";

#[test]
fn the_readme_shows_the_examples_as_they_are() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(here.join("../README.md")).expect("README.md");
    let mut compared = 0;
    for block in readme.split(MARK).skip(1) {
        let (name, rest) = block.split_once(" -->").expect("the mark is closed");
        let code = rest
            .split_once("```rust\n")
            .expect("a block follows the mark")
            .1;
        let shown = code.split_once("```").expect("the block is closed").0;
        let file = std::fs::read_to_string(here.join("src/bin").join(name)).expect(name);
        assert_eq!(shown.trim(), file.trim(), "README.md differs from {name}");
        assert!(
            file.lines().count() <= 40,
            "{name} has grown beyond what a README shows"
        );
        compared += 1;
    }
    assert!(compared >= 1, "README.md marks no example");
}
