//! The ledger: what was promised, who works on it, and what became of it.
//!
//! [`Store`] is the seam. Domain code sees use cases (plan fires, claim, commit, sweep),
//! never a pool, a row or SQL. Each operation is one transaction with an outcome enum;
//! Postgres ([`postgres`]) and SQLite ([`sqlite`]) stand behind it and pass one
//! conformance suite (`tests/conformance`).
//!
//! # How to add an operation
//!
//! 1. Put its types and its method into the trait of its use case (`leadership`,
//!    `partitions`, `schedules`, `planning`, `executions`, `probes`, `idempotency`, `outbox`, `streams`, `sessions`, `sweeps`,
//!    `retention`, `inspect`, `pulse`), with what a repeat does and what a crash leaves behind.
//! 2. Write it in the file of the same name under `postgres/` and `sqlite/`. On Postgres
//!    it is one autocommit statement where it is fenced; on SQLite one `BEGIN IMMEDIATE`.
//! 3. Add a conformance case; the suite fails when the two stores run different counts.

mod abandoned;
pub mod audit;
mod check;
pub mod checkpoints;
mod connect;
pub mod dead;
pub mod definition;
pub mod edit;
mod error;
pub mod executions;
pub mod grants;
pub mod idempotency;
pub mod inspect;
pub mod leadership;
pub mod life;
pub mod migrate;
pub mod outbox;
pub mod partitions;
pub mod planning;
pub mod postgres;
pub mod probes;
pub mod pulse;
pub mod retention;
mod retry;
pub mod schedules;
pub mod sessions;
pub mod sqlite;
pub mod streams;
pub mod sweeps;
mod transaction;

pub use check::{ATTEMPTS_MAX, CATCH_UP_MAX, POLICY_MAX, POLICY_MIN};
pub use connect::{Options, connect, migrate, validate};
pub use error::{Error, ErrorKind, Result};
pub use migrate::{Validated, script};
pub use transaction::{Transaction, commit_in, enqueue_in};

use bellwether_schemas::names::NameError;
use chrono::{DateTime, Utc};
use uuid::Uuid;

/// Which database holds the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// Production.
    Postgres,
    /// One host; the embedded default.
    Sqlite,
}

impl Backend {
    /// `postgres` or `sqlite`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Sqlite => "sqlite",
        }
    }
}

/// What identifies a ledger and how its schedules are divided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ledger {
    /// Random, made once by the first migration; every dispatch carries it.
    pub id: Uuid,
    /// Partitions of the schedules; a ticker configured with another count refuses to start.
    pub partition_count: u32,
    /// Version of the partition map; part of the term's fence.
    pub map_version: i64,
    /// The ledger's clock at the time of the call.
    pub now: DateTime<Utc>,
}

/// The ledger behind one database.
#[async_trait::async_trait]
pub trait Store:
    leadership::Leadership
    + partitions::Partitions
    + schedules::Schedules
    + planning::Planning
    + probes::Probes
    + executions::Executions
    + checkpoints::Checkpoints
    + dead::DeadLetters
    + idempotency::Idempotency
    + outbox::Outbox
    + streams::Streams
    + sessions::Sessions
    + sweeps::Sweeps
    + retention::Retention
    + inspect::Inspect
    + pulse::TakePulse
    + audit::Audit
    + Send
    + Sync
    + 'static
{
    /// Which database this is.
    fn backend(&self) -> Backend;

    /// Identity, partition map and clock.
    async fn ledger(&self) -> Result<Ledger>;

    /// Adds a queue that is not there yet; relays create its consumers within a second.
    async fn ensure_queue(&self, queue: &str) -> Result<()>;

    /// Closes the connections; calls in flight finish first.
    async fn close(&self);
}

/// A payload or output as received: bytes and how they are encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    /// The user's bytes, untouched; at most `limits::PAYLOAD_MAX`.
    pub bytes: Vec<u8>,
    /// `application/json` or `application/msgpack`.
    pub content_type: String,
}

impl Payload {
    /// A JSON payload of ready-made bytes.
    pub fn json(bytes: impl Into<Vec<u8>>) -> Self {
        Self {
            bytes: bytes.into(),
            content_type: bellwether_schemas::header::JSON.to_owned(),
        }
    }
}

impl From<NameError> for Error {
    fn from(error: NameError) -> Self {
        Error::new("check a name", ErrorKind::Invalid, error)
    }
}
