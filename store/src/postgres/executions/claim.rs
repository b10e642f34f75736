//! Claims of dispatched executions, and their deferral.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use bellwether_schemas::state::State;
use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};
use uuid::Uuid;

use crate::Result;
use crate::executions::{ClaimAnswer, ClaimAsk, Claimed, Deferral, PolicyPinned, Refusal};
use crate::postgres::{PgStore, call, check, errors, row, sql};
use crate::schedules::Policy;

impl PgStore {
    pub(super) async fn claim_batch(
        &self,
        session: Uuid,
        asks: &[ClaimAsk],
    ) -> Result<Vec<ClaimAnswer>> {
        const OP: &str = "claim executions";
        if asks.is_empty() {
            return Ok(Vec::new());
        }
        let error = match call!(self, OP, |conn| claim(conn, session, asks).await) {
            Ok(answers) => return Ok(answers),
            Err(error) => error,
        };
        if error.is_transient() || asks.len() == 1 {
            return Err(error);
        }
        tracing::error!(%error, "a batch of claims failed, claiming one by one");
        let mut answers = Vec::with_capacity(asks.len());
        for ask in asks {
            let one = std::slice::from_ref(ask);
            match call!(self, OP, |conn| claim(conn, session, one).await) {
                Ok(answer) => answers.extend(answer),
                Err(error) if error.is_transient() => return Err(error),
                Err(error) => {
                    tracing::error!(%error, execution = %ask.execution_id, "cannot be claimed");
                    answers.push(ClaimAnswer::Busy);
                }
            }
        }
        Ok(answers)
    }

    pub(super) async fn pin(
        &self,
        execution_id: Uuid,
        claim_id: Uuid,
        generation: i64,
        policy: &Policy,
    ) -> Result<PolicyPinned> {
        const OP: &str = "pin the policy of a job";
        check::policy(OP, policy)?;
        call!(self, OP, |conn| {
            let row = sqlx::query(sql!("executions/pin_policy"))
                .bind(execution_id)
                .bind(claim_id)
                .bind(generation)
                .bind(row::millis(policy.timeout))
                .bind(row::int(policy.max_attempts))
                .bind(row::millis(policy.start_deadline))
                .bind(policy.on_lost.as_str())
                .bind(row::millis(policy.retry.first))
                .bind(row::millis(policy.retry.cap))
                .fetch_optional(conn)
                .await?;
            row.map_or(Ok(PolicyPinned::Fenced), |row| {
                Ok(PolicyPinned::Pinned {
                    deadline_at: row.try_get("deadline_at")?,
                    timeout: row::stored_ms(&row, "timeout_ms")?,
                    max_attempts: row::count(&row, "max_attempts")?,
                })
            })
        })
    }

    pub(super) async fn defer_batch(&self, deferrals: &[Deferral]) -> Result<()> {
        let ids: Vec<Uuid> = deferrals
            .iter()
            .map(|deferral| deferral.execution_id)
            .collect();
        let numbers: Vec<i32> = deferrals
            .iter()
            .map(|deferral| row::int(deferral.dispatch_no))
            .collect();
        call!(self, "defer executions", |conn| {
            sqlx::query(sql!("executions/defer"))
                .bind(&ids)
                .bind(&numbers)
                .execute(conn)
                .await
        })
        .map(drop)
    }
}

async fn claim(
    conn: &mut PgConnection,
    session: Uuid,
    asks: &[ClaimAsk],
) -> sqlx::Result<Vec<ClaimAnswer>> {
    // Of two asks for one execution the first counts; the second finds what came of it.
    let mut seen = HashSet::new();
    let firsts: Vec<&ClaimAsk> = asks
        .iter()
        .filter(|ask| seen.insert(ask.execution_id))
        .collect();
    let ids: Vec<Uuid> = firsts.iter().map(|ask| ask.execution_id).collect();
    let numbers: Vec<i32> = firsts.iter().map(|ask| row::int(ask.dispatch_no)).collect();
    let tokens: Vec<Uuid> = firsts.iter().map(|ask| ask.claim_id).collect();
    let rows = sqlx::query(sql!("executions/claim"))
        .bind(&ids)
        .bind(&numbers)
        .bind(&tokens)
        .bind(session)
        .fetch_all(&mut *conn)
        .await?;
    if !rows
        .first()
        .ok_or(sqlx::Error::RowNotFound)?
        .try_get::<bool, _>("live")?
    {
        return Ok(vec![ClaimAnswer::SessionLost; asks.len()]);
    }
    let mut by_token = HashMap::with_capacity(rows.len());
    for row in &rows {
        if row.try_get::<Option<Uuid>, _>("id")?.is_some() {
            let claimed = claimed(row)?;
            by_token.insert((claimed.execution_id, claimed.claim_id), claimed);
        }
    }
    // An ask that stands twice in the batch is answered by the second look.
    let answers: Vec<Option<ClaimAnswer>> = asks
        .iter()
        .map(|ask| {
            let claimed = by_token.remove(&(ask.execution_id, ask.claim_id))?;
            Some(ClaimAnswer::Claimed(Box::new(claimed)))
        })
        .collect();
    answer_rest(conn, asks, answers).await
}

