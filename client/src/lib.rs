//! What programs that ask for work link: enqueue, submit, trigger, register, wait, cancel, retry, resolve.
//!
//! | call | way | durable once it returned |
//! |---|---|---|
//! | [`Client::enqueue`] | a row in the ledger | as the database |
//! | [`enqueue_in`] | a row in *your* transaction | with your commit |
//! | [`Client::submit`] | a message on the submit subject | as the stream, until a worker claims it |
//!
//! What is enqueued brings its own [`Policy`]: timeout, attempts, [`RetryPolicy`]; what is submitted
//! is treated as its job says, in the worker's code.
//!
//! A client that only submits needs no database, one that only enqueues needs no broker:
//! build it with what you have; a call that needs the other half says so.

mod connect;
mod counts;
mod error;
mod operate;
mod submit;
mod trace;
mod transaction;
mod wait;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use async_nats::connection::State;
use bellwether_schemas::ids;
use bellwether_schemas::refusals::Refusals;
use bellwether_schemas::subject::Subjects;
use bellwether_store::Store;
use bellwether_store::executions::Triggered;
use bellwether_store::schedules::{Origin, Registered, Removed};
use uuid::Uuid;

pub use bellwether_schemas::state::{OnLost, Overlap, Priority, Verdict};
pub use bellwether_store::Payload;
pub use bellwether_store::executions::{CancelRequested, Enqueued, NewExecution};
pub use bellwether_store::idempotency::{Acquired, Keys, Owner, OwnerError};
pub use bellwether_store::inspect::ShardResult;
pub use bellwether_store::probes::Decided;
pub use bellwether_store::schedules::{MisfirePolicy, NewSchedule, Policy, RetryPolicy, Timing};
pub use error::{Error, Result};
pub use submit::{Submission, Submitted};
pub use transaction::{Transaction, enqueue_in};
pub use wait::{Waited, What};

/// Longest wait for room in the connection's buffer.
const WAKE_MAX: Duration = Duration::from_millis(100);
/// A handle on one namespace. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    subjects: Subjects,
    store: Option<Arc<dyn Store>>,
    nats: Option<async_nats::Client>,
    refusals: Refusals,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("namespace", &self.subjects.namespace())
            .field("store", &self.store.is_some())
            .field("nats", &self.nats.is_some())
            .finish_non_exhaustive()
    }
}

impl Client {
    /// A client of `namespace` with neither half yet.
    pub fn new(namespace: &str) -> Result<Self> {
        Ok(Self {
            subjects: Subjects::new(namespace)?,
            store: None,
            nats: None,
            refusals: Refusals::default(),
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

    /// Where the events' handler of the connection given to [`Client::with_nats`] notes what the
    /// server refuses: [`Client::submit`] then answers [`Error::NotPermitted`] instead of a
    /// timeout. [`Client::connect_nats`] has it already.
    #[must_use]
    pub fn with_refusals(mut self, refusals: Refusals) -> Self {
        self.refusals = refusals;
        self
    }

    fn store(&self, call: &'static str) -> Result<&Arc<dyn Store>> {
        self.store.as_ref().ok_or(Error::NeedsStore { call })
    }

    /// Idempotency keys of effects: acquire, execute, mark as completed.
    ///
    /// # Errors
    ///
    /// [`Error::NeedsStore`].
    pub fn keys(&self) -> Result<Keys> {
        Ok(Keys::new(Arc::clone(self.store("keys")?)))
    }

    /// Enqueues a one-shot. With [`NewExecution::run_at`] it is dispatched when due; with a
    /// key, a second one changes nothing and answers `Exists`.
    pub async fn enqueue(&self, new: &NewExecution) -> Result<Enqueued> {
        let store = self.store("enqueue")?;
        let (new, asked) = trace::one_shot(new);
        let answered = match store.enqueue(std::slice::from_ref(new.as_ref())).await {
            Ok(answers) => {
                let answer = answers.into_iter().next();
                answer.ok_or(Error::NoAnswer { call: "enqueue" })
            }
            Err(error) => Err(error.into()),
        };
        asked.ended(&answered, trace::enqueued);
        self.wake().await;
        answered
    }

    /// Enqueues many one-shots in one transaction; answers stand in the order of `new`.
    pub async fn enqueue_all(&self, new: &[NewExecution]) -> Result<Vec<Enqueued>> {
        let store = self.store("enqueue")?;
        let (rows, asked): (Vec<_>, Vec<_>) = new.iter().map(trace::one_shot).unzip();
        let answered = if rows.iter().any(|row| matches!(row, Cow::Owned(_))) {
            let rows: Vec<_> = rows.into_iter().map(Cow::into_owned).collect();
            store.enqueue(&rows).await
        } else {
            store.enqueue(new).await
        };
        for (at, asked) in asked.into_iter().enumerate() {
            asked.ended(&answered, |all| {
                all.get(at).map_or("unknown", trace::enqueued)
            });
        }
        let answers = answered?;
        self.wake().await;
        Ok(answers)
    }

    /// Fires a schedule now, whatever its next instant; returns the fire. An error that may
    /// pass is answered by asking again for the same fire, three times in all: it fires once.
    ///
    /// # Errors
    ///
    /// * [`Error::NoSuchSchedule`]: no live schedule has that name.
    /// * [`Error::TriggerUnknown`]: no answer; it names the fire to look for.
    /// * The ledger refuses.
    pub async fn trigger(&self, schedule: &str) -> Result<Uuid> {
        let fire_id = ids::fresh();
        let store = self.store("trigger")?;
        let (trace, asked) = trace::fire(fire_id, schedule, "manual");
        let triggered =
            operate::again(async || store.trigger(schedule, fire_id, Some(&trace)).await).await;
        asked.ended(&triggered, |triggered| match triggered {
            Triggered::Fired { .. } => "fired",
            Triggered::NotFound => "not_found",
        });
        match triggered {
            Ok(Triggered::Fired { fire_id, .. }) => {
                self.wake().await;
                Ok(fire_id)
            }
            Ok(Triggered::NotFound) => Err(Error::NoSuchSchedule {
                name: schedule.to_owned(),
            }),
            Err(Error::Store(source)) if source.is_transient() => Err(Error::TriggerUnknown {
                schedule: schedule.to_owned(),
                fire_id,
                source,
            }),
            Err(error) => Err(error),
        }
    }

    /// Registers a schedule; refuses a name that a live schedule has, whoever made it. What is
    /// registered here is the client's ([`NewSchedule::origin`] is set to that): a worker whose
    /// code defines a schedule of this name says so in its log and leaves it alone.
    pub async fn register(&self, new: &NewSchedule) -> Result<Uuid> {
        let mut new = new.clone();
        new.origin = Origin::Api;
        match self.store("register")?.register_schedule(&new).await? {
            Registered::Inserted(id) => Ok(id),
            Registered::Exists(_) => Err(Error::ScheduleExists { name: new.name }),
        }
    }

    /// Ends a schedule by name: no future fire; what was planned goes on. One that a worker's
    /// code defines ends, too, and stays ended until the next start of a worker whose code
    /// still defines it: take it out of the code, or pause it instead.
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
        // It must not hang what is committed already while the broker is away, and is not kept
        // for its return.
        if nats.connection_state() != State::Connected {
            return;
        }
        let publish = nats.publish(self.subjects.wake_relay(), bytes::Bytes::new());
        match tokio::time::timeout(WAKE_MAX, publish).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "relays were not woken"),
            Err(_elapsed) => tracing::debug!("relays were not woken: the connection takes nothing"),
        }
    }
}
