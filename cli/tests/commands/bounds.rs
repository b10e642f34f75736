//! A look at the sources: nothing that could grow or wait without end.

use std::path::{Path, PathBuf};

/// The crates of the product, from this one's folder.
const CRATES: [&str; 8] = [
    "../schemas",
    "../store",
    "../ticker",
    "../outbox-relay",
    "../worker",
    "../client",
    "../telemetry",
    ".",
];

pub(crate) fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            found.push(path);
        }
    }
}

/// The lines of production code, without comments: up to the tests at a file's end.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let tests = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let lines = text[..tests].lines().enumerate();
    lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
}

#[test]
fn r33_no_channel_is_unbounded_and_no_wait_stands_outside_the_table() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for part in CRATES {
        sources(&root.join(part).join("src"), &mut files);
    }
    let mut channels = 0;
    let mut wrong = Vec::new();
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        for (at, line) in code(&text) {
            channels += usize::from(line.contains("channel("));
            let unbounded = ["unbounded_channel", "UnboundedSender", "mpsc::unbounded"];
            let std_unbounded = line.contains("std::sync::mpsc::channel");
            if std_unbounded || unbounded.iter().any(|word| line.contains(word)) {
                wrong.push(format!("{}:{}: {}", file.display(), at + 1, line.trim()));
            }
        }
    }
    assert!(
        files.len() > 200 && channels > 10,
        "{} files, {channels} channels",
        files.len()
    );
    assert!(wrong.is_empty(), "unbounded:\n{}", wrong.join("\n"));

    // The table of waits names what shows each, and nothing that does not exist.
    let page = std::fs::read_to_string(root.join("../docs/limits.md")).unwrap();
    let table = page.split("## Waits").nth(1).unwrap();
    let table = table.split("\n## ").next().unwrap();
    let rows: Vec<_> = table
        .lines()
        .filter(|line| line.starts_with("| "))
        .skip(1)
        .collect();
    assert!(rows.len() >= 12, "{rows:#?}");
    let metrics: String = ["counters", "gauges"]
        .map(|kind| root.join(format!("../telemetry/src/metrics/{kind}.rs")))
        .map(|path| std::fs::read_to_string(path).unwrap())
        .concat();
    for row in rows {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 3, "{row}");
        assert!(cells.iter().all(|cell| !cell.is_empty()), "{row}");
        for name in cells[2]
            .split('`')
            .filter(|word| word.starts_with("bellwether."))
        {
            assert!(
                metrics.contains(&format!("\"{name}\"")),
                "no instrument {name}"
            );
        }
    }
}

/// The faults that a test's name begins with: `p12_p69_…` has two.
fn faults_of(name: &str) -> Vec<String> {
    let is_number = |word: &&str| {
        let digits = word.strip_prefix('p');
        digits.is_some_and(|rest| rest.len() == 2 && rest.bytes().all(|b| b.is_ascii_digit()))
    };
    let words = name.split('_').filter(is_number);
    words.map(str::to_uppercase).collect()
}

#[test]
fn the_page_of_faults_lists_each_test_in_its_row_and_no_other() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&root).unwrap() {
        let path = entry.unwrap().path();
        if path.join("Cargo.toml").exists() {
            sources(&path, &mut files);
        }
    }
    let mut functions = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        functions.extend(text.lines().filter_map(|line| {
            let (_, rest) = line.split_once("fn ")?;
            Some(rest.split('(').next()?.to_owned())
        }));
    }
    let of_faults = functions.iter().filter(|name| !faults_of(name).is_empty());
    let tests: Vec<_> = of_faults.collect();
    assert!(tests.len() > 70, "{}", tests.len());
    let page = std::fs::read_to_string(root.join("docs/faults.md")).unwrap();
    let rows: Vec<_> = page
        .lines()
        .filter(|line| line.starts_with("| P"))
        .collect();
    let row = |number: &str| {
        let begin = format!("| {number} |");
        rows.iter().find(|row| row.starts_with(&begin))
    };
    for &name in &tests {
        for number in faults_of(name) {
            let listed = row(&number).is_some_and(|row| row.contains(&format!("`{name}`")));
            assert!(listed, "docs/faults.md, {number}: `{name}` is not there");
        }
    }
    // Those of JetStream have tests of any name.
    let reports: Vec<_> = page
        .lines()
        .filter(|line| line.starts_with("| J"))
        .collect();
    assert_eq!(reports.len(), 28);
    for row in rows.iter().chain(&reports) {
        let cell = row.trim_end_matches([' ', '|']).rsplit(" | ").next();
        let named: Vec<_> = cell.unwrap().split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "no test: {row}");
        for name in named {
            let is_there = functions.iter().any(|function| function == name);
            assert!(is_there, "there is no test {name}: {row}");
        }
    }
}
