//! No part of the system decides by the wall clock of its host.
//!
//! `clippy.toml` bans the calls by type; this looks at the text, so that an exception made
//! somewhere is seen here, too. The few places that read it are named with their reason.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};

/// Where the wall clock is read, and why no decision hangs on it.
const READERS: &[(&str, &str)] = &[
    (
        "telemetry/src/spans/mod.rs",
        "times of spans, and the metric that warns of a skewed host",
    ),
    (
        "store/src/sqlite/clock.rs",
        "proposes a step of the stored anchor, taken over after 60 s",
    ),
    ("cli/src/main.rs", "the preview of instants for people"),
];

const CALLS: [&str; 4] = [
    "SystemTime::now(",
    "Utc::now(",
    "Local::now(",
    "ClockId::Realtime",
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if !["target", ".git", ".tools", "tests", "examples", "sandbox"]
                .contains(&name.as_str())
            {
                sources(&path, found);
            }
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
}

/// Lines of code that read it, in files that are not named above.
fn readers() -> (Vec<String>, Vec<String>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut paths = Vec::new();
    sources(root, &mut paths);
    assert!(paths.len() > 150, "{} files", paths.len());
    let (mut readers, mut others) = (Vec::new(), Vec::new());
    for path in paths {
        let name = path.strip_prefix(root).unwrap().display().to_string();
        let text = std::fs::read_to_string(&path).unwrap();
        // What stands below is only run by tests.
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        let lines = code
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        for line in lines.filter(|line| CALLS.iter().any(|call| line.contains(call))) {
            if READERS.iter().any(|(reader, _)| *reader == name) {
                readers.push(name.clone());
            } else {
                others.push(format!("{name}: {}", line.trim()));
            }
        }
    }
    readers.dedup();
    (readers, others)
}

#[test]
fn p67_no_decision_reads_the_hosts_wall_clock() {
    let (readers, others) = readers();
    assert_eq!(
        others,
        Vec::<String>::new(),
        "name them above with a reason"
    );
    assert_eq!(readers.len(), READERS.len(), "{readers:?}");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let bans = std::fs::read_to_string(root.join("clippy.toml")).unwrap();
    for banned in ["std::time::SystemTime::now", "chrono::Utc::now"] {
        assert!(bans.contains(banned), "{banned}");
    }
}
