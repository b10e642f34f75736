//! An operator's retry of an execution that has ended without success.

use bellwether_schemas::ids;
use bellwether_schemas::state::State;
use bellwether_schemas::trace::TraceContext;
use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};
use uuid::Uuid;

use super::enqueue::RACES_MAX;
use crate::executions::Retried;
use crate::postgres::{PgStore, call, row, sql};
use crate::{Error, ErrorKind, Result};

/// What one try to retry came to.
pub(in crate::postgres) enum Retry {
    Answer(Retried),
    /// The id of the new execution belongs to something else.
    Taken,
    /// What stood in the way has gone since.
    Raced,
}

impl Retry {
    /// The answer; none = try again.
    pub(in crate::postgres) fn settle(self, op: &'static str) -> Result<Option<Retried>> {
        match self {
            Self::Answer(retried) => Ok(Some(retried)),
            Self::Raced => Ok(None),
            Self::Taken => Err(Error::new(
                op,
                ErrorKind::Invalid,
                "the id given for the new fire is taken; give a fresh one",
            )),
        }
    }
}

impl PgStore {
    pub(super) async fn retry_one(
        &self,
        id: Uuid,
        fire_id: Uuid,
        trace: Option<&TraceContext>,
    ) -> Result<Retried> {
        const OP: &str = "retry an execution";
        let trace = trace
            .cloned()
            .unwrap_or_else(|| TraceContext::root(fire_id));
        for _ in 0..RACES_MAX {
            let retry = call!(self, OP, |conn| retry(conn, id, fire_id, &trace, None)
                .await)?;
            if let Some(retried) = retry.settle(OP)? {
                return Ok(retried);
            }
        }
        Err(Error::new(
            OP,
            ErrorKind::Conflict,
            "its retries keep coming and going",
        ))
    }
}

/// Repeats `id`; in the same statement `letter`, if that is why, is marked as replayed. A letter
/// that is resolved already lets nothing happen.
pub(in crate::postgres) async fn retry(
    conn: &mut PgConnection,
    id: Uuid,
    fire_id: Uuid,
    trace: &TraceContext,
    letter: Option<Uuid>,
) -> sqlx::Result<Retry> {
    // The new id derives from the shard, which never changes.
    let shard = sqlx::query(sql!("executions/shard"))
        .bind(id)
        .fetch_optional(&mut *conn)
        .await?;
    let Some(shard) = shard else {
        return Ok(Retry::Answer(Retried::NotFound));
    };
    let execution_id = ids::execution(fire_id, row::count(&shard, "shard_index")?);
    let inserted = sqlx::query(sql!("executions/retry"))
        .bind(id)
        .bind(fire_id)
        .bind(execution_id)
        .bind(&trace.traceparent)
        .bind(&trace.tracestate)
        .bind(letter)
        .fetch_optional(&mut *conn)
        .await?;
    if inserted.is_some() {
        return Ok(Retry::Answer(Retried::Retried { execution_id }));
    }
    let standing = sqlx::query(sql!("executions/retry_standing"))
        .bind(id)
        .bind(execution_id)
        .fetch_one(conn)
        .await?;
    why_not(&standing, execution_id)
}

fn why_not(row: &PgRow, execution_id: Uuid) -> sqlx::Result<Retry> {
    if row.try_get("repeated")? {
        return Ok(Retry::Answer(Retried::Retried { execution_id }));
    }
    let Some(state) = row::word_opt::<State>(row, "state")? else {
        return Ok(Retry::Answer(Retried::NotFound));
    };
    if !state.is_terminal() || state == State::Succeeded {
        return Ok(Retry::Answer(Retried::Refused(state)));
    }
    if let Some(execution_id) = row.try_get::<Option<Uuid>, _>("other_id")? {
        return Ok(Retry::Answer(Retried::AlreadyRetried {
            execution_id,
            state: row::word(row, "other_state")?,
        }));
    }
    Ok(if row.try_get("taken")? {
        Retry::Taken
    } else {
        Retry::Raced
    })
}
