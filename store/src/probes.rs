//! Unknown executions: what became of an effect that must not be repeated blindly.
//!
//! Three may say it: the claim itself by a late result, a probe, an operator. Whoever locks the
//! row first decides; the others find that they are late. A probe is dispatched like an execution,
//! one lease after the loss, and is claimed under an id of its own: generation and claim id of the
//! attempt that was lost stay, so that a late result of it is still known.
//!
//! ```text
//!  unknown, not dispatched ──sweep──► dispatched ──claim──► probed ──verdict──► succeeded,
//!        ▲        ▲                                         │    │              retrying, failed,
//!        │        └───── its worker lost, past its deadline ┘    │              cancelled
//!        └───────────────────────────────── in_progress ─────────┘
//! ```
//!
//! `cannot_tell`, and 15 min without an answer, hand it to an operator: no further probe is made. A
//! worker whose build lacks the probe gives it back while another live one has it.

use std::time::Duration;

use bellwether_schemas::state::{Reason, State, Trigger, Verdict};
use bellwether_schemas::trace::TraceContext;
use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::{Payload, Result};

/// A probe that a worker wants, as told by [`ClaimAnswer::ProbeDue`](crate::executions::ClaimAnswer).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeAsk {
    /// The execution.
    pub execution_id: Uuid,
    /// The dispatch its message named.
    pub dispatch_no: u32,
    /// The token, chosen by the caller; the same on every repeat, and that of the claim which
    /// was answered `ProbeDue`.
    pub probe_id: Uuid,
    /// Time the probe may take from its start. The ledger takes it away 2 s and a grace later.
    pub timeout: Duration,
}

/// The answer to one ask for a probe.
#[derive(Debug, Clone)]
pub enum ProbeAnswer {
    /// The caller runs it.
    Claimed(Box<Probe>),
    /// Locked or raced: say nothing to the broker, its redelivery asks again.
    Busy,
    /// The caller's session is not live: nothing was claimed.
    SessionLost,
}

/// A claimed probe: the questioned attempt, and the fence of the probe.
#[derive(Debug, Clone)]
pub struct Probe {
    /// The execution.
    pub execution_id: Uuid,
    /// Its fire.
    pub fire_id: Uuid,
    /// The business idempotency key: what the effect may be known by.
    pub operation_id: Uuid,
    /// The job.
    pub job: String,
    /// The queue.
    pub queue: String,
    /// This shard.
    pub shard_index: u32,
    /// Shards of the fire.
    pub shard_total: u32,
    /// What made the fire.
    pub trigger: Trigger,
    /// The due instant.
    pub scheduled_at: DateTime<Utc>,
    /// The generation of the attempt in question.
    pub generation: i64,
    /// Its number, from 1.
    pub attempt: u32,
    /// Why it left `running`: `worker_lost` or `timeout`.
    pub reason: Option<Reason>,
    /// The same for people.
    pub error: Option<String>,
    /// When it left `running`.
    pub lost_at: DateTime<Utc>,
    /// The fence.
    pub probe_id: Uuid,
    /// Counts probes since the loss, from 1.
    pub probe_no: u32,
    /// What the handler got.
    pub payload: Payload,
    /// The fire's trace.
    pub trace: Option<TraceContext>,
}

/// What a probe says.
#[derive(Debug, Clone)]
pub struct ProbeResult {
    /// The execution.
    pub execution_id: Uuid,
    /// The fence.
    pub probe_id: Uuid,
    /// Any but `abandon`.
    pub verdict: Verdict,
    /// What goes with it, for people; cut at `limits::ERROR_TEXT_MAX`.
    pub note: String,
    /// A `not_done` of a probe that was claimed sooner after the loss counts as `in_progress`: the
    /// worker may still have been at work. One lease. So does one while the session of the attempt
    /// is live: its handler has not returned, and may do anything yet.
    pub settled_after: Duration,
}

