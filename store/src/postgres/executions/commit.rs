//! Commits: the fenced transition out of `running`.

use std::collections::{HashMap, HashSet};

use bellwether_schemas::limits::ERROR_TEXT_MAX;
use bellwether_schemas::state::{Reason, State};
use bellwether_schemas::text;
use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};
use uuid::Uuid;

use crate::executions::{Commit, Committed, Outcome};
use crate::postgres::{PgStore, call, check, row, sql};
use crate::{Error, ErrorKind, Payload, Result};

const OP: &str = "commit results";

/// The fence: which claim a result belongs to.
type Fence = (Uuid, Uuid, i64);

impl PgStore {
    /// A batch that fails on one row is committed row by row; the error of the bad one is
    /// returned when all others are in. A repeat answers those as accepted.
    pub(super) async fn commit_batch(&self, commits: &[Commit]) -> Result<Vec<Committed>> {
        commits.iter().try_for_each(check::commit)?;
        if commits.is_empty() {
            return Ok(Vec::new());
        }
        let error = match self.commit_once(commits).await {
            Ok(answers) => return Ok(answers),
            Err(error) => error,
        };
        if error.is_transient() || commits.len() == 1 {
            return Err(error);
        }
        tracing::error!(%error, "a batch of results failed, committing one by one");
        let mut answers = Vec::with_capacity(commits.len());
        let mut refused = None;
        for commit in commits {
            match self.commit_once(std::slice::from_ref(commit)).await {
                Ok(answer) => answers.extend(answer),
                Err(error) if error.is_transient() => return Err(error),
                Err(error) => {
                    tracing::error!(%error, execution = %commit.execution_id, "result refused");
                    refused = Some(error);
                }
            }
        }
        refused.map_or(Ok(answers), Err)
    }

    async fn commit_once(&self, commits: &[Commit]) -> Result<Vec<Committed>> {
        let answers = call!(self, OP, |conn| commit(conn, commits).await)?;
        answers.ok_or_else(|| {
            Error::new(
                OP,
                ErrorKind::Conflict,
                "a claim came while its result was committed",
            )
        })
    }
}

/// None if a row came to a claim while its result was looked at.
async fn commit(
    conn: &mut PgConnection,
    commits: &[Commit],
) -> sqlx::Result<Option<Vec<Committed>>> {
    // Of two results of one claim the first counts; the second is a repeat.
    let mut seen = HashSet::new();
    let mut batch = Batch::default();
    for commit in commits.iter().filter(|commit| seen.insert(fence(commit))) {
        batch.push(commit);
    }
    let rows = batch.commit(conn).await?;
    let mut accepted: HashMap<Fence, Committed> = HashMap::with_capacity(rows.len());
    for row in &rows {
        let fence = (
            row.try_get("id")?,
            row.try_get("claim_id")?,
            row.try_get("generation")?,
        );
        accepted.insert(fence, held(row)?);
    }
    answer_rest(conn, commits, &accepted).await
}

fn fence(commit: &Commit) -> Fence {
    (commit.execution_id, commit.claim_id, commit.generation)
}

/// Answers what matched no row: a repeat, or refused by the fence and kept for audit.
async fn answer_rest(
    conn: &mut PgConnection,
    commits: &[Commit],
    accepted: &HashMap<Fence, Committed>,
) -> sqlx::Result<Option<Vec<Committed>>> {
    let mut answers: Vec<Option<Committed>> = commits
        .iter()
        .map(|commit| accepted.get(&fence(commit)).copied())
        .collect();
    let open: Vec<usize> = (0..commits.len())
        .filter(|&at| answers[at].is_none())
        .collect();
    if open.is_empty() {
        return Ok(answers.into_iter().collect());
    }
    let mut batch = Batch::default();
    for &at in &open {
        batch.push(&commits[at]);
    }
    let rows = batch.refuse(conn).await?;
    for (&at, row) in open.iter().zip(&rows) {
        if row.try_get("raced")? {
            return Ok(None);
        }
        answers[at] = Some(refused(row)?);
    }
    Ok(answers.into_iter().collect())
}

