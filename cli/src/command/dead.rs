//! `bellwether dead list|show|replay|discard`: what can never run as it is.

use std::io::{IsTerminal, Write};

use bellwether_schemas::header;
use bellwether_schemas::ids;
use bellwether_schemas::limits::PAYLOAD_MAX;
use bellwether_schemas::names;
use bellwether_schemas::state::{DeadReason, Resolution};
use bellwether_store::dead::{DeadFilter, DeadLetterView, Discarded, Replayed};
use bellwether_store::{Payload, Store};
use clap::{Subcommand, ValueEnum};
use serde::Serialize;
use uuid::Uuid;

use super::bulk::{self, Bulk, Done};
use super::{body, parse};
use crate::config::Config;
use crate::exit::{Failure, NOT_FOUND, REFUSED, Result};
use crate::interrupt::Interrupt;
use crate::output::{self, Format, instant, or_dash};

/// Characters of a body that are shown; `--body` writes all of it.
const BODY_SHOWN: usize = 4_000;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Lists dead letters that wait for somebody, newest first
    List {
        /// Only for this reason
        #[arg(long, value_parser = parse::dead_reason())]
        reason: Option<DeadReason>,
        /// Only of this job, whether or not a job can have that name
        #[arg(long, value_name = "NAME")]
        job: Option<String>,
        /// Also those that were replayed or discarded
        #[arg(long)]
        all: bool,
        /// Most rows shown
        #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
    },
    /// Shows one: what was wrong, what can be done, and its body
    Show {
        /// The dead letter
        #[arg(value_parser = parse::id)]
        id: Uuid,
        /// Writes nothing but the body, as it was received, to a pipe or a file
        #[arg(long)]
        body: bool,
    },
    /// Runs dead letters, each as a new execution
    Replay {
        /// The dead letters
        #[arg(required = true, value_name = "ID", value_parser = parse::id)]
        ids: Vec<Uuid>,
        /// How the body is encoded, instead of what its sender said
        #[arg(long, value_enum, value_name = "TYPE")]
        content_type: Option<ContentType>,
    },
    /// Drops the bodies of dead letters: nothing will run
    Discard {
        /// The dead letters
        #[arg(required = true, value_name = "ID", value_parser = parse::id)]
        ids: Vec<Uuid>,
        /// Does not ask before it discards
        #[arg(long)]
        yes: bool,
    },
}

impl Command {
    pub(crate) const fn changes_something(&self) -> bool {
        matches!(self, Self::Replay { .. } | Self::Discard { .. })
    }
}

/// How a body is encoded.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ContentType {
    /// application/json
    Json,
    /// application/msgpack
    Msgpack,
}

impl ContentType {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Json => header::JSON,
            Self::Msgpack => header::MSGPACK,
        }
    }
}

pub(crate) async fn run(config: &Config, command: &Command, format: Format) -> Result<()> {
    match command {
        Command::List {
            reason,
            job,
            all,
            limit,
        } => {
            let filter = DeadFilter {
                reason: *reason,
                job: job.clone(),
                resolved: *all,
                limit: *limit,
            };
            list(config, &filter, format).await
        }
        Command::Show { id, body } => show(config, *id, *body, format).await,
        Command::Replay { ids, content_type } => replay(config, ids, *content_type, format).await,
        Command::Discard { ids, yes } => discard(config, ids, *yes, format).await,
    }
}

async fn list(config: &Config, filter: &DeadFilter, format: Format) -> Result<()> {
    let store = config.store("bellwether dead").await?;
    output::show_rows_left_out();
    let letters = store.dead_letters(filter).await?;
    store.close().await;
    let head = [
        "dead letter",
        "job",
        "queue",
        "reason",
        "key",
        "bytes",
        "recorded",
        "resolution",
    ];
    Ok(output::list(
        format,
        &letters,
        |letter| letter.id.to_string(),
        &head,
        |letter| {
            vec![
                letter.id.to_string(),
                letter.job.clone(),
                letter.queue.clone(),
                letter.reason.to_string(),
                letter.key.clone(),
                letter.size.to_string(),
                instant(letter.recorded_at),
                or_dash(letter.resolution),
            ]
        },
    )?)
}

/// What `-o json` prints of one.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    letter: &'a DeadLetterView,
    /// The body, if it is JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<serde_json::Value>,
    /// Any other body, two digits a byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    body_hex: Option<String>,
    /// The reason in words.
    meaning: String,
    /// What can be done.
    remedy: String,
}

