//! The worker as a whole: start, run, stop.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client, jetstream};
use bellwether_schemas::PRODUCT_VERSION;
use bellwether_schemas::state::Capability;
use bellwether_schemas::subject::Subjects;
use bellwether_store::schedules::NewSchedule;
use bellwether_store::sessions::NewSession;
use bellwether_store::{self as store, Store};
use bellwether_telemetry::Health;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::broker::Broker;
use crate::budget::{CLOSE, FLUSH, StopBudget};
use crate::builder::{Builder, host_name};
use crate::cancel;
use crate::capacity::{Capacity, Limits};
use crate::checkpoint::Checkpoints;
use crate::claims::Claims;
use crate::commit::Commits;
use crate::definitions::Definitions;
use crate::delivery::{Delivery, Jobs, Reader};
use crate::drain::Drain;
use crate::end::End;
use crate::error::Error;
use crate::feed::{Feeder, Held};
use crate::lane::Lane;
use crate::leaks::Leaks;
use crate::lease::Lease;
use crate::measure::{Meter, NotReady};
use crate::persist::Persist;
use crate::pin::Pins;
use crate::probe::Prober;
use crate::pull::Puller;
use crate::reconcile;
use crate::retry::Delays;
use crate::run::Tools;
use crate::session::{Keeper, Standing};
use crate::settings::Settings;
use crate::start::{open_ledger, wait_for_streams};
use crate::stats::{Counted, Stats};

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
    pub(crate) kill_after: Duration,
    pub(crate) lease: Lease,
    pub(crate) cancel_grace: Duration,
    pub(crate) leaked_max: usize,
    pub(crate) persist: Persist,
    pub(crate) delays: Delays,
    pub(crate) probe_timeout: Duration,
    /// Written by [`Worker::run`].
    pub(crate) health_file: Option<PathBuf>,
    /// Variables that nothing reads, warned about at the start.
    pub(crate) unknown_variables: Vec<String>,
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
    leaks: Leaks,
    standing: Arc<watch::Sender<Result<(), NotReady>>>,
}

impl Handle {
    /// Whether it takes work now.
    ///
    /// # Errors
    ///
    /// [`NotReady`] says why not.
    pub fn ready(&self) -> Result<(), NotReady> {
        self.standing.borrow().clone()
    }

    /// What it has done, and what it does now.
    pub fn stats(&self) -> Stats {
        let load = self.capacity.load();
        Stats {
            asked: load.asked,
            running: load.running,
            waiting: load.waiting,
            uncommitted: *self.pending.borrow(),
            leaked: self.leaks.count(),
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
            leaks: Leaks::default(),
            standing: Arc::new(watch::Sender::new(Err(NotReady::Starting))),
        };
        Self { plan, handle }
    }

    /// What is in force, with every default filled in.
    pub fn settings(&self) -> Settings {
        let plan = &self.plan;
        let mut jobs: Vec<_> = plan.jobs.keys().cloned().collect();
        jobs.sort_unstable();
        Settings {
            name: plan.name.clone(),
            queues: plan.queues.clone(),
            jobs,
            max_concurrent: plan.limits.max_concurrent,
            prefetch: plan.limits.prefetch,
            lease: plan.lease,
            drain: plan.drain,
            kill_after: plan.kill_after,
            stop: StopBudget::new(plan.drain),
            cancel_grace: plan.cancel_grace,
            leaked_max: plan.leaked_max,
            persist: plan.persist,
            probe_timeout: plan.probe_timeout,
        }
    }

    /// A look at the worker that stays valid while it runs and afterwards.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Runs until SIGTERM or SIGINT, then stops in order within the drain limit. A second
    /// signal ends the process at once, with status 128 + its number.
    ///
    /// It answers for the end of the process, whatever handlers do: one that blocks its thread
    /// (`std::thread::sleep`, a loop without an `.await`) would keep the runtime, and with it
    /// `main`, for ever. If handlers still run when this returns, the process ends by itself within
    /// 2 s, with status 0, or 1 if this returned an error; `main` can do in them what it has to do
    /// at its end. A stop that handlers hold up for longer than [`StopBudget::total`], because
    /// they block every thread of the runtime, ends the process with status 1.
    /// [`run_until`](Self::run_until) never ends the process.
    ///
    /// # Errors
    ///
    /// Those of [`run_until`](Self::run_until), and what the system says about signals and threads.
    pub async fn run(self) -> Result<(), Error> {
        let handle = self.handle();
        let health_file = self.plan.health_file.clone();
        let health = Health::begin(health_file, "the worker has not started yet");
        let health = health.map_err(|why| Error::Variable {
            name: "BELLWETHER_HEALTH_FILE".to_owned(),
            why,
        })?;
        let looked_at = handle.clone();
        health.show(move || looked_at.ready());
        let shutdown = CancellationToken::new();
        let end = End::begin(shutdown.clone(), StopBudget::new(self.plan.drain).total())?;
        let ended = self.run_until(shutdown).await;
        drop(health);
        end.over(handle.stats().running, &ended);
        ended
    }

