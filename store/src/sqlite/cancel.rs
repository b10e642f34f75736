//! Requests to cancel.

use bellwether_schemas::state::State;
use sqlx::SqliteConnection;
use uuid::Uuid;

use super::clock::Millis;
use super::errors::Fault;
use super::row::Columns;
use crate::executions::CancelRequested;

/// Requests that one execution stops, as an operator: what is unknown is given up.
pub(super) async fn request(
    conn: &mut SqliteConnection,
    now: Millis,
    id: Uuid,
) -> Result<CancelRequested, Fault> {
    of(conn, now, id, |state| state != State::Running).await
}

/// Requests that one execution of a replaced fire stops: what is unknown may still be under way, and is
/// asked for on.
pub(super) async fn of_replaced(
    conn: &mut SqliteConnection,
    now: Millis,
    id: Uuid,
) -> Result<CancelRequested, Fault> {
    of(conn, now, id, State::is_waiting).await
}

async fn of(
    conn: &mut SqliteConnection,
    now: Millis,
    id: Uuid,
    ends: impl Fn(State) -> bool,
) -> Result<CancelRequested, Fault> {
    let row = sqlx::query(sql!("cancel/facts"))
        .bind(id)
        .fetch_optional(&mut *conn)
        .await?;
    let Some(row) = row else {
        return Ok(CancelRequested::NotFound);
    };
    let state: State = row.word("state")?;
    if state.is_terminal() {
        return Ok(CancelRequested::Ended(state));
    }
    let ends = ends(state);
    sqlx::query(sql!("cancel/request"))
        .bind(id)
        .bind(now)
        .bind(ends)
        .execute(conn)
        .await?;
    Ok(if ends {
        CancelRequested::Cancelled
    } else {
        CancelRequested::Requested {
            state,
            told: row.value("told")?,
        }
    })
}
