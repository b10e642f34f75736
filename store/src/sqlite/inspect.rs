//! What people and clients look at.

use bellwether_schemas::state::State;
use chrono::{DateTime, Utc};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::errors::Fault;
use super::row::Columns;
use super::{SqliteStore, commit, enqueue};
use crate::Result;
use crate::inspect::{
    AttemptView, ClaimState, ExecutionFilter, ExecutionStory, ExecutionView, FencedView, FireView,
    HeldFire, Inspect, NonFireView, QueueView, SessionView, ShardResult, VerdictView,
};

#[async_trait::async_trait]
impl Inspect for SqliteStore {
    async fn executions(&self, filter: &ExecutionFilter) -> Result<Vec<ExecutionView>> {
        let filter = filter.clone();
        self.writer
            .read("list executions", async move |conn, _| {
                let text = if filter.escalated {
                    sql!("inspect/escalated")
                } else {
                    sql!("inspect/list")
                };
                let rows = sqlx::query(text)
                    .bind(filter.state.map(State::as_str))
                    .bind(&filter.job)
                    .bind(&filter.queue)
                    .bind(filter.fire_id)
                    .bind(filter.limit)
                    .bind(filter.unrepeated)
                    .fetch_all(conn)
                    .await?;
                rows.iter().map(view).collect()
            })
            .await
    }

    async fn execution(&self, id: Uuid) -> Result<Option<ExecutionStory>> {
        self.writer
            .read("read an execution", async move |conn, _| {
                story(conn, id).await
            })
            .await
    }

    async fn fire_results(&self, fire_id: Uuid) -> Result<Vec<ShardResult>> {
        self.writer
            .read("read a fire's results", async move |conn, _| {
                let rows = sqlx::query(sql!("inspect/fire_results"))
                    .bind(fire_id)
                    .fetch_all(conn)
                    .await?;
                rows.iter().map(shard_result).collect()
            })
            .await
    }

    async fn execution_result(&self, id: Uuid) -> Result<Option<ShardResult>> {
        self.writer
            .read("read an execution's result", async move |conn, _| {
                let row = sqlx::query(sql!("inspect/result"))
                    .bind(id)
                    .fetch_optional(conn)
                    .await?;
                row.as_ref().map(shard_result).transpose()
            })
            .await
    }

    async fn execution_of_key(&self, job: &str, key: &str) -> Result<Option<Uuid>> {
        let (job, key) = (job.to_owned(), key.to_owned());
        self.writer
            .read("look up a key", async move |conn, _| {
                enqueue::find_key(conn, &job, &key).await
            })
            .await
    }

    async fn fires(&self, schedule_id: Uuid, limit: u32) -> Result<Vec<FireView>> {
        self.writer
            .read("list fires", async move |conn, _| {
                let rows = sqlx::query(sql!("inspect/fires"))
                    .bind(schedule_id)
                    .bind(limit)
                    .fetch_all(conn)
                    .await?;
                rows.iter().map(fire).collect()
            })
            .await
    }

    async fn non_fires(&self, schedule_id: Uuid, since: DateTime<Utc>) -> Result<Vec<NonFireView>> {
        self.writer
            .read("count what did not fire", async move |conn, _| {
                let rows = sqlx::query(sql!("inspect/non_fires"))
                    .bind(schedule_id)
                    .bind(since.timestamp_millis())
                    .fetch_all(conn)
                    .await?;
                rows.iter().map(non_fire).collect()
            })
            .await
    }

    async fn held_fire(&self, schedule_id: Uuid) -> Result<Option<HeldFire>> {
        self.writer
            .read("look for a held fire", async move |conn, _| {
                let row = sqlx::query(sql!("inspect/held_fire"))
                    .bind(schedule_id)
                    .fetch_optional(conn)
                    .await?;
                row.as_ref().map(held_fire).transpose()
            })
            .await
    }

    async fn sessions(&self, limit: u32) -> Result<Vec<SessionView>> {
        self.writer
            .read("list sessions", async move |conn, _| {
                let rows = sqlx::query(sql!("inspect/sessions"))
                    .bind(limit)
                    .fetch_all(conn)
                    .await?;
                rows.iter().map(session).collect()
            })
            .await
    }

