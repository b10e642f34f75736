//! Telling the ledger what became of attempts, and noting what it answers.

use std::sync::Arc;
use std::time::Duration;

use bellwether_schemas::limits::ERROR_TEXT_MAX;
use bellwether_schemas::state::{Reason, State};
use bellwether_schemas::text;
use bellwether_store::executions::{Commit, Committed, Outcome};
use bellwether_store::inspect::ClaimState;
use bellwether_store::{self as store, Store};
use tokio::sync::Semaphore;
use tokio_util::sync::DropGuard;
use uuid::Uuid;

use crate::call::{CALL_MAX, bounded};
use crate::claims::Known;
use crate::clock;
use crate::stats::Counted;
use crate::trace::Traced;

/// Results of handlers' own transactions sent at once: a transaction that is left open holds its
/// row, and must not hold every connection with it.
const SETTLING_MAX: usize = 2;
/// Before the attempt after one whose result cannot be stored.
const UNSTORABLE_DELAY: Duration = Duration::from_secs(1);

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
    /// None = its spans have ended; and in tests of the ledger alone.
    pub(crate) traced: Option<Traced>,
    /// Held, not read: who waits for it learns that this result is decided, or given up.
    pub(crate) decided: Option<DropGuard>,
}

/// Why a result is told apart from the queue.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Settling {
    /// The handler has called `commit_in`.
    OwnCommit,
    /// The handler returned after it had been given up.
    Late,
}

impl Finished {
    /// For the spans: the ledger has decided.
    fn decided(&self, outcome: &Outcome, answer: Committed) {
        if let Some(traced) = &self.traced {
            traced.decided(outcome, answer);
        }
    }

    pub(crate) fn commit(&self) -> Commit {
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

/// What a round did not decide.
pub(crate) struct Undecided {
    /// Places in the batch, ascending.
    pub(crate) left: Vec<usize>,
    /// The first reason.
    pub(crate) error: store::Error,
}

/// Tells the ledger, and counts what it answers.
#[derive(Clone)]
pub(crate) struct Teller {
    ledger: Arc<dyn Store>,
    counted: Counted,
    settling: Arc<Semaphore>,
}

impl std::fmt::Debug for Teller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Teller").finish_non_exhaustive()
    }
}

impl Teller {
    pub(crate) fn new(ledger: Arc<dyn Store>, counted: Counted) -> Self {
        Self {
            ledger,
            counted,
            settling: Arc::new(Semaphore::new(SETTLING_MAX)),
        }
    }

    /// One round: whatever the ledger has not decided is told.
    pub(crate) async fn send(&self, batch: &[Finished]) -> Result<(), Undecided> {
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

    /// Tells a result that has to ask the row first.
    pub(crate) async fn settle(&self, finished: &Finished, why: Settling) -> store::Result<()> {
        match why {
            Settling::OwnCommit => self.settle_own(finished).await,
            Settling::Late => self.settle_late(finished).await,
        }
    }

    /// What a handler says at last counts where the ledger waits for it: while the execution is
    /// `unknown`. Else the attempt has timed out, and that was told.
    async fn settle_late(&self, finished: &Finished) -> store::Result<()> {
        let asked = self
            .ledger
            .claim_state(finished.execution_id, finished.claim_id);
        match bounded(CALL_MAX, asked).await? {
            // Of an execution that is another's by now it is refused, kept and counted.
            ClaimState::Ended(State::Unknown) | ClaimState::Fenced(_) => {
                self.send_one(finished, &finished.commit()).await
            }
            ClaimState::Running | ClaimState::Ended(_) | ClaimState::Gone => Ok(()),
        }
    }

    /// Asks the row what became of a handler's own transaction. While it runs, or is `unknown`
    /// to a sweep that gave the worker up, the transaction was not committed: then the result
    /// says so. Whatever changes in between, its fence decides.
    async fn settle_own(&self, finished: &Finished) -> store::Result<()> {
        let asked = self
            .ledger
            .claim_state(finished.execution_id, finished.claim_id);
        match bounded(CALL_MAX, asked).await? {
            ClaimState::Running | ClaimState::Fenced(State::Unknown) => {
                // It is never closed; without a permit nothing worse happens than a wait.
                let _permit = self.settling.acquire().await;
                self.send_one(finished, &finished.commit()).await
            }
            ClaimState::Ended(state) => {
                self.note_own(finished, state);
                Ok(())
            }
            ClaimState::Fenced(state) => {
                let generation = finished.generation;
                let fenced = Committed::Fenced { state, generation };
                finished.decided(&finished.outcome, fenced);
                self.counted.fenced(&finished.job);
                tracing::warn!(
                    execution_id = %finished.execution_id,
                    job = finished.job,
                    ours = finished.generation,
                    %state,
                    "handler's own transaction did not commit: the execution is another's by now",
                );
                Ok(())
            }
            ClaimState::Gone => {
                self.note(finished, &finished.outcome, Committed::Gone);
                Ok(())
            }
        }
    }

    /// The row has a result of this claim.
    fn note_own(&self, finished: &Finished, state: State) {
        if state != State::Succeeded {
            // Ours of a moment ago, whose reply was lost.
            self.note(finished, &finished.outcome, Committed::Accepted(state));
            return;
        }
        // The handler's own transaction was committed, whatever the handler has said since.
        if let Some(traced) = &finished.traced {
            traced.decided_by_itself(state);
        }
        self.counted.committed(&finished.job, "complete", state);
        let said = match &finished.outcome {
            Outcome::Retry {
                reason: Reason::TxNotCommitted,
                ..
            }
            | Outcome::Complete(_) => return,
            Outcome::Retry { reason, error, .. } => format!("{reason}: {error}"),
            other => other.as_str().to_owned(),
        };
        self.counted.contradicted(&finished.job);
        tracing::error!(
            execution_id = %finished.execution_id,
            job = finished.job,
            %state,
            said,
            "handler did not succeed after its own transaction had committed: the result stands",
        );
    }

    fn note(&self, finished: &Finished, outcome: &Outcome, answer: Committed) {
        if answer == Committed::Accepted(State::Succeeded)
            && !matches!(outcome, Outcome::Complete(_))
        {
            // The handler's own transaction was committed while this was under way.
            return self.note_own(finished, State::Succeeded);
        }
        finished.decided(outcome, answer);
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
            stopped: commit.outcome.stopped(),
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
