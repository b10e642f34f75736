//! The vocabulary of the ticker's tests: a ledger on either database, tickers with short
//! leases, and what is to be true of fires.

use std::sync::Arc;
use std::time::Duration;

use bellwether_sandbox::{eventually, shared};
use bellwether_store::schedules::{NewSchedule, Registered, Schedule, Timing};
use bellwether_store::{Store, connect, migrate};
use bellwether_ticker::{BootClock, Error, Handle, NoWaker, Options, SystemBootClock, Ticker};
use chrono::{DateTime, Utc};
use sqlx::AssertSqlSafe;
use sqlx::{PgPool, SqlitePool};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Patience with what should take less than a second or two: the tests run beside others.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A migrated ledger of its own.
pub(crate) struct Sandbox {
    options: bellwether_store::Options,
    plain: Plain,
    pub(crate) store: Arc<dyn Store>,
    _folder: Option<tempfile::TempDir>,
}

enum Plain {
    Postgres(PgPool),
    Sqlite(SqlitePool),
}

/// A ticker that runs.
pub(crate) struct Running {
    pub(crate) handle: Handle,
    stop: CancellationToken,
    task: JoinHandle<Result<(), Error>>,
}

impl Sandbox {
    pub(crate) async fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("ledger.db").display());
        let options = bellwether_store::Options::new(&url);
        migrate(&options).await.unwrap();
        let plain = Plain::Sqlite(SqlitePool::connect(&url).await.unwrap());
        let store = connect(&options).await.unwrap();
        Self {
            options,
            plain,
            store,
            _folder: Some(folder),
        }
    }

    pub(crate) async fn postgres() -> Option<Self> {
        let url = shared::postgres_url().await.unwrap()?;
        let mut options = bellwether_store::Options::new(&url);
        options.schema = shared::fresh_namespace();
        options.connections_max = 4;
        migrate(&options).await.unwrap();
        let path = format!("SET search_path TO {}", options.schema);
        let pool = sqlx::postgres::PgPoolOptions::new()
            .max_connections(1)
            .after_connect(move |conn, _| {
                let path = path.clone();
                Box::pin(async move {
                    sqlx::query(AssertSqlSafe(path))
                        .execute(conn)
                        .await
                        .map(drop)
                })
            })
            .connect(&url)
            .await
            .unwrap();
        let store = connect(&options).await.unwrap();
        Some(Self {
            options,
            plain: Plain::Postgres(pool),
            store,
            _folder: None,
        })
    }

    /// Plain SQL, as a fault or an operator would write it.
    pub(crate) async fn sql(&self, postgres: &str, sqlite: &str) {
        match &self.plain {
            Plain::Postgres(pool) => {
                sqlx::query(AssertSqlSafe(postgres.to_owned()))
                    .execute(pool)
                    .await
                    .unwrap();
            }
            Plain::Sqlite(pool) => {
                sqlx::query(AssertSqlSafe(sqlite.to_owned()))
                    .execute(pool)
                    .await
                    .unwrap();
            }
        }
    }

    /// Locks tables against everybody, on Postgres, until the transaction ends.
    pub(crate) async fn lock(&self, tables: &str) -> sqlx::Transaction<'static, sqlx::Postgres> {
        let Plain::Postgres(pool) = &self.plain else {
            panic!("SQLite has no table locks");
        };
        let mut lock = pool.begin().await.unwrap();
        let all = AssertSqlSafe(format!("LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE"));
        sqlx::query(all).execute(&mut *lock).await.unwrap();
        lock
    }

    /// The one number that a query returns; the query is the same in both dialects.
    pub(crate) async fn number(&self, query: &str) -> i64 {
        let query = AssertSqlSafe(query.to_owned());
        match &self.plain {
            Plain::Postgres(pool) => sqlx::query_scalar(query).fetch_one(pool).await.unwrap(),
            Plain::Sqlite(pool) => sqlx::query_scalar(query).fetch_one(pool).await.unwrap(),
        }
    }

    pub(crate) async fn ticker(&self, options: Options) -> Running {
        self.ticker_by(options, Arc::new(SystemBootClock)).await
    }

    pub(crate) async fn ticker_by(&self, options: Options, clock: Arc<dyn BootClock>) -> Running {
        let (store, lease_store) = (self.open().await, self.open().await);
        let ticker =
            Ticker::with_clock(store, lease_store, Arc::new(NoWaker), options, clock).unwrap();
        let (handle, stop) = (ticker.handle(), CancellationToken::new());
        let task = tokio::spawn(ticker.run(stop.clone()));
        Running { handle, stop, task }
    }

    /// Another connection to the ledger.
    pub(crate) async fn open(&self) -> Arc<dyn Store> {
        connect(&self.options).await.unwrap()
    }

    /// Registers a schedule that fires every `period_ms`, counted from now.
    pub(crate) async fn every(&self, name: &str, period_ms: i64) -> Uuid {
        self.register(&NewSchedule::new(
            name,
            Timing::Every {
                period_ms,
                anchor: None,
            },
        ))
        .await
    }

    pub(crate) async fn register(&self, new: &NewSchedule) -> Uuid {
        match self.store.register_schedule(new).await.unwrap() {
            Registered::Inserted(id) => id,
            Registered::Exists(id) => panic!("{} exists already as {id}", new.name),
        }
    }

    pub(crate) async fn schedule(&self, id: Uuid) -> Schedule {
        let all = self.store.schedules().await.unwrap();
        all.into_iter().find(|one| one.id == id).unwrap()
    }

    /// Due instants of the schedule's fires, oldest first, one entry per row.
    pub(crate) async fn fires(&self, id: Uuid) -> Vec<DateTime<Utc>> {
        let fires = self.store.fires(id, 100_000).await.unwrap();
        let mut instants: Vec<_> = fires.iter().map(|fire| fire.scheduled_at).collect();
        instants.sort_unstable();
        instants
    }

    /// Waits until the schedule has at least `count` fires.
    pub(crate) async fn fired(&self, id: Uuid, count: usize) {
        eventually(&format!("{count} fires"), PATIENCE, async || {
            self.fires(id).await.len() >= count
        })
        .await
        .unwrap();
    }

    /// Every instant from the registration to the cursor fired, once; there are at least
    /// `fires_min`.
    pub(crate) async fn assert_each_instant_fired_once(&self, id: Uuid, fires_min: usize) {
        let schedule = self.schedule(id).await;
        let fires = self.fires(id).await;
        assert!(
            fires.len() >= fires_min,
            "{}: only {} fires",
            schedule.name,
            fires.len()
        );
        let timing = schedule.timing.evaluate().unwrap();
        let expected: Vec<_> = bellwether_time::next_n(&timing, schedule.history_from, fires.len())
            .into_iter()
            .map(|one| one.scheduled_at)
            .collect();
        assert_eq!(fires, expected, "{}", schedule.name);
        assert_eq!(fires.last(), Some(&schedule.cursor), "{}", schedule.name);
    }

    /// No law is broken. Nothing publishes in these tests, so the outbox does not drain.
    pub(crate) async fn assert_audit_clean(&self) {
        const OUTBOX_DRAINS: u8 = 11;
        for law in self.store.audit().await.unwrap() {
            let broken = law.violations > 0 && law.law != OUTBOX_DRAINS;
            assert!(
                !broken,
                "law {} ({}): {:?}",
                law.law, law.title, law.examples
            );
        }
    }

    /// The ledger's now.
    pub(crate) async fn now(&self) -> DateTime<Utc> {
        self.store.due_schedules(1).await.unwrap().now
    }
}

