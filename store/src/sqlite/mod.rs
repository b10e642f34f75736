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
mod claim;
mod clock;
mod commit;
mod dispatch;
mod enqueue;
mod errors;
mod executions;
mod file;
mod fires;
mod inspect;
mod leadership;
mod outbox;
mod planning;
mod row;
mod schedules;
mod sessions;
mod streams;
mod submitted;
mod sweeps;
#[cfg(test)]
mod tests;
mod writer;

use std::time::Duration;

use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteConnectOptions;

use self::errors::Fault;
use self::row::Columns;
use self::writer::Writer;
use crate::executions::{Enqueued, NewExecution};
use crate::{Backend, Ledger, Options, Result, Store, migrate as schema};

pub use self::file::migrate;

/// What a caller grants a statement for the wait for its turn, on top of its own time.
const TURN_MAX: Duration = Duration::from_secs(5);

/// A ledger in a SQLite file.
pub struct SqliteStore {
    writer: Writer,
    file: SqliteConnectOptions,
}

impl SqliteStore {
    /// Opens the file. A missing file or a schema of another version is refused
    /// ([`crate::ErrorKind::Schema`]); nothing is created or changed.
    pub async fn connect(options: &Options) -> Result<Self> {
        const OP: &str = "open the ledger";
        let file = file::options(options)?;
        let mismatch = |found| {
            schema::validate(found, schema::SQLITE).map_err(|error| Fault::from(error).of(OP))
        };
        if !tokio::fs::try_exists(file.get_filename())
            .await
            .map_err(|error| Fault::from(sqlx::Error::Io(error)).of(OP))?
        {
            mismatch(0)?;
        }
        let writer = Writer::start(file.clone(), options.statement_timeout + TURN_MAX).await?;
        mismatch(writer.schema_version(OP).await?)?;
        Ok(Self { writer, file })
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

/// Enqueues inside the caller's own transaction on the ledger's file, so that the
/// one-shot exists if and only if the caller's rows do. Begin it with `BEGIN IMMEDIATE`:
/// a transaction that has read before it writes may be refused by SQLite. Until its commit
/// no other process can write the ledger, so keep it short. The relay finds the dispatch
/// by polling.
pub async fn enqueue_in(conn: &mut SqliteConnection, new: &NewExecution) -> Result<Enqueued> {
    const OP: &str = "enqueue in the caller's transaction";
    check::one_shot(new)?;
    let enqueued = async {
        let now = clock::now(conn).await?;
        enqueue::enqueue(conn, now, new).await
    };
    enqueued.await.map_err(|fault: Fault| fault.of(OP))
}
