//! The outbox, as a relay sees it.

use std::time::Duration;

use bellwether_schemas::state::DeadReason;
use bellwether_schemas::subject::WIRE_VERSION;
use bellwether_schemas::wire::{Dispatch, KIND_DISPATCH};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::clock::Millis;
use super::errors::Fault;
use super::row::{Columns, between, millis};
use super::{SqliteStore, dead, dispatch};
use crate::outbox::{self, Backlog, Lane, Outbox, OutboxRow, Overdue, Redispatched, Wait};
use crate::{Error, ErrorKind, Result};

/// How often a claim looks again after it met rows that need no message any more.
const ROUNDS_MAX: u32 = 10;

#[async_trait::async_trait]
impl Outbox for SqliteStore {
    async fn claim_outbox(
        &self,
        limit: u32,
        lease: Duration,
        paused: &[Lane],
    ) -> Result<Vec<OutboxRow>> {
        const OP: &str = "claim outbox rows";
        let paused: Vec<_> = paused
            .iter()
            .map(|lane| (&lane.queue, lane.priority.as_str()))
            .collect();
        let paused = serde_json::to_string(&paused)
            .map_err(|error| Error::new(OP, ErrorKind::Invalid, error))?;
        self.writer
            .write(OP, async move |conn, now| {
                claim(conn, now, limit as usize, now + millis(lease), &paused).await
            })
            .await
    }

    async fn mark_published(&self, ids: &[i64]) -> Result<()> {
        self.each("delete published outbox rows", sql!("outbox/delete"), ids)
            .await
    }

    async fn return_outbox(&self, ids: &[i64]) -> Result<()> {
        self.each("return outbox rows", sql!("outbox/return"), ids)
            .await
    }

    async fn queues(&self) -> Result<Vec<String>> {
        self.writer
            .read("list the queues", async |conn, _| {
                let rows = sqlx::query(sql!("outbox/queues")).fetch_all(conn).await?;
                rows.iter().map(|row| Ok(row.value("name")?)).collect()
            })
            .await
    }

    async fn outbox_backlog(&self) -> Result<Backlog> {
        self.writer
            .read("measure the outbox", async |conn, now| {
                let row = sqlx::query(sql!("outbox/backlog")).fetch_one(conn).await?;
                let oldest: Option<Millis> = row.value("oldest")?;
                Ok(Backlog {
                    rows: row.number("backlog")?,
                    oldest: oldest.map_or(Duration::ZERO, |oldest| between(oldest, now)),
                })
            })
            .await
    }

    async fn redispatch_lost(&self, stream: &str, limit: u32) -> Result<u64> {
        let stream = stream.to_owned();
        self.writer
            .write("dispatch lost messages again", async move |conn, now| {
                let lost = sqlx::query(sql!("outbox/lost"))
                    .bind(&stream)
                    .bind(limit)
                    .fetch_all(&mut *conn)
                    .await?;
                for row in &lost {
                    dispatch::dispatch(conn, now, row.value("id")?).await?;
                }
                Ok(lost.len() as u64)
            })
            .await
    }

    async fn overdue_dispatches(
        &self,
        stream: &str,
        wait: Wait,
        limit: u32,
    ) -> Result<Vec<Overdue>> {
        let stream = stream.to_owned();
        self.writer
            .read("look for overdue dispatches", async move |conn, now| {
                let rows = sqlx::query(sql!("outbox/overdue"))
                    .bind(&stream)
                    .bind(now)
                    .bind(millis(wait.first))
                    .bind(millis(wait.cap))
                    .bind(limit)
                    .fetch_all(conn)
                    .await?;
                rows.iter().map(overdue).collect()
            })
            .await
    }

    async fn redispatch_overdue(
        &self,
        lost: &[Overdue],
        unclaimed_max: u32,
    ) -> Result<Redispatched> {
        let lost: Vec<_> = lost
            .iter()
            .map(|one| (one.execution_id, one.dispatch_no))
            .collect();
        self.writer
            .write("dispatch again what was lost", async move |conn, now| {
                let mut done = Redispatched::default();
                for (id, dispatch_no) in &lost {
                    match redispatch(conn, now, *id, *dispatch_no, unclaimed_max).await? {
                        Some(Redispatch::Again) => done.again += 1,
                        Some(Redispatch::Ended) => done.ended += 1,
                        None => {}
                    }
                }
                Ok(done)
            })
            .await
    }

    async fn idle_queues(&self, for_at_least: Duration) -> Result<Vec<String>> {
        self.writer
            .read("look for idle queues", async move |conn, now| {
                let rows = sqlx::query(sql!("outbox/idle_queues"))
                    .bind(now)
                    .bind(now - millis(for_at_least))
                    .fetch_all(conn)
                    .await?;
                rows.iter().map(|row| Ok(row.value("queue")?)).collect()
            })
            .await
    }
}

