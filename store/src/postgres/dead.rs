//! Dead letters.

use bellwether_schemas::limits::ERROR_TEXT_MAX;
use bellwether_schemas::state::DeadReason;
use bellwether_schemas::trace::TraceContext;
use bellwether_schemas::{ids, text};
use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};
use uuid::Uuid;

use super::executions::{RACES_MAX, Retry, retry};
use super::{PgStore, call, row, sql};
use crate::dead::{
    DeadFilter, DeadLetter, DeadLetterView, DeadLetters, Discarded, Replay, Replayed,
};
use crate::executions::Retried;
use crate::schedules::Policy;
use crate::{Error, ErrorKind, Payload, Result};

#[async_trait::async_trait]
impl DeadLetters for PgStore {
    async fn record_dead_letter(&self, letter: &DeadLetter) -> Result<bool> {
        let letter = letter.cleaned();
        call!(self, "record a dead letter", |conn| {
            sqlx::query(sql!("dead/record"))
                .bind(&letter.job)
                .bind(&letter.key)
                .bind(&letter.queue)
                .bind(letter.reason.as_str())
                .bind(&letter.detail)
                .bind(&letter.payload.bytes)
                .bind(&letter.payload.content_type)
                .execute(conn)
                .await
        })
        .map(|done| done.rows_affected() == 1)
    }

    async fn bury_dispatch(&self, outbox_id: i64, detail: &str) -> Result<bool> {
        let detail = text::clean(detail, ERROR_TEXT_MAX);
        call!(self, "bury a dispatch", |conn| {
            let gone: i64 = sqlx::query_scalar(sql!("dead/bury"))
                .bind(outbox_id)
                .bind(&*detail)
                .fetch_one(conn)
                .await?;
            Ok(gone > 0)
        })
    }

    async fn dead_letters(&self, filter: &DeadFilter) -> Result<Vec<DeadLetterView>> {
        // No stored name has a NUL, and no query may.
        if filter.job.as_deref().is_some_and(|job| job.contains('\0')) {
            return Ok(Vec::new());
        }
        call!(self, "list dead letters", |conn| {
            let rows = sqlx::query(sql!("dead/list"))
                .bind(filter.reason.map(DeadReason::as_str))
                .bind(&filter.job)
                .bind(filter.resolved)
                .bind(i64::from(filter.limit))
                .fetch_all(conn)
                .await?;
            Ok(rows.iter().filter_map(listed).collect())
        })
    }

    async fn dead_letter(&self, id: Uuid) -> Result<Option<(DeadLetterView, Payload)>> {
        call!(self, "read a dead letter", |conn| one(conn, id).await)
    }

    async fn replay_dead_letter(
        &self,
        id: Uuid,
        fire_id: Uuid,
        content_type: Option<&str>,
    ) -> Result<Replayed> {
        const OP: &str = "replay a dead letter";
        for _ in 0..RACES_MAX {
            let Some((letter, _)) = self.dead_letter(id).await? else {
                return Ok(Replayed::NotFound);
            };
            if let Some(answer) = letter.replayed_before(fire_id) {
                return Ok(answer);
            }
            let replayed = match Replay::of(&letter, content_type) {
                Replay::Nothing => return Ok(Replayed::NotReplayable),
                Replay::Message(content_type) => call!(self, OP, |conn| {
                    replay_message(conn, id, fire_id, content_type).await
                })?,
                Replay::Dispatch(execution_id) => {
                    let trace = TraceContext::root(fire_id);
                    let retry = call!(self, OP, |conn| {
                        retry(conn, execution_id, fire_id, &trace, Some(id)).await
                    })?;
                    self.replay_dispatch(id, retry).await?
                }
            };
            if let Some(replayed) = replayed {
                return Ok(replayed);
            }
        }
        Err(Error::new(
            OP,
            ErrorKind::Conflict,
            "somebody else is at it",
        ))
    }

