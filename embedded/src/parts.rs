//! The parts that run side by side, and the order in which they end.

use futures_util::future::select_all;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::Error;

/// How a part ended.
pub(crate) type Ended = Result<(), Error>;

/// One part: a task with a stop of its own.
struct Part {
    name: &'static str,
    stop: CancellationToken,
    /// `None` once its end was seen.
    task: Option<JoinHandle<Ended>>,
}

/// The running parts, in the order in which they are stopped.
#[derive(Default)]
pub(crate) struct Parts(Vec<Part>);

impl Parts {
    /// Starts a part; parts are stopped in the order in which they were added.
    pub(crate) fn spawn<F>(&mut self, name: &'static str, run: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = Ended> + Send + 'static,
    {
        let stop = CancellationToken::new();
        let task = Some(tokio::spawn(run(stop.clone())));
        self.0.push(Part { name, stop, task });
    }

    /// Completes when a part ends although nobody asked it to.
    pub(crate) async fn failure(&mut self) -> Error {
        let (names, tasks): (Vec<_>, Vec<_>) = self
            .0
            .iter_mut()
            .enumerate()
            .filter_map(|(index, part)| Some(((index, part.name), part.task.as_mut()?)))
            .unzip();
        if tasks.is_empty() {
            return std::future::pending().await;
        }
        let (ended, position, _others) = select_all(tasks).await;
        let (index, name) = names[position];
        self.0[index].task = None;
        match flat(name, ended) {
            Ok(()) => Error::Ended { part: name },
            Err(error) => error,
        }
    }

    /// Stops one part after the other, each when the one before has ended. The first error is
    /// kept, the others are logged.
    pub(crate) async fn stop(self) -> Ended {
        let mut result = Ok(());
        for part in self.0 {
            part.stop.cancel();
            let Some(task) = part.task else { continue };
            let Err(error) = flat(part.name, task.await) else {
                continue;
            };
            tracing::error!(%error, part = part.name, "it did not stop in order");
            result = result.and(Err(error));
        }
        result
    }
}

fn flat(part: &'static str, ended: Result<Ended, JoinError>) -> Ended {
    ended.unwrap_or_else(|error| {
        let message = match error.try_into_panic() {
            Ok(panic) => panic
                .downcast_ref::<&str>()
                .map(ToString::to_string)
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "something that is no text".to_owned()),
            Err(cancelled) => cancelled.to_string(),
        };
        Err(Error::Panicked { part, message })
    })
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, PoisonError};

    use super::*;

    #[tokio::test]
    async fn parts_end_in_their_order_and_the_first_error_is_kept() {
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut parts = Parts::default();
        for name in ["worker", "ticker", "relay"] {
            let order = Arc::clone(&order);
            parts.spawn(name, async move |stop: CancellationToken| {
                stop.cancelled().await;
                order
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(name);
                match name {
                    "worker" => Ok(()),
                    _ => Err(Error::Ended { part: name }),
                }
            });
        }
        let ended = parts.stop().await;
        assert!(matches!(ended, Err(Error::Ended { part: "ticker" })));
        let order = order.lock().unwrap_or_else(PoisonError::into_inner).clone();
        assert_eq!(order, ["worker", "ticker", "relay"]);
    }

    #[tokio::test]
    async fn a_part_that_panics_or_ends_by_itself_is_a_failure_with_its_name() {
        let mut parts = Parts::default();
        parts.spawn("ticker", async move |_stop| panic!("a fault"));
        parts.spawn("relay", async move |stop: CancellationToken| {
            stop.cancelled().await;
            Ok(())
        });
        let failure = parts.failure().await;
        let said = failure.to_string();
        assert!(said.contains("the ticker panicked: a fault"), "{said}");
        assert!(parts.stop().await.is_ok());

        let mut parts = Parts::default();
        parts.spawn("worker", async move |_stop| Ok(()));
        let failure = parts.failure().await;
        assert!(matches!(failure, Error::Ended { part: "worker" }));
    }
}
