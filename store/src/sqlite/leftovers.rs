//! What fires leave behind, kind by kind: each call one transaction.

use sqlx::SqliteConnection;
use uuid::Uuid;

use super::clock::Millis;
use super::errors::Fault;
use super::retention::{DAY_MS, delete, first_id, hex};
use super::row::Columns;
use crate::retention::{Forgotten, Leftover, NAMED_MAX, Unnamed, naming_max};
use crate::sweeps::Lap;

/// What is old, and how much of it one call takes.
pub(super) struct Old {
    pub(super) now: Millis,
    pub(super) before: Millis,
    pub(super) limit: u32,
}

/// Deletes what is old of one kind.
pub(super) async fn forget(
    conn: &mut SqliteConnection,
    kind: Leftover,
    old: &Old,
    lap: &Lap<Unnamed>,
) -> Result<Forgotten, Fault> {
    let full = |rows: u64| rows >= u64::from(old.limit);
    let mut gone = Forgotten::default();
    match kind {
        Leftover::Schedules => {
            gone = schedules(conn, old).await?;
            gone.more = full(gone.schedules);
        }
        Leftover::RefusedResults => {
            let refused = sqlx::query(sql!("retention/refused"))
                .bind(old.before)
                .bind(first_id(old.before))
                .bind(old.limit)
                .bind(first_id(old.now + DAY_MS))
                .execute(conn);
            gone.refused_results = refused.await?.rows_affected();
            gone.more = full(gone.refused_results);
        }
        Leftover::DeadLetters => {
            let dead = sqlx::query(sql!("retention/dead"))
                .bind(old.before)
                .bind(old.limit)
                .execute(conn);
            gone.dead_letters = dead.await?.rows_affected();
            gone.more = full(gone.dead_letters);
        }
        Leftover::Sessions => {
            let mut look = lap.after();
            gone.sessions = sessions(conn, &mut look, old).await?;
            let unfinished = look.unfinished();
            gone.more = unfinished.is_some();
            lap.looked_up_to(unfinished);
        }
        Leftover::Terms => {
            let terms = sqlx::query(sql!("retention/terms"))
                .bind(old.before)
                .bind(first_id(old.before))
                .bind(old.limit)
                .bind(NAMED_MAX)
                .execute(conn);
            gone.terms = terms.await?.rows_affected();
            gone.more = full(gone.terms);
        }
    }
    Ok(gone)
}

async fn schedules(conn: &mut SqliteConnection, old: &Old) -> Result<Forgotten, Fault> {
    let tombstones = sqlx::query(sql!("retention/tombstones"))
        .bind(old.before)
        .bind(old.limit)
        .fetch_all(&mut *conn)
        .await?;
    if tombstones.is_empty() {
        return Ok(Forgotten::default());
    }
    let ids = tombstones
        .iter()
        .map(|row| Ok(row.value::<Uuid>("id")?))
        .collect::<Result<Vec<_>, Fault>>()?;
    let ids = hex(ids.iter());
    Ok(Forgotten {
        non_fires: delete(conn, sql!("retention/ranges_of"), &ids).await?,
        timings: delete(conn, sql!("retention/timings_of"), &ids).await?,
        schedules: delete(conn, sql!("retention/schedules"), &ids).await?,
        ..Forgotten::default()
    })
}

/// Goes on with the look for what names some sessions, or begins with the next ones; deletes those
/// that nothing names.
async fn sessions(
    conn: &mut SqliteConnection,
    look: &mut Unnamed,
    old: &Old,
) -> Result<u64, Fault> {
    if look.sessions.is_empty() {
        let (ended_at, id) = look.behind.unwrap_or_default();
        let rows = sqlx::query(sql!("retention/sessions_ended"))
            .bind(old.before - 2 * DAY_MS)
            .bind(old.limit)
            .bind(ended_at.timestamp_millis())
            .bind(id)
            .fetch_all(&mut *conn)
            .await?;
        let ended = rows
            .iter()
            .map(|row| Ok((row.instant("ended_at")?, row.value("id")?)))
            .collect::<Result<Vec<_>, Fault>>()?;
        *look = Unnamed::of(&ended, old.limit);
        if ended.is_empty() {
            return Ok(0);
        }
    }
    let (young, ahead) = (first_id(old.before - DAY_MS), first_id(old.now + DAY_MS));
    let most = naming_max(old.limit);
    let last = sqlx::query_scalar(sql!("retention/sessions_near"))
        .bind(look.after)
        .bind(young)
        .bind(most)
        .bind(ahead)
        .fetch_optional(&mut *conn)
        .await?;
    let unnamed = sqlx::query_scalar(sql!("retention/sessions_unnamed"))
        .bind(look.after)
        .bind(young)
        .bind(most)
        .bind(ahead)
        .bind(hex(look.sessions.iter()))
        .fetch_all(&mut *conn)
        .await?;
    let unnamed = look.looked(unnamed, last);
    if unnamed.is_empty() {
        return Ok(0);
    }
    delete(conn, sql!("retention/sessions"), &hex(unnamed.iter())).await
}
