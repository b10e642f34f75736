//! How long to wait: before the next attempt, and before asking again.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

/// The first delay's bound; each further attempt doubles it.
const FIRST: Duration = Duration::from_secs(1);
/// The bound's cap.
const CAP: Duration = Duration::from_mins(10);

/// The delay before the attempt after the `attempt`-th (from 1): uniform between zero and
/// 1 s, 2 s, 4 s, … at most 10 min (*full jitter*: many that fail together do not return
/// together).
pub(crate) fn retry_delay(attempt: u32, rng: &mut fastrand::Rng) -> Duration {
    let doublings = attempt.saturating_sub(1).min(16);
    let bound = FIRST.saturating_mul(1 << doublings).min(CAP);
    bound.mul_f64(rng.f64())
}

/// Delays for asking a ledger or broker that is away: from 100 ms doubling to `cap`, each
/// with up to its own length of jitter on top, without end.
pub(crate) fn asking_again(cap: Duration) -> ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(cap / 2)
        .with_factor(2.0)
        .with_jitter()
        .without_max_times()
        .build()
}

/// A duration between `low` and `high`.
pub(crate) fn between(low: Duration, high: Duration) -> Duration {
    low + high.saturating_sub(low).mul_f64(fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_ten_minutes_with_full_jitter() {
        let mut rng = fastrand::Rng::with_seed(7);
        for (attempt, bound) in [
            (1, 1),
            (2, 2),
            (5, 16),
            (10, 512),
            (11, 600),
            (u32::MAX, 600),
        ] {
            let delays: Vec<_> = (0..2000).map(|_| retry_delay(attempt, &mut rng)).collect();
            let bound = Duration::from_secs(bound);
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
    fn asking_again_never_ends_and_keeps_its_cap() {
        let cap = Duration::from_secs(5);
        let delays: Vec<_> = asking_again(cap).take(200).collect();
        assert_eq!(delays.len(), 200);
        assert!(delays.iter().all(|delay| *delay <= cap));
        assert!(delays[0] >= Duration::from_millis(100));
    }
}
