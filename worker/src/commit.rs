//! Results on their way into the ledger: one bounded queue, one task, batches.
//!
//! A result is sent until the ledger has decided: accepted, or fenced because the claim is
//! another's by then. While results pile up the worker takes no new work: see [`Commits::is_full`].

use std::sync::Arc;
use std::time::Duration;

use bellwether_store::Store;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::retry::asking_again;
use crate::stats::Counted;
use crate::teller::{Finished, Settling, Teller, Undecided};
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

const _: () = assert!(LOW < HIGH && HIGH <= QUEUE_MAX);

/// Where results go. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Commits {
    queue: mpsc::Sender<Finished>,
    /// Results sent here and not decided yet.
    pending: Arc<watch::Sender<usize>>,
    teller: Teller,
    give_up: CancellationToken,
}

impl Commits {
    /// The queue, and the task that empties it. After `give_up` nothing is asked any more.
    pub(crate) fn new(
        ledger: Arc<dyn Store>,
        counted: Counted,
        pending: Arc<watch::Sender<usize>>,
        give_up: CancellationToken,
    ) -> (Self, Committer) {
        let (queue, results) = mpsc::channel(QUEUE_MAX);
        let teller = Teller::new(ledger, counted);
        let committer = Committer {
            teller: teller.clone(),
            results,
            pending: Arc::clone(&pending),
            give_up: give_up.clone(),
        };
        let commits = Self {
            queue,
            pending,
            teller,
            give_up,
        };
        (commits, committer)
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

    /// Finds out what became of an attempt whose handler has called `commit_in`; `finished` is
    /// what is said if its transaction was not committed. Apart from the queue: a transaction
    /// that is still open holds the row, and no other result shall wait for it.
    pub(crate) async fn settle(&self, finished: Finished) {
        self.apart(finished, Settling::OwnCommit).await;
    }

    /// Tells what a handler said after it had been given up, where that still counts.
    pub(crate) async fn send_late(&self, finished: Finished) {
        self.apart(finished, Settling::Late).await;
    }

    async fn apart(&self, finished: Finished, why: Settling) {
        self.pending.send_modify(|pending| *pending += 1);
        tokio::select! {
            () = self.give_up.cancelled() => tracing::warn!(
                execution_id = %finished.execution_id,
                ?why,
                "giving up a result that has to ask the row first",
            ),
            () = self.settled(&finished, why) => {}
        }
        self.pending.send_modify(|pending| *pending -= 1);
    }

    async fn settled(&self, finished: &Finished, why: Settling) {
        let mut trouble = Trouble::with(match why {
            Settling::OwnCommit => "ask what became of a handler's own transaction",
            Settling::Late => "commit what a handler said after its deadline",
        });
        for delay in asking_again(AGAIN_CAP) {
            match self.teller.settle(finished, why).await {
                Ok(()) => return trouble.over(),
                Err(error) => trouble.note(&error),
            }
            tokio::time::sleep(delay).await;
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
    teller: Teller,
    results: mpsc::Receiver<Finished>,
    pending: Arc<watch::Sender<usize>>,
    give_up: CancellationToken,
}

impl Committer {
    /// Commits until `flush` and everything sent before it is decided, or until `give_up`.
    pub(crate) async fn run(mut self, flush: CancellationToken) {
        let give_up = self.give_up.clone();
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
                sent = self.teller.send(&batch) => sent,
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
}

#[cfg(test)]
mod tests {
    use bellwether_schemas::ids;
    use bellwether_schemas::limits::OUTPUT_MAX;
    use bellwether_schemas::state::{Reason, State};
    use bellwether_store::executions::{ClaimAnswer, ClaimAsk, Claimed, NewExecution, Outcome};
    use bellwether_store::sessions::NewSession;
    use bellwether_store::{self as store, Payload};
    use sqlx::sqlite::SqliteConnectOptions;
    use sqlx::{AssertSqlSafe, ConnectOptions};
    use uuid::Uuid;

    use super::*;
    use crate::clock;

    async fn claimed(ledger: &dyn Store, session: Uuid) -> Claimed {
        let new = NewSession {
            id: session,
            name: "test".into(),
            host: "test".into(),
            pid: 1,
            version: "0".into(),
            queues: vec!["default".into()],
            jobs: vec!["job".into()],
            definitions: Vec::new(),
            capabilities: Vec::new(),
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
            CancellationToken::new(),
        );
        commits
            .send(finished(
                &claimed,
                Payload::json("1".repeat(OUTPUT_MAX + 1)),
            ))
            .await;
        let flush = CancellationToken::new();
        flush.cancel();
        committer.run(flush).await;

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
            CancellationToken::new(),
        );
        let flush = CancellationToken::new();
        let committing = tokio::spawn(committer.run(flush.clone()));
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

    /// The handler's own transaction is committed after the row was asked for it, and before
    /// the result that says otherwise reaches the row.
    #[tokio::test]
    async fn a_result_that_meets_the_handlers_own_commit_is_counted_as_that() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("ledger.db");
        let options = store::Options::new(format!("sqlite:{}", file.display()));
        store::migrate(&options).await.unwrap();
        let ledger = store::connect(&options).await.unwrap();
        let counted = Counted::default();
        let teller = Teller::new(Arc::clone(&ledger), counted.clone());
        for (reason, contradicted) in [(Reason::TxNotCommitted, 0), (Reason::Timeout, 1)] {
            let claimed = claimed(ledger.as_ref(), ids::fresh()).await;
            let own = completed(&claimed).commit();
            ledger.commit(&[own]).await.unwrap();
            let mut says = completed(&claimed);
            says.outcome = Outcome::Retry {
                reason,
                error: "no".to_owned(),
                delay: Duration::ZERO,
                stopped: true,
            };
            assert!(teller.send(&[says]).await.is_ok());
            assert_eq!(counted.stats().contradicted, contradicted);
        }
        let stats = counted.stats();
        assert_eq!(stats.committed["complete"], 2, "{stats:#?}");
        assert!(!stats.committed.contains_key("retry"), "{stats:#?}");
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
            traced: None,
            decided: None,
        }
    }
}
