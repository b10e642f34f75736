//! Terms: who may plan. Protocol in the crate documentation of the ticker.

use std::time::Duration;

use uuid::Uuid;

use crate::Result;

/// One period of leadership over one partition. Every planning statement names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    /// The partition led.
    pub partition: i32,
    /// Counts the terms of the partition; rises by one with each.
    pub epoch: i64,
    /// Random; with the epoch it is the fence.
    pub term_id: Uuid,
    /// The partition map this term was won under.
    pub map_version: i64,
}

/// How a bid for a term ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired {
    /// The caller leads.
    Won(Term),
    /// Somebody else does.
    Held {
        /// Identity of the leader's process.
        holder: String,
        /// Until its lease runs out, unless it renews.
        remaining: Duration,
    },
    /// The lease row is missing: an error to be shown, never a free pass.
    LeaseMissing,
    /// The partition map is no longer the caller's.
    MapChanged,
    /// The last term planned with newer time zone data than the caller's.
    ZoneDataOlder {
        /// Version of the zone data the last term used.
        required: String,
    },
}

/// How a renewal ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewed {
    /// The lease runs anew from the database's now.
    Renewed,
    /// The term is over; the caller steps down.
    Lost,
}

/// A bid for a term.
#[derive(Debug, Clone)]
pub struct Bid<'a> {
    /// The partition.
    pub partition: i32,
    /// The partition map the caller works by.
    pub map_version: i64,
    /// Identity of this process start, shown to operators.
    pub holder: &'a str,
    /// Lease time from the database's now.
    pub lease: Duration,
    /// Version of the caller's time zone data.
    pub zone_version: &'a str,
}

/// Terms and their leases.
#[async_trait::async_trait]
pub trait Leadership {
    /// Takes the lease if it has expired: locks the row `FOR UPDATE` first (a takeover must
    /// wait for planners that hold it `FOR KEY SHARE`), then raises the epoch, ends the old
    /// term's row and starts a new one, stamped after the lock.
    async fn acquire_term(&self, bid: &Bid<'_>) -> Result<Acquired>;

    /// Extends the lease of each term that is still its row's and has not expired; one answer
    /// for each, in their order. One statement, however many terms a process holds. Does not
    /// wait for planners.
    async fn renew_terms(&self, terms: &[Term], lease: Duration) -> Result<Vec<Renewed>>;

    /// Gives the lease of each term that is still its row's back: it expires now, the term ends.
    /// One statement, however many; waits for planners. A repeat changes nothing.
    async fn resign_terms(&self, terms: &[Term]) -> Result<()>;
}
