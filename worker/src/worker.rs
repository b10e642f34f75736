//! The worker as a whole: start, run, stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::{Client, jetstream};
use bellwether_schemas::PRODUCT_VERSION;
use bellwether_schemas::state::Capability;
use bellwether_schemas::subject::Subjects;
use bellwether_store::schedules::NewSchedule;
use bellwether_store::sessions::NewSession;
use bellwether_store::{self as store, Store};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::broker::{self, Broker, Found};
use crate::builder::{Builder, host_name};
use crate::call::{CALL_MAX, bounded};
use crate::cancel;
use crate::capacity::{Capacity, Limits};
use crate::claims::Claims;
use crate::commit::Commits;
use crate::definitions::Definitions;
use crate::delivery::{Delivery, Jobs, Reader};
use crate::drain::Drain;
use crate::error::Error;
use crate::feed::{Feeder, Held};
use crate::lane::Lane;
use crate::pull::Puller;
use crate::reconcile;
use crate::retry::asking_again;
use crate::session::{Keeper, Lease};
use crate::stats::{Counted, Stats};
use crate::trouble::Trouble;

/// Longest wait between tries to reach the ledger or the broker at the start.
const START_CAP: Duration = Duration::from_secs(5);
/// The session thread's probe of the user's runtime.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// The checked settings.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) database: store::Options,
    pub(crate) broker: Broker,
    pub(crate) subjects: Subjects,
    pub(crate) name: String,
    pub(crate) queues: Vec<String>,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) schedules: Vec<NewSchedule>,
    /// What the session reports of them.
    pub(crate) definitions: Vec<(String, String)>,
    pub(crate) limits: Limits,
    pub(crate) drain: Duration,
    pub(crate) lease: Lease,
}

/// Runs the executions of its jobs: pulls, claims, runs, commits.
#[derive(Debug)]
pub struct Worker {
    plan: Plan,
    handle: Handle,
}

/// A look at a worker from outside. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle {
    counted: Counted,
    capacity: Capacity,
    pending: Arc<watch::Sender<usize>>,
    leaked: Arc<AtomicUsize>,
}

impl Handle {
    /// What it has done, and what it does now.
    pub fn stats(&self) -> Stats {
        let load = self.capacity.load();
        Stats {
            asked: load.asked,
            running: load.running,
            waiting: load.waiting,
            uncommitted: *self.pending.borrow(),
            leaked: self.leaked.load(Ordering::Relaxed),
            ..self.counted.stats()
        }
    }
}

impl Worker {
    /// A worker to be put together.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn new(plan: Plan) -> Self {
        let handle = Handle {
            counted: Counted::default(),
            capacity: Capacity::new(plan.limits),
            pending: Arc::new(watch::Sender::new(0)),
            leaked: Arc::default(),
        };
        Self { plan, handle }
    }

    /// A look at the worker that stays valid while it runs and afterwards.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Runs until SIGTERM or SIGINT, then stops in order within the drain limit. A second
    /// signal ends the process at once, with status 128 + its number.
    ///
    /// # Errors
    ///
    /// Those of [`run_until`](Self::run_until), and what the system says about signals.
    pub async fn run(self) -> Result<(), Error> {
        let failed = |source| Error::System {
            what: "listen for signals",
            source,
        };
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let shutdown = CancellationToken::new();
        let mut work = Box::pin(self.run_until(shutdown.clone()));
        loop {
            let number = tokio::select! {
                ended = &mut work => return ended,
                _ = terminate.recv() => SignalKind::terminate().as_raw_value(),
                _ = interrupt.recv() => SignalKind::interrupt().as_raw_value(),
            };
            if shutdown.is_cancelled() {
                std::process::exit(128 + number);
            }
            tracing::info!("stopping; a second signal ends at once");
            shutdown.cancel();
        }
    }

    /// Runs until `shutdown` is cancelled, then stops in order within the drain limit:
    /// nothing new is claimed; running handlers finish, or are cancelled after four fifths of
    /// the limit; what a handler gives up then is released without a charge; results are
    /// committed; the session is closed.
    ///
    /// # Errors
    ///
    /// What cannot pass by itself: a schema of another version, streams of another ledger, an
    /// unusable address. A ledger or broker that is away is waited for.
    pub async fn run_until(self, shutdown: CancellationToken) -> Result<(), Error> {
        // Dropped with this future: handlers are told to stop, however it ends.
        let stop_now = CancellationToken::new();
        let _stop_handlers = stop_now.clone().drop_guard();
        let started = tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            started = self.start(stop_now.clone()).boxed() => started?,
        };
        started.work(shutdown, stop_now).boxed().await
    }

    async fn start(self, stop_now: CancellationToken) -> Result<Started, Error> {
        let Self { plan, handle } = self;
        let (ledger, ledger_id) = open_ledger(&plan.database).await?;
        let mut definitions = Definitions::new(Arc::clone(&ledger), plan.schedules.clone());
        definitions.start().await?;
        let client = plan.broker.client(&plan.name).await?;
        let js = jetstream::new(client.clone());
        wait_for_streams(&js, &client, &plan.subjects, ledger_id).await?;
        // Last: what ends before this line leaves no session behind.
        let keeper = Keeper::spawn(
            &plan.database,
            plan.lease,
            session_of(&plan),
            stop_now,
            handle.counted.clone(),
        )?;
        Ok(Started {
            plan,
            handle,
            ledger,
            ledger_id,
            keeper: Arc::new(keeper),
            definitions,
            client,
            js,
        })
    }
}

