//! Executions: enqueue, claim, commit.
//!
//! The fence is `(generation, claim_id)`: a counter that never falls and a random token
//! chosen by the claimant before it asks. A claim or a commit whose reply was lost is sent
//! again with the same token and answers as the first one did.

use std::time::Duration;

use bellwether_schemas::state::{Priority, Reason, State, Trigger};
use bellwether_schemas::trace::TraceContext;
use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::schedules::{Policy, RetryPolicy};
use crate::{Payload, Result};

/// A one-shot for the outbox path.
#[derive(Debug, Clone)]
pub struct NewExecution {
    /// A fresh id; the execution's own id derives from it. Enqueued again with the same one it is the same
    /// execution, as long as that is kept: after the retention of the history it runs again. Any UUID
    /// will do; one that begins with the present instant, as a `UUIDv7` does and the default, is deleted with
    /// the least work.
    pub fire_id: Uuid,
    /// The job.
    pub job: String,
    /// The queue; added if unknown.
    pub queue: String,
    /// Its lane.
    pub priority: Priority,
    /// What the handler gets.
    pub payload: Payload,
    /// Not before this instant; none = now.
    pub run_at: Option<DateTime<Utc>>,
    /// How it is treated.
    pub policy: Policy,
    /// Idempotency key: one execution per `(job, key)`.
    pub key: Option<String>,
    /// The caller's trace; none = a new one.
    pub trace: Option<TraceContext>,
}

impl NewExecution {
    /// A one-shot with defaults: queue `default`, lane `normal`, due now, default policy, no key.
    pub fn new(job: impl Into<String>, payload: Payload) -> Self {
        Self {
            fire_id: bellwether_schemas::ids::fresh(),
            job: job.into(),
            queue: bellwether_schemas::subject::DEFAULT_QUEUE.to_owned(),
            priority: Priority::Normal,
            payload,
            run_at: None,
            policy: Policy::default(),
            key: None,
            trace: None,
        }
    }

    /// The id its execution gets.
    pub fn execution_id(&self) -> Uuid {
        bellwether_schemas::ids::execution(self.fire_id, 0)
    }
}

/// How an enqueue ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enqueued {
    /// Inserted; dispatched by the same statement if it is due.
    Inserted {
        /// The execution.
        execution_id: Uuid,
    },
    /// The `(job, key)` or the id was there already; nothing was changed.
    Exists {
        /// The execution of the first one.
        execution_id: Uuid,
    },
}

impl Enqueued {
    /// The execution that stands for the one-shot, new or old.
    pub const fn execution_id(self) -> Uuid {
        match self {
            Self::Inserted { execution_id } | Self::Exists { execution_id } => execution_id,
        }
    }
}

/// How a manual trigger ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Triggered {
    /// A fire with all its executions, dispatched.
    Fired {
        /// The fire.
        fire_id: Uuid,
        /// Its executions.
        shard_total: u32,
    },
    /// No live schedule has that name.
    NotFound,
}

/// A dispatched execution that a worker wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimAsk {
    /// The execution.
    pub execution_id: Uuid,
    /// The dispatch its message named.
    pub dispatch_no: u32,
    /// The token, chosen by the caller; the same on every repeat.
    pub claim_id: Uuid,
}

/// A submitted message that a worker wants.
#[derive(Debug, Clone)]
pub struct SubmitAsk {
    /// A fresh id, used if the key is new; the same on every repeat.
    pub fire_id: Uuid,
    /// The token, chosen by the caller; the same on every repeat.
    pub claim_id: Uuid,
    /// The job its subject names.
    pub job: String,
    /// The queue its subject names.
    pub queue: String,
    /// Its idempotency key.
    pub key: String,
    /// Its body.
    pub payload: Payload,
    /// Not before this instant.
    pub run_at: Option<DateTime<Utc>>,
    /// How it is treated.
    pub policy: Policy,
    /// The client's trace; none = a new one.
    pub trace: Option<TraceContext>,
    /// When the broker stored it.
    pub stored_at: DateTime<Utc>,
    /// Whether `policy.timeout` is the message's own, which a worker that pins the policy of
    /// its job leaves as it is.
    pub own_timeout: bool,
    /// Whether the caller has a handler for the job. Without one the execution is recorded
    /// as waiting and deferred, and its policy as not known: see [`Executions::pin_policy`].
    pub has_handler: bool,
}

