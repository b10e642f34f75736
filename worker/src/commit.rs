//! Results on their way into the ledger: one bounded queue, one task, batches.
//!
//! A result is sent until the ledger has decided: accepted, or fenced because the claim is
//! another's by then. While results pile up the worker takes no new work: see [`Commits::is_full`].

use std::sync::Arc;
use std::time::Duration;

use bellwether_schemas::limits::ERROR_TEXT_MAX;
use bellwether_schemas::state::Reason;
use bellwether_schemas::text;
use bellwether_store::executions::{Commit, Committed, Outcome};
use bellwether_store::{self as store, Store};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::call::{CALL_MAX, bounded};
use crate::claims::Known;
use crate::clock;
use crate::retry::asking_again;
use crate::stats::Counted;
use crate::trouble::Trouble;

/// Most results of one batch.
const BATCH_MAX: usize = 256;
/// The queue; a task whose result does not fit waits, without a slot.
const QUEUE_MAX: usize = 1_024;
/// From this many on no new work is taken …
const HIGH: usize = 512;
/// … until so many are left.
const LOW: usize = 256;
const AGAIN_CAP: Duration = Duration::from_secs(5);
/// Before the attempt after one whose result cannot be stored.
const UNSTORABLE_DELAY: Duration = Duration::from_secs(1);

const _: () = assert!(LOW < HIGH && HIGH <= QUEUE_MAX);

/// A result.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) job: String,
    pub(crate) execution_id: Uuid,
    pub(crate) claim_id: Uuid,
    pub(crate) generation: i64,
    /// Boot time of the handler's start; none = it never started.
    pub(crate) started: Option<Duration>,
    pub(crate) outcome: Outcome,
    /// Held, not read: keeps the claim known until the result is decided.
    #[expect(dead_code, reason = "a guard")]
    pub(crate) known: Option<Known>,
}

impl Finished {
    fn commit(&self) -> Commit {
        let now = clock::boot();
        Commit {
            execution_id: self.execution_id,
            claim_id: self.claim_id,
            generation: self.generation,
            started_ago: self.started.map(|started| now.saturating_sub(started)),
            outcome: self.outcome.clone(),
        }
    }
}

/// Where results go. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Commits {
    queue: mpsc::Sender<Finished>,
    /// Results sent here and not decided yet.
    pending: Arc<watch::Sender<usize>>,
}

impl Commits {
    /// The queue, and the task that empties it.
    pub(crate) fn new(
        ledger: Arc<dyn Store>,
        counted: Counted,
        pending: Arc<watch::Sender<usize>>,
    ) -> (Self, Committer) {
        let (queue, results) = mpsc::channel(QUEUE_MAX);
        let committer = Committer {
            ledger,
            counted,
            results,
            pending: Arc::clone(&pending),
        };
        (Self { queue, pending }, committer)
    }

    /// Hands a result over; waits while the queue is full.
    pub(crate) async fn send(&self, finished: Finished) {
        self.pending.send_modify(|pending| *pending += 1);
        if let Err(mpsc::error::SendError(finished)) = self.queue.send(finished).await {
            // Only after the worker has given up: the session's end hands the work on.
            tracing::warn!(execution_id = %finished.execution_id, "result came after the worker's end");
            self.pending.send_modify(|pending| *pending -= 1);
        }
    }

    pub(crate) fn pending(&self) -> usize {
        *self.pending.borrow()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<usize> {
        self.pending.subscribe()
    }

    /// Whether new work must wait. `was` is the last answer: between the two marks it stands.
    pub(crate) fn is_full(&self, was: bool) -> bool {
        let pending = self.pending();
        pending >= HIGH || (was && pending > LOW)
    }
}

/// Empties the queue.
pub(crate) struct Committer {
    ledger: Arc<dyn Store>,
    counted: Counted,
    results: mpsc::Receiver<Finished>,
    pending: Arc<watch::Sender<usize>>,
}

/// What a round did not decide.
struct Undecided {
    /// Places in the batch, ascending.
    left: Vec<usize>,
    /// The first reason.
    error: store::Error,
}

impl Committer {
    /// Commits until `flush` and everything sent before it is decided, or until `give_up`.
    pub(crate) async fn run(mut self, flush: CancellationToken, give_up: CancellationToken) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        let mut trouble = Trouble::with("commit results");
        let mut delays = asking_again(AGAIN_CAP);
        loop {
            if batch.is_empty() {
                let received = tokio::select! {
                    biased;
                    () = give_up.cancelled() => break,
                    received = self.results.recv_many(&mut batch, BATCH_MAX) => received,
                    () = flush.cancelled(), if !self.results.is_closed() => {
                        self.results.close();
                        continue;
                    }
                };
                if received == 0 {
                    return;
                }
            }
            let sent = tokio::select! {
                () = give_up.cancelled() => break,
                sent = self.send(&batch) => sent,
            };
            let before = batch.len();
            let Err(Undecided { left, error }) = sent else {
                batch.clear();
                self.pending.send_modify(|pending| *pending -= before);
                trouble.over();
                delays = asking_again(AGAIN_CAP);
                continue;
            };
            let mut at = 0..;
            batch.retain(|_| at.next().is_some_and(|at| left.contains(&at)));
            self.pending
                .send_modify(|pending| *pending -= before - batch.len());
            trouble.note(&error);
            tokio::select! {
                () = give_up.cancelled() => break,
                () = tokio::time::sleep(delays.next().unwrap_or(AGAIN_CAP)) => {}
            }
            // What came meanwhile goes along: a result that stays undecided stops no other.
            while batch.len() < BATCH_MAX
                && let Ok(finished) = self.results.try_recv()
            {
                batch.push(finished);
            }
        }
        let left = *self.pending.borrow();
        if left > 0 {
            tracing::warn!(
                results = left,
                "giving up results: their executions are taken over"
            );
        }
    }