    async fn discard_dead_letter(&self, id: Uuid) -> Result<Discarded> {
        const OP: &str = "discard a dead letter";
        let done = call!(self, OP, |conn| {
            sqlx::query(sql!("dead/discard"))
                .bind(id)
                .execute(conn)
                .await
        })?;
        if done.rows_affected() == 1 {
            return Ok(Discarded::Discarded);
        }
        let resolution = call!(self, OP, |conn| {
            let row = sqlx::query(sql!("dead/one"))
                .bind(id)
                .fetch_optional(conn)
                .await?;
            // The rest of it may be what cannot be read.
            row.map(|row| row::word_opt(&row, "resolution")).transpose()
        })?;
        Ok(resolution
            .flatten()
            .map_or(Discarded::NotFound, Discarded::Resolved))
    }
}

impl PgStore {
    /// What the retry of a letter's execution says of the letter; none = look again.
    async fn replay_dispatch(&self, id: Uuid, retry: Retry) -> Result<Option<Replayed>> {
        const OP: &str = "replay a dead letter";
        let (execution_id, own) = match retry.settle(OP)? {
            None => return Ok(None),
            Some(Retried::Retried { execution_id }) => (execution_id, true),
            // Somebody has retried the execution by itself: that does the letter's work.
            Some(Retried::AlreadyRetried { execution_id, .. }) => (execution_id, false),
            Some(Retried::Refused(_) | Retried::NotFound) => {
                return Ok(Some(Replayed::NotReplayable));
            }
        };
        // The statement that inserted it has done so already.
        let done = call!(self, OP, |conn| {
            sqlx::query(sql!("dead/resolve"))
                .bind(id)
                .bind(execution_id)
                .execute(conn)
                .await
        })?;
        Ok((own || done.rows_affected() == 1).then_some(Replayed::Replayed { execution_id }))
    }
}

/// Makes a message's letter a one-shot; none = it is resolved by now.
async fn replay_message(
    conn: &mut PgConnection,
    id: Uuid,
    fire_id: Uuid,
    content_type: &str,
) -> sqlx::Result<Option<Replayed>> {
    let policy = Policy::default();
    let execution_id = ids::execution(fire_id, 0);
    let done = sqlx::query(sql!("dead/replay"))
        .bind(id)
        .bind(fire_id)
        .bind(execution_id)
        .bind(content_type)
        .bind(TraceContext::root(fire_id).traceparent)
        .bind(row::millis(policy.timeout))
        .bind(row::int(policy.max_attempts))
        .bind(row::millis(policy.start_deadline))
        .bind(policy.on_lost.as_str())
        .bind(row::millis(policy.retry.first))
        .bind(row::millis(policy.retry.cap))
        .execute(conn)
        .await?;
    Ok((done.rows_affected() == 1).then_some(Replayed::Replayed { execution_id }))
}

async fn one(conn: &mut PgConnection, id: Uuid) -> sqlx::Result<Option<(DeadLetterView, Payload)>> {
    let row = sqlx::query(sql!("dead/one"))
        .bind(id)
        .fetch_optional(conn)
        .await?;
    row.map(|row| {
        let view = view(&row)?;
        let payload = Payload {
            bytes: row.try_get("payload")?,
            content_type: view.content_type.clone(),
        };
        Ok((view, payload))
    })
    .transpose()
}

/// A letter for a list: one whose row cannot be read stops no other.
fn listed(row: &PgRow) -> Option<DeadLetterView> {
    let letter = view(row).inspect_err(|error| {
        let id: Option<Uuid> = row.try_get("id").ok();
        tracing::warn!(?id, %error, "a dead letter is left out of the list: its row cannot be read");
    });
    letter.ok()
}

fn view(row: &PgRow) -> sqlx::Result<DeadLetterView> {
    Ok(DeadLetterView {
        id: row.try_get("id")?,
        job: row.try_get("job")?,
        queue: row.try_get("queue")?,
        key: row.try_get("key")?,
        reason: row::word(row, "reason")?,
        detail: row.try_get("detail")?,
        content_type: row.try_get("content_type")?,
        size: u64::from(row::count(row, "size")?),
        execution_id: row.try_get("execution_id")?,
        recorded_at: row::instant(row, "recorded_at")?,
        resolution: row::word_opt(row, "resolution")?,
        resolved_at: row::instant_opt(row, "resolved_at")?,
        replayed_as: row.try_get("replayed_as")?,
    })
}
