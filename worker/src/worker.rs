//! The worker as a whole: start, run, stop.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream;
use bellwether_schemas::PRODUCT_VERSION;
use bellwether_schemas::state::Capability;
use bellwether_schemas::subject::Subjects;
use bellwether_store as store;
use bellwether_store::schedules::NewSchedule;
use bellwether_store::sessions::NewSession;
use bellwether_telemetry::Health;
use futures_util::FutureExt;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::broker::Broker;
use crate::budget::StopBudget;
use crate::builder::{Builder, host_name};
use crate::capacity::{Capacity, Limits};
use crate::definitions::Definitions;
use crate::delivery::Jobs;
use crate::end::End;
use crate::error::Error;
use crate::intake::Intake;
use crate::leaks::Leaks;
use crate::lease::Lease;
use crate::measure::NotReady;
use crate::parts::Started;
use crate::persist::Persist;
use crate::retry::Delays;
use crate::session::{Keeper, Standing};
use crate::settings::Settings;
use crate::start::{open_ledger, wait_for_streams};
use crate::stats::{Counted, Stats};

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
    pub(crate) intake: Intake,
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
    pub(crate) counted: Counted,
    pub(crate) capacity: Capacity,
    pub(crate) pending: Arc<watch::Sender<usize>>,
    pub(crate) leaks: Leaks,
    pub(crate) standing: Arc<watch::Sender<Result<(), NotReady>>>,
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
            intake: plan.intake,
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
    /// 4 s, with status 0, or 1 if this returned an error; `main` can do in them what it has to do
    /// at its end, such as the last export. A stop that handlers hold up for longer than
    /// [`StopBudget`] gives the worker, because they block every thread of the runtime, ends the
    /// process with status 1.
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
        let end = End::begin(shutdown.clone(), StopBudget::new(self.plan.drain))?;
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

fn session_of(plan: &Plan) -> NewSession {
    let mut jobs: Vec<_> = plan.jobs.keys().cloned().collect();
    jobs.sort_unstable();
    let probes = jobs.iter().filter(|job| plan.jobs[*job].probe.is_some());
    let probes = probes.cloned().collect();
    NewSession {
        id: Uuid::nil(),
        name: plan.name.clone(),
        host: host_name(),
        pid: std::process::id(),
        version: PRODUCT_VERSION.to_owned(),
        queues: plan.queues.clone(),
        jobs,
        probes,
        definitions: plan.definitions.clone(),
        capabilities: vec![Capability::Cancel],
        max_concurrent: u32::try_from(plan.limits.max_concurrent).unwrap_or(u32::MAX),
        lease: plan.lease.ttl,
    }
}
