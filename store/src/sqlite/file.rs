//! The file: where it is and how it is opened.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, SqliteConnection};

use super::errors::Fault;
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
    Ok(untouched(options)?
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .statement_cache_capacity(256))
}

/// What the URL says, for a look at a file that may be no ledger: it is left as it is.
pub(super) fn untouched(options: &Options) -> Result<SqliteConnectOptions> {
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
        .busy_timeout(options.lock_timeout)
        .foreign_keys(false)
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

/// An error of the first use of the file: rights that are missing show there, too.
pub(super) fn first_use(op: &'static str, path: &Path, fault: Fault) -> Error {
    if fault.is_denied() {
        cannot_open(op, path, fault)
    } else {
        fault.of(op)
    }
}

/// Refuses a path without a file: a slip of the keyboard is no old schema.
pub(super) async fn must_be_there(op: &'static str, options: &Options) -> Result<()> {
    let parsed = untouched(options)?;
    let path = parsed.get_filename();
    // Any other answer comes from opening it.
    if tokio::fs::try_exists(path).await.unwrap_or(true) {
        return Ok(());
    }
    Err(Error::new(
        op,
        ErrorKind::Schema,
        format!(
            "there is no file {}: is the path right? Only `bellwether migrate` and `bellwether \
             dev` make one",
            path.display()
        ),
    ))
}

/// The file that the URL names.
pub(crate) fn path(options: &Options) -> Result<PathBuf> {
    Ok(untouched(options)?.get_filename().to_owned())
}

/// The file cannot be opened; a busy one may be later, one that is no database never.
pub(super) fn cannot_open(op: &'static str, path: &Path, fault: Fault) -> Error {
    let shown = path.display();
    if path.is_dir() {
        let what = format!("{shown} is a folder; write sqlite:{shown}/ledger.db");
        return Error::new(op, ErrorKind::Invalid, what);
    }
    let said = fault.to_string();
    let kind = if fault.is_denied() {
        ErrorKind::Denied
    } else {
        ErrorKind::Unavailable
    };
    let error = fault.of(op);
    if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Corrupt) {
        return error;
    }
    Error::new(
        op,
        kind,
        format!(
            "{shown} cannot be opened: {said}; this user must be able to write the file and its \
             folder (SQLite keeps `-wal` and `-shm` files beside it)"
        ),
    )
}
