//! What the tests of the relay share: a broker, a ledger, a running relay.

use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream;
use async_nats::jetstream::consumer::PullConsumer;
use bellwether_outbox_relay::{Error, Handle, Options, Relay, StreamLimits, connect_nats, migrate};
use bellwether_sandbox::{NatsOptions, NatsServer, eventually, shared};
use bellwether_schemas::ids;
use bellwether_schemas::state::Priority;
use bellwether_schemas::subject::Subjects;
use bellwether_schemas::wire::{self, Dispatch};
use bellwether_store::executions::{Enqueued, NewExecution};
use bellwether_store::sessions::NewSession;
use bellwether_store::{Payload, Store};
use sqlx::{Connection as _, SqliteConnection};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Patience for what should happen soon, on a busy machine.
pub(crate) const SOON: Duration = Duration::from_mins(1);

/// Longer than any test: what needs this long did not happen by itself.
pub(crate) const NEVER: Duration = Duration::from_hours(1);

/// A namespace of its own on a server, seen through a client of its own.
pub(crate) struct Broker {
    pub(crate) url: String,
    pub(crate) client: async_nats::Client,
    pub(crate) js: jetstream::Context,
    pub(crate) subjects: Subjects,
}

/// A stored dispatch.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) subject: String,
    pub(crate) headers: HeaderMap,
    pub(crate) dispatch: Dispatch,
}

impl Broker {
    /// On the server that all tests share.
    pub(crate) async fn shared() -> Self {
        Self::on(&shared::nats_url().await.unwrap()).await
    }

    pub(crate) async fn on(url: &str) -> Self {
        let client = connect_nats(url, "test").await.unwrap();
        let js = jetstream::new(client.clone());
        let subjects = Subjects::new(&shared::fresh_namespace()).unwrap();
        Self {
            url: url.to_owned(),
            client,
            js,
            subjects,
        }
    }

    pub(crate) async fn stream(&self, name: &str) -> jetstream::stream::Info {
        self.js
            .get_stream(name)
            .await
            .unwrap()
            .get_info()
            .await
            .unwrap()
    }

    pub(crate) async fn work(&self) -> jetstream::stream::Info {
        self.stream(&self.subjects.work_stream()).await
    }

    pub(crate) async fn consumer(&self, stream: &str, name: &str) -> Option<PullConsumer> {
        self.js.get_consumer_from_stream(name, stream).await.ok()
    }

    /// Every dispatch in the work stream; none while it is away.
    pub(crate) async fn dispatches(&self) -> Vec<Stored> {
        let Ok(stream) = self.js.get_stream(self.subjects.work_stream()).await else {
            return Vec::new();
        };
        let state = &stream.cached_info().state;
        let mut found = Vec::new();
        for sequence in state.first_sequence..=state.last_sequence {
            if let Ok(raw) = stream.get_raw_message(sequence).await {
                let dispatch = wire::decode(&raw.payload).unwrap();
                let (subject, headers) = (raw.subject.to_string(), raw.headers);
                found.push(Stored {
                    subject,
                    headers,
                    dispatch,
                });
            }
        }
        found
    }

    /// Execution and number of every dispatch in the work stream, sorted.
    pub(crate) async fn numbers(&self) -> Vec<(Uuid, u32)> {
        let all = self.dispatches().await;
        let mut numbers: Vec<_> = all
            .iter()
            .map(|stored| (stored.dispatch.execution_id, stored.dispatch.dispatch_no))
            .collect();
        numbers.sort_unstable();
        numbers
    }
}

/// A broker and a ledger after `bellwether migrate`, on the server that all tests share.
pub(crate) async fn shared() -> (Broker, Ledger) {
    shared_with(&StreamLimits::default()).await
}

/// As [`shared`], with limits of its own.
pub(crate) async fn shared_with(limits: &StreamLimits) -> (Broker, Ledger) {
    prepare(Broker::shared().await, limits).await
}

/// As [`shared_with`], on other servers, separated by commas.
pub(crate) async fn migrated_with(url: &str, limits: &StreamLimits) -> (Broker, Ledger) {
    prepare(Broker::on(url).await, limits).await
}

/// As [`shared`], on another server.
pub(crate) async fn migrated(url: &str) -> (Broker, Ledger) {
    prepare(Broker::on(url).await, &StreamLimits::default()).await
}

async fn prepare(broker: Broker, limits: &StreamLimits) -> (Broker, Ledger) {
    let ledger = Ledger::new().await;
    // A cluster may change its leader once more, just after it has elected one.
    eventually("the first declaration", SOON, async || {
        let migrated = migrate(&*ledger.store, &broker.js, &broker.subjects, limits).await;
        let is_final = migrated.as_ref().is_err_and(Error::is_final);
        assert!(!is_final, "{migrated:?}");
        migrated.is_ok()
    })
    .await
    .unwrap();
    (broker, ledger)
}

/// A ledger in a file of its own.
pub(crate) struct Ledger {
    pub(crate) store: Arc<dyn Store>,
    url: String,
    _home: TempDir,
}

