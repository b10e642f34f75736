//! Stamps that the loops leave, so that a stuck one costs the term and shows.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::BootTime;

/// A supervised loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Loop {
    /// Bids, renews, steps down.
    Leadership,
    /// Plans inside a term; stands by otherwise.
    Planning,
    /// Looks at the ledger; lost sessions and what they ran.
    Losses,
    /// Due rows that are not dispatched.
    Dispatch,
    /// Held fires, and fires that others replace.
    Held,
    /// Start deadlines.
    Starts,
    /// UNKNOWN that grew old.
    Unknown,
    /// Idempotency keys past their retention.
    Keys,
    /// Schedules that no code defines any more.
    Definitions,
    /// What ended longer ago than the retention.
    History,
    /// What is measured; nothing depends on it.
    Gauges,
}

/// The stamps of all loops.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    turned: [AtomicU64; Loop::ALL.len()],
    succeeded: [AtomicU64; Loop::ALL.len()],
    /// Whether it ever did; the stamps of a start are a credit.
    proved: [AtomicBool; Loop::ALL.len()],
}

// === impl Loop ===

impl Loop {
    pub(crate) const ALL: [Self; 11] = [
        Self::Leadership,
        Self::Planning,
        Self::Losses,
        Self::Dispatch,
        Self::Held,
        Self::Starts,
        Self::Unknown,
        Self::Keys,
        Self::Definitions,
        Self::History,
        Self::Gauges,
    ];

    /// The name in logs, errors and stats.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Leadership => "leadership",
            Self::Planning => "planning",
            Self::Losses => "losses",
            Self::Dispatch => "dispatch",
            Self::Held => "held",
            Self::Starts => "starts",
            Self::Unknown => "unknown",
            Self::Keys => "keys",
            Self::Definitions => "definitions",
            Self::History => "history",
            Self::Gauges => "gauges",
        }
    }

    /// What it does, as a verb phrase that fits "failed to …".
    pub(crate) const fn purpose(self) -> &'static str {
        match self {
            Self::Leadership => "look at the partitions",
            Self::Planning => "plan what is due",
            Self::Losses => "take what is lost from its claims",
            Self::Dispatch => "dispatch what is due",
            Self::Held => "let held fires go",
            Self::Starts => "end what missed its start deadline",
            Self::Unknown => "look after unknown executions",
            Self::Keys => "forget idempotency keys",
            Self::Definitions => "end what no code defines any more",
            Self::History => "delete old history",
            Self::Gauges => "take the ledger's pulse",
        }
    }

    /// Whether the term, or readiness, depends on it at all.
    const fn is_vital(self) -> bool {
        !matches!(self, Self::Gauges)
    }

    /// Whether a loop that turns but meets only errors costs the term. A planner that cannot
    /// plan gives another ticker the chance; a sweep runs in every ticker anyway, and one that
    /// fails must not stop the others.
    const fn term_needs_success(self) -> bool {
        matches!(self, Self::Planning)
    }
}

// === impl Progress ===

impl Progress {
    /// All loops are as good as new at `now`.
    pub(crate) fn start(&self, now: BootTime) {
        for one in Loop::ALL {
            self.stamp_success(one, now);
        }
    }

    /// The loop came round, with or without success.
    pub(crate) fn turned(&self, one: Loop, now: BootTime) {
        self.turned[one as usize].store(now.millis(), Ordering::Relaxed);
    }

    /// The loop did what it is for, or had nothing to do.
    pub(crate) fn succeeded(&self, one: Loop, now: BootTime) {
        self.stamp_success(one, now);
        self.proved[one as usize].store(true, Ordering::Relaxed);
    }

    fn stamp_success(&self, one: Loop, now: BootTime) {
        self.turned(one, now);
        self.succeeded[one as usize].store(now.millis(), Ordering::Relaxed);
    }

    /// Time since the loop last did what it is for.
    pub(crate) fn success_age(&self, one: Loop, now: BootTime) -> Duration {
        now.since(BootTime::from_millis(
            self.succeeded[one as usize].load(Ordering::Relaxed),
        ))
    }

    /// The stamp that the loop left last: it differs after each turn that took time.
    pub(crate) fn stamp(&self, one: Loop) -> u64 {
        self.turned[one as usize].load(Ordering::Relaxed)
    }

    fn turn_age(&self, one: Loop, now: BootTime) -> Duration {
        now.since(BootTime::from_millis(
            self.turned[one as usize].load(Ordering::Relaxed),
        ))
    }

    /// A loop whose lack of progress forbids to hold a term.
    pub(crate) fn stalled(&self, now: BootTime, max: Duration) -> Option<Loop> {
        Loop::ALL
            .into_iter()
            .filter(|one| *one != Loop::Leadership && one.is_vital())
            .find(|one| {
                self.turn_age(*one, now) > max
                    || (one.term_needs_success() && self.success_age(*one, now) > max)
            })
    }

    /// A loop that has not done what it is for within `max`.
    pub(crate) fn failing(&self, now: BootTime, max: Duration) -> Option<Loop> {
        Loop::ALL
            .into_iter()
            .filter(|one| one.is_vital())
            .find(|one| self.success_age(*one, now) > max)
    }

    /// A loop that has not done what it is for since the start of the process.
    pub(crate) fn unproved(&self) -> Option<Loop> {
        Loop::ALL
            .into_iter()
            .filter(|one| one.is_vital())
            .find(|one| !self.proved[*one as usize].load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_secs(10);

    #[test]
    fn a_silent_loop_or_a_failing_planner_costs_the_term_a_failing_sweep_does_not() {
        let progress = Progress::default();
        let (start, late) = (BootTime::from_millis(1_000), BootTime::from_millis(11_001));
        progress.start(start);
        assert_eq!(progress.stalled(start + MAX, MAX), None);
        assert_eq!(progress.stalled(late, MAX), Some(Loop::Planning));
        for one in Loop::ALL {
            progress.turned(one, late);
        }
        assert_eq!(progress.stalled(late, MAX), Some(Loop::Planning));
        progress.succeeded(Loop::Planning, late);
        assert_eq!(progress.stalled(late, MAX), None);
        assert_eq!(progress.failing(late, MAX), Some(Loop::Leadership));
        progress.start(late);
        assert_eq!(progress.failing(late, MAX), None);
    }

    #[test]
    fn the_credit_of_a_start_is_no_success() {
        let progress = Progress::default();
        let start = BootTime::from_millis(1_000);
        progress.start(start);
        for one in Loop::ALL.into_iter().filter(|one| one.is_vital()) {
            assert_eq!(progress.unproved(), Some(one));
            progress.turned(one, start);
            assert_eq!(progress.unproved(), Some(one), "a turn is none either");
            progress.succeeded(one, start);
        }
        assert_eq!(progress.unproved(), None);
    }
}
