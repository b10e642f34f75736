//! The file: where it is, how it is opened, and its schema.

use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, SqliteConnection};

use super::clock;
use super::errors::Fault;
use super::row::Columns;
use crate::migrate::{Migrated, Migration, missing};
use crate::{Error, ErrorKind, Options, Result};

/// How often opening is tried when another process switches the journal mode just then.
const OPEN_TRIES_MAX: u32 = 10;

/// A short wait before a repeat; random, so that two processes do not meet again.
pub(super) fn jitter() -> Duration {
    Duration::from_millis(fastrand::u64(5..50))
}

/// What the URL says, with what this ledger needs: WAL, so that readers do not wait for
/// writers; `synchronous = FULL`, so that a committed row survives a power loss.
pub(super) fn options(options: &Options) -> Result<SqliteConnectOptions> {
    let refuse = |why: String| {
        Error::new(
            "read the database URL",
            ErrorKind::Invalid,
            format!("{why}; write sqlite:path/to/file.db"),
        )
    };
    let parsed =
        SqliteConnectOptions::from_str(&options.url).map_err(|error| refuse(error.to_string()))?;
    let path = parsed.get_filename();
    if path.as_os_str().is_empty()
        || options.url.contains(":memory:")
        || options.url.contains("mode=memory")
    {
        return Err(refuse(
            "the ledger needs a file, which its processes share".to_owned(),
        ));
    }
    Ok(parsed
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(options.lock_timeout)
        .foreign_keys(false)
        .statement_cache_capacity(256)
        .create_if_missing(false)
        .disable_statement_logging())
}

/// Opens the file. The switch to WAL answers "locked" at once while another process does
/// it, without the busy timeout.
pub(super) async fn open(options: &SqliteConnectOptions) -> Result<SqliteConnection, Fault> {
    let mut tries = 1;
    loop {
        match options.connect().await.map_err(Fault::from) {
            Err(fault) if fault.is_busy() && tries < OPEN_TRIES_MAX => {
                tries += 1;
                tokio::time::sleep(jitter()).await;
            }
            result => return result,
        }
    }
}

/// Applies the missing steps in one transaction; makes the file and its folder first.
pub async fn migrate(options: &Options, steps: &[Migration]) -> Result<Migrated> {
    const OP: &str = "migrate the ledger";
    let file = self::options(options)?.create_if_missing(true);
    let path = file.get_filename().to_owned();
    if let Some(folder) = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    {
        tokio::fs::create_dir_all(folder)
            .await
            .map_err(|error| no_folder(OP, folder, &error))?;
    }
    let mut connection = match open(&file).await {
        Ok(connection) => connection,
        Err(fault) if fault.is_busy() => return Err(fault.of(OP)),
        Err(fault) => return Err(cannot_open(OP, &path, &fault)),
    };
    let migrated = apply(&mut connection, steps)
        .await
        .map_err(|fault| fault.of(OP))?;
    connection
        .close()
        .await
        .map_err(|error| Fault::from(error).of(OP))?;
    Ok(migrated)
}

/// The schema's version; 0 = an empty database.
pub(super) async fn schema_version(conn: &mut SqliteConnection) -> Result<i32, Fault> {
    let table = sqlx::query(sql!("migrate/present"))
        .fetch_optional(&mut *conn)
        .await?;
    if table.is_none() {
        return Ok(0);
    }
    sqlx::query(sql!("migrate/version"))
        .fetch_one(conn)
        .await?
        .number("version")
}

async fn apply(conn: &mut SqliteConnection, steps: &[Migration]) -> Result<Migrated, Fault> {
    let mut transaction = conn.begin_with("BEGIN IMMEDIATE").await?;
    sqlx::query(sql!("migrate/schema"))
        .execute(&mut *transaction)
        .await?;
    let from = schema_version(&mut transaction).await?;
    let mut to = from;
    for step in missing(from, steps)? {
        sqlx::raw_sql(step.sql).execute(&mut *transaction).await?;
        let now = clock::now(&mut transaction).await?;
        sqlx::query(sql!("migrate/record"))
            .bind(step.version)
            .bind(step.name)
            .bind(now)
            .execute(&mut *transaction)
            .await?;
        to = step.version;
    }
    transaction.commit().await?;
    Ok(Migrated { from, to })
}

fn no_folder(op: &'static str, folder: &Path, error: &std::io::Error) -> Error {
    Error::new(
        op,
        ErrorKind::Unavailable,
        format!(
            "the folder {} cannot be made: {error}; make it, or choose a path in a folder that \
             this user may write",
            folder.display()
        ),
    )
}

fn cannot_open(op: &'static str, path: &Path, fault: &Fault) -> Error {
    Error::new(
        op,
        ErrorKind::Unavailable,
        format!(
            "{} cannot be opened: {fault}; this user must be able to write the file and its \
             folder (SQLite keeps `-wal` and `-shm` files beside it)",
            path.display()
        ),
    )
}
