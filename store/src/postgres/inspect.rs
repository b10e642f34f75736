//! What people and clients look at.

use bellwether_schemas::state::State;
use chrono::{DateTime, Utc};
use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};
use uuid::Uuid;

use super::{PgStore, call, errors, row, sql};
use crate::Result;
use crate::inspect::{
    AttemptView, ClaimState, ExecutionFilter, ExecutionStory, ExecutionView, FencedView, FireView,
    HeldFire, Inspect, NonFireView, QueueView, SessionView, ShardResult, VerdictView,
};

#[async_trait::async_trait]
impl Inspect for PgStore {
    async fn executions(&self, filter: &ExecutionFilter) -> Result<Vec<ExecutionView>> {
        call!(self, "list executions", |conn| {
            let text = if filter.escalated {
                sql!("inspect/escalated")
            } else {
                sql!("inspect/executions")
            };
            let rows = sqlx::query(text)
                .bind(filter.state.map(State::as_str))
                .bind(&filter.job)
                .bind(&filter.queue)
                .bind(filter.fire_id)
                .bind(i64::from(filter.limit))
                .bind(filter.unrepeated)
                .fetch_all(conn)
                .await?;
            rows.iter().map(execution_view).collect()
        })
    }

    async fn execution(&self, id: Uuid) -> Result<Option<ExecutionStory>> {
        call!(self, "read an execution", |conn| story(conn, id).await)
    }

    async fn fire_results(&self, fire_id: Uuid) -> Result<Vec<ShardResult>> {
        call!(self, "read the results of a fire", |conn| {
            let rows = sqlx::query(sql!("inspect/fire_results"))
                .bind(fire_id)
                .fetch_all(conn)
                .await?;
            rows.iter().map(shard_result).collect()
        })
    }

    async fn execution_result(&self, id: Uuid) -> Result<Option<ShardResult>> {
        call!(self, "read the result of an execution", |conn| {
            let row = sqlx::query(sql!("inspect/execution_result"))
                .bind(id)
                .fetch_optional(conn)
                .await?;
            row.as_ref().map(shard_result).transpose()
        })
    }

    async fn execution_of_key(&self, job: &str, key: &str) -> Result<Option<Uuid>> {
        // No stored key has a NUL, and no query may.
        if job.contains('\0') || key.contains('\0') {
            return Ok(None);
        }
        call!(self, "look up a key", |conn| {
            sqlx::query_scalar(sql!("inspect/execution_of_key"))
                .bind(job)
                .bind(key)
                .fetch_optional(conn)
                .await
        })
    }

    async fn fires(&self, schedule_id: Uuid, limit: u32) -> Result<Vec<FireView>> {
        call!(self, "list the fires of a schedule", |conn| {
            let rows = sqlx::query(sql!("inspect/fires"))
                .bind(schedule_id)
                .bind(i64::from(limit))
                .fetch_all(conn)
                .await?;
            rows.iter().map(fire_view).collect()
        })
    }

    async fn non_fires(&self, schedule_id: Uuid, since: DateTime<Utc>) -> Result<Vec<NonFireView>> {
        call!(self, "count what did not fire", |conn| {
            let rows = sqlx::query(sql!("inspect/non_fires"))
                .bind(schedule_id)
                .bind(since)
                .fetch_all(conn)
                .await?;
            rows.iter().map(non_fire).collect()
        })
    }

    async fn held_fire(&self, schedule_id: Uuid) -> Result<Option<HeldFire>> {
        call!(self, "look for a held fire", |conn| {
            let row = sqlx::query(sql!("inspect/held_fire"))
                .bind(schedule_id)
                .fetch_optional(conn)
                .await?;
            row.as_ref().map(held_fire).transpose()
        })
    }

    async fn sessions(&self, limit: u32) -> Result<Vec<SessionView>> {
        call!(self, "list the sessions", |conn| {
            let rows = sqlx::query(sql!("inspect/sessions"))
                .bind(i64::from(limit))
                .fetch_all(conn)
                .await?;
            rows.iter().map(session_view).collect()
        })
    }

    async fn queue_views(&self) -> Result<Vec<QueueView>> {
        call!(self, "list the queues", |conn| {
            let rows = sqlx::query(sql!("inspect/queues")).fetch_all(conn).await?;
            rows.iter().map(queue_view).collect()
        })
    }

    async fn claim_state(&self, execution_id: Uuid, claim_id: Uuid) -> Result<ClaimState> {
        call!(self, "read how a claim stands", |conn| {
            let row = sqlx::query(sql!("executions/standing"))
                .bind(execution_id)
                .bind(claim_id)
                .bind(None::<i64>)
                .fetch_optional(conn)
                .await?;
            row.map_or(Ok(ClaimState::Gone), |row| claim_state(&row))
        })
    }

