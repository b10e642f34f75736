//! `bellwether executions retry`.

use bellwether_client::{Client, Error};
use bellwether_schemas::state::{Reason, State, Verdict};
use bellwether_store::Store;
use bellwether_store::inspect::ShardResult;
use clap::Args;
use serde::Serialize;
use uuid::Uuid;

use super::act::{self, Act, Tools, Which};
use crate::command::bulk::Done;
use crate::config::Config;
use crate::exit::{Failure, JOB_FAILED, Result};
use crate::output;
use crate::output::{Format, or_dash};

#[derive(Debug, Args)]
#[command(
    override_usage = "bellwether executions retry [OPTIONS] <ID>...\n       \
                      bellwether executions retry [OPTIONS] --fire|--state|--job|--queue <…>"
)]
pub(crate) struct Command {
    #[command(flatten)]
    which: Which<Retry>,
}

pub(super) async fn run(config: &Config, command: &Command, format: Format) -> Result<()> {
    act::run(config, &command.which, format).await
}

/// What `-o json` prints of each.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    /// The one that is repeated.
    id: Uuid,
    /// `retried`, `not_retryable`, `already_retried` or `not_found`.
    result: &'static str,
    /// Its retry, made now or before.
    retry: Option<Uuid>,
    /// Where that, else the old one stands, if it is known.
    state: Option<State>,
}

/// Runs them again.
#[derive(Debug)]
struct Retry;

impl Act for Retry {
    const STATES: &'static [State] = &[State::Failed, State::Expired, State::Cancelled];
    const FITTING: &'static str = "ended without success";
    const UNREPEATED: bool = true;
    const DONE: &'static str = "retried";
    const DONE_AT_LAST: &'static str = "retried with success";
    const WAITS_FOR: &'static str =
        "the end of the new executions; exit code 7 if one did not succeed";
    /// Each retry is a fire, and a transaction, of its own.
    const BATCH: usize = 1;

    type Row = Row;

    async fn begin(_tools: &Tools, _ids: &[Uuid], _yes: bool) -> Result<Self> {
        Ok(Self)
    }

    async fn act(&self, tools: &Tools, ids: &[Uuid]) -> Result<Vec<Done<Row>>> {
        let mut done = Vec::with_capacity(ids.len());
        for &id in ids {
            warn_if_abandoned(tools.store.as_ref(), id).await?;
            done.push(retry(&tools.client, id).await?);
        }
        Ok(done)
    }

    fn awaited(row: &Row) -> Option<Uuid> {
        row.retry
    }

    fn ended(row: &mut Row, line: &str, end: ShardResult) -> Result<String> {
        row.state = Some(end.state);
        if end.state == State::Succeeded {
            return Ok(format!("{line}, which succeeded"));
        }
        let why = or_dash(end.error.as_deref().or(end.reason.map(Reason::as_str)));
        Err(Failure::new(
            JOB_FAILED,
            format!("{line}, which ended as {}: {why}", end.state),
        ))
    }
}

/// What was abandoned may have been done.
async fn warn_if_abandoned(store: &dyn Store, id: Uuid) -> Result<()> {
    let found = store.execution(id).await?;
    let last = found.as_ref().and_then(|found| found.verdicts.last());
    let abandoned = last.is_some_and(|last| last.verdict == Verdict::Abandon);
    if abandoned {
        output::note(&format!(
            "warning: execution {id} was abandoned, since nobody knew whether its work was done: a \
             retry may do it once more"
        ));
    }
    Ok(())
}

async fn retry(client: &Client, id: Uuid) -> Result<Done<Row>> {
    let row = |result, retry, state| Row {
        id,
        result,
        retry,
        state,
    };
    let (row, result) = match client.retry(id).await {
        Ok(retry) => (
            row("retried", Some(retry), None),
            Ok(format!("execution {id} runs again as {retry}")),
        ),
        Err(error) => {
            let row = match &error {
                Error::NotRetryable { state, .. } => row("not_retryable", None, Some(*state)),
                Error::AlreadyRetried { retry, state, .. } => {
                    row("already_retried", Some(*retry), Some(*state))
                }
                Error::NoSuchExecution { .. } => row("not_found", None, None),
                _ => return Err(error.into()),
            };
            (row, Err(error.into()))
        }
    };
    Ok(Done {
        id: row.retry.unwrap_or(id),
        row,
        result,
    })
}
