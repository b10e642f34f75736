//! `bellwether executions list|show|watch|cancel|resolve|retry`.

mod act;
mod cancel;
mod resolve;
mod retry;
mod select;
mod show;
mod timeline;
mod watch;

use bellwether_schemas::state::State;
use bellwether_store::inspect::{ExecutionFilter, ExecutionView};
use clap::Subcommand;
use uuid::Uuid;

use super::parse;
use crate::config::Config;
use crate::exit::{Failure, NOT_FOUND, Result};
use crate::output::{self, Format, instant, or_dash};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Lists executions, newest first
    List {
        /// Only in this state
        #[arg(long, value_parser = parse::state())]
        state: Option<State>,
        /// Only what is unknown and waits for an operator, oldest first
        #[arg(long, conflicts_with = "state")]
        escalated: bool,
        /// Only this job
        #[arg(long, value_parser = parse::job)]
        job: Option<String>,
        /// Only this queue
        #[arg(long, value_parser = parse::queue)]
        queue: Option<String>,
        /// Only this fire
        #[arg(long, value_name = "ID", value_parser = parse::id)]
        fire: Option<Uuid>,
        /// Most rows shown
        #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
    },
    /// Shows one execution: facts, timeline, and what can be done about it
    Show {
        /// The execution
        #[arg(value_parser = parse::id)]
        id: Uuid,
    },
    /// Follows the timeline of one execution to its end; exit code 7 if it did not succeed
    Watch {
        /// The execution
        #[arg(value_parser = parse::id)]
        id: Uuid,
    },
    /// Requests that executions stop: what waits ends at once, what runs is told by its worker
    Cancel(cancel::Command),
    /// Says what became of an unknown execution: --done, --not-done or --abandon
    Resolve(resolve::Command),
    /// Runs executions again that ended without success, each as a new one
    Retry(retry::Command),
}

impl Command {
    pub(crate) const fn changes_something(&self) -> bool {
        matches!(self, Self::Cancel(_) | Self::Resolve(_) | Self::Retry(_))
    }
}

pub(crate) async fn run(config: &Config, command: &Command, format: Format) -> Result<()> {
    match command {
        Command::List {
            state,
            escalated,
            job,
            queue,
            fire,
            limit,
        } => {
            let filter = ExecutionFilter {
                state: *state,
                escalated: *escalated,
                job: job.clone(),
                queue: queue.clone(),
                fire_id: *fire,
                limit: *limit,
                ..ExecutionFilter::default()
            };
            list(config, &filter, format).await
        }
        Command::Show { id } => show::run(config, *id, format).await,
        Command::Watch { id } => watch::run(config, *id, format).await,
        Command::Cancel(command) => cancel::run(config, command, format).await,
        Command::Resolve(command) => resolve::run(config, command, format).await,
        Command::Retry(command) => retry::run(config, command, format).await,
    }
}

/// There is none of that id.
fn not_found(id: Uuid) -> Failure {
    Failure::new(
        NOT_FOUND,
        format!(
            "no execution has the id {id}, or it was deleted by the retention of history; see \
             `bellwether executions list`"
        ),
    )
}

async fn list(config: &Config, filter: &ExecutionFilter, format: Format) -> Result<()> {
    let store = config.store("bellwether executions").await?;
    let executions = store.executions(filter).await?;
    let no_fire = match filter.fire_id {
        Some(fire) if executions.is_empty() => {
            let known = !store.fire_results(fire).await?.is_empty();
            (!known).then_some(fire)
        }
        _ => None,
    };
    store.close().await;
    if let Some(fire) = no_fire {
        return Err(select::no_fire(fire));
    }
    let head = [
        "execution",
        "job",
        "shard",
        "state",
        "reason",
        "attempt",
        "trigger",
        "due",
        "took",
    ];
    Ok(output::list(
        format,
        &executions,
        |e| e.id.to_string(),
        &head,
        row,
    )?)
}

fn row(e: &ExecutionView) -> Vec<String> {
    let cancel = if e.cancel_requested_at.is_some() && !e.state.is_terminal() {
        ", to be cancelled"
    } else {
        ""
    };
    vec![
        e.id.to_string(),
        e.job.clone(),
        format!("{}/{}", e.shard_index, e.shard_total),
        format!("{}{cancel}", state_in_words(e)),
        or_dash(e.reason),
        format!("{}/{}", e.attempt, e.max_attempts),
        e.trigger.to_string(),
        instant(e.scheduled_at),
        took(e),
    ]
}

/// The state, and what it waits for if that is not its turn.
fn state_in_words(e: &ExecutionView) -> String {
    match e.state {
        State::Unknown if e.escalated_at.is_some() => "unknown, escalated".to_owned(),
        State::Pending if e.held => "pending, held".to_owned(),
        state => state.to_string(),
    }
}

fn took(e: &ExecutionView) -> String {
    match (e.started_at, e.attempt_ended_at) {
        (Some(from), Some(until)) => format!("{} ms", (until - from).num_milliseconds()),
        _ => "-".to_owned(),
    }
}
