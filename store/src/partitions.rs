//! Partitions: how schedules are divided, who leads which part, and how their number grows.
//!
//! A schedule belongs to the partition that the last 32 bits of its id, modulo the number of
//! partitions, name; executions belong to none. Each partition has a lease of its own
//! ([`crate::leadership`]). Ticker processes say in the table `ticker` that they are there, so
//! that each bids for no more than its share.

use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::{Error, ErrorKind, Result};

/// Most partitions of a ledger. Each costs a ticker one row of a renewal and of a look a second;
/// a few for each ticker process is what shares the load.
pub const PARTITIONS_MAX: u32 = 1_024;

/// How long the row of a ticker that is seen no more is kept for `partitions show`.
pub const FORGET_AFTER: Duration = Duration::from_hours(1);

/// What a ticker process says of itself.
#[derive(Debug, Clone)]
pub struct CheckIn<'a> {
    /// Of this process start.
    pub id: Uuid,
    /// Its identity, as in its bids.
    pub holder: &'a str,
    /// The host it runs on, for people.
    pub host: &'a str,
    /// Its process id there.
    pub pid: u32,
    /// Version of the build.
    pub version: &'a str,
    /// The partition map it works by; that it says so shows that it can follow a new one.
    pub map_version: i64,
    /// Whether it can lead; the others take its share if not.
    pub bids: bool,
}

/// The lease of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The partition.
    pub partition: i32,
    /// The map that its terms are won under.
    pub map_version: i64,
    /// Epoch of the last term; 0 = there was none.
    pub epoch: i64,
    /// Token of the last term; none = there was none.
    pub term_id: Option<Uuid>,
    /// Version of the time zone data that the last term planned with; empty = there was none.
    pub zone_version: String,
    /// Identity of the process that holds or last held it.
    pub holder: Option<String>,
    /// Until it runs out; none = it is free.
    pub remaining: Option<Duration>,
}

/// A ticker process that was seen lately.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TickerView {
    /// Its identity, as in the leases.
    pub holder: String,
    /// The host it runs on.
    pub host: String,
    /// Its process id there.
    pub pid: i64,
    /// Version of the build.
    pub version: String,
    /// The partition map it works by.
    pub map_version: i64,
    /// Whether it can lead.
    pub bids: bool,
    /// When it was first seen.
    pub started_at: DateTime<Utc>,
    /// Since it was last seen.
    pub seen_ago: Duration,
}

/// Who leads what, and who is there to lead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roster {
    /// Partitions of the ledger.
    pub partition_count: u32,
    /// Version of the partition map.
    pub map_version: i64,
    /// The lease rows there are, by partition; one that is missing is an error to be shown.
    pub leases: Vec<Lease>,
    /// Ticker processes seen within the time asked for, by holder.
    pub tickers: Vec<TickerView>,
}

/// How a change of the number of partitions ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grown {
    /// All leases are free and wait for bids under the new map.
    Grown {
        /// The number before.
        from: u32,
        /// The number now.
        to: u32,
        /// The new map.
        map_version: i64,
        /// Schedules that belong to another partition now.
        moved: u64,
    },
    /// The ledger has that many: nothing was changed.
    Unchanged,
    /// Refused: the ledger has more. Fewer partitions are no change for a running system.
    WouldShrink {
        /// The number it has.
        stored: u32,
    },
    /// Refused: these tickers lead and cannot follow a change of the map.
    OldTickers {
        /// Their identities.
        holders: Vec<String>,
    },
    /// Others held the rows for too long; nothing was changed. Try again.
    Busy,
}

/// The division of schedules among tickers.
#[async_trait::async_trait]
pub trait Partitions {
    /// Says that the caller's process is there, and answers who else was seen within
    /// `seen_within`. Forgets processes that were not seen for [`FORGET_AFTER`].
    async fn check_in(&self, check_in: &CheckIn<'_>, seen_within: Duration) -> Result<Roster>;

    /// Takes the process off the roster, unless a lease of it is still in force; without it the
    /// others wait until it is not seen any more.
    async fn check_out(&self, id: Uuid) -> Result<()>;

    /// Who leads what, and which processes were seen within `seen_within`. Changes nothing.
    async fn roster(&self, seen_within: Duration) -> Result<Roster>;

    /// Live schedules of each partition that has any.
    async fn schedules_by_partition(&self) -> Result<Vec<(i32, u64)>>;

    /// Raises the number of partitions to `to`, while everything runs: one transaction that locks
    /// the map and all leases, so that no planner is at work and no registration under way,
    /// divides the schedules anew, ends all terms and adds the leases that are missing. Whoever
    /// plans by the old map afterwards writes nothing. A crash at any point leaves all old or
    /// all new; a repeat finds it [`Grown::Unchanged`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] unless `to` is from 1 to [`PARTITIONS_MAX`].
    async fn grow_partitions(&self, to: u32) -> Result<Grown>;
}

/// Refuses a number of partitions that no ledger has.
pub(crate) fn check_count(op: &'static str, to: u32) -> Result<()> {
    if (1..=PARTITIONS_MAX).contains(&to) {
        return Ok(());
    }
    let why = format!("{to} partitions; from 1 to {PARTITIONS_MAX} are possible");
    Err(Error::new(op, ErrorKind::Invalid, why))
}

/// What the stored number of partitions says to a wish for `to`; none = it is to be changed.
pub(crate) fn settled(stored: u32, to: u32) -> Option<Grown> {
    match to.cmp(&stored) {
        std::cmp::Ordering::Less => Some(Grown::WouldShrink { stored }),
        std::cmp::Ordering::Equal => Some(Grown::Unchanged),
        std::cmp::Ordering::Greater => None,
    }
}
