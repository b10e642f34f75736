//! A ledger, a broker, and the roles on them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bellwether_client::{Client, NewExecution, NewSchedule, Timing};
use bellwether_sandbox::{
    Launch, NatsCluster, NatsOptions, NatsServer, Postgres, PostgresOptions, shared,
};
use bellwether_schemas::state::{SessionState, State};
use bellwether_schemas::subject::Subjects;
use bellwether_store::inspect::{ExecutionStory, ExecutionView, SessionView};
use bellwether_store::{Options, Store};
use chrono::{DateTime, Utc};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard};
use uuid::Uuid;

use super::{
    Answer, Command, Journal, Role, Work, bellwether_in, clean_environment, eventually, until,
};

static SERIAL: Mutex<()> = Mutex::const_new(());

/// One at a time: these tests measure times, and `cargo test` runs the tests of a binary at once.
/// (Under nextest each is a process, and a test group does the same.)
pub(crate) async fn serial() -> MutexGuard<'static, ()> {
    SERIAL.lock().await
}

/// A namespace and a ledger of its own, with roles as real processes of the real binary.
pub(crate) struct Cluster {
    /// The ledger, read by the test itself.
    pub(crate) store: Arc<dyn Store>,
    pub(crate) client: Client,
    pub(crate) nats: async_nats::Client,
    pub(crate) subjects: Subjects,
    /// The broker and the database, where they are this cluster's own.
    pub(crate) own_nats: Option<NatsServer>,
    pub(crate) own_postgres: Option<Postgres>,
    /// Three brokers that are one cluster, where they are this cluster's own.
    pub(crate) own_brokers: Option<NatsCluster>,
    /// More variables for its roles and programs.
    pub(crate) variables: Vec<(&'static str, String)>,
    database_url: String,
    nats_url: String,
    started: AtomicU32,
    folder: TempDir,
    /// None = another cluster of the test has it.
    _serial: Option<MutexGuard<'static, ()>>,
}

impl Cluster {
    /// On the shared Postgres and the shared nats-server; `None` where Postgres is skipped.
    pub(crate) async fn postgres() -> Option<Self> {
        let serial = serial().await;
        let url = shared::postgres_url().await.unwrap()?;
        Some(Self::new(serial, url, None, None).await)
    }

    /// The same with a journal, and with a ticker (started with `args`) and a relay that work.
    pub(crate) async fn staffed(args: &[&str]) -> Option<(Self, Journal, [Role; 2])> {
        let cluster = Self::postgres().await?;
        let journal = cluster.journal();
        let roles = [cluster.ticker(args), cluster.relay()];
        Some((cluster, journal, roles))
    }

    /// On the shared Postgres and a nats-server of its own, to be killed.
    pub(crate) async fn with_own_nats() -> Option<Self> {
        Self::with_nats_of(&NatsOptions::default()).await
    }

    /// The same with settings of its own.
    pub(crate) async fn with_nats_of(options: &NatsOptions) -> Option<Self> {
        let serial = serial().await;
        let url = shared::postgres_url().await.unwrap()?;
        let nats = NatsServer::start(options).await.unwrap();
        Some(Self::new(serial, url, Some(nats), None).await)
    }

    /// On the shared Postgres and three nats-servers of its own that are one cluster, with three
    /// copies of each message.
    pub(crate) async fn with_three_brokers() -> Option<Self> {
        let serial = serial().await;
        let url = shared::postgres_url().await.unwrap()?;
        let brokers = NatsCluster::start(3).await.unwrap();
        let variables = vec![("BELLWETHER_NATS_REPLICAS", "3".to_owned())];
        let nats_url = brokers.url();
        let mut cluster = Self::on(Some(serial), url, nats_url, variables).await;
        cluster.own_brokers = Some(brokers);
        Some(cluster)
    }

    /// On a Postgres of its own, to be restarted, and the shared nats-server.
    pub(crate) async fn with_own_postgres() -> Option<Self> {
        let serial = serial().await;
        if shared::postgres_is_skipped() {
            return None;
        }
        let postgres = Postgres::start(&PostgresOptions::default()).await.unwrap();
        Some(Self::new(serial, postgres.url(), None, Some(postgres)).await)
    }