/// Why a claim was refused. Each is a definite answer: the message is acked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It has ended.
    Terminal(State),
    /// Another claim holds it, or it is `unknown` and this dispatch asks for no probe.
    Held,
    /// No such execution: an orphan of a ledger that was reset.
    NoSuchExecution,
    /// A cancel was requested.
    CancelRequested,
    /// Waits for a later instant, and this is not the row's own dispatch; or its fire is held.
    NotDue,
    /// Past its start deadline; the sweep ends it.
    PastStartDeadline,
    /// No attempt is left; the sweep ends it.
    BudgetUsedUp,
    /// Submit: the key is known; the ledger owns that execution.
    KnownKey,
    /// Submit: recorded to run later (run-at in the future, or no handler here).
    Recorded,
    /// Submit: older than the keys are kept; recorded as a dead letter.
    Stale,
}

/// The answer to one ask.
#[derive(Debug, Clone)]
pub enum ClaimAnswer {
    /// The caller runs it. The RUNNING witness is in the ledger.
    Claimed(Box<Claimed>),
    /// Nothing was claimed: it is `unknown`, and this dispatch asks what became of it. Ask
    /// [`Probes::claim_probes`](crate::probes::Probes::claim_probes) under the same token.
    ProbeDue,
    /// Definitely not.
    Refused(Refusal),
    /// Locked or raced: say nothing to the broker, its redelivery asks again.
    Busy,
    /// The caller's session is not live: nothing was claimed.
    SessionLost,
}

/// A claimed execution.
#[derive(Debug, Clone)]
pub struct Claimed {
    /// The execution.
    pub execution_id: Uuid,
    /// Its fire.
    pub fire_id: Uuid,
    /// The business idempotency key: the same over all attempts.
    pub operation_id: Uuid,
    /// The job.
    pub job: String,
    /// The queue.
    pub queue: String,
    /// The fence, with `generation`.
    pub claim_id: Uuid,
    /// Counts claims.
    pub generation: i64,
    /// Counts charged tries, from 1.
    pub attempt: u32,
    /// Most charged tries.
    pub max_attempts: u32,
    /// This shard.
    pub shard_index: u32,
    /// Shards of the fire.
    pub shard_total: u32,
    /// What made the fire.
    pub trigger: Trigger,
    /// Version of the schedule's definition.
    pub schedule_version: Option<i64>,
    /// The due instant.
    pub scheduled_at: DateTime<Utc>,
    /// When the ledger takes it away: claim + 2 s + timeout.
    pub deadline_at: DateTime<Utc>,
    /// From its dispatch to this claim, by the database's clock; none = it never was in the
    /// outbox.
    pub waited: Option<Duration>,
    /// Time the handler may run from its start.
    pub timeout: Duration,
    /// How long to wait before another attempt.
    pub retry: RetryPolicy,
    /// Whether its policy is that of its job. If not, it was recorded by a worker without the job,
    /// and [`Executions::pin_policy`] comes before the handler's start.
    pub policy_known: bool,
    /// What the handler gets.
    pub payload: Payload,
    /// What an earlier attempt saved last; see [`crate::checkpoints`].
    pub checkpoint: Option<Vec<u8>>,
    /// The fire's trace.
    pub trace: Option<TraceContext>,
}

