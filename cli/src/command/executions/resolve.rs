//! `bellwether executions resolve`.

use std::sync::Arc;
use std::time::Duration;

use bellwether_client::{Client, Decided};
use bellwether_schemas::state::{State, Verdict};
use bellwether_store::Store;
use bellwether_store::inspect::ExecutionStory;
use clap::{ArgGroup, Args};
use serde::Serialize;
use uuid::Uuid;

use super::not_found;
use crate::command::bulk;
use crate::command::parse;
use crate::config::Config;
use crate::exit::{Failure, REFUSED, Result};
use crate::output::{self, Format};

/// A worker that was lost more recently may still be at work: the default lease of a session.
const SETTLED_AFTER: Duration = Duration::from_secs(9);

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
#[command(
    group(ArgGroup::new("verdict").required(true).args(["done", "not_done", "abandon"])),
    override_usage = "bellwether executions resolve [OPTIONS] <ID> --reason <TEXT>\n       \
                      <--done|--not-done|--abandon>"
)]
pub(crate) struct Command {
    /// The execution
    #[arg(value_parser = parse::id)]
    id: Uuid,
    /// Its effect happened: it becomes succeeded, without an output
    #[arg(long)]
    done: bool,
    /// Its effect did not happen, and will not any more: it is run again while attempts are left
    #[arg(long)]
    not_done: bool,
    /// Nobody will know: it becomes failed
    #[arg(long)]
    abandon: bool,
    /// Does not ask where its worker may still be at work
    #[arg(long)]
    yes: bool,
    /// How you know, kept with the execution; at most 1,024 characters
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    reason: String,
}

/// What `-o json` prints.
#[derive(Serialize)]
struct Row {
    id: Uuid,
    verdict: Verdict,
    /// What the execution became.
    state: State,
}

fn reason(text: &str) -> std::result::Result<String, String> {
    let text = text.trim();
    if text.is_empty() {
        return Err("no reason: say how you know, for those who come later".to_owned());
    }
    Ok(text.to_owned())
}

impl Command {
    fn verdict(&self) -> Verdict {
        if self.done {
            Verdict::Done
        } else if self.not_done {
            Verdict::NotDone
        } else {
            Verdict::Abandon
        }
    }
}

pub(super) async fn run(config: &Config, command: &Command, format: Format) -> Result<()> {
    let store = config.store("bellwether executions").await?;
    let client = Client::new(config.subjects.namespace())?.with_store(Arc::clone(&store));
    let resolved = resolve(store.as_ref(), &client, command).await;
    store.close().await;
    let row = resolved?;
    let id = row.id;
    Ok(output::one(format, &row, &id.to_string(), |row| {
        output::line(&said(row))
    })?)
}

async fn resolve(store: &dyn Store, client: &Client, command: &Command) -> Result<Row> {
    let (id, verdict) = (command.id, command.verdict());
    let found = store.execution(id).await?;
    let found = found.ok_or_else(|| not_found(id))?;
    if verdict == Verdict::NotDone
        && found.execution.state == State::Unknown
        && let Some(doubt) = at_work(&found, store.ledger().await?.now)
    {
        bulk::confirm(&doubt, command.yes)?;
    }
    match client.resolve(id, verdict, &command.reason).await? {
        Decided::Accepted(state) => Ok(Row { id, verdict, state }),
        Decided::Fenced(state) => Err(Failure::new(
            REFUSED,
            format!("execution {id} is {state}: only one that is unknown is resolved"),
        )),
        Decided::Gone => Err(not_found(id)),
    }
}

/// Why its worker may still be at work, if it may.
fn at_work(story: &ExecutionStory, now: chrono::DateTime<chrono::Utc>) -> Option<String> {
    let lost_at = story.execution.attempt_ended_at.unwrap_or(now);
    let age = (now - lost_at).to_std().unwrap_or_default();
    let why = if story.session_ended_at.is_none() {
        "its worker is still there".to_owned()
    } else if age < SETTLED_AFTER {
        format!("its attempt was given up {} s ago", age.as_secs())
    } else {
        return None;
    };
    Some(format!(
        "{why}: its worker may still be at work, and do what is done again then"
    ))
}

fn said(row: &Row) -> String {
    let id = row.id;
    match (row.state, row.verdict) {
        (State::Succeeded, _) => format!("execution {id} is resolved: it is succeeded"),
        (State::Retrying, _) => format!("execution {id} is resolved: it runs again"),
        (State::Failed, Verdict::NotDone) => {
            format!("execution {id} is resolved: it is failed, for it has no attempt left")
        }
        (state, _) => format!("execution {id} is resolved: it is {state}"),
    }
}