/// A worker whose ledger and broker are there.
struct Started {
    plan: Plan,
    handle: Handle,
    ledger: Arc<dyn Store>,
    ledger_id: Uuid,
    keeper: Arc<Keeper>,
    definitions: Definitions,
    client: Client,
    js: jetstream::Context,
}

impl Started {
    async fn work(
        self,
        shutdown: CancellationToken,
        stop_now: CancellationToken,
    ) -> Result<(), Error> {
        let stop = shutdown.child_token();
        let (flush, give_up) = (CancellationToken::new(), CancellationToken::new());
        let drain = Drain::new(self.plan.drain);
        let (commits, committer) = Commits::new(
            Arc::clone(&self.ledger),
            self.handle.counted.clone(),
            Arc::clone(&self.handle.pending),
            give_up.clone(),
        );
        let limits = self.plan.limits;
        let (deliver, deliveries) = mpsc::channel(limits.max_concurrent + limits.prefetch);
        let (open, is_open) = watch::channel(false);
        let claims = Claims::default();

        let mut parts = JoinSet::new();
        parts.spawn(self.puller(deliver, is_open).run());
        parts.spawn(reconcile::run(
            Arc::clone(&self.ledger),
            Arc::clone(&self.keeper),
            claims.clone(),
        ));
        parts.spawn(cancel::run(
            Arc::clone(&self.ledger),
            Arc::clone(&self.keeper),
            claims.clone(),
        ));
        parts.spawn(answer_probes(Arc::clone(&self.keeper)));
        let drained = drain.clone();
        parts.spawn(drained.give_up(stop.clone(), stop_now.clone(), give_up.clone()));
        let mut committing = JoinSet::new();
        committing.spawn(committer.run(flush.clone()));

        let handlers = TaskTracker::new();
        handlers.close();
        let feeder = self.feeder(claims, commits, deliveries, open, handlers.clone(), give_up);
        parts.spawn(self.definitions.run(Arc::clone(&self.keeper)));
        tracing::info!(name = self.plan.name, queues = ?self.plan.queues, "worker started");
        let feeding = feeder.run(stop.clone()).boxed();
        let mut broken = watch_over(feeding, &mut parts, &mut committing, &stop).await;

        // Every attempt's task ends after its result is in the commit queue.
        drain
            .finish(&handlers, &self.handle.capacity, &stop_now)
            .await;
        flush.cancel();
        while let Some(ended) = committing.join_next().await {
            broken |= ended.is_err();
        }
        stop_now.cancel();
        // The last acks; a lost one costs a refused claim.
        let _best_effort = timeout(Duration::from_secs(1), self.client.flush()).await;
        broken |= !self.keeper.is_alive();
        if timeout_at(drain.end_at(), self.keeper.close())
            .await
            .is_err()
        {
            tracing::warn!("the session was not closed in time: it ends with its lease");
        }
        if broken {
            return Err(Error::Broken);
        }
        tracing::info!("worker stopped");
        Ok(())
    }

    fn feeder(
        &self,
        claims: Claims,
        commits: Commits,
        deliveries: mpsc::Receiver<Delivery>,
        open: watch::Sender<bool>,
        handlers: TaskTracker,
        give_up: CancellationToken,
    ) -> Feeder {
        Feeder {
            name: Arc::from(self.plan.name.as_str()),
            ledger: Arc::clone(&self.ledger),
            client: self.client.clone(),
            keeper: Arc::clone(&self.keeper),
            reader: Reader {
                ledger_id: self.ledger_id,
                subjects: self.plan.subjects.clone(),
                jobs: Arc::clone(&self.plan.jobs),
                claims,
                js: self.js.clone(),
            },
            capacity: self.handle.capacity.clone(),
            commits,
            counted: self.handle.counted.clone(),
            deliveries,
            open,
            handlers,
            leaked: Arc::clone(&self.handle.leaked),
            give_up,
            held: Held::default(),
        }
    }

