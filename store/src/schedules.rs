//! Schedules: the rows that say when a job fires.

use std::time::Duration;

use bellwether_schemas::state::{NonFireReason, OnLost, Overlap, Priority};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::planning::MissedRange;
use crate::{Payload, Result};

pub use crate::retry::RetryPolicy;
pub use bellwether_time::MisfirePolicy;

/// When a schedule fires, as stored. `bellwether-time` evaluates it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
    /// How long to wait before the next attempt.
    pub retry: RetryPolicy,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            timeout: Duration::from_mins(5),
            max_attempts: 5,
            start_deadline: Duration::from_hours(24),
            on_lost: OnLost::Retry,
            retry: RetryPolicy::default(),
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
    /// What it is for, in the words of whoever defined it; at most
    /// `limits::DESCRIPTION_MAX` characters. Default empty.
    pub description: String,
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
    /// What becomes of misfires. Default `fire_once`.
    pub misfire: MisfirePolicy,
    /// What becomes of an instant while a fire is unfinished. Default `allow`.
    pub overlap: Overlap,
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
            description: String::new(),
            queue: bellwether_schemas::subject::DEFAULT_QUEUE.to_owned(),
            priority: Priority::Normal,
            timing,
            payload: Payload::json("null"),
            shard_total: 1,
            policy: Policy::default(),
            grace: Duration::from_mins(1),
            misfire: MisfirePolicy::default(),
            overlap: Overlap::Allow,
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
    /// What it is for.
    pub description: String,
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
    /// What becomes of misfires.
    pub misfire: MisfirePolicy,
    /// What becomes of an instant while a fire is unfinished.
    pub overlap: Overlap,
    /// Who defined it.
    pub origin: Origin,
    /// Hash of the definition from code that it follows.
    pub code_hash: Option<String>,
    /// When an operator edited a schedule; above what the code says until it is reset.
    pub edited_at: Option<DateTime<Utc>>,
    /// Whether it fires.
    pub enabled: bool,
    /// Rises with each edit.
    pub version: i64,
    /// The partition whose leader plans it.
    pub partition: i32,
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

/// A live schedule with what an edit needs to know.
#[derive(Debug, Clone)]
pub struct FoundSchedule {
    /// The row.
    pub schedule: Schedule,
    /// What its fires hand to the handler.
    pub payload: Payload,
    /// The timing that its instants are judged by: the one last written by an edit, whatever
    /// a hand has written into the row since.
    pub recorded: Timing,
    /// The ledger's clock.
    pub now: DateTime<Utc>,
}

/// A change of a live schedule, made by compare-and-set.
#[derive(Debug, Clone)]
pub struct ScheduleChange {
    /// The schedule.
    pub id: Uuid,
    /// Its version when it was read.
    pub version: i64,
    /// Its cursor when it was read.
    pub cursor: DateTime<Utc>,
    /// What it shall be; the name is the row's own. The anchor of an interval is present.
    pub definition: NewSchedule,
    /// Whether it fires.
    pub enabled: bool,
    /// Whose words these are; none = only `enabled` changes.
    pub author: Option<Author>,
    /// Present where the cursor moves: an edit of the timing, and a resumption. The next
    /// instant is computed anew, an end or a fault is over.
    pub settled: Option<Settled>,
    /// Whether the timing differs: it is written to the history of timings, valid from
    /// `settled`.
    pub timing_changed: bool,
}

/// Who changes a definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Author {
    /// An operator: stands above the code until it is reset.
    Operator,
    /// A definition from code, by its hash; an operator's edit is over.
    Code {
        /// [`crate::definition::Definition::hash`].
        hash: String,
    },
}

impl Author {
    /// `operator` or `code`.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Code { .. } => "code",
        }
    }

    /// The hash of the definition from code.
    pub(crate) fn hash(&self) -> Option<&str> {
        match self {
            Self::Operator => None,
            Self::Code { hash } => Some(hash),
        }
    }
}

/// Where a change leaves the cursor, and what did not fire before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    /// The new cursor: the ledger's now when the schedule was read.
    pub cursor: DateTime<Utc>,
    /// The instants between the old cursor and the new one.
    pub skipped: Option<(NonFireReason, MissedRange)>,
}

