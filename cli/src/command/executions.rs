//! `bellwether executions list|show`.

use bellwether_schemas::state::State;
use bellwether_store::inspect::{ExecutionFilter, ExecutionStory, ExecutionView, FencedView};
use chrono::{DateTime, Utc};
use clap::Subcommand;
use serde::Serialize;
use uuid::Uuid;

use crate::config::Config;
use crate::exit::{Failure, NOT_FOUND, Result};
use crate::output::{self, Format, instant, or_dash};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Lists executions, newest first
    List {
        /// Only this state: pending, running, retrying, unknown, succeeded, failed, cancelled, expired
        #[arg(long, value_parser = parse_state)]
        state: Option<State>,
        /// Only this job
        #[arg(long)]
        job: Option<String>,
        /// Only this queue
        #[arg(long)]
        queue: Option<String>,
        /// Only this fire
        #[arg(long, value_name = "ID")]
        fire: Option<Uuid>,
        /// Most rows shown
        #[arg(long, default_value_t = 50, value_name = "N")]
        limit: u32,
    },
    /// Shows the timeline of one execution
    Show {
        /// The execution's id
        id: Uuid,
    },
}

fn parse_state(text: &str) -> Result<State, String> {
    text.parse().map_err(|_| {
        let all: Vec<_> = State::ALL.iter().map(|state| state.as_str()).collect();
        format!("{text:?} is no state; use one of {}", all.join(", "))
    })
}

pub(crate) async fn run(config: &Config, command: &Command, format: Format) -> Result<()> {
    match command {
        Command::List {
            state,
            job,
            queue,
            fire,
            limit,
        } => {
            let filter = ExecutionFilter {
                state: *state,
                job: job.clone(),
                queue: queue.clone(),
                fire_id: *fire,
                limit: *limit,
            };
            list(config, &filter, format).await
        }
        Command::Show { id } => show(config, *id, format).await,
    }
}

async fn list(config: &Config, filter: &ExecutionFilter, format: Format) -> Result<()> {
    let store = config.store("bellwether executions").await?;
    let executions = store.executions(filter).await?;
    store.close().await;
    if format == Format::Json {
        return Ok(output::json(&executions)?);
    }
    let rows = executions.iter().map(|e| {
        vec![
            e.id.to_string(),
            e.job.clone(),
            format!("{}/{}", e.shard_index, e.shard_total),
            e.state.to_string(),
            or_dash(e.reason),
            format!("{}/{}", e.attempt, e.max_attempts),
            e.trigger.to_string(),
            instant(e.scheduled_at),
            took(e),
        ]
    });
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
    Ok(output::table(&head, rows.collect())?)
}

fn took(e: &ExecutionView) -> String {
    match (e.started_at, e.attempt_ended_at) {
        (Some(from), Some(until)) => format!("{} ms", (until - from).num_milliseconds()),
        _ => "-".to_owned(),
    }
}

/// One line of a timeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Moment {
    at: DateTime<Utc>,
    what: String,
}

#[derive(Serialize)]
struct Shown<'a> {
    execution: &'a ExecutionView,
    timeline: Vec<Moment>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<serde_json::Value>,
}

async fn show(config: &Config, id: Uuid, format: Format) -> Result<()> {
    let store = config.store("bellwether executions").await?;
    let found = store.execution(id).await?;
    store.close().await;
    let Some(found) = found else {
        return Err(Failure::new(
            NOT_FOUND,
            format!("no execution has the id {id}; see `bellwether executions list`"),
        ));
    };
    let timeline = timeline(&found);
    if format == Format::Json {
        return Ok(output::json(&Shown {
            execution: &found.execution,
            timeline,
            output: found.output.as_ref().map(output_value),
        })?);
    }
    print(&found, timeline)
}

/// JSON as it is; anything else by its size, so that a terminal stays readable.
fn output_value(output: &bellwether_store::Payload) -> serde_json::Value {
    serde_json::from_slice(&output.bytes).unwrap_or_else(|_| {
        format!("{} bytes of {}", output.bytes.len(), output.content_type).into()
    })
}

fn print(story: &ExecutionStory, timeline: Vec<Moment>) -> Result<()> {
    let e = &story.execution;
    let mut facts = vec![
        ("execution", e.id.to_string()),
        ("job", e.job.clone()),
        (
            "state",
            format!(
                "{}{}",
                e.state,
                e.reason.map_or(String::new(), |r| format!(" ({r})"))
            ),
        ),
        ("shard", format!("{} of {}", e.shard_index, e.shard_total)),
        (
            "attempt",
            format!(
                "{} of {}, generation {}",
                e.attempt, e.max_attempts, e.generation
            ),
        ),
        ("fire", format!("{} ({})", e.fire_id, e.trigger)),
        ("operation", e.operation_id.to_string()),
        ("queue", format!("{} ({})", e.queue, e.priority)),
    ];
    if let Some(key) = &e.key {
        facts.push(("key", key.clone()));
    }
    if let Some(trace) = &e.traceparent {
        facts.push(("trace", trace.get(3..35).unwrap_or(trace).to_owned()));
    }
    if let Some(error) = &e.error {
        facts.push(("error", error.clone()));
    }
    if let Some(output) = &story.output {
        let text = output_value(output).to_string();
        facts.push((
            "output",
            bellwether_schemas::text::clean(&text, 400).into_owned(),
        ));
    }
    for (name, value) in facts {
        output::line(&format!("{name:<10} {value}"))?;
    }
    output::line("")?;
    for moment in timeline {
        output::line(&format!("{}  {}", instant(moment.at), moment.what))?;
    }
    Ok(())
}

/// Everything the ledger knows, in the order in which it happened.
fn timeline(story: &ExecutionStory) -> Vec<Moment> {
    let e = &story.execution;
    let mut moments = Vec::new();
    let mut add = |at: Option<DateTime<Utc>>, what: String| {
        moments.extend(at.map(|at| Moment { at, what }));
    };
    add(Some(e.scheduled_at), "due".to_owned());
    add(Some(e.created_at), "written to the ledger".to_owned());
    for past in &story.attempts {
        let n = past.attempt;
        add(
            Some(past.claimed_at),
            format!("attempt {n} claimed by session {}", past.session_id),
        );
        add(past.started_at, format!("attempt {n} started"));
        let error = past
            .error
            .as_ref()
            .map_or(String::new(), |error| format!(": {error}"));
        add(
            Some(past.ended_at),
            format!("attempt {n} ended: {}{error}", or_dash(past.reason)),
        );
    }
    add(
        e.dispatched_at,
        format!("dispatched (no. {})", e.dispatch_no),
    );
    add(
        e.claimed_at,
        format!(
            "attempt {} claimed by session {}",
            e.attempt.max(1),
            or_dash(e.session_id)
        ),
    );
    add(e.started_at, "handler started".to_owned());
    add(e.cancel_requested_at, "cancel requested".to_owned());
    if !e.state.is_terminal() {
        add(
            e.attempt_ended_at,
            format!("attempt ended: {}", or_dash(e.reason)),
        );
    }
    for fenced in &story.fenced {
        let FencedView {
            generation,
            outcome,
            recorded_at,
        } = fenced;
        add(
            Some(*recorded_at),
            format!("late `{outcome}` of generation {generation} refused"),
        );
    }
    add(e.ended_at, format!("ended: {}", e.state));
    moments.sort_by_key(|moment| moment.at);
    moments
}
