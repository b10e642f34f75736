//! Claims: the RUNNING witness is written before any user code runs.

use std::time::Duration;

use bellwether_schemas::state::State;
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::clock::Millis;
use super::errors::Fault;
use super::probes;
use super::row::{Columns, millis};
use crate::Payload;
use crate::executions::{ClaimAnswer, ClaimAsk, Claimed, Deferral, PolicyPinned, Refusal};
use crate::schedules::Policy;

/// Whether the session may claim.
pub(super) async fn is_live(conn: &mut SqliteConnection, session: Uuid) -> Result<bool, Fault> {
    Ok(sqlx::query(sql!("claim/is_live"))
        .bind(session)
        .fetch_optional(conn)
        .await?
        .is_some())
}

/// Answers one ask.
pub(super) async fn claim(
    conn: &mut SqliteConnection,
    now: Millis,
    session: Uuid,
    ask: &ClaimAsk,
) -> Result<ClaimAnswer, Fault> {
    if !is_live(conn, session).await? {
        return Ok(ClaimAnswer::SessionLost);
    }
    let id = ask.execution_id;
    let Some(row) = sqlx::query(sql!("claim/facts"))
        .bind(id)
        .fetch_optional(&mut *conn)
        .await?
    else {
        return Ok(ClaimAnswer::Refused(Refusal::NoSuchExecution));
    };
    match judge(&Facts::read(&row)?, ask, now) {
        Verdict::Take => take(conn, now, session, id, ask.claim_id).await,
        Verdict::Again => Ok(ClaimAnswer::Claimed(Box::new(claimed(conn, id).await?))),
        Verdict::Refuse(Refusal::Held)
            if probes::is_due(conn, now, id, ask.dispatch_no, ask.claim_id).await? =>
        {
            Ok(ClaimAnswer::ProbeDue)
        }
        Verdict::Refuse(refusal) => Ok(ClaimAnswer::Refused(refusal)),
    }
}

/// What decides a claim.
struct Facts {
    state: State,
    claim_id: Option<Uuid>,
    cancel_requested: bool,
    start_deadline_at: Millis,
    attempts_left: bool,
    available_at: Millis,
    held: bool,
    /// The dispatch it waits for; a waiting row that is not dispatched waits for none.
    dispatch_no: Option<u32>,
}

impl Facts {
    fn read(row: &SqliteRow) -> Result<Self, Fault> {
        Ok(Self {
            state: row.word("state")?,
            claim_id: row.value("claim_id")?,
            cancel_requested: row
                .value::<Option<Millis>>("cancel_requested_at")?
                .is_some(),
            start_deadline_at: row.value("start_deadline_at")?,
            attempts_left: row.value::<i64>("attempt")? < row.value::<i64>("max_attempts")?,
            available_at: row.value("available_at")?,
            held: row.value("held")?,
            dispatch_no: match row.value::<Option<Millis>>("dispatched_at")? {
                Some(_) => Some(row.number("dispatch_no")?),
                None => None,
            },
        })
    }
}

enum Verdict {
    Take,
    /// The row runs under this very claim: its answer was lost.
    Again,
    Refuse(Refusal),
}

fn judge(row: &Facts, ask: &ClaimAsk, now: Millis) -> Verdict {
    if row.state == State::Running && row.claim_id == Some(ask.claim_id) {
        return Verdict::Again;
    }
    Verdict::Refuse(if row.state.is_terminal() {
        Refusal::Terminal(row.state)
    } else if !row.state.is_waiting() {
        Refusal::Held
    } else if row.cancel_requested {
        Refusal::CancelRequested
    } else if row.start_deadline_at <= now {
        Refusal::PastStartDeadline
    } else if !row.attempts_left {
        Refusal::BudgetUsedUp
    } else if row.held || row.available_at > now && row.dispatch_no != Some(ask.dispatch_no) {
        Refusal::NotDue
    } else {
        return Verdict::Take;
    })
}

