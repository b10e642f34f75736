//! The vocabulary of the end-to-end tests: a [`Cluster`] of real processes on a real ledger and a
//! real broker, its [`Role`]s that may be killed, paused and stopped, and the [`Journal`] in which
//! the jobs themselves write down what they did.

mod cluster;
mod collector;
mod command;
mod journal;
mod pooler;
mod role;

use std::time::{Duration, Instant};

pub(crate) use cluster::{Cluster, serial};
pub(crate) use collector::{Collector, Kind, Span};
pub(crate) use command::{Answer, Command, bellwether_in};
pub(crate) use journal::{Gate, Journal, Work};
pub(crate) use pooler::Pooler;
pub(crate) use role::{Role, clean_environment};

/// How long to wait for what must happen and has no bound of its own: far more than it takes.
pub(crate) const SOON: Duration = Duration::from_mins(1);

/// How long to wait between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// Waits until `probe` answers true; a panic that names `what` if it does not.
pub(crate) async fn until(what: &str, probe: impl AsyncFnMut() -> bool) {
    assert!(eventually(probe).await, "{what}: not within {SOON:?}");
}

/// Waits until `probe` answers true; false if it does not.
pub(crate) async fn eventually(mut probe: impl AsyncFnMut() -> bool) -> bool {
    let deadline = Instant::now() + SOON;
    loop {
        let last = Instant::now() >= deadline;
        if probe().await {
            return true;
        }
        if last {
            return false;
        }
        tokio::time::sleep(PAUSE).await;
    }
}
