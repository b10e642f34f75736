//! How the time of a stop is divided: finish, obey, give up, end.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::capacity::Capacity;

/// When all attempts have ended, handlers that were given up have this long to say what they did:
/// one that obeys late does so soon, and for one that never does no stop shall last longer.
pub(crate) const LEAVE: Duration = Duration::from_secs(2);

/// How the time of a stop is divided.
#[derive(Debug, Clone)]
pub(crate) struct Drain {
    limit: Duration,
    begun: Arc<std::sync::OnceLock<Instant>>,
}

impl Drain {
    pub(crate) fn new(limit: Duration) -> Self {
        Self {
            limit,
            begun: Arc::default(),
        }
    }

    pub(crate) fn begun(&self) -> Instant {
        *self.begun.get_or_init(Instant::now)
    }

    /// Handlers that have not finished are cancelled.
    fn cancel_at(&self) -> Instant {
        self.begun() + self.limit * 4 / 5
    }

    /// What is not decided is given up.
    fn give_up_at(&self) -> Instant {
        self.begun() + self.limit * 19 / 20
    }

    /// Keeps the times of a stop, also while the feeder waits for a ledger that is away.
    pub(crate) async fn give_up(
        self,
        stop: CancellationToken,
        stop_now: CancellationToken,
        give_up: CancellationToken,
    ) {
        stop.cancelled().await;
        sleep_until(self.cancel_at()).await;
        stop_now.cancel();
        sleep_until(self.give_up_at()).await;
        give_up.cancel();
    }

    /// Waits for the handlers: first for their end, then for their obedience; and for those that
    /// were given up, within [`LEAVE`].
    pub(crate) async fn finish(
        &self,
        handlers: &TaskTracker,
        leaving: &TaskTracker,
        capacity: &Capacity,
        stop_now: &CancellationToken,
    ) {
        self.finish_attempts(handlers, capacity, stop_now).await;
        let until = self.give_up_at().min(Instant::now() + LEAVE);
        if timeout_at(until, leaving.wait()).await.is_err() {
            tracing::warn!(
                leaked = leaving.len(),
                "handlers that were given up run on: the stop goes on without them",
            );
        }
    }

    async fn finish_attempts(
        &self,
        handlers: &TaskTracker,
        capacity: &Capacity,
        stop_now: &CancellationToken,
    ) {
        if timeout_at(self.cancel_at(), handlers.wait()).await.is_ok() {
            return;
        }
        tracing::warn!(
            running = capacity.load().running,
            "handlers are cancelled: the drain limit is near"
        );
        stop_now.cancel();
        if timeout_at(self.give_up_at(), handlers.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                running = capacity.load().running,
                "handlers do not stop: their executions are taken over",
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn handlers_are_cancelled_and_claims_given_up_whatever_the_feeder_waits_for() {
        let limit = Duration::from_secs(1);
        let drain = Drain::new(limit);
        let [stop, stop_now, give_up] = std::array::from_fn(|_| CancellationToken::new());
        tokio::spawn(
            drain
                .clone()
                .give_up(stop.clone(), stop_now.clone(), give_up.clone()),
        );
        stop.cancel();
        let end = Instant::now() + Duration::from_secs(10);
        assert!(timeout_at(end, stop_now.cancelled()).await.is_ok());
        assert!(Instant::now() >= drain.cancel_at());
        assert!(timeout_at(end, give_up.cancelled()).await.is_ok());
        assert!(Instant::now() >= drain.give_up_at());
    }

    #[tokio::test(start_paused = true)]
    async fn p53_handlers_that_were_given_up_hold_a_stop_for_no_longer_than_they_may_leave() {
        let drain = Drain::new(Duration::from_secs(30));
        let capacity = Capacity::new(crate::capacity::Limits {
            max_concurrent: 1,
            prefetch: 0,
            ahead: Duration::ZERO,
        });
        let [handlers, leaving] = std::array::from_fn(|_| TaskTracker::new());
        for tracker in [&handlers, &leaving] {
            tracker.close();
        }
        handlers.spawn(tokio::time::sleep(Duration::from_secs(1)));
        leaving.spawn(std::future::pending::<()>());
        let stop_now = CancellationToken::new();
        let begun = drain.begun();
        drain
            .finish(&handlers, &leaving, &capacity, &stop_now)
            .await;
        let took = begun.elapsed();
        assert!(
            (Duration::from_secs(3)..Duration::from_secs(4)).contains(&took),
            "{took:?}"
        );
        assert!(!stop_now.is_cancelled());
    }
}
