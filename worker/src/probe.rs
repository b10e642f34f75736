//! Probes: what became of an attempt that was lost, and whose effect must not be repeated blindly.
//!
//! A probe comes as a message like any other and takes a slot like a handler. It is claimed under
//! an id of its own and costs no attempt. A worker that dies with one loses nothing: the ledger
//! takes it back with the session, or at its deadline, and asks another worker. So the look at
//! orphans (`reconcile`) knows nothing of probes, and a request to cancel needs not reach one: it
//! ends the execution at once, and the verdict finds it ended.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bellwether_schemas::ids;
use bellwether_schemas::limits::ERROR_TEXT_MAX;
use bellwether_schemas::state::{Reason, Trigger, Verdict};
use bellwether_schemas::text;
use bellwether_schemas::trace::TraceContext;
use bellwether_store::probes::{Decided, Probe, ProbeResult};
use bellwether_store::{Payload, Store};
use bellwether_telemetry::Trouble;
use chrono::{DateTime, Utc};
use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;
use uuid::Uuid;

use crate::call::{CALL_MAX, bounded};
use crate::capacity::Place;
use crate::clock;
use crate::handler::decode;
use crate::leaks::Leaks;
use crate::outcome::{BoxError, Failure, chain};
use crate::panic::{Panicked, caught, told};
use crate::retry::asking_again;
use crate::session::Session;
use crate::stats::Counted;

/// Longest wait before a verdict that is not decided is sent again.
const AGAIN_CAP: Duration = Duration::from_secs(5);

/// What a probe found out about the effect of a lost attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probed {
    /// It happened: `succeeded`, without an output.
    Done,
    /// It did not, and will not any more: another attempt, if one is left. Counts from one lease
    /// after the loss on, once the session that ran the attempt is over; before, its handler may
    /// still be at it, and it is asked again.
    NotDone,
    /// It is under way: asked again after 5 s, doubling to 1 min.
    InProgress,
    /// Nothing can be said, with a text for the operator, who decides then: no further probe is
    /// made.
    CannotTell(String),
}

impl Probed {
    /// Nothing can be said, and why.
    pub fn cannot_tell(why: impl fmt::Display) -> Self {
        Self::CannotTell(why.to_string())
    }
}

/// What a probe returns: a [`Probed`], or a `Result` of one. An error says that asking failed (the
/// other system was away, say): it is asked again, as after [`InProgress`](Probed::InProgress).
pub trait ProbeOutcome {
    /// What it found out, or why asking failed.
    fn into_probed(self) -> Result<Probed, String>;
}

impl ProbeOutcome for Probed {
    fn into_probed(self) -> Result<Probed, String> {
        Ok(self)
    }
}

impl<E: Into<BoxError>> ProbeOutcome for Result<Probed, E> {
    fn into_probed(self) -> Result<Probed, String> {
        self.map_err(|error| chain(error.into().as_ref()))
    }
}

/// A probe's payload that does not decode.
#[derive(Debug, thiserror::Error)]
#[error("the payload does not decode: {0}")]
pub struct BadPayload(String);

/// The attempt that a probe is asked about.
#[derive(Debug, Clone)]
pub struct ProbeContext {
    probe: Arc<Probe>,
    cancel: CancellationToken,
    /// Boot time.
    ends_at: Duration,
}

impl ProbeContext {
    fn new(probe: Arc<Probe>, cancel: CancellationToken, timeout: Duration) -> Self {
        Self {
            probe,
            cancel,
            ends_at: clock::boot().saturating_add(timeout),
        }
    }

    /// A context for tests of probes: job `test`, the first probe after the loss of the first
    /// attempt, shard 0 of 1, payload `null`, 30 s of time, never cancelled.
    pub fn for_test(operation_id: Uuid) -> Self {
        let fire_id = ids::fresh();
        let probe = Probe {
            execution_id: ids::execution(fire_id, 0),
            fire_id,
            operation_id,
            job: "test".to_owned(),
            queue: bellwether_schemas::subject::DEFAULT_QUEUE.to_owned(),
            shard_index: 0,
            shard_total: 1,
            trigger: Trigger::Once,
            scheduled_at: DateTime::UNIX_EPOCH,
            generation: 1,
            attempt: 1,
            reason: Some(Reason::WorkerLost),
            error: None,
            lost_at: DateTime::UNIX_EPOCH,
            probe_id: ids::token(),
            probe_no: 1,
            payload: Payload::json("null"),
            trace: None,
        };
        let never = CancellationToken::new();
        Self::new(Arc::new(probe), never, Duration::from_secs(30))
    }

