//! A fresh, migrated ledger of one store, with a second way in by plain SQL.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use bellwether_sandbox::shared;
use bellwether_store::migrate::Migrated;
use bellwether_store::{Backend, Options, Store};
use chrono::{DateTime, Utc};

use crate::raw::{Arg, Raw, Row};

/// A ledger under test. Derefs to its store: `ledger.claim(…)`.
pub(crate) struct Fixture {
    store: Arc<dyn Store>,
    options: Options,
    raw: Raw,
    _dir: Option<tempfile::TempDir>,
}

impl Deref for Fixture {
    type Target = dyn Store;

    fn deref(&self) -> &Self::Target {
        self.store.as_ref()
    }
}

impl Fixture {
    /// Another handle with connections of its own on the same database, as a second process has.
    pub(crate) async fn second(&self) -> Arc<dyn Store> {
        bellwether_store::connect(&self.options).await.unwrap()
    }

    /// The handle of the fixture itself, for tasks.
    pub(crate) fn first(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    /// The same ledger through another store.
    pub(crate) async fn through(&self, store: Arc<dyn Store>) -> Self {
        Self {
            store,
            options: self.options.clone(),
            raw: Raw::open(&self.options).await,
            _dir: None,
        }
    }

    /// Closes its connections and leaves the ledger.
    pub(crate) async fn let_go(self) {
        self.store.close().await;
        self.raw.close().await;
    }

    /// How the ledger was opened.
    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// Connections past the store.
    pub(crate) fn raw(&self) -> &Raw {
        &self.raw
    }

    /// Runs one statement that reads alike in both dialects; returns the rows it changed.
    pub(crate) async fn sql(&self, text: &'static str, args: &[Arg]) -> u64 {
        self.raw.execute(text, args).await
    }

    /// Runs statements without arguments that the dialects write differently.
    pub(crate) async fn ddl(&self, postgres: &'static str, sqlite: &'static str) {
        self.raw
            .script(match self.backend() {
                Backend::Postgres => postgres,
                Backend::Sqlite => sqlite,
            })
            .await;
    }

    /// The rows of a query that reads alike in both dialects.
    pub(crate) async fn rows(&self, text: &'static str, args: &[Arg]) -> Vec<Row> {
        self.raw.rows(text, args).await
    }

    /// The only row of a query.
    pub(crate) async fn row(&self, text: &'static str, args: &[Arg]) -> Row {
        let mut rows = self.rows(text, args).await;
        assert_eq!(rows.len(), 1, "rows of {text}");
        rows.remove(0)
    }

    /// The only value of a query, as a number.
    pub(crate) async fn count(&self, text: &'static str, args: &[Arg]) -> i64 {
        self.row(text, args).await.int(0)
    }

    /// The ledger's clock.
    pub(crate) async fn now(&self) -> DateTime<Utc> {
        self.ledger().await.unwrap().now
    }

    /// `ago` before the ledger's now, in whole milliseconds.
    pub(crate) async fn ago(&self, ago: Duration) -> DateTime<Utc> {
        whole_ms(self.now().await - ago)
    }

    async fn on_postgres(url: &str) -> Self {
        let mut options = Options::new(url);
        options.schema = shared::fresh_namespace();
        options.connections_max = 3;
        Self::of(options, None).await
    }

    async fn on_sqlite() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::new(format!("sqlite:{}", dir.path().join("ledger.db").display()));
        Self::of(options, Some(dir)).await
    }

    /// Migrates an empty database.
    pub(crate) async fn of(options: Options, dir: Option<tempfile::TempDir>) -> Self {
        let migrated = bellwether_store::migrate(&options).await.unwrap();
        assert_eq!(
            migrated,
            Migrated {
                from: 0,
                to: bellwether_store::migrate::SCHEMA_VERSION
            }
        );
        let store = bellwether_store::connect(&options).await.unwrap();
        let raw = Raw::open(&options).await;
        Self {
            store,
            options,
            raw,
            _dir: dir,
        }
    }

    pub(crate) async fn close(self) {
        self.store.close().await;
        if self.options.backend().unwrap() == Backend::Postgres {
            self.raw.drop_schema(&self.options.schema).await;
        }
        self.raw.close().await;
    }
}

/// Cut to the resolution that both stores keep.
pub(crate) fn whole_ms(at: DateTime<Utc>) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(at.timestamp_millis()).unwrap()
}

/// Runs a case on a fresh SQLite file.
pub(crate) async fn on_sqlite(case: impl AsyncFnOnce(&Fixture)) {
    let fixture = Fixture::on_sqlite().await;
    Box::pin(case(&fixture)).await;
    fixture.close().await;
}

/// Runs a case in a fresh schema of the shared Postgres; without one only if the environment
/// says `BELLWETHER_TEST_PG=skip`, which the sandbox prints.
pub(crate) async fn on_postgres(case: impl AsyncFnOnce(&Fixture)) {
    let Some(url) = shared::postgres_url().await.unwrap() else {
        assert!(
            shared::postgres_is_skipped(),
            "Postgres is missing and nobody asked for that"
        );
        return;
    };
    let fixture = Fixture::on_postgres(&url).await;
    Box::pin(case(&fixture)).await;
    fixture.close().await;
}
