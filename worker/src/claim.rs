//! One batch of claims, asked until it is decided.
//!
//! The tokens are chosen before the first ask, so that an ask whose reply was lost can be
//! repeated: what was claimed under a token answers *claimed* again. Dead letters and
//! deferrals go the same way, and like claims they are acked only after the ledger has said yes.

use std::sync::Arc;
use std::time::Duration;

use bellwether_schemas::state::DeadReason;
use bellwether_store::dead::DeadLetter;
use bellwether_store::executions::{ClaimAnswer, ClaimAsk, Claimed, Deferral, Refusal, SubmitAsk};
use bellwether_store::probes::{Probe, ProbeAnswer, ProbeAsk};
use bellwether_store::{self as store, ErrorKind, Store};
use bellwether_telemetry::Trouble;
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::call::{CALL_MAX, bounded};
use crate::delivery::{Ask, Wanted};
use crate::retry::asking_again;
use crate::session::Session;

/// Most asks of one batch.
pub(crate) const BATCH_MAX: usize = 256;
/// Longest wait before an undecided batch is asked again.
const AGAIN_CAP: Duration = Duration::from_secs(5);

/// A batch, and the session it is asked under.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) session: Arc<Session>,
    pub(crate) wanted: Vec<Wanted>,
    /// Boot time before the first ask.
    pub(crate) asked: Duration,
    /// Time a probe may take.
    pub(crate) probe_timeout: Duration,
}

/// The ledger's answer to one ask.
#[derive(Debug)]
pub(crate) enum Answer {
    Claimed(Box<Claimed>),
    /// It is `unknown`, and the message asks for a probe, which is claimed next.
    ProbeDue,
    Probe(Box<Probe>),
    Refused(Refusal),
    Busy,
    SessionLost,
    Deferred,
    DeadLetter(DeadReason),
    /// The ledger refuses the ask for its own sake; the message is left to its redelivery.
    Unanswerable,
}

impl From<ClaimAnswer> for Answer {
    fn from(answer: ClaimAnswer) -> Self {
        match answer {
            ClaimAnswer::Claimed(claimed) => Self::Claimed(claimed),
            ClaimAnswer::ProbeDue => Self::ProbeDue,
            ClaimAnswer::Refused(refusal) => Self::Refused(refusal),
            ClaimAnswer::Busy => Self::Busy,
            ClaimAnswer::SessionLost => Self::SessionLost,
        }
    }
}

impl From<ProbeAnswer> for Answer {
    fn from(answer: ProbeAnswer) -> Self {
        match answer {
            ProbeAnswer::Claimed(probe) => Self::Probe(probe),
            ProbeAnswer::Busy => Self::Busy,
            ProbeAnswer::SessionLost => Self::SessionLost,
        }
    }
}

/// Asks until the ledger has decided; none if the session was lost or the worker gave up
/// first. `away` is true while the ledger cannot be reached.
pub(crate) async fn decide(
    ledger: Arc<dyn Store>,
    batch: Batch,
    away: watch::Sender<bool>,
    give_up: CancellationToken,
) -> (Batch, Option<Vec<Answer>>) {
    let mut trouble = Trouble::with("claim");
    for delay in asking_again(AGAIN_CAP) {
        let asked = tokio::select! {
            () = give_up.cancelled() => break,
            asked = ask(ledger.as_ref(), &batch) => asked,
        };
        match asked {
            Ok(answers) => {
                trouble.over();
                away.send_replace(false);
                return (batch, Some(answers));
            }
            Err(error) => {
                if error.kind() == ErrorKind::Unavailable {
                    away.send_replace(true);
                }
                trouble.note(&error);
            }
        }
        tokio::select! {
            () = batch.session.lost.cancelled() => break,
            () = give_up.cancelled() => break,
            () = tokio::time::sleep(delay) => {}
        }
    }
    away.send_replace(false);
    (batch, None)
}

