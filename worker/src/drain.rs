//! How the time of a stop is divided: finish, obey, give up, end.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::capacity::Capacity;

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

    pub(crate) fn end_at(&self) -> Instant {
        self.begun() + self.limit
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

    /// Waits for the handlers: first for their end, then for their obedience.
    pub(crate) async fn finish(
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
}
