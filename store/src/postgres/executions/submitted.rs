//! Submitted messages: recorded under their key, and claimed at once when they are due.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use bellwether_schemas::ids;
use bellwether_schemas::state::{State, Trigger};
use bellwether_schemas::trace::TraceContext;
use chrono::{DateTime, Utc};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Connection, Row};
use uuid::Uuid;

use crate::executions::{ClaimAnswer, Claimed, Refusal, SubmitAsk};
use crate::postgres::{PgStore, call, check, errors, finish, row, sql};
use crate::sweeps::KEY_RETENTION_MIN;
use crate::{ErrorKind, Result};

/// So long before its key may be forgotten a message is a dead letter: broker and database do not
/// share a clock.
const STALE_MARGIN: Duration = Duration::from_hours(24);
/// After this long one by one the rest is `busy`: a claim that is decided late runs late.
const ONE_BY_ONE_MAX: Duration = Duration::from_secs(2);

impl PgStore {
    pub(super) async fn claim_submitted_batch(
        &self,
        session: Uuid,
        asks: &[SubmitAsk],
    ) -> Result<Vec<ClaimAnswer>> {
        const OP: &str = "claim submitted messages";
        asks.iter().try_for_each(check::submitted)?;
        if asks.is_empty() {
            return Ok(Vec::new());
        }
        match call!(self, OP, |conn| submit_impatiently(conn, session, asks)
            .await)
        {
            Ok(Some(answers)) => return Ok(answers),
            Ok(None) if asks.len() == 1 => return Ok(vec![ClaimAnswer::Busy]),
            // An `enqueue_in` of a long transaction: all but its key can go on.
            Ok(None) => tracing::debug!("somebody sits on a key, claiming one by one"),
            Err(error) if error.kind() == ErrorKind::Unavailable => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "a batch of submitted messages failed, claiming one by one");
            }
        }
        let begun = Instant::now();
        let mut answers = Vec::with_capacity(asks.len());
        for ask in asks {
            if begun.elapsed() >= ONE_BY_ONE_MAX {
                answers.push(ClaimAnswer::Busy);
                continue;
            }
            let one = std::slice::from_ref(ask);
            match call!(self, OP, |conn| submit_impatiently(conn, session, one)
                .await)
            {
                Ok(answer) => answers.extend(answer.unwrap_or_else(|| vec![ClaimAnswer::Busy])),
                Err(error) if error.kind() == ErrorKind::Unavailable => return Err(error),
                Err(error) => {
                    tracing::error!(%error, job = ask.job, key = ask.key, "cannot be recorded");
                    answers.push(ClaimAnswer::Busy);
                }
            }
        }
        Ok(answers)
    }
}

/// Like [`submit`], but none when somebody has sat on a key for 250 ms; nothing is claimed then.
async fn submit_impatiently(
    conn: &mut PgConnection,
    session: Uuid,
    asks: &[SubmitAsk],
) -> sqlx::Result<Option<Vec<ClaimAnswer>>> {
    let mut tx = conn.begin().await?;
    let answers = match sqlx::query(sql!("executions/impatient"))
        .execute(&mut *tx)
        .await
    {
        Ok(_) => submit(&mut tx, session, asks).await,
        Err(error) => Err(error),
    };
    match finish(tx, answers).await {
        Err(error) if errors::lock_timeout(&error) => Ok(None),
        answers => answers.map(Some),
    }
}

