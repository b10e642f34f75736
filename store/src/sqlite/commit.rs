//! Commits: the fenced transition out of `running`.

use std::time::Duration;

use bellwether_schemas::limits::ERROR_TEXT_MAX;
use bellwether_schemas::state::{OnLost, Reason, State};
use bellwether_schemas::text;
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::clock::Millis;
use super::dispatch;
use super::errors::Fault;
use super::row::{Columns, millis};
use crate::Payload;
use crate::executions::{Commit, Committed, Outcome};
use crate::inspect::ClaimState;

/// The refusal that a claim without a free slot leaves.
const EXECUTOR_OVERLOADED: &str = "executor_overloaded";

/// What decides a commit.
struct Facts {
    state: State,
    generation: i64,
    claim_id: Option<Uuid>,
    left_by_commit: bool,
    attempt: i64,
    max_attempts: i64,
    on_lost: OnLost,
    cancel_requested: bool,
}

impl Facts {
    fn read(row: &SqliteRow) -> Result<Self, Fault> {
        Ok(Self {
            state: row.word("state")?,
            generation: row.value("generation")?,
            claim_id: row.value("claim_id")?,
            left_by_commit: row.value::<Option<&str>>("left_by")? == Some("commit"),
            attempt: row.value("attempt")?,
            max_attempts: row.value("max_attempts")?,
            on_lost: row.word("on_lost")?,
            cancel_requested: row
                .value::<Option<Millis>>("cancel_requested_at")?
                .is_some(),
        })
    }
}

/// Where an outcome takes the row.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    state: State,
    reason: Option<Reason>,
    attempts_exhausted: bool,
    attempt: i64,
    /// For a waiting state: how long it waits.
    delay: Option<Duration>,
}

/// What the fence says of a result.
enum Judged {
    /// It is in the ledger, now or before.
    Accepted(State),
    /// It changes nothing; the row as found, if there is one.
    Refused(Option<Facts>),
}

/// Commits one result under its fence.
pub(super) async fn commit(
    conn: &mut SqliteConnection,
    now: Millis,
    commit: &Commit,
) -> Result<Committed, Fault> {
    let judged = judge(&mut *conn, now, commit).await?;
    if let Judged::Refused(found) = &judged {
        keep_fenced(conn, now, commit, found.as_ref()).await?;
    }
    Ok(judged.answer())
}

/// Commits one result in a transaction of the caller's, where nothing is kept of what the fence
/// refuses.
pub(super) async fn commit_in(
    conn: &mut SqliteConnection,
    now: Millis,
    commit: &Commit,
) -> Result<Committed, Fault> {
    Ok(judge(conn, now, commit).await?.answer())
}

impl Judged {
    fn answer(&self) -> Committed {
        match self {
            Self::Accepted(state) => Committed::Accepted(*state),
            Self::Refused(None) => Committed::Gone,
            Self::Refused(Some(facts)) => Committed::Fenced {
                state: facts.state,
                generation: facts.generation,
            },
        }
    }
}

async fn judge(conn: &mut SqliteConnection, now: Millis, commit: &Commit) -> Result<Judged, Fault> {
    let row = sqlx::query(sql!("commit/facts"))
        .bind(commit.execution_id)
        .fetch_optional(&mut *conn)
        .await?;
    let Some(row) = row else {
        return Ok(Judged::Refused(None));
    };
    let facts = Facts::read(&row)?;
    if facts.claim_id == Some(commit.claim_id) && facts.generation == commit.generation {
        if facts.state == State::Unknown && !commit.outcome.stopped() {
            // It says no more than that.
            return Ok(Judged::Accepted(State::Unknown));
        }
        // Who gave up on this claim said `unknown` only: its own result still decides.
        if matches!(facts.state, State::Running | State::Unknown) {
            let change = decide(&facts, &commit.outcome);
            apply(conn, now, commit, &change).await?;
            return Ok(Judged::Accepted(change.state));
        }
        if facts.left_by_commit {
            return Ok(Judged::Accepted(facts.state));
        }
    } else if accepted_before(conn, commit).await? {
        // What a commit put into history was retrying.
        return Ok(Judged::Accepted(State::Retrying));
    }
    Ok(Judged::Refused(Some(facts)))
}

/// How the execution of a claim stands.
pub(super) async fn standing(
    conn: &mut SqliteConnection,
    execution_id: Uuid,
    claim_id: Uuid,
) -> Result<ClaimState, Fault> {
    let row = sqlx::query(sql!("commit/standing"))
        .bind(execution_id)
        .bind(claim_id)
        .fetch_optional(conn)
        .await?;
    let Some(row) = row else {
        return Ok(ClaimState::Gone);
    };
    let state: State = row.word("state")?;
    let by_commit = row.value::<Option<&str>>("left_by")? == Some("commit");
    Ok(match (row.value("own")?, row.value("superseded")?) {
        (true, _) if state == State::Running => ClaimState::Running,
        (true, _) if by_commit => ClaimState::Ended(state),
        // What a commit put into history was retrying.
        (_, true) => ClaimState::Ended(State::Retrying),
        _ => ClaimState::Fenced(state),
    })
}