impl Ledger {
    pub(crate) async fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", home.path().join("ledger.db").display());
        let options = bellwether_store::Options::new(&url);
        bellwether_store::migrate(&options).await.unwrap();
        let store = bellwether_store::connect(&options).await.unwrap();
        Self {
            store,
            url,
            _home: home,
        }
    }

    /// On Postgres, in a schema of its own, with all patience for who holds its rows; and the
    /// options to reach it. None where there is no Postgres.
    pub(crate) async fn on_postgres() -> Option<(Self, bellwether_store::Options)> {
        let mut options = bellwether_store::Options::new(shared::postgres_url().await.unwrap()?);
        options.schema = shared::fresh_namespace();
        options.application_name.clone_from(&options.schema);
        (options.lock_timeout, options.statement_timeout) = (SOON, SOON);
        bellwether_store::migrate(&options).await.unwrap();
        let ledger = Self {
            store: bellwether_store::connect(&options).await.unwrap(),
            url: options.url.clone(),
            _home: tempfile::tempdir().unwrap(),
        };
        Some((ledger, options))
    }

    /// Plain SQL on SQLite, as a fault would write it.
    pub(crate) async fn sql(&self, statement: &'static str) {
        let mut plain = SqliteConnection::connect(&self.url).await.unwrap();
        sqlx::query(statement).execute(&mut plain).await.unwrap();
    }

    /// The one number that a query returns, on SQLite.
    pub(crate) async fn number(&self, query: &'static str) -> i64 {
        let mut plain = SqliteConnection::connect(&self.url).await.unwrap();
        sqlx::query_scalar(query)
            .fetch_one(&mut plain)
            .await
            .unwrap()
    }

    /// Inserts `count` one-shots that are due; returns their executions, sorted.
    pub(crate) async fn enqueue(&self, queue: &str, lane: Priority, count: usize) -> Vec<Uuid> {
        let one = || NewExecution {
            queue: queue.to_owned(),
            priority: lane,
            fire_id: ids::fresh(),
            ..NewExecution::new("job", Payload::json("{}"))
        };
        let new: Vec<_> = (0..count).map(|_| one()).collect();
        let mut ids = Vec::with_capacity(count);
        for part in new.chunks(1_000) {
            let enqueued = self.store.enqueue(part).await.unwrap();
            ids.extend(enqueued.into_iter().map(Enqueued::execution_id));
        }
        ids.sort_unstable();
        ids
    }

    /// Opens the session of a worker that has had free slots ever since the beginning of time and
    /// never ends.
    pub(crate) async fn idle_worker(&self, queue: &str, job: &str) {
        let session = NewSession {
            id: ids::fresh(),
            name: "idle".to_owned(),
            host: "host".to_owned(),
            pid: 1,
            version: "0".to_owned(),
            queues: vec![queue.to_owned()],
            jobs: vec![job.to_owned()],
            probes: Vec::new(),
            definitions: Vec::new(),
            capabilities: Vec::new(),
            max_concurrent: 1,
            lease: NEVER,
        };
        self.store.open_session(&session).await.unwrap();
        self.sql("UPDATE session SET opened_at = 0, free_since = 0")
            .await;
    }

    pub(crate) async fn outbox(&self) -> u64 {
        self.store.outbox_backlog().await.unwrap().rows
    }

    pub(crate) async fn until_outbox_is_empty(&self) {
        eventually("an empty outbox", SOON, async || self.outbox().await == 0)
            .await
            .unwrap();
    }
}

/// A server on which the user `few` lacks some rights (a map in nats-server's language, such as
/// `subscribe: { deny: "a.>" }`) and everybody else is the user `all`, without a word.
pub(crate) async fn server_with_few_rights(permissions: &str) -> NatsServer {
    let more_config = format!(
        "authorization {{ users: [\n {{ user: all, password: all }}\n \
         {{ user: few, password: few, permissions: {{ {permissions} }} }}\n ] }}\n\
         no_auth_user: all\n"
    );
    let options = NatsOptions {
        more_config,
        ..NatsOptions::default()
    };
    NatsServer::start(&options).await.unwrap()
}

/// The address of that user.
pub(crate) fn url_of_few(server: &NatsServer) -> String {
    format!("nats://few:few@127.0.0.1:{}", server.port())
}

/// A relay that runs; dropping it is the kill -9 of a task.
pub(crate) struct Running {
    pub(crate) handle: Handle,
    stop: CancellationToken,
    task: JoinHandle<Result<(), Error>>,
}

impl Running {
    /// On a connection of its own, as a process would have.
    pub(crate) async fn start(broker: &Broker, ledger: &Ledger, options: Options) -> Self {
        Self::start_as(&broker.url, broker, ledger, options).await
    }

    /// As the user of an address.
    pub(crate) async fn start_as(
        url: &str,
        broker: &Broker,
        ledger: &Ledger,
        options: Options,
    ) -> Self {
        let client = connect_nats(url, "relay").await.unwrap();
        let store = Arc::clone(&ledger.store);
        let relay = Relay::new(store, client, broker.subjects.clone(), options).unwrap();
        let (handle, stop) = (relay.handle(), CancellationToken::new());
        let task = tokio::spawn(relay.run(stop.clone()));
        Self { handle, stop, task }
    }

    pub(crate) async fn until_published(&self, count: u64) {
        eventually("published dispatches", SOON, async || {
            self.handle.stats().published >= count
        })
        .await
        .unwrap();
    }

    /// Waits for so many more looks for lost dispatches.
    pub(crate) async fn until_looked(&self, times: u64) {
        let before = self.handle.stats().looks;
        eventually("looks for lost dispatches", SOON, async || {
            self.handle.stats().looks >= before + times
        })
        .await
        .unwrap();
    }

    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// What `run` returned.
    pub(crate) async fn end(mut self) -> Result<(), Error> {
        tokio::time::timeout(SOON, &mut self.task)
            .await
            .unwrap()
            .unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Every execution with one number.
pub(crate) fn each(executions: &[Uuid], number: u32) -> Vec<(Uuid, u32)> {
    executions.iter().map(|id| (*id, number)).collect()
}

/// Whether every one of `wanted` is there.
pub(crate) fn has_all(found: &[(Uuid, u32)], wanted: &[(Uuid, u32)]) -> bool {
    wanted.iter().all(|one| found.contains(one))
}
