//! What a relay does with the outbox.

use std::time::Duration;

use bellwether_schemas::subject::WIRE_VERSION;
use bellwether_schemas::wire::{Dispatch, KIND_DISPATCH};
use chrono::{DateTime, Utc};
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::{PgStore, call, row, sql};
use crate::Result;
use crate::outbox::{self, Backlog, Lane, Outbox, OutboxRow, Overdue, Redispatched, Wait};

#[async_trait::async_trait]
impl Outbox for PgStore {
    async fn claim_outbox(
        &self,
        limit: u32,
        lease: Duration,
        paused: &[Lane],
    ) -> Result<Vec<OutboxRow>> {
        let queues: Vec<&str> = paused.iter().map(|lane| lane.queue.as_str()).collect();
        let priorities: Vec<&str> = paused.iter().map(|lane| lane.priority.as_str()).collect();
        loop {
            let (leased, overtaken) = call!(self, "claim outbox rows", |conn| {
                let rows = sqlx::query(sql!("outbox/claim"))
                    .bind(i64::from(limit))
                    .bind(row::micros(lease))
                    .bind(&queues)
                    .bind(&priorities)
                    .fetch_all(conn)
                    .await?;
                let first = rows.first().ok_or(sqlx::Error::RowNotFound)?;
                let overtaken = row::total(first, "overtaken")?;
                let mut leased = Vec::with_capacity(rows.len());
                for row in &rows {
                    leased.extend(outbox_row(row, self.ledger_id)?);
                }
                Ok((leased, overtaken))
            })?;
            // An empty answer says that there is nothing to send: not while overtaken rows
            // stand before the rest. Each round deletes some, so this ends.
            if !leased.is_empty() || overtaken == 0 {
                return Ok(leased);
            }
        }
    }

    async fn mark_published(&self, ids: &[i64]) -> Result<()> {
        call!(self, "delete published outbox rows", |conn| {
            sqlx::query(sql!("outbox/mark_published"))
                .bind(ids)
                .execute(conn)
                .await
        })
        .map(drop)
    }

    async fn return_outbox(&self, ids: &[i64]) -> Result<()> {
        call!(self, "return outbox rows", |conn| {
            sqlx::query(sql!("outbox/return"))
                .bind(ids)
                .execute(conn)
                .await
        })
        .map(drop)
    }

    async fn queues(&self) -> Result<Vec<String>> {
        call!(self, "list the queues", |conn| {
            sqlx::query_scalar(sql!("outbox/queues"))
                .fetch_all(conn)
                .await
        })
    }

    async fn outbox_backlog(&self) -> Result<Backlog> {
        call!(self, "measure the outbox", |conn| {
            let row = sqlx::query(sql!("outbox/backlog")).fetch_one(conn).await?;
            Ok(Backlog {
                rows: row::total(&row, "rows")?,
                oldest: row::computed_us(&row, "oldest_us")?,
            })
        })
    }

    async fn redispatch_lost(&self, stream: &str, limit: u32) -> Result<u64> {
        call!(self, "dispatch again what a stream lost", |conn| {
            let done = sqlx::query(sql!("outbox/redispatch_lost"))
                .bind(stream)
                .bind(i64::from(limit))
                .execute(conn)
                .await?;
            Ok(done.rows_affected())
        })
    }

    async fn overdue_dispatches(
        &self,
        stream: &str,
        wait: Wait,
        limit: u32,
    ) -> Result<Vec<Overdue>> {
        call!(self, "look for overdue dispatches", |conn| {
            let rows = sqlx::query(sql!("outbox/overdue"))
                .bind(stream)
                .bind(row::micros(wait.first))
                .bind(row::micros(wait.cap))
                .bind(i64::from(limit))
                .fetch_all(conn)
                .await?;
            rows.iter().map(overdue).collect()
        })
    }

    async fn redispatch_overdue(
        &self,
        lost: &[Overdue],
        unclaimed_max: u32,
    ) -> Result<Redispatched> {
        let ids: Vec<Uuid> = lost.iter().map(|one| one.execution_id).collect();
        let numbers: Vec<i32> = lost.iter().map(|one| row::int(one.dispatch_no)).collect();
        let detail = outbox::unclaimed(unclaimed_max);
        call!(self, "dispatch again what was lost", |conn| {
            let row = sqlx::query(sql!("outbox/redispatch_overdue"))
                .bind(&ids)
                .bind(&numbers)
                .bind(row::int(unclaimed_max))
                .bind(&detail)
                .fetch_one(conn)
                .await?;
            Ok(Redispatched {
                again: row::total(&row, "redispatched")?,
                ended: row::total(&row, "ended")?,
            })
        })
    }

    async fn idle_queues(&self, for_at_least: Duration) -> Result<Vec<String>> {
        call!(self, "look for idle queues", |conn| {
            sqlx::query_scalar(sql!("outbox/idle_queues"))
                .bind(row::micros(for_at_least))
                .fetch_all(conn)
                .await
        })
    }
}

fn overdue(row: &PgRow) -> sqlx::Result<Overdue> {
    Ok(Overdue {
        execution_id: row.try_get("id")?,
        lane: Lane {
            queue: row.try_get("queue")?,
            priority: row::word(row, "priority")?,
        },
        dispatch_no: row::count(row, "dispatch_no")?,
        dispatched_at: row::instant(row, "dispatched_at")?,
        lost_dispatches: row::count(row, "lost_dispatches")?,
    })
}

/// None: the one row that says that nothing was leased.
fn outbox_row(row: &PgRow, ledger_id: Uuid) -> sqlx::Result<Option<OutboxRow>> {
    let Some(id) = row.try_get("outbox_id")? else {
        return Ok(None);
    };
    let scheduled_at: DateTime<Utc> = row.try_get("scheduled_at")?;
    let start_deadline_at: DateTime<Utc> = row.try_get("start_deadline_at")?;
    Ok(Some(OutboxRow {
        id,
        lane: Lane {
            queue: row.try_get("queue")?,
            priority: row::word(row, "priority")?,
        },
        dispatched_at: row::instant(row, "dispatched_at")?,
        waited: row::computed_us(row, "waited_us")?,
        dispatch: Dispatch {
            v: WIRE_VERSION,
            kind: KIND_DISPATCH.to_owned(),
            ledger_id,
            job: row.try_get("job")?,
            fire_id: row.try_get("fire_id")?,
            execution_id: row.try_get("execution_id")?,
            dispatch_no: row::count(row, "dispatch_no")?,
            shard_index: row::count(row, "shard_index")?,
            shard_total: row::count(row, "shard_total")?,
            schedule_version: row.try_get("schedule_version")?,
            scheduled_at_ms: scheduled_at.timestamp_millis(),
            start_deadline_ms: start_deadline_at.timestamp_millis(),
            timeout_ms: row.try_get("timeout_ms")?,
            trace: row::trace(row)?,
        },
    }))
}
