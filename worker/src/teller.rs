//! Telling the ledger what became of attempts, and noting what it answers.

use std::sync::Arc;
use std::time::Duration;

use bellwether_schemas::limits::ERROR_TEXT_MAX;
use bellwether_schemas::state::{Reason, State};
use bellwether_schemas::text;
use bellwether_store::executions::{Claimed, Commit, Committed, Outcome};
use bellwether_store::inspect::ClaimState;
use bellwether_store::{self as store, ErrorKind, Store};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::Semaphore;
use tokio_util::sync::DropGuard;
use uuid::Uuid;

use crate::call::{CALL_MAX, bounded};
use crate::claims::Known;
use crate::clock;
use crate::measure::reason_of;
use crate::stats::{Counted, Settled};
use crate::trace::Traced;

/// Results of handlers' own transactions sent at once: a transaction that is left open holds its
/// row, and must not hold every connection with it.
const SETTLING_MAX: usize = 2;
/// Results sent at once where they are sent one by one: half of the connections stay free.
const AT_ONCE_MAX: usize = 4;
/// So many rows that others hold are waited for in one round.
const HELD_MAX: usize = 8;
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
    /// Keeps the claim known until the result is decided.
    pub(crate) known: Option<Known>,
    /// None = its spans have ended; and in tests of the ledger alone.
    pub(crate) traced: Option<Traced>,
    /// Held, not read: who waits for it learns that this result is decided, or given up.
    #[expect(dead_code, reason = "what counts is its drop")]
    pub(crate) decided: Option<DropGuard>,
    /// How often it was told without a decision.
    pub(crate) tries: u32,
}

/// Why a result is told apart from the queue.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Settling {
    /// The handler has called `commit_in`.
    OwnCommit,
    /// The handler returned after it had been given up.
    Late,
    /// The handler obeyed, and its session is lost.
    Stopped,
}

/// What is done with a result after its row was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// It is told.
    Tell,
    /// The row has the result of the handler's own transaction; `late` = it was `unknown` when
    /// that was committed.
    Own { state: State, late: bool },
    /// The row is another's.
    Refused(State),
    /// There is no row.
    Gone,
    /// Nobody waits for it.
    Untold,
}

impl Settling {
    /// | the row | own commit | late | stopped |
    /// |---|---|---|---|
    /// | runs under the claim | not committed: told | told | told |
    /// | is `unknown` by the claim's own word | committed | told | told |
    /// | is `unknown` to a sweep that gave the worker up | not committed: told | told | told |
    /// | is ended by the claim | committed | that was told | that was told |
    /// | is another's | refused | told: refused, kept and counted | nobody waits for it |
    /// | is gone | refused | nobody waits for it | nobody waits for it |
    fn step(self, row: ClaimState) -> Step {
        match (self, row) {
            (_, ClaimState::Running | ClaimState::Fenced(State::Unknown))
            | (Self::Late | Self::Stopped, ClaimState::Ended(State::Unknown))
            | (Self::Late, ClaimState::Fenced(_)) => Step::Tell,
            (Self::OwnCommit, ClaimState::Ended(state)) => Step::Own { state, late: false },
            (Self::OwnCommit, ClaimState::EndedLate(state)) => Step::Own { state, late: true },
            (Self::OwnCommit, ClaimState::Fenced(state)) => Step::Refused(state),
            (Self::OwnCommit, ClaimState::Gone) => Step::Gone,
            (Self::Stopped, ClaimState::Fenced(_))
            | (
                Self::Late | Self::Stopped,
                ClaimState::Ended(_) | ClaimState::EndedLate(_) | ClaimState::Gone,
            ) => Step::Untold,
        }
    }
}

/// How a result that is told apart ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// The ledger has decided it.
    Decided,
    /// Nobody waits for it: it was not told.
    Untold,
}

impl Finished {
    /// A result of this claim that was told to nobody yet, with no more than its identity.
    pub(crate) fn of(claimed: &Claimed, started: Option<Duration>, outcome: Outcome) -> Self {
        Self {
            job: claimed.job.clone(),
            execution_id: claimed.execution_id,
            claim_id: claimed.claim_id,
            generation: claimed.generation,
            started,
            outcome,
            known: None,
            traced: None,
            decided: None,
            tries: 0,
        }
    }

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
    /// Ascending by place.
    pub(crate) left: Vec<Left>,
    /// The first reason; that the ledger is away goes before any other.
    pub(crate) error: store::Error,
}

/// A result that a round has left undecided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Left {
    /// Its place in the batch.
    pub(crate) at: usize,
    /// It was told; else the round ended before its turn.
    pub(crate) tried: bool,
}

impl Undecided {
    /// A whole batch was told, and nothing of it was decided.
    fn all(batch: &[Finished], error: store::Error) -> Self {
        let left = (0..batch.len()).map(|at| Left { at, tried: true });
        Self {
            left: left.collect(),
            error,
        }
    }

    /// Whether the ledger cannot be reached.
    pub(crate) fn is_away(&self) -> bool {
        self.error.kind() == ErrorKind::Unavailable
    }
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

    /// One round, in one batch: whatever the ledger has not decided is told.
    pub(crate) async fn send(&self, batch: &[Finished]) -> Result<(), Undecided> {
        let commits: Vec<_> = batch.iter().map(Finished::commit).collect();
        match self.send_batch(batch, &commits).await {
            Ok(()) => Ok(()),
            Err(error) if error.is_transient() => Err(Undecided::all(batch, error)),
            Err(_) => self.send_one_by_one(batch, &commits).await,
        }
    }

