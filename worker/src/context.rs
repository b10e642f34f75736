//! What a handler knows about the execution it works on.

use std::sync::Arc;
use std::time::Duration;

use bellwether_schemas::ids;
use bellwether_schemas::state::Trigger;
use bellwether_schemas::trace::TraceContext;
use bellwether_store::Payload;
use bellwether_store::executions::Claimed;
use chrono::{DateTime, Utc};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::clock;

/// One attempt at one execution. Cheap to clone; it may go into tasks of the handler.
///
/// Four identities are told apart: the job ([`job`](Self::job)), the fire
/// ([`fire_id`](Self::fire_id)), the try ([`generation`](Self::generation)) and the business
/// operation ([`operation_id`](Self::operation_id)), which stays the same over all tries: it
/// is the idempotency key for effects outside the ledger.
#[derive(Debug, Clone)]
pub struct Context {
    claimed: Arc<Claimed>,
    cancel: CancellationToken,
    /// In boot time: a suspended machine does not get more.
    ends_at: Duration,
}

impl Context {
    pub(crate) fn new(claimed: Arc<Claimed>, cancel: CancellationToken) -> Self {
        let ends_at = clock::boot().saturating_add(claimed.timeout);
        Self {
            claimed,
            cancel,
            ends_at,
        }
    }

    /// A context for tests of handlers: job `test`, first attempt of 5, shard 0 of 1, one
    /// minute of time, never cancelled.
    ///
    /// ```
    /// # use bellwether_worker::{job, Context};
    /// # #[job(name = "report")]
    /// # async fn report(ctx: Context) -> Result<u32, String> { Ok(ctx.shard_index() + 1) }
    /// # tokio_test(async {
    /// assert_eq!(report(Context::for_test().with_shard(1, 4)).await, Ok(2));
    /// # });
    /// # fn tokio_test(f: impl Future<Output = ()>) {
    /// #     tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(f);
    /// # }
    /// ```
    pub fn for_test() -> Self {
        let timeout = Duration::from_mins(1);
        let fire_id = ids::fresh();
        let execution_id = ids::execution(fire_id, 0);
        let claimed = Claimed {
            execution_id,
            fire_id,
            operation_id: execution_id,
            job: "test".to_owned(),
            queue: bellwether_schemas::subject::DEFAULT_QUEUE.to_owned(),
            claim_id: ids::token(),
            generation: 1,
            attempt: 1,
            max_attempts: 5,
            shard_index: 0,
            shard_total: 1,
            trigger: Trigger::Once,
            schedule_version: None,
            scheduled_at: DateTime::UNIX_EPOCH,
            deadline_at: DateTime::UNIX_EPOCH,
            timeout,
            payload: Payload::json("null"),
            trace: None,
        };
        Self::new(Arc::new(claimed), CancellationToken::new())
    }

    /// The same with another shard.
    #[must_use]
    pub fn with_shard(mut self, shard_index: u32, shard_total: u32) -> Self {
        let claimed = Arc::make_mut(&mut self.claimed);
        claimed.shard_index = shard_index;
        claimed.shard_total = shard_total;
        self
    }

    /// The same at another attempt.
    #[must_use]
    pub fn with_attempt(mut self, attempt: u32, max_attempts: u32) -> Self {
        let claimed = Arc::make_mut(&mut self.claimed);
        claimed.attempt = attempt;
        claimed.generation = i64::from(attempt);
        claimed.max_attempts = max_attempts;
        self
    }

    /// The job's name.
    pub fn job(&self) -> &str {
        &self.claimed.job
    }

    /// The queue it came through.
    pub fn queue(&self) -> &str {
        &self.claimed.queue
    }

    /// The fire: one due instant, trigger or one-shot. Shared by its shards.
    pub fn fire_id(&self) -> Uuid {
        self.claimed.fire_id
    }

    /// The execution: the work for this shard of the fire.
    pub fn execution_id(&self) -> Uuid {
        self.claimed.execution_id
    }

    /// The business operation: the same over all attempts and operator retries. Use it as
    /// the idempotency key of effects outside the ledger.
    pub fn operation_id(&self) -> Uuid {
        self.claimed.operation_id
    }

    /// The charged try, from 1; a snooze or a release gives the charge back.
    pub fn attempt(&self) -> u32 {
        self.claimed.attempt
    }

    /// Most charged tries.
    pub fn max_attempts(&self) -> u32 {
        self.claimed.max_attempts
    }

    /// Counts the claims of this execution, from 1; never falls.
    pub fn generation(&self) -> i64 {
        self.claimed.generation
    }

    /// This shard, from 0. A shard is a slice of the data and no place: any worker may run it.
    pub fn shard_index(&self) -> u32 {
        self.claimed.shard_index
    }

    /// Shards of the fire; 1 if it is not sharded.
    pub fn shard_total(&self) -> u32 {
        self.claimed.shard_total
    }

    /// The due instant: for a schedule the instant it names, however late it runs.
    pub fn scheduled_at(&self) -> DateTime<Utc> {
        self.claimed.scheduled_at
    }

    /// What made the fire.
    pub fn trigger(&self) -> Trigger {
        self.claimed.trigger
    }

    /// Version of the schedule's definition; none for one-shots.
    pub fn schedule_version(&self) -> Option<i64> {
        self.claimed.schedule_version
    }

    /// The trace that the fire belongs to.
    pub fn trace(&self) -> Option<&TraceContext> {
        self.claimed.trace.as_ref()
    }

    /// Time left before this attempt is stopped and counts as timed out; zero afterwards.
    pub fn remaining(&self) -> Duration {
        self.ends_at.saturating_sub(clock::boot())
    }

    /// Completes when the attempt should stop: its time is over, the worker stops, or its
    /// session was lost and the work is another's. Return soon afterwards.
    pub async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }

    /// Whether the attempt should stop.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// The token behind [`cancelled`](Self::cancelled), for code that takes one.
    pub fn cancellation(&self) -> &CancellationToken {
        &self.cancel
    }
}
