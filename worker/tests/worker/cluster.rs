//! A ledger, a broker, a relay and a ticker, with a small vocabulary for tests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::jetstream;
use bellwether_client::{Client, Enqueued, NewExecution, Payload};
use bellwether_outbox_relay::{self as relay, Relay, StreamLimits};
use bellwether_sandbox::{eventually, shared};
use bellwether_schemas::state::State;
use bellwether_schemas::subject::Subjects;
use bellwether_store::inspect::{ExecutionStory, ExecutionView};
use bellwether_store::{self as store, Store};
use bellwether_ticker::{self as ticker, NoWaker, Ticker};
use bellwether_worker::{Builder, CancellationToken, Error, Handle, Stats, Worker};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::DropGuard;
use uuid::Uuid;

/// Long enough for a slow machine; nothing waits for it that goes well.
pub(crate) const SOON: Duration = Duration::from_mins(1);

pub(crate) struct Cluster {
    pub(crate) database: store::Options,
    pub(crate) ledger: Arc<dyn Store>,
    pub(crate) client: Client,
    pub(crate) nats: async_nats::Client,
    pub(crate) nats_url: String,
    pub(crate) subjects: Subjects,
    _stop: DropGuard,
    _home: Option<TempDir>,
}

impl Cluster {
    pub(crate) async fn on_sqlite() -> Self {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("ledger.db");
        let database = store::Options::new(format!("sqlite:{}", file.display()));
        Self::start(database, shared::nats_url().await.unwrap(), Some(home)).await
    }

    pub(crate) async fn on_postgres() -> Option<Self> {
        let url = shared::postgres_url().await.unwrap()?;
        let mut database = store::Options::new(url);
        database.schema = shared::fresh_namespace();
        Some(Self::start(database, shared::nats_url().await.unwrap(), None).await)
    }

    pub(crate) async fn start(
        database: store::Options,
        nats_url: String,
        home: Option<TempDir>,
    ) -> Self {
        log_if_asked();
        store::migrate(&database).await.unwrap();
        let ledger = store::connect(&database).await.unwrap();
        let nats = relay::connect_nats(&nats_url, "test").await.unwrap();
        let subjects = Subjects::new(&shared::fresh_namespace()).unwrap();
        // Its consumers are there before the first worker asks for them.
        ledger.ensure_queue("default").await.unwrap();
        let js = jetstream::new(nats.clone());
        let limits = StreamLimits::default();
        relay::migrate(ledger.as_ref(), &js, &subjects, &limits)
            .await
            .unwrap();
        let stop = CancellationToken::new();
        let cluster = Self {
            client: Client::new(subjects.namespace())
                .unwrap()
                .with_store(Arc::clone(&ledger))
                .with_nats(nats.clone()),
            database,
            ledger,
            nats,
            nats_url,
            subjects,
            _stop: stop.clone().drop_guard(),
            _home: home,
        };
        cluster.start_relay(&stop);
        cluster.start_ticker(&stop).await;
        cluster
    }

    fn start_relay(&self, stop: &CancellationToken) {
        let relay = Relay::new(
            Arc::clone(&self.ledger),
            self.nats.clone(),
            self.subjects.clone(),
            relay::Options::default(),
        )
        .unwrap();
        tokio::spawn(Box::pin(relay.run(stop.clone())));
    }

    async fn start_ticker(&self, stop: &CancellationToken) {
        let mut own = self.database.clone();
        own.connections_max = 1;
        let lease_store = store::connect(&own).await.unwrap();
        let options = ticker::Options {
            sweep_every: Duration::from_millis(200),
            probe_after: Duration::from_secs(1),
            ..ticker::Options::default()
        };
        let ticker = Ticker::new(
            Arc::clone(&self.ledger),
            lease_store,
            Arc::new(NoWaker),
            options,
        )
        .unwrap();
        tokio::spawn(Box::pin(ticker.run(stop.clone())));
    }

    /// A builder that names this cluster.
    pub(crate) fn worker(&self) -> Builder {
        Worker::builder()
            .database(self.database.clone())
            .nats(self.nats_url.as_str())
            .namespace(self.subjects.namespace())
    }

    /// One-shots of `job`.
    pub(crate) async fn enqueue(&self, job: &str, count: usize) -> Vec<Uuid> {
        let new: Vec<_> = (0..count)
            .map(|_| NewExecution::new(job, Payload::json("null")))
            .collect();
        let answers = self.client.enqueue_all(&new).await.unwrap();
        answers.into_iter().map(Enqueued::execution_id).collect()
    }

