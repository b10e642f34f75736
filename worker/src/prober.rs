//! Runs probes, and tells the ledger what they say.
//!
//! A probe comes as a message like any other and takes a slot like a handler. It is claimed under
//! an id of its own and costs no attempt. A worker that dies with one loses nothing: the ledger
//! takes it back with the session, or at its deadline, and asks another worker. So the look at
//! orphans (`reconcile`) knows nothing of probes, and a request to cancel needs not reach one: it
//! ends the execution at once, and the verdict finds it ended.

use std::sync::Arc;
use std::time::Duration;

use bellwether_schemas::limits::ERROR_TEXT_MAX;
use bellwether_schemas::state::{State, Verdict};
use bellwether_schemas::text;
use bellwether_store::probes::{Decided, Declined, Probe, ProbeResult};
use bellwether_store::{self as store, Store};
use bellwether_telemetry::Trouble;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::call::{CALL_MAX, bounded};
use crate::capacity::Place;
use crate::leaks::Leaks;
use crate::panic::{Panicked, caught, told};
use crate::probe::{Ask, ProbeContext, Probed};
use crate::retry::asking_again;
use crate::session::Session;
use crate::stats::Counted;

/// Longest wait before a verdict that is not decided is sent again.
const AGAIN_CAP: Duration = Duration::from_secs(5);

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
    /// This build's job has no probe: the ledger knows whether another worker's has.
    NoProbe,
}

/// What is told until the ledger has decided.
#[derive(Debug)]
enum Word {
    Verdict(ProbeResult),
    NoProbe,
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
            None => (Said::NoProbe, None),
            Some(ask) => self.asked(&probe, &session, &ask).await,
        };
        let place = left.is_some().then_some(place);
        match said {
            Said::Verdict(verdict, note) => {
                let word = Word::Verdict(self.result(&probe, verdict, note));
                self.tell(&probe, &word).await;
            }
            Said::NoProbe => self.tell(&probe, &Word::NoProbe).await,
            // The ledger takes back what a lost session held.
            Said::Nothing if session.lost.is_cancelled() => {}
            Said::Nothing => self.give_back(&probe).await,
        }
        if let Some(task) = left {
            self.leave(&probe.queue, task).await;
        }
        drop(place);
    }

    /// Waits for an aborted probe. It ends at its next await, and has its slot until then; one that
    /// blocks its thread for longer than a handler may take to obey is leaked as a handler is.
    async fn leave(&self, queue: &str, mut task: JoinHandle<Answer>) {
        if tokio::time::timeout(self.cancel_grace, &mut task)
            .await
            .is_ok()
        {
            return;
        }
        let _leaked = self.leaks.one_more(queue);
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

    fn result(&self, probe: &Probe, verdict: Verdict, note: String) -> ProbeResult {
        ProbeResult {
            execution_id: probe.execution_id,
            probe_id: probe.probe_id,
            verdict,
            note,
            settled_after: self.settled_after,
        }
    }

    /// Until the ledger has decided: the fence is the probe's id, whatever the session does.
    async fn tell(&self, probe: &Probe, word: &Word) {
        let mut trouble = Trouble::with("tell what a probe says");
        for delay in asking_again(AGAIN_CAP) {
            let told = tokio::select! {
                () = self.give_up.cancelled() => break,
                told = self.tell_once(probe, word) => told,
            };
            match told {
                Ok(()) => return trouble.over(),
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
            ?word,
            "giving up what a probe says: it is asked again",
        );
    }

    async fn tell_once(&self, probe: &Probe, word: &Word) -> store::Result<()> {
        match word {
            Word::Verdict(result) => {
                let decided = bounded(CALL_MAX, self.ledger.commit_probe(result)).await?;
                self.note(probe, result, decided);
            }
            Word::NoProbe => {
                let declined = self
                    .ledger
                    .decline_probe(probe.execution_id, probe.probe_id);
                let declined = bounded(CALL_MAX, declined).await?;
                self.note_declined(probe, declined);
            }
        }
        Ok(())
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
                    say_escalated(probe, &result.note);
                }
            }
            Decided::Fenced(state) => self.note_late(probe, Some(state)),
            Decided::Gone => self.note_late(probe, None),
        }
    }

    fn note_declined(&self, probe: &Probe, declined: Declined) {
        match declined {
            Declined::Returned => {
                self.counted.probe_passed_on();
                tracing::info!(
                    execution_id = %probe.execution_id,
                    job = probe.job,
                    "probe left to another worker: this build's job has none",
                );
            }
            Declined::Escalated => {
                self.counted
                    .probed(probe, Verdict::CannotTell, State::Unknown);
                say_escalated(probe, "no worker of the queue has a probe for the job");
            }
            Declined::Fenced(state) => self.note_late(probe, Some(state)),
            Declined::Gone => self.note_late(probe, None),
        }
    }

    /// The row as it is, if there is one.
    fn note_late(&self, probe: &Probe, state: Option<State>) {
        self.counted.fenced(state);
        tracing::warn!(
            execution_id = %probe.execution_id,
            job = probe.job,
            state = state.map_or("gone", State::as_str),
            "what a probe says came late: the execution is decided, or another's to probe",
        );
    }
}