/// How a change ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// Done; the version is this now.
    Done(i64),
    /// Version or cursor are others now, the schedule is gone, or the ledger's clock was set back
    /// behind the new cursor: read it again.
    Stale,
}

/// A definition from code that the ledger knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownDefinition {
    /// The schedule's name.
    pub name: String,
    /// The definition's hash.
    pub hash: String,
    /// The definition: JSON of [`crate::definition::Definition`].
    pub body: String,
    /// When the ledger saw it first.
    pub first_seen_at: DateTime<Utc>,
    /// A live session reports it.
    pub live: bool,
    /// A session has reported it, or it was noted, within the last minute.
    pub recent: bool,
    /// No schedule of its name is left, and the last one was ended because no worker defined it,
    /// not by an operator.
    pub retired: bool,
}

/// The columns of a timing in a row.
#[derive(Debug)]
pub(crate) struct TimingColumns {
    pub(crate) kind: &'static str,
    pub(crate) expr: &'static str,
    pub(crate) zone: &'static str,
    pub(crate) period_ms: &'static str,
    pub(crate) anchor: &'static str,
    pub(crate) at: &'static str,
}

/// A row's own timing.
pub(crate) const TIMING: TimingColumns = TimingColumns {
    kind: "kind",
    expr: "expr",
    zone: "zone",
    period_ms: "period_ms",
    anchor: "anchor",
    at: "at",
};

/// [`FoundSchedule::recorded`]; null where no history of timings exists.
pub(crate) const RECORDED: TimingColumns = TimingColumns {
    kind: "recorded_kind",
    expr: "recorded_expr",
    zone: "recorded_zone",
    period_ms: "recorded_period_ms",
    anchor: "recorded_anchor",
    at: "recorded_at",
};

/// The columns `catch_up_max` and `catch_up_window_ms`: null unless the policy is `catch_up`.
pub(crate) const fn catch_up(misfire: MisfirePolicy) -> Option<(u32, Duration)> {
    match misfire {
        MisfirePolicy::CatchUp { max, window } => Some((max, window)),
        MisfirePolicy::FireOnce | MisfirePolicy::Skip => None,
    }
}

/// What is said of a schedule whose row cannot be read, as its fault and elsewhere.
pub(crate) fn unreadable(why: &impl std::fmt::Display) -> String {
    format!(
        "its row cannot be read ({why}): mend the row and set its fault to null, or remove the \
         schedule"
    )
}

/// Registration of schedules.
#[async_trait::async_trait]
pub trait Schedules {
    /// Inserts the schedule unless a live one has its name, and its queue if unknown.
    /// Refuses names, shard counts and payloads out of bounds and expressions that
    /// `bellwether-time` refuses ([`crate::ErrorKind::Invalid`]).
    /// One of origin `code` follows the definition whose hash `new` has.
    async fn register_schedule(&self, new: &NewSchedule) -> Result<Registered>;

    /// Ends a schedule by name.
    async fn remove_schedule(&self, name: &str) -> Result<Removed>;

    /// All live schedules, by name. One whose row cannot be read is left out with a warning that
    /// names it.
    async fn schedules(&self) -> Result<Vec<Schedule>>;

    /// The live schedules of these names, by name. One whose row cannot be read is answered by
    /// an error of its own ([`crate::ErrorKind::Corrupt`]).
    async fn find_schedules(&self, names: &[String]) -> Result<Vec<Result<FoundSchedule>>>;

    /// Changes a live schedule by compare-and-set on its version and cursor. The version
    /// rises; its queue is added if unknown. Refuses what [`Self::register_schedule`] refuses,
    /// and a cursor behind the row's.
    /// [`crate::edit`] builds the changes.
    async fn change_schedule(&self, change: &ScheduleChange) -> Result<Changed>;

    /// Remembers definitions from code as noted now; the time of the first note stays.
    async fn note_definitions(&self, definitions: &[crate::definition::Definition]) -> Result<()>;

    /// All known definitions of these names.
    async fn definitions(&self, names: &[String]) -> Result<Vec<KnownDefinition>>;
}
