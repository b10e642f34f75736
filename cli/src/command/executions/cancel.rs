//! `bellwether executions cancel`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bellwether_client::{CancelRequested, Client, Error, What};
use bellwether_schemas::state::State;
use bellwether_store::Store;
use clap::{ArgGroup, Args};
use serde::Serialize;
use tokio::time::Instant;
use uuid::Uuid;

use super::select::Selection;
use crate::command::bulk::{self, Bulk, Done};
use crate::command::parse;
use crate::config::Config;
use crate::exit::{Failure, NOT_FOUND, REFUSED, Result, UNREACHABLE};
use crate::output::{self, Format, instant};

/// What may still be stopped, in the order in which a filter looks.
const STATES: [State; 4] = [
    State::Pending,
    State::Retrying,
    State::Running,
    State::Unknown,
];
/// Requests of one transaction.
const BATCH: usize = 200;

#[derive(Debug, Args)]
#[command(
    group(ArgGroup::new("which").required(true).multiple(true).args(["ids", "fire", "state", "job", "queue"])),
    override_usage = "bellwether executions cancel [OPTIONS] <ID>...\n       \
                      bellwether executions cancel [OPTIONS] --fire|--state|--job|--queue <…>"
)]
pub(crate) struct Command {
    /// The executions
    #[arg(value_name = "ID", value_parser = parse::id, conflicts_with_all = ["fire", "state", "job", "queue"])]
    ids: Vec<Uuid>,
    /// All shards of this fire that have not ended
    #[arg(long, value_name = "ID", value_parser = parse::id, conflicts_with_all = ["state", "job", "queue"])]
    fire: Option<Uuid>,
    /// All in this state; needs --limit
    #[arg(long, value_parser = parse::unended())]
    state: Option<State>,
    /// All of this job that have not ended; needs --limit
    #[arg(long, value_parser = parse::job)]
    job: Option<String>,
    /// All of this queue that have not ended; needs --limit
    #[arg(long, value_parser = parse::queue)]
    queue: Option<String>,
    /// At most so many of those that fit
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: Option<u32>,
    /// Does not ask before it cancels what fits
    #[arg(long)]
    yes: bool,
    /// Waits up to this long for the end: 30, 30s, 5m [default: does not wait]
    #[arg(long, value_name = "DURATION", value_parser = crate::duration::parse)]
    wait: Option<Duration>,
}

/// What `-o json` prints of each.
#[derive(Serialize)]
struct Row {
    id: Uuid,
    /// `cancelled`, `requested`, `ended` or `not_found`.
    result: &'static str,
    /// Where it stands.
    state: Option<State>,
    /// Whether its worker looks for requests to cancel.
    told: Option<bool>,
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
        unrepeated: false,
        verb: "cancelled",
    };
    let ids = selection.find(store.as_ref()).await?;
    doubt_unknown(store.as_ref(), &ids, command).await?;
    let client = Client::new(config.subjects.namespace())?.with_store(Arc::clone(&store));
    let mut answers = BTreeMap::new();
    let mut stopped = None;
    for batch in ids.chunks(BATCH) {
        match client.cancel_all(batch).await {
            Ok(of_batch) => answers.extend(batch.iter().copied().zip(of_batch)),
            Err(error) => {
                stopped = Some(Failure::from(error));
                break;
            }
        }
    }
    // What was requested is told, whatever came after it.
    let (asked, untried) = ids.split_at(answers.len());
    let deadline = command.wait.map(|wait| Instant::now().checked_add(wait));
    let tell = async |id| {
        let answer = answers.get(&id).copied();
        match (answer.unwrap_or(CancelRequested::NotFound), deadline) {
            (CancelRequested::Requested { told, .. }, Some(deadline)) => {
                Ok(waited(&client, id, told, deadline).await)
            }
            (answer, _) => Ok(at_once(store.as_ref(), id, answer).await),
        }
    };
    let mut bulk = Bulk::run(asked, tell).await;
    if let Some(failure) = stopped {
        bulk.stop(untried.len(), failure);
    }
    store.close().await;
    bulk.finish("cancelled", format)
}

