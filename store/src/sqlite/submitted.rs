//! Submitted messages: recorded and claimed at once, if their key is new.

use bellwether_schemas::ids;
use bellwether_schemas::state::{DeadReason, Priority, Trigger};
use sqlx::SqliteConnection;
use uuid::Uuid;

use super::clock::Millis;
use super::enqueue::{self, OneShot};
use super::errors::Fault;
use super::row::millis;
use super::{claim, dead};
use crate::dead::DeadLetter;
use crate::executions::{ClaimAnswer, Refusal, SubmitAsk};
use crate::sweeps::KEY_RETENTION_MIN;

/// So long before its key may be forgotten a message is a dead letter: broker and database do not
/// share a clock.
const STALE_MARGIN_MS: i64 = 24 * 3_600_000;

/// A job without a handler is offered again after this long, for the first time.
const FIRST_DEFERRAL_MS: i64 = 1_000;

/// Answers one ask.
pub(super) async fn claim(
    conn: &mut SqliteConnection,
    now: Millis,
    session: Uuid,
    ask: &SubmitAsk,
) -> Result<ClaimAnswer, Fault> {
    if !claim::is_live(conn, session).await? {
        return Ok(ClaimAnswer::SessionLost);
    }
    if let Some(known) = enqueue::find_key(conn, &ask.job, &ask.key).await? {
        let own = known == ids::execution(ask.fire_id, 0);
        return claim::again(conn, known, ask.claim_id, own).await;
    }
    let marked_to: Millis = sqlx::query_scalar(sql!("submitted/keys_marked_to"))
        .fetch_one(&mut *conn)
        .await?;
    // A mark beyond the shortest retention is of a clock that was wrong.
    let marked_to = marked_to.min(now - millis(KEY_RETENTION_MIN));
    if ask.stored_at.timestamp_millis() < marked_to + STALE_MARGIN_MS {
        dead::record(conn, now, &stale(ask), None).await?;
        return Ok(ClaimAnswer::Refused(Refusal::Stale));
    }
    let scheduled_at = enqueue::due_at(now, ask.run_at);
    let execution_id = record(conn, now, scheduled_at, ask).await?;
    if scheduled_at <= now && ask.has_handler {
        claim::take(conn, now, session, execution_id, ask.claim_id).await
    } else {
        Ok(ClaimAnswer::Refused(Refusal::Recorded))
    }
}

/// Inserts the execution of a new key as waiting; the sweep dispatches it when it is due.
async fn record(
    conn: &mut SqliteConnection,
    now: Millis,
    scheduled_at: Millis,
    ask: &SubmitAsk,
) -> Result<Uuid, Fault> {
    enqueue::ensure_queue(conn, now, &ask.queue).await?;
    let available_at = if ask.has_handler {
        scheduled_at
    } else {
        scheduled_at.max(now + FIRST_DEFERRAL_MS)
    };
    let one_shot = OneShot {
        fire_id: ask.fire_id,
        trigger: Trigger::Submit,
        job: &ask.job,
        queue: &ask.queue,
        priority: Priority::Normal,
        key: Some(&ask.key),
        payload: &ask.payload,
        policy: &ask.policy,
        policy_known: ask.has_handler,
        own_timeout: ask.own_timeout,
        trace: ask.trace.as_ref(),
        scheduled_at,
        available_at,
        last_refusal: (!ask.has_handler).then_some("no_handler"),
    };
    let execution_id = enqueue::insert_one_shot(conn, now, &one_shot).await?;
    enqueue::take_key(conn, now, &ask.job, &ask.key, execution_id).await?;
    Ok(execution_id)
}

fn stale(ask: &SubmitAsk) -> DeadLetter {
    DeadLetter {
        job: ask.job.clone(),
        queue: ask.queue.clone(),
        key: ask.key.clone(),
        reason: DeadReason::Stale,
        detail: format!(
            "stored at {}: its key may have been forgotten since, so it could run twice",
            ask.stored_at
        ),
        payload: ask.payload.clone(),
    }
}