    /// The same with another payload, as JSON.
    #[must_use]
    pub fn with_payload(mut self, json: impl Into<Vec<u8>>) -> Self {
        Arc::make_mut(&mut self.probe).payload = Payload::json(json);
        self
    }

    /// The business operation: what the effect is known by, the same over all attempts and
    /// operator retries.
    pub fn operation_id(&self) -> Uuid {
        self.probe.operation_id
    }

    /// The job's name.
    pub fn job(&self) -> &str {
        &self.probe.job
    }

    /// The queue it came through.
    pub fn queue(&self) -> &str {
        &self.probe.queue
    }

    /// The execution.
    pub fn execution_id(&self) -> Uuid {
        self.probe.execution_id
    }

    /// Its fire.
    pub fn fire_id(&self) -> Uuid {
        self.probe.fire_id
    }

    /// The generation of the attempt in question.
    pub fn generation(&self) -> i64 {
        self.probe.generation
    }

    /// Its number, from 1.
    pub fn attempt(&self) -> u32 {
        self.probe.attempt
    }

    /// Its shard, from 0.
    pub fn shard_index(&self) -> u32 {
        self.probe.shard_index
    }

    /// Shards of the fire; 1 if it is not sharded.
    pub fn shard_total(&self) -> u32 {
        self.probe.shard_total
    }

    /// The due instant.
    pub fn scheduled_at(&self) -> DateTime<Utc> {
        self.probe.scheduled_at
    }

    /// What made the fire.
    pub fn trigger(&self) -> Trigger {
        self.probe.trigger
    }

    /// Why the attempt is in question: its worker was lost, or its handler did not stop. The
    /// second may still be at work.
    pub fn reason(&self) -> Option<Reason> {
        self.probe.reason
    }

    /// When the ledger gave the attempt up.
    pub fn lost_at(&self) -> DateTime<Utc> {
        self.probe.lost_at
    }

    /// Counts the probes since then, from 1.
    pub fn probe_no(&self) -> u32 {
        self.probe.probe_no
    }

    /// The trace that the fire belongs to.
    pub fn trace(&self) -> Option<&TraceContext> {
        self.probe.trace.as_ref()
    }

    /// What the handler got.
    ///
    /// # Errors
    ///
    /// [`BadPayload`]: it does not decode into `T`.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T, BadPayload> {
        decode(&self.probe.payload).map_err(|failure| match failure {
            Failure::BadPayload(why) | Failure::Error(why) => BadPayload(why),
        })
    }

    /// Time left before the probe is given up and the execution becomes an operator's; zero
    /// afterwards.
    pub fn remaining(&self) -> Duration {
        self.ends_at.saturating_sub(clock::boot())
    }

    /// Completes when the probe should stop; another worker asks again.
    pub async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }
}

/// A probe as a job carries it.
pub(crate) type Ask =
    Arc<dyn Fn(ProbeContext) -> BoxFuture<'static, Result<Probed, String>> + Send + Sync>;

/// Forgets the shape of a probe. What it does before its first await belongs to the future, too.
pub(crate) fn boxed<F, Fut>(probe: F) -> Ask
where
    F: Fn(ProbeContext) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output: ProbeOutcome> + Send + 'static,
{
    Arc::new(move |context| {
        let probe = probe.clone();
        Box::pin(async move { probe(context).await.into_probed() })
    })
}

/// A claimed probe with everything that goes with it.
#[derive(Debug)]
pub(crate) struct Claimed {
    pub(crate) probe: Probe,
    pub(crate) session: Arc<Session>,
    pub(crate) place: Place,
}

/// How the probes of a worker run. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Prober {
    pub(crate) ledger: Arc<dyn Store>,
    pub(crate) counted: Counted,
    /// Time a probe may take from its start.
    pub(crate) timeout: Duration,
    /// A `NotDone` of a probe that was claimed sooner after the loss does not count. One lease of
    /// this worker, which asks, and not of the one that was lost: the workers of one job should
    /// have the same.
    pub(crate) settled_after: Duration,
    /// After it nothing is asked any more.
    pub(crate) give_up: CancellationToken,
    pub(crate) leaks: Leaks,
    /// How long a probe that was aborted may take to end before its slot counts as leaked.
    pub(crate) cancel_grace: Duration,
}

/// What a probe came to.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Verdict(Verdict, String),
    /// Nothing: another worker asks.
    Nothing,
}

/// What a probe's task yields.
type Answer = Result<Result<Probed, String>, Panicked>;