/// Makes a waiting row run under `claim_id`.
pub(super) async fn take(
    conn: &mut SqliteConnection,
    now: Millis,
    session: Uuid,
    id: Uuid,
    claim_id: Uuid,
) -> Result<ClaimAnswer, Fault> {
    sqlx::query(sql!("claim/keep_attempt"))
        .bind(id)
        .execute(&mut *conn)
        .await?;
    sqlx::query(sql!("claim/take"))
        .bind(id)
        .bind(claim_id)
        .bind(session)
        .bind(now)
        .execute(&mut *conn)
        .await?;
    Ok(ClaimAnswer::Claimed(Box::new(claimed(conn, id).await?)))
}

/// What the repeat of a submit is told; `own` = it is this very message that recorded `id`.
pub(super) async fn again(
    conn: &mut SqliteConnection,
    id: Uuid,
    claim_id: Uuid,
    own: bool,
) -> Result<ClaimAnswer, Fault> {
    let row = sqlx::query(sql!("claim/facts"))
        .bind(id)
        .fetch_optional(&mut *conn)
        .await?;
    let facts = row.as_ref().map(Facts::read).transpose()?;
    Ok(match facts {
        Some(row) if row.state == State::Running && row.claim_id == Some(claim_id) => {
            ClaimAnswer::Claimed(Box::new(claimed(conn, id).await?))
        }
        Some(row) if own && row.state.is_waiting() && row.claim_id.is_none() => {
            ClaimAnswer::Refused(Refusal::Recorded)
        }
        _ => ClaimAnswer::Refused(Refusal::KnownKey),
    })
}

async fn claimed(conn: &mut SqliteConnection, id: Uuid) -> Result<Claimed, Fault> {
    let row = sqlx::query(sql!("claim/claimed"))
        .bind(id)
        .fetch_one(conn)
        .await?;
    Ok(Claimed {
        execution_id: row.value("id")?,
        fire_id: row.value("fire_id")?,
        operation_id: row.value("operation_id")?,
        job: row.value("job")?,
        queue: row.value("queue")?,
        claim_id: row.value("claim_id")?,
        generation: row.value("generation")?,
        attempt: row.number("attempt")?,
        max_attempts: row.number("max_attempts")?,
        shard_index: row.number("shard_index")?,
        shard_total: row.number("shard_total")?,
        trigger: row.word("trigger")?,
        schedule_version: row.value("schedule_version")?,
        scheduled_at: row.instant("scheduled_at")?,
        deadline_at: row.instant("deadline_at")?,
        waited: row
            .value::<Option<i64>>("waited_ms")?
            .map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0))),
        timeout: row.duration("timeout_ms")?,
        retry: row.retry_policy()?,
        policy_known: row.value("policy_known")?,
        payload: Payload {
            bytes: row.value("payload")?,
            content_type: row.value("content_type")?,
        },
        checkpoint: row.value("checkpoint")?,
        trace: row.trace()?,
    })
}

/// Pins the policy of its job on what runs under the fence: execution, claim, generation.
pub(super) async fn pin_policy(
    conn: &mut SqliteConnection,
    now: Millis,
    (execution_id, claim_id, generation): (Uuid, Uuid, i64),
    policy: &Policy,
) -> Result<PolicyPinned, Fault> {
    let row = sqlx::query(sql!("claim/pin_policy"))
        .bind(execution_id)
        .bind(claim_id)
        .bind(generation)
        .bind(millis(policy.timeout))
        .bind(policy.max_attempts)
        .bind(millis(policy.start_deadline))
        .bind(policy.on_lost.as_str())
        .bind(millis(policy.retry.first))
        .bind(millis(policy.retry.cap))
        .bind(now)
        .fetch_optional(conn)
        .await?;
    row.map_or(Ok(PolicyPinned::Fenced), |row| {
        Ok(PolicyPinned::Pinned {
            deadline_at: row.instant("deadline_at")?,
            timeout: row.duration("timeout_ms")?,
            max_attempts: row.number("max_attempts")?,
        })
    })
}

/// Hands back an execution that no handler here can run.
pub(super) async fn defer(
    conn: &mut SqliteConnection,
    now: Millis,
    deferral: &Deferral,
) -> Result<(), Fault> {
    sqlx::query(sql!("claim/defer"))
        .bind(deferral.execution_id)
        .bind(deferral.dispatch_no)
        .bind(now)
        .execute(conn)
        .await?;
    Ok(())
}