    fn puller(&self, deliveries: mpsc::Sender<Delivery>, open: watch::Receiver<bool>) -> Puller {
        let lanes = self.plan.queues.iter();
        Puller {
            client: self.client.clone(),
            js: self.js.clone(),
            subjects: self.plan.subjects.clone(),
            ledger_id: self.ledger_id,
            lanes: lanes
                .flat_map(|queue| Lane::of_queue(&self.plan.subjects, queue))
                .collect(),
            capacity: self.handle.capacity.clone(),
            deliveries,
            open,
            counted: self.handle.counted.clone(),
        }
    }
}

/// Runs the feeder to its end. A part that panics stops the worker in order, for nothing else
/// would ever say that it is gone; true if one did.
async fn watch_over(
    mut feeding: BoxFuture<'_, ()>,
    parts: &mut JoinSet<()>,
    committing: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> bool {
    let mut broken = false;
    loop {
        let ended = tokio::select! {
            () = &mut feeding => return broken,
            Some(ended) = parts.join_next() => ended,
            Some(ended) = committing.join_next() => ended,
        };
        if let Err(error) = ended {
            tracing::error!(%error, "a part of the worker broke: stopping");
            broken = true;
            stop.cancel();
        }
    }
}

fn session_of(plan: &Plan) -> NewSession {
    let mut jobs: Vec<_> = plan.jobs.keys().cloned().collect();
    jobs.sort_unstable();
    NewSession {
        id: Uuid::nil(),
        name: plan.name.clone(),
        host: host_name(),
        pid: std::process::id(),
        version: PRODUCT_VERSION.to_owned(),
        queues: plan.queues.clone(),
        jobs,
        definitions: plan.definitions.clone(),
        capabilities: vec![Capability::Cancel],
        max_concurrent: u32::try_from(plan.limits.max_concurrent).unwrap_or(u32::MAX),
        lease: plan.lease.ttl,
    }
}

/// Waits for the database; a schema of another version is an error.
async fn open_ledger(database: &store::Options) -> Result<(Arc<dyn Store>, Uuid), Error> {
    patiently("reach the ledger", || {
        let opened = async {
            let ledger = store::connect(database).await?;
            let id = ledger.ledger().await?.id;
            Ok((ledger, id))
        };
        bounded(CALL_MAX, opened).boxed()
    })
    .await
}

/// Repeats what may pass until it is done. Each try is to be bounded.
pub(crate) async fn patiently<'a, T>(
    what: &'static str,
    act: impl Fn() -> BoxFuture<'a, store::Result<T>>,
) -> Result<T, Error> {
    let mut trouble = Trouble::with(what);
    let mut delays = asking_again(START_CAP);
    loop {
        match act().await {
            Ok(done) => {
                trouble.over();
                return Ok(done);
            }
            Err(error) if error.is_transient() => trouble.note(&error),
            Err(error) => return Err(error.into()),
        }
        sleep(delays.next().unwrap_or(START_CAP)).await;
    }
}

/// Waits until the streams are declared; those of another ledger are an error.
async fn wait_for_streams(
    js: &jetstream::Context,
    client: &Client,
    subjects: &Subjects,
    ledger_id: Uuid,
) -> Result<(), Error> {
    let mut trouble = Trouble::with("find the streams").after(Duration::from_secs(1));
    let mut delays = asking_again(START_CAP / 5);
    loop {
        match broker::look(js, client, subjects, ledger_id).await {
            Found::Ours => {
                trouble.over();
                return Ok(());
            }
            Found::NotYet(why) => trouble.note(&why),
            Found::Other(error) => return Err(error),
        }
        sleep(delays.next().unwrap_or(START_CAP)).await;
    }
}

async fn answer_probes(keeper: Arc<Keeper>) {
    loop {
        keeper.answer_probe();
        sleep(PROBE_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_part_or_a_committer_that_panics_stops_the_worker_in_order() {
        for of_the_parts in [true, false] {
            let stop = CancellationToken::new();
            let (mut parts, mut committing) = (JoinSet::new(), JoinSet::new());
            let set = if of_the_parts {
                &mut parts
            } else {
                &mut committing
            };
            set.spawn(async { panic!("a fault") });
            let feeding = stop.clone().cancelled_owned().boxed();
            let watched = watch_over(feeding, &mut parts, &mut committing, &stop);
            let broken = timeout(Duration::from_secs(10), watched).await;
            assert_eq!(broken, Ok(true), "{of_the_parts}");
        }
    }
}