/// What became of one lost dispatch.
enum Redispatch {
    Again,
    Ended,
}

/// None: its execution waits for another dispatch by now, or for none.
async fn redispatch(
    conn: &mut SqliteConnection,
    now: Millis,
    id: Uuid,
    dispatch_no: u32,
    unclaimed_max: u32,
) -> Result<Option<Redispatch>, Fault> {
    let row = sqlx::query(sql!("outbox/judge"))
        .bind(id)
        .bind(dispatch_no)
        .bind(now)
        .fetch_optional(&mut *conn)
        .await?;
    let Some(row) = row else {
        return Ok(None);
    };
    let before: u32 = row.number("unclaimed_dispatches")?;
    let unclaimed = before + u32::from(row.value::<bool>("idle")?);
    sqlx::query(sql!("outbox/count_lost"))
        .bind(id)
        .bind(unclaimed)
        .execute(&mut *conn)
        .await?;
    if unclaimed >= unclaimed_max && !row.value::<bool>("unknown")? {
        let (reason, detail) = (DeadReason::Unclaimed, outbox::unclaimed(unclaimed_max));
        dead::end_dispatch(conn, now, id, dispatch_no, reason, &detail).await?;
        return Ok(Some(Redispatch::Ended));
    }
    dispatch::dispatch(conn, now, id).await?;
    Ok(Some(Redispatch::Again))
}

fn overdue(row: &SqliteRow) -> Result<Overdue, Fault> {
    Ok(Overdue {
        execution_id: row.value("id")?,
        lane: Lane {
            queue: row.value("queue")?,
            priority: row.word("priority")?,
        },
        dispatch_no: row.number("dispatch_no")?,
        dispatched_at: row.instant("dispatched_at")?,
        lost_dispatches: row.number("lost_dispatches")?,
    })
}

impl SqliteStore {
    async fn each(&self, op: &'static str, statement: &'static str, ids: &[i64]) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let ids = ids.to_vec();
        self.writer
            .write(op, async move |conn, _| {
                for id in &ids {
                    sqlx::query(statement).bind(id).execute(&mut *conn).await?;
                }
                Ok(())
            })
            .await
    }
}

/// Leases rows until `limit` are found; those that need no message any more are deleted.
async fn claim(
    conn: &mut SqliteConnection,
    now: Millis,
    limit: usize,
    leased_until: Millis,
    paused: &str,
) -> Result<Vec<OutboxRow>, Fault> {
    let mut claimed = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let wanted = i64::try_from(limit - claimed.len()).unwrap_or(i64::MAX);
        let rows = sqlx::query(sql!("outbox/candidates"))
            .bind(now)
            .bind(paused)
            .bind(wanted)
            .fetch_all(&mut *conn)
            .await?;
        let found = rows.len();
        for row in rows {
            let id: i64 = row.value("outbox_id")?;
            if row.value("current")? {
                sqlx::query(sql!("outbox/lease"))
                    .bind(id)
                    .bind(leased_until)
                    .execute(&mut *conn)
                    .await?;
                claimed.push(outbox_row(now, id, &row)?);
            } else {
                sqlx::query(sql!("outbox/delete"))
                    .bind(id)
                    .execute(&mut *conn)
                    .await?;
            }
        }
        if claimed.len() >= limit || i64::try_from(found).unwrap_or(i64::MAX) < wanted {
            break;
        }
    }
    Ok(claimed)
}

fn outbox_row(now: Millis, id: i64, row: &SqliteRow) -> Result<OutboxRow, Fault> {
    let ledger_id: Uuid = row.value("ledger_id")?;
    Ok(OutboxRow {
        id,
        lane: Lane {
            queue: row.value("lane_queue")?,
            priority: row.word("lane_priority")?,
        },
        dispatched_at: row.instant("dispatched_at")?,
        waited: between(row.value("dispatched_at")?, now),
        dispatch: Dispatch {
            v: WIRE_VERSION,
            kind: KIND_DISPATCH.to_owned(),
            ledger_id,
            job: row.value("job")?,
            fire_id: row.value("fire_id")?,
            execution_id: row.value("execution_id")?,
            dispatch_no: row.number("outbox_dispatch_no")?,
            shard_index: row.number("shard_index")?,
            shard_total: row.number("shard_total")?,
            schedule_version: row.value("schedule_version")?,
            scheduled_at_ms: row.value("scheduled_at")?,
            start_deadline_ms: row.value("start_deadline_at")?,
            timeout_ms: row.value("timeout_ms")?,
            trace: row.trace()?,
        },
    })
}
