//! How a worker is put together.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use bellwether_schemas::names;
use bellwether_schemas::subject::{DEFAULT_NAMESPACE, Subjects};
use bellwether_store as store;

use crate::broker::Broker;
use crate::budget::StopBudget;
use crate::capacity::Limits;
use crate::definitions;
use crate::delivery::Jobs;
use crate::env;
use crate::error::Error;
use crate::intake::Intake;
use crate::job::Job;
use crate::lease::Lease;
use crate::persist::Persist;
use crate::retry::Delays;
use crate::worker::Worker;

/// Most executions held beyond the free slots.
const PREFETCH_MAX: usize = 1_024;
/// Most handlers at once.
const CONCURRENT_MAX: usize = 10_000;

/// Where the broker is.
#[derive(Debug, Clone)]
pub struct Nats(Broker);

impl From<&str> for Nats {
    fn from(url: &str) -> Self {
        Self(Broker::Url(url.to_owned()))
    }
}

impl From<String> for Nats {
    fn from(url: String) -> Self {
        Self(Broker::Url(url))
    }
}

impl From<async_nats::Client> for Nats {
    fn from(client: async_nats::Client) -> Self {
        Self(Broker::Client(client))
    }
}

/// Settings of a worker; see [`Worker::builder`]. Everything is checked by
/// [`build`](Self::build).
#[derive(Debug, Clone)]
#[must_use]
pub struct Builder {
    jobs: Vec<Job>,
    database: Option<store::Options>,
    pub(crate) schema: Option<String>,
    pub(crate) health_file: Option<PathBuf>,
    /// What `from_env` was refused, told by `build`.
    refused: Option<(String, String)>,
    /// Variables that nothing reads.
    unknown_variables: Vec<String>,
    nats: Option<Broker>,
    namespace: String,
    name: Option<String>,
    queues: Option<Vec<String>>,
    max_concurrent: Option<usize>,
    prefetch: Option<usize>,
    drain: Duration,
    kill_after: Duration,
    pub(crate) lease: Lease,
    pub(crate) intake: Intake,
    cancel_grace: Duration,
    leaked_max: Option<usize>,
    persist: Persist,
    delays: Delays,
    probe_timeout: Duration,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            jobs: Vec::new(),
            database: None,
            schema: None,
            health_file: None,
            refused: None,
            unknown_variables: Vec::new(),
            nats: None,
            namespace: DEFAULT_NAMESPACE.to_owned(),
            name: None,
            queues: None,
            max_concurrent: None,
            prefetch: None,
            drain: Duration::from_secs(30),
            kill_after: Duration::from_mins(1),
            lease: Lease::default(),
            intake: Intake::default(),
            cancel_grace: Duration::from_secs(30),
            leaked_max: None,
            persist: Persist::default(),
            delays: Delays::default(),
            probe_timeout: Duration::from_secs(30),
        }
    }
}

impl Builder {
    /// Registers a job. Two of one name refuse to start.
    pub fn register(mut self, job: Job) -> Self {
        self.jobs.push(job);
        self
    }

    /// The ledger's database. The worker opens its own connections, and one more for the
    /// session's thread.
    pub fn database(mut self, options: store::Options) -> Self {
        self.database = Some(options);
        // A schema that was said before was for the one before.
        self.schema = None;
        self
    }

    /// The broker: a URL (`nats://host:4222`) or a connected `async_nats::Client`.
    pub fn nats(mut self, nats: impl Into<Nats>) -> Self {
        self.nats = Some(nats.into().0);
        self
    }

    /// The namespace of subjects and streams. Default `bw`.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// A label for operators; the identity is fresh at each start. Default: the host's name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The queues it serves. Default: those of its jobs.
    pub fn queues<Q: Into<String>>(mut self, queues: impl IntoIterator<Item = Q>) -> Self {
        self.queues = Some(queues.into_iter().map(Into::into).collect());
        self
    }

    /// Handlers at once. Default: the number of CPUs, at least 2.
    pub fn max_concurrent(mut self, handlers: usize) -> Self {
        self.max_concurrent = Some(handlers);
        self
    }

    /// Most executions held beyond the free slots while handlers are quick; 0 = none, at most
    /// 1,024. Default: `max_concurrent`.
    pub fn prefetch(mut self, executions: usize) -> Self {
        self.prefetch = Some(executions);
        self
    }

