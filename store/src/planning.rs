//! Planning: from due instants to fires, executions and outbox rows.

use std::time::Duration;

use bellwether_schemas::state::{NonFireReason, Overlap};
use bellwether_schemas::trace::TraceContext;
use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::Result;
use crate::leadership::Term;
use crate::schedules::Schedule;

/// What a ticker has to look at now.
#[derive(Debug, Clone)]
pub struct Due {
    /// The ledger's clock.
    pub now: DateTime<Utc>,
    /// Live, enabled schedules that are due or whose next instant is not computed yet,
    /// oldest first.
    pub schedules: Vec<Schedule>,
    /// Until the next instant of any other schedule; none = there is none.
    pub next_in: Option<Duration>,
}

/// An instant that fires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedFire {
    /// Derived from schedule and instant.
    pub id: Uuid,
    /// The due instant.
    pub scheduled_at: DateTime<Utc>,
    /// Local wall time of the instant, for people.
    pub nominal_local: String,
    /// `only`, `first`, `second` or `shifted`.
    pub fold: String,
    /// The trace that starts here.
    pub trace: TraceContext,
}

/// Instants that do not fire, both ends inclusive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissedRange {
    /// First instant.
    pub from: DateTime<Utc>,
    /// Last instant.
    pub until: DateTime<Utc>,
    /// How many, computed.
    pub count: u64,
}

/// What one schedule does in a planning statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanStep {
    /// The schedule.
    pub schedule_id: Uuid,
    /// Its version when it was read: part of the compare-and-set.
    pub version: i64,
    /// Its cursor when it was read: part of the compare-and-set.
    pub cursor: DateTime<Utc>,
    /// The last instant this step settles; the old cursor if none.
    pub new_cursor: DateTime<Utc>,
    /// The instant after it; none = none is left.
    pub new_next_at: Option<DateTime<Utc>>,
    /// Shards of the schedule when it was read.
    pub shard_total: u32,
    /// The overlap policy when it was read; part of what the version stands for. With any but
    /// `allow` a step has one fire at most.
    pub overlap: Overlap,
    /// Instants that fire.
    pub fires: Vec<PlannedFire>,
    /// Instants that do not (reason `misfired`).
    pub missed: Option<MissedRange>,
    /// Why nothing can be planned: taken out of planning and shown.
    pub fault: Option<String>,
}

/// How a planning statement ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// Whether the term was in force; if not, nothing was written and the caller steps down.
    pub term_ok: bool,
    /// Schedules whose cursor moved; the others have changed, or another transaction holds their row,
    /// and must be read again.
    pub moved: Vec<Uuid>,
    /// Fires inserted.
    pub fires: u64,
    /// Fires whose id was there already (a repeat); nothing was changed for them.
    pub fires_existing: u64,
    /// Executions inserted, each with its outbox row unless its fire is held.
    pub executions: u64,
    /// Of the fires inserted, those that are held behind another.
    pub held: u64,
    /// Schedules whose instant did not fire because of the overlap policy, and why: `skipped` or
    /// `coalesced`.
    pub overlapped: Vec<(Uuid, NonFireReason)>,
}

/// Planning.
#[async_trait::async_trait]
pub trait Planning {
    /// At most `limit` schedules of `partitions` to look at. One whose row cannot be read gets a fault: it is
    /// taken out of planning and stops no other.
    async fn due_schedules(&self, partitions: &[i32], limit: u32) -> Result<Due>;

    /// Moves cursors by compare-and-set inside the term and inserts what follows, in one
    /// fenced statement: no client pause can hold a lock. A step whose `new_cursor` lies
    /// ahead of the ledger's clock is not moved. At most `limits::PLAN_EXECUTIONS_MAX`
    /// executions a call.
    async fn plan(&self, term: &Term, steps: &[PlanStep]) -> Result<Planned>;
}
