//! The ledger in a SQLite file: the embedded default, for one host and several processes.
//!
//! Each process has one connection, on a thread of its own (`writer`); each operation is
//! one `BEGIN IMMEDIATE` transaction there. A process that is stopped (`SIGSTOP`) inside one
//! holds the file until it continues or dies. Statements are per row inside the
//! transaction: with the write lock held, nothing can come between them.

/// The statement in `sql/sqlite/<name>.sql`. It stands above the modules that use it.
macro_rules! sql {
    ($name:literal) => {
        include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/sql/sqlite/",
            $name,
            ".sql"
        ))
    };
}
mod audit;
use crate::check;
mod cancel;
mod checkpoints;
mod claim;
mod clock;
mod commit;
mod dead;
#[cfg(test)]
mod disk;
mod dispatch;
mod enqueue;
mod enqueue_in;
mod errors;
mod executions;
mod file;
mod fires;
mod held;
mod idempotency;
mod inspect;
mod leadership;
mod leftovers;
mod migrate;
mod outbox;
mod partitions;
mod planning;
mod probes;
mod pulse;
mod retention;
mod retry;
mod row;
mod schedules;
mod sessions;
mod streams;
mod submitted;
mod sweeps;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::SqliteConnectOptions;

use self::errors::Fault;
use self::row::Columns;
use self::writer::Writer;
use crate::retention::Unnamed;
use crate::sweeps::Lap;
use crate::{Backend, Ledger, Options, Result, Store, migrate as schema};

pub use self::enqueue_in::{commit_in, enqueue_in};
pub(crate) use self::file::path;
pub use self::idempotency::mark_completed_in;
pub(crate) use self::migrate::script;
pub use self::migrate::{migrate, validate};

/// What a caller grants a statement for the wait for its turn, on top of its own time.
const TURN_MAX: Duration = Duration::from_secs(5);

/// A ledger in a SQLite file.
pub struct SqliteStore {
    writer: Writer,
    file: SqliteConnectOptions,
    held: Arc<Lap>,
    history: Arc<Lap>,
    /// After when, and in which row, a key was recorded.
    keys: Arc<Lap<(clock::Millis, i64)>>,
    unnamed: Arc<Lap<Unnamed>>,
}

impl SqliteStore {
    /// Opens the file. A missing file or a schema of another version is refused
    /// ([`crate::ErrorKind::Schema`]); nothing is created or changed.
    pub async fn connect(options: &Options) -> Result<Self> {
        const OP: &str = "open the ledger";
        file::must_be_there(OP, options).await?;
        migrate::validate(options, schema::SQLITE)
            .await?
            .verdict()
            .map_err(|mismatch| Fault::from(mismatch).of(OP))?;
        let file = file::options(options)?;
        let writer = Writer::start(file.clone(), options.statement_timeout + TURN_MAX).await?;
        Ok(Self {
            writer,
            file,
            held: Arc::default(),
            history: Arc::default(),
            keys: Arc::default(),
            unnamed: Arc::default(),
        })
    }
}

#[async_trait::async_trait]
impl Store for SqliteStore {
    fn backend(&self) -> Backend {
        Backend::Sqlite
    }

    async fn ledger(&self) -> Result<Ledger> {
        self.writer
            .read("read the ledger's identity", async |conn, now| {
                let row = sqlx::query(sql!("ledger")).fetch_one(conn).await?;
                Ok(Ledger {
                    id: row.value("id")?,
                    partition_count: row.number("partition_count")?,
                    map_version: row.value("map_version")?,
                    now: row::instant(now)?,
                })
            })
            .await
    }

    async fn ensure_queue(&self, queue: &str) -> Result<()> {
        bellwether_schemas::names::check("queue", queue)?;
        let queue = queue.to_owned();
        self.writer
            .write("add a queue", async move |conn, now| {
                enqueue::ensure_queue(conn, now, &queue).await
            })
            .await
    }

    async fn close(&self) {
        self.writer.close().await;
    }
}
