//! What the jobs under test write down themselves, apart from the ledger.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bellwether_client::Payload;
use serde::Serialize;
use uuid::Uuid;

/// The payload of the job `patient` of the examples.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Work {
    /// How long each attempt takes, in milliseconds; the last one counts for all later ones.
    pub(crate) ms: Vec<u64>,
    /// So many first attempts panic.
    pub(crate) panics: u32,
    /// Does not stop when it is told to.
    pub(crate) deaf: bool,
    /// Blocks its thread.
    pub(crate) blocks: bool,
    /// In so many steps, with a checkpoint after each.
    pub(crate) steps: u32,
    /// Where to write down what happens.
    pub(crate) journal: Option<PathBuf>,
    /// A file without which no first attempt ends.
    pub(crate) gate: Option<PathBuf>,
}

/// What holds handlers until a test has seen what it wanted to see.
#[derive(Debug)]
pub(crate) struct Gate(PathBuf);

impl Gate {
    pub(crate) fn open(&self) {
        std::fs::write(&self.0, "").unwrap();
    }
}

impl Work {
    pub(crate) fn payload(&self) -> Payload {
        Payload::json(serde_json::to_vec(self).unwrap())
    }
}

/// One line of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Note {
    /// `start`, `end` or `cancelled`.
    pub(crate) what: String,
    pub(crate) execution: Uuid,
    pub(crate) generation: i64,
    pub(crate) shard: u32,
    /// The worker's process.
    pub(crate) pid: u32,
}

/// A file to which the handlers of all workers append.
#[derive(Debug, Clone)]
pub(crate) struct Journal(PathBuf);

impl Journal {
    pub(crate) fn new(folder: &Path, name: &str) -> Self {
        let path = folder.join(name);
        std::fs::write(&path, "").unwrap();
        Self(path)
    }

    /// Work that takes so many milliseconds at each attempt, the last one for all later ones.
    pub(crate) fn work(&self, ms: &[u64]) -> Work {
        Work {
            ms: ms.to_vec(),
            journal: Some(self.0.clone()),
            ..Work::default()
        }
    }

    /// Work whose first attempt ends when its gate is open and no sooner; later ones at once.
    pub(crate) fn gated(&self, gate: &str) -> (Work, Gate) {
        let mut work = self.work(&[0]);
        let gate = self.0.with_extension(gate);
        work.gate = Some(gate.clone());
        (work, Gate(gate))
    }

    pub(crate) fn notes(&self) -> Vec<Note> {
        let text = std::fs::read_to_string(&self.0).unwrap();
        text.split_inclusive('\n')
            .filter(|line| line.ends_with('\n'))
            .map(note)
            .collect()
    }

    /// The lines of one kind.
    pub(crate) fn all(&self, what: &str) -> Vec<Note> {
        self.notes()
            .into_iter()
            .filter(|note| note.what == what)
            .collect()
    }

    /// How often a handler was started.
    pub(crate) fn starts(&self) -> usize {
        self.all("start").len()
    }

    /// Fails unless exactly `executions` ran, each to its end exactly once and never more often
    /// than once under one claim.
    pub(crate) fn assert_each_ended_once(&self, executions: usize) {
        let count = |notes: Vec<Note>| {
            let mut times: BTreeMap<(Uuid, i64), usize> = BTreeMap::new();
            for note in notes {
                *times.entry((note.execution, note.generation)).or_default() += 1;
            }
            times
        };
        let starts = count(self.all("start"));
        let twice: Vec<_> = starts.iter().filter(|(_, times)| **times > 1).collect();
        assert!(twice.is_empty(), "claims that were run twice: {twice:?}");
        let ends = count(self.all("end"));
        let mut per_execution: BTreeMap<Uuid, usize> = BTreeMap::new();
        for ((execution, _), times) in ends {
            *per_execution.entry(execution).or_default() += times;
        }
        let wrong: Vec<_> = per_execution
            .iter()
            .filter(|(_, times)| **times != 1)
            .collect();
        assert!(
            wrong.is_empty(),
            "executions that ended more than once: {wrong:?}"
        );
        assert_eq!(per_execution.len(), executions, "executions that ended");
    }
}

fn note(line: &str) -> Note {
    let words: Vec<_> = line.split_whitespace().collect();
    let [what, execution, generation, shard, pid] = words.as_slice() else {
        panic!("a torn line in the journal: {line:?}");
    };
    Note {
        what: (*what).to_owned(),
        execution: execution.parse().unwrap(),
        generation: generation.parse().unwrap(),
        shard: shard.parse().unwrap(),
        pid: pid.parse().unwrap(),
    }
}
