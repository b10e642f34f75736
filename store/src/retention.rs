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
//! it. A caller may bring an id of its own that begins with none: it lies more than a day ahead as a
//! rule, and the walk goes on there. It stays where it is when the batch is full and begins anew behind
//! the last id. No lock is waited for, and none is held but on rows that nobody changes any more, and on
//! the schedules whose history moves. Two sweeps at once delete nothing twice.
//!
//! A fire goes in one statement, but for the attempts of one that has more of them than a batch: these go
//! first, from the oldest on, and `attempts_gone` of its executions says how many.

use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::Result;

/// Terms go only while fewer fires than this are older than they: what names them is read at once.
pub(crate) const NAMED_MAX: u32 = 10_000;

/// Executions of which one call reads what sessions they name.
pub(crate) fn naming_max(limit: u32) -> i64 {
    i64::from(limit.max(1)).saturating_mul(20)
}

/// Some ended sessions, and how far the look for what names them has come. Nothing begins to name a
/// session that has ended, so what one look has passed needs no other.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unnamed {
    /// Those that nothing has been found to name; none = others are to be looked for.
    pub(crate) sessions: Vec<Uuid>,
    /// The execution that was looked at last.
    pub(crate) after: Uuid,
    /// The session behind which the next ones are, and when it ended; none = the first are next.
    pub(crate) behind: Option<(DateTime<Utc>, Uuid)>,
}

impl Unnamed {
    /// Looks at these next; `limit` were asked for.
    pub(crate) fn of(ended: &[(DateTime<Utc>, Uuid)], limit: u32) -> Self {
        let full = ended.len() >= limit as usize;
        Self {
            sessions: ended.iter().map(|(_, id)| *id).collect(),
            after: Uuid::nil(),
            behind: ended.last().copied().filter(|_| full),
        }
    }

    /// Goes on with what is left of them after a look. `last` = the execution looked at last; none =
    /// there was none behind it. Answers those that may go.
    pub(crate) fn looked(&mut self, left: Vec<Uuid>, last: Option<Uuid>) -> Vec<Uuid> {
        if let Some(last) = last.filter(|_| !left.is_empty()) {
            self.sessions = left;
            self.after = last;
            Vec::new()
        } else {
            self.sessions.clear();
            self.after = Uuid::nil();
            left
        }
    }

    /// Where the next call goes on; none = it begins anew.
    pub(crate) fn unfinished(self) -> Option<Self> {
        (!self.sessions.is_empty() || self.behind.is_some()).then_some(self)
    }
}

/// What fires and executions leave behind, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftover {
    /// Tombstones of schedules of which nothing is left, with their ranges and timings.
    Schedules,
    /// Refused results of which the execution is gone.
    RefusedResults,
    /// Dead letters that a person has looked after.
    DeadLetters,
    /// Sessions that ended and that nothing names: two days later.
    Sessions,
    /// Terms that ended and that no fire names.
    Terms,
}

impl Leftover {
    /// All kinds.
    pub const ALL: [Self; 5] = [
        Self::Schedules,
        Self::RefusedResults,
        Self::DeadLetters,
        Self::Sessions,
        Self::Terms,
    ];
}

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

    /// All rows.
    pub fn rows(&self) -> u64 {
        self.by_kind().iter().map(|(_, rows)| rows).sum()
    }
}

/// Retention.
#[async_trait::async_trait]
pub trait Retention {
    /// Fires that ended longer than `retention` ago. Looks at `limit` executions, behind those of the
    /// call before, and deletes what had that many executions and past attempts in all, but at least
    /// one whole fire; a fire with more than `limit` past attempts loses that many of them and goes later.
    /// `more` = the walk has not reached the end of what is old; the call after that end begins with
    /// the oldest again.
    async fn forget_fires(&self, retention: Duration, limit: u32) -> Result<Forgotten>;

    /// What is left over of that kind, and was resolved or ended longer than `retention` ago. At most
    /// `limit` rows, ranges and timings of tombstones apart; `more` = there may be others. To be called
    /// when [`forget_fires`](Self::forget_fires) has reached its end; each kind by itself, so that
    /// one that fails keeps no other.
    async fn forget_leftovers(
        &self,
        kind: Leftover,
        retention: Duration,
        limit: u32,
    ) -> Result<Forgotten>;
}