/// Whether this is the repeat of a result after which the row was claimed again.
async fn accepted_before(conn: &mut SqliteConnection, commit: &Commit) -> Result<bool, Fault> {
    let accepted = sqlx::query(sql!("commit/accepted_before"))
        .bind(commit.execution_id)
        .bind(commit.generation)
        .bind(commit.claim_id)
        .fetch_optional(conn)
        .await?;
    Ok(accepted.is_some())
}

fn decide(row: &Facts, outcome: &Outcome) -> Change {
    let end = |state, reason| Change {
        state,
        reason,
        attempts_exhausted: false,
        attempt: row.attempt,
        delay: None,
    };
    // With a cancel requested, what would be runnable again ends instead.
    let wait = |reason, attempt, delay| {
        if row.cancel_requested {
            return Change {
                attempt,
                ..end(State::Cancelled, Some(Reason::Cancelled))
            };
        }
        Change {
            attempt,
            delay: Some(delay),
            ..end(State::Retrying, Some(reason))
        }
    };
    match outcome {
        Outcome::Complete(_) => end(State::Succeeded, None),
        Outcome::Cancel(_) => end(State::Cancelled, Some(Reason::Cancelled)),
        Outcome::Fail(_) => end(State::Failed, Some(Reason::Rejected)),
        Outcome::Snooze(delay) => wait(Reason::Snooze, row.attempt - 1, *delay),
        Outcome::Release | Outcome::Overloaded => {
            wait(Reason::Release, row.attempt - 1, Duration::ZERO)
        }
        Outcome::Retry {
            reason,
            stopped: false,
            ..
        } if row.on_lost == OnLost::Unknown => end(State::Unknown, Some(*reason)),
        Outcome::Retry { reason, .. }
            if row.attempt >= row.max_attempts && !row.cancel_requested =>
        {
            Change {
                attempts_exhausted: true,
                ..end(State::Failed, Some(*reason))
            }
        }
        Outcome::Retry { reason, delay, .. } => wait(*reason, row.attempt, *delay),
    }
}

/// What the outcome says went wrong, fit for the ledger.
fn error_of(outcome: &Outcome) -> Option<String> {
    match outcome {
        Outcome::Cancel(error) | Outcome::Fail(error) | Outcome::Retry { error, .. } => {
            Some(text::clean(error, ERROR_TEXT_MAX).into_owned())
        }
        Outcome::Complete(_) | Outcome::Snooze(_) | Outcome::Release | Outcome::Overloaded => None,
    }
}

fn output_of(outcome: &Outcome) -> Option<&Payload> {
    match outcome {
        Outcome::Complete(output) => Some(output),
        _ => None,
    }
}

async fn apply(
    conn: &mut SqliteConnection,
    now: Millis,
    commit: &Commit,
    change: &Change,
) -> Result<(), Fault> {
    let output = output_of(&commit.outcome);
    sqlx::query(sql!("commit/apply"))
        .bind(commit.execution_id)
        .bind(change.state.as_str())
        .bind(change.reason.map(Reason::as_str))
        .bind(change.attempts_exhausted)
        .bind(change.attempt)
        .bind(change.delay.map(|delay| now + millis(delay)))
        .bind(change.state.is_terminal().then_some(now))
        .bind(error_of(&commit.outcome))
        .bind(output.map(|output| output.bytes.as_slice()))
        .bind(output.map(|output| output.content_type.as_str()))
        .bind(commit.started_ago.map(|ago| now - millis(ago)))
        .bind(now)
        .bind(commit.generation)
        .bind((commit.outcome == Outcome::Overloaded).then_some(EXECUTOR_OVERLOADED))
        .execute(&mut *conn)
        .await?;
    if change.delay.is_some_and(|delay| delay.is_zero()) {
        dispatch::dispatch(conn, now, commit.execution_id).await?;
    }
    Ok(())
}

/// Keeps a refused result for audit; a repeat changes nothing.
async fn keep_fenced(
    conn: &mut SqliteConnection,
    now: Millis,
    commit: &Commit,
    found: Option<&Facts>,
) -> Result<(), Fault> {
    sqlx::query(sql!("commit/keep_fenced"))
        .bind(commit.execution_id)
        .bind(commit.claim_id)
        .bind(commit.generation)
        .bind(commit.outcome.as_str())
        .bind(output_of(&commit.outcome).map(|output| output.bytes.as_slice()))
        .bind(error_of(&commit.outcome))
        .bind(found.map(|found| found.state.as_str()))
        .bind(found.map(|found| found.generation))
        .bind(now)
        .execute(conn)
        .await?;
    Ok(())
}