/// How pinning a policy ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyPinned {
    /// It stands in the row.
    Pinned {
        /// When the ledger takes the execution away: 2 s + timeout from now.
        deadline_at: DateTime<Utc>,
        /// Time the handler may run; the message's own if it named one.
        timeout: Duration,
        /// Most charged tries; not fewer than were charged already.
        max_attempts: u32,
    },
    /// The execution no longer runs under this claim, or is not there: nothing was changed.
    Fenced,
}

/// An execution handed back unclaimed because this worker cannot run it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deferral {
    /// The execution.
    pub execution_id: Uuid,
    /// The dispatch its message named; another one is not touched.
    pub dispatch_no: u32,
}

/// What became of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// `succeeded`.
    Complete(Payload),
    /// `retrying` after the delay, the charge given back.
    Snooze(Duration),
    /// `cancelled`.
    Cancel(String),
    /// `failed(rejected)`.
    Fail(String),
    /// `retrying` after the delay, or `failed` when no attempt is left; see also `stopped`.
    Retry {
        /// `error`, `timeout`, `panic` or `bad_payload`.
        reason: Reason,
        /// What the handler said.
        error: String,
        /// Chosen by the retry policy.
        delay: Duration,
        /// Whether the handler has returned. If not, nobody knows what it does from here on:
        /// where it must not be repeated blindly (`on_lost` is `unknown`), the execution becomes
        /// `unknown`, also with a cancel requested or without an attempt left.
        stopped: bool,
    },
    /// `retrying`, due now, the charge given back.
    Release,
    /// As [`Release`](Self::Release), of what was claimed and found no free slot in time; the row
    /// says so as its last refusal, `executor_overloaded`.
    Overloaded,
}

impl Outcome {
    /// A short word for logs and `fenced_result.outcome`.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Complete(_) => "complete",
            Self::Snooze(_) => "snooze",
            Self::Cancel(_) => "cancel",
            Self::Fail(_) => "fail",
            Self::Retry { .. } => "retry",
            Self::Release => "release",
            Self::Overloaded => "overloaded",
        }
    }

    /// False where the handler may still be at work.
    pub const fn stopped(&self) -> bool {
        !matches!(self, Self::Retry { stopped: false, .. })
    }
}

/// A result to be committed.
#[derive(Debug, Clone)]
pub struct Commit {
    /// The execution.
    pub execution_id: Uuid,
    /// The fence.
    pub claim_id: Uuid,
    /// The fence.
    pub generation: i64,
    /// How long ago the handler started; none = it never did.
    pub started_ago: Option<Duration>,
    /// What became of it.
    pub outcome: Outcome,
}

/// The answer to one commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Committed {
    /// The result has ended its attempt, and has made this of the row. A repeat answers the same,
    /// whatever became of the row since.
    Accepted(State),
    /// The ledger holds the result, of an attempt that had ended before: the row was `unknown`, and
    /// this settles it; or it says no more than that, and the row stays so. A repeat answers the
    /// same.
    Late(State),
    /// The claim is no longer the row's: nothing changed, the result is kept for audit.
    Fenced {
        /// The row's state.
        state: State,
        /// The row's generation.
        generation: i64,
    },
    /// No such execution; the result is kept for audit.
    Gone,
}

impl Committed {
    /// The state of the row by a result that the ledger holds.
    pub const fn held(self) -> Option<State> {
        match self {
            Self::Accepted(state) | Self::Late(state) => Some(state),
            Self::Fenced { .. } | Self::Gone => None,
        }
    }

    /// The answer to a result that the ledger holds.
    pub(crate) const fn holds(state: State, late: bool) -> Self {
        if late {
            Self::Late(state)
        } else {
            Self::Accepted(state)
        }
    }
}

/// Executions.
#[async_trait::async_trait]
pub trait Executions {
    /// Inserts one-shots with their outbox rows (a later run-at is dispatched by the sweep
    /// when due). Answers stand in the order of `new`; two with one key count as repeats.
    /// Refuses names, keys and payloads out of bounds.
    async fn enqueue(&self, new: &[NewExecution]) -> Result<Vec<Enqueued>>;

