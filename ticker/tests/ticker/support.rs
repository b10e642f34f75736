//! The vocabulary of the ticker's tests: a ledger on either database, tickers with short
//! leases, and what is to be true of fires.

use std::sync::Arc;
use std::time::Duration;

use bellwether_sandbox::{Proxy, eventually, shared};
use bellwether_store::schedules::{NewSchedule, Registered, Schedule, Timing};
use bellwether_store::{Store, connect, migrate};
use bellwether_ticker::{
    BootClock, Error, Handle, NoWaker, Options, SystemBootClock, Ticker, Waker,
};
use chrono::{DateTime, Utc};
use sqlx::AssertSqlSafe;
use sqlx::{PgPool, SqlitePool};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Patience with what should take less than a second or two: the tests run beside others.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

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

/// Instants that did not fire, as the ledger has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) reason: String,
    pub(crate) from: DateTime<Utc>,
    pub(crate) until: DateTime<Utc>,
    pub(crate) count: usize,
    pub(crate) recorded_at: DateTime<Utc>,
}

/// A ticker that runs.
pub(crate) struct Running {
    pub(crate) handle: Handle,
    stop: CancellationToken,
    task: JoinHandle<Result<(), Error>>,
}

impl Sandbox {
    pub(crate) async fn sqlite() -> Self {
        crate::meter::start();
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
        crate::meter::start();
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

    /// Locks one lease row, on Postgres, as a planner that hangs does, until the transaction ends.
    pub(crate) async fn lock_lease(
        &self,
        partition: i32,
    ) -> sqlx::Transaction<'static, sqlx::Postgres> {
        let Plain::Postgres(pool) = &self.plain else {
            panic!("SQLite has no row locks");
        };
        let mut lock = pool.begin().await.unwrap();
        sqlx::query("SELECT FROM lease WHERE partition = $1 FOR KEY SHARE")
            .bind(partition)
            .fetch_one(&mut *lock)
            .await
            .unwrap();
        lock
    }

    /// Locks the rows of all schedules with such names, on Postgres, as a forgotten transaction does.
    pub(crate) async fn lock_schedules(
        &self,
        like: &str,
    ) -> sqlx::Transaction<'static, sqlx::Postgres> {
        let Plain::Postgres(pool) = &self.plain else {
            panic!("SQLite has no row locks");
        };
        let mut lock = pool.begin().await.unwrap();
        sqlx::query("SELECT FROM schedule WHERE name LIKE $1 ORDER BY id FOR UPDATE")
            .bind(like)
            .fetch_all(&mut *lock)
            .await
            .unwrap();
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

    /// Moves all schedules into the past by plain SQL, as if they had been registered so many hours
    /// earlier and no ticker had run since.
    pub(crate) async fn set_back(&self, hours: u32) {
        let (interval, ms) = (
            format!("interval '{hours} h'"),
            i64::from(hours) * 3_600_000,
        );
        for (table, columns) in [
            ("schedule", ["anchor", "cursor", "history_from"].as_slice()),
            ("schedule_timing", &["anchor", "valid_from"]),
        ] {
            let set = |by: &str| {
                let earlier = columns.iter().map(|one| format!("{one} = {one} - {by}"));
                let earlier = earlier.collect::<Vec<_>>().join(", ");
                format!("UPDATE {table} SET {earlier}")
            };
            self.sql(&set(&interval), &set(&ms.to_string())).await;
        }
    }

    /// What is recorded of a schedule as not fired, oldest first.
    pub(crate) async fn ranges(&self, id: Uuid) -> Vec<Range> {
        let at = |micros| DateTime::from_timestamp_micros(micros).unwrap();
        let rows: Vec<(String, i64, i64, i64, i64)> = match &self.plain {
            Plain::Postgres(pool) => sqlx::query_as(
                "SELECT reason, (extract(epoch FROM from_at) * 1000000)::bigint,
                     (extract(epoch FROM until_at) * 1000000)::bigint, count,
                     (extract(epoch FROM recorded_at) * 1000000)::bigint
                 FROM non_fire WHERE schedule_id = $1 ORDER BY from_at",
            )
            .bind(id)
            .fetch_all(pool)
            .await
            .unwrap(),
            Plain::Sqlite(pool) => sqlx::query_as(
                "SELECT reason, from_at * 1000, until_at * 1000, count, recorded_at * 1000
                 FROM non_fire WHERE schedule_id = ?1 ORDER BY from_at",
            )
            .bind(id)
            .fetch_all(pool)
            .await
            .unwrap(),
        };
        rows.into_iter()
            .map(|(reason, from, until, count, recorded)| Range {
                reason,
                from: at(from),
                until: at(until),
                count: usize::try_from(count).unwrap(),
                recorded_at: at(recorded),
            })
            .collect()
    }

    pub(crate) async fn ticker(&self, options: Options) -> Running {
        self.ticker_by(options, Arc::new(SystemBootClock)).await
    }

    pub(crate) async fn ticker_by(&self, options: Options, clock: Arc<dyn BootClock>) -> Running {
        self.start(options, clock, Arc::new(NoWaker)).await
    }

