//! `bellwether executions retry`.

use std::sync::Arc;
use std::time::Duration;

use bellwether_client::{Client, Error, What};
use bellwether_schemas::state::{Reason, State, Verdict};
use bellwether_store::Store;
use clap::{ArgGroup, Args};
use serde::Serialize;
use tokio::time::Instant;
use uuid::Uuid;

use super::select::Selection;
use crate::command::bulk::{Bulk, Done};
use crate::command::parse;
use crate::config::Config;
use crate::exit::{Failure, JOB_FAILED, Result, UNREACHABLE};
use crate::output;
use crate::output::{Format, or_dash};

/// What may be repeated, in the order in which a filter looks.
const STATES: [State; 3] = [State::Failed, State::Expired, State::Cancelled];

#[derive(Debug, Args)]
#[command(
    group(ArgGroup::new("which").required(true).multiple(true).args(["ids", "fire", "state", "job", "queue"])),
    override_usage = "bellwether executions retry [OPTIONS] <ID>...\n       \
                      bellwether executions retry [OPTIONS] --fire|--state|--job|--queue <…>"
)]
pub(crate) struct Command {
    /// The executions
    #[arg(value_name = "ID", value_parser = parse::id, conflicts_with_all = ["fire", "state", "job", "queue"])]
    ids: Vec<Uuid>,
    /// All shards of this fire that ended without success
    #[arg(long, value_name = "ID", value_parser = parse::id, conflicts_with_all = ["state", "job", "queue"])]
    fire: Option<Uuid>,
    /// All in this state [default with --job or --queue: all three]; needs --limit
    #[arg(long, value_parser = parse::unsuccessful())]
    state: Option<State>,
    /// All of this job that ended without success; needs --limit
    #[arg(long, value_parser = parse::job)]
    job: Option<String>,
    /// All of this queue that ended without success; needs --limit
    #[arg(long, value_parser = parse::queue)]
    queue: Option<String>,
    /// At most so many of those that fit
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: Option<u32>,
    /// Does not ask before it retries what fits
    #[arg(long)]
    yes: bool,
    /// Waits up to this long for the end of the new executions: 30, 30s, 5m; exit code 7 if one
    /// did not succeed [default: does not wait]
    #[arg(long, value_name = "DURATION", value_parser = crate::duration::parse)]
    wait: Option<Duration>,
}

/// What `-o json` prints of each.
#[derive(Serialize)]
struct Row {
    /// The one that is repeated.
    id: Uuid,
    /// `retried`, `not_retryable`, `already_retried` or `not_found`.
    result: &'static str,
    /// Its retry, made now or before.
    retry: Option<Uuid>,
    /// Where that, else the old one stands, if it is known.
    state: Option<State>,
}

pub(super) async fn run(config: &Config, command: &Command, format: Format) -> Result<()> {
    let store = config.store("bellwether executions").await?;
    let selection = Selection {
        ids: &command.ids,
        fire: command.fire,
        state: command.state,
        job: command.job.as_ref(),
        queue: command.queue.as_ref(),
        limit: command.limit,
        yes: command.yes,
        states: &STATES,
        unrepeated: true,
        verb: "retried",
    };
    let ids = selection.find(store.as_ref()).await?;
    let client = Client::new(config.subjects.namespace())?.with_store(Arc::clone(&store));
    let each = async |id| {
        warn_if_abandoned(store.as_ref(), id).await?;
        retry(&client, id).await
    };
    let mut bulk = Bulk::run(&ids, each).await;
    if let Some(wait) = command.wait {
        let deadline = Instant::now().checked_add(wait);
        for done in bulk.done_mut() {
            wait_for(&client, done, deadline).await;
        }
    }
    store.close().await;
    let verb = if command.wait.is_some() {
        "retried with success"
    } else {
        "retried"
    };
    bulk.finish(verb, format)
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

/// Waits for the end of a retry that was made.
async fn wait_for(client: &Client, done: &mut Done<Row>, deadline: Option<Instant>) {
    let (Ok(line), Some(retry)) = (&done.result, done.row.retry) else {
        return;
    };
    let left = deadline.map_or(Duration::MAX, |at| {
        at.saturating_duration_since(Instant::now())
    });
    match client.wait(What::Execution(retry), left).await {
        Ok(waited) => {
            let Some(shard) = waited.shards.first() else {
                return;
            };
            done.row.state = Some(shard.state);
            done.result = if shard.state == State::Succeeded {
                Ok(format!("{line}, which succeeded"))
            } else {
                let why = or_dash(shard.error.as_deref().or(shard.reason.map(Reason::as_str)));
                Err(Failure::new(
                    JOB_FAILED,
                    format!("{line}, which ended as {}: {why}", shard.state),
                ))
            };
        }
        Err(Error::WaitTimedOut { .. }) => {
            let message = format!(
                "{line}, which had not ended in time; to follow it: bellwether executions watch \
                 {retry}"
            );
            done.result = Err(Failure::new(UNREACHABLE, message));
        }
        // The retry was made all the same, and whoever asked needs its id.
        Err(error) => {
            let mut failure = Failure::from(error);
            failure.message = format!("{line}, whose end was not seen: {}", failure.message);
            done.result = Err(failure);
        }
    }
}