    async fn state_counts(&self) -> Result<Vec<(State, u64)>> {
        call!(self, "count the executions", |conn| {
            let rows = sqlx::query(sql!("inspect/state_counts"))
                .fetch_all(conn)
                .await?;
            rows.iter()
                .map(|row| Ok((row::word(row, "state")?, row::total(row, "executions")?)))
                .collect()
        })
    }
}

fn claim_state(row: &PgRow) -> sqlx::Result<ClaimState> {
    let state: State = row::word(row, "state")?;
    let by_commit = row.try_get::<Option<&str>, _>("left_by")? == Some("commit");
    let late = row.try_get("late")?;
    let made = if row.try_get("went_on")? {
        State::Retrying
    } else {
        state
    };
    Ok(match (row.try_get("own")?, row.try_get("superseded")?) {
        (true, _) if state == State::Running => ClaimState::Running,
        (true, _) if by_commit => ClaimState::ended(made, late),
        // What a commit put into history was retrying.
        (_, true) => ClaimState::ended(State::Retrying, late),
        _ => ClaimState::Fenced(state),
    })
}

async fn story(conn: &mut PgConnection, id: Uuid) -> sqlx::Result<Option<ExecutionStory>> {
    let row = sqlx::query(sql!("inspect/execution"))
        .bind(id)
        .fetch_optional(&mut *conn)
        .await?;
    let Some(row) = row else {
        return Ok(None);
    };
    let attempts = sqlx::query(sql!("inspect/attempts"))
        .bind(id)
        .fetch_all(&mut *conn)
        .await?;
    let fenced = sqlx::query(sql!("inspect/fenced"))
        .bind(id)
        .fetch_all(&mut *conn)
        .await?;
    let verdicts = sqlx::query(sql!("inspect/verdicts"))
        .bind(id)
        .fetch_all(conn)
        .await?;
    let execution = execution_view(&row)?;
    Ok(Some(ExecutionStory {
        // What was superseded after the row was read belongs to a later look.
        attempts: attempts
            .iter()
            .map(attempt_view)
            .filter(|attempt| {
                attempt
                    .as_ref()
                    .map_or(true, |past| past.generation < execution.generation)
            })
            .collect::<sqlx::Result<_>>()?,
        fenced: fenced
            .iter()
            .map(fenced_view)
            .collect::<sqlx::Result<_>>()?,
        verdicts: verdicts
            .iter()
            .map(verdict_view)
            .collect::<sqlx::Result<_>>()?,
        output: row::payload(&row, "output", "output_type")?,
        retried_as: row.try_get("retried_as")?,
        schedule: row.try_get("schedule")?,
        held_behind: row.try_get("held_behind")?,
        released_at: row.try_get("released_at")?,
        replaced_at: row.try_get("replaced_at")?,
        replaced_by: row.try_get("replaced_by")?,
        session_ended_at: row.try_get("session_ended_at")?,
        execution,
    }))
}

fn execution_view(row: &PgRow) -> sqlx::Result<ExecutionView> {
    Ok(ExecutionView {
        id: row.try_get("id")?,
        fire_id: row.try_get("fire_id")?,
        operation_id: row.try_get("operation_id")?,
        schedule_id: row.try_get("schedule_id")?,
        schedule_version: row.try_get("schedule_version")?,
        trigger: row::word(row, "trigger")?,
        job: row.try_get("job")?,
        queue: row.try_get("queue")?,
        priority: row::word(row, "priority")?,
        key: row.try_get("key")?,
        shard_index: row::count(row, "shard_index")?,
        shard_total: row::count(row, "shard_total")?,
        state: row::word(row, "state")?,
        reason: row::word_opt(row, "reason")?,
        attempts_exhausted: row.try_get("attempts_exhausted")?,
        last_refusal: row.try_get("last_refusal")?,
        attempt: row::count(row, "attempt")?,
        max_attempts: row::count(row, "max_attempts")?,
        generation: row.try_get("generation")?,
        session_id: row.try_get("session_id")?,
        dispatch_no: row::count(row, "dispatch_no")?,
        scheduled_at: row.try_get("scheduled_at")?,
        created_at: row.try_get("created_at")?,
        available_at: row.try_get("available_at")?,
        dispatched_at: row.try_get("dispatched_at")?,
        claimed_at: row.try_get("claimed_at")?,
        started_at: row.try_get("started_at")?,
        attempt_ended_at: row.try_get("attempt_ended_at")?,
        deadline_at: row.try_get("deadline_at")?,
        start_deadline_at: row.try_get("start_deadline_at")?,
        cancel_requested_at: row.try_get("cancel_requested_at")?,
        ended_at: row.try_get("ended_at")?,
        error: row.try_get("error")?,
        traceparent: row.try_get("traceparent")?,
        retry_of: row.try_get("retry_of")?,
        cancel_lost: row.try_get("cancel_lost")?,
        escalated_at: row.try_get("escalated_at")?,
        held: row.try_get("held")?,
        checkpoint_at: row.try_get("checkpoint_at")?,
        checkpoint_size: row
            .try_get::<Option<i32>, _>("checkpoint_size")?
            .and_then(|size| u32::try_from(size).ok()),
    })
}

