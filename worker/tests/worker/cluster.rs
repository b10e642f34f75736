//! A ledger, a broker, a relay and a ticker, with a small vocabulary for tests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::jetstream;
use bellwether_client::{Client, Enqueued, NewExecution, Payload};
use bellwether_outbox_relay::{self as relay, Relay, StreamLimits};
use bellwether_sandbox::{eventually, shared};
use bellwether_schemas::ids;
use bellwether_schemas::state::{SessionState, State};
use bellwether_schemas::subject::Subjects;
use bellwether_store::inspect::{ExecutionStory, ExecutionView};
use bellwether_store::sessions::NewSession;
use bellwether_store::{self as store, Store};
use bellwether_ticker::{self as ticker, NoWaker, Ticker};
use bellwether_worker::{Builder, CancellationToken, Error, Handle, Stats, Worker};
use chrono::{DateTime, Utc};
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
    ticker: Ticking,
    _stop: DropGuard,
    _home: Option<TempDir>,
}

/// The ticker that runs: how to stop it, and its end.
type Ticking = tokio::sync::Mutex<(CancellationToken, JoinHandle<Result<(), ticker::Error>>)>;

/// How long the ticker watches before it declares anything lost: less than its default, which the
/// tests of the ticker wait for.
const WATCHED: Duration = Duration::from_secs(2);

impl Cluster {
    pub(crate) async fn on_sqlite() -> Self {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("ledger.db");
        let database = store::Options::new(format!("sqlite:{}", file.display()));
        Self::start(database, shared::nats_url().await.unwrap(), Some(home)).await
    }

    pub(crate) async fn on_postgres() -> Option<Self> {
        Self::on_postgres_with(StreamLimits::default()).await
    }

    pub(crate) async fn start(
        database: store::Options,
        nats_url: String,
        home: Option<TempDir>,
    ) -> Self {
        Self::start_with(database, nats_url, home, StreamLimits::default()).await
    }

    /// One whose streams and consumers are declared otherwise.
    pub(crate) async fn on_postgres_with(limits: StreamLimits) -> Option<Self> {
        let url = shared::postgres_url().await.unwrap()?;
        let mut database = store::Options::new(url);
        database.schema = shared::fresh_namespace();
        let nats_url = shared::nats_url().await.unwrap();
        Some(Self::start_with(database, nats_url, None, limits).await)
    }

    async fn start_with(
        database: store::Options,
        nats_url: String,
        home: Option<TempDir>,
        limits: StreamLimits,
    ) -> Self {
        log_if_asked();
        store::migrate(&database).await.unwrap();
        let ledger = store::connect(&database).await.unwrap();
        let nats = relay::connect_nats(&nats_url, "test").await.unwrap();
        let subjects = Subjects::new(&shared::fresh_namespace()).unwrap();
        // Its consumers are there before the first worker asks for them.
        ledger.ensure_queue("default").await.unwrap();
        let js = jetstream::new(nats.clone());
        relay::migrate(ledger.as_ref(), &js, &subjects, &limits)
            .await
            .unwrap();
        let stop = CancellationToken::new();
        let ticker = start_ticker(&database, &ledger, WATCHED).await;
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
            ticker: Ticking::new(ticker),
            _stop: stop.clone().drop_guard(),
            _home: home,
        };
        cluster.start_relay(limits, &stop);
        cluster
    }

    fn start_relay(&self, streams: StreamLimits, stop: &CancellationToken) {
        let options = relay::Options {
            streams,
            ..relay::Options::default()
        };
        let relay = Relay::new(
            Arc::clone(&self.ledger),
            self.nats.clone(),
            self.subjects.clone(),
            options,
        )
        .unwrap();
        tokio::spawn(Box::pin(relay.run(stop.clone())));
    }

    /// From now on nothing is declared lost or overdue: what moves, a worker has moved.
    pub(crate) async fn declare_no_losses(&self) {
        let mut running = self.ticker.lock().await;
        running.0.cancel();
        (&mut running.1).await.unwrap().unwrap();
        let patient = Duration::from_mins(10);
        *running = start_ticker(&self.database, &self.ledger, patient).await;
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

    /// Waits until at least so many executions are in `state`: others may follow them at any time.
    pub(crate) async fn until_at_least(&self, state: State, count: u64) {
        eventually(&format!("{count} are {state}"), SOON, async || {
            self.counts().await.get(&state) >= Some(&count)
        })
        .await
        .unwrap();
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

    /// Waits until nothing waits for the broker any more.
    pub(crate) async fn until_all_are_published(&self) {
        eventually("all are published", SOON, async || {
            self.ledger.outbox_backlog().await.unwrap().rows == 0
        })
        .await
        .unwrap();
    }

    /// The ledger's clock.
    pub(crate) async fn now(&self) -> DateTime<Utc> {
        self.ledger.ledger().await.unwrap().now
    }

    /// Waits for an instant of the ledger's clock.
    pub(crate) async fn until_passed(&self, at: DateTime<Utc>) {
        eventually("its time", SOON, async || self.now().await >= at)
            .await
            .unwrap();
    }

    /// The session of somebody who was never heard of again.
    pub(crate) async fn expired_session(&self) -> Uuid {
        let session = NewSession {
            id: ids::fresh(),
            name: "gone".into(),
            host: "elsewhere".into(),
            pid: 1,
            version: "0".into(),
            queues: vec!["elsewhere".into()],
            jobs: Vec::new(),
            probes: Vec::new(),
            definitions: Vec::new(),
            capabilities: Vec::new(),
            max_concurrent: 1,
            lease: Duration::from_millis(1),
        };
        self.ledger.open_session(&session).await.unwrap();
        session.id
    }

    /// Waits until a ticker has declared a session lost.
    pub(crate) async fn until_lost(&self, session: Uuid) {
        eventually("it is declared lost", SOON, async || {
            let all = self.ledger.sessions(10).await.unwrap();
            let one = all.iter().find(|one| one.id == session);
            one.is_some_and(|one| one.state == SessionState::Lost)
        })
        .await
        .unwrap();
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

/// A ticker that declares nothing lost before it has watched for `watched`.
///
/// A gap in its view that is shorter than any lease here tells it of a process that stood still,
/// in which the workers could not renew either.
async fn start_ticker(
    database: &store::Options,
    ledger: &Arc<dyn Store>,
    watched: Duration,
) -> (CancellationToken, JoinHandle<Result<(), ticker::Error>>) {
    let mut own = database.clone();
    own.connections_max = 1;
    let lease_store = store::connect(&own).await.unwrap();
    let options = ticker::Options {
        sweep_every: Duration::from_millis(200),
        probe_after: Duration::from_secs(1),
        session_lease: watched,
        view_gap: Duration::from_millis(1_200),
        ..ticker::Options::default()
    };
    let waker = Arc::new(NoWaker);
    let ticker = Ticker::new(Arc::clone(ledger), lease_store, waker, options).unwrap();
    let stop = CancellationToken::new();
    (stop.clone(), tokio::spawn(Box::pin(ticker.run(stop))))
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
        self.ticker.get_mut().0.cancel();
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
