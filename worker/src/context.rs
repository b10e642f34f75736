//! What a handler knows about the execution it works on.

use std::sync::Arc;
use std::time::Duration;

use bellwether_schemas::ids;
use bellwether_schemas::limits::CHECKPOINT_MAX;
use bellwether_schemas::state::{State, Trigger};
use bellwether_schemas::trace::TraceContext;
use bellwether_store::executions::{Claimed, Commit, Committed, Outcome as Sent};
use bellwether_store::{Payload, Transaction};
use chrono::{DateTime, Utc};
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::checkpoint::{CheckpointError, Checkpoints};
use crate::clock;
use crate::outcome::encoded;
use crate::transaction::{CommitInError, OwnCommit};

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
    cancel_requested: CancellationToken,
    /// Boot time of the handler's start.
    started: Duration,
    own: Arc<OwnCommit>,
    /// None for a context of tests: there is no ledger.
    ledger: Option<Checkpoints>,
}

impl Context {
    /// Of an attempt that starts now. `cancel` tells it to stop, whyever; `cancel_requested`
    /// says that an operator wants it.
    pub(crate) fn new(
        claimed: Arc<Claimed>,
        cancel: CancellationToken,
        cancel_requested: CancellationToken,
        ledger: Option<Checkpoints>,
    ) -> Self {
        Self {
            claimed,
            cancel,
            cancel_requested,
            started: clock::boot(),
            own: Arc::default(),
            ledger,
        }
    }

    pub(crate) fn started(&self) -> Duration {
        self.started
    }

    pub(crate) fn own(&self) -> &Arc<OwnCommit> {
        &self.own
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
            waited: None,
            timeout,
            retry: bellwether_store::schedules::RetryPolicy::default(),
            policy_known: true,
            payload: Payload::json("null"),
            checkpoint: None,
            trace: None,
        };
        let never = CancellationToken::new();
        Self::new(Arc::new(claimed), never.clone(), never, None)
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

    /// The same with what an earlier attempt saved.
    #[must_use]
    pub fn with_checkpoint(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        Arc::make_mut(&mut self.claimed).checkpoint = Some(bytes.into());
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
        // In boot time: a suspended machine does not get more.
        let ends_at = self.started.saturating_add(self.claimed.timeout);
        ends_at.saturating_sub(clock::boot())
    }

