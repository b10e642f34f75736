//! Enqueue inside the caller's own transaction: the job exists if and only if the caller
//! commits.

use bellwether_store::executions::{Enqueued, NewExecution};
use bellwether_store::{postgres, sqlite};

use crate::Result;

/// The caller's open transaction, on the database that holds the ledger.
#[derive(Debug)]
pub enum Transaction<'a> {
    /// Postgres.
    Postgres {
        /// A connection inside a transaction (`&mut *tx`).
        connection: &'a mut sqlx::PgConnection,
        /// The ledger's schema, usually `bellwether`.
        schema: &'a str,
    },
    /// SQLite: the ledger's own file. Begin it with `BEGIN IMMEDIATE`.
    Sqlite {
        /// A connection inside a transaction (`&mut *tx`).
        connection: &'a mut sqlx::SqliteConnection,
    },
}

/// Enqueues a one-shot in the caller's transaction. Rolled back, it leaves nothing; committed,
/// it runs even if the caller dies at that moment. Call [`crate::Client::wake`] after the
/// commit for the quickest dispatch.
pub async fn enqueue_in(transaction: Transaction<'_>, new: &NewExecution) -> Result<Enqueued> {
    Ok(match transaction {
        Transaction::Postgres { connection, schema } => {
            postgres::enqueue_in(connection, schema, new).await?
        }
        Transaction::Sqlite { connection } => sqlite::enqueue_in(connection, new).await?,
    })
}
