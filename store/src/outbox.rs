//! The outbox: dispatches that the broker has not confirmed yet.

use std::time::Duration;

use bellwether_schemas::state::Priority;
use bellwether_schemas::wire::Dispatch;
use chrono::{DateTime, Utc};
use uuid::Uuid;

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
    /// When it was dispatched, by the database's clock. Travels with the message: what a lane
    /// has at its head says how far the lane has come.
    pub dispatched_at: DateTime<Utc>,
    /// How long ago that was when the row was leased.
    pub waited: Duration,
    /// What is sent.
    pub dispatch: Dispatch,
}

/// A dispatch that the broker has confirmed, and that nobody has claimed for long. It may lie in
/// its lane's backlog, or be lost: the broker knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overdue {
    /// The execution that waits for it, or whose probe does.
    pub execution_id: Uuid,
    /// Its lane.
    pub lane: Lane,
    /// Which of its dispatches.
    pub dispatch_no: u32,
    /// When it was made, by the database's clock.
    pub dispatched_at: DateTime<Utc>,
    /// Dispatches of this execution in a row that were lost one by one.
    pub lost_dispatches: u32,
}

/// How long a dispatch waits before it may be called lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// The first time; doubled for each loss in a row.
    pub first: Duration,
    /// The longest.
    pub cap: Duration,
}

impl Wait {
    /// After so many losses in a row.
    pub fn after(&self, lost_dispatches: u32) -> Duration {
        let doublings = lost_dispatches.min(20);
        self.first.saturating_mul(1 << doublings).min(self.cap)
    }
}

/// What became of dispatches that were lost one by one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Redispatched {
    /// Dispatched again.
    pub again: u64,
    /// Ended as `failed(undeliverable)`, each with a dead letter `unclaimed`.
    pub ended: u64,
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
    /// Leases unleased rows to the caller, skipping the lanes in `paused`: the oldest of each
    /// lane, and as many of each as the limit lets all have. In one answer the oldest come first.
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

    /// The dispatches that were confirmed, are older than `wait` says, and were never claimed:
    /// the oldest `limit` of each lane, oldest first. Left out are those that the loss of `stream`
    /// will dispatch again, and lanes with outbox rows as old as that: they are behind.
    ///
    /// To be read *before* the broker is asked about the lanes: whatever the broker shows of a
    /// lane then, these had been sent.
    async fn overdue_dispatches(
        &self,
        stream: &str,
        wait: Wait,
        limit: u32,
    ) -> Result<Vec<Overdue>>;

    /// The broker has lost these dispatches: each is made again under a new number, if it still
    /// is the one that its execution waits for. It counts as unclaimed if a live session that
    /// serves queue and job had free slots ever since before it was made. At the
    /// `unclaimed_max`-th of these the execution ends as `failed(undeliverable)` instead, with a
    /// dead letter `unclaimed` that can be replayed. A repeat changes nothing.
    async fn redispatch_overdue(
        &self,
        lost: &[Overdue],
        unclaimed_max: u32,
    ) -> Result<Redispatched>;

    /// The queues that a live session with free slots has served without a break for so long.
    async fn idle_queues(&self, for_at_least: Duration) -> Result<Vec<String>>;
}

/// What a dead letter `unclaimed` says.
pub(crate) fn unclaimed(unclaimed_max: u32) -> String {
    format!(
        "dispatched {unclaimed_max} times and never claimed, although a worker with free slots \
         served its queue and job; look at that worker's log and its NATS permissions, then \
         replay it"
    )
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_to_the_cap() {
        let wait = Wait {
            first: Duration::from_mins(1),
            cap: Duration::from_mins(15),
        };
        let minutes: Vec<_> = (0..7).map(|n| wait.after(n).as_secs() / 60).collect();
        assert_eq!(minutes, [1, 2, 4, 8, 15, 15, 15]);
        assert_eq!(wait.after(u32::MAX), wait.cap);
    }
}
