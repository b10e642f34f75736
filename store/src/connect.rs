//! From a database URL to a ledger.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bellwether_schemas::address::masked;

use crate::grants::Role;
use crate::migrate::{Migrated, Validated};
use crate::{Backend, Error, ErrorKind, Result, Store};

/// How to reach the database.
#[derive(Clone, PartialEq, Eq)]
pub struct Options {
    /// `postgres://user@host/db` or `sqlite:path/to/file.db`.
    pub url: String,
    /// Postgres: the schema that holds the tables. Default `bellwether`. Unused on SQLite.
    pub schema: String,
    /// Postgres: most connections of this process. Default 8.
    pub connections_max: u32,
    /// Longest statement. Default 10 s; a backstop, never a plan.
    pub statement_timeout: Duration,
    /// Longest wait for a lock. Default 5 s.
    pub lock_timeout: Duration,
    /// What the database shows of this process. Default `bellwether`.
    pub application_name: String,
    /// What this process does, for the advice when its user has no right to a statement. Gives and
    /// takes no right. Default: none, and the advice names no role.
    pub role: Option<Role>,
}

impl std::fmt::Debug for Options {
    /// Without the secrets of the URL.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("url", &masked(&self.url))
            .field("schema", &self.schema)
            .field("connections_max", &self.connections_max)
            .field("statement_timeout", &self.statement_timeout)
            .field("lock_timeout", &self.lock_timeout)
            .field("application_name", &self.application_name)
            .field("role", &self.role)
            .finish()
    }
}

impl Options {
    /// Defaults for `url`.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            schema: "bellwether".to_owned(),
            connections_max: 8,
            statement_timeout: Duration::from_secs(10),
            lock_timeout: Duration::from_secs(5),
            application_name: "bellwether".to_owned(),
            role: None,
        }
    }

    /// The file of a SQLite ledger, whether or not it is there; none = on Postgres.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`]: the URL names no database.
    pub fn file(&self) -> Result<Option<PathBuf>> {
        match self.backend()? {
            Backend::Postgres => Ok(None),
            Backend::Sqlite => crate::sqlite::path(self).map(Some),
        }
    }

    /// The database that the URL names.
    pub fn backend(&self) -> Result<Backend> {
        if self.url.starts_with("postgres://") || self.url.starts_with("postgresql://") {
            Ok(Backend::Postgres)
        } else if self.url.starts_with("sqlite:") {
            Ok(Backend::Sqlite)
        } else {
            Err(Error::new(
                "read the database URL",
                ErrorKind::Invalid,
                "it begins with neither `postgres://` nor `sqlite:`; \
                 write postgres://user@host/database or sqlite:path/to/file.db",
            ))
        }
    }
}

/// Opens the ledger. Refuses a schema of another version ([`ErrorKind::Schema`]); never
/// changes one.
pub async fn connect(options: &Options) -> Result<Arc<dyn Store>> {
    match options.backend()? {
        Backend::Postgres => Ok(Arc::new(crate::postgres::PgStore::connect(options).await?)),
        Backend::Sqlite => Ok(Arc::new(
            crate::sqlite::SqliteStore::connect(options).await?,
        )),
    }
}

/// Applies the missing migrations. A repeat changes nothing.
pub async fn migrate(options: &Options) -> Result<Migrated> {
    match options.backend()? {
        Backend::Postgres => crate::postgres::migrate(options, crate::migrate::POSTGRES).await,
        Backend::Sqlite => crate::sqlite::migrate(options, crate::migrate::SQLITE).await,
    }
}

/// Reads the schema's version and changes nothing: no schema, table or file is made. A database
/// without a ledger has version 0; so has a SQLite file that is not there.
pub async fn validate(options: &Options) -> Result<Validated> {
    match options.backend()? {
        Backend::Postgres => crate::postgres::validate(options, crate::migrate::POSTGRES).await,
        Backend::Sqlite => crate::sqlite::validate(options, crate::migrate::SQLITE).await,
    }
}
