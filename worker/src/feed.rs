//! From messages to running handlers: buffer, claim, ack, start.
//!
//! One task does all of it, so that what it holds needs no lock. One batch of claims is under
//! way at a time; handlers start while it is. A message is acked only after the ledger has
//! given a definite answer; a claim runs only after it has committed.

use std::collections::{HashSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_nats::connection::State as Connection;
use async_nats::{Client, Subject};
use bellwether_store::Store;
use bellwether_store::executions::Claimed;
use bellwether_telemetry::Trouble;
use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::capacity::Capacity;
use crate::claim::{Answer, BATCH_MAX, Batch, decide};
use crate::clock;
use crate::delivery::{Delivery, Reader, Wanted};
use crate::intake::Intake;
use crate::prober::{self, Prober};
use crate::run::{Attempt, Tools, run};
use crate::session::{Keeper, Session};
use crate::stats::Counted;
use crate::trace::Traced;

/// Longest wait for room in the connection's buffer.
const ACK_MAX: Duration = Duration::from_millis(100);
/// While something is held, times are looked at so often.
const TICK: Duration = Duration::from_millis(100);
const IDLE_TICK: Duration = Duration::from_secs(1);

type Deciding = Pin<Box<dyn Future<Output = (Batch, Option<Vec<Answer>>)> + Send>>;

/// What feeds the handlers.
pub(crate) struct Feeder {
    /// The worker's label.
    pub(crate) name: Arc<str>,
    pub(crate) ledger: Arc<dyn Store>,
    pub(crate) client: Client,
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) reader: Reader,
    pub(crate) capacity: Capacity,
    /// How long what waits is held.
    pub(crate) intake: Intake,
    pub(crate) counted: Counted,
    pub(crate) deliveries: mpsc::Receiver<Delivery>,
    /// Tells the puller whether messages are wanted.
    pub(crate) open: watch::Sender<bool>,
    /// What its attempts get.
    pub(crate) tools: Tools,
    pub(crate) prober: Prober,
    /// Ends what waits for a ledger that is away, at the end of a stop.
    pub(crate) give_up: CancellationToken,
    pub(crate) held: Held,
}

/// What waits.
pub(crate) struct Held {
    /// Received, not asked for.
    buffer: VecDeque<Wanted>,
    /// Claimed, not started, with the boot time before the claim was first asked for: the
    /// ledger may have been silent for long before it answered.
    ready: VecDeque<(Attempt, Duration)>,
    /// The same of probes.
    probes: VecDeque<(prober::Claimed, Duration)>,
    /// Whether results piled up at the last look.
    full: bool,
    foreign: Trouble,
}

impl Default for Held {
    fn default() -> Self {
        Self {
            buffer: VecDeque::new(),
            ready: VecDeque::new(),
            probes: VecDeque::new(),
            full: false,
            foreign: Trouble::with("read a message; it is left unanswered"),
        }
    }
}

