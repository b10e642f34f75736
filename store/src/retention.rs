//! Retention: what has ended long ago is deleted, so that the ledger's size follows its load and
//! not its age.
//!
//! # What goes
//!
//! A **fire** with all its executions, their attempts, verdicts and refused results, once each of
//! them ended longer ago than the retention. What has no row of a fire (a one-shot, a submitted
//! message, a retry) goes likewise. Never one of which an execution
//!
//! * is not terminal: waits, runs, is held or `unknown`;
//! * belongs to an operation with a retry that is not old itself: an operation goes from its oldest
//!   member on, so that nothing that is left can be repeated more often than before;
//! * has a key that is not forgotten yet: a key never outlives its execution;
//! * has an outbox row, or a dead letter that no person has looked after;
//!
//! nor one that a held fire waits behind.
//!
//! Deleting an instant of a schedule moves the schedule's `history_from` up to it in the same
//! transaction; ranges and timings wholly before that go with it. So the history after
//! `history_from` is without gaps at any moment ([`crate::audit`], law 2), and what has to stay from
//! before it stays as a row outside of it.
//!
//! Then what is left over: refused results without an execution, dead letters by the time a
//! person looked after them, tombstones of schedules without fires, sessions and terms that no row
//! names any more.
//!
//! # How
//!
//! Ids begin with an instant that lies before the end of what they name, so one walk of the key over what
//! is older than the retention meets all that can go, and no index is written by anybody else for
//! it. A walk stays where it is when the batch is full and begins anew behind the last old id. No lock
//! is waited for, and none is held but on rows that nobody changes any more, and on the schedules
//! whose history moves. Two sweeps at once delete nothing twice.

use std::time::Duration;

use crate::Result;

/// Sessions and terms go only while fewer executions, or fires, than this are older than they: what
/// names them is read at once.
pub(crate) const NAMED_MAX: u32 = 10_000;

/// Rows that a call has deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// Fires of schedules; a one-shot and a retry live in their execution alone.
    pub fires: u64,
    /// Executions.
    pub executions: u64,
    /// Superseded attempts.
    pub attempts: u64,
    /// Verdicts on unknown executions.
    pub verdicts: u64,
    /// Results that the fence had refused.
    pub refused_results: u64,
    /// Ranges of instants that did not fire.
    pub non_fires: u64,
    /// Timings of schedules as they were before an edit.
    pub timings: u64,
    /// Dead letters that a person had looked after.
    pub dead_letters: u64,
    /// Tombstones of schedules.
    pub schedules: u64,
    /// Worker sessions.
    pub sessions: u64,
    /// Terms of leadership.
    pub terms: u64,
    /// Whether there may be more to delete at once.
    pub more: bool,
}

impl Forgotten {
    /// The rows by the kind that names them in metrics.
    pub const fn by_kind(&self) -> [(&'static str, u64); 11] {
        [
            ("fire", self.fires),
            ("execution", self.executions),
            ("attempt", self.attempts),
            ("verdict", self.verdicts),
            ("refused_result", self.refused_results),
            ("non_fire", self.non_fires),
            ("timing", self.timings),
            ("dead_letter", self.dead_letters),
            ("schedule", self.schedules),
            ("session", self.sessions),
            ("term", self.terms),
        ]
    }

    /// Whether one of what [`Retention::forget_leftovers`] limits came to `limit`.
    pub(crate) fn any_reached(&self, limit: u32) -> bool {
        let limited = [
            self.schedules,
            self.refused_results,
            self.dead_letters,
            self.sessions,
            self.terms,
        ];
        limited.iter().any(|rows| *rows >= u64::from(limit.max(1)))
    }

    /// All rows.
    pub fn rows(&self) -> u64 {
        self.by_kind().iter().map(|(_, rows)| rows).sum()
    }
}

/// Retention.
#[async_trait::async_trait]
pub trait Retention {
    /// Fires that ended longer than `retention` ago. Looks at `limit` executions, behind those of the
    /// call before, and deletes as many, but at least one whole fire. `more` = the walk has not
    /// reached the end of what is old; the call after that end begins with the oldest again.
    async fn forget_fires(&self, retention: Duration, limit: u32) -> Result<Forgotten>;

    /// What fires and executions leave behind, and what was resolved or ended, longer than `retention`
    /// ago; sessions two days later. At most `limit` rows of each kind, ranges and timings of
    /// tombstones apart; `more` = a kind had that many. To be called when
    /// [`forget_fires`](Self::forget_fires) has reached its end.
    async fn forget_leftovers(&self, retention: Duration, limit: u32) -> Result<Forgotten>;
}
