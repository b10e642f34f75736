//! Fires that wait for others, and fires that others replace: what the sweeps do about them.

use sqlx::SqliteConnection;
use uuid::Uuid;

use super::clock::Millis;
use super::errors::Fault;
use super::row::Columns;
use super::{cancel, dispatch};
use crate::executions::CancelRequested;
use crate::sweeps::{FiresSwept, Lap, held_max};

/// Lets go what is held behind nothing any more.
pub(super) async fn release(
    conn: &mut SqliteConnection,
    now: Millis,
    limit: u32,
    lap: &Lap,
) -> Result<FiresSwept, Fault> {
    let mut swept = FiresSwept::default();
    let fires = sqlx::query(sql!("sweeps/held_fires"))
        .bind(limit)
        .bind(lap.after())
        .bind(held_max(limit))
        .fetch_all(&mut *conn)
        .await?;
    let mut last = None;
    for fire in &fires {
        let Some(fire) = fire.value::<Option<Uuid>>("id")? else {
            last = fire.value("last")?;
            continue;
        };
        sqlx::query(sql!("sweeps/release_fire"))
            .bind(fire)
            .bind(now)
            .execute(&mut *conn)
            .await?;
        let released = sqlx::query(sql!("sweeps/release"))
            .bind(fire)
            .bind(now)
            .fetch_all(&mut *conn)
            .await?;
        for row in &released {
            dispatch::dispatch(conn, now, row.value("id")?).await?;
            swept.executions += 1;
        }
        swept.fires += 1;
    }
    lap.looked_up_to(last);
    Ok(swept)
}

/// Hands the request to cancel on to the executions of replaced fires.
pub(super) async fn cancel_replaced(
    conn: &mut SqliteConnection,
    now: Millis,
    limit: u32,
) -> Result<FiresSwept, Fault> {
    let mut swept = FiresSwept::default();
    let fires = sqlx::query(sql!("sweeps/fire_cancels"))
        .bind(limit)
        .fetch_all(&mut *conn)
        .await?;
    let mut left = u64::from(limit);
    for fire in &fires {
        let fire: Uuid = fire.value("id")?;
        // One more than fits tells whether the fire is done with.
        let asked = sqlx::query(sql!("sweeps/unasked"))
            .bind(fire)
            .bind(i64::try_from(left).unwrap_or(i64::MAX) + 1)
            .fetch_all(&mut *conn)
            .await?;
        for row in &asked {
            if left == 0 {
                return Ok(swept);
            }
            let requested = cancel::of_replaced(conn, now, row.value("id")?).await?;
            swept.ended += u64::from(requested == CancelRequested::Cancelled);
            swept.executions += 1;
            left -= 1;
        }
        sqlx::query(sql!("sweeps/cancel_applied"))
            .bind(fire)
            .bind(now)
            .execute(&mut *conn)
            .await?;
        swept.fires += 1;
    }
    Ok(swept)
}