impl Prober {
    /// Runs the probe, whose place has been started, and tells the ledger what it says.
    pub(crate) async fn run(self, claimed: Claimed, ask: Option<Ask>) {
        let Claimed {
            probe,
            session,
            place,
        } = claimed;
        let probe = Arc::new(probe);
        let (said, left) = match ask {
            None => (cannot_tell("the job has no probe"), None),
            Some(ask) => self.asked(&probe, &session, &ask).await,
        };
        let place = left.is_some().then_some(place);
        match said {
            Said::Verdict(verdict, note) => self.tell(&probe, verdict, note).await,
            // The ledger takes back what a lost session held.
            Said::Nothing if session.lost.is_cancelled() => {}
            Said::Nothing => self.give_back(&probe).await,
        }
        if let Some(task) = left {
            self.leave(task).await;
        }
        drop(place);
    }

    /// Waits for an aborted probe. It ends at its next await, and has its slot until then; one that
    /// blocks its thread for longer than a handler may take to obey is leaked as a handler is.
    async fn leave(&self, mut task: JoinHandle<Answer>) {
        if tokio::time::timeout(self.cancel_grace, &mut task)
            .await
            .is_ok()
        {
            return;
        }
        let _leaked = self.leaks.one_more();
        tracing::error!(
            leaked = self.leaks.count(),
            "a probe blocks its thread and does not stop: its slot is leaked",
        );
        let _ended = task.await;
    }

    /// What it says, and its task if that has not ended.
    async fn asked(
        &self,
        probe: &Arc<Probe>,
        session: &Session,
        ask: &Ask,
    ) -> (Said, Option<JoinHandle<Answer>>) {
        let cancel = session.handlers.child_token();
        let context = ProbeContext::new(Arc::clone(probe), cancel.clone(), self.timeout);
        let span = tracing::info_span!(
            "probe",
            job = probe.job,
            execution_id = %probe.execution_id,
            operation_id = %probe.operation_id,
            generation = probe.generation,
            probe_no = probe.probe_no,
        );
        let asking = caught(ask(context)).instrument(span);
        // Spawned, so that a probe that blocks its thread leaves this task alone.
        let mut task = tokio::spawn(asking);
        let said = tokio::select! {
            ended = &mut task => return (understood(ended), None),
            () = tokio::time::sleep(self.timeout) => {
                cannot_tell(&format!("the probe gave no answer within {:?}", self.timeout))
            }
            () = cancel.cancelled() => Said::Nothing,
        };
        cancel.cancel();
        task.abort();
        (said, Some(task))
    }

    /// Gives a probe back that did not run, or was stopped; until the worker gives up. A loss costs
    /// the rest of its time.
    pub(crate) async fn give_back(&self, probe: &Probe) {
        tracing::debug!(execution_id = %probe.execution_id, "probe given back");
        let released = self
            .ledger
            .release_probe(probe.execution_id, probe.probe_id);
        let released = tokio::select! {
            () = self.give_up.cancelled() => {
                tracing::warn!(
                    execution_id = %probe.execution_id,
                    "a probe was not given back in time: it is taken back with the session",
                );
                return;
            }
            released = bounded(CALL_MAX, released) => released,
        };
        if let Err(error) = released {
            tracing::warn!(
                execution_id = %probe.execution_id,
                %error,
                "failed to give a probe back: it is taken back at its deadline",
            );
        }
    }

    /// Until the ledger has decided: the fence is the probe's id, whatever the session does.
    async fn tell(&self, probe: &Probe, verdict: Verdict, note: String) {
        let result = ProbeResult {
            execution_id: probe.execution_id,
            probe_id: probe.probe_id,
            verdict,
            note,
            settled_after: self.settled_after,
        };
        let mut trouble = Trouble::with("tell what a probe says");
        for delay in asking_again(AGAIN_CAP) {
            let told = tokio::select! {
                () = self.give_up.cancelled() => break,
                told = bounded(CALL_MAX, self.ledger.commit_probe(&result)) => told,
            };
            match told {
                Ok(decided) => {
                    trouble.over();
                    self.note(probe, &result, decided);
                    return;
                }
                Err(error) if error.is_transient() => trouble.note(&error),
                Err(error) => {
                    tracing::error!(
                        execution_id = %probe.execution_id,
                        job = probe.job,
                        %error,
                        "failed to tell what a probe says: it is asked again after its deadline",
                    );
                    return;
                }
            }
            tokio::select! {
                () = self.give_up.cancelled() => break,
                () = tokio::time::sleep(delay) => {}
            }
        }
        tracing::warn!(
            execution_id = %probe.execution_id,
            %verdict,
            "giving up what a probe says: it is asked again",
        );
    }