async fn show(config: &Config, id: Uuid, raw: bool, format: Format) -> Result<()> {
    let mut stdout = std::io::stdout();
    if raw {
        format.plain()?;
    }
    if raw && stdout.is_terminal() {
        return Err(Failure::usage(
            "--body writes bytes as they were received, which a terminal could take for commands; \
             send them to a file or a pipe",
        ));
    }
    let store = config.store("bellwether dead").await?;
    let found = store.dead_letter(id).await?;
    store.close().await;
    let (letter, payload) = found.ok_or_else(|| not_found(id))?;
    if raw {
        if letter.reason == DeadReason::TooLarge && !payload.bytes.is_empty() {
            output::note(&format!(
                "warning: this is the beginning of the body only, {} bytes: it was larger than \
                 {PAYLOAD_MAX}",
                payload.bytes.len()
            ));
        }
        stdout.write_all(&payload.bytes)?;
        return Ok(stdout.flush()?);
    }
    let value = body::json(&payload);
    let other = value.is_none() && !payload.bytes.is_empty();
    let shown = Shown {
        letter: &letter,
        body: value,
        body_hex: other.then(|| body::hex(&payload.bytes)),
        meaning: meaning(&letter),
        remedy: remedy(&letter),
    };
    Ok(output::one(format, &shown, &id.to_string(), |shown| {
        print(shown, &payload)
    })?)
}

fn print(shown: &Shown<'_>, payload: &Payload) -> std::io::Result<()> {
    let letter = shown.letter;
    let mut facts = vec![
        ("dead letter", letter.id.to_string()),
        ("job", letter.job.clone()),
        ("queue", letter.queue.clone()),
        ("key", letter.key.clone()),
        ("reason", format!("{}: {}", letter.reason, shown.meaning)),
        ("detail", letter.detail.clone()),
        ("recorded", instant(letter.recorded_at)),
    ];
    if let Some(id) = letter.execution_id {
        facts.push(("execution", id.to_string()));
    }
    if let Some(resolution) = letter.resolution {
        let at = output::maybe_instant(letter.resolved_at);
        let run = letter
            .replayed_as
            .map_or(String::new(), |id| format!(" as execution {id}"));
        facts.push(("resolution", format!("{resolution} {at}{run}")));
    }
    for (name, value) in facts {
        output::line(&format!("{name:<12} {value}"))?;
    }
    output::line("")?;
    if payload.bytes.is_empty() {
        output::line("no body is kept")?;
    } else {
        output::line(&body::pretty(payload, BODY_SHOWN))?;
    }
    if letter.resolution.is_none() {
        output::line(&format!("\n{}", shown.remedy))?;
    }
    Ok(())
}

/// What is wrong with the names that its subject has, if one is: no worker can be asked for it.
fn bad_name(letter: &DeadLetterView) -> Option<String> {
    let parts = [("job", &letter.job), ("queue", &letter.queue)];
    let bad = parts.map(|(kind, name)| names::check(kind, name).err());
    bad.into_iter().flatten().next().map(|bad| bad.to_string())
}

/// The reason in words.
fn meaning(letter: &DeadLetterView) -> String {
    match letter.reason {
        DeadReason::BadHeader => {
            bad_name(letter).unwrap_or_else(|| "a Bw-* header does not read".to_owned())
        }
        DeadReason::UnsupportedContentType => {
            format!(
                "its content type is neither {} nor {}",
                header::JSON,
                header::MSGPACK
            )
        }
        DeadReason::TooLarge if letter.size > 0 => format!(
            "it is larger than {PAYLOAD_MAX} bytes, and only its first {} bytes were kept",
            letter.size
        ),
        DeadReason::TooLarge => format!("it is larger than {PAYLOAD_MAX} bytes"),
        DeadReason::BadKey => "its idempotency key is refused".to_owned(),
        DeadReason::Stale => {
            "it is older than idempotency keys are kept, so it may have run before".to_owned()
        }
        DeadReason::UnknownQueue => "no worker has ever served its queue".to_owned(),
        DeadReason::Undeliverable => "the broker refuses its dispatch".to_owned(),
        DeadReason::Unclaimed => {
            "it was dispatched again and again, and no worker with a free slot claimed it"
                .to_owned()
        }
    }
}

/// What can be done about it.
fn remedy(letter: &DeadLetterView) -> String {
    let DeadLetterView { id, queue, .. } = letter;
    let replay = format!("bellwether dead replay {id}");
    let discard = format!("bellwether dead discard {id}");
    match letter.reason {
        _ if letter.execution_id.is_none() && bad_name(letter).is_some() => format!(
            "it can never run: have its sender publish it anew under the name of a job, and: \
             {discard}"
        ),
        DeadReason::BadHeader => format!(
            "to run it now, without those headers and without its key: {replay}\n\
             else correct its sender, and: {discard}"
        ),
        DeadReason::UnsupportedContentType => {
            format!("if its body is JSON: {replay} --content-type json\nelse: {discard}")
        }
        DeadReason::TooLarge => format!(
            "it can never run: store what is large elsewhere and submit a reference to it, then: \
             {discard}"
        ),
        DeadReason::BadKey => format!("to run it now, without a key: {replay}\nelse: {discard}"),
        DeadReason::Stale => {
            format!("if its work is not done yet: {replay}\nelse: {discard}")
        }
        DeadReason::Unclaimed => format!(
            "see whether its workers are well (bellwether workers), then: {replay}\nelse: {discard}"
        ),
        DeadReason::UnknownQueue => {
            format!("start a worker that serves the queue {queue}, then: {replay}\nelse: {discard}")
        }
        DeadReason::Undeliverable => {
            format!("once the detail is seen to: {replay}\nelse: {discard}")
        }
    }
}

