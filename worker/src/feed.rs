//! From messages to running handlers: buffer, claim, ack, start.
//!
//! One task does all of it, so that what it holds needs no lock. One batch of claims is under
//! way at a time; handlers start while it is. A message is acked only after the ledger has
//! given a definite answer; a claim runs only after it has committed.

use std::collections::{HashSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use async_nats::connection::State as Connection;
use async_nats::{Client, Subject};
use bellwether_store::Store;
use bellwether_store::executions::Claimed;
use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::capacity::Capacity;
use crate::claim::{Answer, BATCH_MAX, Batch, decide};
use crate::clock;
use crate::commit::Commits;
use crate::delivery::{Delivery, Reader, Wanted};
use crate::run::{Attempt, run};
use crate::session::{Keeper, Session};
use crate::stats::Counted;
use crate::trace::Traced;
use crate::trouble::Trouble;

/// An unclaimed message older than this is forgotten: the broker is about to deliver it again.
const UNCLAIMED_MAX: Duration = Duration::from_secs(8);
/// A claim that was not started by then is given back.
const UNSTARTED_MAX: Duration = Duration::from_secs(2);
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
    pub(crate) commits: Commits,
    pub(crate) counted: Counted,
    pub(crate) deliveries: mpsc::Receiver<Delivery>,
    /// Tells the puller whether messages are wanted.
    pub(crate) open: watch::Sender<bool>,
    pub(crate) handlers: TaskTracker,
    pub(crate) leaked: Arc<AtomicUsize>,
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
    /// Whether results piled up at the last look.
    full: bool,
    foreign: Trouble,
}

impl Default for Held {
    fn default() -> Self {
        Self {
            buffer: VecDeque::new(),
            ready: VecDeque::new(),
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
        let mut pending = self.commits.watch();
        let mut session = self.keeper.current.clone();
        let mut deciding: Option<Deciding> = None;
        loop {
            let ledger_away = *is_away.borrow_and_update();
            self.set_open(ledger_away);
            self.forget(ledger_away);
            self.give_back_unstarted().await;
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
        self.counted.forgotten(self.held.buffer.len());
        self.held.buffer.clear();
        if let Some(deciding) = deciding {
            let (batch, answers) = deciding.await;
            self.take_answers(batch, answers).await;
        }
        while let Some((attempt, _)) = self.held.ready.pop_front() {
            self.give_back(attempt).await;
        }
    }

    fn tick(&self) -> Duration {
        let closed = !*self.open.borrow();
        let holds = !self.held.buffer.is_empty() || !self.held.ready.is_empty();
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
        self.held.full = self.commits.is_full(self.held.full);
        let open = !ledger_away && !self.held.full && self.session().is_some();
        self.open
            .send_if_modified(|was| std::mem::replace(was, open) != open);
    }

    fn take(&mut self, delivery: Delivery) {
        match self.reader.read(delivery) {
            Ok(wanted) => {
                self.held.foreign.over();
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
        let now = clock::boot();
        let before = self.held.buffer.len();
        self.held
            .buffer
            .retain(|wanted| !all && now.saturating_sub(wanted.received) < UNCLAIMED_MAX);
        self.counted.forgotten(before - self.held.buffer.len());
    }

    async fn give_back_unstarted(&mut self) {
        let now = clock::boot();
        let keep = |(attempt, since): &(Attempt, Duration)| {
            !attempt.session.lost.is_cancelled()
                && !attempt.is_cancel_requested()
                && now.saturating_sub(*since) < UNSTARTED_MAX
        };
        if self.held.ready.iter().all(keep) {
            return;
        }
        let (kept, over) = self.held.ready.drain(..).partition::<VecDeque<_>, _>(keep);
        self.held.ready = kept;
        for (attempt, _) in over {
            // The ledger has taken back what a lost session held.
            if !attempt.session.lost.is_cancelled() {
                self.give_back(attempt).await;
            }
        }
    }

    async fn give_back(&self, attempt: Attempt) {
        tracing::debug!(execution_id = %attempt.claimed.execution_id, "released unstarted");
        self.commits.send(attempt.released()).await;
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
            self.handlers.spawn(run(
                attempt,
                handler,
                self.commits.clone(),
                Arc::clone(&self.leaked),
            ));
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
            .saturating_sub(self.held.ready.len());
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
                Answer::Busy | Answer::Unanswerable => {
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
            if let Answer::Claimed(claimed) = answer {
                self.take_claimed(*claimed, wanted, &batch.session, batch.asked)
                    .await;
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
