//! Schedules: the rows that say when a job fires.

use std::time::Duration;

use bellwether_schemas::state::{OnLost, Priority};
use chrono::{DateTime, Utc};
use serde::Serialize;
use uuid::Uuid;

use crate::{Payload, Result};

/// When a schedule fires, as stored. `bellwether-time` evaluates it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Timing {
    /// A cron expression in a zone.
    Cron {
        /// The expression in its canonical form.
        expr: String,
        /// IANA zone or `UTC`.
        zone: String,
    },
    /// Every period, counted from an anchor: `anchor + k × period`, k ≥ 0.
    Every {
        /// Milliseconds, at least 1,000.
        period_ms: i64,
        /// The anchor; none = the ledger's now when the row is inserted.
        anchor: Option<DateTime<Utc>>,
    },
    /// Once.
    At {
        /// The instant.
        at: DateTime<Utc>,
    },
}

impl Timing {
    /// `cron`, `every` or `at`.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Cron { .. } => "cron",
            Self::Every { .. } => "every",
            Self::At { .. } => "at",
        }
    }

    /// The evaluated form; the error is a stored expression that this build refuses.
    /// An anchor that is not stored yet evaluates as the Unix epoch.
    pub fn evaluate(&self) -> Result<bellwether_time::Timing, bellwether_time::Rejected> {
        Ok(match self {
            Self::Cron { expr, zone } => {
                bellwether_time::Timing::Cron(bellwether_time::Cron::parse(expr, zone)?)
            }
            Self::Every { period_ms, anchor } => bellwether_time::Timing::Every {
                anchor: anchor.unwrap_or(DateTime::UNIX_EPOCH),
                period: Duration::from_millis(u64::try_from(*period_ms).unwrap_or(0).max(1_000)),
            },
            Self::At { at } => bellwether_time::Timing::At(*at),
        })
    }
}

/// How executions are treated; pinned on them when they are made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Policy {
    /// Time an attempt may run from its claim. Default 5 min.
    pub timeout: Duration,
    /// Most charged attempts. Default 5.
    pub max_attempts: u32,
    /// Not started this long after due: expired. Default 24 h. Of a misfire that fires all the
    /// same it counts from the moment it was planned.
    pub start_deadline: Duration,
    /// What happens when the worker is lost. Default `retry`.
    pub on_lost: OnLost,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            timeout: Duration::from_mins(5),
            max_attempts: 5,
            start_deadline: Duration::from_hours(24),
            on_lost: OnLost::Retry,
        }
    }
}

/// Where a schedule's definition came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// A `#[job]` attribute of a worker.
    Code,
    /// The client or an operator.
    Api,
}

impl Origin {
    /// `code` or `api`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Code => "code",
            Self::Api => "api",
        }
    }
}

/// A schedule to be registered.
#[derive(Debug, Clone)]
pub struct NewSchedule {
    /// Unique among live schedules.
    pub name: String,
    /// The job it fires.
    pub job: String,
    /// The queue its executions go to.
    pub queue: String,
    /// Their lane.
    pub priority: Priority,
    /// When it fires.
    pub timing: Timing,
    /// What the handler gets.
    pub payload: Payload,
    /// Shards of each fire, 1 to `limits::SHARD_TOTAL_MAX`.
    pub shard_total: u32,
    /// Pinned on each execution.
    pub policy: Policy,
    /// An instant at most this late fires on its own; a later one is a misfire. Default 60 s.
    pub grace: Duration,
    /// Who defined it.
    pub origin: Origin,
}

impl NewSchedule {
    /// A schedule with defaults: queue `default`, lane `normal`, payload `null`, one shard,
    /// 60 s grace, default policy, origin `api`; it fires the job of its own name.
    pub fn new(name: impl Into<String>, timing: Timing) -> Self {
        let name = name.into();
        Self {
            job: name.clone(),
            name,
            queue: bellwether_schemas::subject::DEFAULT_QUEUE.to_owned(),
            priority: Priority::Normal,
            timing,
            payload: Payload::json("null"),
            shard_total: 1,
            policy: Policy::default(),
            grace: Duration::from_mins(1),
            origin: Origin::Api,
        }
    }
}

/// A schedule's row.
#[derive(Debug, Clone)]
pub struct Schedule {
    /// Random id; part of its fires' ids.
    pub id: Uuid,
    /// Unique among live schedules.
    pub name: String,
    /// The job it fires.
    pub job: String,
    /// The queue its executions go to.
    pub queue: String,
    /// Their lane.
    pub priority: Priority,
    /// When it fires. The anchor of an interval is always present here.
    pub timing: Timing,
    /// Shards of each fire.
    pub shard_total: u32,
    /// Pinned on each execution.
    pub policy: Policy,
    /// Misfire grace.
    pub grace: Duration,
    /// Who defined it.
    pub origin: Origin,
    /// Whether it fires.
    pub enabled: bool,
    /// Rises with each edit.
    pub version: i64,
    /// The last instant settled; what is due lies after it.
    pub cursor: DateTime<Utc>,
    /// The next due instant, if the ticker has computed one.
    pub next_at: Option<DateTime<Utc>>,
    /// No instant is left.
    pub ended: bool,
    /// Why the ticker cannot plan it.
    pub fault: Option<String>,
    /// From here on the history is complete.
    pub history_from: DateTime<Utc>,
    /// When it was registered.
    pub created_at: DateTime<Utc>,
}

/// How a registration ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registered {
    /// A new row; its cursor is the ledger's now (milliseconds).
    Inserted(Uuid),
    /// A live schedule has that name; it was not changed.
    Exists(Uuid),
}

/// How a removal ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// The row is a tombstone now: no future fire; what was planned goes on.
    Removed(Uuid),
    /// No live schedule has that name.
    NotFound,
}

/// Registration of schedules.
#[async_trait::async_trait]
pub trait Schedules {
    /// Inserts the schedule unless a live one has its name, and its queue if unknown.
    /// Refuses names, shard counts and payloads out of bounds and expressions that
    /// `bellwether-time` refuses ([`crate::ErrorKind::Invalid`]).
    async fn register_schedule(&self, new: &NewSchedule) -> Result<Registered>;

    /// Ends a schedule by name.
    async fn remove_schedule(&self, name: &str) -> Result<Removed>;

    /// All live schedules, by name.
    async fn schedules(&self) -> Result<Vec<Schedule>>;
}
