//! One-shots through the outbox, and manual triggers.

use bellwether_schemas::ids;
use bellwether_schemas::state::{Priority, Trigger};
use bellwether_schemas::trace::TraceContext;
use chrono::{DateTime, Utc};
use sqlx::SqliteConnection;
use uuid::Uuid;

use super::clock::Millis;
use super::dispatch;
use super::errors::Fault;
use super::fires::{self, NewFire};
use super::row::{Columns, millis, trace_columns};
use super::schedules;
use crate::Payload;
use crate::executions::{Enqueued, NewExecution, Triggered};
use crate::schedules::Policy;

/// A fire of one shard that no schedule owns: it lives in its execution row.
pub(super) struct OneShot<'a> {
    pub(super) fire_id: Uuid,
    pub(super) trigger: Trigger,
    pub(super) job: &'a str,
    pub(super) queue: &'a str,
    pub(super) priority: Priority,
    pub(super) key: Option<&'a str>,
    pub(super) payload: &'a Payload,
    pub(super) policy: &'a Policy,
    pub(super) trace: Option<&'a TraceContext>,
    /// The due instant.
    pub(super) scheduled_at: Millis,
    /// Whether `policy` is that of its job; else a worker with a handler pins it.
    pub(super) policy_known: bool,
    /// Whether its message named the timeout.
    pub(super) own_timeout: bool,
    /// A claim may take it from here on.
    pub(super) available_at: Millis,
    /// Why its first claim was refused, if that is how it was recorded.
    pub(super) last_refusal: Option<&'a str>,
}

/// Adds a queue that is not there yet.
pub(super) async fn ensure_queue(
    conn: &mut SqliteConnection,
    now: Millis,
    queue: &str,
) -> Result<(), Fault> {
    sqlx::query(sql!("enqueue/ensure_queue"))
        .bind(queue)
        .bind(now)
        .execute(conn)
        .await?;
    Ok(())
}

/// The execution of `(job, key)`.
pub(super) async fn find_key(
    conn: &mut SqliteConnection,
    job: &str,
    key: &str,
) -> Result<Option<Uuid>, Fault> {
    let row = sqlx::query(sql!("enqueue/find_key"))
        .bind(job)
        .bind(key)
        .fetch_optional(conn)
        .await?;
    Ok(row.map(|row| row.value("execution_id")).transpose()?)
}

/// Gives `(job, key)` to the execution; false = it is taken.
pub(super) async fn take_key(
    conn: &mut SqliteConnection,
    now: Millis,
    job: &str,
    key: &str,
    execution_id: Uuid,
) -> Result<bool, Fault> {
    let taken = sqlx::query(sql!("enqueue/take_key"))
        .bind(job)
        .bind(key)
        .bind(execution_id)
        .bind(now)
        .execute(conn)
        .await?;
    Ok(taken.rows_affected() == 1)
}

/// When a one-shot is due; a run-at in the past means now.
pub(super) fn due_at(now: Millis, run_at: Option<DateTime<Utc>>) -> Millis {
    run_at.map_or(now, |run_at| run_at.timestamp_millis().max(now))
}

