//! The README shows programs that compile: what stands there is the file itself.

use std::path::Path;

const MARK: &str = "<!-- examples/";

#[test]
fn the_readme_shows_the_examples_as_they_are() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(here.join("../README.md")).unwrap();
    let mut compared = 0;
    for block in readme.split(MARK).skip(1) {
        let (name, rest) = block.split_once(" -->\n```").unwrap();
        let code = rest.split_once('\n').unwrap().1;
        let shown = code.split_once("```").unwrap().0;
        let file = std::fs::read_to_string(here.join(name)).unwrap();
        assert_eq!(shown.trim(), file.trim(), "README.md differs from {name}");
        assert!(
            file.lines().count() <= 50,
            "{name} has grown beyond what a README shows"
        );
        compared += 1;
    }
    assert!(compared >= 1, "README.md marks no example");
    let length = readme.lines().count();
    assert!(length <= 250, "README.md has grown to {length} lines");
}

/// Every file that the README points to is there.
#[test]
fn the_readme_points_to_files_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    let links: Vec<_> = readme
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(link, _)| link.split('#').next().unwrap_or(link))
        .filter(|link| !link.is_empty() && !link.contains("://"))
        .collect();
    assert!(links.len() > 10, "{links:?}");
    for link in links {
        assert!(root.join(link).exists(), "README.md points to {link}");
    }
}
