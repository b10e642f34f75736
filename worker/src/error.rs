//! Why a worker cannot be built or cannot go on.

use std::time::Duration;

use bellwether_schemas::names::NameError;
use uuid::Uuid;

use crate::budget::StopBudget;
use crate::declared::JobError;

/// Why a worker cannot be built or cannot go on. What passes by itself (a ledger or broker
/// that is away, a stream that is not declared yet) is waited for and is no error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing was registered.
    #[error("no job is registered: call `.register(your_function::job())` before `.run()`")]
    NoJobs,
    /// Two jobs have one name.
    #[error("two jobs are named {0:?}: the name is the identity on the wire, give each its own")]
    DuplicateJob(String),
    /// A job cannot be registered.
    #[error("job {name:?} is refused: {source}")]
    Job {
        /// The job.
        name: String,
        /// Why.
        source: JobError,
    },
    /// The namespace or a queue keeps not to the alphabet.
    #[error(transparent)]
    Name(#[from] NameError),
    /// No database is named.
    #[error(
        "no database is named: call `.database(…)`, or `.from_env()` with BELLWETHER_DATABASE_URL set"
    )]
    NoDatabase,
    /// No broker is named.
    #[error(
        "no NATS server is named: call `.nats(\"nats://host:4222\")`, or `.from_env()` with BELLWETHER_NATS_URL set"
    )]
    NoBroker,
    /// An option is out of bounds.
    #[error("{option} is out of bounds: {bounds}")]
    OutOfBounds {
        /// The option.
        option: &'static str,
        /// What may be set.
        bounds: &'static str,
    },
    /// A variable of the environment says what cannot be.
    #[error("{name} is refused: {why}")]
    Variable {
        /// The variable.
        name: String,
        /// Why, and what may be set.
        why: String,
    },
    /// The ledger refuses us for good; see [`bellwether_store::ErrorKind`].
    #[error(transparent)]
    Ledger(#[from] bellwether_store::Error),
    /// The NATS address or its options cannot be used.
    #[error("failed to connect to NATS at {url}: {reason}")]
    Broker {
        /// The address.
        url: String,
        /// Why.
        reason: String,
    },
    /// The broker's streams belong to another ledger.
    #[error(
        "stream {stream} belongs to ledger {found}, this database is ledger {ours}: \
         give each ledger a namespace of its own"
    )]
    OtherLedger {
        /// The stream.
        stream: String,
        /// The ledger in its metadata.
        found: String,
        /// Ours.
        ours: Uuid,
    },
    /// A stop may take longer than the platform lets the process live after SIGTERM.
    #[error(
        "kill_after of {kill_after:?} is less than a stop may take: {needed}; raise kill_after and the \
         platform's own limit (terminationGracePeriodSeconds, TimeoutStopSec), or lower drain"
    )]
    KillBudget {
        /// What the platform gives.
        kill_after: Duration,
        /// What a stop may take.
        needed: StopBudget,
    },
    /// Too many handlers ignored their cancellation and hold their slots
    /// ([`Builder::leaked_max`](crate::Builder::leaked_max)); the worker stopped in order. Only
    /// the end of the process stops them: end it, and have it started again.
    #[error(
        "{leaked} of {max_concurrent} slots are held by handlers that ignore their cancellation: the \
         worker has stopped; start the process again, and make the handlers return soon after \
         ctx.cancelled()"
    )]
    Leaked {
        /// Slots still held at the end.
        leaked: usize,
        /// Handlers at once.
        max_concurrent: usize,
    },
    /// A part of the worker panicked: a fault of this program. What it held was finished or
    /// is taken over; start the process again.
    #[error("a part of the worker broke; the log says which: start it again")]
    Broken,
    /// The operating system refuses something that a worker needs.
    #[error("failed to {what}: {source}")]
    System {
        /// What it needs, as a verb phrase.
        what: &'static str,
        /// Why not.
        source: std::io::Error,
    },
}