    /// Completes when the attempt should stop: its time is over, an operator requested a cancel,
    /// the worker stops, or its session was lost and the work is another's. Return soon
    /// afterwards.
    ///
    /// After an operator's cancel an error ends the execution as `cancelled` and keeps its text;
    /// an [`Outcome`](crate::Outcome) stands as it is. A handler that goes on keeps its slot
    /// until it returns, at the latest (for the ledger) until its deadline.
    pub async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }

    /// Whether the attempt should stop.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Whether an operator requested a cancel: no further attempt will be made, so that what
    /// was begun is better undone. False for every other reason to stop. The worker hears of
    /// the request about a second after it was made.
    pub fn is_cancel_requested(&self) -> bool {
        self.cancel_requested.is_cancelled()
    }

    /// The token behind [`cancelled`](Self::cancelled), for code that takes one.
    pub fn cancellation(&self) -> &CancellationToken {
        &self.cancel
    }

    /// What an earlier attempt of this execution has saved last; none if none has. It stays the
    /// same while this attempt runs, whatever [`checkpoint`](Self::checkpoint) saves meanwhile.
    ///
    /// An operator's retry is an execution of its own and begins without one.
    pub fn last_checkpoint(&self) -> Option<&[u8]> {
        self.claimed.checkpoint.as_deref()
    }

    /// Saves how far this attempt has come, for the next one: at most 64 KiB in an encoding of the
    /// job's own. It replaces the one before, is kept over all attempts, and goes with success.
    ///
    /// A worker that stops cancels what has not finished in time; a handler that saves its way
    /// and returns an error then is released without a charge, and goes on from here elsewhere.
    ///
    /// ```
    /// # use bellwether_worker::{BoxError, Context};
    /// # async fn import(ctx: Context) -> Result<(), BoxError> {
    /// let begin = match ctx.last_checkpoint() {
    ///     Some(page) => std::str::from_utf8(page)?.parse()?,
    ///     None => 0_u32,
    /// };
    /// for page in begin..1_000 {
    ///     // Read the page, write it where writing it twice does no harm.
    ///     ctx.checkpoint((page + 1).to_string()).await?;
    ///     if ctx.is_cancelled() {
    ///         return Err("stopped at a page's end".into());
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Answers within 12 s. With [`for_test`](Self::for_test) only the size is checked.
    ///
    /// # Errors
    ///
    /// [`CheckpointError`]: nothing was saved, or that is not known: a save that gave no answer in
    /// time may still arrive, also after a later one of this attempt, and then takes its place. So
    /// a checkpoint is a place to begin at, never proof of what was not done after it. After
    /// [`Fenced`](CheckpointError::Fenced) the work is another's: stop.
    pub async fn checkpoint(&self, bytes: impl Into<Vec<u8>>) -> Result<(), CheckpointError> {
        let bytes = bytes.into();
        let size = bytes.len();
        if size > CHECKPOINT_MAX {
            return Err(CheckpointError::TooLarge { size });
        }
        if self.own.is_begun() {
            return Err(CheckpointError::AfterCommitIn);
        }
        match &self.ledger {
            Some(ledger) => ledger.save(&self.claimed, bytes).await,
            None => Ok(()),
        }
    }

    /// Completes the execution inside the handler's own transaction, on the database that holds
    /// the ledger: what else the transaction writes and `succeeded` become true together, or
    /// neither does. Call it last, commit, return.
    ///
    /// ```
    /// # use bellwether_worker::{BoxError, Context};
    /// # async fn book(ctx: Context, pool: sqlx::SqlitePool) -> Result<(), BoxError> {
    /// let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    /// sqlx::query("UPDATE account SET balance = balance - 1").execute(&mut *tx).await?;
    /// ctx.commit_in(&mut *tx, "booked").await?;
    /// tx.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// From the call on the worker asks the row what became of the attempt. Ended under this
    /// claim: so it stays, also if the handler returns an error or panics afterwards (that is
    /// logged and counted, and nothing is repeated). Still running: `Ok` of a value or of
    /// [`Complete`](crate::Outcome::Complete) becomes `retrying(tx_not_committed)`, charged,
    /// by the retry policy; any other result counts as it would without the call.
    ///
    /// A connection of Postgres stands for the ledger in the schema `bellwether`; for another
    /// one pass a [`Transaction`]. With [`for_test`](Self::for_test) the transaction is not
    /// touched: the output and the number of calls are checked as always.
    ///
    /// # Errors
    ///
    /// [`CommitInError`]: the transaction does not hold the completion; roll it back, which `?`
    /// does with a transaction of `sqlx`.
    pub async fn commit_in<'t>(
        &self,
        transaction: impl Into<Transaction<'t>>,
        output: impl Serialize,
    ) -> Result<(), CommitInError> {
        let output = serde_json::to_value(output).map_err(|error| error.to_string());
        let output = output
            .and_then(|output| encoded(&output, &self.claimed.payload.content_type))
            .map_err(CommitInError::Output)?;
        self.own.begin()?;
        let done = if self.ledger.is_some() {
            self.put_into(transaction.into(), output).await
        } else {
            Ok(())
        };
        self.own.end(done.is_ok());
        done
    }

    async fn put_into(
        &self,
        transaction: Transaction<'_>,
        output: Payload,
    ) -> Result<(), CommitInError> {
        let commit = Commit {
            execution_id: self.claimed.execution_id,
            claim_id: self.claimed.claim_id,
            generation: self.claimed.generation,
            started_ago: Some(clock::boot().saturating_sub(self.started)),
            outcome: Sent::Complete(output),
        };
        match bellwether_store::commit_in(transaction, &commit).await? {
            Committed::Accepted(State::Succeeded) | Committed::Late(State::Succeeded) => Ok(()),
            // Accepted, but another result of this claim: the attempt has been judged.
            Committed::Accepted(state)
            | Committed::Late(state)
            | Committed::Fenced { state, .. } => Err(CommitInError::Fenced { state }),
            Committed::Gone => Err(CommitInError::Gone),
        }
    }
}
