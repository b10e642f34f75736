//! Dead letters.

use bellwether_schemas::limits::ERROR_TEXT_MAX;
use bellwether_schemas::state::{DeadReason, Priority, Trigger};
use bellwether_schemas::{ids, text};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::clock::Millis;
use super::enqueue::{self, OneShot};
use super::errors::Fault;
use super::row::Columns;
use super::{SqliteStore, dispatch, retry};
use crate::dead::{
    DeadFilter, DeadLetter, DeadLetterView, DeadLetters, Discarded, Replay, Replayed,
};
use crate::executions::Retried;
use crate::schedules::Policy;
use crate::{Payload, Result};

#[async_trait::async_trait]
impl DeadLetters for SqliteStore {
    async fn record_dead_letter(&self, letter: &DeadLetter) -> Result<bool> {
        let letter = letter.cleaned();
        self.writer
            .write("record a dead letter", async move |conn, now| {
                record(conn, now, &letter, None).await
            })
            .await
    }

    async fn bury_dispatch(&self, outbox_id: i64, detail: &str) -> Result<bool> {
        let detail = text::clean(detail, ERROR_TEXT_MAX).into_owned();
        self.writer
            .write("bury a dispatch", async move |conn, now| {
                bury(conn, now, outbox_id, &detail).await
            })
            .await
    }

    async fn dead_letters(&self, filter: &DeadFilter) -> Result<Vec<DeadLetterView>> {
        let filter = filter.clone();
        self.writer
            .read("list dead letters", async move |conn, _| {
                let text = if filter.resolved {
                    sql!("dead/list")
                } else {
                    sql!("dead/list_open")
                };
                let rows = sqlx::query(text)
                    .bind(filter.reason.map(DeadReason::as_str))
                    .bind(&filter.job)
                    .bind(filter.limit)
                    .fetch_all(conn)
                    .await?;
                Ok(rows.iter().filter_map(listed).collect())
            })
            .await
    }

    async fn dead_letter(&self, id: Uuid) -> Result<Option<(DeadLetterView, Payload)>> {
        self.writer
            .read("read a dead letter", async move |conn, _| {
                one(conn, id).await
            })
            .await
    }

    async fn replay_dead_letter(
        &self,
        id: Uuid,
        fire_id: Uuid,
        content_type: Option<&str>,
    ) -> Result<Replayed> {
        let content_type = content_type.map(str::to_owned);
        self.writer
            .write("replay a dead letter", async move |conn, now| {
                replay(conn, now, id, fire_id, content_type.as_deref()).await
            })
            .await
    }

    async fn discard_dead_letter(&self, id: Uuid) -> Result<Discarded> {
        self.writer
            .write("discard a dead letter", async move |conn, now| {
                let done = sqlx::query(sql!("dead/discard"))
                    .bind(id)
                    .bind(now)
                    .execute(&mut *conn)
                    .await?;
                if done.rows_affected() == 1 {
                    return Ok(Discarded::Discarded);
                }
                let row = sqlx::query(sql!("dead/one"))
                    .bind(id)
                    .fetch_optional(conn)
                    .await?;
                // The rest of it may be what cannot be read.
                let resolution = row.map(|row| row.word_opt("resolution")).transpose()?;
                Ok(resolution
                    .flatten()
                    .map_or(Discarded::NotFound, Discarded::Resolved))
            })
            .await
    }
}

/// Keeps what can never run; the first record of its key stands.
pub(super) async fn record(
    conn: &mut SqliteConnection,
    now: Millis,
    letter: &DeadLetter,
    execution_id: Option<Uuid>,
) -> Result<bool, Fault> {
    let done = sqlx::query(sql!("dead/record"))
        .bind(&letter.job)
        .bind(&letter.key)
        .bind(&letter.queue)
        .bind(letter.reason.as_str())
        .bind(&letter.detail)
        .bind(&letter.payload.bytes)
        .bind(now)
        .bind(ids::fresh())
        .bind(&letter.payload.content_type)
        .bind(execution_id)
        .execute(conn)
        .await?;
    Ok(done.rows_affected() == 1)
}

async fn bury(
    conn: &mut SqliteConnection,
    now: Millis,
    outbox_id: i64,
    detail: &str,
) -> Result<bool, Fault> {
    let row = sqlx::query(sql!("dead/take_outbox"))
        .bind(outbox_id)
        .fetch_optional(&mut *conn)
        .await?;
    let Some(row) = row else {
        return Ok(false);
    };
    let execution_id: Uuid = row.value("execution_id")?;
    let dispatch_no: u32 = row.number("dispatch_no")?;
    let reason = DeadReason::Undeliverable;
    end_dispatch(conn, now, execution_id, dispatch_no, reason, detail).await?;
    Ok(true)
}