/// What `-o json` prints of each.
#[derive(Serialize)]
struct Row {
    id: Uuid,
    /// `replayed`, `discarded`, `resolved_before`, `not_replayable` or `not_found`.
    result: &'static str,
    /// The execution that a replay made.
    #[serde(skip_serializing_if = "Option::is_none")]
    execution_id: Option<Uuid>,
    /// What was done before.
    #[serde(skip_serializing_if = "Option::is_none")]
    resolution: Option<Resolution>,
}

impl Row {
    const fn new(id: Uuid, result: &'static str) -> Self {
        Self {
            id,
            result,
            execution_id: None,
            resolution: None,
        }
    }
}

async fn replay(
    config: &Config,
    ids: &[Uuid],
    content_type: Option<ContentType>,
    format: Format,
) -> Result<()> {
    let store = config.store("bellwether dead").await?;
    let replay = async |id| replay_one(store.as_ref(), id, content_type).await;
    let interrupt = Interrupt::listen()?;
    let bulk = Bulk::run_each(&interrupt, &bulk::each_once(ids), replay).await;
    store.close().await;
    bulk.finish("replayed", format)
}

async fn replay_one(
    store: &dyn Store,
    id: Uuid,
    content_type: Option<ContentType>,
) -> Result<Done<Row>> {
    let fire_id = ids::fresh();
    let content_type = content_type.map(ContentType::as_str);
    Ok(
        match store.replay_dead_letter(id, fire_id, content_type).await? {
            Replayed::Replayed { execution_id } => Done {
                row: Row {
                    execution_id: Some(execution_id),
                    ..Row::new(id, "replayed")
                },
                id: execution_id,
                result: Ok(format!("dead letter {id} runs as execution {execution_id}")),
            },
            Replayed::Resolved(resolution) => resolved(id, resolution),
            Replayed::NotReplayable => Done {
                row: Row::new(id, "not_replayable"),
                id,
                result: Err(Failure::new(
                    REFUSED,
                    format!(
                        "dead letter {id} cannot run: {}; see `bellwether dead show {id}`",
                        why_not(store, id, content_type).await
                    ),
                )),
            },
            Replayed::NotFound => missing(id),
        },
    )
}

/// Why one is not replayed.
async fn why_not(store: &dyn Store, id: Uuid, content_type: Option<&str>) -> String {
    let Ok(Some((letter, _))) = store.dead_letter(id).await else {
        return "as it is, nothing can be made of it".to_owned();
    };
    if let Some(execution) = letter.execution_id {
        return format!("its execution {execution} is not one that ended without success");
    }
    if let Some(bad) = bad_name(&letter) {
        return bad;
    }
    if letter.reason == DeadReason::TooLarge {
        return meaning(&letter);
    }
    format!(
        "its content type {:?} is not understood; --content-type says which it is",
        content_type.unwrap_or(&letter.content_type)
    )
}

async fn discard(config: &Config, ids: &[Uuid], yes: bool, format: Format) -> Result<()> {
    let ids = &bulk::each_once(ids)[..];
    let what = match ids {
        [id] => format!("the body of dead letter {id} is to be dropped for good"),
        ids => format!(
            "the bodies of {} dead letters are to be dropped for good",
            ids.len()
        ),
    };
    if !yes {
        bulk::confirm(&what, false)?;
    }
    let store = config.store("bellwether dead").await?;
    let interrupt = Interrupt::listen()?;
    let discard = async |id| discard_one(store.as_ref(), id).await;
    let bulk = Bulk::run_each(&interrupt, ids, discard).await;
    store.close().await;
    bulk.finish("discarded", format)
}

async fn discard_one(store: &dyn Store, id: Uuid) -> Result<Done<Row>> {
    Ok(match store.discard_dead_letter(id).await? {
        Discarded::Discarded => Done {
            row: Row::new(id, "discarded"),
            id,
            result: Ok(format!("dead letter {id} is discarded")),
        },
        Discarded::Resolved(resolution) => resolved(id, resolution),
        Discarded::NotFound => missing(id),
    })
}

fn resolved(id: Uuid, resolution: Resolution) -> Done<Row> {
    Done {
        row: Row {
            resolution: Some(resolution),
            ..Row::new(id, "resolved_before")
        },
        id,
        result: Err(Failure::new(
            REFUSED,
            format!("dead letter {id} was {resolution} before"),
        )),
    }
}

fn missing(id: Uuid) -> Done<Row> {
    Done {
        row: Row::new(id, "not_found"),
        id,
        result: Err(not_found(id)),
    }
}

fn not_found(id: Uuid) -> Failure {
    Failure::new(
        NOT_FOUND,
        format!("no dead letter has the id {id}; see `bellwether dead list --all`"),
    )
}
