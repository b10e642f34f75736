//! What people and clients look at. Reads only.

use bellwether_schemas::state::{
    NonFireReason, Priority, Reason, SessionState, State, Trigger, Verdict,
};
use chrono::{DateTime, Utc};
use serde::Serialize;
use uuid::Uuid;

use crate::{Payload, Result};

/// Which executions to list.
#[derive(Debug, Clone, Default)]
pub struct ExecutionFilter {
    /// Only this state.
    pub state: Option<State>,
    /// Only this job.
    pub job: Option<String>,
    /// Only this queue.
    pub queue: Option<String>,
    /// Only this fire.
    pub fire_id: Option<Uuid>,
    /// Only those of whose operation no retry goes on or has succeeded.
    pub unrepeated: bool,
    /// Only `unknown` ones that wait for an operator, oldest first.
    pub escalated: bool,
    /// At most this many, newest id first.
    pub limit: u32,
}

/// An execution as people see it.
#[derive(Debug, Clone, Serialize)]
pub struct ExecutionView {
    /// The execution.
    pub id: Uuid,
    /// Its fire.
    pub fire_id: Uuid,
    /// Its operation.
    pub operation_id: Uuid,
    /// The schedule that owns the fire.
    pub schedule_id: Option<Uuid>,
    /// That schedule's version.
    pub schedule_version: Option<i64>,
    /// What made the fire.
    pub trigger: Trigger,
    /// The job.
    pub job: String,
    /// The queue.
    pub queue: String,
    /// The lane.
    pub priority: Priority,
    /// What a client named it.
    pub key: Option<String>,
    /// This shard.
    pub shard_index: u32,
    /// Shards of the fire.
    pub shard_total: u32,
    /// Where it stands.
    pub state: State,
    /// Why.
    pub reason: Option<Reason>,
    /// No attempt was left.
    pub attempts_exhausted: bool,
    /// The last refusal of a claim, if any.
    pub last_refusal: Option<String>,
    /// Charged tries.
    pub attempt: u32,
    /// Most charged tries.
    pub max_attempts: u32,
    /// Claims.
    pub generation: i64,
    /// The worker session of the current attempt.
    pub session_id: Option<Uuid>,
    /// Hand-overs to the broker.
    pub dispatch_no: u32,
    /// Due.
    pub scheduled_at: DateTime<Utc>,
    /// Written.
    pub created_at: DateTime<Utc>,
    /// A claim may take it from here on.
    pub available_at: DateTime<Utc>,
    /// Last hand-over.
    pub dispatched_at: Option<DateTime<Utc>>,
    /// Claim of the current attempt.
    pub claimed_at: Option<DateTime<Utc>>,
    /// Handler start of the current attempt.
    pub started_at: Option<DateTime<Utc>>,
    /// When the current attempt left `running`.
    pub attempt_ended_at: Option<DateTime<Utc>>,
    /// When the ledger takes the current attempt away.
    pub deadline_at: Option<DateTime<Utc>>,
    /// Expired if not started by then.
    pub start_deadline_at: DateTime<Utc>,
    /// A cancel was requested.
    pub cancel_requested_at: Option<DateTime<Utc>>,
    /// Ended.
    pub ended_at: Option<DateTime<Utc>>,
    /// What the last attempt said went wrong.
    pub error: Option<String>,
    /// Its trace.
    pub traceparent: Option<String>,
    /// The execution that it repeats by an operator's wish.
    pub retry_of: Option<Uuid>,
    /// The success came before its worker obeyed a request to cancel.
    pub cancel_lost: bool,
    /// Since when it is an operator's to say what became of it, while it is `unknown`.
    pub escalated_at: Option<DateTime<Utc>>,
    /// Its fire is held: it waits for an earlier fire of its schedule to end.
    pub held: bool,
    /// When an attempt saved the checkpoint that the next one gets; none = there is none.
    pub checkpoint_at: Option<DateTime<Utc>>,
    /// Its size in bytes.
    pub checkpoint_size: Option<u32>,
}

/// A queue as people see it.
#[derive(Debug, Clone, Serialize)]
pub struct QueueView {
    /// The queue.
    pub name: String,
    /// When it was added.
    pub created_at: DateTime<Utc>,
    /// Executions that wait for their first claim.
    pub pending: u64,
    /// Executions that wait for another attempt.
    pub retrying: u64,
    /// Executions that run.
    pub running: u64,
    /// Those of `pending` whose fire is held behind an earlier one.
    pub held: u64,
    /// Executions of which nobody knows whether their work was done.
    pub unknown: u64,
    /// Those of `unknown` that wait for an operator.
    pub escalated: u64,
    /// Dispatches that the broker has not confirmed.
    pub outbox: u64,
    /// Live workers that serve it.
    pub workers: u64,
    /// Executions that wait because no worker that saw them has a handler for their job.
    pub without_handler: u64,
    /// Since when the oldest execution that waits and is due has been due; that it was put off
    /// or is tried again changes nothing. What is held behind another fire is not due.
    pub oldest_due_at: Option<DateTime<Utc>>,
}

