//! Look, compare, create or change.

use async_nats::jetstream::context::RequestError;
use async_nats::jetstream::{Context, stream};
use bellwether_schemas::names;
use bellwether_schemas::subject::Subjects;
use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::api::{self, Failure};
use super::consumers::{declare_consumers, survey};
use super::diff::{self, Difference};
use super::settings::{self, LEDGER_KEY, StreamLimits};

/// What may be done about what exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// For relays: create what is missing, refuse what differs.
    Create,
    /// For a relay at work: as [`Mode::Create`], but a consumer whose `ack_wait` differs is only
    /// told. So it can be changed while relays run, each of which is given its new value later.
    Keep,
    /// For `bellwether migrate`: also change what differs, where the server lets one.
    Apply,
}

/// A stream as the broker has it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamIdentity {
    /// Its name.
    pub name: String,
    /// When the broker made it, cut to milliseconds: the precision that every ledger keeps.
    pub created: DateTime<Utc>,
    /// The sequence of the last message that it stored; 0 = none yet.
    pub last_seq: u64,
}

/// Both streams of a namespace, after a declaration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared {
    /// The stream of dispatches.
    pub work: StreamIdentity,
    /// The stream of submitted messages.
    pub submit: StreamIdentity,
}

/// Why the streams and consumers are not as declared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Two ledgers share a namespace. Nothing was changed.
    #[error(
        "stream {stream} belongs to ledger {found}, this is ledger {ledger}; \
         choose another namespace, or remove the stream if that ledger is gone"
    )]
    OtherLedger {
        /// The stream.
        stream: String,
        /// The ledger named in its metadata.
        found: String,
        /// The caller's ledger.
        ledger: Uuid,
    },

    /// A name that can be no queue: its filter would reach into other queues' lanes. The server
    /// was not asked for anything.
    #[error(
        "{name:?} can be no queue: use 1 to 64 of A-Z a-z 0-9 _ -; delete its row from the table \
         `queue`, somebody has written it there by hand"
    )]
    Queue {
        /// The name.
        name: String,
    },

    /// What exists differs from what this process declares ([`Mode::Create`]).
    #[error(
        "{what} differs: {}; run `bellwether migrate`, or give this process the same `nats_…` \
         settings as the last `migrate`",
        diff::render(differences)
    )]
    Different {
        /// `stream BW_WORK` or `consumer default-high on BW_WORK`.
        what: String,
        /// Field by field.
        differences: Vec<Difference>,
    },

    /// What exists differs in what the server lets nobody change ([`Mode::Apply`]).
    #[error(
        "{what} differs: {}; the server refuses the change ({reason}); {remedy}",
        diff::render(differences)
    )]
    Unchangeable {
        /// As in [`Error::Different`].
        what: String,
        /// Field by field.
        differences: Vec<Difference>,
        /// What the server said.
        reason: String,
        /// What to do instead.
        remedy: String,
    },

    /// The server's definite no, such as too little storage.
    #[error("the server refuses to {doing}: {reason}")]
    Refused {
        /// What was asked, as a verb phrase.
        doing: String,
        /// What the server said.
        reason: String,
    },

    /// Nobody answers JetStream's API.
    #[error(
        "no JetStream answers to {doing}; start nats-server with `-js`, or wait for its leader"
    )]
    NoJetStream {
        /// What was asked, as a verb phrase.
        doing: String,
    },

    /// No answer in time, or the server cannot say right now.
    #[error("no answer to {doing}: {reason}")]
    Unavailable {
        /// What was asked, as a verb phrase.
        doing: String,
        /// What was said instead.
        reason: String,
    },
}

impl Error {
    /// Whether the configuration is at fault, so that only an operator can help. Everything
    /// else may pass by itself.
    pub fn is_config(&self) -> bool {
        matches!(
            self,
            Self::OtherLedger { .. }
                | Self::Queue { .. }
                | Self::Different { .. }
                | Self::Unchangeable { .. }
        )
    }

    pub(super) fn from_failure(doing: &str, failure: Failure) -> Self {
        let doing = doing.to_owned();
        match failure {
            Failure::Server(error) if api::is_passing(&error) => Self::Unavailable {
                doing,
                reason: error.to_string(),
            },
            Failure::Server(error) => Self::Refused {
                doing,
                reason: error.to_string(),
            },
            Failure::Away(error) if api::no_jetstream(&error) => Self::NoJetStream { doing },
            Failure::Away(error) => Self::Unavailable {
                doing,
                reason: reason(&error),
            },
        }
    }
}