async fn submit(
    conn: &mut PgConnection,
    session: Uuid,
    asks: &[SubmitAsk],
) -> sqlx::Result<Vec<ClaimAnswer>> {
    // Of two asks with one id the first counts; the second finds what came of it.
    let mut seen = HashSet::new();
    let mut batch = Batch::default();
    for ask in asks.iter().filter(|ask| seen.insert(ask.fire_id)) {
        batch.push(ask);
    }
    let rows = batch.submit(conn, session).await?;
    if !rows
        .first()
        .ok_or(sqlx::Error::RowNotFound)?
        .try_get::<bool, _>("live")?
    {
        return Ok(vec![ClaimAnswer::SessionLost; asks.len()]);
    }
    let mut by_id: HashMap<Uuid, &PgRow> = HashMap::with_capacity(rows.len());
    for row in &rows {
        by_id.insert(row.try_get("id")?, row);
    }
    let mut answers = Vec::with_capacity(asks.len());
    for ask in asks {
        answers.push(match by_id.remove(&ids::execution(ask.fire_id, 0)) {
            Some(row) => answer(row, ask)?,
            None => None,
        });
    }
    answer_rest(conn, asks, answers).await
}

/// The answer of the statement itself; none if the key was there already.
fn answer(row: &PgRow, ask: &SubmitAsk) -> sqlx::Result<Option<ClaimAnswer>> {
    if row.try_get("stale")? {
        return Ok(Some(ClaimAnswer::Refused(Refusal::Stale)));
    }
    Ok(match row::word_opt::<State>(row, "state")? {
        Some(State::Running) => Some(ClaimAnswer::Claimed(Box::new(claimed(row, ask)?))),
        Some(_) => Some(ClaimAnswer::Refused(Refusal::Recorded)),
        None => None,
    })
}

/// Reads what stands behind the keys that were there already.
async fn answer_rest(
    conn: &mut PgConnection,
    asks: &[SubmitAsk],
    mut answers: Vec<Option<ClaimAnswer>>,
) -> sqlx::Result<Vec<ClaimAnswer>> {
    let open: Vec<usize> = (0..asks.len())
        .filter(|&at| answers[at].is_none())
        .collect();
    if !open.is_empty() {
        let jobs: Vec<&str> = open.iter().map(|&at| asks[at].job.as_str()).collect();
        let keys: Vec<&str> = open.iter().map(|&at| asks[at].key.as_str()).collect();
        let tokens: Vec<Uuid> = open.iter().map(|&at| asks[at].claim_id).collect();
        let rows = sqlx::query(sql!("executions/not_submitted"))
            .bind(&jobs)
            .bind(&keys)
            .bind(&tokens)
            .fetch_all(conn)
            .await?;
        for (&at, row) in open.iter().zip(&rows) {
            answers[at] = Some(known(row, &asks[at])?);
        }
    }
    answers
        .into_iter()
        .collect::<Option<_>>()
        .ok_or(sqlx::Error::RowNotFound)
}

fn known(row: &PgRow, ask: &SubmitAsk) -> sqlx::Result<ClaimAnswer> {
    let Some(execution_id) = row.try_get::<Option<Uuid>, _>("execution_id")? else {
        // It was there a moment ago: its transaction was rolled back, or it was forgotten.
        return Ok(ClaimAnswer::Busy);
    };
    let Some(state) = row::word_opt::<State>(row, "state")? else {
        return Ok(ClaimAnswer::Refused(Refusal::KnownKey));
    };
    if execution_id == ids::execution(ask.fire_id, 0) {
        if row.try_get("own")? {
            return Ok(ClaimAnswer::Claimed(Box::new(claimed(row, ask)?)));
        }
        if state.is_waiting() && row.try_get::<i64, _>("generation")? == 0 {
            return Ok(ClaimAnswer::Refused(Refusal::Recorded));
        }
    }
    Ok(ClaimAnswer::Refused(Refusal::KnownKey))
}

/// The first attempt of what `ask` recorded.
fn claimed(row: &PgRow, ask: &SubmitAsk) -> sqlx::Result<Claimed> {
    let id = ids::execution(ask.fire_id, 0);
    Ok(Claimed {
        execution_id: id,
        fire_id: ask.fire_id,
        operation_id: id,
        job: ask.job.clone(),
        queue: ask.queue.clone(),
        claim_id: ask.claim_id,
        generation: 1,
        attempt: 1,
        max_attempts: ask.policy.max_attempts,
        shard_index: 0,
        shard_total: 1,
        trigger: Trigger::Submit,
        schedule_version: None,
        scheduled_at: row.try_get("scheduled_at")?,
        deadline_at: row.try_get("deadline_at")?,
        waited: None,
        timeout: ask.policy.timeout,
        retry: ask.policy.retry,
        policy_known: true,
        payload: ask.payload.clone(),
        checkpoint: None,
        trace: Some(trace(ask)),
    })
}

