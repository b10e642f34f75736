//! How long to wait: before the next attempt, and before asking again.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use bellwether_store::schedules::RetryPolicy;

/// Where the delays before further attempts come from.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Delays {
    /// None = each is random by itself.
    seed: Option<u64>,
}

impl Delays {
    pub(crate) fn new(seed: Option<u64>) -> Self {
        Self { seed }
    }

    /// The delay after the `attempt`-th attempt (from 1), by the policy that the execution has
    /// pinned.
    pub(crate) fn after(self, policy: RetryPolicy, attempt: u32) -> Duration {
        let before = usize::try_from(attempt.saturating_sub(1)).unwrap_or(usize::MAX);
        self.seed
            .and_then(|seed| policy.delays(seed).nth(before))
            .unwrap_or_else(|| policy.delay(attempt, &mut fastrand::Rng::new()))
    }
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
    fn a_seed_makes_the_delays_those_of_the_policy() {
        let policy = RetryPolicy {
            first: Duration::from_millis(20),
            cap: Duration::from_millis(50),
        };
        let seeded = Delays::new(Some(1));
        let waited: Vec<_> = (1..=9).map(|n| seeded.after(policy, n)).collect();
        assert_eq!(waited, policy.delays(1).take(9).collect::<Vec<_>>());

        let random = Delays::default();
        let waited: Vec<_> = (0..200).map(|_| random.after(policy, 9)).collect();
        assert!(waited.iter().all(|delay| *delay <= policy.cap));
        assert!(waited.iter().any(|delay| *delay != waited[0]));
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