/// An error and its cause in one line: async-nats keeps the interesting half in the source.
fn reason(error: &RequestError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// Declares both streams of the namespace and the consumers of `queues`.
///
/// A repeat changes nothing, and any number of callers may do it at once. Consumers of queues
/// that are not named are left alone. Stream identities are asked from the broker during the
/// call: read a stream's mark before it.
pub async fn declare(
    js: &Context,
    ledger_id: Uuid,
    subjects: &Subjects,
    queues: &[String],
    mode: Mode,
    limits: &StreamLimits,
) -> Result<Declared, Error> {
    // Before any call: the server would take an update to a filter that overlaps another.
    if let Some(name) = queues.iter().find(|name| !names::is_valid(name)) {
        return Err(Error::Queue { name: name.clone() });
    }
    let declared = declare_streams(js, ledger_id, subjects, mode, limits).await?;
    let rest = survey(js, subjects, queues, mode, limits, &|| {})
        .await?
        .rest;
    let attempt = declare_consumers(js, rest, mode, &|| true).await?;
    match attempt.failed.into_iter().next() {
        Some((_consumer, error)) => Err(error),
        None => Ok(declared),
    }
}

/// The first half of [`declare`]: what has to be there before anything is published.
pub(crate) async fn declare_streams(
    js: &Context,
    ledger_id: Uuid,
    subjects: &Subjects,
    mode: Mode,
    limits: &StreamLimits,
) -> Result<Declared, Error> {
    let work = settings::work(subjects, ledger_id, limits);
    let submit = settings::submit(subjects, ledger_id, limits);
    Ok(Declared {
        work: declare_stream(js, ledger_id, &work, mode).await?,
        submit: declare_stream(js, ledger_id, &submit, mode).await?,
    })
}

async fn declare_stream(
    js: &Context,
    ledger_id: Uuid,
    declared: &stream::Config,
    mode: Mode,
) -> Result<StreamIdentity, Error> {
    let name = &declared.name;
    let found = find_or_create_stream(js, declared).await?;
    if let Some(found) = found.config.metadata.get(LEDGER_KEY)
        && *found != ledger_id.to_string()
    {
        let (stream, found) = (name.clone(), found.clone());
        return Err(Error::OtherLedger {
            stream,
            found,
            ledger: ledger_id,
        });
    }
    let differences = diff::streams(declared, &found.config);
    if differences.is_empty() {
        return Ok(identity(found));
    }
    let what = format!("stream {name}");
    match mode {
        Mode::Create | Mode::Keep => Err(Error::Different { what, differences }),
        Mode::Apply => match api::update_stream(js, declared).await {
            Ok(info) => Ok(identity(info)),
            Err(failure) => {
                let remedy = "let its messages be worked off, remove it, and run \
                              `bellwether migrate` again";
                Err(unchangeable(what, differences, remedy, failure))
            }
        },
    }
}

async fn find_or_create_stream(
    js: &Context,
    declared: &stream::Config,
) -> Result<stream::Info, Error> {
    let name = &declared.name;
    let looking = format!("look up stream {name}");
    let creating = format!("create stream {name}");
    let info = api::stream_info(js, name).await;
    if let Some(found) = info.map_err(|failure| Error::from_failure(&looking, failure))? {
        return Ok(found);
    }
    match api::create_stream(js, declared).await {
        Ok(created) => {
            tracing::info!(stream = %name, "created the stream");
            Ok(created)
        }
        Err(failure) if api::already_exists(&failure) => api::stream_info(js, name)
            .await
            .map_err(|failure| Error::from_failure(&looking, failure))?
            .ok_or_else(|| Error::from_failure(&creating, failure)),
        Err(failure) => Err(Error::from_failure(&creating, failure)),
    }
}

pub(super) fn unchangeable(
    what: String,
    differences: Vec<Difference>,
    remedy: &str,
    failure: Failure,
) -> Error {
    match failure {
        Failure::Server(error) if !api::is_passing(&error) => Error::Unchangeable {
            what,
            differences,
            reason: error.to_string(),
            remedy: remedy.to_owned(),
        },
        failure => Error::from_failure(&format!("change {what}"), failure),
    }
}

fn identity(info: stream::Info) -> StreamIdentity {
    let millis = info.created.unix_timestamp_nanos().div_euclid(1_000_000);
    // A broker's clock beyond the year 9999 would be the first such case.
    let created = i64::try_from(millis)
        .ok()
        .and_then(DateTime::from_timestamp_millis)
        .unwrap_or(DateTime::<Utc>::MAX_UTC);
    StreamIdentity {
        name: info.config.name,
        created,
        last_seq: info.state.last_sequence,
    }
}