/// What an operator says of an unknown execution.
#[derive(Debug, Clone)]
pub struct Ruling {
    /// The execution.
    pub execution_id: Uuid,
    /// A fresh id; a repeat with the same one changes nothing and answers the same.
    pub token: Uuid,
    /// `done`, `not_done` or `abandon`.
    pub verdict: Verdict,
    /// Why, for people: 1 character to `limits::ERROR_TEXT_MAX`, beyond which it is cut.
    pub reason: String,
}

/// How a verdict ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decided {
    /// It counts: the execution became this (`unknown`: to be probed again, or an operator's). A
    /// repeat answers the same, whatever became of the execution since.
    Accepted(State),
    /// The probe is not the row's, or the row is not `unknown`: nothing was changed.
    Fenced(State),
    /// No such execution.
    Gone,
}

/// How it ended that a worker has no probe to ask with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Declined {
    /// Another worker has one: the probe is given back, and due again after the delay of one that
    /// said `in_progress`.
    Returned,
    /// Nobody has: an operator's, as after `cannot_tell`. A repeat answers the same.
    Escalated,
    /// The probe is not the row's, or the row is not `unknown`: nothing was changed. So answers a
    /// repeat of one that was given back.
    Fenced(State),
    /// No such execution.
    Gone,
}

/// What is kept as the note of one that nobody can probe.
pub(crate) const NO_PROBE: &str = "the job has no probe";

/// Probes and operators.
#[async_trait::async_trait]
pub trait Probes {
    /// Unknown rows that no probe was dispatched for, lost at least `after` ago and due for
    /// another look: dispatches them; at most `limit`.
    async fn dispatch_probes(&self, after: Duration, limit: u32) -> Result<u64>;

    /// Claims probes for a session. Answers stand in the order of `asks`. Costs no attempt; the
    /// execution's own claim stays as it is.
    async fn claim_probes(&self, session: Uuid, asks: &[ProbeAsk]) -> Result<Vec<ProbeAnswer>>;

    /// Takes what a probe says: `done` = `succeeded`; `not_done` = `retrying`, dispatched, or
    /// `failed` with `attempts_exhausted`, or `cancelled` if that was requested; `in_progress` =
    /// another probe after 5 s doubling to 1 min; `cannot_tell` = escalated. Refuses `abandon`.
    async fn commit_probe(&self, result: &ProbeResult) -> Result<Decided>;

    /// Says that the caller's build has no probe for the job. While a live session that serves the
    /// queue reports one ([`NewSession::probes`](crate::sessions::NewSession::probes)), that is no
    /// verdict and not counted: a fleet in the middle of a rolling deployment is asked on until a
    /// newer worker gets it, at most for the 15 min of an `unknown` one. Otherwise it is
    /// `cannot_tell`. One statement decides which.
    async fn decline_probe(&self, execution_id: Uuid, probe_id: Uuid) -> Result<Declined>;

    /// Gives a probe back that said nothing: another worker may ask at once. A repeat, or one
    /// that was taken away, changes nothing.
    async fn release_probe(&self, execution_id: Uuid, probe_id: Uuid) -> Result<()>;

    /// Probes whose session is not live, or whose deadline passed `grace` ago: taken back, to be
    /// dispatched again. Answers their executions; at most `limit`.
    async fn recover_probes(&self, grace: Duration, limit: u32) -> Result<Vec<Uuid>>;

    /// Takes what an operator says, at any time while the execution is `unknown`: `done` and
    /// `not_done` as of a probe, but at once; `abandon` = `failed` with the reason of the loss.
    /// A probe that runs meanwhile is fenced. Refuses other verdicts and an empty reason.
    async fn resolve(&self, ruling: &Ruling) -> Result<Decided>;
}

/// Delay before another look at one whose probe said `in_progress`: 5 s, 10 s, 20 s, 40 s, then
/// 1 min.
pub(crate) fn another_look(probe_no: u32) -> Duration {
    let doublings = probe_no.clamp(1, 5) - 1;
    Duration::from_secs(60.min(5 << doublings))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_look_follows_after_5_s_doubling_to_a_minute() {
        let seconds: Vec<_> = (0..8).map(|no| another_look(no).as_secs()).collect();
        assert_eq!(seconds, [5, 5, 10, 20, 40, 60, 60, 60]);
    }
}