    /// On a Postgres of its own that takes so many connections, and the shared nats-server.
    pub(crate) async fn with_few_connections(connections: u32) -> Option<Self> {
        let serial = serial().await;
        if shared::postgres_is_skipped() {
            return None;
        }
        let few = ("max_connections".to_owned(), connections.to_string());
        let options = PostgresOptions {
            settings: vec![few],
            ..PostgresOptions::default()
        };
        let postgres = Postgres::start(&options).await.unwrap();
        Some(Self::new(serial, postgres.url(), None, Some(postgres)).await)
    }

    /// Another one, on the shared Postgres and the shared nats-server, that lives beside this one.
    pub(crate) async fn beside(&self) -> Self {
        let url = shared::postgres_url().await.unwrap();
        // A test that skips Postgres has ended before.
        let url = url.unwrap();
        let nats_url = shared::nats_url().await.unwrap();
        Self::on(None, url, nats_url, Vec::new()).await
    }

    /// On a SQLite file of its own and the shared nats-server.
    pub(crate) async fn sqlite() -> Self {
        Self::new(serial().await, String::new(), None, None).await
    }

    async fn new(
        serial: MutexGuard<'static, ()>,
        database_url: String,
        own_nats: Option<NatsServer>,
        own_postgres: Option<Postgres>,
    ) -> Self {
        let nats_url = match &own_nats {
            Some(server) => server.url(),
            None => shared::nats_url().await.unwrap(),
        };
        let mut cluster = Self::on(Some(serial), database_url, nats_url, Vec::new()).await;
        (cluster.own_nats, cluster.own_postgres) = (own_nats, own_postgres);
        cluster
    }

    async fn on(
        serial: Option<MutexGuard<'static, ()>>,
        mut database_url: String,
        nats_url: String,
        variables: Vec<(&'static str, String)>,
    ) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("bellwether-test-")
            .tempdir()
            .unwrap();
        if database_url.is_empty() {
            database_url = format!("sqlite:{}", folder.path().join("ledger.db").display());
        }
        let namespace = shared::fresh_namespace();
        let mut env = environment(&database_url, &nats_url, &namespace).to_vec();
        env.extend(variables.iter().map(|(key, value)| (*key, value.as_str())));
        bellwether_in(folder.path(), &env, &["migrate"])
            .await
            .expect(0);

        let mut options = Options::new(database_url.clone());
        options.schema.clone_from(&namespace);
        options.connections_max = 4;
        "the test".clone_into(&mut options.application_name);
        let store = bellwether_store::connect(&options).await.unwrap();
        let nats = bellwether_outbox_relay::connect_nats(&nats_url, "the test")
            .await
            .unwrap();
        let client = Client::new(&namespace)
            .unwrap()
            .with_store(Arc::clone(&store))
            .with_nats(nats.clone());
        Self {
            store,
            client,
            nats,
            subjects: Subjects::new(&namespace).unwrap(),
            own_nats: None,
            own_postgres: None,
            own_brokers: None,
            variables,
            database_url,
            nats_url,
            started: AtomicU32::new(0),
            folder,
            _serial: serial,
        }
    }

    // ---- roles

    /// A role of the binary, with arguments.
    pub(crate) fn role(&self, role: &str, args: &[&str]) -> Role {
        let program = PathBuf::from(env!("CARGO_BIN_EXE_bellwether"));
        Role::start(self.launch(program, role, &[]).arg(role).args(args))
    }

    /// A role of the binary, with variables on top of the cluster's.
    pub(crate) fn role_with(&self, role: &str, env: &[(&str, &str)]) -> Role {
        let program = PathBuf::from(env!("CARGO_BIN_EXE_bellwether"));
        Role::start(self.launch(program, role, env).arg(role))
    }

    pub(crate) fn ticker(&self, args: &[&str]) -> Role {
        self.role("ticker", args)
    }

    pub(crate) fn relay(&self) -> Role {
        self.role("relay", &[])
    }

    /// A worker: the program `patient` of the examples, set up by `PATIENT_…` variables. Waits
    /// until its session is in the ledger.
    pub(crate) async fn worker(&self, name: &str, settings: &[(&str, &str)]) -> Role {
        let mut env = vec![("PATIENT_NAME", name)];
        env.extend(settings);
        self.example("patient", name, &env).await
    }

    /// A worker that is one of the example programs. Waits until its session is in the ledger.
    pub(crate) async fn example(&self, program: &str, name: &str, env: &[(&str, &str)]) -> Role {
        let mut worker = self.example_unwatched(program, name, env);
        until(&format!("the session of {name}"), async || {
            assert!(worker.is_running(), "{name} ended:\n{}", worker.log());
            self.sessions().await.iter().any(|s| s.pid == worker.pid())
        })
        .await;
        worker
    }

