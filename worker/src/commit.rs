//! Results on their way into the ledger: a bounded queue, an area for retries, batches.
//!
//! Each result that is handed over ends in exactly one way: the ledger has decided it (accepted,
//! or fenced because the claim is another's by then); nobody waits for it any more, which the row
//! said when it was asked; or it is rejected, said in the log and counted: when its tries are used
//! up, or at the end of a stop. Until then it is being retried, at a fixed interval. While results
//! pile up the worker takes no new work: see [`Persist`].

use std::sync::Arc;

use bellwether_store::Store;
use bellwether_telemetry::Trouble;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::committer::{Committer, again};
use crate::persist::{Persist, QUEUE_MAX, Rejection};
use crate::stats::Counted;
use crate::teller::{Finished, Settling, Teller, Told};

/// Where results go. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Commits {
    queue: mpsc::Sender<Finished>,
    pending: Pending,
    teller: Teller,
    persist: Persist,
    give_up: CancellationToken,
}

/// Results handed over and not decided yet; every one that leaves is counted.
#[derive(Debug, Clone)]
pub(crate) struct Pending {
    left: Arc<watch::Sender<usize>>,
    counted: Counted,
}

impl Pending {
    fn enter(&self) {
        self.counted.result_handed_over();
        self.left.send_modify(|left| *left += 1);
    }

    pub(crate) fn decided(&self, many: usize) {
        self.counted.results_decided(many);
        self.left.send_modify(|left| *left -= many);
    }

    /// Nobody waits for it any more.
    fn untold(&self) {
        self.counted.result_untold();
        self.left.send_modify(|left| *left -= 1);
    }

    /// So many are tried again.
    pub(crate) fn retried(&self, many: usize) {
        self.counted.results_retried(many);
    }

    pub(crate) fn reject(&self, finished: Finished, why: Rejection) {
        tracing::error!(
            execution_id = %finished.execution_id,
            job = finished.job,
            outcome = finished.outcome.as_str(),
            tries = finished.tries,
            why = why.as_str(),
            "result rejected: its execution is taken over at its deadline or with the session",
        );
        if finished.started.is_some()
            && let Some(known) = finished.known
        {
            known.give_up();
        }
        self.counted.result_rejected(why);
        self.left.send_modify(|left| *left -= 1);
    }
}

impl Commits {
    /// The queue, and the task that empties it. After `give_up` nothing is asked any more.
    pub(crate) fn new(
        ledger: Arc<dyn Store>,
        counted: Counted,
        left: Arc<watch::Sender<usize>>,
        persist: Persist,
        give_up: CancellationToken,
    ) -> (Self, Committer) {
        let (queue, results) = mpsc::channel(QUEUE_MAX);
        let teller = Teller::new(ledger, counted.clone());
        let pending = Pending { left, counted };
        let committer = Committer {
            teller: teller.clone(),
            results,
            pending: pending.clone(),
            persist,
            give_up: give_up.clone(),
        };
        let commits = Self {
            queue,
            pending,
            teller,
            persist,
            give_up,
        };
        (commits, committer)
    }

    /// Hands a result over; waits while the queue is full.
    pub(crate) async fn send(&self, finished: Finished) {
        self.pending.enter();
        if let Err(mpsc::error::SendError(finished)) = self.queue.send(finished).await {
            // Only after the worker has given up: the session's end hands the work on.
            self.pending.reject(finished, Rejection::Shutdown);
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

    /// Gives back what a handler of a lost session has stopped, where the ledger waits for that.
    pub(crate) async fn send_stopped(&self, finished: Finished) {
        self.apart(finished, Settling::Stopped).await;
    }

    async fn apart(&self, mut finished: Finished, why: Settling) {
        self.pending.enter();
        let settled = tokio::select! {
            () = self.give_up.cancelled() => Err(Rejection::Shutdown),
            settled = self.settled(&mut finished, why) => settled,
        };
        match settled {
            Ok(Told::Decided) => self.pending.decided(1),
            Ok(Told::Untold) => self.pending.untold(),
            Err(why) => self.pending.reject(finished, why),
        }
    }

    async fn settled(&self, finished: &mut Finished, why: Settling) -> Result<Told, Rejection> {
        let mut trouble = Trouble::with(match why {
            Settling::OwnCommit => "ask what became of a handler's own transaction",
            Settling::Late => "commit what a handler said after it was given up",
            Settling::Stopped => "give back what a handler of a lost session has stopped",
        });
        loop {
            match self.teller.settle(finished, why).await {
                Ok(told) => {
                    trouble.over();
                    return Ok(told);
                }
                Err(error) => trouble.note(&error),
            }
            finished.tries += 1;
            if finished.tries >= self.persist.tries {
                return Err(Rejection::TriesExhausted);
            }
            self.pending.retried(1);
            sleep(again(self.persist)).await;
        }
    }

    pub(crate) fn pending(&self) -> usize {
        *self.pending.left.borrow()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<usize> {
        self.pending.left.subscribe()
    }

    /// Whether new work must wait. `was` is the last answer: between the two marks it stands.
    pub(crate) fn is_full(&self, was: bool) -> bool {
        self.persist.is_full(self.pending(), was)
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

    use std::time::Duration;

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
            probes: Vec::new(),
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
            Persist::default(),
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
            Persist::default(),
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
        Finished::of(claimed, Some(clock::boot()), Outcome::Complete(output))
    }
}
