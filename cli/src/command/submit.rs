//! `bellwether submit`: a one-shot through the submit subject.

use std::time::Duration;

use bellwether_client::{Client, Payload, Submission};
use clap::Args;
use serde::Serialize;

use crate::config::Config;
use crate::exit::{Failure, JOB_FAILED, Result};
use crate::output::{self, Format, or_dash};

#[derive(Debug, Args)]
pub(crate) struct Command {
    /// Queue whose workers serve the job
    queue: String,
    /// Job name
    job: String,
    /// Payload as JSON
    #[arg(default_value = "null")]
    payload: String,
    /// Idempotency key: one execution per job and key [default: a fresh one]
    #[arg(long)]
    key: Option<String>,
    /// Waits up to this many seconds for the end; exit code 7 if the job did not succeed
    #[arg(long, value_name = "SECONDS")]
    wait: Option<u64>,
}

#[derive(Serialize)]
struct Shown {
    job: String,
    key: String,
    duplicate: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    execution_id: Option<uuid::Uuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<bellwether_schemas::state::State>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

pub(crate) async fn run(config: &Config, command: &Command, format: Format) -> Result<()> {
    if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(&command.payload) {
        return Err(Failure::usage(format!(
            "the payload is no JSON ({error}); quote it for the shell: '{{\"n\": 1}}'"
        )));
    }
    let mut submission = Submission::new(
        command.job.clone(),
        Payload::json(command.payload.clone().into_bytes()),
    )
    .queue(command.queue.clone());
    if let Some(key) = &command.key {
        submission = submission.key(key.clone());
    }
    let mut client = Client::new(config.subjects.namespace())?;
    if command.wait.is_some() {
        client = client.with_store(config.store("bellwether submit").await?);
    }
    let client = client.with_nats(config.nats("bellwether submit").await?);
    let submitted = client.submit(&submission).await?;

    let mut shown = Shown {
        job: submitted.job.clone(),
        key: submitted.key.clone(),
        duplicate: submitted.duplicate,
        execution_id: None,
        state: None,
        error: None,
    };
    if let Some(seconds) = command.wait {
        let waited = client
            .wait(&submitted, Duration::from_secs(seconds))
            .await?;
        if let Some(shard) = waited.shards.first() {
            shown.execution_id = Some(shard.execution_id);
            shown.state = Some(shard.state);
            shown.error.clone_from(&shard.error);
        }
    }
    match format {
        Format::Json => output::json(&shown)?,
        Format::Table => output::line(&format!(
            "submitted {}/{}{}{}",
            shown.job,
            shown.key,
            if shown.duplicate {
                " (the broker had it already)"
            } else {
                ""
            },
            shown.state.map_or(String::new(), |state| format!(
                "\nexecution {} {state}",
                or_dash(shown.execution_id)
            )),
        ))?,
    }
    match shown.state {
        Some(state) if state != bellwether_schemas::state::State::Succeeded => Err(Failure::new(
            JOB_FAILED,
            format!("the job ended as {state}: {}", or_dash(shown.error)),
        )),
        _ => Ok(()),
    }
}