    async fn queue_views(&self) -> Result<Vec<QueueView>> {
        self.writer
            .read("list the queues", async |conn, now| {
                let rows = sqlx::query(sql!("inspect/queues"))
                    .bind(now)
                    .fetch_all(conn)
                    .await?;
                rows.iter().map(queue).collect()
            })
            .await
    }

    async fn claim_state(&self, execution_id: Uuid, claim_id: Uuid) -> Result<ClaimState> {
        self.writer
            .read("read how a claim stands", async move |conn, _| {
                commit::standing(conn, execution_id, claim_id).await
            })
            .await
    }

    async fn state_counts(&self) -> Result<Vec<(State, u64)>> {
        self.writer
            .read("count executions", async |conn, _| {
                let rows = sqlx::query(sql!("inspect/state_counts"))
                    .fetch_all(conn)
                    .await?;
                rows.iter()
                    .map(|row| Ok((row.word("state")?, row.number("executions")?)))
                    .collect()
            })
            .await
    }
}

async fn story(conn: &mut SqliteConnection, id: Uuid) -> Result<Option<ExecutionStory>, Fault> {
    let Some(row) = sqlx::query(sql!("inspect/one"))
        .bind(id)
        .fetch_optional(&mut *conn)
        .await?
    else {
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
    Ok(Some(ExecutionStory {
        execution: view(&row)?,
        attempts: attempts.iter().map(attempt).collect::<Result<_, _>>()?,
        fenced: fenced.iter().map(fenced_result).collect::<Result<_, _>>()?,
        verdicts: verdicts.iter().map(verdict).collect::<Result<_, _>>()?,
        output: row.output()?,
        retried_as: row.value("retried_as")?,
        schedule: row.value("schedule")?,
        held_behind: row.value("held_behind")?,
        released_at: row.instant_opt("released_at")?,
        replaced_at: row.instant_opt("replaced_at")?,
        replaced_by: row.value("replaced_by")?,
        session_ended_at: row.instant_opt("session_ended_at")?,
    }))
}

fn view(row: &SqliteRow) -> Result<ExecutionView, Fault> {
    Ok(ExecutionView {
        id: row.value("id")?,
        fire_id: row.value("fire_id")?,
        operation_id: row.value("operation_id")?,
        schedule_id: row.value("schedule_id")?,
        schedule_version: row.value("schedule_version")?,
        trigger: row.word("trigger")?,
        job: row.value("job")?,
        queue: row.value("queue")?,
        priority: row.word("priority")?,
        key: row.value("key")?,
        shard_index: row.number("shard_index")?,
        shard_total: row.number("shard_total")?,
        state: row.word("state")?,
        reason: row.word_opt("reason")?,
        attempts_exhausted: row.value("attempts_exhausted")?,
        last_refusal: row.value("last_refusal")?,
        attempt: row.number("attempt")?,
        max_attempts: row.number("max_attempts")?,
        generation: row.value("generation")?,
        session_id: row.value("session_id")?,
        dispatch_no: row.number("dispatch_no")?,
        scheduled_at: row.instant("scheduled_at")?,
        created_at: row.instant("created_at")?,
        available_at: row.instant("available_at")?,
        dispatched_at: row.instant_opt("dispatched_at")?,
        claimed_at: row.instant_opt("claimed_at")?,
        started_at: row.instant_opt("started_at")?,
        attempt_ended_at: row.instant_opt("attempt_ended_at")?,
        deadline_at: row.instant_opt("deadline_at")?,
        start_deadline_at: row.instant("start_deadline_at")?,
        cancel_requested_at: row.instant_opt("cancel_requested_at")?,
        ended_at: row.instant_opt("ended_at")?,
        error: row.value("error")?,
        traceparent: row.value("traceparent")?,
        retry_of: row.value("retry_of")?,
        cancel_lost: row.value("cancel_lost")?,
        escalated_at: row.instant_opt("escalated_at")?,
        held: row.value("held")?,
        checkpoint_at: row.instant_opt("checkpoint_at")?,
        checkpoint_size: row.value("checkpoint_size")?,
    })
}

fn attempt(row: &SqliteRow) -> Result<AttemptView, Fault> {
    Ok(AttemptView {
        generation: row.value("generation")?,
        attempt: row.number("attempt")?,
        session_id: row.value("session_id")?,
        claimed_at: row.instant("claimed_at")?,
        started_at: row.instant_opt("started_at")?,
        ended_at: row.instant("ended_at")?,
        reason: row.word_opt("reason")?,
        error: row.value("error")?,
    })
}

fn fenced_result(row: &SqliteRow) -> Result<FencedView, Fault> {
    Ok(FencedView {
        generation: row.value("generation")?,
        outcome: row.value("outcome")?,
        recorded_at: row.instant("recorded_at")?,
    })
}

fn verdict(row: &SqliteRow) -> Result<VerdictView, Fault> {
    let probe_no: Option<u32> = row.value("probe_no")?;
    Ok(VerdictView {
        generation: row.value("generation")?,
        recorded_at: row.instant("recorded_at")?,
        said_by: row.value("said_by")?,
        probe_no,
        verdict: row.word("verdict")?,
        note: row.value("note")?,
        became: row.word("became")?,
    })
}

fn shard_result(row: &SqliteRow) -> Result<ShardResult, Fault> {
    Ok(ShardResult {
        execution_id: row.value("id")?,
        job: row.value("job")?,
        shard_index: row.number("shard_index")?,
        shard_total: row.number("shard_total")?,
        state: row.word("state")?,
        reason: row.word_opt("reason")?,
        output: row.output()?,
        error: row.value("error")?,
    })
}

fn fire(row: &SqliteRow) -> Result<FireView, Fault> {
    Ok(FireView {
        id: row.value("id")?,
        trigger: row.word("trigger")?,
        scheduled_at: row.instant("scheduled_at")?,
        planned_at: row.instant("planned_at")?,
        shard_total: row.number("shard_total")?,
        epoch: row.value("epoch")?,
        held_behind: row.value("held_behind")?,
        released_at: row.instant_opt("released_at")?,
        cancel_requested_at: row.instant_opt("cancel_requested_at")?,
    })
}

fn non_fire(row: &SqliteRow) -> Result<NonFireView, Fault> {
    Ok(NonFireView {
        reason: row.word("reason")?,
        instants: row.number("instants")?,
        ranges: row.number("ranges")?,
        until_at: row.instant("until_at")?,
    })
}

fn held_fire(row: &SqliteRow) -> Result<HeldFire, Fault> {
    Ok(HeldFire {
        id: row.value("id")?,
        scheduled_at: row.instant("scheduled_at")?,
        planned_at: row.instant("planned_at")?,
        held_behind: row.value("held_behind")?,
    })
}

fn session(row: &SqliteRow) -> Result<SessionView, Fault> {
    Ok(SessionView {
        id: row.value("id")?,
        name: row.value("name")?,
        host: row.value("host")?,
        pid: row.number("pid")?,
        version: row.value("version")?,
        queues: row.strings("queues")?,
        jobs: row.strings("jobs")?,
        max_concurrent: row.number("max_concurrent")?,
        running: row.number("running")?,
        free_since: row.instant_opt("free_since")?,
        leaked: row.number("leaked")?,
        draining_since: row.instant_opt("draining_since")?,
        state: row.word("state")?,
        opened_at: row.instant("opened_at")?,
        renewed_at: row.instant("renewed_at")?,
        expires_at: row.instant("expires_at")?,
        ended_at: row.instant_opt("ended_at")?,
    })
}

fn queue(row: &SqliteRow) -> Result<QueueView, Fault> {
    Ok(QueueView {
        name: row.value("name")?,
        created_at: row.instant("created_at")?,
        pending: row.number("pending")?,
        retrying: row.number("retrying")?,
        running: row.number("running")?,
        held: row.number("held")?,
        unknown: row.number("unknown")?,
        escalated: row.number("escalated")?,
        outbox: row.number("outbox")?,
        workers: row.number("workers")?,
        without_handler: row.number("without_handler")?,
        oldest_due_at: row.instant_opt("oldest_due_at")?,
    })
}
