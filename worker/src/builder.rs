//! How a worker is put together.

use std::collections::BTreeSet;
use std::time::Duration;

use bellwether_schemas::names;
use bellwether_schemas::subject::{DEFAULT_NAMESPACE, Subjects};
use bellwether_store as store;

use crate::broker::Broker;
use crate::capacity::Limits;
use crate::definitions;
use crate::delivery::Jobs;
use crate::error::Error;
use crate::job::Job;
use crate::session::Lease;
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
    schema: Option<String>,
    nats: Option<Broker>,
    namespace: String,
    name: Option<String>,
    queues: Option<Vec<String>>,
    max_concurrent: Option<usize>,
    prefetch: Option<usize>,
    drain: Duration,
    lease: Lease,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            jobs: Vec::new(),
            database: None,
            schema: None,
            nats: None,
            namespace: DEFAULT_NAMESPACE.to_owned(),
            name: None,
            queues: None,
            max_concurrent: None,
            prefetch: None,
            drain: Duration::from_secs(30),
            lease: Lease::default(),
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

    /// The session's times. The defaults need no tuning; tests shorten them.
    pub fn lease(mut self, lease: Lease) -> Self {
        self.lease = lease;
        self
    }

    /// Takes what is set of `BELLWETHER_DATABASE_URL`, `BELLWETHER_DATABASE_SCHEMA`,
    /// `BELLWETHER_NATS_URL` and `BELLWETHER_NAMESPACE`.
    pub fn from_env(mut self) -> Self {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        if let Some(url) = variable("BELLWETHER_DATABASE_URL") {
            self.database = Some(store::Options::new(url));
        }
        if let Some(schema) = variable("BELLWETHER_DATABASE_SCHEMA") {
            self.schema = Some(schema);
        }
        if let Some(url) = variable("BELLWETHER_NATS_URL") {
            self = self.nats(url);
        }
        if let Some(namespace) = variable("BELLWETHER_NAMESPACE") {
            self.namespace = namespace;
        }
        self
    }

    /// Checks everything that can be checked without a ledger or a broker.
    ///
    /// # Errors
    ///
    /// Every [`Error`] that says what is missing, doubled or out of bounds.
    pub fn build(self) -> Result<Worker, Error> {
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
        let limits = limits(self.max_concurrent, self.prefetch)?;
        let drain = Duration::from_secs(1)..=Duration::from_hours(24);
        bounded("drain", "use 1 s to 24 h", drain.contains(&self.drain))?;
        self.lease.check()?;
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
            lease: self.lease,
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

fn limits(max_concurrent: Option<usize>, prefetch: Option<usize>) -> Result<Limits, Error> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
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
        assert_eq!(limits(Some(3), None).unwrap().prefetch, 3);
        assert!(limits(None, None).unwrap().max_concurrent >= 2);
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