    /// One one-shot of `job` that gets one attempt.
    pub(crate) async fn enqueue_once(&self, job: &str, json: &str) -> Uuid {
        let mut new = NewExecution::new(job, Payload::json(json));
        new.policy.max_attempts = 1;
        self.client.enqueue(&new).await.unwrap().execution_id()
    }

    pub(crate) async fn story(&self, id: Uuid) -> ExecutionStory {
        self.ledger
            .execution(id)
            .await
            .unwrap()
            .expect("the execution is there")
    }

    pub(crate) async fn execution(&self, id: Uuid) -> ExecutionView {
        self.story(id).await.execution
    }

    pub(crate) async fn until_state(&self, id: Uuid, state: State) -> ExecutionView {
        let reached = eventually(&format!("{id} is {state}"), SOON, async || {
            self.execution(id).await.state == state
        })
        .await;
        let last = self.execution(id).await;
        assert!(reached.is_ok(), "not {state}: {last:#?}");
        last
    }

    /// Waits until so many executions are in `state`.
    pub(crate) async fn until_count(&self, state: State, count: u64) {
        let reached = eventually(&format!("{count} are {state}"), SOON, async || {
            self.counts().await.get(&state) == Some(&count)
        })
        .await;
        assert!(
            reached.is_ok(),
            "not {count} {state}: {:?}",
            self.counts().await
        );
    }

    pub(crate) async fn counts(&self) -> BTreeMap<State, u64> {
        self.ledger
            .state_counts()
            .await
            .unwrap()
            .into_iter()
            .collect()
    }

    /// Messages that the two streams hold.
    pub(crate) async fn messages(&self) -> (u64, u64) {
        let js = jetstream::new(self.nats.clone());
        let count = async |stream: String| {
            js.get_stream(stream)
                .await
                .unwrap()
                .cached_info()
                .state
                .messages
        };
        (
            count(self.subjects.work_stream()).await,
            count(self.subjects.submit_stream()).await,
        )
    }

    pub(crate) async fn until_streams_are_empty(&self) {
        eventually("both streams are empty", SOON, async || {
            self.messages().await == (0, 0)
        })
        .await
        .unwrap();
    }

    /// No law is broken.
    pub(crate) async fn audit(&self) {
        for report in self.ledger.audit().await.unwrap() {
            assert_eq!(
                report.violations, 0,
                "law {}: {:?}",
                report.law, report.examples
            );
        }
    }
}

/// A worker in this process.
pub(crate) struct Running {
    pub(crate) handle: Handle,
    pub(crate) stop: CancellationToken,
    task: JoinHandle<Result<(), Error>>,
}

pub(crate) fn run(builder: Builder) -> Running {
    let worker = builder.build().unwrap();
    let (handle, stop) = (worker.handle(), CancellationToken::new());
    let task = tokio::spawn(Box::pin(worker.run_until(stop.clone())));
    Running { handle, stop, task }
}

impl Running {
    pub(crate) fn stats(&self) -> Stats {
        self.handle.stats()
    }

    /// Waits until the counts please.
    pub(crate) async fn until(&self, what: &str, pleases: impl Fn(&Stats) -> bool) {
        let reached = eventually(what, SOON, async || pleases(&self.stats())).await;
        assert!(reached.is_ok(), "never {what}: {:#?}", self.stats());
    }

    /// Stops in order.
    pub(crate) async fn stop(self) -> Stats {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
        self.handle.stats()
    }

    /// Gives it up in mid-work, without a stop.
    pub(crate) fn abandon(self) -> Handle {
        self.task.abort();
        self.handle
    }

    /// How it ended by itself.
    pub(crate) async fn ended(self) -> Result<(), Error> {
        self.task.await.unwrap()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A test's servers are shared: its streams must not stay behind.
        let (js, subjects) = (jetstream::new(self.nats.clone()), self.subjects.clone());
        tokio::spawn(async move {
            for stream in [subjects.work_stream(), subjects.submit_stream()] {
                let _best_effort = js.delete_stream(stream).await;
            }
        });
    }
}

/// What handlers saw, in order.
#[derive(Debug, Clone)]
pub(crate) struct Seen<T>(Arc<Mutex<Vec<T>>>);

impl<T> Default for Seen<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Clone> Seen<T> {
    pub(crate) fn note(&self, what: T) {
        self.0.lock().unwrap().push(what);
    }

    pub(crate) fn all(&self) -> Vec<T> {
        self.0.lock().unwrap().clone()
    }
}

/// `RUST_LOG=bellwether_worker=debug cargo test … -- --nocapture` shows what happens.
fn log_if_asked() {
    if std::env::var_os("RUST_LOG").is_some() {
        let _already = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_test_writer()
            .try_init();
    }
}
