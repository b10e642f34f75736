//! Work in a caller's own transaction, on the database that holds the ledger.

use crate::executions::{Commit, Committed, Enqueued, NewExecution};
use crate::{Result, postgres, sqlite};

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

/// A connection inside a transaction, on a ledger in the schema `bellwether`.
impl<'a> From<&'a mut sqlx::PgConnection> for Transaction<'a> {
    fn from(connection: &'a mut sqlx::PgConnection) -> Self {
        Self::Postgres {
            connection,
            schema: "bellwether",
        }
    }
}

/// A connection inside a transaction, on the ledger's own file.
impl<'a> From<&'a mut sqlx::SqliteConnection> for Transaction<'a> {
    fn from(connection: &'a mut sqlx::SqliteConnection) -> Self {
        Self::Sqlite { connection }
    }
}

/// Enqueues a one-shot in the caller's transaction: rolled back, it leaves nothing; committed,
/// it runs even if the caller dies at that moment. After a call that was dropped before its end
/// (a timeout, a `select!`) roll back.
pub async fn enqueue_in(transaction: Transaction<'_>, new: &NewExecution) -> Result<Enqueued> {
    match transaction {
        Transaction::Postgres { connection, schema } => {
            postgres::enqueue_in(connection, schema, new).await
        }
        Transaction::Sqlite { connection } => sqlite::enqueue_in(connection, new).await,
    }
}

/// Commits a result in the caller's transaction, under its fence: what else the transaction
/// writes and the end of the execution become true together, or neither does. A result that is
/// fenced changes nothing and is not kept: roll back.
pub async fn commit_in(transaction: Transaction<'_>, commit: &Commit) -> Result<Committed> {
    match transaction {
        Transaction::Postgres { connection, schema } => {
            postgres::commit_in(connection, schema, commit).await
        }
        Transaction::Sqlite { connection } => sqlite::commit_in(connection, commit).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Handlers are spawned, so what they await must be `Send`; this compiles or it does not.
    #[test]
    fn futures_can_be_spawned() {
        fn sendable<T: Send>(_: impl FnOnce(Transaction<'static>) -> T) {}
        sendable(|transaction| async move {
            let new = NewExecution::new("job", crate::Payload::json("1"));
            enqueue_in(transaction, &new).await
        });
        sendable(|transaction| async move {
            let commit = Commit {
                execution_id: uuid::Uuid::nil(),
                claim_id: uuid::Uuid::nil(),
                generation: 1,
                started_ago: None,
                outcome: crate::executions::Outcome::Release,
            };
            commit_in(transaction, &commit).await
        });
    }
}
