//! One-shots through the outbox, and manual triggers.

use bellwether_schemas::ids;
use bellwether_schemas::trace::TraceContext;
use chrono::{DateTime, Utc};
use sqlx::Row;
use sqlx::postgres::PgConnection;
use std::collections::HashSet;
use uuid::Uuid;

use crate::executions::{Enqueued, NewExecution, Triggered};
use crate::postgres::{PgStore, call, check, row, sql};
use crate::{Error, ErrorKind, Result};

/// How often what stood in the way may be gone when it is looked at.
pub(in crate::postgres) const RACES_MAX: u32 = 5;

impl PgStore {
    pub(super) async fn enqueue_batch(&self, new: &[NewExecution]) -> Result<Vec<Enqueued>> {
        const OP: &str = "enqueue one-shots";
        let batch = Batch::of(new)?;
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let mut inserted = HashSet::new();
        for _ in 0..RACES_MAX {
            // Autocommit: what was inserted stays so, whatever the next statement sees.
            inserted.extend(call!(self, OP, |conn| batch.insert(conn).await)?);
            let answers = call!(self, OP, |conn| batch.answer(conn, &inserted).await)?;
            if let Some(answers) = answers {
                return Ok(answers);
            }
        }
        Err(Error::new(
            OP,
            ErrorKind::Conflict,
            "keys keep coming and going",
        ))
    }

    pub(super) async fn trigger_schedule(
        &self,
        schedule: &str,
        fire_id: Uuid,
        trace: Option<&TraceContext>,
    ) -> Result<Triggered> {
        const OP: &str = "trigger a schedule";
        let trace = trace
            .cloned()
            .unwrap_or_else(|| TraceContext::root(fire_id));
        for _ in 0..RACES_MAX {
            let triggered = call!(self, OP, |conn| trigger_once(
                conn, schedule, fire_id, &trace
            )
            .await)?;
            if let Some(triggered) = triggered {
                return Ok(triggered);
            }
        }
        Err(Error::new(
            OP,
            ErrorKind::Conflict,
            "the schedule keeps changing",
        ))
    }
}

/// None: the schedule changed after it was read, or the fire was written meanwhile.
async fn trigger_once(
    conn: &mut PgConnection,
    schedule: &str,
    fire_id: Uuid,
    trace: &TraceContext,
) -> sqlx::Result<Option<Triggered>> {
    let target = sqlx::query(sql!("executions/trigger_target"))
        .bind(schedule)
        .bind(fire_id)
        .fetch_one(&mut *conn)
        .await?;
    if target.try_get::<Option<i32>, _>("fired_total")?.is_some() {
        let shard_total = row::count(&target, "fired_total")?;
        return Ok(Some(Triggered::Fired {
            fire_id,
            shard_total,
        }));
    }
    let Some(schedule_id) = target.try_get::<Option<Uuid>, _>("id")? else {
        return Ok(Some(Triggered::NotFound));
    };
    let shard_total = row::count(&target, "shard_total")?;
    let shards: Vec<Uuid> = (0..shard_total)
        .map(|shard| ids::execution(fire_id, shard))
        .collect();
    let fired = sqlx::query(sql!("executions/trigger"))
        .bind(schedule_id)
        .bind(target.try_get::<i64, _>("version")?)
        .bind(fire_id)
        .bind(&trace.traceparent)
        .bind(&trace.tracestate)
        .bind(&shards)
        .fetch_optional(conn)
        .await?;
    Ok(fired.map(|_| Triggered::Fired {
        fire_id,
        shard_total,
    }))
}

/// One-shots as parallel arrays.
#[derive(Default)]
pub(in crate::postgres) struct Batch<'a> {
    execution_ids: Vec<Uuid>,
    fire_ids: Vec<Uuid>,
    jobs: Vec<&'a str>,
    queues: Vec<&'a str>,
    priorities: Vec<&'static str>,
    payloads: Vec<&'a [u8]>,
    content_types: Vec<&'a str>,
    run_ats: Vec<Option<DateTime<Utc>>>,
    timeouts_ms: Vec<i64>,
    max_attempts: Vec<i32>,
    start_deadlines_ms: Vec<i64>,
    on_losts: Vec<&'static str>,
    keys: Vec<Option<&'a str>>,
    traceparents: Vec<String>,
    tracestates: Vec<String>,
    retry_firsts_ms: Vec<i64>,
    retry_caps_ms: Vec<i64>,
}

