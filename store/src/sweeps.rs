//! Sweeps: conditions on rows that any ticker, leader or not, may settle at any time.
//!
//! Each is a conditional write on the row's own facts under its lock, bounded and in id
//! order, so that two tickers sweeping at once do nothing twice.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bellwether_schemas::state::{Reason, State};
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
    /// Its job.
    pub job: String,
    /// Where it stands now: `retrying` (dispatched again), `failed`, `cancelled` or `unknown`.
    pub state: State,
    /// Why: `worker_lost`, `timeout`, or `cancelled` where that had been requested.
    pub reason: Reason,
}

/// A waiting execution that will not run any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Its job.
    pub job: String,
    /// `failed`, `expired` or `cancelled`.
    pub state: State,
    /// Why, where there is more to say than the state does.
    pub reason: Option<Reason>,
}

/// What became of fires.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FiresSwept {
    /// Fires that are done with.
    pub fires: u64,
    /// Executions that changed.
    pub executions: u64,
    /// Of these, how many ended: as `cancelled`.
    pub ended: u64,
}

/// What became of keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeysSwept {
    /// Keys that are forgotten.
    pub keys: u64,
    /// Whether there are old ones that were not looked at.
    pub more: bool,
}

/// Shortest retention of idempotency keys. A message is stale a day before its key may be forgotten; it
/// has another one to be claimed in. What says that a younger key was forgotten is of a wrong clock.
pub const KEY_RETENTION_MIN: Duration = Duration::from_hours(48);

/// How long the reports of a session that has ended are kept at least: they count as recent for a
/// minute ([`crate::schedules::KnownDefinition::recent`]).
pub(crate) const REPORTS_KEPT: Duration = Duration::from_mins(1);

/// Where a round of [`Sweeps::release_held`] begins: after the schedule that the one before looked at
/// last, so that fires that stay held keep none behind them from being looked at. Likewise a round of
/// [`crate::retention::Retention::forget_fires`], after an execution, and of [`Sweeps::forget_keys`],
/// after a key.
#[derive(Debug, Default)]
pub(crate) struct Lap<T = Uuid>(Mutex<T>);

impl<T: Clone + Default> Lap<T> {
    /// That after which to look; the default = from the first one on.
    pub(crate) fn after(&self) -> T {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// `last` = what was looked at last; none = there was none behind it.
    pub(crate) fn looked_up_to(&self, last: Option<T>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = last.unwrap_or_default();
    }
}

/// Held fires that one round looks at.
pub(crate) fn held_max(limit: u32) -> i64 {
    i64::from(limit).saturating_mul(10).max(1)
}

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

    /// Fires that are held and of whose schedule nothing else is unfinished any more: their
    /// executions are due now and dispatched. Of two sweeps at once one lets a fire go. A fire
    /// whose executions have ended as they were held is done with too; so is any whose schedule
    /// allows overlaps by now. Stops after the fire that has reached `limit` executions. Looks at ten
    /// times `limit` fires at most; the next call goes on behind them.
    async fn release_held(&self, limit: u32) -> Result<FiresSwept>;

    /// Fires that another replaces: each of their unfinished executions gets the request to cancel,
    /// as from [`crate::executions::Executions::request_cancel`]; but what is `unknown` stays so, and
    /// its late result, a probe or an operator ends it: it may still be under way. One whose row is locked gets
    /// it in a later sweep. At most `limit` executions.
    async fn apply_fire_cancels(&self, limit: u32) -> Result<FiresSwept>;

    /// Waiting rows past their start deadline: `failed(no_handler)` if that was the last
    /// refusal, else `expired`. Waiting rows without an attempt left: `failed` with
    /// `attempts_exhausted`. Waiting rows with a cancel request: `cancelled`, whatever else holds.
    async fn expire_starts(&self, limit: u32) -> Result<Vec<Ended>>;

    /// Unknown rows older than `age` without an escalation: marked as escalated.
    async fn escalate_unknown(&self, age: Duration, limit: u32) -> Result<u64>;

    /// Keys whose execution ended longer than `retention` ago: forgotten, a minute after the
    /// ledger has recorded that they may be. From then on a submitted message that may be older
    /// than a forgotten key is [`Refusal::Stale`](crate::executions::Refusal::Stale), whatever
    /// retention this or another ticker has; a longer one later takes nothing back. Looks at `limit`
    /// keys that are so old, behind those of the call before; the call after the last one begins with
    /// the oldest again.
    async fn forget_keys(&self, retention: Duration, limit: u32) -> Result<KeysSwept>;

    /// Schedules from code that the whole fleet has stopped to define become tombstones: no
    /// session has reported the name for `after` while one that serves the schedule's queue
    /// was live all that time. What an operator edited or paused stays. Answers the names.
    /// The reports of sessions that ended longer than `after` ago are forgotten.
    async fn retire_definitions(&self, after: Duration, limit: u32) -> Result<Vec<String>>;

    /// Records that clocks moved apart.
    async fn record_clock_anomaly(&self, seen_by: &str, detail: &str) -> Result<()>;
}
