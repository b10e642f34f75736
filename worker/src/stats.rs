//! What a worker has done: counted in memory, and through the process's meter.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bellwether_schemas::state::DeadReason;
use bellwether_schemas::state::State;
use bellwether_store::executions::Refusal;
use bellwether_telemetry::metrics::{counters, job, outcome, reason};

/// Counts since the worker was built.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Messages received.
    pub received: u64,
    /// Executions claimed.
    pub claimed: u64,
    /// Claims refused for good, by kind (`terminal`, `held`, `known_key`, …).
    pub refused: BTreeMap<&'static str, u64>,
    /// Claims that the ledger could not decide yet; the broker's redelivery asks again.
    pub busy: u64,
    /// Messages handed back because their job or wire version is unknown here.
    pub deferred: u64,
    /// Submitted messages that can never run.
    pub dead_letters: u64,
    /// Messages never answered: of another ledger, or without our headers.
    pub foreign: u64,
    /// Messages given up unclaimed; the broker delivers them again.
    pub forgotten: u64,
    /// Results that the ledger accepted, by the outcome sent (`complete`, `retry`, …).
    pub committed: BTreeMap<&'static str, u64>,
    /// Results refused because the claim was another's by then.
    pub fenced: u64,
    /// Results that the ledger refuses for their own sake; see the log.
    pub unstorable: u64,
    /// Handlers that did not succeed although their own transaction
    /// ([`Context::commit_in`](crate::Context::commit_in)) had committed: the row says
    /// `succeeded`, the log says what they said.
    pub contradicted: u64,
    /// Sessions lost or given up.
    pub sessions_lost: u64,
    /// Messages that the broker may send now: above zero, the worker is ready for work.
    pub asked: usize,
    /// Handlers that run now.
    pub running: usize,
    /// Received or claimed, not started, now.
    pub waiting: usize,
    /// Results not committed yet, now.
    pub uncommitted: usize,
    /// Handlers that run on now although their time is over.
    pub leaked: usize,
}

/// The words of [`Stats::refused`].
const REFUSALS: [&str; 10] = [
    "terminal",
    "held",
    "no_such_execution",
    "cancel_requested",
    "not_due",
    "past_start_deadline",
    "budget_used_up",
    "known_key",
    "recorded",
    "stale",
];

const fn refusal_at(refusal: Refusal) -> usize {
    match refusal {
        Refusal::Terminal(_) => 0,
        Refusal::Held => 1,
        Refusal::NoSuchExecution => 2,
        Refusal::CancelRequested => 3,
        Refusal::NotDue => 4,
        Refusal::PastStartDeadline => 5,
        Refusal::BudgetUsedUp => 6,
        Refusal::KnownKey => 7,
        Refusal::Recorded => 8,
        Refusal::Stale => 9,
    }
}

/// The words of [`Stats::committed`]: those of `Outcome::as_str`.
const OUTCOMES: [&str; 6] = ["complete", "snooze", "cancel", "fail", "retry", "release"];

/// One number that only rises.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, many: usize) {
        self.0.fetch_add(many as u64, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters behind [`Stats`].
#[derive(Debug, Clone, Default)]
pub(crate) struct Counted(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    received: Count,
    claimed: Count,
    refused: [Count; REFUSALS.len()],
    busy: Count,
    deferred: Count,
    dead_letters: Count,
    foreign: Count,
    forgotten: Count,
    committed: [Count; OUTCOMES.len()],
    fenced: Count,
    unstorable: Count,
    contradicted: Count,
    sessions_lost: Count,
}

impl Counted {
    pub(crate) fn received(&self) {
        self.0.received.add(1);
    }

    pub(crate) fn claimed(&self) {
        self.0.claimed.add(1);
        counters().claims.add(1, &[outcome("claimed")]);
    }

    pub(crate) fn refused(&self, refusal: Refusal) {
        let at = refusal_at(refusal);
        self.0.refused[at].add(1);
        counters().claims.add(1, &[outcome(REFUSALS[at])]);
    }

    pub(crate) fn busy(&self) {
        self.0.busy.add(1);
        counters().claims.add(1, &[outcome("busy")]);
    }

    pub(crate) fn deferred(&self) {
        self.0.deferred.add(1);
        counters().claims.add(1, &[outcome("deferred")]);
    }

    pub(crate) fn dead_letter(&self, why: DeadReason) {
        self.0.dead_letters.add(1);
        counters().dead_letters.add(1, &[reason(why.as_str())]);
    }

    pub(crate) fn foreign(&self) {
        self.0.foreign.add(1);
        counters().claims.add(1, &[outcome("foreign")]);
    }

    pub(crate) fn forgotten(&self, many: usize) {
        self.0.forgotten.add(many);
    }

    /// The ledger accepted `sent`; the row is in `state` now.
    pub(crate) fn committed(&self, name: &str, sent: &'static str, state: State) {
        if let Some(at) = OUTCOMES.iter().position(|word| *word == sent) {
            self.0.committed[at].add(1);
        }
        counters()
            .attempts
            .add(1, &[job(name), outcome(state.as_str())]);
    }

    pub(crate) fn fenced(&self, name: &str) {
        self.0.fenced.add(1);
        counters().commit_rejected.add(1, &[job(name)]);
    }

    pub(crate) fn unstorable(&self) {
        self.0.unstorable.add(1);
    }

    pub(crate) fn contradicted(&self, name: &str) {
        self.0.contradicted.add(1);
        counters().contradicted.add(1, &[job(name)]);
    }

    pub(crate) fn session_lost(&self) {
        self.0.sessions_lost.add(1);
    }

    /// The counts, with zeros where the present is told.
    pub(crate) fn stats(&self) -> Stats {
        let counts = &self.0;
        let named = |words: &[&'static str], counts: &[Count]| {
            words
                .iter()
                .zip(counts)
                .map(|(word, count)| (*word, count.get()))
                .filter(|(_, count)| *count > 0)
                .collect()
        };
        Stats {
            received: counts.received.get(),
            claimed: counts.claimed.get(),
            refused: named(&REFUSALS, &counts.refused),
            busy: counts.busy.get(),
            deferred: counts.deferred.get(),
            dead_letters: counts.dead_letters.get(),
            foreign: counts.foreign.get(),
            forgotten: counts.forgotten.get(),
            committed: named(&OUTCOMES, &counts.committed),
            fenced: counts.fenced.get(),
            unstorable: counts.unstorable.get(),
            contradicted: counts.contradicted.get(),
            sessions_lost: counts.sessions_lost.get(),
            ..Stats::default()
        }
    }
}
