//! Whether this process has watched the ledger without a break.
//!
//! A session that has run out proves nothing to a process that was asleep, or behind a network
//! that was down for everybody, or under a clock that jumped: the worker may live and only
//! have had no chance to renew. So sessions are judged only after one lease of unbroken view.
//! What is old by a clock that has just been set may be young: it is deleted only after a longer time
//! without a step of it.
//! Pure: looks go in, judgements come out.

use std::collections::VecDeque;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::Options;
use crate::clock::BootTime;

/// Looks closer than this to the last kept one are judged but not kept.
const KEPT_APART: Duration = Duration::from_millis(500);

/// One answer of the ledger that named its clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Boot time before the request was sent.
    pub sent: BootTime,
    /// Boot time after the answer came.
    pub received: BootTime,
    /// The ledger's clock, read some time between the two.
    pub ledger_now: DateTime<Utc>,
}

/// What a look says about the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// The first look of this process: nothing is declared lost for one session lease.
    First,
    /// As expected.
    Unbroken,
    /// The last look lies too far back: nothing is declared lost for one session lease.
    Gap(Duration),
    /// The ledger's clock moved by this much against boot time (ahead if positive): as
    /// [`Judgement::Gap`], and cursors are held for one term.
    ClockStep(TimeDelta),
}

/// The view of one process.
#[derive(Debug, Clone)]
pub struct View {
    session_lease: Duration,
    term_lease: Duration,
    gap_max: Duration,
    step_max: TimeDelta,
    steady_for: Duration,
    /// Looks of the last session lease, but always the last one kept.
    kept: VecDeque<Look>,
    last: Option<BootTime>,
    losses_held_until: BootTime,
    cursors_held_until: BootTime,
    deletes_held_until: BootTime,
}

// === impl Look ===

impl Look {
    /// The ledger's clock less boot time lies between these two, in that order.
    fn offsets(&self) -> (TimeDelta, TimeDelta) {
        let at = |boot: BootTime| {
            let boot = TimeDelta::from_std(boot.since_boot()).unwrap_or(TimeDelta::MAX);
            self.ledger_now.signed_duration_since(DateTime::UNIX_EPOCH) - boot
        };
        (at(self.received), at(self.sent))
    }

    /// How far the ledger's clock surely moved against boot time since `earlier`.
    fn moved_since(&self, earlier: &Self) -> TimeDelta {
        let ((low, high), (low_before, high_before)) = (self.offsets(), earlier.offsets());
        if low > high_before {
            low - high_before
        } else if high < low_before {
            high - low_before
        } else {
            TimeDelta::zero()
        }
    }
}

// === impl View ===

impl View {
    /// A view without a look.
    pub fn new(options: &Options) -> Self {
        Self {
            session_lease: options.session_lease,
            term_lease: options.lease,
            gap_max: options.view_gap,
            step_max: TimeDelta::from_std(options.clock_step_max).unwrap_or(TimeDelta::MAX),
            steady_for: options.steady_for,
            kept: VecDeque::new(),
            last: None,
            losses_held_until: BootTime::default(),
            cursors_held_until: BootTime::default(),
            deletes_held_until: BootTime::default(),
        }
    }

    /// Takes a look into account.
    pub fn look(&mut self, look: Look) -> Judgement {
        let judgement = self.judge(&look);
        if judgement != Judgement::Unbroken {
            self.losses_held_until = look.received + self.session_lease;
        }
        if matches!(judgement, Judgement::First | Judgement::ClockStep(_)) {
            self.deletes_held_until = look.received + self.steady_for;
        }
        if matches!(judgement, Judgement::ClockStep(_)) {
            self.cursors_held_until = look.received + self.term_lease;
            // The new offset is the one to compare with: a step is reported once.
            self.kept.clear();
        }
        self.keep(look);
        judgement
    }

