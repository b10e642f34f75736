//! The ledger on Postgres: production.
//!
//! Every operation is one autocommit statement, or a few where nothing is fenced; no client
//! pause can hold a lock. The clock is `clock_timestamp()` in the acting statement. The SQL
//! stands under `sql/postgres/`, one file per statement, in folders named like the files
//! here.
//!
//! A statement ends in three ways only: with an answer, with an error of the server, or
//! after `statement_timeout` + 5 s without a word, when the connection is given up: a frozen
//! socket never holds a caller.

mod audit;
mod call;
use crate::check;
mod checkpoints;
mod dead;
mod enqueue_in;
mod errors;
mod executions;
mod grants;
mod idempotency;
mod inspect;
mod leadership;
mod migrate;
mod outbox;
mod partitions;
mod planning;
mod probes;
mod pulse;
mod retention;
mod row;
mod schedules;
mod sessions;
mod streams;
mod sweeps;

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions, Row};
use tokio::time::timeout;
use uuid::Uuid;

use crate::connect::Options;
use crate::grants::Role;
use crate::retention::Unnamed;
use crate::sweeps::Lap;
use crate::{Backend, Error, ErrorKind, Ledger, Result, Store};

pub use enqueue_in::{commit_in, enqueue_in};
pub(crate) use grants::grants;
pub use idempotency::mark_completed_in;
pub(crate) use migrate::script;
pub use migrate::{migrate, validate};

/// Longest wait for a free or new connection.
const ACQUIRE: Duration = Duration::from_secs(5);

/// A connection that was used this long ago is taken without a question.
const TRUSTED: Duration = Duration::from_secs(1);

/// An idle connection that nobody took for so long is closed: many processes that idle leave room
/// for those that work.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// Longest wait for the answer whether an idle connection is still there.
const PING: Duration = Duration::from_secs(1);

/// How much longer than its server a client waits for an answer.
const GRACE: Duration = Duration::from_secs(5);

/// The text of `sql/postgres/<name>.sql`.
macro_rules! sql {
    ($name:literal) => {
        include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/sql/postgres/",
            $name,
            ".sql"
        ))
    };
}
use call::{call, finish};
use sql;

/// A ledger in a Postgres schema of its own.
#[derive(Debug, Clone)]
pub struct PgStore {
    pool: PgPool,
    /// Of the `ledger` row, which never changes; every dispatch carries it.
    ledger_id: Uuid,
    call_timeout: Duration,
    /// Whose rights its user should have.
    role: Option<Role>,
    held: Arc<Lap>,
    history: Arc<Lap>,
    /// After when a key was recorded, its job and itself.
    keys: Arc<Lap<(DateTime<Utc>, String, String)>>,
    unnamed: Arc<Lap<Unnamed>>,
}

impl PgStore {
    /// Connects and checks the schema's version; changes nothing.
    pub async fn connect(options: &Options) -> Result<Self> {
        const OP: &str = "open the ledger";
        let pool = PgPoolOptions::new()
            .max_connections(options.connections_max.max(1))
            .acquire_timeout(ACQUIRE)
            .idle_timeout(IDLE_MAX)
            .test_before_acquire(false)
            .before_acquire(|conn, used| Box::pin(still_there(conn, used.idle_for)))
            .connect_with(connect_options(options)?)
            .await
            .map_err(|error| errors::error(OP, error))?;
        let mut store = Self {
            pool,
            ledger_id: Uuid::nil(),
            call_timeout: options.statement_timeout.saturating_add(GRACE),
            role: options.role,
            held: Arc::default(),
            history: Arc::default(),
            keys: Arc::default(),
            unnamed: Arc::default(),
        };
        call!(store, OP, |conn| {
            migrate::check_connection(conn, &options.schema).await
        })?;
        let found = call!(store, "read the schema's version", |conn| {
            migrate::found_version(conn).await
        })?;
        crate::migrate::validate(found, crate::migrate::POSTGRES)
            .map_err(|mismatch| Error::new(OP, ErrorKind::Schema, mismatch))?;
        store.ledger_id = store.ledger().await?.id;
        Ok(store)
    }
}

/// Asks a connection that was idle for a while whether it is still there and takes writes; an
/// error or a no closes it and takes the next one. The pool's own question has no time-out, and does
/// not see that a member of a cluster has become a standby.
async fn still_there(conn: &mut PgConnection, idle_for: Duration) -> sqlx::Result<bool> {
    if idle_for < TRUSTED {
        return Ok(true);
    }
    // Not prepared: nothing may be before the check of a new connection.
    let writable = sqlx::raw_sql(sql!("writable")).fetch_one(conn);
    let answer = timeout(PING, writable).await;
    answer
        .unwrap_or_else(|_| Err(errors::no_answer(PING)))?
        .try_get(0)
}

fn connect_options(options: &Options) -> Result<PgConnectOptions> {
    let millis = |time: Duration| time.as_millis().to_string();
    check::schema(&options.schema)?;
    let parsed = PgConnectOptions::from_str(&options.url)
        .map_err(|error| errors::error("read the database URL", error))?;
    // Not the whole text of a statement in every log: `call` tells of slow ones by their names.
    let parsed = parsed.disable_statement_logging();
    Ok(parsed.application_name(&options.application_name).options([
        ("search_path", format!("\"{}\"", options.schema)),
        ("timezone", "UTC".to_owned()),
        // Statements re-check rows under their locks; a stricter level would fail there instead.
        ("default_transaction_isolation", "read committed".to_owned()),
        ("statement_timeout", millis(options.statement_timeout)),
        ("lock_timeout", millis(options.lock_timeout)),
        (
            "idle_in_transaction_session_timeout",
            millis(options.statement_timeout),
        ),
        // Statements are short; the row estimates of UNNEST would set off the compiler.
        ("jit", "off".to_owned()),
    ]))
}

#[async_trait::async_trait]
impl Store for PgStore {
    fn backend(&self) -> Backend {
        Backend::Postgres
    }

    async fn ledger(&self) -> Result<Ledger> {
        call!(self, "read the ledger's row", |conn| {
            let row = sqlx::query(sql!("ledger")).fetch_one(conn).await?;
            Ok(Ledger {
                id: row.try_get("id")?,
                partition_count: row::count(&row, "partition_count")?,
                map_version: row.try_get("map_version")?,
                now: row.try_get("now")?,
            })
        })
    }

    async fn ensure_queue(&self, queue: &str) -> Result<()> {
        check::name("queue", queue)?;
        call!(self, "add a queue", |conn| {
            sqlx::query(sql!("ensure_queues"))
                .bind([queue])
                .execute(conn)
                .await
                .map(drop)
        })
    }

    async fn close(&self) {
        // Calls in flight finish first, if their server answers.
        if timeout(self.call_timeout, self.pool.close()).await.is_err() {
            tracing::warn!("the connections to the ledger were not closed in time");
        }
    }
}