/// Reads what stood in the way of the asks that have no answer yet.
async fn answer_rest(
    conn: &mut PgConnection,
    asks: &[ClaimAsk],
    mut answers: Vec<Option<ClaimAnswer>>,
) -> sqlx::Result<Vec<ClaimAnswer>> {
    let open: Vec<usize> = (0..asks.len())
        .filter(|&at| answers[at].is_none())
        .collect();
    if !open.is_empty() {
        let ids: Vec<Uuid> = open.iter().map(|&at| asks[at].execution_id).collect();
        let tokens: Vec<Uuid> = open.iter().map(|&at| asks[at].claim_id).collect();
        let rows = sqlx::query(sql!("executions/not_claimed"))
            .bind(&ids)
            .bind(&tokens)
            .fetch_all(conn)
            .await?;
        for (&at, row) in open.iter().zip(&rows) {
            answers[at] = Some(why_not(row, &asks[at])?);
        }
    }
    answers
        .into_iter()
        .collect::<Option<_>>()
        .ok_or(sqlx::Error::RowNotFound)
}

/// Whether the message is the dispatch that is out. A row that waits to be dispatched has none;
/// what still bears its number is an old copy.
fn own_dispatch(row: &PgRow, ask: &ClaimAsk) -> sqlx::Result<bool> {
    Ok(row.try_get("dispatched")? && row::count(row, "dispatch_no")? == ask.dispatch_no)
}

fn why_not(row: &PgRow, ask: &ClaimAsk) -> sqlx::Result<ClaimAnswer> {
    let Some(state) = row::word_opt::<State>(row, "state")? else {
        return Ok(ClaimAnswer::Refused(Refusal::NoSuchExecution));
    };
    if row.try_get("own")? {
        return Ok(ClaimAnswer::Claimed(Box::new(claimed(row)?)));
    }
    let refusal = if state.is_terminal() {
        Refusal::Terminal(state)
    } else if row.try_get("own_probe")? || row.try_get("probe_due")? && own_dispatch(row, ask)? {
        return Ok(ClaimAnswer::ProbeDue);
    } else if !state.is_waiting() {
        Refusal::Held
    } else if row.try_get("cancel_requested")? {
        Refusal::CancelRequested
    } else if row.try_get("past_start_deadline")? {
        Refusal::PastStartDeadline
    } else if row.try_get("budget_used_up")? {
        Refusal::BudgetUsedUp
    } else if row.try_get("held")? || row.try_get("ahead")? && !own_dispatch(row, ask)? {
        Refusal::NotDue
    } else {
        // Claimable as we look: it was locked, or it changed in between.
        return Ok(ClaimAnswer::Busy);
    };
    Ok(ClaimAnswer::Refused(refusal))
}

fn claimed(row: &PgRow) -> sqlx::Result<Claimed> {
    Ok(Claimed {
        execution_id: row.try_get("id")?,
        fire_id: row.try_get("fire_id")?,
        operation_id: row.try_get("operation_id")?,
        job: row.try_get("job")?,
        queue: row.try_get("queue")?,
        claim_id: row.try_get("claim_id")?,
        generation: row.try_get("generation")?,
        attempt: row::count(row, "attempt")?,
        max_attempts: row::count(row, "max_attempts")?,
        shard_index: row::count(row, "shard_index")?,
        shard_total: row::count(row, "shard_total")?,
        trigger: row::word(row, "trigger")?,
        schedule_version: row.try_get("schedule_version")?,
        scheduled_at: row.try_get("scheduled_at")?,
        deadline_at: row.try_get("deadline_at")?,
        waited: row
            .try_get::<Option<i64>, _>("waited_us")?
            .map(|us| Duration::from_micros(u64::try_from(us).unwrap_or(0))),
        timeout: row::stored_ms(row, "timeout_ms")?,
        retry: row::retry_policy(row)?,
        policy_known: row.try_get("policy_known")?,
        payload: row::payload(row, "payload", "content_type")?
            .ok_or_else(|| errors::corrupt("payload", "neither execution nor fire has one"))?,
        checkpoint: row.try_get("checkpoint")?,
        trace: row::trace(row)?,
    })
}
