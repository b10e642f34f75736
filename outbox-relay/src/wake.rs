//! The signal that new outbox rows were committed: core NATS, best effort.

use std::time::Duration;

use async_nats::Client;
use async_nats::connection::State;
use bellwether_schemas::subject::Subjects;
use bytes::Bytes;
use tokio::sync::watch;

/// At most one signal in this time, however often it is asked for: what a burst of small
/// transactions costs the relays, and too short for anybody to feel.
const COALESCE: Duration = Duration::from_millis(2);

/// Tells the relays of a namespace that there are new rows. Call it after the commit.
///
/// Cheap to clone; the task behind it ends with the last clone.
#[derive(Debug, Clone)]
pub struct NatsWaker(watch::Sender<()>);

impl NatsWaker {
    /// A waker on an open connection; at most one signal in 2 ms, however often it is asked for.
    /// Must be called inside a Tokio runtime.
    pub fn new(client: Client, subjects: &Subjects) -> Self {
        Self::coalescing(client, subjects, COALESCE)
    }

    /// As [`new`](Self::new), with at most one signal in `within`; zero = one for each request
    /// that finds none under way.
    pub fn coalescing(client: Client, subjects: &Subjects, within: Duration) -> Self {
        let (asked, mut asks) = watch::channel(());
        let subject = subjects.wake_relay();
        tokio::spawn(async move {
            while asks.changed().await.is_ok() {
                // Without a connection the relay's poll does it: nothing is kept for later.
                if client.connection_state() == State::Connected {
                    let sent = client.publish(subject.clone(), Bytes::new()).await;
                    if let Err(error) = sent {
                        tracing::debug!(%error, "a wake-up was not sent");
                    }
                }
                tokio::time::sleep(within).await;
            }
        });
        Self(asked)
    }

    /// Asks for a signal. Never blocks, never fails; a lost one costs up to a poll.
    pub fn wake(&self) {
        self.0.send_replace(());
    }
}