    /// Runs until `shutdown` is cancelled, then stops in order within the drain limit:
    /// nothing new is claimed; running handlers finish, or are cancelled after four fifths of
    /// the limit; what a handler gives up then is released without a charge; results are
    /// committed; the session is closed.
    ///
    /// # Errors
    ///
    /// What cannot pass by itself: a schema of another version, streams of another ledger, an
    /// unusable address. A ledger or broker that is away is waited for. [`Error::Leaked`]: it
    /// stopped in order because too many handlers ignored their cancellation; end the process.
    pub async fn run_until(self, shutdown: CancellationToken) -> Result<(), Error> {
        // Dropped with this future: handlers are told to stop, however it ends.
        let stop_now = CancellationToken::new();
        let _stop_handlers = stop_now.clone().drop_guard();
        self.settings().say();
        for name in &self.plan.unknown_variables {
            tracing::warn!("the variable {name} is not known: no worker reads it");
        }
        let stop = shutdown.child_token();
        let started = tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            started = self.start(stop.clone(), stop_now.clone()).boxed() => started?,
        };
        started.work(stop, stop_now).boxed().await
    }

    async fn start(
        self,
        stop: CancellationToken,
        stop_now: CancellationToken,
    ) -> Result<Started, Error> {
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
            Standing {
                capacity: handle.capacity.clone(),
                leaks: handle.leaks.clone(),
                stop,
            },
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
    async fn work(self, stop: CancellationToken, stop_now: CancellationToken) -> Result<(), Error> {
        let (flush, give_up) = (CancellationToken::new(), CancellationToken::new());
        let drain = Drain::new(self.plan.drain);
        let (commits, committer) = Commits::new(
            Arc::clone(&self.ledger),
            self.handle.counted.clone(),
            Arc::clone(&self.handle.pending),
            self.plan.persist,
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
        let meter = Meter {
            client: self.client.clone(),
            keeper: Arc::clone(&self.keeper),
            limits,
            queues: self.plan.queues.clone(),
            counted: self.handle.counted.clone(),
            standing: Arc::clone(&self.handle.standing),
        };
        parts.spawn(meter.run(stop.clone()));
        parts.spawn(say_draining(Arc::clone(&self.keeper), stop.clone()));
        let too_many_leaks = CancellationToken::new();
        let leaks = self.handle.leaks.clone();
        parts.spawn(leaks.watch(self.plan.leaked_max, stop.clone(), too_many_leaks.clone()));
        let drained = drain.clone();
        parts.spawn(drained.give_up(stop.clone(), stop_now.clone(), give_up.clone()));
        let mut committing = JoinSet::new();
        committing.spawn(committer.run(flush.clone()));

        let (handlers, leaving) = (TaskTracker::new(), TaskTracker::new());
        handlers.close();
        leaving.close();
        let tools = Tools {
            commits,
            checkpoints: Checkpoints::new(Arc::clone(&self.ledger)),
            pins: Pins::new(Arc::clone(&self.ledger)),
            delays: self.plan.delays,
            leaks: self.handle.leaks.clone(),
            tracker: handlers.clone(),
            leaving: leaving.clone(),
            cancel_grace: self.plan.cancel_grace,
        };
        let feeder = self.feeder(claims, tools, deliveries, open, give_up.clone());
        parts.spawn(self.definitions.run(Arc::clone(&self.keeper)));
        tracing::info!(name = self.plan.name, queues = ?self.plan.queues, "worker started");
        let feeding = feeder.run(stop.clone()).boxed();
        let mut broken = watch_over(feeding, &mut parts, &mut committing, &stop).await;

        // Every attempt's task ends after its result is in the commit queue.
        drain
            .finish(&handlers, &leaving, &self.handle.capacity, &stop_now)
            .await;
        flush.cancel();
        while let Some(ended) = committing.join_next().await {
            broken |= ended.is_err();
        }
        // What handlers that run on say from here on reaches nobody.
        give_up.cancel();
        stop_now.cancel();
        // The last acks; a lost one costs a refused claim.
        let _best_effort = timeout(FLUSH, self.client.flush()).await;
        broken |= !self.keeper.is_alive();
        // The parts hold connections, too.
        parts.shutdown().await;
        if timeout(CLOSE, close(&self.keeper, self.ledger.as_ref()))
            .await
            .is_err()
        {
            tracing::warn!("the session was not closed in time: it ends with its lease");
        }
        if broken {
            return Err(Error::Broken);
        }
        if too_many_leaks.is_cancelled() {
            return Err(Error::Leaked {
                leaked: self.handle.leaks.count(),
                max_concurrent: self.plan.limits.max_concurrent,
            });
        }
        tracing::info!("worker stopped");
        Ok(())
    }

    fn feeder(
        &self,
        claims: Claims,
        tools: Tools,
        deliveries: mpsc::Receiver<Delivery>,
        open: watch::Sender<bool>,
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
            tools,
            prober: Prober {
                ledger: Arc::clone(&self.ledger),
                counted: self.handle.counted.clone(),
                timeout: self.plan.probe_timeout,
                settled_after: self.plan.lease.ttl,
                give_up: give_up.clone(),
                leaks: self.handle.leaks.clone(),
                cancel_grace: self.plan.cancel_grace,
            },
            counted: self.handle.counted.clone(),
            deliveries,
            open,
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

/// Closes what is the worker's own: its session and its connections to the ledger. What the
/// application gave it (a runtime, a NATS client) stays as it is.
async fn close(keeper: &Keeper, ledger: &dyn Store) {
    keeper.close().await;
    ledger.close().await;
}

/// Has the ledger told at once that the worker stops.
async fn say_draining(keeper: Arc<Keeper>, stop: CancellationToken) {
    stop.cancelled().await;
    keeper.look();
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