    /// One of the example programs that is no worker, with variables on top of the cluster's.
    pub(crate) fn program(&self, program: &str, args: &[&str], env: &[(&str, &str)]) -> Role {
        let path = Path::new(env!("CARGO_BIN_EXE_bellwether")).with_file_name(program);
        Role::start(self.launch(path, program, env).args(args))
    }

    /// The same at once.
    pub(crate) fn example_unwatched(
        &self,
        program: &str,
        name: &str,
        env: &[(&str, &str)],
    ) -> Role {
        let program = Path::new(env!("CARGO_BIN_EXE_bellwether")).with_file_name(program);
        assert!(
            program.exists(),
            "{} is missing; run `cargo build -p bellwether-examples` first",
            program.display()
        );
        Role::start(self.launch(program, name, env))
    }

    fn launch(&self, program: PathBuf, name: &str, env: &[(&str, &str)]) -> Launch {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let name = format!("{name}-{number}");
        let log = self.folder.path().join(format!("{name}.log"));
        let mut launch = clean_environment(Launch::new(program, log))
            .name(name)
            .current_dir(self.folder.path());
        for (key, value) in self.environment().iter().chain(env) {
            launch = launch.env(key, value);
        }
        for (key, value) in &self.variables {
            launch = launch.env(key, value);
        }
        launch
    }

    fn environment(&self) -> [(&str, &str); 5] {
        environment(
            &self.database_url,
            &self.nats_url,
            self.subjects.namespace(),
        )
    }

    /// Runs one of the binary's commands on this cluster.
    pub(crate) async fn bellwether(&self, args: &[&str]) -> Answer {
        self.bellwether_with(&[], args).await
    }

    /// The same with more variables.
    pub(crate) async fn bellwether_with(&self, env: &[(&str, &str)], args: &[&str]) -> Answer {
        let env = [&self.environment(), env].concat();
        bellwether_in(self.folder.path(), &env, args).await
    }

    /// Starts one of the binary's commands on this cluster.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        Command::start(self.folder.path(), &self.environment(), args)
    }

    /// What it says, data and notes alike, in the order in which it says it.
    pub(crate) async fn said_in_order(&self, args: &[&str]) -> Answer {
        let command = Command::start_in_order(self.folder.path(), &self.environment(), args);
        command.answer().await
    }

    pub(crate) fn database_url(&self) -> &str {
        &self.database_url
    }

