//! Dead letters: messages and dispatches that can never run, until a person looks after them.

use bellwether_schemas::limits::{ERROR_TEXT_MAX, KEY_MAX, SHARD_TOTAL_MAX};
use bellwether_schemas::state::{DeadReason, Resolution};
use bellwether_schemas::{ids, names, text};
use chrono::{DateTime, Utc};
use serde::Serialize;
use uuid::Uuid;

use crate::{Payload, Result, check};

/// A submitted message that can never run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// The job its subject names.
    pub job: String,
    /// The queue its subject names.
    pub queue: String,
    /// Its idempotency key.
    pub key: String,
    /// Why.
    pub reason: DeadReason,
    /// What was wrong, for people.
    pub detail: String,
    /// Its body; empty if it was too large.
    pub payload: Payload,
}

/// A dead letter as people see it.
#[derive(Debug, Clone, Serialize)]
pub struct DeadLetterView {
    /// Names it in commands.
    pub id: Uuid,
    /// The job.
    pub job: String,
    /// The queue.
    pub queue: String,
    /// Its idempotency key; one that begins with `~` was made by the ledger.
    pub key: String,
    /// Why.
    pub reason: DeadReason,
    /// What was wrong.
    pub detail: String,
    /// How its body is encoded, as its sender said.
    pub content_type: String,
    /// Bytes of its body that were kept.
    pub size: u64,
    /// The execution whose dispatch it was; none = a submitted message.
    pub execution_id: Option<Uuid>,
    /// When it was recorded.
    pub recorded_at: DateTime<Utc>,
    /// What a person did about it.
    pub resolution: Option<Resolution>,
    /// When.
    pub resolved_at: Option<DateTime<Utc>>,
    /// The execution that a replay made.
    pub replayed_as: Option<Uuid>,
}

/// Which dead letters to list.
#[derive(Debug, Clone, Default)]
pub struct DeadFilter {
    /// Only this reason.
    pub reason: Option<DeadReason>,
    /// Only this job.
    pub job: Option<String>,
    /// Also those that a person looked after.
    pub resolved: bool,
    /// At most this many, newest first.
    pub limit: u32,
}

/// How a replay ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replayed {
    /// It runs as this execution (trigger `retry`).
    Replayed {
        /// The execution.
        execution_id: Uuid,
    },
    /// A person has looked after it before.
    Resolved(Resolution),
    /// Its body was not kept, its names or its content type are not understood, or its
    /// execution needs no repetition: discard it.
    NotReplayable,
    /// No such dead letter.
    NotFound,
}

/// How a discard ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discarded {
    /// It is resolved and its body is gone; the row stays, so that a redelivery of the same
    /// message adds none.
    Discarded,
    /// A person has looked after it before.
    Resolved(Resolution),
    /// No such dead letter.
    NotFound,
}

/// Longest content type of a dead letter that is kept, in characters.
const CONTENT_TYPE_MAX: usize = 256;

/// What a replay of a dead letter makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replay {
    /// A one-shot, its body read as this content type.
    Message(&'static str),
    /// A retry of this execution.
    Dispatch(Uuid),
    /// Nothing: it can never run.
    Nothing,
}

impl Replay {
    /// What the facts of `letter` allow, its body read as `content_type` instead of its own.
    pub(crate) fn of(letter: &DeadLetterView, content_type: Option<&str>) -> Self {
        if let Some(execution_id) = letter.execution_id {
            return Self::Dispatch(execution_id);
        }
        // Of a body that was too large only the beginning was kept.
        if letter.reason == DeadReason::TooLarge
            || !names::is_valid(&letter.job)
            || !names::is_valid(&letter.queue)
        {
            return Self::Nothing;
        }
        check::content_type(content_type.unwrap_or(&letter.content_type))
            .map_or(Self::Nothing, Self::Message)
    }
}

impl DeadLetterView {
    /// The answer to a replay of what was resolved before; none = it is open.
    pub(crate) fn replayed_before(&self, fire_id: Uuid) -> Option<Replayed> {
        let resolution = self.resolution?;
        let repeated = |execution_id: &Uuid| {
            (0..SHARD_TOTAL_MAX).any(|shard| ids::execution(fire_id, shard) == *execution_id)
        };
        Some(
            self.replayed_as
                .filter(repeated)
                .map_or(Replayed::Resolved(resolution), |execution_id| {
                    Replayed::Replayed { execution_id }
                }),
        )
    }
}

impl DeadLetter {
    /// Its words made fit for the ledger: what is wrong with a dead letter may be any of them.
    pub(crate) fn cleaned(&self) -> Self {
        let clean = |word: &str, chars_max| text::clean(word, chars_max).into_owned();
        Self {
            job: clean(&self.job, KEY_MAX),
            queue: clean(&self.queue, KEY_MAX),
            key: clean(&self.key, KEY_MAX),
            reason: self.reason,
            detail: clean(&self.detail, ERROR_TEXT_MAX),
            payload: Payload {
                bytes: self.payload.bytes.clone(),
                content_type: clean(&self.payload.content_type, CONTENT_TYPE_MAX),
            },
        }
    }
}

/// Dead letters.
#[async_trait::async_trait]
pub trait DeadLetters {
    /// Records a message that can never run, before it is acked. A repeat changes nothing;
    /// true = it was not there.
    async fn record_dead_letter(&self, letter: &DeadLetter) -> Result<bool>;

    /// A dispatch that can never be published: in one statement its outbox row is deleted, its
    /// waiting execution ends as `failed(undeliverable)` and a dead letter tells why. A row that
    /// was overtaken, whose execution does not wait for this dispatch any more, is only deleted.
    /// False = the row was gone.
    async fn bury_dispatch(&self, outbox_id: i64, detail: &str) -> Result<bool>;

    /// Lists them, newest first. One whose row cannot be read is left out with a warning that
    /// names it; it can be discarded.
    async fn dead_letters(&self, filter: &DeadFilter) -> Result<Vec<DeadLetterView>>;

    /// One with its body.
    async fn dead_letter(&self, id: Uuid) -> Result<Option<(DeadLetterView, Payload)>>;

    /// Runs it: a message becomes a one-shot without a key (trigger `retry`, default policy,
    /// due now), the execution of a dispatch is repeated as by an operator, or the retry that
    /// an operator made of it stands for it. `fire_id` is fresh; a repeat with the same one
    /// answers the same. `content_type` is used instead of its own.
    async fn replay_dead_letter(
        &self,
        id: Uuid,
        fire_id: Uuid,
        content_type: Option<&str>,
    ) -> Result<Replayed>;

    /// Drops its body; nothing will run.
    async fn discard_dead_letter(&self, id: Uuid) -> Result<Discarded>;
}