    /// The same for what has met with trouble before: a row that somebody holds is told apart
    /// from a ledger that is away, and stops no other.
    pub(crate) async fn send_again(&self, batch: &[Finished]) -> Result<(), Undecided> {
        let commits: Vec<_> = batch.iter().map(Finished::commit).collect();
        match self.send_batch(batch, &commits).await {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::Unavailable || batch.len() == 1 => {
                Err(Undecided::all(batch, error))
            }
            Err(_) => self.send_one_by_one(batch, &commits).await,
        }
    }

    async fn send_batch(&self, batch: &[Finished], commits: &[Commit]) -> store::Result<()> {
        let answers = bounded(CALL_MAX, self.ledger.commit(commits)).await?;
        for (finished, answer) in batch.iter().zip(answers) {
            self.note(finished, &finished.outcome, answer);
        }
        Ok(())
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
        let mut decided = vec![false; batch.len()];
        let mut tried = vec![false; batch.len()];
        let mut first: Option<store::Error> = None;
        let mut held = 0;
        let mut next = 0..batch.len();
        let mut sent = FuturesUnordered::new();
        loop {
            while sent.len() < AT_ONCE_MAX
                && let Some(at) = next.next()
            {
                tried[at] = true;
                let one = self.send_one(&batch[at], &commits[at]);
                sent.push(one.map(move |answer| (at, answer)).boxed());
            }
            let Some((at, answer)) = sent.next().await else {
                break;
            };
            let Err(error) = answer else {
                decided[at] = true;
                continue;
            };
            let away = error.kind() == ErrorKind::Unavailable;
            held += usize::from(error.kind() == ErrorKind::Conflict);
            if away {
                first = Some(error);
            } else {
                first.get_or_insert(error);
            }
            if away || held > HELD_MAX {
                // The rest need not be tried now; what is under way is sent again.
                break;
            }
        }
        drop(sent);
        let left = (0..batch.len())
            .filter(|&at| !decided[at])
            .map(|at| Left {
                at,
                tried: tried[at],
            })
            .collect();
        first.map_or(Ok(()), |error| Err(Undecided { left, error }))
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
        if matches!(commit.outcome, Outcome::Release | Outcome::Overloaded) {
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

    /// Asks the row first, and tells the result where that still counts. Whatever changes in
    /// between, the fence of the row decides.
    pub(crate) async fn settle(&self, finished: &Finished, why: Settling) -> store::Result<Told> {
        let asked = self
            .ledger
            .claim_state(finished.execution_id, finished.claim_id);
        let row = bounded(CALL_MAX, asked).await?;
        match why.step(row) {
            Step::Tell => {
                let _permit = match why {
                    // It is never closed; without a permit nothing worse happens than a wait.
                    Settling::OwnCommit => self.settling.acquire().await.ok(),
                    Settling::Late | Settling::Stopped => None,
                };
                self.send_one(finished, &finished.commit()).await?;
            }
            Step::Own { state, late } => self.note_own(finished, state, late),
            Step::Refused(state) => self.note_refused(finished, state),
            Step::Gone => self.note(finished, &finished.outcome, Committed::Gone),
            Step::Untold => {
                tracing::debug!(
                    execution_id = %finished.execution_id,
                    job = finished.job,
                    outcome = finished.outcome.as_str(),
                    ?row,
                    "result not told: nobody waits for it any more",
                );
                return Ok(Told::Untold);
            }
        }
        Ok(Told::Decided)
    }

    /// The handler's own transaction did not commit, and the row is no longer this claim's.
    fn note_refused(&self, finished: &Finished, state: State) {
        let generation = finished.generation;
        let fenced = Committed::Fenced { state, generation };
        finished.decided(&finished.outcome, fenced);
        self.counted.fenced(Some(state));
        tracing::warn!(
            execution_id = %finished.execution_id,
            job = finished.job,
            ours = finished.generation,
            %state,
            "handler's own transaction did not commit: the execution is another's by now",
        );
    }

    /// The row has a result of this claim.
    fn note_own(&self, finished: &Finished, state: State, late: bool) {
        if state != State::Succeeded {
            // Ours of a moment ago, whose reply was lost.
            return self.note_held(finished, &finished.outcome, state, late);
        }
        // The handler's own transaction was committed, whatever the handler has said since.
        if let Some(traced) = &finished.traced {
            traced.decided_by_itself(state);
        }
        let settled = Settled {
            job: &finished.job,
            why: "none",
            state,
            late,
        };
        self.counted.committed("complete", &settled);
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

    /// The ledger holds the result.
    fn note_held(&self, finished: &Finished, outcome: &Outcome, state: State, late: bool) {
        if state == State::Succeeded && !matches!(outcome, Outcome::Complete(_)) {
            // The handler's own transaction was committed while this was under way.
            return self.note_own(finished, state, late);
        }
        finished.decided(outcome, Committed::Accepted(state));
        let settled = Settled {
            job: &finished.job,
            why: reason_of(outcome),
            state,
            late,
        };
        self.counted.committed(outcome.as_str(), &settled);
    }

    fn note(&self, finished: &Finished, outcome: &Outcome, answer: Committed) {
        match answer {
            Committed::Accepted(state) => self.note_held(finished, outcome, state, false),
            Committed::Late(state) => self.note_held(finished, outcome, state, true),
            Committed::Fenced { state, generation } => {
                finished.decided(outcome, answer);
                self.counted.fenced(Some(state));
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
                finished.decided(outcome, answer);
                self.counted.fenced(None);
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