    /// Where its roles and commands run.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn journal(&self) -> Journal {
        Journal::new(self.folder.path(), "journal")
    }

    // ---- work

    /// Enqueues `count` equal one-shots of the job `patient`.
    pub(crate) async fn enqueue(&self, count: usize, work: &Work) -> Vec<Uuid> {
        let new: Vec<_> = (0..count)
            .map(|_| NewExecution::new("patient", work.payload()))
            .collect();
        let answers = self.client.enqueue_all(&new).await.unwrap();
        answers
            .into_iter()
            .map(bellwether_client::Enqueued::execution_id)
            .collect()
    }

    /// Registers `count` schedules of the job `patient`, each due every second.
    pub(crate) async fn every_second(&self, count: usize, work: &Work) -> Vec<String> {
        let mut names = Vec::new();
        for number in 0..count {
            let timing = Timing::Every {
                period_ms: 1_000,
                anchor: None,
            };
            let mut new = NewSchedule::new(format!("tick-{number}"), timing);
            "patient".clone_into(&mut new.job);
            new.payload = work.payload();
            patiently(async || self.store.register_schedule(&new).await).await;
            names.push(new.name);
        }
        names
    }

    /// Ends schedules: no fire after this.
    pub(crate) async fn unregister(&self, names: &[String]) {
        for name in names {
            patiently(async || self.store.remove_schedule(name).await).await;
        }
    }

    // ---- looks; a database that is just being restarted is waited for

    pub(crate) async fn sessions(&self) -> Vec<SessionView> {
        patiently(async || self.store.sessions(1_000).await).await
    }

    /// The live session of a process.
    pub(crate) async fn session_of(&self, worker: &Role) -> Option<SessionView> {
        let live = |s: &SessionView| s.pid == worker.pid() && s.state == SessionState::Live;
        self.sessions().await.into_iter().find(live)
    }

    /// The newest session of a process, live or ended.
    pub(crate) async fn newest_session_of(&self, worker: &Role) -> SessionView {
        let all = self.sessions().await;
        let own = all.into_iter().find(|s| s.pid == worker.pid());
        own.unwrap()
    }

    /// The ledger's clock.
    pub(crate) async fn now(&self) -> DateTime<Utc> {
        patiently(async || self.store.ledger().await).await.now
    }

    /// Waits until a session has drained for so long.
    pub(crate) async fn until_draining_for(&self, session: Uuid, time: Duration) {
        until("its drain", async || {
            let all = self.sessions().await;
            let own = all.iter().find(|s| s.id == session);
            let Some(since) = own.and_then(|s| s.draining_since) else {
                return false;
            };
            (self.now().await - since)
                .to_std()
                .is_ok_and(|drained| drained >= time)
        })
        .await;
    }

    /// How many executions there are.
    pub(crate) async fn planned(&self) -> usize {
        let counts = self.counts().await;
        usize::try_from(counts.values().sum::<u64>()).unwrap()
    }

    pub(crate) async fn story(&self, id: Uuid) -> ExecutionStory {
        patiently(async || self.store.execution(id).await)
            .await
            .unwrap()
    }

    pub(crate) async fn execution(&self, id: Uuid) -> ExecutionView {
        self.story(id).await.execution
    }

    pub(crate) async fn counts(&self) -> BTreeMap<State, u64> {
        patiently(async || self.store.state_counts().await)
            .await
            .into_iter()
            .collect()
    }

    /// Waits until so many executions have succeeded and none stands anywhere else: as long as
    /// any comes to its end, for how fast they do is no matter here.
    pub(crate) async fn until_all_succeeded(&self, executions: usize) {
        let wanted = BTreeMap::from([(State::Succeeded, u64::try_from(executions).unwrap())]);
        let mut last = self.counts().await;
        while last != wanted {
            let before = last.get(&State::Succeeded).copied();
            let moved = eventually(async || {
                last = self.counts().await;
                last == wanted || last.get(&State::Succeeded).copied() > before
            });
            assert!(moved.await, "not all of {executions} succeeded: {last:?}");
        }
    }

    /// Waits until no execution is left that may still move.
    pub(crate) async fn until_all_ended(&self) {
        until("the end of all executions", async || {
            self.counts().await.keys().all(|state| state.is_terminal())
        })
        .await;
    }

    /// Fails unless no law is broken and each of `laws` had something to look at.
    pub(crate) async fn audit_clean(&self, laws: &[u8]) {
        let reports = self.store.audit().await.unwrap();
        for report in &reports {
            println!(
                "law {:>2}: {} looked at, {} broken",
                report.law, report.looked_at, report.violations
            );
        }
        let broken: Vec<_> = reports
            .iter()
            .filter(|report| report.violations > 0)
            .collect();
        assert!(broken.is_empty(), "broken laws: {broken:#?}");
        for law in laws {
            let looked_at = reports
                .iter()
                .find(|report| report.law == *law)
                .map(|r| r.looked_at);
            assert!(looked_at > Some(0), "law {law} was not exercised");
        }
    }

    /// The ledger in plain SQL; only where it is a Postgres.
    pub(crate) async fn sql(&self) -> PgPool {
        let options = PgConnectOptions::from_str(&self.database_url)
            .unwrap()
            .options([("search_path", self.subjects.namespace())]);
        PgPoolOptions::new()
            .max_connections(2)
            .connect_with(options)
            .await
            .unwrap()
    }
}

fn environment<'a>(
    database_url: &'a str,
    nats_url: &'a str,
    namespace: &'a str,
) -> [(&'a str, &'a str); 5] {
    [
        ("BELLWETHER_DATABASE_URL", database_url),
        ("BELLWETHER_DATABASE_SCHEMA", namespace),
        ("BELLWETHER_NATS_URL", nats_url),
        ("BELLWETHER_NAMESPACE", namespace),
        ("BELLWETHER_LOG", "info"),
    ]
}

/// Asks again while the database does not answer.
async fn patiently<T>(mut ask: impl AsyncFnMut() -> bellwether_store::Result<T>) -> T {
    let mut answer = ask().await;
    eventually(async || {
        if answer
            .as_ref()
            .is_err_and(bellwether_store::Error::is_transient)
        {
            answer = ask().await;
        }
        !answer
            .as_ref()
            .is_err_and(bellwether_store::Error::is_transient)
    })
    .await;
    answer.unwrap()
}