    fn note(&self, probe: &Probe, result: &ProbeResult, decided: Decided) {
        match decided {
            Decided::Accepted(state) => {
                self.counted.probed(probe, result.verdict, state);
                tracing::info!(
                    execution_id = %probe.execution_id,
                    job = probe.job,
                    probe_no = probe.probe_no,
                    verdict = %result.verdict,
                    note = result.note,
                    %state,
                    "probe of an unknown execution",
                );
                if result.verdict == Verdict::CannotTell {
                    tracing::error!(
                        execution_id = %probe.execution_id,
                        job = probe.job,
                        note = result.note,
                        "an execution is unknown and no probe can tell: an operator decides: see \
                         `bellwether executions show`",
                    );
                }
            }
            Decided::Fenced(state) => {
                self.counted.fenced(Some(state));
                tracing::warn!(
                    execution_id = %probe.execution_id,
                    job = probe.job,
                    verdict = %result.verdict,
                    %state,
                    "what a probe says came late: the execution is decided, or another's to probe",
                );
            }
            Decided::Gone => {
                self.counted.fenced(None);
                tracing::warn!(
                    execution_id = %probe.execution_id,
                    job = probe.job,
                    "what a probe says came late: the ledger has no such execution",
                );
            }
        }
    }
}

fn cannot_tell(why: &str) -> Said {
    Said::Verdict(
        Verdict::CannotTell,
        text::clean(why, ERROR_TEXT_MAX).into_owned(),
    )
}

fn understood(ended: Result<Answer, JoinError>) -> Said {
    match ended {
        Ok(Ok(Ok(Probed::Done))) => Said::Verdict(Verdict::Done, String::new()),
        Ok(Ok(Ok(Probed::NotDone))) => Said::Verdict(Verdict::NotDone, String::new()),
        Ok(Ok(Ok(Probed::InProgress))) => Said::Verdict(Verdict::InProgress, String::new()),
        Ok(Ok(Ok(Probed::CannotTell(why)))) => cannot_tell(&why),
        Ok(Ok(Err(error))) => {
            let note = format!("the probe failed: {error}");
            let note = text::clean(&note, ERROR_TEXT_MAX).into_owned();
            Said::Verdict(Verdict::InProgress, note)
        }
        Ok(Err(Panicked(said))) => cannot_tell(&format!("the probe panicked: {said}")),
        Err(failed) if failed.is_panic() => {
            let said = told(failed.into_panic(), None);
            cannot_tell(&format!("the probe panicked: {said}"))
        }
        // The runtime is being torn down under it.
        Err(_) => Said::Nothing,
    }
}

#[cfg(test)]
#[expect(clippy::panic, reason = "tests")]
mod tests {
    use super::*;

    async fn ended<F, Fut>(probe: F) -> (Verdict, String)
    where
        F: Fn(ProbeContext) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output: ProbeOutcome> + Send + 'static,
    {
        let asked = boxed(probe)(ProbeContext::for_test(Uuid::nil()));
        match understood(tokio::spawn(caught(asked)).await) {
            Said::Verdict(verdict, note) => (verdict, note),
            Said::Nothing => panic!("nothing was said"),
        }
    }

    #[tokio::test]
    async fn what_a_probe_does_is_understood() {
        let done = ended(async |_| Probed::Done).await;
        assert_eq!(done, (Verdict::Done, String::new()));
        let not_done = ended(async |_| Ok::<_, String>(Probed::NotDone)).await;
        assert_eq!(not_done.0, Verdict::NotDone);
        let failed = ended(async |_| Err::<Probed, _>("no route to the bank")).await;
        assert_eq!(
            failed,
            (
                Verdict::InProgress,
                "the probe failed: no route to the bank".into()
            ),
            "asked again"
        );
        let (verdict, note) = ended(|_| {
            assert!(std::thread::panicking(), "no such table");
            std::future::ready(Probed::Done)
        })
        .await;
        assert_eq!(verdict, Verdict::CannotTell);
        assert!(note.contains("no such table"), "{note}");
        let (_, note) = ended(async |_| Probed::cannot_tell("x".repeat(5_000))).await;
        assert_eq!(note.chars().count(), ERROR_TEXT_MAX);
    }

    #[tokio::test]
    async fn a_probe_reads_the_payload_that_the_handler_got() {
        let context = ProbeContext::for_test(Uuid::nil()).with_payload(r#"{"amount":7}"#);
        let amount: std::collections::BTreeMap<String, u64> = context.payload().unwrap();
        assert_eq!(amount["amount"], 7);
        let refused = context.payload::<u64>().unwrap_err().to_string();
        assert!(refused.contains("does not decode"), "{refused}");
        assert!(context.remaining() > Duration::from_secs(20));
    }
}