/// Commits one result in a transaction of the caller's, where nothing is kept of what the fence
/// refuses. None if the row came to this claim while the result was looked at.
pub(in crate::postgres) async fn commit_in(
    conn: &mut PgConnection,
    commit: &Commit,
) -> sqlx::Result<Option<Committed>> {
    let mut batch = Batch::default();
    batch.push(commit);
    if let Some(row) = batch.commit(&mut *conn).await?.first() {
        return Ok(Some(held(row)?));
    }
    let row = sqlx::query(sql!("executions/standing"))
        .bind(commit.execution_id)
        .bind(commit.claim_id)
        .bind(commit.generation)
        .fetch_optional(conn)
        .await?;
    let Some(row) = row else {
        return Ok(Some(Committed::Gone));
    };
    let state: State = row::word(&row, "state")?;
    let late = row.try_get("late")?;
    if row.try_get("superseded")? {
        return Ok(Some(Committed::holds(State::Retrying, late)));
    }
    if row.try_get("own")? {
        let by_commit = row.try_get::<Option<&str>, _>("left_by")? == Some("commit");
        match state {
            State::Unknown if !commit.outcome.stopped() => {
                return Ok(Some(Committed::holds(state, !by_commit)));
            }
            State::Running | State::Unknown => return Ok(None),
            _ if by_commit && row.try_get("went_on")? => {
                return Ok(Some(Committed::holds(State::Retrying, late)));
            }
            _ if by_commit => return Ok(Some(Committed::holds(state, late))),
            _ => {}
        }
    }
    Ok(Some(Committed::Fenced {
        state,
        generation: row.try_get("generation")?,
    }))
}

fn held(row: &PgRow) -> sqlx::Result<Committed> {
    Ok(Committed::holds(
        row::word(row, "state")?,
        row.try_get("late")?,
    ))
}

fn refused(row: &PgRow) -> sqlx::Result<Committed> {
    Ok(match row::word_opt(row, "state")? {
        None => Committed::Gone,
        Some(_) if row.try_get("repeated")? => held(row)?,
        Some(state) => Committed::Fenced {
            state,
            generation: row.try_get("found_generation")?,
        },
    })
}

/// Results as parallel arrays.
#[derive(Default)]
struct Batch<'a> {
    execution_ids: Vec<Uuid>,
    claim_ids: Vec<Uuid>,
    generations: Vec<i64>,
    outcomes: Vec<&'static str>,
    reasons: Vec<Option<&'static str>>,
    errors: Vec<Option<String>>,
    outputs: Vec<Option<&'a [u8]>>,
    output_types: Vec<Option<&'a str>>,
    delays_us: Vec<i64>,
    started_agos_us: Vec<Option<i64>>,
    stopped: Vec<bool>,
}

impl<'a> Batch<'a> {
    fn push(&mut self, commit: &'a Commit) {
        let (reason, error) = why(&commit.outcome);
        let output = output(&commit.outcome);
        let delay = match commit.outcome {
            Outcome::Snooze(delay) | Outcome::Retry { delay, .. } => row::micros(delay),
            _ => 0,
        };
        self.execution_ids.push(commit.execution_id);
        self.claim_ids.push(commit.claim_id);
        self.generations.push(commit.generation);
        self.outcomes.push(commit.outcome.as_str());
        self.reasons.push(reason.map(Reason::as_str));
        self.errors
            .push(error.map(|error| text::clean(error, ERROR_TEXT_MAX).into_owned()));
        self.outputs
            .push(output.map(|output| output.bytes.as_slice()));
        self.output_types
            .push(output.map(|output| output.content_type.as_str()));
        self.delays_us.push(delay);
        self.started_agos_us
            .push(commit.started_ago.map(row::micros));
        self.stopped.push(commit.outcome.stopped());
    }

    async fn commit(&self, conn: &mut PgConnection) -> sqlx::Result<Vec<PgRow>> {
        sqlx::query(sql!("executions/commit"))
            .bind(&self.execution_ids)
            .bind(&self.claim_ids)
            .bind(&self.generations)
            .bind(&self.outcomes)
            .bind(&self.reasons)
            .bind(&self.errors)
            .bind(&self.outputs)
            .bind(&self.output_types)
            .bind(&self.delays_us)
            .bind(&self.started_agos_us)
            .bind(&self.stopped)
            .fetch_all(conn)
            .await
    }

    async fn refuse(&self, conn: &mut PgConnection) -> sqlx::Result<Vec<PgRow>> {
        sqlx::query(sql!("executions/refused"))
            .bind(&self.execution_ids)
            .bind(&self.claim_ids)
            .bind(&self.generations)
            .bind(&self.outcomes)
            .bind(&self.errors)
            .bind(&self.outputs)
            .bind(&self.stopped)
            .fetch_all(conn)
            .await
    }
}

fn output(outcome: &Outcome) -> Option<&Payload> {
    match outcome {
        Outcome::Complete(output) => Some(output),
        _ => None,
    }
}

/// Reason and error text that an outcome leaves in the row.
fn why(outcome: &Outcome) -> (Option<Reason>, Option<&str>) {
    match outcome {
        Outcome::Complete(_) => (None, None),
        Outcome::Snooze(_) => (Some(Reason::Snooze), None),
        Outcome::Release | Outcome::Overloaded => (Some(Reason::Release), None),
        Outcome::Cancel(text) => (Some(Reason::Cancelled), Some(text)),
        Outcome::Fail(text) => (Some(Reason::Rejected), Some(text)),
        Outcome::Retry { reason, error, .. } => (Some(*reason), Some(error)),
    }
}