/// What is unknown ends by a cancel, and what it did stays done: of several that is asked about.
async fn doubt_unknown(store: &dyn Store, ids: &[Uuid], command: &Command) -> Result<()> {
    let mut unknown = Vec::new();
    for &id in ids {
        let found = store.execution_result(id).await?;
        unknown.extend(found.filter(|found| found.state == State::Unknown));
    }
    let Some(first) = unknown.first() else {
        return Ok(());
    };
    let id = first.execution_id;
    if ids.len() == 1 {
        output::note(&format!(
            "warning: execution {id} was unknown: its effect may exist, and a cancel does not take \
             it back; to say what became of it: bellwether executions resolve {id}"
        ));
        return Ok(());
    }
    let what = format!(
        "{} of these {} executions, {id} first, are unknown: their effects may exist, and a cancel \
         does not take them back",
        unknown.len(),
        ids.len(),
    );
    bulk::confirm(&what, command.yes)
}

/// What is said without waiting.
async fn at_once(store: &dyn Store, id: Uuid, answer: CancelRequested) -> Done<Row> {
    let row = |result, state, told| Row {
        id,
        result,
        state,
        told,
    };
    let (row, result) = match answer {
        CancelRequested::Cancelled => (
            row("cancelled", Some(State::Cancelled), None),
            Ok(format!("execution {id} is cancelled")),
        ),
        CancelRequested::Requested { state, told } => (
            row("requested", Some(state), Some(told)),
            Ok(requested(store, id, state, told).await),
        ),
        CancelRequested::Ended(state) => (
            row("ended", Some(state), None),
            Err(Failure::new(
                REFUSED,
                format!("execution {id} had ended before: it is {state}"),
            )),
        ),
        CancelRequested::Locked => (
            row("locked", None, None),
            Err(Failure::new(
                UNREACHABLE,
                format!("execution {id} is held by another transaction; ask again"),
            )),
        ),
        CancelRequested::NotFound => (row("not_found", None, None), Err(not_found(id))),
    };
    Done { row, id, result }
}

/// What happens to one that cannot be ended at once.
async fn requested(store: &dyn Store, id: Uuid, state: State, told: bool) -> String {
    if told {
        return format!("execution {id} is to be cancelled: it is {state}, and its worker is told");
    }
    // The request stands, whether or not this is answered.
    let found = store.execution(id).await.ok().flatten();
    let deadline = found.and_then(|found| found.execution.deadline_at);
    let deadline = deadline.map_or(String::new(), |at| {
        format!(", at the latest at {}", instant(at))
    });
    format!(
        "execution {id} is to be cancelled, but its worker does not look for that: it goes on to \
         its own end{deadline}"
    )
}

/// Waits for the end of one that runs.
async fn waited(client: &Client, id: Uuid, told: bool, deadline: Option<Instant>) -> Done<Row> {
    let left = deadline.map_or(Duration::MAX, |at| {
        at.saturating_duration_since(Instant::now())
    });
    let row = |state: Option<State>| Row {
        id,
        result: match state {
            Some(State::Cancelled) => "cancelled",
            Some(_) => "ended",
            None => "requested",
        },
        state,
        told: Some(told),
    };
    let (row, result) = match client.wait(What::Execution(id), left).await {
        Ok(waited) => {
            let state = waited.shards.first().map(|shard| shard.state);
            let result = match state {
                Some(State::Cancelled) | None => Ok(format!("execution {id} is cancelled")),
                Some(state) => Err(Failure::new(
                    REFUSED,
                    format!("execution {id} ended as {state} before its worker obeyed"),
                )),
            };
            (row(state), result)
        }
        Err(Error::WaitTimedOut { .. }) => {
            let message = format!(
                "execution {id} is to be cancelled and had not ended in time; to follow it: \
                 bellwether executions watch {id}"
            );
            (row(None), Err(Failure::new(UNREACHABLE, message)))
        }
        Err(error) => {
            let mut failure = Failure::from(error);
            failure.message = format!(
                "execution {id} is to be cancelled, but its end was not seen: {}",
                failure.message
            );
            (row(None), Err(failure))
        }
    };
    Done { row, id, result }
}

pub(super) fn not_found(id: Uuid) -> Failure {
    Failure::new(
        NOT_FOUND,
        format!("no execution has the id {id}; see `bellwether executions list`"),
    )
}