/// Asks once; answers stand in the order of the batch. An error is one that may pass.
async fn ask(ledger: &dyn Store, batch: &Batch) -> store::Result<Vec<Answer>> {
    let mut answers: Vec<_> = batch.wanted.iter().map(|_| Answer::Busy).collect();
    let mut sorted = Sorted::default();
    for (at, wanted) in batch.wanted.iter().enumerate() {
        match &wanted.ask {
            Ask::Work(ask) => sorted.work.push((at, ask.clone())),
            Ask::Submit(ask) => sorted.submitted.push((at, ask.as_ref().clone())),
            Ask::Defer(deferral) => sorted.deferrals.push((at, deferral.clone())),
            Ask::DeadLetter(letter) => answers[at] = bury(ledger, letter).await?,
        }
    }
    let mut put = |ats: Vec<usize>, all: Vec<Answer>| {
        for (at, answer) in ats.into_iter().zip(all) {
            answers[at] = answer;
        }
    };
    let session = batch.session.id;
    let (ats, asks): (Vec<_>, Vec<_>) = sorted.deferrals.into_iter().unzip();
    put(ats, defer(ledger, &asks).await?);
    let (ats, asks): (Vec<_>, Vec<_>) = sorted.work.into_iter().unzip();
    put(ats, claim(ledger, session, &asks).await?);
    let (ats, asks): (Vec<_>, Vec<_>) = sorted.submitted.into_iter().unzip();
    put(ats, claim(ledger, session, &asks).await?);
    let (ats, asks) = probes_due(batch, &answers);
    let probes = claim(ledger, session, &asks).await?;
    for (at, answer) in ats.into_iter().zip(probes) {
        answers[at] = answer;
    }
    Ok(answers)
}

/// The probes that the messages ask for, under the tokens of their claims.
fn probes_due(batch: &Batch, answers: &[Answer]) -> (Vec<usize>, Vec<ProbeAsk>) {
    let asked = batch.wanted.iter().zip(answers).enumerate();
    asked
        .filter_map(|(at, (wanted, answer))| match (&wanted.ask, answer) {
            (Ask::Work(ask), Answer::ProbeDue) => {
                let ask = ProbeAsk {
                    execution_id: ask.execution_id,
                    dispatch_no: ask.dispatch_no,
                    probe_id: ask.claim_id,
                    timeout: batch.probe_timeout,
                };
                Some((at, ask))
            }
            _ => None,
        })
        .unzip()
}

#[derive(Default)]
struct Sorted {
    work: Vec<(usize, ClaimAsk)>,
    submitted: Vec<(usize, SubmitAsk)>,
    deferrals: Vec<(usize, Deferral)>,
}

/// What a worker claims by.
trait Claims: Sized + Sync {
    /// How the ledger answers one.
    type Told: Into<Answer>;

    /// Asks for all; the answers stand in their order.
    fn send<'a>(
        ledger: &'a dyn Store,
        session: Uuid,
        asks: &'a [Self],
    ) -> BoxFuture<'a, store::Result<Vec<Self::Told>>>;

    /// What becomes of the message of one that the ledger will always refuse; none = nothing can be
    /// said, and the broker delivers it again.
    fn buried(&self, error: &store::Error) -> Option<DeadLetter>;
}

impl Claims for ClaimAsk {
    type Told = ClaimAnswer;

    fn send<'a>(
        ledger: &'a dyn Store,
        session: Uuid,
        asks: &'a [Self],
    ) -> BoxFuture<'a, store::Result<Vec<ClaimAnswer>>> {
        ledger.claim(session, asks)
    }

    fn buried(&self, error: &store::Error) -> Option<DeadLetter> {
        tracing::error!(execution_id = %self.execution_id, %error, "failed to claim");
        None
    }
}

impl Claims for ProbeAsk {
    type Told = ProbeAnswer;

