//! Enqueue inside a user's own transaction: the one-shot exists if, and only if, what else the
//! transaction wrote does.

use sqlx::Connection;
use sqlx::postgres::PgConnection;

use super::executions::Batch;
use super::{check, errors, finish, sql};
use crate::executions::{Enqueued, NewExecution};
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
        .map_err(|error| errors::error(OP, error))?
        .ok_or_else(|| Error::new(OP, ErrorKind::Conflict, "its key is being forgotten"))
}

async fn enqueue(
    conn: &mut PgConnection,
    schema: &str,
    batch: &Batch<'_>,
) -> sqlx::Result<Option<Enqueued>> {
    let before: String = sqlx::query_scalar(sql!("executions/enter_schema"))
        .bind(schema)
        .fetch_one(&mut *conn)
        .await?;
    let inserted = batch.insert(conn).await?.into_iter().collect();
    let answers = batch.answer(conn, &inserted).await?;
    sqlx::query(sql!("executions/leave_schema"))
        .bind(before)
        .execute(conn)
        .await?;
    Ok(answers.and_then(|answers| answers.into_iter().next()))
}
