//! Handlers that ignore their cancellation: given up, counted, and one day too many.
//!
//! A handler cannot be stopped from outside. One that was told to stop and has not returned in
//! time is given up: the ledger is told, its slot counts as leaked, and what it says later counts
//! only where the ledger waits for it. A worker whose slots are mostly held by such handlers is no worker any more; it
//! stops in order, so that a supervisor starts a fresh process.

use std::sync::Arc;

use bellwether_telemetry::metrics;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The handlers that were given up and run on, and the probes that were aborted and do.
#[derive(Debug, Clone, Default)]
pub(crate) struct Leaks(Arc<watch::Sender<usize>>);

impl Leaks {
    pub(crate) fn count(&self) -> usize {
        *self.0.borrow()
    }

    /// One more of this queue, here and in the gauge, until the guard is dropped.
    pub(crate) fn one_more(&self, queue: &str) -> Leaked {
        let of = [metrics::queue(queue)];
        metrics::gauges().worker_leaked.add(1, &of);
        self.0.send_modify(|count| *count += 1);
        Leaked {
            among: self.clone(),
            of,
        }
    }

    /// Stops the worker once `most` slots are leaked; `too_many` says that this was why.
    pub(crate) async fn watch(
        self,
        most: usize,
        stop: CancellationToken,
        too_many: CancellationToken,
    ) {
        let mut count = self.0.subscribe();
        // The sender lives as long as `self`.
        if count.wait_for(|count| *count >= most).await.is_ok() {
            tracing::error!(
                leaked = self.count(),
                most,
                "too many handlers ignore their cancellation: stopping",
            );
            too_many.cancel();
            stop.cancel();
        }
    }
}

/// One handler that was given up, or one probe that blocks its thread.
#[derive(Debug)]
pub(crate) struct Leaked {
    among: Leaks,
    of: [metrics::Label; 1],
}

impl Drop for Leaked {
    fn drop(&mut self) {
        metrics::gauges().worker_leaked.add(-1, &self.of);
        self.among.0.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn p53_the_worker_stops_at_the_limit_and_not_before() {
        let leaks = Leaks::default();
        let (stop, too_many) = (CancellationToken::new(), CancellationToken::new());
        let watching = tokio::spawn(leaks.clone().watch(2, stop.clone(), too_many.clone()));
        drop(leaks.one_more("q"));
        let first = leaks.one_more("q");
        assert_eq!(leaks.count(), 1);
        assert!(!stop.is_cancelled());
        let _second = leaks.one_more("q");
        watching.await.unwrap();
        assert!(stop.is_cancelled() && too_many.is_cancelled());
        drop(first);
        assert_eq!(leaks.count(), 1);
    }
}