    fn send<'a>(
        ledger: &'a dyn Store,
        session: Uuid,
        asks: &'a [Self],
    ) -> BoxFuture<'a, store::Result<Vec<ProbeAnswer>>> {
        ledger.claim_probes(session, asks)
    }

    fn buried(&self, error: &store::Error) -> Option<DeadLetter> {
        tracing::error!(execution_id = %self.execution_id, %error, "failed to claim a probe");
        None
    }
}

impl Claims for SubmitAsk {
    type Told = ClaimAnswer;

    fn send<'a>(
        ledger: &'a dyn Store,
        session: Uuid,
        asks: &'a [Self],
    ) -> BoxFuture<'a, store::Result<Vec<ClaimAnswer>>> {
        ledger.claim_submitted(session, asks)
    }

    fn buried(&self, error: &store::Error) -> Option<DeadLetter> {
        if error.kind() == ErrorKind::Invalid {
            // What the ledger refuses about a client's message it will always refuse.
            return Some(refused_letter(self, error));
        }
        tracing::error!(job = self.job, key = self.key, %error, "failed to claim a submitted message");
        None
    }
}

/// Claims all in one call, or one by one where the ledger refuses that: one must not stop the
/// others. An error is one that may pass.
async fn claim<A: Claims>(
    ledger: &dyn Store,
    session: Uuid,
    asks: &[A],
) -> store::Result<Vec<Answer>> {
    if asks.is_empty() {
        return Ok(Vec::new());
    }
    match bounded(CALL_MAX, A::send(ledger, session, asks)).await {
        Ok(told) => return Ok(told.into_iter().map(Into::into).collect()),
        Err(error) if error.is_transient() => return Err(error),
        Err(_) => {}
    }
    let mut answers = Vec::with_capacity(asks.len());
    for ask in asks {
        let one = A::send(ledger, session, std::slice::from_ref(ask));
        answers.push(match bounded(CALL_MAX, one).await {
            Ok(mut one) => one.pop().map_or(Answer::Busy, Into::into),
            Err(error) if error.is_transient() => return Err(error),
            Err(error) => match ask.buried(&error) {
                Some(letter) => bury(ledger, &letter).await?,
                None => Answer::Unanswerable,
            },
        });
    }
    Ok(answers)
}

fn refused_letter(ask: &SubmitAsk, error: &store::Error) -> DeadLetter {
    DeadLetter {
        job: ask.job.clone(),
        queue: ask.queue.clone(),
        key: ask.key.clone(),
        reason: DeadReason::BadHeader,
        detail: error.to_string(),
        payload: ask.payload.clone(),
    }
}

async fn bury(ledger: &dyn Store, letter: &DeadLetter) -> store::Result<Answer> {
    match bounded(CALL_MAX, ledger.record_dead_letter(letter)).await {
        Ok(_new) => {
            tracing::warn!(
                job = letter.job,
                key = letter.key,
                reason = %letter.reason,
                detail = letter.detail,
                "dead letter",
            );
            Ok(Answer::DeadLetter(letter.reason))
        }
        Err(error) if error.is_transient() => Err(error),
        Err(error) => {
            tracing::error!(job = letter.job, key = letter.key, %error, "failed to record a dead letter");
            Ok(Answer::Unanswerable)
        }
    }
}

async fn defer(ledger: &dyn Store, deferrals: &[Deferral]) -> store::Result<Vec<Answer>> {
    if deferrals.is_empty() {
        return Ok(Vec::new());
    }
    match bounded(CALL_MAX, ledger.defer(deferrals)).await {
        Ok(()) => Ok(deferrals.iter().map(|_| Answer::Deferred).collect()),
        Err(error) if error.is_transient() => Err(error),
        Err(error) => {
            tracing::error!(%error, "failed to hand back executions of unknown jobs");
            Ok(deferrals.iter().map(|_| Answer::Unanswerable).collect())
        }
    }
}