fn trace(ask: &SubmitAsk) -> TraceContext {
    ask.trace
        .clone()
        .unwrap_or_else(|| TraceContext::root(ask.fire_id))
}

/// Asks as parallel arrays.
#[derive(Default)]
struct Batch<'a> {
    execution_ids: Vec<Uuid>,
    fire_ids: Vec<Uuid>,
    claim_ids: Vec<Uuid>,
    jobs: Vec<&'a str>,
    queues: Vec<&'a str>,
    keys: Vec<&'a str>,
    payloads: Vec<&'a [u8]>,
    content_types: Vec<&'a str>,
    run_ats: Vec<Option<DateTime<Utc>>>,
    timeouts_ms: Vec<i64>,
    max_attempts: Vec<i32>,
    start_deadlines_ms: Vec<i64>,
    on_losts: Vec<&'static str>,
    stored_ats: Vec<DateTime<Utc>>,
    has_handlers: Vec<bool>,
    traceparents: Vec<String>,
    tracestates: Vec<String>,
    retry_firsts_ms: Vec<i64>,
    retry_caps_ms: Vec<i64>,
    own_timeouts: Vec<bool>,
}

impl<'a> Batch<'a> {
    fn push(&mut self, ask: &'a SubmitAsk) {
        let trace = trace(ask);
        self.execution_ids.push(ids::execution(ask.fire_id, 0));
        self.fire_ids.push(ask.fire_id);
        self.claim_ids.push(ask.claim_id);
        self.jobs.push(&ask.job);
        self.queues.push(&ask.queue);
        self.keys.push(&ask.key);
        self.payloads.push(&ask.payload.bytes);
        self.content_types.push(&ask.payload.content_type);
        self.run_ats.push(ask.run_at);
        self.timeouts_ms.push(row::millis(ask.policy.timeout));
        self.max_attempts.push(row::int(ask.policy.max_attempts));
        self.start_deadlines_ms
            .push(row::millis(ask.policy.start_deadline));
        self.on_losts.push(ask.policy.on_lost.as_str());
        self.stored_ats.push(ask.stored_at);
        self.has_handlers.push(ask.has_handler);
        self.traceparents.push(trace.traceparent);
        self.tracestates.push(trace.tracestate);
        self.retry_firsts_ms
            .push(row::millis(ask.policy.retry.first));
        self.retry_caps_ms.push(row::millis(ask.policy.retry.cap));
        self.own_timeouts.push(ask.own_timeout);
    }

    async fn submit(&self, conn: &mut PgConnection, session: Uuid) -> sqlx::Result<Vec<PgRow>> {
        sqlx::query(sql!("executions/submit"))
            .bind(&self.execution_ids)
            .bind(&self.fire_ids)
            .bind(&self.claim_ids)
            .bind(&self.jobs)
            .bind(&self.queues)
            .bind(&self.keys)
            .bind(&self.payloads)
            .bind(&self.content_types)
            .bind(&self.run_ats)
            .bind(&self.timeouts_ms)
            .bind(&self.max_attempts)
            .bind(&self.start_deadlines_ms)
            .bind(&self.on_losts)
            .bind(&self.stored_ats)
            .bind(&self.has_handlers)
            .bind(session)
            .bind(row::micros(STALE_MARGIN))
            .bind(&self.traceparents)
            .bind(&self.tracestates)
            .bind(&self.retry_firsts_ms)
            .bind(&self.retry_caps_ms)
            .bind(&self.own_timeouts)
            .bind(row::micros(KEY_RETENTION_MIN))
            .fetch_all(conn)
            .await
    }
}
