//! `bellwether submit`: a one-shot through the submit subject.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bellwether_client::{Client, Payload, Submission, Submitted, Waited};
use bellwether_schemas::limits::PAYLOAD_MAX;
use bellwether_schemas::refusals::Refusals;
use bellwether_schemas::state::{Reason, State};
use bellwether_store::Store;
use chrono::{DateTime, Utc};
use clap::Args;
use serde::Serialize;
use uuid::Uuid;

use super::parse::{self, At};
use super::{body, serving};
use crate::config::{Config, key};
use crate::exit::{Failure, JOB_FAILED, Result};
use crate::output::{self, Format, instant, or_dash};

/// Longest look at who serves the job: it is a courtesy.
const LOOK_MAX: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub(crate) struct Command {
    /// Queue whose workers serve the job
    #[arg(value_parser = parse::queue)]
    queue: String,
    /// Job name
    #[arg(value_parser = parse::job)]
    job: String,
    /// Payload as JSON, at most 256 KiB [default: null]
    #[arg(value_name = "JSON", conflicts_with = "file")]
    payload: Option<String>,
    /// Reads the payload from this file; - is the standard input
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Idempotency key: one execution per job and key [default: a fresh one]
    #[arg(long)]
    key: Option<String>,
    /// Not before this instant: RFC 3339 with its zone, or from now on as +90s, +10m, +2h
    /// [default: now]
    #[arg(long, value_name = "INSTANT")]
    at: Option<At>,
    /// Time each attempt may run, in whole seconds: 30, 30s, 5m, at most 8760h [default: the
    /// job's]
    #[arg(long, value_name = "DURATION", value_parser = parse::timeout_s)]
    timeout: Option<u32>,
    /// Waits up to this long for the end: 30, 30s, 5m; exit code 7 if the job did not succeed,
    /// 6 if it has not ended by then [default: does not wait]
    #[arg(long, value_name = "DURATION", value_parser = crate::duration::parse)]
    wait: Option<Duration>,
}

#[derive(Serialize)]
struct Shown {
    job: String,
    queue: String,
    key: String,
    duplicate: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_at: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    execution_id: Option<Uuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<State>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<Reason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<serde_json::Value>,
}

/// `now` is this machine's time, for `--at +…` where no ledger is configured to be asked.
pub(crate) async fn run(
    config: &Config,
    command: &Command,
    now: DateTime<Utc>,
    format: Format,
) -> Result<()> {
    // What is wrong in itself is refused before anybody is asked.
    let mut submission = submission(command)?;
    let store = ledger(config, command).await?;
    let run_at = match (command.at, &store) {
        (None, _) => None,
        (Some(at @ At::In(_)), Some(store)) => Some(at.instant(store.ledger().await?.now)),
        (Some(at), _) => Some(at.instant(now)),
    };
    let run_at = run_at.map(|at| at.ok_or_else(|| Failure::usage("--at is beyond the calendar")));
    let run_at = run_at.transpose()?;
    if let Some(at) = run_at {
        submission = submission.run_at(at);
        submission.check()?;
    }
    let mut client = Client::new(config.subjects.namespace())?;
    if let Some(store) = &store {
        client = client.with_store(Arc::clone(store));
    }
    let refusals = Refusals::default();
    let nats = config.nats_noting("bellwether submit", &refusals).await?;
    let client = client.with_nats(nats).with_refusals(refusals);
    let submitted = client.submit(&submission).await?;
    let mut shown = Shown {
        job: submitted.job.clone(),
        queue: command.queue.clone(),
        key: submitted.key.clone(),
        duplicate: submitted.duplicate,
        run_at,
        execution_id: None,
        state: None,
        reason: None,
        error: None,
        output: None,
    };
    if format == Format::Table {
        output::line(&line(&shown))?;
    }
    if let Some(store) = &store {
        warn_if_unserved(store.as_ref(), config, &command.queue, &command.job).await;
    }
    let ended = match command.wait {
        Some(wait) => end(&client, &submitted, wait, &mut shown).await,
        None => Ok(()),
    };
    if let Some(store) = store {
        store.close().await;
    }
    print(&shown, format)?;
    ended
}

/// Everything but the instant.
fn submission(command: &Command) -> Result<Submission> {
    let (payload, remedy) = match (&command.file, &command.payload) {
        (Some(path), _) => (read(path)?, "submit what is JSON"),
        (None, Some(payload)) => (
            payload.clone().into_bytes(),
            "quote it for the shell: '{\"n\": 1}'",
        ),
        (None, None) => (b"null".to_vec(), ""),
    };
    if let Err(error) = serde_json::from_slice::<serde::de::IgnoredAny>(&payload) {
        return Err(Failure::usage(format!(
            "the payload is no JSON ({error}); {remedy}"
        )));
    }
    let mut submission =
        Submission::new(command.job.clone(), Payload::json(payload)).queue(command.queue.clone());
    if let Some(key) = &command.key {
        submission = submission.key(key.clone());
    }
    if let Some(seconds) = command.timeout {
        submission = submission.timeout_s(seconds);
    }
    submission.check()?;
    Ok(submission)
}

