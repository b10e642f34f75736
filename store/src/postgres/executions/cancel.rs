//! Requests to cancel.

use std::collections::HashSet;

use bellwether_schemas::state::State;
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::executions::CancelRequested;
use crate::postgres::{PgStore, call, row, sql};
use crate::{ErrorKind, Result};

const OP: &str = "request that executions stop";
/// Locked rows that a batch waits for one by one; each takes the whole `lock_timeout`.
const LOCKED_MAX: u32 = 3;

impl PgStore {
    /// A batch that meets a locked row is asked row by row, so that all others have their
    /// requests. Where somebody holds many, the rest is not waited for.
    pub(super) async fn cancel_batch(&self, ids: &[Uuid]) -> Result<Vec<CancelRequested>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let error = match self.cancel_once(ids).await {
            Ok(answers) => return Ok(answers),
            Err(error) => error,
        };
        if error.kind() != ErrorKind::Conflict || ids.len() == 1 {
            return Err(error);
        }
        tracing::warn!(%error, "a batch of requests to cancel failed, asking one by one");
        let mut answers = Vec::with_capacity(ids.len());
        let mut patience = LOCKED_MAX;
        for &id in ids {
            if patience == 0 {
                answers.push(CancelRequested::Locked);
                continue;
            }
            match self.cancel_once(&[id]).await {
                Ok(answer) => answers.extend(answer),
                Err(error) if error.kind() == ErrorKind::Conflict => {
                    tracing::warn!(%error, %id, "others hold an execution locked");
                    answers.push(CancelRequested::Locked);
                    patience -= 1;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(answers)
    }

    async fn cancel_once(&self, ids: &[Uuid]) -> Result<Vec<CancelRequested>> {
        call!(self, OP, |conn| {
            let rows = sqlx::query(sql!("executions/request_cancel"))
                .bind(ids)
                .fetch_all(conn)
                .await?;
            let mut seen = HashSet::new();
            rows.iter()
                .zip(ids)
                .map(|(row, id)| answer(row, seen.insert(*id)))
                .collect()
        })
    }
}

/// `first` = the id stands here for the first time in its batch.
fn answer(row: &PgRow, first: bool) -> sqlx::Result<CancelRequested> {
    Ok(match row::word_opt::<State>(row, "state")? {
        None => CancelRequested::NotFound,
        Some(state) if state.is_terminal() => CancelRequested::Ended(state),
        Some(state) if state != State::Running && first => CancelRequested::Cancelled,
        Some(state) if state != State::Running => CancelRequested::Ended(State::Cancelled),
        Some(state) => CancelRequested::Requested {
            state,
            told: row.try_get("told")?,
        },
    })
}