impl Feeder {
    /// Feeds until `stop`; then nothing new is claimed, and what is claimed but not started
    /// is given back.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let (away, mut is_away) = watch::channel(false);
        let mut load = self.capacity.watch();
        let mut pending = self.tools.commits.watch();
        let mut session = self.keeper.current.clone();
        let mut deciding: Option<Deciding> = None;
        loop {
            self.counted.turned();
            let ledger_away = *is_away.borrow_and_update();
            self.set_open(ledger_away);
            self.forget(ledger_away);
            self.give_back_unstarted().await;
            self.give_back_unstarted_probes();
            self.start_probes();
            self.start_ready();
            if deciding.is_none() {
                deciding = self.next_batch().map(|batch| {
                    let (ledger, give_up) = (Arc::clone(&self.ledger), self.give_up.clone());
                    Box::pin(decide(ledger, batch, away.clone(), give_up)) as Deciding
                });
            }
            let tick = self.tick();
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                (batch, answers) = next(&mut deciding) => {
                    deciding = None;
                    self.take_answers(batch, answers).await;
                }
                Some(delivery) = self.deliveries.recv() => {
                    self.take(delivery);
                    while let Ok(delivery) = self.deliveries.try_recv() {
                        self.take(delivery);
                    }
                }
                _ = load.changed() => {}
                _ = pending.changed() => {}
                _ = is_away.changed() => {}
                changed = session.changed() => if changed.is_err() {
                    // The session thread is gone: the worker stops, in order and in time.
                    stop.cancel();
                    break;
                },
                () = sleep(tick) => {}
            }
        }
        self.open.send_replace(false);
        self.capacity.set_taking(false);
        self.counted.forgotten(self.held.buffer.len());
        self.held.buffer.clear();
        if let Some(deciding) = deciding {
            let (batch, answers) = deciding.await;
            self.take_answers(batch, answers).await;
        }
        while let Some((attempt, _)) = self.held.ready.pop_front() {
            self.give_back(attempt).await;
        }
        while let Some((claimed, _)) = self.held.probes.pop_front() {
            self.give_back_probe(claimed);
        }
    }

    fn tick(&self) -> Duration {
        let closed = !*self.open.borrow();
        let Held {
            buffer,
            ready,
            probes,
            ..
        } = &self.held;
        let holds = !(buffer.is_empty() && ready.is_empty() && probes.is_empty());
        if closed || holds { TICK } else { IDLE_TICK }
    }

    /// The session to claim under, if any may be claimed under now.
    fn session(&self) -> Option<Arc<Session>> {
        self.keeper
            .current
            .borrow()
            .clone()
            .filter(|session| session.is_trusted())
    }

    fn set_open(&mut self, ledger_away: bool) {
        let was_full = self.held.full;
        self.held.full = self.tools.commits.is_full(was_full);
        if self.held.full != was_full {
            self.counted.paused(self.held.full);
            let uncommitted = self.tools.commits.pending();
            if self.held.full {
                tracing::warn!(uncommitted, "results pile up: no new work is taken");
            } else {
                tracing::info!(uncommitted, "results are written again: work is taken");
            }
        }
        let open = !ledger_away && !self.held.full && self.session().is_some();
        self.capacity.set_taking(open);
        self.open
            .send_if_modified(|was| std::mem::replace(was, open) != open);
    }

    fn take(&mut self, delivery: Delivery) {
        match self.reader.read(delivery) {
            Ok(wanted) => {
                self.held.foreign.over();
                if wanted.heard.is_redelivered() {
                    self.counted.redelivered(wanted.heard.queue());
                }
                self.held.buffer.push_back(wanted);
            }
            Err(why) => {
                self.counted.foreign();
                self.held.foreign.note(&why);
            }
        }
    }

    /// Without a word: the broker delivers again what is not acked.
    fn forget(&mut self, all: bool) {
        let (now, unclaimed_max) = (clock::boot(), self.intake.unclaimed_max);
        let before = self.held.buffer.len();
        self.held.buffer.retain(|wanted| {
            let held_max = wanted.ack_wait.held_max(unclaimed_max);
            !all && now.saturating_sub(wanted.received) < held_max
        });
        self.counted.forgotten(before - self.held.buffer.len());
    }

    async fn give_back_unstarted(&mut self) {
        let (now, unstarted_max) = (clock::boot(), self.intake.unstarted_max);
        let keep = |(attempt, since): &(Attempt, Duration)| {
            !attempt.session.lost.is_cancelled()
                && !attempt.is_cancel_requested()
                && now.saturating_sub(*since) < unstarted_max
        };
        if self.held.ready.iter().all(keep) {
            return;
        }
        let (kept, over) = self.held.ready.drain(..).partition::<VecDeque<_>, _>(keep);
        self.held.ready = kept;
        for (attempt, _) in over {
            let overloaded = !attempt.session.lost.is_cancelled()
                && !attempt.is_cancel_requested()
                && !self.capacity.has_free_slot();
            if overloaded {
                self.refuse_overloaded(attempt).await;
            } else {
                self.give_back(attempt).await;
            }
        }
    }

    async fn give_back(&self, attempt: Attempt) {
        let commits = self.tools.commits.clone();
        if attempt.session.lost.is_cancelled() {
            // It asks the ledger first: nothing else shall wait for that.
            let giving = async move { attempt.give_back(&commits).await };
            self.tools.tracker.spawn(giving);
        } else {
            attempt.give_back(&commits).await;
        }
    }

    /// It was claimed ahead, for a slot that did not come free.
    async fn refuse_overloaded(&self, attempt: Attempt) {
        tracing::warn!(
            execution_id = %attempt.claimed.execution_id,
            job = attempt.claimed.job,
            "executor overloaded: released unstarted, without a charge",
        );
        self.counted.overloaded(&attempt.claimed.queue);
        self.tools.commits.send(attempt.overloaded()).await;
    }

    fn start_ready(&mut self) {
        while self.capacity.has_free_slot()
            && self
                .held
                .ready
                .front()
                .is_some_and(|(attempt, _)| attempt.session.is_trusted())
        {
            let Some((mut attempt, _)) = self.held.ready.pop_front() else {
                return;
            };
            // Here, not in its task: the next look at the free slots must see it.
            attempt.place.start();
            let Some(job) = self.reader.jobs.get(&attempt.claimed.job) else {
                return;
            };
            let handler = Arc::clone(&job.handler);
            let policy = (!attempt.claimed.policy_known).then(|| job.policy.clone());
            let tools = self.tools.clone();
            self.tools
                .tracker
                .spawn(run(attempt, handler, policy, tools));
        }
    }

    fn give_back_unstarted_probes(&mut self) {
        let (now, unstarted_max) = (clock::boot(), self.intake.unstarted_max);
        let keep = |(claimed, since): &(prober::Claimed, Duration)| {
            !claimed.session.lost.is_cancelled() && now.saturating_sub(*since) < unstarted_max
        };
        if self.held.probes.iter().all(keep) {
            return;
        }
        let (kept, over) = self.held.probes.drain(..).partition::<VecDeque<_>, _>(keep);
        self.held.probes = kept;
        for (claimed, _) in over {
            self.give_back_probe(claimed);
        }
    }

    /// Beside everything else: a ledger that is silent must not stop the feeding. Its place is
    /// taken until then, so that there are never many.
    fn give_back_probe(&self, claimed: prober::Claimed) {
        let prober = self.prober.clone();
        self.tools.tracker.spawn(async move {
            prober.give_back(&claimed.probe).await;
            drop(claimed);
        });
    }

    /// Before the handlers: a probe may end what waits for an answer since long.
    fn start_probes(&mut self) {
        while self.capacity.has_free_slot()
            && let Some((mut claimed, _)) = self.held.probes.pop_front()
        {
            claimed.place.start();
            let job = self.reader.jobs.get(&claimed.probe.job);
            let ask = job.and_then(|job| job.probe.clone());
            self.tools
                .tracker
                .spawn(self.prober.clone().run(claimed, ask));
        }
    }

    /// What may be asked for now: all that needs no slot, and claims for the slots that are
    /// free or soon will be. One execution stands in a batch once; its second message waits.
    fn next_batch(&mut self) -> Option<Batch> {
        if self.held.buffer.is_empty() || self.held.full {
            return None;
        }
        let session = self.session()?;
        let mut slots = self
            .capacity
            .claimable()
            .saturating_sub(self.held.ready.len() + self.held.probes.len());
        let mut seen = HashSet::new();
        let mut wanted = Vec::new();
        let mut left = VecDeque::new();
        for next in self.held.buffer.drain(..) {
            let needs_slot = next.ask.may_claim();
            let fits = wanted.len() < BATCH_MAX && (!needs_slot || slots > 0);
            if fits && next.ask.execution_id().is_none_or(|id| seen.insert(id)) {
                slots -= usize::from(needs_slot);
                wanted.push(next);
            } else {
                left.push_back(next);
            }
        }
        self.held.buffer = left;
        (!wanted.is_empty()).then_some(Batch {
            session,
            wanted,
            asked: clock::boot(),
            probe_timeout: self.prober.timeout,
        })
    }

    async fn take_answers(&mut self, batch: Batch, answers: Option<Vec<Answer>>) {
        let Some(answers) = answers else {
            self.counted.forgotten(batch.wanted.len());
            return;
        };
        for (wanted, answer) in batch.wanted.into_iter().zip(answers) {
            let definite = match &answer {
                Answer::Claimed(_) => {
                    self.counted.claimed();
                    true
                }
                Answer::Probe(_) => {
                    Counted::probe_claimed();
                    true
                }
                Answer::Refused(refusal) => {
                    self.counted.refused(*refusal);
                    true
                }
                Answer::Deferred => {
                    self.counted.deferred();
                    true
                }
                Answer::DeadLetter(reason) => {
                    self.counted.dead_letter(*reason);
                    true
                }
                Answer::Busy | Answer::ProbeDue | Answer::Unanswerable => {
                    self.counted.busy();
                    false
                }
                Answer::SessionLost => {
                    self.keeper.look();
                    false
                }
            };
            if definite {
                self.ack(wanted.reply.clone()).await;
            }
            match answer {
                Answer::Claimed(claimed) => {
                    self.take_claimed(*claimed, wanted, &batch.session, batch.asked)
                        .await;
                }
                Answer::Probe(probe) => {
                    let claimed = prober::Claimed {
                        probe: *probe,
                        session: Arc::clone(&batch.session),
                        place: wanted.place,
                    };
                    self.held.probes.push_back((claimed, batch.asked));
                }
                _ => {}
            }
        }
    }

    async fn take_claimed(
        &mut self,
        claimed: Claimed,
        wanted: Wanted,
        session: &Arc<Session>,
        asked: Duration,
    ) {
        let known_job = self.reader.jobs.contains_key(&claimed.job);
        let traced = Traced::new(&claimed, &wanted.heard, wanted.received, &self.name);
        let attempt = Attempt {
            claimed,
            session: Arc::clone(session),
            place: wanted.place,
            known: wanted.known,
            traced,
        };
        if known_job {
            self.held.ready.push_back((attempt, asked));
        } else {
            // The message named a job that the row does not have.
            tracing::error!(
                execution_id = %attempt.claimed.execution_id,
                job = attempt.claimed.job,
                "claimed an execution of a job that is not registered here",
            );
            self.give_back(attempt).await;
        }
    }

    /// A plain ack: a lost one costs a refused claim, so that a broker that is away must not
    /// hold up what is claimed.
    async fn ack(&self, reply: Subject) {
        if self.client.connection_state() != Connection::Connected {
            return;
        }
        match timeout(ACK_MAX, self.client.publish(reply, Bytes::new())).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "failed to ack"),
            Err(_elapsed) => tracing::debug!("failed to ack: the connection takes nothing"),
        }
    }
}

/// The end of the batch under way; never if there is none.
async fn next(deciding: &mut Option<Deciding>) -> (Batch, Option<Vec<Answer>>) {
    match deciding {
        Some(deciding) => deciding.await,
        None => std::future::pending().await,
    }
}
