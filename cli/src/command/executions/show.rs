//! `bellwether executions show`.

use bellwether_schemas::state::{Reason, State};
use bellwether_store::inspect::{ExecutionStory, ExecutionView};
use serde::Serialize;
use uuid::Uuid;

use super::cancel::not_found;
use super::timeline::{Moment, timeline};
use crate::command::body;
use crate::config::Config;
use crate::exit::Result;
use crate::output::{self, Format, instant};

/// Characters of an output that are shown; `-o json` has all of it.
const OUTPUT_SHOWN: usize = 400;

#[derive(Serialize)]
struct Shown<'a> {
    execution: &'a ExecutionView,
    timeline: Vec<Moment>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<serde_json::Value>,
    /// Its retry that has not ended, or has succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    retried_as: Option<Uuid>,
}

pub(super) async fn run(config: &Config, id: Uuid, format: Format) -> Result<()> {
    let ledger = config.store("bellwether executions").await?;
    let found = ledger.execution(id).await?;
    ledger.close().await;
    let story = found.ok_or_else(|| not_found(id))?;
    let shown = Shown {
        execution: &story.execution,
        timeline: timeline(&story),
        output: story.output.as_ref().map(body::value),
        retried_as: story.retried_as,
    };
    Ok(output::one(format, &shown, &id.to_string(), |shown| {
        print(&story, &shown.timeline)
    })?)
}

fn print(story: &ExecutionStory, timeline: &[Moment]) -> std::io::Result<()> {
    for (name, value) in facts(story) {
        output::line(&format!("{name:<10} {value}"))?;
    }
    output::line("")?;
    for moment in timeline {
        output::line(&format!("{}  {}", instant(moment.at), moment.what))?;
    }
    if let Some(hint) = hint(&story.execution, story.retried_as) {
        output::line(&format!("\n{hint}"))?;
    }
    Ok(())
}

fn facts(story: &ExecutionStory) -> Vec<(&'static str, String)> {
    let e = &story.execution;
    let reason = e
        .reason
        .filter(|reason| reason.as_str() != e.state.as_str());
    let reason = reason.map_or(String::new(), |reason| format!(" ({reason})"));
    let exhausted = if e.attempts_exhausted {
        ", no attempt left"
    } else {
        ""
    };
    let mut facts = vec![
        ("execution", e.id.to_string()),
        ("job", e.job.clone()),
        ("state", format!("{}{reason}{exhausted}", e.state)),
        (
            "attempt",
            format!(
                "{} of {}, generation {}",
                e.attempt, e.max_attempts, e.generation
            ),
        ),
        ("shard", format!("{} of {}", e.shard_index, e.shard_total)),
        ("fire", format!("{} ({})", e.fire_id, e.trigger)),
        ("operation", e.operation_id.to_string()),
        ("queue", format!("{} ({})", e.queue, e.priority)),
    ];
    if let Some(key) = &e.key {
        facts.push(("key", key.clone()));
    }
    if let Some(id) = e.retry_of {
        facts.push(("retry of", id.to_string()));
    }
    if let Some(trace) = &e.traceparent {
        facts.push(("trace", trace.get(3..35).unwrap_or(trace).to_owned()));
    }
    if let Some(at) = e.cancel_requested_at {
        let lost = if e.cancel_lost {
            ", too late: it succeeded before its worker obeyed"
        } else {
            ""
        };
        facts.push(("cancel", format!("requested {}{lost}", instant(at))));
    }
    if let Some(error) = &e.error {
        facts.push(("error", error.clone()));
    }
    if let Some(output) = &story.output {
        facts.push(("output", body::short(output, OUTPUT_SHOWN)));
    }
    facts
}

/// What an operator can do next.
fn hint(e: &ExecutionView, retried_as: Option<Uuid>) -> Option<String> {
    let id = e.id;
    let no_handler = e.last_refusal.as_deref() == Some(Reason::NoHandler.as_str());
    let hint = match e.state {
        State::Succeeded => return None,
        State::Failed | State::Cancelled | State::Expired => match retried_as {
            Some(retry) => format!("it was retried: bellwether executions show {retry}"),
            None => format!("to run it again: bellwether executions retry {id}"),
        },
        State::Unknown => format!(
            "its worker was lost and may have done its work; a late result settles it; to end it \
             without one: bellwether executions cancel {id}, after which retry repeats it"
        ),
        _ if e.cancel_requested_at.is_some() => match e.deadline_at {
            Some(at) if e.state == State::Running => format!(
                "it stops when its handler obeys, at the latest at {}",
                instant(at)
            ),
            _ => "it is not run again".to_owned(),
        },
        State::Pending | State::Retrying if no_handler => format!(
            "no worker of queue {} that saw it has a handler for {}: see bellwether workers list",
            e.queue, e.job
        ),
        State::Pending | State::Retrying | State::Running => format!(
            "to follow it: bellwether executions watch {id}\n\
             to stop it: bellwether executions cancel {id}"
        ),
    };
    Some(hint)
}
