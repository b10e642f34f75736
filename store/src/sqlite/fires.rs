//! Fires of schedules and their executions: what planning and a manual trigger insert.

use bellwether_schemas::ids;
use bellwether_schemas::state::Trigger;
use bellwether_schemas::trace::TraceContext;
use sqlx::SqliteConnection;
use uuid::Uuid;

use super::clock::Millis;
use super::dispatch;
use super::errors::Fault;
use super::row::trace_columns;
use crate::leadership::Term;

/// A fire of a schedule, to be inserted.
pub(super) struct NewFire<'a> {
    pub(super) id: Uuid,
    pub(super) schedule_id: Uuid,
    /// None = the schedule's kind.
    pub(super) trigger: Option<Trigger>,
    pub(super) scheduled_at: Millis,
    pub(super) nominal_local: Option<&'a str>,
    pub(super) fold: Option<&'a str>,
    pub(super) trace: &'a TraceContext,
    /// The term that plans it; none = a manual trigger.
    pub(super) term: Option<&'a Term>,
    /// The fire that it waits for; none = it is dispatched at once.
    pub(super) held_behind: Option<Uuid>,
}

/// Inserts the fire; false = its id was there already and nothing was changed.
pub(super) async fn insert_fire(
    conn: &mut SqliteConnection,
    now: Millis,
    fire: &NewFire<'_>,
) -> Result<bool, Fault> {
    let (traceparent, tracestate) = trace_columns(Some(fire.trace));
    let inserted = sqlx::query(sql!("fires/insert_fire"))
        .bind(fire.id)
        .bind(fire.trigger.map(Trigger::as_str))
        .bind(fire.scheduled_at)
        .bind(fire.nominal_local)
        .bind(fire.fold)
        .bind(traceparent)
        .bind(tracestate)
        .bind(fire.term.map(|term| term.epoch))
        .bind(fire.term.map(|term| term.term_id))
        .bind(now)
        .bind(fire.schedule_id)
        .bind(fire.held_behind)
        .execute(conn)
        .await?;
    Ok(inserted.rows_affected() == 1)
}

/// Inserts the executions of a fire just inserted, each dispatched unless it is held; says how
/// many.
pub(super) async fn insert_executions(
    conn: &mut SqliteConnection,
    now: Millis,
    fire: &NewFire<'_>,
    shard_total: u32,
) -> Result<u64, Fault> {
    let mut executions = 0;
    for shard_index in 0..shard_total {
        let id = ids::execution(fire.id, shard_index);
        let inserted = sqlx::query(sql!("fires/insert_execution"))
            .bind(id)
            .bind(shard_index)
            .bind(now)
            .bind(fire.id)
            .execute(&mut *conn)
            .await?;
        if inserted.rows_affected() == 1 {
            if fire.held_behind.is_none() {
                dispatch::put(conn, now, id).await?;
            }
            executions += 1;
        }
    }
    Ok(executions)
}
