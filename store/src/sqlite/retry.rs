//! An operator's retry of an execution that has ended without success.

use bellwether_schemas::ids;
use bellwether_schemas::state::State;
use bellwether_schemas::trace::TraceContext;
use sqlx::SqliteConnection;
use uuid::Uuid;

use super::clock::Millis;
use super::dispatch;
use super::errors::Fault;
use super::row::{Columns, trace_columns};
use crate::executions::Retried;

/// Repeats `id` as the fire `fire_id`.
pub(super) async fn retry(
    conn: &mut SqliteConnection,
    now: Millis,
    id: Uuid,
    fire_id: Uuid,
    trace: Option<&TraceContext>,
) -> Result<Retried, Fault> {
    let row = sqlx::query(sql!("retry/facts"))
        .bind(id)
        .fetch_optional(&mut *conn)
        .await?;
    let Some(row) = row else {
        return Ok(Retried::NotFound);
    };
    let execution_id = ids::execution(fire_id, row.number("shard_index")?);
    let taken = sqlx::query(sql!("retry/taken"))
        .bind(id)
        .bind(execution_id)
        .fetch_optional(&mut *conn)
        .await?;
    if let Some(taken) = &taken
        && taken.value("repeated")?
    {
        return Ok(Retried::Retried { execution_id });
    }
    let state: State = row.word("state")?;
    if !state.is_terminal() || state == State::Succeeded {
        return Ok(Retried::Refused(state));
    }
    let other = sqlx::query(sql!("retry/other"))
        .bind(row.value::<Uuid>("operation_id")?)
        .fetch_optional(&mut *conn)
        .await?;
    if let Some(other) = other {
        return Ok(Retried::AlreadyRetried {
            execution_id: other.value("id")?,
            state: other.word("state")?,
        });
    }
    if taken.is_some() {
        let taken = "the id given for the new fire is taken; give a fresh one";
        return Err(Fault::Refused(taken));
    }
    insert(conn, now, id, fire_id, execution_id, trace).await?;
    dispatch::dispatch(conn, now, execution_id).await?;
    Ok(Retried::Retried { execution_id })
}

async fn insert(
    conn: &mut SqliteConnection,
    now: Millis,
    id: Uuid,
    fire_id: Uuid,
    execution_id: Uuid,
    trace: Option<&TraceContext>,
) -> Result<(), Fault> {
    let trace = trace
        .cloned()
        .unwrap_or_else(|| TraceContext::root(fire_id));
    let (traceparent, tracestate) = trace_columns(Some(&trace));
    sqlx::query(sql!("retry/insert"))
        .bind(execution_id)
        .bind(fire_id)
        .bind(traceparent)
        .bind(tracestate)
        .bind(now)
        .bind(id)
        .execute(conn)
        .await?;
    Ok(())
}