    async fn send(&self, batch: &[Finished]) -> Result<(), Undecided> {
        let commits: Vec<_> = batch.iter().map(Finished::commit).collect();
        match bounded(CALL_MAX, self.ledger.commit(&commits)).await {
            Ok(answers) => {
                for (finished, answer) in batch.iter().zip(answers) {
                    self.note(finished, &finished.outcome, answer);
                }
                Ok(())
            }
            Err(error) if error.is_transient() => Err(Undecided {
                left: (0..batch.len()).collect(),
                error,
            }),
            Err(_) => self.send_one_by_one(batch, &commits).await,
        }
    }

    /// One result must not stop the others: one that the ledger refuses for its own sake
    /// becomes a failed attempt, charged and told like any other. If that is refused too, it
    /// stays undecided and the others go on. A repeat of one that was accepted is accepted,
    /// and counted, again: rare enough.
    async fn send_one_by_one(
        &self,
        batch: &[Finished],
        commits: &[Commit],
    ) -> Result<(), Undecided> {
        let mut undecided: Option<Undecided> = None;
        for (at, (finished, commit)) in batch.iter().zip(commits).enumerate() {
            let Err(error) = self.send_one(finished, commit).await else {
                continue;
            };
            let transient = error.is_transient();
            let found = undecided.get_or_insert(Undecided {
                left: Vec::new(),
                error,
            });
            if transient {
                // The ledger is away: the rest need not be tried.
                found.left.extend(at..batch.len());
                break;
            }
            found.left.push(at);
        }
        undecided.map_or(Ok(()), Err)
    }

    async fn send_one(&self, finished: &Finished, commit: &Commit) -> store::Result<()> {
        let one = self.ledger.commit(std::slice::from_ref(commit));
        match bounded(CALL_MAX, one).await {
            Ok(answers) => {
                for answer in answers {
                    self.note(finished, &commit.outcome, answer);
                }
                Ok(())
            }
            Err(error) if error.is_transient() => Err(error),
            Err(error) => self.send_as_failed(finished, commit, error).await,
        }
    }

    async fn send_as_failed(
        &self,
        finished: &Finished,
        commit: &Commit,
        error: store::Error,
    ) -> store::Result<()> {
        if commit.outcome == Outcome::Release {
            // Nothing in it could be refused, and it must not be charged.
            return Err(error);
        }
        let failed = unstorable(commit, &error);
        let answers = bounded(CALL_MAX, self.ledger.commit(std::slice::from_ref(&failed))).await?;
        self.counted.unstorable();
        tracing::error!(
            execution_id = %finished.execution_id,
            job = finished.job,
            %error,
            "failed to commit a result: its attempt counts as failed",
        );
        for answer in answers {
            self.note(finished, &failed.outcome, answer);
        }
        Ok(())
    }

    fn note(&self, finished: &Finished, outcome: &Outcome, answer: Committed) {
        match answer {
            Committed::Accepted(state) => {
                self.counted
                    .committed(&finished.job, outcome.as_str(), state);
            }
            Committed::Fenced { state, generation } => {
                self.counted.fenced(&finished.job);
                tracing::warn!(
                    execution_id = %finished.execution_id,
                    job = finished.job,
                    outcome = outcome.as_str(),
                    ours = finished.generation,
                    %state,
                    generation,
                    "result refused: the execution is another's by now",
                );
            }
            Committed::Gone => {
                self.counted.fenced(&finished.job);
                tracing::warn!(
                    execution_id = %finished.execution_id,
                    job = finished.job,
                    "result refused: the ledger has no such execution",
                );
            }
        }
    }
}

/// What is sent in place of a result that the ledger refuses for its own sake.
fn unstorable(commit: &Commit, error: &store::Error) -> Commit {
    let said = format!("its result cannot be stored: {error}");
    Commit {
        outcome: Outcome::Retry {
            reason: Reason::Error,
            error: text::clean(&said, ERROR_TEXT_MAX).into_owned(),
            delay: UNSTORABLE_DELAY,
        },
        ..commit.clone()
    }
}

/// Gives back what the ledger says runs here and this process does not know.
pub(crate) fn release(execution_id: Uuid, claim_id: Uuid, generation: i64) -> Commit {
    Commit {
        execution_id,
        claim_id,
        generation,
        started_ago: None,
        outcome: Outcome::Release,
    }
}

