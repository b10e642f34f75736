//! Enqueue and commit inside a user's own transaction: the one-shot exists, or the execution has
//! ended, if, and only if, what else the transaction wrote is there.

use sqlx::Connection;
use sqlx::postgres::PgConnection;

use super::executions::{self, Batch};
use super::{check, errors, finish, sql};
use crate::executions::{Commit, Committed, Enqueued, NewExecution};
use crate::grants::Role;
use crate::{Error, ErrorKind, Result};

const OP: &str = "enqueue a one-shot in the caller's transaction";

/// Enqueues a one-shot in the transaction that `conn` is in; `schema` is the ledger's. The
/// transaction's search path is as before afterwards. Other parts of the system see the
/// one-shot when the transaction commits.
///
/// The work is done in a savepoint: when it fails, the caller's transaction is as before and
/// may go on. Without a transaction of the caller it commits by itself. The transaction must
/// have been begun through sqlx (`begin`), not by a `BEGIN` of the caller's own text.
pub async fn enqueue_in(
    conn: &mut PgConnection,
    schema: &str,
    new: &NewExecution,
) -> Result<Enqueued> {
    check::schema(schema)?;
    let one = std::slice::from_ref(new);
    let batch = Batch::of(one)?;
    let work = async {
        let mut savepoint = conn.begin().await?;
        let enqueued = enqueue(&mut savepoint, schema, &batch).await;
        finish(savepoint, enqueued).await
    };
    work.await
        .map_err(|error| errors::of_role(OP, Some(Role::Client), error))?
        .ok_or_else(|| Error::new(OP, ErrorKind::Conflict, "its key is being forgotten"))
}

/// Commits a result in the transaction that `conn` is in, as [`enqueue_in`] enqueues. A result
/// that the fence refuses changes nothing and is not kept for audit. Until the transaction ends
/// it holds the execution's row: a sweep passes it by, a request to cancel waits.
pub async fn commit_in(
    conn: &mut PgConnection,
    schema: &str,
    commit: &Commit,
) -> Result<Committed> {
    const OP: &str = "commit a result in the caller's transaction";
    check::schema(schema)?;
    check::commit(commit)?;
    let work = async {
        let mut savepoint = conn.begin().await?;
        let committed = async {
            let before = enter(&mut savepoint, schema).await?;
            let committed = executions::commit_in(&mut savepoint, commit).await?;
            leave(&mut savepoint, before).await?;
            Ok(committed)
        };
        let committed = committed.await;
        finish(savepoint, committed).await
    };
    work.await
        .map_err(|error| errors::of_role(OP, Some(Role::Worker), error))?
        .ok_or_else(|| {
            let raced = "a claim came while its result was committed";
            Error::new(OP, ErrorKind::Conflict, raced)
        })
}

async fn enqueue(
    conn: &mut PgConnection,
    schema: &str,
    batch: &Batch<'_>,
) -> sqlx::Result<Option<Enqueued>> {
    let before = enter(conn, schema).await?;
    let inserted = batch.insert(conn).await?.into_iter().collect();
    let answers = batch.answer(conn, &inserted).await?;
    leave(conn, before).await?;
    Ok(answers.and_then(|answers| answers.into_iter().next()))
}

/// Looks up names in `schema` only; answers the search path as it was.
pub(super) async fn enter(conn: &mut PgConnection, schema: &str) -> sqlx::Result<String> {
    sqlx::query_scalar(sql!("executions/enter_schema"))
        .bind(schema)
        .fetch_one(conn)
        .await
}

pub(super) async fn leave(conn: &mut PgConnection, before: String) -> sqlx::Result<()> {
    sqlx::query(sql!("executions/leave_schema"))
        .bind(before)
        .execute(conn)
        .await
        .map(drop)
}
