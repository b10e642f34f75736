//! Commits: the fenced transition out of `running`. What a result makes of the row is the machine's
//! word ([`crate::life`]); here it is read and written.

use std::time::Duration;

use bellwether_schemas::limits::ERROR_TEXT_MAX;
use bellwether_schemas::state::{Reason, State};
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
use crate::life::{
    self, Answer, Attempt, Effect, Execution, Flag, LastRefusal, LeftBy, Pinned, Step, Token,
};

/// Commits one result under its fence.
pub(super) async fn commit(
    conn: &mut SqliteConnection,
    now: Millis,
    commit: &Commit,
) -> Result<Committed, Fault> {
    settle(conn, now, commit, false).await
}

/// Commits one result in a transaction of the caller's, where nothing is kept of what the fence
/// refuses.
pub(super) async fn commit_in(
    conn: &mut SqliteConnection,
    now: Millis,
    commit: &Commit,
) -> Result<Committed, Fault> {
    settle(conn, now, commit, true).await
}

async fn settle(
    conn: &mut SqliteConnection,
    now: Millis,
    commit: &Commit,
    in_transaction: bool,
) -> Result<Committed, Fault> {
    let token = Token {
        claim_id: commit.claim_id,
        generation: commit.generation,
    };
    let Some(row) = find(&mut *conn, commit.execution_id, token).await? else {
        if !in_transaction {
            keep_fenced(conn, now, commit, None).await?;
        }
        return Ok(Committed::Gone);
    };
    let step = life::commit(&row, token, &commit.outcome, in_transaction);
    if step.next != row {
        apply(&mut *conn, now, commit, &step.next).await?;
    }
    for effect in &step.effects {
        match effect {
            Effect::Dispatch { .. } => {
                dispatch::dispatch(&mut *conn, now, commit.execution_id).await?;
            }
            Effect::KeepFenced { .. } => keep_fenced(&mut *conn, now, commit, Some(&row)).await?,
            Effect::Sent { .. }
            | Effect::Supersede(_)
            | Effect::KeepVerdict { .. }
            | Effect::Bury(_) => {}
        }
    }
    answer(&step)
}

fn answer(step: &Step) -> Result<Committed, Fault> {
    match step.answer {
        Answer::Committed(committed) => Ok(committed),
        other => Err(Fault::Corrupt(format!("a result is answered by {other:?}"))),
    }
}

/// The row as far as a result is decided by it.
async fn find(
    conn: &mut SqliteConnection,
    id: Uuid,
    token: Token,
) -> Result<Option<Execution>, Fault> {
    let found = sqlx::query(sql!("commit/facts"))
        .bind(id)
        .fetch_optional(&mut *conn)
        .await?;
    let Some(found) = found else {
        return Ok(None);
    };
    let mut row = Execution::later(Pinned {
        max_attempts: found.number("max_attempts")?,
        on_lost: found.word("on_lost")?,
    });
    row.state = found.word("state")?;
    row.attempt = found.number("attempt")?;
    let claim_id: Option<Uuid> = found.value("claim_id")?;
    let generation = found.value("generation")?;
    row.claim = claim_id.map(|claim_id| Token {
        claim_id,
        generation,
    });
    row.left_by = left_by(&found)?;
    row.result_generation = found.value("result_generation")?;
    if found
        .value::<Option<Millis>>("cancel_requested_at")?
        .is_some()
    {
        row.flags.insert(Flag::CancelRequested);
    }
    if row.claim != Some(token) {
        row.history.extend(superseded(conn, id, token).await?);
    }
    Ok(Some(row))
}

/// The attempt of a claim whose result was accepted before the row was claimed again.
async fn superseded(
    conn: &mut SqliteConnection,
    id: Uuid,
    token: Token,
) -> Result<Option<Attempt>, Fault> {
    let found = sqlx::query(sql!("commit/accepted_before"))
        .bind(id)
        .bind(token.generation)
        .bind(token.claim_id)
        .fetch_optional(conn)
        .await?;
    let Some(found) = found else {
        return Ok(None);
    };
    Ok(Some(Attempt {
        token,
        number: found.number("attempt")?,
        reason: found.word_opt("reason")?,
        left_by: left_by(&found)?,
    }))
}

fn left_by(found: &SqliteRow) -> Result<Option<LeftBy>, Fault> {
    let late = found.value("left_late")?;
    let word: Option<&str> = found.value("left_by")?;
    Ok(word.map(|word| match word {
        "commit" if late => LeftBy::LateCommit,
        "commit" => LeftBy::Commit,
        _ => LeftBy::Sweep,
    }))
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
    let late = row.value("late")?;
    let made = if row.value("went_on")? {
        State::Retrying
    } else {
        state
    };
    let by_commit = row.value::<Option<&str>>("left_by")? == Some("commit");
    Ok(match (row.value("own")?, row.value("superseded")?) {
        (true, _) if state == State::Running => ClaimState::Running,
        (true, _) if by_commit => ClaimState::ended(made, late),
        // What a commit put into history was retrying.
        (_, true) => ClaimState::ended(State::Retrying, late),
        _ => ClaimState::Fenced(state),
    })
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

/// Writes what a result has made of the row.
async fn apply(
    conn: &mut SqliteConnection,
    now: Millis,
    commit: &Commit,
    next: &Execution,
) -> Result<(), Fault> {
    let output = output_of(&commit.outcome);
    let waits = next.state == State::Retrying;
    sqlx::query(sql!("commit/apply"))
        .bind(commit.execution_id)
        .bind(next.state.as_str())
        .bind(next.reason.map(Reason::as_str))
        .bind(next.has(Flag::AttemptsExhausted))
        .bind(next.attempt)
        .bind(waits.then(|| now + millis(delay_of(&commit.outcome))))
        .bind(next.state.is_terminal().then_some(now))
        .bind(error_of(&commit.outcome))
        .bind(output.map(|output| output.bytes.as_slice()))
        .bind(output.map(|output| output.content_type.as_str()))
        .bind(commit.started_ago.map(|ago| now - millis(ago)))
        .bind(now)
        .bind(commit.generation)
        .bind(next.last_refusal.map(LastRefusal::as_str))
        .bind(next.left_by.is_some_and(LeftBy::is_late))
        .execute(&mut *conn)
        .await?;
    Ok(())
}

fn delay_of(outcome: &Outcome) -> Duration {
    match outcome {
        Outcome::Snooze(delay) | Outcome::Retry { delay, .. } => *delay,
        _ => Duration::ZERO,
    }
}

/// Keeps a refused result for audit; a repeat changes nothing.
async fn keep_fenced(
    conn: &mut SqliteConnection,
    now: Millis,
    commit: &Commit,
    found: Option<&Execution>,
) -> Result<(), Fault> {
    sqlx::query(sql!("commit/keep_fenced"))
        .bind(commit.execution_id)
        .bind(commit.claim_id)
        .bind(commit.generation)
        .bind(commit.outcome.as_str())
        .bind(output_of(&commit.outcome).map(|output| output.bytes.as_slice()))
        .bind(error_of(&commit.outcome))
        .bind(found.map(|found| found.state.as_str()))
        .bind(found.map(Execution::generation))
        .bind(now)
        .execute(conn)
        .await?;
    Ok(())
}
