//! Commands on one or several things: each is told what became of it.

use std::collections::BTreeSet;
use std::io::{BufRead, IsTerminal, Write};

use serde::Serialize;
use uuid::Uuid;

use crate::exit::{Failure, PARTIAL, Result};
use crate::interrupt::Interrupt;
use crate::output::{self, Format};

/// What became of one of the things that were named.
pub(crate) struct Done<T> {
    /// For scripts.
    pub(crate) row: T,
    /// What `-o id` prints where it went well.
    pub(crate) id: Uuid,
    /// A line for people, or why not.
    pub(crate) result: Result<String>,
}

/// What became of all of them.
pub(crate) struct Bulk<T> {
    named: usize,
    done: Vec<Done<T>>,
    /// The ledger did not answer, or the command was asked to end: the rest was not tried.
    stopped: Option<Failure>,
}

impl<T: Serialize> Bulk<T> {
    /// Does `act` for one batch after the other, until the ledger does not answer or the command is
    /// asked to end: what was done before that must be told. A batch is never left in the middle, for
    /// then nobody would know what became of it. Answers stand in the order of the batch.
    pub(crate) async fn run(
        interrupt: &Interrupt,
        ids: &[Uuid],
        batch: usize,
        mut act: impl AsyncFnMut(&[Uuid]) -> Result<Vec<Done<T>>>,
    ) -> Self {
        let mut bulk = Self {
            named: ids.len(),
            done: Vec::with_capacity(ids.len()),
            stopped: None,
        };
        for batch in ids.chunks(batch) {
            if let Some(failure) = interrupt.failure("interrupted: the others were not tried") {
                bulk.stopped = Some(failure);
                break;
            }
            match act(batch).await {
                Ok(done) => bulk.done.extend(done),
                Err(failure) => {
                    bulk.stopped = Some(failure);
                    break;
                }
            }
        }
        bulk
    }

    /// [`Self::run`] for one after the other.
    pub(crate) async fn run_each(
        interrupt: &Interrupt,
        ids: &[Uuid],
        mut act: impl AsyncFnMut(Uuid) -> Result<Done<T>>,
    ) -> Self {
        let one = async |batch: &[Uuid]| {
            let mut done = Vec::with_capacity(1);
            for id in batch {
                done.push(act(*id).await?);
            }
            Ok(done)
        };
        Self::run(interrupt, ids, 1, one).await
    }

    /// What was done, to be amended.
    pub(crate) fn done_mut(&mut self) -> &mut [Done<T>] {
        &mut self.done
    }

    /// Prints what went well and answers with what did not: one failure as itself, several as
    /// one with their common exit code, else [`PARTIAL`]; of a command that was asked to end with the
    /// code that says so.
    pub(crate) fn finish(self, verb: &str, format: Format) -> Result<()> {
        let Self {
            named,
            done,
            stopped,
        } = self;
        let rows: Vec<_> = done.iter().map(|done| &done.row).collect();
        match format {
            Format::Json => output::json(&rows)?,
            Format::Jsonl => rows.into_iter().try_for_each(output::json_line)?,
            Format::Table | Format::Id => {}
        }
        let untried = named - done.len();
        let mut failures = Vec::new();
        for Done { id, result, .. } in done {
            match (result, format) {
                (Ok(_), Format::Id) => output::line(&id.to_string())?,
                (Ok(line), Format::Table) => output::line(&line)?,
                (Ok(_), Format::Json | Format::Jsonl) => {}
                (Err(failure), _) => failures.push((1, failure)),
            }
        }
        failures.extend(stopped.map(|failure| (untried, failure)));
        sum(failures, named, verb).map_or(Ok(()), Err)
    }
}

/// One failure for many, each with the number of things that it stands for.
fn sum(mut failures: Vec<(usize, Failure)>, named: usize, verb: &str) -> Option<Failure> {
    let first = failures.first()?.1.code;
    if named == 1 {
        return failures.pop().map(|(_, failure)| failure);
    }
    let alike = failures.iter().all(|(_, failure)| failure.code == first);
    let failed: usize = failures.iter().map(|(count, _)| count).sum();
    let mut interrupts = failures.iter().filter(|(_, one)| one.is_interrupt());
    let code = if let Some((_, interrupt)) = interrupts.next() {
        interrupt.code
    } else if alike && failed == named {
        first
    } else {
        PARTIAL
    };
    let said: Vec<_> = failures
        .into_iter()
        .map(|(_, failure)| failure.message)
        .collect();
    let message = format!(
        "{failed} of {named} were not {verb}:\n  {}",
        said.join(";\n  ")
    );
    Some(Failure {
        lines: true,
        ..Failure::new(code, message)
    })
}

/// The ids in their order, each once.
pub(crate) fn each_once(ids: &[Uuid]) -> Vec<Uuid> {
    let mut seen = BTreeSet::new();
    let once = ids.iter().copied().filter(|id| seen.insert(*id));
    once.collect()
}

/// Says what would be done and waits for a yes; without a terminal `--yes` is needed.
pub(crate) fn confirm(what: &str, yes: bool) -> Result<()> {
    if yes {
        output::note(what);
        return Ok(());
    }
    let mut err = std::io::stderr().lock();
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(Failure::usage(format!("{what}: add --yes to do it")));
    }
    write!(err, "{what}. Go on? [y/N] ")?;
    err.flush()?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    if matches!(answer.trim(), "y" | "Y" | "yes") {
        Ok(())
    } else {
        Err(Failure::usage("nothing was done"))
    }
}

#[cfg(test)]
mod tests {
    use super::sum;
    use crate::exit::{Failure, INTERRUPTED, NOT_FOUND, PARTIAL, REFUSED, UNREACHABLE};

    #[test]
    fn the_exit_code_is_the_common_one_or_partial() {
        let failed = |codes: &[u8]| {
            codes
                .iter()
                .map(|code| (1, Failure::new(*code, "x")))
                .collect()
        };
        let code = |codes: &[u8], total| sum(failed(codes), total, "done").map(|f| f.code);
        assert_eq!(code(&[], 3), None);
        assert_eq!(code(&[NOT_FOUND], 1), Some(NOT_FOUND));
        assert_eq!(code(&[REFUSED, REFUSED], 2), Some(REFUSED));
        assert_eq!(code(&[REFUSED, NOT_FOUND], 2), Some(PARTIAL));
        assert_eq!(code(&[REFUSED], 2), Some(PARTIAL));
        assert_eq!(code(&[INTERRUPTED], 2), Some(INTERRUPTED));
        assert_eq!(code(&[REFUSED, INTERRUPTED], 9), Some(INTERRUPTED));
        let stopped = sum(vec![(2, Failure::new(UNREACHABLE, "away"))], 3, "done");
        let stopped = stopped.map(|failure| (failure.code, failure.message));
        let said = "2 of 3 were not done:\n  away".to_owned();
        assert_eq!(stopped, Some((PARTIAL, said)));
    }
}