impl<'a> Batch<'a> {
    /// Refuses what is out of bounds.
    pub(in crate::postgres) fn of(new: &'a [NewExecution]) -> Result<Self> {
        let mut batch = Self::default();
        for one in new {
            check::one_shot(one)?;
            batch.push(one);
        }
        Ok(batch)
    }

    fn push(&mut self, new: &'a NewExecution) {
        let trace = new
            .trace
            .clone()
            .unwrap_or_else(|| TraceContext::root(new.fire_id));
        self.execution_ids.push(new.execution_id());
        self.fire_ids.push(new.fire_id);
        self.jobs.push(&new.job);
        self.queues.push(&new.queue);
        self.priorities.push(new.priority.as_str());
        self.payloads.push(&new.payload.bytes);
        self.content_types.push(&new.payload.content_type);
        self.run_ats.push(new.run_at);
        self.timeouts_ms.push(row::millis(new.policy.timeout));
        self.max_attempts.push(row::int(new.policy.max_attempts));
        self.start_deadlines_ms
            .push(row::millis(new.policy.start_deadline));
        self.on_losts.push(new.policy.on_lost.as_str());
        self.keys.push(new.key.as_deref());
        self.traceparents.push(trace.traceparent);
        self.tracestates.push(trace.tracestate);
        self.retry_firsts_ms
            .push(row::millis(new.policy.retry.first));
        self.retry_caps_ms.push(row::millis(new.policy.retry.cap));
    }

    fn is_empty(&self) -> bool {
        self.execution_ids.is_empty()
    }

    /// Inserts what is new; the ids of the executions inserted.
    pub(in crate::postgres) async fn insert(
        &self,
        conn: &mut PgConnection,
    ) -> sqlx::Result<Vec<Uuid>> {
        sqlx::query_scalar(sql!("executions/enqueue"))
            .bind(&self.execution_ids)
            .bind(&self.fire_ids)
            .bind(&self.jobs)
            .bind(&self.queues)
            .bind(&self.priorities)
            .bind(&self.payloads)
            .bind(&self.content_types)
            .bind(&self.run_ats)
            .bind(&self.timeouts_ms)
            .bind(&self.max_attempts)
            .bind(&self.start_deadlines_ms)
            .bind(&self.on_losts)
            .bind(&self.keys)
            .bind(&self.traceparents)
            .bind(&self.tracestates)
            .bind(&self.retry_firsts_ms)
            .bind(&self.retry_caps_ms)
            .fetch_all(conn)
            .await
    }

    /// The answers in order, given what was inserted; none if one is not to be seen (any more).
    pub(in crate::postgres) async fn answer(
        &self,
        conn: &mut PgConnection,
        inserted: &HashSet<Uuid>,
    ) -> sqlx::Result<Option<Vec<Enqueued>>> {
        let mut left = inserted.clone();
        // The first of two with one id is the one that was inserted.
        let mut answers: Vec<Option<Enqueued>> = self
            .execution_ids
            .iter()
            .map(|&execution_id| {
                left.remove(&execution_id)
                    .then_some(Enqueued::Inserted { execution_id })
            })
            .collect();
        if answers.iter().all(Option::is_some) {
            return Ok(answers.into_iter().collect());
        }
        let standing: Vec<Option<Uuid>> = sqlx::query_scalar(sql!("executions/enqueued"))
            .bind(&self.execution_ids)
            .bind(&self.jobs)
            .bind(&self.keys)
            .fetch_all(conn)
            .await?;
        for (answer, standing) in answers.iter_mut().zip(standing) {
            let exists = standing.map(|execution_id| Enqueued::Exists { execution_id });
            *answer = answer.or(exists);
        }
        Ok(answers.into_iter().collect())
    }
}
