//! How long an execution waits for its next attempt. Pure: randomness is a parameter.

use std::time::Duration;

use serde::Serialize;

/// The delay before another attempt after the n-th failed: uniform between zero and
/// `first` × 2^(n−1), at most `cap` (*full jitter*: many that fail together do not return
/// together). Pinned on an execution when it is made; attempts that were not charged (snooze,
/// release) do not count.
///
/// With the defaults the bounds are 1 s, 2 s, 4 s, 8 s, …, 512 s, 600 s, 600 s, … The delays that
/// [`delays(1)`](Self::delays) draws under them, rounded to a millisecond:
///
/// ```text
/// seed 1: 0.657 s, 1.069 s, 0.959 s, 6.231 s, 0.155 s, 24.995 s, 49.226 s, 108.599 s, 154.020 s,
/// 84.934 s, 38.181 s, 95.978 s
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RetryPolicy {
    /// Bound of the first delay, 1 ms to 10 years. Default 1 s.
    pub first: Duration,
    /// What the bound never exceeds, at least `first`. Default 10 min.
    pub cap: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            cap: Duration::from_mins(10),
        }
    }
}

impl RetryPolicy {
    /// The longest delay after the `attempt`-th attempt (from 1).
    #[must_use]
    pub fn bound(&self, attempt: u32) -> Duration {
        let doublings = attempt.saturating_sub(1).min(63);
        let bound = self.first.as_nanos().saturating_mul(1 << doublings);
        u64::try_from(bound).map_or(self.cap, |nanos| Duration::from_nanos(nanos).min(self.cap))
    }

    /// A delay after the `attempt`-th attempt (from 1).
    pub fn delay(&self, attempt: u32, rng: &mut fastrand::Rng) -> Duration {
        self.bound(attempt).mul_f64(rng.f64())
    }

    /// The delays after the first attempt, the second and so on, without end, of one seed.
    pub fn delays(self, seed: u64) -> impl Iterator<Item = Duration> {
        let mut rng = fastrand::Rng::with_seed(seed);
        (1..u32::MAX)
            .chain(std::iter::repeat(u32::MAX))
            .map(move |attempt| self.delay(attempt, &mut rng))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_cap_with_full_jitter() {
        let mut rng = fastrand::Rng::with_seed(7);
        let policy = RetryPolicy::default();
        for (attempt, bound) in [
            (1, 1),
            (2, 2),
            (5, 16),
            (10, 512),
            (11, 600),
            (u32::MAX, 600),
        ] {
            let bound = Duration::from_secs(bound);
            assert_eq!(policy.bound(attempt), bound, "{attempt}");
            let delays: Vec<_> = (0..2000).map(|_| policy.delay(attempt, &mut rng)).collect();
            assert!(delays.iter().all(|delay| *delay <= bound), "{attempt}");
            assert!(
                delays.iter().max().unwrap() > &bound.mul_f64(0.95),
                "{attempt}"
            );
            assert!(
                delays.iter().min().unwrap() < &bound.mul_f64(0.05),
                "{attempt}"
            );
        }
    }

    #[test]
    fn bounds_follow_the_policy_and_never_overflow() {
        let policy = RetryPolicy {
            first: Duration::from_millis(2),
            cap: Duration::from_millis(9),
        };
        let bounds: Vec<_> = (1..=5).map(|n| policy.bound(n).as_millis()).collect();
        assert_eq!(bounds, [2, 4, 8, 9, 9]);
        let long = RetryPolicy {
            first: crate::POLICY_MAX,
            cap: crate::POLICY_MAX,
        };
        assert_eq!(long.bound(u32::MAX), crate::POLICY_MAX);
        // Even the shortest first delay reaches the longest cap.
        let wide = RetryPolicy {
            first: crate::POLICY_MIN,
            cap: crate::POLICY_MAX,
        };
        assert_eq!(wide.bound(39), Duration::from_millis(1 << 38));
        assert_eq!(wide.bound(40), crate::POLICY_MAX);
    }

    #[test]
    fn one_seed_is_one_sequence() {
        let policy = RetryPolicy::default();
        let some = |seed| policy.delays(seed).take(20).collect::<Vec<_>>();
        assert_eq!(some(1), some(1));
        assert_ne!(some(1), some(2));
    }

    /// What people read is what an execution waits.
    #[test]
    fn the_docs_print_the_sequence_that_is_drawn() {
        let delays = RetryPolicy::default().delays(1).take(12);
        let shown: Vec<_> = delays
            .map(|delay| format!("{:.3} s", delay.as_secs_f64()))
            .collect();
        let line = format!("seed 1: {}", shown.join(", "));
        for (file, text) in [
            ("store/src/retry.rs", include_str!("retry.rs")),
            ("docs/schedules.md", include_str!("../../docs/schedules.md")),
        ] {
            // In the source it may be broken into lines of a doc comment.
            let flat = text.replace("\n/// ", " ").replace('\n', " ");
            assert!(flat.contains(&line), "{file} must say: {line}");
        }
    }
}