/// One byte more than allowed is read at most, so that a wrong file is refused and not read.
fn read(path: &Path) -> Result<Vec<u8>> {
    let stdin = path == Path::new("-");
    let name = if stdin {
        "the standard input".to_owned()
    } else {
        path.display().to_string()
    };
    let failed = |error: std::io::Error| {
        Failure::usage(format!("failed to read the payload from {name}: {error}"))
    };
    let source: Box<dyn Read> = if stdin {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(path).map_err(failed)?)
    };
    let most = u64::try_from(PAYLOAD_MAX).unwrap_or(u64::MAX);
    let mut payload = Vec::new();
    source
        .take(most.saturating_add(1))
        .read_to_end(&mut payload)
        .map_err(failed)?;
    if payload.len() > PAYLOAD_MAX {
        return Err(Failure::usage(format!(
            "the payload from {name} is larger than {PAYLOAD_MAX} bytes (256 KiB); store it \
             elsewhere and send a reference"
        )));
    }
    Ok(payload)
}

/// The ledger: needed to wait, else a courtesy where one is configured and answers.
async fn ledger(config: &Config, command: &Command) -> Result<Option<Arc<dyn Store>>> {
    const NAME: &str = "bellwether submit";
    if command.wait.is_some() {
        return Ok(Some(config.store(NAME).await?));
    }
    if config.database(NAME).is_err() {
        return Ok(None);
    }
    let store = tokio::time::timeout(LOOK_MAX, config.store(NAME)).await;
    Ok(store.ok().and_then(Result::ok))
}

/// A submission that nobody serves is accepted by the broker all the same: say so. A worker that is
/// just starting has no session yet: what is said is true of now, and no prophecy.
async fn warn_if_unserved(store: &dyn Store, config: &Config, queue: &str, job: &str) {
    let look = async {
        let known = store.queue_views().await?.iter().any(|q| q.name == queue);
        let sessions = store.sessions(0).await?;
        Ok::<_, bellwether_store::Error>((known, sessions))
    };
    // Without an answer nothing is known, and nothing is said.
    let Ok(Ok((known, sessions))) = tokio::time::timeout(LOOK_MAX, look).await else {
        return;
    };
    let next = "start one, or see `bellwether workers list`";
    let warning = if !known {
        let after = config.text(key::RELAY_STRAYS_AFTER).unwrap_or_default();
        format!(
            "no worker has served the queue {queue} yet; unless one does, this becomes a dead \
             letter after {after}: {next}"
        )
    } else if serving::of_queue(&sessions, queue).next().is_none() {
        format!("no live worker serves the queue {queue} now; this waits for one: {next}")
    } else if serving::with_job(&sessions, queue, job).next().is_some() {
        return;
    } else {
        format!(
            "no live worker of the queue {queue} has the job {job} now; this waits for one: {next}"
        )
    };
    output::note(&format!("warning: {warning}"));
}

/// Waits for the end and notes it in `shown`.
async fn end(
    client: &Client,
    submitted: &Submitted,
    wait: Duration,
    shown: &mut Shown,
) -> Result<()> {
    let Waited { shards } = client.wait(submitted, wait).await?;
    let Some(shard) = shards.into_iter().next() else {
        return Ok(());
    };
    shown.execution_id = Some(shard.execution_id);
    shown.state = Some(shard.state);
    shown.reason = shard.reason;
    shown.output = shard.output.as_ref().map(body::value);
    shown.error = shard.error;
    if shard.state == State::Succeeded {
        return Ok(());
    }
    let why = or_dash(shown.error.as_deref().or(shard.reason.map(Reason::as_str)));
    Err(Failure::new(
        JOB_FAILED,
        format!("the job ended as {}: {why}", shard.state),
    ))
}

fn line(shown: &Shown) -> String {
    let duplicate = if shown.duplicate {
        " (the broker had it already)"
    } else {
        ""
    };
    let at = shown
        .run_at
        .map_or(String::new(), |at| format!(", not before {}", instant(at)));
    format!("submitted {}/{}{at}{duplicate}", shown.job, shown.key)
}

fn print(shown: &Shown, format: Format) -> Result<()> {
    match format {
        Format::Json => output::json(shown)?,
        Format::Jsonl => output::json_line(shown)?,
        // The key is what a submission is known by until a worker has claimed it.
        Format::Id => output::line(
            &shown
                .execution_id
                .map_or(shown.key.clone(), |id| id.to_string()),
        )?,
        Format::Table => {
            if let (Some(id), Some(state)) = (shown.execution_id, shown.state) {
                output::line(&format!("execution {id} {state}"))?;
            }
            if let Some(value) = &shown.output {
                output::line(&format!("{value:#}"))?;
            }
        }
    }
    Ok(())
}