    /// One that tells `waker` of the work it makes.
    pub(crate) async fn ticker_with(&self, options: Options, waker: Arc<dyn Waker>) -> Running {
        self.start(options, Arc::new(SystemBootClock), waker).await
    }

    /// One with so many connections; its name at the database is that of the schema.
    pub(crate) async fn ticker_with_connections(&self, max: u32, options: Options) -> Running {
        let mut own = self.options.clone();
        own.connections_max = max;
        own.application_name.clone_from(&own.schema);
        let (store, lease_store) = (connect(&own).await.unwrap(), connect(&own).await.unwrap());
        let waker = Arc::new(NoWaker);
        Running::start(Ticker::new(store, lease_store, waker, options).unwrap())
    }

    /// How many statements of that ticker that contain some text wait for a lock, as its holder
    /// sees it.
    pub(crate) async fn waiting(
        &self,
        text: &str,
        holder: &mut sqlx::Transaction<'static, sqlx::Postgres>,
    ) -> i64 {
        // Else a transaction sees what its first look has seen.
        sqlx::query("SELECT pg_stat_clear_snapshot()")
            .execute(&mut **holder)
            .await
            .unwrap();
        sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity
             WHERE application_name = $1 AND strpos(query, $2) > 0
                   AND state = 'active' AND wait_event_type = 'Lock'",
        )
        .bind(&self.options.schema)
        .bind(text)
        .fetch_one(&mut **holder)
        .await
        .unwrap()
    }

    /// One that reaches its Postgres through a proxy; the test itself does not.
    pub(crate) async fn ticker_behind_a_proxy(&self, options: Options) -> (Running, Proxy) {
        let (before, after) = self.options.url.rsplit_once(':').unwrap();
        let end = after.find(['/', '?']).unwrap_or(after.len());
        let proxy = Proxy::start(after[..end].parse().unwrap()).await.unwrap();
        let mut way = self.options.clone();
        way.url = format!("{before}:{}{}", proxy.port(), &after[end..]);
        let (store, lease_store) = (connect(&way).await.unwrap(), connect(&way).await.unwrap());
        let clock = Arc::new(SystemBootClock);
        let waker = Arc::new(NoWaker);
        let ticker = Ticker::with_clock(store, lease_store, waker, options, clock).unwrap();
        (Running::start(ticker), proxy)
    }

    async fn start(
        &self,
        options: Options,
        clock: Arc<dyn BootClock>,
        waker: Arc<dyn Waker>,
    ) -> Running {
        let (store, lease_store) = (self.open().await, self.open().await);
        let ticker = Ticker::with_clock(store, lease_store, waker, options, clock).unwrap();
        Running::start(ticker)
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

    /// Takes the lease away from whoever has it, for three seconds: as a takeover does it, in one
    /// statement per table, by hand.
    pub(crate) async fn steal_lease(&self) {
        self.sql(
            "WITH locked AS MATERIALIZED (SELECT partition FROM lease FOR UPDATE),
             stolen AS (UPDATE lease SET term_id = gen_random_uuid(), epoch = epoch + 1,
                 holder = 'thief', renewed_at = clock_timestamp(),
                 expires_at = clock_timestamp() + interval '3 s'
                 FROM locked WHERE lease.partition = locked.partition
                 RETURNING lease.partition, epoch, term_id, renewed_at),
             ended AS (UPDATE term SET ended_at = renewed_at FROM stolen WHERE ended_at IS NULL)
             INSERT INTO term SELECT partition, epoch, term_id, 'thief', renewed_at, NULL
             FROM stolen",
            "UPDATE lease SET term_id = randomblob(16), epoch = epoch + 1, holder = 'thief',
                 expires_at = CAST(unixepoch('subsec') * 1000 AS INTEGER) + 3000;
             UPDATE term SET ended_at = CAST(unixepoch('subsec') * 1000 AS INTEGER)
                 WHERE ended_at IS NULL;
             INSERT INTO term SELECT partition, epoch, term_id, 'thief',
                 CAST(unixepoch('subsec') * 1000 AS INTEGER), NULL FROM lease",
        )
        .await;
    }

    /// The ledger's now.
    pub(crate) async fn now(&self) -> DateTime<Utc> {
        self.store.due_schedules(&[0], 1).await.unwrap().now
    }
}

impl Running {
    fn start(ticker: Ticker) -> Self {
        let (handle, stop) = (ticker.handle(), CancellationToken::new());
        let task = tokio::spawn(ticker.run(stop.clone()));
        Self { handle, stop, task }
    }

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
        steady_for: millis(1_500),
        progress_max: millis(4_000),
        call_timeout: millis(3_000),
        ..Options::default()
    }
}

/// Terms that no stall of the machine ends, for tests that count them.
pub(crate) fn steady() -> Options {
    Options {
        lease: Duration::from_secs(5),
        renew_timeout: Duration::from_secs(2),
        self_fence: Duration::from_secs(4),
        ..quick()
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