/// How the execution of a claim stands, for a worker that committed in a transaction of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimState {
    /// The claim's result is in the ledger, and has ended the attempt.
    Ended(State),
    /// The claim's result is in the ledger, and came when the execution was `unknown` already.
    EndedLate(State),
    /// It still runs under this claim.
    Running,
    /// Another claim or the sweep took it. In `unknown` a late commit of it is still accepted.
    Fenced(State),
    /// No such execution.
    Gone,
}

impl ClaimState {
    /// The claim's result is in the ledger.
    pub(crate) const fn ended(state: State, late: bool) -> Self {
        if late {
            Self::EndedLate(state)
        } else {
            Self::Ended(state)
        }
    }
}

/// An attempt that a later one superseded.
#[derive(Debug, Clone, Serialize)]
pub struct AttemptView {
    /// Its generation.
    pub generation: i64,
    /// Its number.
    pub attempt: u32,
    /// Who ran it.
    pub session_id: Uuid,
    /// Claim.
    pub claimed_at: DateTime<Utc>,
    /// Handler start.
    pub started_at: Option<DateTime<Utc>>,
    /// When it left `running`.
    pub ended_at: DateTime<Utc>,
    /// Why it left.
    pub reason: Option<Reason>,
    /// What it said.
    pub error: Option<String>,
}

/// A result that the fence refused.
#[derive(Debug, Clone, Serialize)]
pub struct FencedView {
    /// The refused generation.
    pub generation: i64,
    /// What it wanted to say.
    pub outcome: String,
    /// When.
    pub recorded_at: DateTime<Utc>,
}

/// What a probe or an operator said of an unknown execution.
#[derive(Debug, Clone, Serialize)]
pub struct VerdictView {
    /// The generation of the attempt in question.
    pub generation: i64,
    /// When.
    pub recorded_at: DateTime<Utc>,
    /// `probe` or `operator`.
    pub said_by: String,
    /// Which probe since the loss; none = an operator.
    pub probe_no: Option<u32>,
    /// What was said.
    pub verdict: Verdict,
    /// What went with it; an operator's reason.
    pub note: String,
    /// What the execution became by it; `unknown` = it stayed so.
    pub became: State,
}

/// All that the ledger knows of one execution.
#[derive(Debug, Clone)]
pub struct ExecutionStory {
    /// The row.
    pub execution: ExecutionView,
    /// Superseded attempts, oldest first.
    pub attempts: Vec<AttemptView>,
    /// Refused results, oldest first.
    pub fenced: Vec<FencedView>,
    /// What probes and operators said, oldest first.
    pub verdicts: Vec<VerdictView>,
    /// The accepted output.
    pub output: Option<Payload>,
    /// Another execution that repeats the same operation by an operator's wish and has not
    /// ended, or has succeeded: this one is not retried once more.
    pub retried_as: Option<Uuid>,
    /// The name of the schedule that owns its fire.
    pub schedule: Option<String>,
    /// The fire that the overlap policy held its fire behind; none = it was never held.
    pub held_behind: Option<Uuid>,
    /// When its held fire was let go; none = it is held, or never was.
    pub released_at: Option<DateTime<Utc>>,
    /// When a later fire of its schedule asked to replace its fire.
    pub replaced_at: Option<DateTime<Utc>>,
    /// That fire; none if its instant was passed over, because another waited already.
    pub replaced_by: Option<Uuid>,
    /// When the session of the current attempt ended.
    pub session_ended_at: Option<DateTime<Utc>>,
}

/// An execution's end, as a waiter sees it.
#[derive(Debug, Clone)]
pub struct ShardResult {
    /// The execution.
    pub execution_id: Uuid,
    /// Its job.
    pub job: String,
    /// This shard.
    pub shard_index: u32,
    /// Shards of the fire.
    pub shard_total: u32,
    /// Where it stands.
    pub state: State,
    /// Why.
    pub reason: Option<Reason>,
    /// The accepted output.
    pub output: Option<Payload>,
    /// What went wrong.
    pub error: Option<String>,
}

