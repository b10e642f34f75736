//! The outbox: dispatches that the broker has not confirmed yet.

use std::time::Duration;

use bellwether_schemas::state::Priority;
use bellwether_schemas::wire::Dispatch;
use chrono::{DateTime, Utc};

use crate::Result;

/// A queue's lane.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane {
    /// The queue.
    pub queue: String,
    /// Its lane.
    pub priority: Priority,
}

/// An outbox row leased to one relay, with what its message carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxRow {
    /// The row.
    pub id: i64,
    /// Where it goes.
    pub lane: Lane,
    /// What is sent.
    pub dispatch: Dispatch,
}

/// How full the outbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backlog {
    /// Rows.
    pub rows: u64,
    /// Age of the oldest; zero if there is none.
    pub oldest: Duration,
}

/// What a relay does with the outbox.
#[async_trait::async_trait]
pub trait Outbox {
    /// Leases the oldest unleased rows to the caller, skipping the lanes in `paused`.
    /// A relay that dies leaves them to the next one when the lease is over; publishing a
    /// row twice is harmless. May be lost in a crash of the database.
    async fn claim_outbox(
        &self,
        limit: u32,
        lease: Duration,
        paused: &[Lane],
    ) -> Result<Vec<OutboxRow>>;

    /// The broker has confirmed these rows: deletes them.
    async fn mark_published(&self, ids: &[i64]) -> Result<()>;

    /// The broker has not taken these rows: ends their lease.
    async fn return_outbox(&self, ids: &[i64]) -> Result<()>;

    /// The queues, by name: the relay keeps a consumer for each lane of each.
    async fn queues(&self) -> Result<Vec<String>>;

    /// How full it is.
    async fn outbox_backlog(&self) -> Result<Backlog>;

    /// Every waiting, dispatched execution without an outbox row whose dispatch is older
    /// than the `seen_at` of `stream` gets a new dispatch; the oldest `limit` of them.
    /// A condition, not an event: any relay may repeat it at any time.
    async fn redispatch_lost(&self, stream: &str, limit: u32) -> Result<u64>;
}

/// What the ledger remembers of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamMark {
    /// When the broker made it, as the broker says.
    pub created: DateTime<Utc>,
    /// The highest sequence that a PubAck named.
    pub last_seq: u64,
    /// When it was first seen, or seen to be another one.
    pub seen_at: DateTime<Utc>,
}
