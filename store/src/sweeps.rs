//! Sweeps: conditions on rows that any ticker, leader or not, may settle at any time.
//!
//! Each is a conditional write on the row's own facts under its lock, bounded and in id
//! order, so that two tickers sweeping at once do nothing twice.

use std::time::Duration;

use bellwether_schemas::state::State;
use uuid::Uuid;

use crate::Result;

/// A session that lost its lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostSession {
    /// The session.
    pub id: Uuid,
    /// Its label.
    pub name: String,
}

/// A running execution that was taken from its claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// The execution.
    pub execution_id: Uuid,
    /// Where it stands now: `retrying` (dispatched again), `failed`, `cancelled` or `unknown`.
    pub state: State,
}

/// How long the reports of a session that has ended are kept at least: they count as recent for a
/// minute ([`crate::schedules::KnownDefinition::recent`]).
pub(crate) const REPORTS_KEPT: Duration = Duration::from_mins(1);

/// Sweeps. Every method handles at most `limit` rows.
#[async_trait::async_trait]
pub trait Sweeps {
    /// Live sessions past their expiry become `lost`; re-checked under the row's lock.
    async fn lose_sessions(&self, limit: u32) -> Result<Vec<LostSession>>;

    /// Running rows whose session is not live (a missing one counts as lost; reason
    /// `worker_lost`), or whose deadline passed `grace` ago (reason `timeout`): another
    /// attempt, dispatched by the same statement; or `failed` with `attempts_exhausted`;
    /// or `unknown` by `on_lost`; or, with a cancel requested, `cancelled` (`unknown` if the
    /// job may not be repeated).
    async fn recover_lost(&self, grace: Duration, limit: u32) -> Result<Vec<Recovered>>;

    /// Waiting rows that are due and not dispatched: dispatches them.
    async fn dispatch_due(&self, limit: u32) -> Result<u64>;

    /// Waiting rows past their start deadline: `failed(no_handler)` if that was the last
    /// refusal, else `expired`. Waiting rows without an attempt left: `failed` with
    /// `attempts_exhausted`. Waiting rows with a cancel request: `cancelled`, whatever else holds.
    async fn expire_starts(&self, limit: u32) -> Result<u64>;

    /// Unknown rows older than `age` without an escalation: marked as escalated.
    async fn escalate_unknown(&self, age: Duration, limit: u32) -> Result<u64>;

    /// Keys whose execution ended longer than `retention` ago: forgotten.
    async fn forget_keys(&self, retention: Duration, limit: u32) -> Result<u64>;

    /// Schedules from code that the whole fleet has stopped to define become tombstones: no
    /// session has reported the name for `after` while one that serves the schedule's queue
    /// was live all that time. What an operator edited or paused stays. Answers the names.
    /// The reports of sessions that ended longer than `after` ago are forgotten.
    async fn retire_definitions(&self, after: Duration, limit: u32) -> Result<Vec<String>>;

    /// Records that clocks moved apart.
    async fn record_clock_anomaly(&self, seen_by: &str, detail: &str) -> Result<()>;
}