/// A fire of a schedule.
#[derive(Debug, Clone, Serialize)]
pub struct FireView {
    /// The fire.
    pub id: Uuid,
    /// What made it.
    pub trigger: Trigger,
    /// Due.
    pub scheduled_at: DateTime<Utc>,
    /// Planned.
    pub planned_at: DateTime<Utc>,
    /// Its shards.
    pub shard_total: u32,
    /// The term that planned it.
    pub epoch: Option<i64>,
    /// The fire that the overlap policy held it behind; none = it was never held.
    pub held_behind: Option<Uuid>,
    /// When a held fire was let go; none = it is held, or never was.
    pub released_at: Option<DateTime<Utc>>,
    /// When a later fire asked to replace it.
    pub cancel_requested_at: Option<DateTime<Utc>>,
}

/// Instants of a schedule that did not fire, of one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NonFireView {
    /// Why.
    pub reason: NonFireReason,
    /// How many instants, computed when they were passed over.
    pub instants: u64,
    /// In how many ranges.
    pub ranges: u64,
    /// The newest of them.
    pub until_at: DateTime<Utc>,
}

/// A fire that waits for its predecessor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeldFire {
    /// The fire.
    pub id: Uuid,
    /// Due.
    pub scheduled_at: DateTime<Utc>,
    /// Planned, and held since.
    pub planned_at: DateTime<Utc>,
    /// The fire it waits for.
    pub held_behind: Uuid,
}

/// A worker session as people see it.
#[derive(Debug, Clone, Serialize)]
pub struct SessionView {
    /// The session.
    pub id: Uuid,
    /// Its label.
    pub name: String,
    /// Host.
    pub host: String,
    /// Process id.
    pub pid: u32,
    /// Product version.
    pub version: String,
    /// Queues.
    pub queues: Vec<String>,
    /// Jobs.
    pub jobs: Vec<String>,
    /// Handlers at once.
    pub max_concurrent: u32,
    /// Rows it runs now.
    pub running: u32,
    /// Since when it has had free slots without a break, as its last renewal said.
    pub free_since: Option<DateTime<Utc>>,
    /// Slots held by handlers that were given up, as its last renewal said.
    pub leaked: u32,
    /// Since when it stops and takes no more work.
    pub draining_since: Option<DateTime<Utc>>,
    /// Where it stands.
    pub state: SessionState,
    /// Opened.
    pub opened_at: DateTime<Utc>,
    /// Last renewal.
    pub renewed_at: DateTime<Utc>,
    /// Lease end.
    pub expires_at: DateTime<Utc>,
    /// Ended.
    pub ended_at: Option<DateTime<Utc>>,
}

/// Reads.
#[async_trait::async_trait]
pub trait Inspect {
    /// Lists executions, newest first.
    async fn executions(&self, filter: &ExecutionFilter) -> Result<Vec<ExecutionView>>;

    /// One execution with its history.
    async fn execution(&self, id: Uuid) -> Result<Option<ExecutionStory>>;

    /// The executions of a fire by shard, with outputs; empty = no such fire.
    async fn fire_results(&self, fire_id: Uuid) -> Result<Vec<ShardResult>>;

    /// One execution as a waiter sees it.
    async fn execution_result(&self, id: Uuid) -> Result<Option<ShardResult>>;

    /// The execution of a `(job, key)`, once a claim or an enqueue has recorded it.
    async fn execution_of_key(&self, job: &str, key: &str) -> Result<Option<Uuid>>;

    /// The newest fires of a schedule (by id), newest first.
    async fn fires(&self, schedule_id: Uuid, limit: u32) -> Result<Vec<FireView>>;

    /// What of a schedule did not fire, of ranges that reach beyond `since`, by reason.
    async fn non_fires(&self, schedule_id: Uuid, since: DateTime<Utc>) -> Result<Vec<NonFireView>>;

    /// The fire of a schedule that its overlap policy holds, if there is one.
    async fn held_fire(&self, schedule_id: Uuid) -> Result<Option<HeldFire>>;

    /// Sessions, newest first; all live ones and the newest ended ones up to `limit`.
    async fn sessions(&self, limit: u32) -> Result<Vec<SessionView>>;

    /// Executions per state: `(state, count)` of those that exist.
    async fn state_counts(&self) -> Result<Vec<(State, u64)>>;

    /// All queues, by name.
    async fn queue_views(&self) -> Result<Vec<QueueView>>;

    /// How the execution of a claim stands.
    async fn claim_state(&self, execution_id: Uuid, claim_id: Uuid) -> Result<ClaimState>;
}
