//! `bellwether executions show`.

use std::time::Duration;

use bellwether_schemas::state::{Reason, State};
use bellwether_store::inspect::{ExecutionStory, ExecutionView, VerdictView};
use chrono::{DateTime, Utc};
use serde::Serialize;
use uuid::Uuid;

use super::not_found;
use super::state_in_words;
use super::timeline::{Moment, behind, requested_by, timeline};
use crate::command::{body, serving};
use crate::config::{Config, key};
use crate::exit::Result;
use crate::output::{self, Format, instant};

/// Characters of an output that are shown; `-o json` has all of it.
const OUTPUT_SHOWN: usize = 400;

#[derive(Serialize)]
struct Shown<'a> {
    execution: &'a ExecutionView,
    timeline: Vec<Moment>,
    /// What probes and operators said.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    verdicts: &'a [VerdictView],
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<serde_json::Value>,
    /// The schedule that owns its fire.
    #[serde(skip_serializing_if = "Option::is_none")]
    schedule: Option<&'a str>,
    /// The fire that its own was held behind, and when it was let go.
    #[serde(skip_serializing_if = "Option::is_none")]
    held_behind: Option<Uuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    released_at: Option<DateTime<Utc>>,
    /// The fire that replaces its own, and when it asked to.
    #[serde(skip_serializing_if = "Option::is_none")]
    replaced_by: Option<Uuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replaced_at: Option<DateTime<Utc>>,
    /// Its retry that has not ended, or has succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    retried_as: Option<Uuid>,
}

pub(super) async fn run(config: &Config, id: Uuid, format: Format) -> Result<()> {
    let ledger = config.store("bellwether executions").await?;
    let found = ledger.execution(id).await?;
    let probed = match &found {
        Some(story) if story.execution.state == State::Unknown => {
            let ExecutionView { queue, job, .. } = &story.execution;
            let sessions = ledger.sessions(0).await?;
            Some(Probed {
                able: serving::with_job(&sessions, queue, job).count(),
                escalated_after: config.duration(key::TICKER_UNKNOWN_AFTER)?,
            })
        }
        _ => None,
    };
    ledger.close().await;
    let story = found.ok_or_else(|| not_found(id))?;
    let shown = Shown {
        execution: &story.execution,
        timeline: timeline(&story),
        verdicts: &story.verdicts,
        output: story.output.as_ref().map(body::value),
        schedule: story.schedule.as_deref(),
        held_behind: story.held_behind,
        released_at: story.released_at,
        replaced_by: story.replaced_by,
        replaced_at: story.replaced_at,
        retried_as: story.retried_as,
    };
    Ok(output::one(format, &shown, &id.to_string(), |shown| {
        print(&story, &shown.timeline, probed.as_ref())
    })?)
}

/// Who may say what became of an unknown execution.
struct Probed {
    /// Live workers that have its job.
    able: usize,
    /// How long after the loss it is an operator's.
    escalated_after: Duration,
}

fn print(
    story: &ExecutionStory,
    timeline: &[Moment],
    probed: Option<&Probed>,
) -> std::io::Result<()> {
    for (name, value) in facts(story) {
        output::line(&format!("{name:<10} {value}"))?;
    }
    output::line("")?;
    for moment in timeline {
        output::line(&format!("{}  {}", instant(moment.at), moment.what))?;
    }
    if let Some(hint) = hint(&story.execution, story.retried_as, probed) {
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
        ("state", format!("{}{reason}{exhausted}", state_in_words(e))),
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
    if let (true, Some(held)) = (e.held, behind(story)) {
        facts.push(("held", held));
    }
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
        let by = requested_by(story);
        facts.push(("cancel", format!("requested {}{by}{lost}", instant(at))));
    }
    if let (Some(at), Some(size)) = (e.checkpoint_at, e.checkpoint_size) {
        facts.push(("checkpoint", format!("{size} bytes, saved {}", instant(at))));
    }
    if let (State::Unknown, Some(at)) = (e.state, e.escalated_at) {
        facts.push(("escalated", instant(at)));
    }
    if let Some(error) = &e.error {
        facts.push(("error", error.clone()));
    }
    if let Some(output) = &story.output {
        facts.push(("output", body::short(output, OUTPUT_SHOWN)));
    }
    facts
}

/// Its worker was lost and may have done its work.
fn unknown(e: &ExecutionView, probed: Option<&Probed>) -> String {
    let started = match e.started_at {
        Some(_) => "its handler had started: its work may have been done",
        None => "whether its handler had started is not known: its work may have been done",
    };
    let next = match (e.escalated_at, probed) {
        (Some(_), _) => "No probe could tell: it waits for you".to_owned(),
        (None, Some(probed)) => format!(
            "A late result or a probe settles it, or you do. {}",
            wait(e, probed)
        ),
        (None, None) => "A late result or a probe settles it, or you do".to_owned(),
    };
    format!(
        "{started}. {next}.\n\
         Look for operation {} where the work leaves its traces, then:\n\
         bellwether executions resolve {} --done|--not-done|--abandon --reason \"how you know\"",
        e.operation_id, e.id
    )
}

/// When it is probed next, by whom, and when it is an operator's.
fn wait(e: &ExecutionView, probed: &Probed) -> String {
    let probe = match (probed.able, e.dispatched_at) {
        (0, _) => format!(
            "No live worker of queue {} has the job {}, so that nobody can probe it",
            e.queue, e.job
        ),
        (able, None) => format!(
            "The next probe is due at {}; live workers that have the job: {able}",
            instant(e.available_at)
        ),
        (able, Some(at)) => format!(
            "A probe was dispatched at {}; live workers that have the job: {able}",
            instant(at)
        ),
    };
    let after = chrono::Duration::from_std(probed.escalated_after).ok();
    let until = e.attempt_ended_at.zip(after);
    match until.and_then(|(at, after)| at.checked_add_signed(after)) {
        Some(at) => format!("{probe}. It is escalated to you at {}", instant(at)),
        None => probe,
    }
}

/// What an operator can do next.
fn hint(e: &ExecutionView, retried_as: Option<Uuid>, probed: Option<&Probed>) -> Option<String> {
    let id = e.id;
    let no_handler = e.last_refusal.as_deref() == Some(Reason::NoHandler.as_str());
    let hint = match e.state {
        State::Succeeded => return None,
        State::Failed | State::Cancelled | State::Expired => match retried_as {
            Some(retry) => format!("it was retried: bellwether executions show {retry}"),
            None => format!("to run it again: bellwether executions retry {id}"),
        },
        State::Unknown => unknown(e, probed),
        _ if e.cancel_requested_at.is_some() => match e.deadline_at {
            Some(at) if e.state == State::Running => format!(
                "it stops when its handler obeys, at the latest at {}",
                instant(at)
            ),
            _ => "it is not run again".to_owned(),
        },
        State::Pending if e.held => format!(
            "it waits for an earlier fire of its schedule to end\n\
             to stop it: bellwether executions cancel {id}"
        ),
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