#[cfg(test)]
mod tests {
    use bellwether_schemas::ids;
    use bellwether_schemas::limits::OUTPUT_MAX;
    use bellwether_schemas::state::State;
    use bellwether_store::Payload;
    use bellwether_store::executions::{ClaimAnswer, ClaimAsk, Claimed, NewExecution};
    use bellwether_store::sessions::NewSession;
    use sqlx::sqlite::SqliteConnectOptions;
    use sqlx::{AssertSqlSafe, ConnectOptions};

    use super::*;

    async fn claimed(ledger: &dyn Store, session: Uuid) -> Claimed {
        let new = NewSession {
            id: session,
            name: "test".into(),
            host: "test".into(),
            pid: 1,
            version: "0".into(),
            queues: vec!["default".into()],
            jobs: vec!["job".into()],
            max_concurrent: 1,
            lease: Duration::from_mins(1),
        };
        ledger.open_session(&new).await.unwrap();
        let one = NewExecution::new("job", Payload::json("null"));
        ledger.enqueue(&[one]).await.unwrap();
        let rows = ledger
            .claim_outbox(1, Duration::from_secs(5), &[])
            .await
            .unwrap();
        let ask = ClaimAsk {
            execution_id: rows[0].dispatch.execution_id,
            dispatch_no: rows[0].dispatch.dispatch_no,
            claim_id: ids::token(),
        };
        match ledger.claim(session, &[ask]).await.unwrap().pop() {
            Some(ClaimAnswer::Claimed(claimed)) => *claimed,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_result_that_cannot_be_stored_is_a_charged_attempt_that_failed() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("ledger.db");
        let options = store::Options::new(format!("sqlite:{}", file.display()));
        store::migrate(&options).await.unwrap();
        let ledger = store::connect(&options).await.unwrap();
        let claimed = claimed(ledger.as_ref(), ids::fresh()).await;

        let pending = Arc::new(watch::Sender::new(0));
        let (commits, committer) = Commits::new(
            Arc::clone(&ledger),
            Counted::default(),
            Arc::clone(&pending),
        );
        commits
            .send(finished(
                &claimed,
                Payload::json("1".repeat(OUTPUT_MAX + 1)),
            ))
            .await;
        let flush = CancellationToken::new();
        flush.cancel();
        committer.run(flush, CancellationToken::new()).await;

        assert_eq!(*pending.borrow(), 0);
        let story = ledger.execution(claimed.execution_id).await.unwrap();
        let view = story.unwrap().execution;
        assert_eq!(
            (view.state, view.reason, view.attempt),
            (State::Retrying, Some(Reason::Error), 1)
        );
    }

    /// A row that the ledger refuses whatever is said about it: a hand-made trigger, here.
    #[tokio::test]
    async fn a_result_that_stays_undecided_stops_no_other() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("ledger.db");
        let options = store::Options::new(format!("sqlite:{}", file.display()));
        store::migrate(&options).await.unwrap();
        let ledger = store::connect(&options).await.unwrap();
        let bad = claimed(ledger.as_ref(), ids::fresh()).await;
        let good = claimed(ledger.as_ref(), ids::fresh()).await;
        let plain = SqliteConnectOptions::new().filename(&file);
        let mut plain = plain.connect().await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(format!(
            "CREATE TRIGGER refuse BEFORE UPDATE ON execution WHEN hex(OLD.id) = '{:X}'
             BEGIN SELECT RAISE(ABORT, 'no'); END",
            bad.execution_id.simple()
        )))
        .execute(&mut plain)
        .await
        .unwrap();

        let pending = Arc::new(watch::Sender::new(0));
        let (commits, committer) = Commits::new(
            Arc::clone(&ledger),
            Counted::default(),
            Arc::clone(&pending),
        );
        let flush = CancellationToken::new();
        let committing = tokio::spawn(committer.run(flush.clone(), CancellationToken::new()));
        commits.send(completed(&bad)).await;
        commits.send(completed(&good)).await;
        let mut left = pending.subscribe();
        let one_left = left.wait_for(|left| *left == 1);
        tokio::time::timeout(Duration::from_mins(1), one_left)
            .await
            .unwrap()
            .unwrap();
        let state = async |id| ledger.execution(id).await.unwrap().unwrap().execution.state;
        assert_eq!(state(good.execution_id).await, State::Succeeded);
        assert_eq!(state(bad.execution_id).await, State::Running);

        sqlx::raw_sql("DROP TRIGGER refuse")
            .execute(&mut plain)
            .await
            .unwrap();
        flush.cancel();
        tokio::time::timeout(Duration::from_mins(1), committing)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(state(bad.execution_id).await, State::Succeeded);
        assert_eq!(*pending.borrow(), 0);
    }

    fn completed(claimed: &Claimed) -> Finished {
        finished(claimed, Payload::json("1"))
    }

    fn finished(claimed: &Claimed, output: Payload) -> Finished {
        Finished {
            job: claimed.job.clone(),
            execution_id: claimed.execution_id,
            claim_id: claimed.claim_id,
            generation: claimed.generation,
            started: Some(clock::boot()),
            outcome: Outcome::Complete(output),
            known: None,
        }
    }
}