/// Ends the execution that waits for this dispatch, if it still does, with a dead letter.
pub(super) async fn end_dispatch(
    conn: &mut SqliteConnection,
    now: Millis,
    execution_id: Uuid,
    dispatch_no: u32,
    reason: DeadReason,
    detail: &str,
) -> Result<(), Fault> {
    let ended = sqlx::query(sql!("dead/bury"))
        .bind(execution_id)
        .bind(dispatch_no)
        .bind(detail)
        .bind(now)
        .fetch_optional(&mut *conn)
        .await?;
    if let Some(ended) = ended {
        let letter = DeadLetter {
            job: ended.value("job")?,
            queue: ended.value("queue")?,
            key: format!("~{execution_id}.{dispatch_no}"),
            reason,
            detail: detail.to_owned(),
            payload: Payload {
                bytes: Vec::new(),
                content_type: ended.value("content_type")?,
            },
        };
        record(conn, now, &letter, Some(execution_id)).await?;
    }
    Ok(())
}

async fn replay(
    conn: &mut SqliteConnection,
    now: Millis,
    id: Uuid,
    fire_id: Uuid,
    content_type: Option<&str>,
) -> Result<Replayed, Fault> {
    let Some((letter, payload)) = one(&mut *conn, id).await? else {
        return Ok(Replayed::NotFound);
    };
    if let Some(answer) = letter.replayed_before(fire_id) {
        return Ok(answer);
    }
    let execution_id = match Replay::of(&letter, content_type) {
        Replay::Nothing => return Ok(Replayed::NotReplayable),
        Replay::Message(content_type) => {
            let payload = Payload {
                content_type: content_type.to_owned(),
                ..payload
            };
            replay_message(conn, now, &letter, &payload, fire_id).await?
        }
        Replay::Dispatch(execution_id) => {
            match retry::retry(conn, now, execution_id, fire_id, None).await? {
                // Also when somebody has retried it by itself: that does the letter's work.
                Retried::Retried { execution_id }
                | Retried::AlreadyRetried { execution_id, .. } => execution_id,
                Retried::Refused(_) | Retried::NotFound => return Ok(Replayed::NotReplayable),
            }
        }
    };
    sqlx::query(sql!("dead/resolve"))
        .bind(id)
        .bind(execution_id)
        .bind(now)
        .execute(conn)
        .await?;
    Ok(Replayed::Replayed { execution_id })
}

/// Makes a message's letter a one-shot.
async fn replay_message(
    conn: &mut SqliteConnection,
    now: Millis,
    letter: &DeadLetterView,
    payload: &Payload,
    fire_id: Uuid,
) -> Result<Uuid, Fault> {
    enqueue::ensure_queue(conn, now, &letter.queue).await?;
    let one_shot = OneShot {
        fire_id,
        trigger: Trigger::Retry,
        job: &letter.job,
        queue: &letter.queue,
        priority: Priority::Normal,
        key: None,
        payload,
        policy: &Policy::default(),
        policy_known: false,
        own_timeout: false,
        trace: None,
        scheduled_at: now,
        available_at: now,
        last_refusal: None,
    };
    let execution_id = enqueue::insert_one_shot(conn, now, &one_shot).await?;
    dispatch::dispatch(conn, now, execution_id).await?;
    Ok(execution_id)
}

async fn one(
    conn: &mut SqliteConnection,
    id: Uuid,
) -> Result<Option<(DeadLetterView, Payload)>, Fault> {
    let row = sqlx::query(sql!("dead/one"))
        .bind(id)
        .fetch_optional(conn)
        .await?;
    row.map(|row| {
        let view = view(&row)?;
        let payload = Payload {
            bytes: row.value("payload")?,
            content_type: view.content_type.clone(),
        };
        Ok((view, payload))
    })
    .transpose()
}

/// A letter for a list: one whose row cannot be read stops no other.
fn listed(row: &SqliteRow) -> Option<DeadLetterView> {
    let letter = view(row).inspect_err(|fault| {
        let id: Option<Uuid> = row.value("id").ok();
        tracing::warn!(?id, %fault, "a dead letter is left out of the list: its row cannot be read");
    });
    letter.ok()
}

fn view(row: &SqliteRow) -> Result<DeadLetterView, Fault> {
    Ok(DeadLetterView {
        id: row.value("id")?,
        job: row.value("job")?,
        queue: row.value("queue")?,
        key: row.value("key")?,
        reason: row.word("reason")?,
        detail: row.value("detail")?,
        content_type: row.value("content_type")?,
        size: row.number("size")?,
        execution_id: row.value("execution_id")?,
        recorded_at: row.instant("recorded_at")?,
        resolution: row.word_opt("resolution")?,
        resolved_at: row.instant_opt("resolved_at")?,
        replayed_as: row.value("replayed_as")?,
    })
}
