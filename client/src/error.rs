//! What a client call can answer instead of a result.

use bellwether_schemas::header::{JSON, MSGPACK};
use bellwether_schemas::limits::{KEY_MAX, PAYLOAD_MAX, YEAR_MAX};
use bellwether_schemas::names::NameError;
use bellwether_schemas::state::State;
use uuid::Uuid;

/// Result of a client call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A client call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The client was built without the ledger.
    #[error("failed to {call}: this client has no ledger; add one with `with_store`")]
    NeedsStore {
        /// The call.
        call: &'static str,
    },
    /// The client was built without the broker.
    #[error("failed to {call}: this client has no broker; add one with `with_nats`")]
    NeedsNats {
        /// The call.
        call: &'static str,
    },
    /// No variable says where the ledger or the broker is.
    #[error("set BELLWETHER_DATABASE_URL, BELLWETHER_NATS_URL or both")]
    NothingConfigured,
    /// The broker cannot be reached.
    #[error("failed to reach NATS: {0}")]
    Connect(#[from] async_nats::ConnectError),
    /// A name out of its alphabet.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A payload above the limit; nothing was sent.
    #[error(
        "payload of {size} bytes is larger than {PAYLOAD_MAX}; store it elsewhere and send a reference"
    )]
    PayloadTooLarge {
        /// Its size.
        size: usize,
    },
    /// A key that is empty, too long, begins with `~`, begins or ends with white space or
    /// holds a line break; nothing was sent.
    #[error(
        "key {key:?} is refused: use 1 to {KEY_MAX} bytes without control characters, \
         white space at either end or `~` at the begin"
    )]
    BadKey {
        /// The key, cut.
        key: String,
    },
    /// A content type that no worker decodes; nothing was sent.
    #[error("content type {content_type:?} is refused: use {JSON} or {MSGPACK}")]
    BadContentType {
        /// The content type, cut.
        content_type: String,
    },
    /// A timeout out of bounds; nothing was sent.
    #[error(
        "a timeout of {seconds} s is refused: use 1 s to 365 days, or none for that of the job"
    )]
    BadTimeout {
        /// The timeout.
        seconds: u32,
    },
    /// An instant beyond the calendar of the ledger; nothing was sent.
    #[error("an instant in the year {year} is refused: use one of the years 1970 to {YEAR_MAX}")]
    BadRunAt {
        /// Its year.
        year: i32,
    },
    /// A payload that does not serialise.
    #[error("failed to encode the payload: {0}")]
    Encode(#[from] serde_json::Error),
    /// An output that is not of the type asked for.
    #[error("failed to decode the output of shard {shard_index}: {reason}; ask for another type")]
    Decode {
        /// The shard.
        shard_index: u32,
        /// What the decoder says.
        reason: String,
    },
    /// No live schedule has that name.
    #[error("no schedule is named {name:?}; see `bellwether schedules list`")]
    NoSuchSchedule {
        /// The name.
        name: String,
    },
    /// A live schedule has that name.
    #[error("a schedule named {name:?} exists; unregister it first or choose another name")]
    ScheduleExists {
        /// The name.
        name: String,
    },
    /// No execution has that id.
    #[error(
        "no execution has the id {id}, or it was deleted by the retention of history; see \
         `bellwether executions list`"
    )]
    NoSuchExecution {
        /// The id.
        id: Uuid,
    },
    /// It has not ended, or it succeeded: there is nothing to repeat.
    #[error("execution {id} is not retried: {}", why_not(*.id, *.state))]
    NotRetryable {
        /// The execution.
        id: Uuid,
        /// Where it stands.
        state: State,
    },
    /// It was retried before, and that retry goes on or has succeeded.
    #[error("execution {id} is not retried: execution {retry} is its retry and is {state}")]
    AlreadyRetried {
        /// The execution.
        id: Uuid,
        /// Its retry.
        retry: Uuid,
        /// Where that stands.
        state: State,
    },
    /// The broker did not confirm: whether it stored the message is unknown. Submit again
    /// with the same key: it runs once.
    #[error("failed to submit {job}/{key}: {source}; submit again with the same key")]
    Submit {
        /// The job.
        job: String,
        /// The key.
        key: String,
        /// What the broker said.
        source: async_nats::jetstream::context::PublishError,
    },
    /// No stream takes the subject; nothing was stored.
    #[error(
        "failed to submit {job}/{key}: no stream takes {subject}: is the namespace right, was \
         `bellwether migrate` run, does the server run with -js?"
    )]
    NoStream {
        /// The job.
        job: String,
        /// The key.
        key: String,
        /// What it was published to.
        subject: String,
    },
    /// The broker does not allow it. Where it refused the subscription that hears the
    /// confirmation, the message may be stored all the same: submit again with the same key.
    #[error(
        "failed to submit {job}/{key}: nats-server refuses: {reason}; give this user that \
         right, then submit again with the same key"
    )]
    NotPermitted {
        /// The job.
        job: String,
        /// The key.
        key: String,
        /// What the server said.
        reason: String,
    },
    /// The ledger did not answer: whether the schedule fired is unknown.
    #[error(
        "{source}; whether {schedule} fired is not known: if it did, `bellwether executions list` \
         shows the fire {fire_id}"
    )]
    TriggerUnknown {
        /// The schedule.
        schedule: String,
        /// The fire, if there is one.
        fire_id: Uuid,
        /// What the ledger said last.
        source: bellwether_store::Error,
    },
    /// What is waited for does not exist.
    #[error("failed to wait: {what} does not exist")]
    NothingToWaitFor {
        /// What was waited for.
        what: String,
    },
    /// The time given was not enough.
    #[error("failed to wait: {what} had not ended in time; wait again, nothing was lost")]
    WaitTimedOut {
        /// What was waited for.
        what: String,
    },
    /// The store answered fewer rows than it was asked for.
    #[error("failed to {call}: the ledger gave no answer")]
    NoAnswer {
        /// The call.
        call: &'static str,
    },
    /// The ledger failed.
    #[error(transparent)]
    Store(#[from] bellwether_store::Error),
}

/// Why an execution in `state` is not retried, and what to do instead.
fn why_not(id: Uuid, state: State) -> String {
    match state {
        State::Succeeded => {
            "it succeeded; submit or trigger it anew to run it once more".to_owned()
        }
        State::Unknown => format!(
            "it is unknown, and its work may have been done; say first what became of it: \
             `bellwether executions resolve {id}`"
        ),
        state => format!("it is {state} and has not ended; cancel it first, or wait for its end"),
    }
}