    /// Time from the wish to stop to the end. Handlers have four fifths of it to finish by
    /// themselves, then they are cancelled. Default 30 s.
    pub fn drain(mut self, limit: Duration) -> Self {
        self.drain = limit;
        self
    }

    /// What the platform gives a process between SIGTERM and SIGKILL: Kubernetes'
    /// `terminationGracePeriodSeconds`, systemd's `TimeoutStopSec`. A worker whose stop may take
    /// longer ([`StopBudget`]: the drain limit and 12 s) refuses to start, rather than be killed in
    /// the middle of one. Default 60 s, more than Kubernetes gives unasked.
    pub fn kill_after(mut self, limit: Duration) -> Self {
        self.kill_after = limit;
        self
    }

    /// A handler that was told to stop, by an operator's cancel or because its session was lost,
    /// and has not returned after this time is given up: its execution ends without it, its slot
    /// counts as leaked until it returns. 100 ms to 24 h; default 30 s.
    pub fn cancel_grace(mut self, limit: Duration) -> Self {
        self.cancel_grace = limit;
        self
    }

    /// With so many slots leaked the worker stops in order with [`Error::Leaked`]. 1 to
    /// `max_concurrent`; default: half of it, rounded up.
    pub fn leaked_max(mut self, slots: usize) -> Self {
        self.leaked_max = Some(slots);
        self
    }

    /// How results are held that the ledger does not take at once.
    pub fn persist(mut self, persist: Persist) -> Self {
        self.persist = persist;
        self
    }

    /// The session's times. The defaults need no tuning; tests shorten them.
    pub fn lease(mut self, lease: Lease) -> Self {
        self.lease = lease;
        self
    }

    /// How long what has not started is held, from the delivery of its message on. The defaults
    /// need no tuning.
    pub fn intake(mut self, intake: Intake) -> Self {
        self.intake = intake;
        self
    }

    /// Time that a probe of an unknown execution may take; one without an answer by then makes it
    /// an operator's. 1 s to 1 h; default 30 s. A worker that dies with a probe costs that time
    /// and 7 s at most, until another asks.
    pub fn probe_timeout(mut self, limit: Duration) -> Self {
        self.probe_timeout = limit;
        self
    }

    /// Makes the delays before further attempts repeatable, for tests: every execution of this
    /// worker waits for the n-th of [`RetryPolicy::delays`](crate::RetryPolicy::delays) of
    /// this seed after its n-th attempt. Default: each delay is random by itself, so that many
    /// that fail together do not return together.
    pub fn retry_seed(mut self, seed: u64) -> Self {
        self.delays = Delays::new(Some(seed));
        self
    }

    /// Takes what is set of `BELLWETHER_DATABASE_URL`, `BELLWETHER_DATABASE_SCHEMA`,
    /// `BELLWETHER_NATS_URL`, `BELLWETHER_NAMESPACE`, `BELLWETHER_HEALTH_FILE` (written while [`run`](Self::run) runs) and of
    /// `BELLWETHER_WORKER_NAME`, `_MAX_CONCURRENT`, `_PREFETCH`, `_LEASE`, `_RUNTIME_MAX`, `_DRAIN`,
    /// `_KILL_AFTER`, `_UNCLAIMED_MAX`, `_CANCEL_GRACE`, `_LEAKED_MAX` and `_PROBE_TIMEOUT`, which
    /// mean what they mean for `bellwether worker`. An empty one is not set; what cannot be is
    /// refused by [`build`](Self::build); one of another name that begins with `BELLWETHER_WORKER_`
    /// is warned about. What is called after this wins.
    pub fn from_env(self) -> Self {
        let before = self.clone();
        let mut builder = match env::apply(self, &env::Process) {
            Ok(builder) => builder,
            Err((name, why)) => Self {
                refused: Some((name, why)),
                ..before
            },
        };
        builder.unknown_variables = env::unknown(&env::Process);
        builder
    }

