//! `bellwether executions cancel`.

use bellwether_client::CancelRequested;
use bellwether_schemas::state::State;
use bellwether_store::Store;
use bellwether_store::inspect::ShardResult;
use clap::Args;
use serde::Serialize;
use uuid::Uuid;

use super::act::{self, Act, Tools, Which};
use crate::command::bulk::{self, Done};
use crate::config::Config;
use crate::exit::{Failure, REFUSED, Result, UNREACHABLE};
use crate::output::{self, Format, instant};

#[derive(Debug, Args)]
#[command(
    override_usage = "bellwether executions cancel [OPTIONS] <ID>...\n       \
                      bellwether executions cancel [OPTIONS] --fire|--state|--job|--queue <…>"
)]
pub(crate) struct Command {
    #[command(flatten)]
    which: Which<Cancel>,
}

pub(super) async fn run(config: &Config, command: &Command, format: Format) -> Result<()> {
    act::run(config, &command.which, format).await
}

/// The result of one that runs: it is still to end.
const REQUESTED: &str = "requested";

/// What `-o json` prints of each.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    id: Uuid,
    /// `cancelled`, `requested`, `ended`, `locked` or `not_found`.
    result: &'static str,
    /// Where it stands.
    state: Option<State>,
    /// Whether its worker looks for requests to cancel.
    told: Option<bool>,
}

/// Requests that they stop.
#[derive(Debug)]
struct Cancel;

impl Act for Cancel {
    const STATES: &'static [State] = &[
        State::Pending,
        State::Retrying,
        State::Running,
        State::Unknown,
    ];
    const FITTING: &'static str = "have not ended";
    const DONE: &'static str = "cancelled";
    const DONE_AT_LAST: &'static str = "cancelled";
    const WAITS_FOR: &'static str = "their end";
    /// One transaction, on the same connection: a broken one costs no more than these.
    const BATCH: usize = 200;

    type Row = Row;

    async fn begin(tools: &Tools, ids: &[Uuid], yes: bool) -> Result<Self> {
        let mut found = Vec::with_capacity(ids.len());
        for &id in ids {
            found.extend(tools.store.execution_result(id).await?);
        }
        doubt_unknown(&found, ids.len(), yes)?;
        Ok(Self)
    }

    async fn act(&self, tools: &Tools, ids: &[Uuid]) -> Result<Vec<Done<Row>>> {
        let answers = tools.client.cancel_all(ids).await?;
        let mut done = Vec::with_capacity(ids.len());
        for (&id, answer) in ids.iter().zip(answers) {
            done.push(told(tools.store.as_ref(), id, answer).await);
        }
        Ok(done)
    }

    fn awaited(row: &Row) -> Option<Uuid> {
        (row.result == REQUESTED).then_some(row.id)
    }

    fn ended(row: &mut Row, _line: &str, end: ShardResult) -> Result<String> {
        let id = row.id;
        row.state = Some(end.state);
        if end.state == State::Cancelled {
            row.result = "cancelled";
            return Ok(format!("execution {id} is cancelled"));
        }
        row.result = "ended";
        Err(Failure::new(
            REFUSED,
            format!(
                "execution {id} ended as {} before its worker obeyed",
                end.state
            ),
        ))
    }
}

/// What is unknown ends by a cancel, and what it did stays done: of several that is asked about.
fn doubt_unknown(found: &[ShardResult], named: usize, yes: bool) -> Result<()> {
    let is_unknown = |one: &&ShardResult| one.state == State::Unknown;
    let Some(first) = found.iter().find(is_unknown) else {
        return Ok(());
    };
    let id = first.execution_id;
    if named == 1 {
        output::note(&format!(
            "warning: execution {id} was unknown: its effect may exist, and a cancel does not take \
             it back; to say what became of it: bellwether executions resolve {id}"
        ));
        return Ok(());
    }
    let unknown = found.iter().filter(is_unknown).count();
    let what = format!(
        "{unknown} of these {named} executions, {id} first, are unknown: their effects may exist, \
         and a cancel does not take them back"
    );
    bulk::confirm(&what, yes)
}

/// What is told of one.
async fn told(store: &dyn Store, id: Uuid, answer: CancelRequested) -> Done<Row> {
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
            row(REQUESTED, Some(state), Some(told)),
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
        CancelRequested::NotFound => (row("not_found", None, None), Err(super::not_found(id))),
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