    /// Whether sessions may be declared lost and executions overdue at `now`. The last look
    /// must be a fresh one: a process that slept since has not seen what happened.
    pub fn may_declare_losses(&self, now: BootTime) -> bool {
        now >= self.losses_held_until
            && self
                .last
                .is_some_and(|last| now.since(last) <= self.gap_max)
    }

    /// Whether what is old may be deleted at `now`: the view is unbroken, and the clock has not
    /// stepped for long.
    pub fn may_delete(&self, now: BootTime) -> bool {
        now >= self.deletes_held_until && self.may_declare_losses(now)
    }

    /// How much longer cursors are held at `now`; zero = they are free.
    pub fn cursors_held_for(&self, now: BootTime) -> Duration {
        self.cursors_held_until.since(now)
    }

    fn judge(&self, look: &Look) -> Judgement {
        let Some(last) = self.last else {
            return Judgement::First;
        };
        let moved = self.kept.iter().map(|earlier| look.moved_since(earlier));
        if let Some(step) = moved
            .max_by_key(TimeDelta::abs)
            .filter(|m| m.abs() > self.step_max)
        {
            return Judgement::ClockStep(step);
        }
        let gap = look.received.since(last);
        if gap > self.gap_max {
            Judgement::Gap(gap)
        } else {
            Judgement::Unbroken
        }
    }