fn say_escalated(probe: &Probe, note: &str) {
    tracing::error!(
        execution_id = %probe.execution_id,
        job = probe.job,
        note,
        "an execution is unknown and no probe can tell: an operator decides: see \
         `bellwether executions show`",
    );
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
    use opentelemetry_sdk::metrics::data::{
        AggregatedMetrics, MetricData, ResourceMetrics, ScopeMetrics, SumDataPoint,
    };
    use opentelemetry_sdk::metrics::{InMemoryMetricExporter, SdkMeterProvider};
    use uuid::Uuid;

    use super::*;
    use crate::probe::{ProbeOutcome, boxed};

    async fn ended<F, Fut>(probe: F) -> (Verdict, String)
    where
        F: Fn(ProbeContext) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output: ProbeOutcome> + Send + 'static,
    {
        let asked = boxed(probe)(ProbeContext::for_test(Uuid::nil()));
        match understood(tokio::spawn(caught(asked)).await) {
            Said::Verdict(verdict, note) => (verdict, note),
            other => panic!("{other:?}"),
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

    /// The newest value of an up-down counter, over its series with this queue.
    fn level(exporter: &InMemoryMetricExporter, queue: &str) -> i64 {
        let batches = exporter.get_finished_metrics().unwrap();
        let newest = batches.last().into_iter();
        let metrics = newest
            .flat_map(ResourceMetrics::scope_metrics)
            .flat_map(ScopeMetrics::metrics);
        let of_it = metrics.filter(|metric| metric.name() == "bellwether.worker.leaked");
        let points = of_it.flat_map(|metric| match metric.data() {
            AggregatedMetrics::I64(MetricData::Sum(sum)) => sum.data_points().collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        });
        let here = points.filter(|point| {
            let mut labels = point.attributes();
            labels.any(|label| label.value.as_str() == queue)
        });
        here.map(SumDataPoint::value).sum()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_probe_that_blocks_its_thread_is_among_the_leaked_until_it_returns() {
        let exporter = InMemoryMetricExporter::default();
        let provider = SdkMeterProvider::builder()
            .with_periodic_exporter(exporter.clone())
            .build();
        opentelemetry::global::set_meter_provider(provider.clone());
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ledger.db");
        let options = store::Options::new(format!("sqlite:{}", file.display()));
        store::migrate(&options).await.unwrap();
        let leaks = Leaks::default();
        let prober = Prober {
            ledger: store::connect(&options).await.unwrap(),
            counted: Counted::default(),
            timeout: Duration::from_secs(1),
            settled_after: Duration::ZERO,
            give_up: CancellationToken::new(),
            leaks: leaks.clone(),
            cancel_grace: Duration::from_millis(1),
        };
        let (release, released) = std::sync::mpsc::sync_channel::<()>(0);
        let blocked = tokio::spawn(async move {
            let _gone = released.recv();
            Ok(Ok(Probed::Done))
        });
        let leaving = tokio::spawn(async move { prober.leave("slow", blocked).await });
        let most = Duration::from_mins(1);
        let seen = tokio::time::timeout(most, async {
            while leaks.count() == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        seen.await.unwrap();
        provider.force_flush().unwrap();
        assert_eq!(level(&exporter, "slow"), 1);
        drop(release);
        tokio::time::timeout(most, leaving).await.unwrap().unwrap();
        provider.force_flush().unwrap();
        assert_eq!((leaks.count(), level(&exporter, "slow")), (0, 0));
    }
}
