//! What programs that ask for work link: enqueue, submit, trigger, register, wait.
//!
//! | call | way | durable once it returned |
//! |---|---|---|
//! | [`Client::enqueue`] | a row in the ledger | as the database |
//! | [`enqueue_in`] | a row in *your* transaction | with your commit |
//! | [`Client::submit`] | a message on the submit subject | as the stream, until a worker claims it |
//!
//! A client that only submits needs no database, one that only enqueues needs no broker:
//! build it with what you have; a call that needs the other half says so.

mod connect;
mod error;
mod submit;
mod transaction;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use bellwether_schemas::ids;
use bellwether_schemas::subject::Subjects;
use bellwether_schemas::trace::TraceContext;
use bellwether_store::Store;
use bellwether_store::executions::Triggered;
use bellwether_store::schedules::{Registered, Removed};
use uuid::Uuid;

pub use bellwether_store::Payload;
pub use bellwether_store::executions::{Enqueued, NewExecution};
pub use bellwether_store::inspect::ShardResult;
pub use bellwether_store::schedules::{NewSchedule, Policy, Timing};
pub use error::{Error, Result};
pub use submit::{Submission, Submitted};
pub use transaction::{Transaction, enqueue_in};
pub use wait::{Waited, What};

/// Longest wait for room in the connection's buffer.
const WAKE_MAX: Duration = Duration::from_millis(100);
/// Tries of a trigger, and the time between two.
const TRIGGER_TRIES: u32 = 3;
const TRIGGER_AGAIN: Duration = Duration::from_millis(100);

/// A handle on one namespace. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    subjects: Subjects,
    store: Option<Arc<dyn Store>>,
    nats: Option<async_nats::Client>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("namespace", &self.subjects.namespace())
            .field("store", &self.store.is_some())
            .field("nats", &self.nats.is_some())
            .finish()
    }
}

impl Client {
    /// A client of `namespace` with neither half yet.
    pub fn new(namespace: &str) -> Result<Self> {
        Ok(Self {
            subjects: Subjects::new(namespace)?,
            store: None,
            nats: None,
        })
    }

    /// Adds the ledger: everything but [`Client::submit`].
    #[must_use]
    pub fn with_store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = Some(store);
        self
    }

    /// Adds the broker: [`Client::submit`], and quicker dispatch of what is enqueued.
    #[must_use]
    pub fn with_nats(mut self, nats: async_nats::Client) -> Self {
        self.nats = Some(nats);
        self
    }

    fn store(&self, call: &'static str) -> Result<&Arc<dyn Store>> {
        self.store.as_ref().ok_or(Error::NeedsStore { call })
    }

    /// Enqueues a one-shot. With [`NewExecution::run_at`] it is dispatched when due; with a
    /// key, a second one changes nothing and answers `Exists`.
    pub async fn enqueue(&self, new: &NewExecution) -> Result<Enqueued> {
        let answers = self
            .store("enqueue")?
            .enqueue(std::slice::from_ref(new))
            .await?;
        self.wake().await;
        answers
            .into_iter()
            .next()
            .ok_or(Error::NoAnswer { call: "enqueue" })
    }

    /// Enqueues many one-shots in one transaction; answers stand in the order of `new`.
    pub async fn enqueue_all(&self, new: &[NewExecution]) -> Result<Vec<Enqueued>> {
        let answers = self.store("enqueue")?.enqueue(new).await?;
        self.wake().await;
        Ok(answers)
    }

    /// Fires a schedule now, whatever its next instant; returns the fire. An error that may
    /// pass is answered by asking again for the same fire, three times in all: it fires once.
    pub async fn trigger(&self, schedule: &str) -> Result<Uuid> {
        let fire_id = ids::fresh();
        let trace = TraceContext::root(fire_id);
        let store = self.store("trigger")?;
        let mut tries = 1;
        let triggered = loop {
            match store.trigger(schedule, fire_id, Some(&trace)).await {
                Err(error) if error.is_transient() && tries < TRIGGER_TRIES => {
                    tracing::debug!(%error, tries, "triggering again");
                    tries += 1;
                    tokio::time::sleep(TRIGGER_AGAIN).await;
                }
                triggered => break triggered?,
            }
        };
        match triggered {
            Triggered::Fired { fire_id, .. } => {
                self.wake().await;
                Ok(fire_id)
            }
            Triggered::NotFound => Err(Error::NoSuchSchedule {
                name: schedule.to_owned(),
            }),
        }
    }

    /// Registers a schedule; refuses a name that a live schedule has.
    pub async fn register(&self, new: &NewSchedule) -> Result<Uuid> {
        match self.store("register")?.register_schedule(new).await? {
            Registered::Inserted(id) => Ok(id),
            Registered::Exists(_) => Err(Error::ScheduleExists {
                name: new.name.clone(),
            }),
        }
    }

    /// Ends a schedule by name: no future fire; what was planned goes on.
    pub async fn unregister(&self, schedule: &str) -> Result<Uuid> {
        match self.store("unregister")?.remove_schedule(schedule).await? {
            Removed::Removed(id) => Ok(id),
            Removed::NotFound => Err(Error::NoSuchSchedule {
                name: schedule.to_owned(),
            }),
        }
    }

    /// Tells the relays that outbox rows were committed: call it after the commit of a
    /// transaction that used [`enqueue_in`]. Without it they are found by polling, within a
    /// second.
    pub async fn wake(&self) {
        let Some(nats) = &self.nats else { return };
        // A wake-up is a courtesy: what it announces is a condition that relays poll.
        // It must not hang what is committed already while the broker is away.
        let publish = nats.publish(self.subjects.wake_relay(), bytes::Bytes::new());
        match tokio::time::timeout(WAKE_MAX, publish).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "relays were not woken"),
            Err(_elapsed) => tracing::debug!("relays were not woken: the connection takes nothing"),
        }
    }
}
