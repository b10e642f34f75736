//! `book-entry`: one line in a book of its own, once per operation.

use std::path::Path;
use std::time::Duration;

use bellwether_worker::{Context, job};
use serde::{Deserialize, Serialize};
use sqlx::Connection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode};

/// The book's file, in the environment of the demo's workers.
pub(crate) const BOOK_ENV: &str = "BELLWETHER_DEMO_BOOK";

/// An entry, as its publisher sends it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) number: i64,
    pub(crate) amount_cents: i64,
}

/// What the book says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) entries: i64,
    pub(crate) numbers: i64,
    pub(crate) cents: i64,
}

/// Adds the entry. The operation id is the same on every attempt, so a second one changes
/// nothing: that is what makes the effect happen once.
#[job(name = "book-entry", queue = "demo", timeout = "1m")]
pub(crate) async fn book_entry(ctx: Context, entry: Entry) -> anyhow::Result<()> {
    let path = std::env::var(BOOK_ENV)
        .map_err(|_| anyhow::anyhow!("{BOOK_ENV} does not say where the book is"))?;
    let mut book = open(Path::new(&path)).await?;
    sqlx::query(
        "INSERT INTO book (operation_id, number, amount_cents) VALUES ($1, $2, $3)
         ON CONFLICT (operation_id) DO NOTHING",
    )
    .bind(ctx.operation_id().to_string())
    .bind(entry.number)
    .bind(entry.amount_cents)
    .execute(&mut book)
    .await?;
    book.close().await?;
    Ok(())
}

/// Opens the book, making it if it is not there.
pub(crate) async fn open(path: &Path) -> anyhow::Result<SqliteConnection> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .busy_timeout(Duration::from_secs(20));
    let mut book = SqliteConnection::connect_with(&options).await?;
    sqlx::query(
        "CREATE TABLE IF NOT EXISTS book (
             operation_id TEXT PRIMARY KEY, number INTEGER NOT NULL, amount_cents INTEGER NOT NULL
         )",
    )
    .execute(&mut book)
    .await?;
    Ok(book)
}

/// Adds up the book.
pub(crate) async fn totals(path: &Path) -> anyhow::Result<Totals> {
    let mut book = open(path).await?;
    let (entries, numbers, cents) = sqlx::query_as(
        "SELECT count(*), count(DISTINCT number), coalesce(sum(amount_cents), 0) FROM book",
    )
    .fetch_one(&mut book)
    .await?;
    book.close().await?;
    Ok(Totals {
        entries,
        numbers,
        cents,
    })
}