fn attempt_view(row: &PgRow) -> sqlx::Result<AttemptView> {
    Ok(AttemptView {
        generation: row.try_get("generation")?,
        attempt: row::count(row, "attempt")?,
        session_id: row.try_get("session_id")?,
        claimed_at: row.try_get("claimed_at")?,
        started_at: row.try_get("started_at")?,
        ended_at: row.try_get("ended_at")?,
        reason: row::word_opt(row, "reason")?,
        error: row.try_get("error")?,
    })
}

fn fenced_view(row: &PgRow) -> sqlx::Result<FencedView> {
    Ok(FencedView {
        generation: row.try_get("generation")?,
        outcome: row.try_get("outcome")?,
        recorded_at: row.try_get("recorded_at")?,
    })
}

fn verdict_view(row: &PgRow) -> sqlx::Result<VerdictView> {
    let probe_no: Option<i32> = row.try_get("probe_no")?;
    Ok(VerdictView {
        generation: row.try_get("generation")?,
        recorded_at: row.try_get("recorded_at")?,
        said_by: row.try_get("said_by")?,
        probe_no: probe_no.map(|_| row::count(row, "probe_no")).transpose()?,
        verdict: row::word(row, "verdict")?,
        note: row.try_get("note")?,
        became: row::word(row, "became")?,
    })
}

fn shard_result(row: &PgRow) -> sqlx::Result<ShardResult> {
    Ok(ShardResult {
        execution_id: row.try_get("id")?,
        job: row.try_get("job")?,
        shard_index: row::count(row, "shard_index")?,
        shard_total: row::count(row, "shard_total")?,
        state: row::word(row, "state")?,
        reason: row::word_opt(row, "reason")?,
        output: row::payload(row, "output", "output_type")?,
        error: row.try_get("error")?,
    })
}

fn fire_view(row: &PgRow) -> sqlx::Result<FireView> {
    Ok(FireView {
        id: row.try_get("id")?,
        trigger: row::word(row, "trigger")?,
        scheduled_at: row.try_get("scheduled_at")?,
        planned_at: row.try_get("planned_at")?,
        shard_total: row::count(row, "shard_total")?,
        epoch: row.try_get("epoch")?,
        held_behind: row.try_get("held_behind")?,
        released_at: row.try_get("released_at")?,
        cancel_requested_at: row.try_get("cancel_requested_at")?,
    })
}

fn non_fire(row: &PgRow) -> sqlx::Result<NonFireView> {
    Ok(NonFireView {
        reason: row::word(row, "reason")?,
        instants: row::total(row, "instants")?,
        ranges: row::total(row, "ranges")?,
        until_at: row.try_get("until_at")?,
    })
}

fn held_fire(row: &PgRow) -> sqlx::Result<HeldFire> {
    Ok(HeldFire {
        id: row.try_get("id")?,
        scheduled_at: row.try_get("scheduled_at")?,
        planned_at: row.try_get("planned_at")?,
        held_behind: row.try_get("held_behind")?,
    })
}

fn session_view(row: &PgRow) -> sqlx::Result<SessionView> {
    let names = |column| {
        let json: &str = row.try_get(column)?;
        serde_json::from_str(json).map_err(|error| errors::corrupt(column, error))
    };
    Ok(SessionView {
        id: row.try_get("id")?,
        name: row.try_get("name")?,
        host: row.try_get("host")?,
        pid: row::count(row, "pid")?,
        version: row.try_get("version")?,
        queues: names("queues")?,
        jobs: names("jobs")?,
        max_concurrent: row::count(row, "max_concurrent")?,
        running: u32::try_from(row::total(row, "running")?)
            .map_err(|error| errors::corrupt("running", error))?,
        free_since: row.try_get("free_since")?,
        leaked: row::count(row, "leaked")?,
        draining_since: row.try_get("draining_since")?,
        state: row::word(row, "state")?,
        opened_at: row.try_get("opened_at")?,
        renewed_at: row.try_get("renewed_at")?,
        expires_at: row.try_get("expires_at")?,
        ended_at: row.try_get("ended_at")?,
    })
}

fn queue_view(row: &PgRow) -> sqlx::Result<QueueView> {
    Ok(QueueView {
        name: row.try_get("name")?,
        created_at: row.try_get("created_at")?,
        pending: row::total(row, "pending")?,
        retrying: row::total(row, "retrying")?,
        running: row::total(row, "running")?,
        held: row::total(row, "held")?,
        unknown: row::total(row, "unknown")?,
        escalated: row::total(row, "escalated")?,
        outbox: row::total(row, "outbox")?,
        workers: row::total(row, "workers")?,
        without_handler: row::total(row, "without_handler")?,
        oldest_due_at: row.try_get("oldest_due_at")?,
    })
}