    fn keep(&mut self, look: Look) {
        // Two callers may hand in their looks in the other order.
        self.last = self.last.max(Some(look.received));
        while self.kept.len() > 1
            && self
                .kept
                .front()
                .is_some_and(|old| look.received.since(old.received) > self.session_lease)
        {
            self.kept.pop_front();
        }
        if self
            .kept
            .back()
            .is_none_or(|last| look.received.since(last.received) >= KEPT_APART)
        {
            self.kept.push_back(look);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: u64 = 4;

    fn boot(millis: u64) -> BootTime {
        BootTime::from_millis(1_000_000 + millis)
    }

    /// A look received at `boot_ms` when the ledger's clock is `ahead_ms` ahead of its usual
    /// distance from boot time.
    fn look(boot_ms: u64, ahead_ms: i64) -> Look {
        let read_at = TimeDelta::milliseconds(i64::try_from(boot_ms - RTT / 2).unwrap_or(0));
        let base = DateTime::UNIX_EPOCH + TimeDelta::days(20_000);
        Look {
            sent: boot(boot_ms - RTT),
            received: boot(boot_ms),
            ledger_now: base + read_at + TimeDelta::milliseconds(ahead_ms),
        }
    }

    fn watched_until(boot_ms: u64) -> View {
        let mut view = View::new(&Options::default());
        assert_eq!(view.look(look(1_000, 0)), Judgement::First);
        for second in 2..=boot_ms / 1_000 {
            assert_eq!(view.look(look(second * 1_000, 0)), Judgement::Unbroken);
        }
        view
    }

    #[test]
    fn a_process_without_an_earlier_look_waits_one_lease() {
        let mut view = View::new(&Options::default());
        assert!(!view.may_declare_losses(boot(0)), "no look at all");
        view.look(look(1_000, 0));
        for second in 2..10 {
            view.look(look(second * 1_000, 0));
            assert!(
                !view.may_declare_losses(boot(second * 1_000)),
                "second {second}"
            );
        }
        view.look(look(10_000, 0));
        assert!(view.may_declare_losses(boot(10_000)));
        assert_eq!(view.cursors_held_for(boot(10_000)), Duration::ZERO);
    }

    #[test]
    fn a_gap_holds_losses_for_one_lease_but_no_cursors() {
        let mut view = watched_until(20_000);
        assert_eq!(
            view.look(look(23_000, 0)),
            Judgement::Unbroken,
            "3 s are allowed"
        );
        assert_eq!(
            view.look(look(26_001, 0)),
            Judgement::Gap(Duration::from_millis(3_001))
        );
        for millis in (27_000..35_000).step_by(1_000) {
            view.look(look(millis, 0));
            assert!(!view.may_declare_losses(boot(millis)));
        }
        view.look(look(35_001, 0));
        assert!(view.may_declare_losses(boot(35_001)));
        assert_eq!(view.cursors_held_for(boot(26_001)), Duration::ZERO);
    }

    #[test]
    fn a_process_that_slept_after_its_look_declares_nothing() {
        let view = watched_until(20_000);
        assert!(view.may_declare_losses(boot(23_000)));
        assert!(!view.may_declare_losses(boot(23_001)));
    }

    #[test]
    fn a_clock_step_either_way_holds_losses_and_cursors_and_is_reported_once() {
        for step in [1_100, 3_600_000, -1_100, -3_600_000] {
            let mut view = watched_until(20_000);
            let Judgement::ClockStep(by) = view.look(look(21_000, step)) else {
                unreachable!("a step of {step} ms was not seen");
            };
            // What the round trips leave open is not counted.
            assert!(
                (by.num_milliseconds() - step).unsigned_abs() <= RTT,
                "{by} for {step}"
            );
            assert!(!view.may_declare_losses(boot(21_000)));
            assert_eq!(view.cursors_held_for(boot(21_000)), Duration::from_secs(9));
            assert_eq!(view.look(look(22_000, step)), Judgement::Unbroken);
            assert_eq!(view.cursors_held_for(boot(30_000)), Duration::ZERO);
        }
    }

    #[test]
    fn nothing_is_deleted_before_the_clock_has_been_steady_for_an_hour() {
        let until = |view: &mut View, from: u64, to: u64, ahead: i64| {
            for second in from..to {
                view.look(look(second * 1_000, ahead));
                assert!(!view.may_delete(boot(second * 1_000)), "second {second}");
            }
            view.look(look(to * 1_000, ahead));
        };
        let mut view = View::new(&Options::default());
        assert!(!view.may_delete(boot(0)), "no look at all");
        until(&mut view, 1, 3_601, 0);
        assert!(view.may_delete(boot(3_601_000)));
        // A month ahead for ten minutes; both steps count.
        let month = 30 * 86_400_000;
        until(&mut view, 3_602, 4_201, month);
        until(&mut view, 4_202, 7_802, 0);
        assert!(view.may_delete(boot(7_802_000)));
        assert!(!view.may_delete(boot(7_806_000)), "it slept since");
    }

    #[test]
    fn a_step_made_of_small_ones_is_seen_and_slow_drift_is_not() {
        let mut view = watched_until(20_000);
        let seen = (1..=4_u64).map(|n| {
            view.look(look(
                20_000 + n * 1_000,
                i64::try_from(n).unwrap_or(0) * 400,
            ))
        });
        assert!(
            matches!(seen.last(), Some(Judgement::Unbroken)),
            "reported at 1.2 s, once"
        );
        assert!(view.cursors_held_for(boot(24_000)) > Duration::ZERO);

        let mut drifting = watched_until(20_000);
        for second in 21..4_000_u64 {
            // 0.5 ms a second: 500 ppm, ten times a bad quartz.
            let ahead = i64::try_from(second - 20).unwrap_or(0) / 2;
            assert_eq!(
                drifting.look(look(second * 1_000, ahead)),
                Judgement::Unbroken
            );
        }
    }

    #[test]
    fn a_slow_answer_is_no_clock_step() {
        let mut view = watched_until(20_000);
        let slow = Look {
            received: boot(22_500),
            ..look(20_500, 0)
        };
        assert_eq!(view.look(slow), Judgement::Unbroken);
        assert_eq!(view.look(look(23_000, 0)), Judgement::Unbroken);
    }

    #[test]
    fn a_clock_that_jumped_during_an_outage_is_seen_after_it() {
        let mut view = watched_until(20_000);
        assert!(matches!(
            view.look(look(80_000, 5_000)),
            Judgement::ClockStep(_)
        ));
    }
}