    /// Makes a fire of the schedule now (trigger `manual`), paused or not and whatever its overlap
    /// policy: it is neither held nor skipped, but counts as unfinished for the instants that come
    /// due meanwhile, and with `replace` they ask it to stop. `fire_id` is fresh; a repeat with
    /// the same one changes nothing and answers the same.
    async fn trigger(
        &self,
        schedule: &str,
        fire_id: Uuid,
        trace: Option<&TraceContext>,
    ) -> Result<Triggered>;

    /// Claims a batch for a session. Answers stand in the order of `asks`.
    async fn claim(&self, session: Uuid, asks: &[ClaimAsk]) -> Result<Vec<ClaimAnswer>>;

    /// Records and claims submitted messages. Answers stand in the order of `asks`.
    async fn claim_submitted(&self, session: Uuid, asks: &[SubmitAsk]) -> Result<Vec<ClaimAnswer>>;

    /// Gives a running execution whose policy is not known that of its job, before its handler
    /// starts: timeout (unless the message named its own) with a new deadline, attempts, start
    /// deadline, `on_lost` and retry delays. One fenced statement; a repeat pins the same again
    /// and counts the deadline anew. Refuses a policy out of bounds.
    async fn pin_policy(
        &self,
        execution_id: Uuid,
        claim_id: Uuid,
        generation: i64,
        policy: &Policy,
    ) -> Result<PolicyPinned>;

    /// Hands back executions whose job this worker does not know: due again after 1 s
    /// doubling to 60 s, `last_refusal = no_handler`, no charge.
    async fn defer(&self, deferrals: &[Deferral]) -> Result<()>;

    /// Commits a batch of results under their fences. Answers stand in the order of `commits`.
    async fn commit(&self, commits: &[Commit]) -> Result<Vec<Committed>>;

    /// Requests that executions stop. What waits or is `unknown` ends at once; what runs is told
    /// by its worker ([`crate::sessions::Sessions::cancel_hints`]). A repeat answers how it stands then.
    /// Answers stand in the order of `ids`. One that stays locked by others fails the call
    /// ([`crate::ErrorKind::Conflict`], which names it) once all others have their requests, or a
    /// few more were found locked: ask again.
    async fn request_cancel(&self, ids: &[Uuid]) -> Result<Vec<CancelRequested>>;

    /// Repeats an execution that has ended without success: a new fire (trigger `retry`) of
    /// the same shard with a whole budget, `retry_of` and the same operation id, dispatched whatever
    /// the schedule's overlap policy: its instants wait for it, `replace` included. No
    /// two retries of one operation run at once. `fire_id` is fresh; a repeat with the same one
    /// changes nothing and answers the same.
    async fn retry_execution(
        &self,
        id: Uuid,
        fire_id: Uuid,
        trace: Option<&TraceContext>,
    ) -> Result<Retried>;
}

/// How a request to cancel ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelRequested {
    /// It waited, or was `unknown`, and is `cancelled` now. What became of an `unknown` one stays
    /// so: a result that its worker still sends is fenced and kept for audit.
    Cancelled,
    /// It runs: the request is recorded.
    Requested {
        /// Its state: `running`.
        state: State,
        /// Whether its worker looks for such requests. If not, it ends at its deadline.
        told: bool,
    },
    /// It had ended before.
    Ended(State),
    /// Of several: others hold its row locked for too long; nothing was requested.
    Locked,
    /// No such execution.
    NotFound,
}

/// How an operator's retry ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retried {
    /// A new execution, dispatched.
    Retried {
        /// It.
        execution_id: Uuid,
    },
    /// It has not ended, or it succeeded: nothing to repeat.
    Refused(State),
    /// A retry of it, or of one of its retries, has not ended or has succeeded.
    AlreadyRetried {
        /// That retry.
        execution_id: Uuid,
        /// Where it stands.
        state: State,
    },
    /// No such execution.
    NotFound,
}