impl Running {
    pub(crate) async fn leads(&self) {
        eventually("leadership", PATIENCE, async || self.handle.is_leader())
            .await
            .unwrap();
    }

    /// Asks it to stop and waits for the end.
    pub(crate) async fn stop(self) -> Result<(), Error> {
        self.stop.cancel();
        self.task.await.unwrap()
    }

    /// Ends it between two of its instructions: nothing is resigned, nothing finished.
    pub(crate) async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }

    /// Waits for an end that nobody asked for.
    pub(crate) async fn ended(self) -> Result<(), Error> {
        tokio::time::timeout(PATIENCE, self.task)
            .await
            .unwrap()
            .unwrap()
    }
}

/// Leases a sixth of the real ones, with their ratios.
pub(crate) fn quick() -> Options {
    let millis = Duration::from_millis;
    Options {
        lease: millis(1_500),
        renew_every: millis(300),
        renew_timeout: millis(300),
        self_fence: millis(1_100),
        standby_poll: millis(200),
        sweep_every: millis(200),
        idle_max: millis(200),
        recover_grace: millis(300),
        session_lease: millis(1_500),
        view_gap: millis(1_500),
        progress_max: millis(4_000),
        ..Options::default()
    }
}

/// The one ticker that leads, of those that run.
pub(crate) async fn leader_of(tickers: &[Running]) -> usize {
    let leading = async || tickers.iter().filter(|one| one.handle.is_leader()).count() == 1;
    eventually("one leader", PATIENCE, leading).await.unwrap();
    tickers
        .iter()
        .position(|one| one.handle.is_leader())
        .unwrap()
}
