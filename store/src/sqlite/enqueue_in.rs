//! Enqueue and commit inside a user's own transaction on the ledger's file: the one-shot exists,
//! or the execution has ended, if, and only if, what else the transaction wrote is there.

use sqlx::SqliteConnection;

use super::clock::{self, Millis};
use super::errors::Fault;
use super::{check, commit, enqueue};
use crate::Result;
use crate::executions::{Commit, Committed, Enqueued, NewExecution};

/// Enqueues inside the caller's own transaction on the ledger's file, so that the
/// one-shot exists if and only if the caller's rows do. Begin it with `BEGIN IMMEDIATE`:
/// a transaction that has read before it writes may be refused by SQLite. Until its commit
/// no other process can write the ledger, so keep it short. The relay finds the dispatch
/// by polling.
///
/// The work is done in a savepoint: when it fails, the caller's transaction is as before and
/// may go on. After a call that was dropped in the middle (a timeout, a `select!`) roll back: part
/// of the work may stand.
pub async fn enqueue_in(conn: &mut SqliteConnection, new: &NewExecution) -> Result<Enqueued> {
    const OP: &str = "enqueue in the caller's transaction";
    check::one_shot(new)?;
    let enqueued = in_savepoint(conn, async |conn, now| {
        enqueue::enqueue(conn, now, new).await
    });
    enqueued.await.map_err(|fault| fault.of(OP))
}

/// Commits a result in the transaction that `conn` is in, as [`enqueue_in`] enqueues. A result
/// that the fence refuses changes nothing and is not kept for audit.
pub async fn commit_in(conn: &mut SqliteConnection, commit: &Commit) -> Result<Committed> {
    const OP: &str = "commit a result in the caller's transaction";
    check::commit(commit)?;
    let committed = in_savepoint(conn, async |conn, now| {
        commit::commit_in(conn, now, commit).await
    });
    committed.await.map_err(|fault| fault.of(OP))
}

/// Runs `work` with the ledger's now so that it is done as a whole or not at all. By text and not
/// through the driver, which knows of no transaction that the caller began by text.
pub(super) async fn in_savepoint<T>(
    conn: &mut SqliteConnection,
    work: impl AsyncFnOnce(&mut SqliteConnection, Millis) -> Result<T, Fault>,
) -> Result<T, Fault> {
    sqlx::query(sql!("savepoint/begin"))
        .execute(&mut *conn)
        .await?;
    let done = match clock::now(&mut *conn).await {
        Ok(now) => work(&mut *conn, now).await,
        Err(fault) => Err(fault),
    };
    if done.is_err()
        && let Err(error) = sqlx::query(sql!("savepoint/undo"))
            .execute(&mut *conn)
            .await
    {
        // SQLite may have rolled back the whole transaction by itself (a full disk).
        tracing::debug!(%error, "the savepoint was not undone");
        return done;
    }
    let ended = sqlx::query(sql!("savepoint/end")).execute(conn).await;
    done.and_then(|done| ended.map(|_| done).map_err(Fault::from))
}