/// Inserts a one-shot as `pending`, not dispatched; returns its execution.
pub(super) async fn insert_one_shot(
    conn: &mut SqliteConnection,
    now: Millis,
    new: &OneShot<'_>,
) -> Result<Uuid, Fault> {
    let id = ids::execution(new.fire_id, 0);
    let root;
    let trace = if let Some(trace) = new.trace {
        trace
    } else {
        root = TraceContext::root(new.fire_id);
        &root
    };
    let (traceparent, tracestate) = trace_columns(Some(trace));
    let start_deadline_at = new.scheduled_at + millis(new.policy.start_deadline);
    sqlx::query(sql!("enqueue/insert_one_shot"))
        .bind(id)
        .bind(new.fire_id)
        .bind(new.trigger.as_str())
        .bind(new.job)
        .bind(new.queue)
        .bind(new.priority.as_str())
        .bind(new.key)
        .bind(&new.payload.bytes)
        .bind(&new.payload.content_type)
        .bind(traceparent)
        .bind(tracestate)
        .bind(millis(new.policy.timeout))
        .bind(new.policy.max_attempts)
        .bind(new.policy.on_lost.as_str())
        .bind(new.scheduled_at)
        .bind(start_deadline_at)
        .bind(now)
        .bind(new.available_at)
        .bind(new.last_refusal)
        .bind(millis(new.policy.retry.first))
        .bind(millis(new.policy.retry.cap))
        .bind(new.policy_known)
        .bind(new.own_timeout)
        .execute(conn)
        .await?;
    Ok(id)
}

/// Enqueues one checked one-shot.
pub(super) async fn enqueue(
    conn: &mut SqliteConnection,
    now: Millis,
    new: &NewExecution,
) -> Result<Enqueued, Fault> {
    let execution_id = new.execution_id();
    if sqlx::query(sql!("enqueue/exists"))
        .bind(execution_id)
        .fetch_optional(&mut *conn)
        .await?
        .is_some()
    {
        return Ok(Enqueued::Exists { execution_id });
    }
    if let Some(key) = &new.key
        && let Some(execution_id) = find_key(conn, &new.job, key).await?
    {
        return Ok(Enqueued::Exists { execution_id });
    }
    ensure_queue(conn, now, &new.queue).await?;
    let scheduled_at = due_at(now, new.run_at);
    let one_shot = OneShot {
        fire_id: new.fire_id,
        trigger: Trigger::Once,
        job: &new.job,
        queue: &new.queue,
        priority: new.priority,
        key: new.key.as_deref(),
        payload: &new.payload,
        policy: &new.policy,
        policy_known: true,
        own_timeout: false,
        trace: new.trace.as_ref(),
        scheduled_at,
        available_at: scheduled_at,
        last_refusal: None,
    };
    insert_one_shot(conn, now, &one_shot).await?;
    if scheduled_at <= now {
        dispatch::dispatch(conn, now, execution_id).await?;
    }
    // Last: a call that is dropped in the middle leaves no key without its row. It is free, as was
    // seen under the write lock.
    if let Some(key) = &new.key {
        take_key(conn, now, &new.job, key, execution_id).await?;
    }
    Ok(Enqueued::Inserted { execution_id })
}

/// Fires a schedule by hand.
pub(super) async fn trigger(
    conn: &mut SqliteConnection,
    now: Millis,
    schedule: &str,
    fire_id: Uuid,
    trace: Option<&TraceContext>,
) -> Result<Triggered, Fault> {
    if let Some(row) = sqlx::query(sql!("enqueue/fire"))
        .bind(fire_id)
        .fetch_optional(&mut *conn)
        .await?
    {
        return Ok(Triggered::Fired {
            fire_id,
            shard_total: row.number("shard_total")?,
        });
    }
    let Some(schedule_id) = schedules::find(conn, schedule).await? else {
        return Ok(Triggered::NotFound);
    };
    let row = sqlx::query(sql!("enqueue/shards"))
        .bind(schedule_id)
        .fetch_one(&mut *conn)
        .await?;
    let shard_total = row.number("shard_total")?;
    let fire = NewFire {
        id: fire_id,
        schedule_id,
        trigger: Some(Trigger::Manual),
        scheduled_at: now,
        nominal_local: None,
        fold: None,
        trace: &trace
            .cloned()
            .unwrap_or_else(|| TraceContext::root(fire_id)),
        term: None,
        held_behind: None,
    };
    fires::insert_fire(conn, now, &fire).await?;
    fires::insert_executions(conn, now, &fire, shard_total).await?;
    Ok(Triggered::Fired {
        fire_id,
        shard_total,
    })
}