    /// Checks everything that can be checked without a ledger or a broker.
    ///
    /// # Errors
    ///
    /// Every [`Error`] that says what is missing, doubled or out of bounds.
    pub fn build(self) -> Result<Worker, Error> {
        if let Some((name, why)) = self.refused {
            return Err(Error::Variable { name, why });
        }
        let mut jobs = Jobs::new();
        let mut schedules = Vec::new();
        for job in self.jobs {
            let checked = job.check();
            let schedule = checked.map_err(|source| Error::Job {
                name: job.name().to_owned(),
                source,
            })?;
            schedules.extend(schedule);
            if let Some(doubled) = jobs.insert(job.name().to_owned(), job) {
                return Err(Error::DuplicateJob(doubled.name));
            }
        }
        if jobs.is_empty() {
            return Err(Error::NoJobs);
        }
        let queues: BTreeSet<String> = match self.queues {
            Some(queues) => queues.into_iter().collect(),
            None => jobs.values().map(|job| job.queue.clone()).collect(),
        };
        for queue in &queues {
            names::check("queue", queue)?;
        }
        bounded("queues", "name at least one", !queues.is_empty())?;
        self.intake.check()?;
        let limits = limits(self.max_concurrent, self.prefetch, self.intake.ahead_max)?;
        let drain = Duration::from_secs(1)..=Duration::from_hours(24);
        bounded("drain", "use 1 s to 24 h", drain.contains(&self.drain))?;
        self.lease.check()?;
        self.persist.check()?;
        let grace = Duration::from_millis(100)..=Duration::from_hours(24);
        let fits = grace.contains(&self.cancel_grace);
        bounded("cancel_grace", "use 100 ms to 24 h", fits)?;
        let probe = Duration::from_secs(1)..=Duration::from_hours(1);
        let fits = probe.contains(&self.probe_timeout);
        bounded("probe_timeout", "use 1 s to 1 h", fits)?;
        let half = limits.max_concurrent.div_ceil(2);
        let leaked_max = self.leaked_max.unwrap_or(half);
        let fits = (1..=limits.max_concurrent).contains(&leaked_max);
        bounded("leaked_max", "use 1 to max_concurrent", fits)?;
        let needed = StopBudget::new(self.drain);
        if self.kill_after < needed.total() {
            return Err(Error::KillBudget {
                kill_after: self.kill_after,
                needed,
            });
        }
        let mut database = self.database.ok_or(Error::NoDatabase)?;
        database.backend()?;
        if let Some(schema) = self.schema {
            database.schema = schema;
        }
        let definitions = definitions::reported(&schedules)?;
        Ok(Worker::new(crate::worker::Plan {
            database,
            broker: self.nats.ok_or(Error::NoBroker)?,
            subjects: Subjects::new(&self.namespace)?,
            name: self.name.unwrap_or_else(host_name),
            queues: queues.into_iter().collect(),
            jobs: jobs.into(),
            schedules,
            definitions,
            limits,
            drain: self.drain,
            kill_after: self.kill_after,
            lease: self.lease,
            intake: self.intake,
            cancel_grace: self.cancel_grace,
            leaked_max,
            persist: self.persist,
            delays: self.delays,
            probe_timeout: self.probe_timeout,
            health_file: self.health_file,
            unknown_variables: self.unknown_variables,
        }))
    }

    /// Builds the worker and runs it until SIGTERM or SIGINT; see [`Worker::run`].
    ///
    /// # Errors
    ///
    /// Those of [`build`](Self::build) and of [`Worker::run`].
    pub async fn run(self) -> Result<(), Error> {
        self.build()?.run().await
    }
}

fn limits(
    max_concurrent: Option<usize>,
    prefetch: Option<usize>,
    ahead: Duration,
) -> Result<Limits, Error> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    limits_on(cpus, max_concurrent, prefetch, ahead)
}

/// The limits on a machine with so many CPUs.
fn limits_on(
    cpus: usize,
    max_concurrent: Option<usize>,
    prefetch: Option<usize>,
    ahead: Duration,
) -> Result<Limits, Error> {
    let max_concurrent = max_concurrent.unwrap_or(cpus.max(2));
    bounded(
        "max_concurrent",
        "use 1 to 10,000",
        (1..=CONCURRENT_MAX).contains(&max_concurrent),
    )?;
    let prefetch = prefetch.unwrap_or(max_concurrent.min(PREFETCH_MAX));
    bounded("prefetch", "use 0 to 1,024", prefetch <= PREFETCH_MAX)?;
    Ok(Limits {
        max_concurrent,
        prefetch,
        ahead,
    })
}

