//! Delays: per lane after a publish error, and between polls. Pure; time and chance are given.

use std::collections::HashMap;
use std::time::Duration;

use bellwether_store::outbox::Lane;
use tokio::time::Instant;

/// First delay after an error.
const FIRST: Duration = Duration::from_millis(250);

/// The `n`-th delay in a row (from 0): 250 ms × 2^n, at most `max`, times 0.5 to 1.
/// `roll` is between 0 and 1.
pub(crate) fn delay(n: u32, max: Duration, roll: f64) -> Duration {
    let full = FIRST.saturating_mul(2_u32.saturating_pow(n)).min(max);
    jittered(full, roll)
}

/// Between half of `full` and all of it.
pub(crate) fn jittered(full: Duration, roll: f64) -> Duration {
    full.mul_f64(0.5 + roll.clamp(0.0, 1.0) / 2.0)
}

/// The time to the next poll: `busy` after a find, doubling to `idle` while nothing is found.
pub(crate) fn poll(empty: u32, busy: Duration, idle: Duration, roll: f64) -> Duration {
    jittered(
        busy.saturating_mul(2_u32.saturating_pow(empty)).min(idle),
        roll,
    )
}

/// Lanes that wait after a publish error; the others go on.
#[derive(Debug, Default)]
pub(crate) struct Lanes(HashMap<Lane, Wait>);

#[derive(Debug)]
struct Wait {
    failures: u32,
    until: Instant,
}

impl Lanes {
    /// A message of the lane was not taken. Errors of one batch count once: while the lane
    /// already waits, nothing is added.
    pub(crate) fn failed(&mut self, lane: &Lane, now: Instant, max: Duration, roll: f64) {
        let wait = self.0.entry(lane.clone()).or_insert(Wait {
            failures: 0,
            until: now,
        });
        if wait.until <= now {
            wait.until = now + delay(wait.failures, max, roll);
            wait.failures = wait.failures.saturating_add(1);
        }
    }

    /// A message of the lane was taken.
    pub(crate) fn succeeded(&mut self, lane: &Lane) {
        self.0.remove(lane);
    }

    /// The broker is another one than before: what it refused then says nothing now.
    pub(crate) fn forget(&mut self) {
        self.0.clear();
    }

    /// The lanes to leave out now.
    pub(crate) fn waiting(&self, now: Instant) -> Vec<Lane> {
        let waits = self.0.iter().filter(|(_, wait)| wait.until > now);
        waits.map(|(lane, _)| lane.clone()).collect()
    }

    /// When the next of them may be tried again.
    pub(crate) fn next(&self, now: Instant) -> Option<Instant> {
        self.0
            .values()
            .map(|wait| wait.until)
            .filter(|until| *until > now)
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellwether_schemas::state::Priority;

    const CAP: Duration = Duration::from_secs(30);

    fn lane(queue: &str) -> Lane {
        Lane {
            queue: queue.to_owned(),
            priority: Priority::Normal,
        }
    }

    #[test]
    fn delays_double_to_the_cap() {
        let full: Vec<_> = (0..10).map(|n| delay(n, CAP, 1.0).as_millis()).collect();
        assert_eq!(
            full,
            [250, 500, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000]
        );
        assert_eq!(delay(2, CAP, 0.0), Duration::from_millis(500));
        assert_eq!(delay(u32::MAX, CAP, 1.0), CAP);
    }

    #[test]
    fn polls_are_quick_after_a_find_and_slow_when_idle() {
        let (busy, idle) = (Duration::from_millis(100), Duration::from_secs(1));
        let polls: Vec<_> = (0..6)
            .map(|n| poll(n, busy, idle, 1.0).as_millis())
            .collect();
        assert_eq!(polls, [100, 200, 400, 800, 1000, 1000]);
        assert!(poll(0, busy, idle, 0.0) >= busy / 2);
    }

    #[test]
    fn a_failing_lane_waits_alone_and_a_batch_of_errors_counts_once() {
        let (now, mut lanes) = (Instant::now(), Lanes::default());
        for _ in 0..256 {
            lanes.failed(&lane("full"), now, CAP, 1.0);
        }
        assert_eq!(lanes.waiting(now), [lane("full")]);
        let again = lanes.next(now).expect("one waits");
        assert_eq!(again - now, Duration::from_millis(250));
        assert_eq!(lanes.waiting(again), []);
        lanes.failed(&lane("full"), again, CAP, 1.0);
        assert_eq!(lanes.next(again), Some(again + Duration::from_millis(500)));
        lanes.succeeded(&lane("full"));
        assert_eq!(lanes.next(again), None);
    }
}