fn bounded(option: &'static str, bounds: &'static str, fits: bool) -> Result<(), Error> {
    if fits {
        Ok(())
    } else {
        Err(Error::OutOfBounds { option, bounds })
    }
}

pub(crate) fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready() -> Builder {
        Worker::builder()
            .register(Job::new("a", async || Ok::<_, String>(())))
            .database(store::Options::new("sqlite:ledger.db"))
            .nats("nats://127.0.0.1:4222")
    }

    fn refusal(builder: Builder) -> String {
        builder.build().map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn a_complete_builder_builds() {
        assert!(ready().build().is_ok());
        let ahead = Duration::from_secs(1);
        assert_eq!(limits(Some(3), None, ahead).unwrap().prefetch, 3);
        assert!(limits(None, None, ahead).unwrap().max_concurrent >= 2);
    }

    #[test]
    fn r35_the_limits_follow_the_cpus_and_the_settings_say_them() {
        for (cpus, concurrent) in [(1, 2), (2, 2), (64, 64), (4_096, 4_096)] {
            let limits = limits_on(cpus, None, None, Duration::from_secs(1)).unwrap();
            assert_eq!(limits.max_concurrent, concurrent, "{cpus} CPUs");
            assert_eq!(limits.prefetch, concurrent.min(1_024), "{cpus} CPUs");
        }
        let worker = ready().max_concurrent(3).build().unwrap();
        let rows = worker.settings().rows();
        let said = |name| {
            let row = rows.iter().find(|(row, _)| *row == name);
            row.map(|(_, value)| value.to_string())
        };
        let said = |name| said(name).unwrap_or_default();
        assert_eq!(said("max_concurrent"), "3");
        assert_eq!(said("prefetch"), "3");
        assert_eq!(said("queues"), "default");
        assert_eq!(said("leaked_max"), "2");
        assert_eq!(said("kill_after"), "1m");
        assert_eq!(said("persist.high_water"), "512");
    }

    #[test]
    fn r99_a_platform_that_kills_before_the_stop_is_over_is_refused_with_the_numbers() {
        let secs = Duration::from_secs;
        assert!(ready().drain(secs(30)).kill_after(secs(42)).build().is_ok());
        let said = refusal(ready().drain(secs(30)).kill_after(secs(41)));
        for number in ["41s", "drain limit 30s", "= 42s"] {
            assert!(said.contains(number), "{said}");
        }
        assert!(refusal(ready().drain(Duration::from_hours(1))).contains("kill_after"));
    }

    #[test]
    fn r66_two_jobs_of_one_name_refuse_to_start() {
        let twice = ready().register(Job::new("a", async || Ok::<_, String>(())));
        assert!(refusal(twice).contains("two jobs are named \"a\""));
    }

    #[test]
    fn what_is_missing_or_out_of_bounds_is_said() {
        assert!(refusal(Worker::builder()).contains(".register("));
        assert!(refusal(ready().namespace("a.b")).contains("namespace name \"a.b\""));
        assert!(refusal(ready().queues(["a b"])).contains("queue name"));
        assert!(refusal(ready().queues([""; 0])).contains("at least one"));
        assert!(refusal(ready().prefetch(1_025)).contains("0 to 1,024"));
        assert!(refusal(ready().max_concurrent(0)).contains("1 to 10,000"));
        let never = refusal(ready().max_concurrent(2).leaked_max(3));
        assert!(never.contains("leaked_max is out of bounds: use 1 to max_concurrent"));
        assert!(refusal(ready().drain(Duration::ZERO)).contains("drain"));
        assert!(refusal(ready().database(store::Options::new("mysql://x"))).contains("sqlite:"));
        let job = Job::new("a", async || Ok::<_, String>(()));
        let no_broker = Worker::builder()
            .register(job.clone())
            .database(store::Options::new("sqlite:x"));
        assert!(refusal(no_broker).contains("BELLWETHER_NATS_URL"));
        assert!(refusal(Worker::builder().register(job)).contains("BELLWETHER_DATABASE_URL"));
    }
}
