//! Messages of the submit stream whose queue has no row: nobody would ever read them.
//!
//! A look every [`Options::strays_every`](crate::Options) names such queues at once. What is
//! older than [`Options::strays_after`](crate::Options) becomes a dead letter `unknown_queue`,
//! recorded before the message is deleted. No consumer is made for it: clients choose the
//! names, and a consumer for every name that one can invent would have no bound.
//!
//! A message is deleted by its sequence, for the broker takes no other name. In a stream that was
//! replaced, or put back from a copy, since it was read, another message has that sequence. So the
//! stream is compared before the message is recorded, and the message right before it is deleted.
//! What is left is a replacement between these two requests, a moment of one round trip, in which
//! the new stream would have to come as far as that sequence, too.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_nats::HeaderValue;
use async_nats::jetstream;
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::{DeleteMessageErrorKind, RawMessageErrorKind, Stream};
use bellwether_schemas::limits::PAYLOAD_MAX;
use bellwether_schemas::state::DeadReason;
use bellwether_schemas::subject::Subjects;
use bellwether_schemas::{header, key, names, text};
use bellwether_store::dead::DeadLetter;
use bellwether_store::{Payload, Store};
use bellwether_telemetry::metrics;
use chrono::{DateTime, TimeDelta, Utc};
use futures_util::TryStreamExt;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backoff;
use crate::declare::{self, LEDGER_KEY};
use crate::error::Error;
use crate::gate::{Gate, Pass};
use crate::limiter::Limiter;
use crate::relay::Options;
use crate::stats::Counters;

/// Messages of one look that become dead letters; the next look goes on.
const LETTERS_MAX: usize = 1_000;

/// Of these, kept for names that can be no queue, however many a queue has.
const LETTERS_OF_WALK: usize = 100;

/// Queues visited in one look; the next look goes on after them.
const QUEUES_MAX: usize = 100;

/// Messages read one after another in one look, for those that no subject filter can name.
const WALK_MAX: usize = 256;

/// The filter that also finds a subject which has `>` for a token.
const EVERYTHING: &str = ">";

/// Queues that a log line names, and characters of each.
const SHOWN_MAX: usize = 10;
const SHOWN_CHARS: usize = 64;

/// Messages that wait in the submit stream, by queue, for queues that are not in `known`.
///
/// # Errors
///
/// When the broker does not answer, or the stream is missing.
pub async fn stray_queues(
    js: &jetstream::Context,
    subjects: &Subjects,
    known: &[String],
) -> Result<BTreeMap<String, u64>, Error> {
    let stream = submit_stream(js, subjects).await?;
    strays_of(&stream, subjects, known).await
}

async fn submit_stream(js: &jetstream::Context, subjects: &Subjects) -> Result<Stream, Error> {
    let stream = js.get_stream(subjects.submit_stream()).await;
    stream.map_err(|error| unavailable(&error))
}

async fn strays_of(
    stream: &Stream,
    subjects: &Subjects,
    known: &[String],
) -> Result<BTreeMap<String, u64>, Error> {
    let mut waiting = stream
        .info_with_subjects(subjects.submit_all())
        .await
        .map_err(|error| unavailable(&error))?;
    let mut strays = BTreeMap::new();
    while let Some((subject, count)) = waiting
        .try_next()
        .await
        .map_err(|error| unavailable(&error))?
    {
        if let Some((queue, _)) = subjects.parse_submit(&subject)
            && !known.iter().any(|known| known == queue)
        {
            *strays.entry(queue.to_owned()).or_insert(0) +=
                u64::try_from(count).unwrap_or(u64::MAX);
        }
    }
    Ok(strays)
}

/// The part of a relay that looks after them.
pub(crate) struct Strays {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) js: jetstream::Context,
    pub(crate) subjects: Subjects,
    pub(crate) options: Options,
    pub(crate) gate: Arc<Gate>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) place: Place,
}

/// Where the last look ended.
#[derive(Debug, Default)]
pub(crate) struct Place {
    /// The queue that was visited last.
    queue: String,
    /// The message after the one that was walked over last.
    sequence: u64,
}

/// One look: what it may touch, and what it still may do.
struct Look {
    stream: Stream,
    pass: Pass,
    too_old: DateTime<Utc>,
    left: usize,
    /// The stream is another one by now.
    over: bool,
}

impl Strays {
    /// Looks until `stop`. Nothing here is urgent: what fails is tried again at the next look.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let (mut errors, mut shown) = (Limiter::default(), Limiter::default());
        loop {
            let wait = backoff::jittered(self.options.strays_every, fastrand::f64());
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
            let looked = tokio::select! {
                () = stop.cancelled() => return,
                looked = self.look(&mut shown) => looked,
            };
            match looked {
                Ok(()) => drop(errors.reset()),
                Err(error) => {
                    if let Some(held_back) = errors.admit(Instant::now()) {
                        tracing::warn!(
                            %error, held_back,
                            "cannot look for messages of unknown queues; trying again"
                        );
                    }
                }
            }
        }
    }

    async fn look(&mut self, shown: &mut Limiter) -> Result<(), Error> {
        // Without a pass nobody has compared the streams of this connection with the ledger.
        let Some(pass) = self.gate.pass() else {
            return Ok(());
        };
        let stream = submit_stream(&self.js, &self.subjects).await?;
        let ledger = self.store.ledger().await?;
        let info = stream.cached_info();
        if info.config.metadata.get(LEDGER_KEY) != Some(&ledger.id.to_string()) {
            return Err(unavailable(&"the submit stream is another ledger's"));
        }
        if info.state.messages == 0 {
            return Ok(());
        }
        let known = self.store.queues().await?;
        let strays = strays_of(&stream, &self.subjects, &known).await?;
        if strays.is_empty() {
            shown.reset();
        } else if let Some(held_back) = shown.admit(Instant::now()) {
            let names = strays.keys().take(SHOWN_MAX);
            let names: Vec<_> = names.map(|name| text::clean(name, SHOWN_CHARS)).collect();
            tracing::warn!(
                queues = strays.len(),
                messages = strays.values().sum::<u64>(),
                ?names,
                held_back,
                "messages wait for queues that no worker, schedule or enqueue has named; \
                 when they are old they become dead letters"
            );
        }
        let after = TimeDelta::from_std(self.options.strays_after).unwrap_or(TimeDelta::MAX);
        let too_old = ledger.now.checked_sub_signed(after);
        let mut look = Look {
            stream,
            pass,
            too_old: too_old.unwrap_or(DateTime::<Utc>::MIN_UTC),
            left: LETTERS_MAX,
            over: false,
        };
        look.left -= LETTERS_OF_WALK;
        let visited = self.visit(&mut look, &strays).await;
        look.left += LETTERS_OF_WALK;
        let walked = self.walk(&mut look).await;
        let letters = LETTERS_MAX - look.left;
        if letters > 0 {
            tracing::warn!(letters, "messages of unknown queues became dead letters");
        }
        visited.and(walked)
    }

    /// Queues that could be one, by their subject filter, each oldest message first. One that
    /// fails keeps no other waiting.
    async fn visit(
        &mut self,
        look: &mut Look,
        strays: &BTreeMap<String, u64>,
    ) -> Result<(), Error> {
        let valid = |name: &&String| names::is_valid(name);
        let after = strays.keys().filter(|name| **name > self.place.queue);
        let before = strays.keys().filter(|name| **name <= self.place.queue);
        let queues: Vec<_> = after.chain(before).filter(valid).take(QUEUES_MAX).collect();
        let mut first_error = Ok(());
        for queue in queues {
            let visited = self.bury_all_of(look, queue).await;
            first_error = first_error.and(visited);
            self.place.queue.clone_from(queue);
            // The next look begins behind it.
            if look.left == 0 {
                break;
            }
        }
        first_error
    }

    async fn bury_all_of(&self, look: &mut Look, queue: &str) -> Result<(), Error> {
        let filter = self.subjects.submit_queue(queue);
        let mut from = 1;
        while let Some(message) = look.next(&filter, from).await? {
            from = message.sequence + 1;
            if !self.bury(look, &message).await? {
                break;
            }
        }
        Ok(())
    }

    /// Messages whose queue can be none: their token may be a wildcard to a filter or unreadable
    /// to the server's list, so they are found by walking the stream, a little at each look.
    async fn walk(&mut self, look: &mut Look) -> Result<(), Error> {
        for _ in 0..WALK_MAX {
            let Some(message) = look.next(EVERYTHING, self.place.sequence.max(1)).await? else {
                if look.left > 0 {
                    self.place.sequence = 1;
                }
                break;
            };
            self.place.sequence = message.sequence + 1;
            let queue = self.subjects.parse_submit(&message.subject);
            if queue.is_some_and(|(queue, _)| !names::is_valid(queue)) {
                self.bury(look, &message).await?;
            }
        }
        Ok(())
    }

    /// Makes a dead letter of the message; false = it stays, and so do younger ones.
    async fn bury(&self, look: &mut Look, message: &StreamMessage) -> Result<bool, Error> {
        let Some(letter) = self.letter(message, look.too_old) else {
            return Ok(false);
        };
        // Another connection may lead to another stream.
        if self.gate.pass() != Some(look.pass) || look.is_over().await? {
            return Ok(false);
        }
        // The row may have come meanwhile: then the message is its workers'.
        if self.store.queues().await?.contains(&letter.queue) {
            return Ok(false);
        }
        if self.store.record_dead_letter(&letter).await? {
            let reason = [metrics::reason(letter.reason.as_str())];
            metrics::counters().dead_letters.add(1, &reason);
            self.counters.strays_buried.add(1);
            look.left -= 1;
        }
        // It is recorded: were this lost, the next look would find it again and add none.
        look.delete(message).await
    }

    /// None for a message that is not old enough yet.
    fn letter(&self, message: &StreamMessage, too_old: DateTime<Utc>) -> Option<DeadLetter> {
        let stored_at_ns = i64::try_from(message.time.unix_timestamp_nanos()).ok()?;
        if DateTime::from_timestamp_nanos(stored_at_ns) >= too_old {
            return None;
        }
        let (queue, job) = self.subjects.parse_submit(&message.subject)?;
        let header = |name: &str| message.headers.get(name).map(HeaderValue::as_str);
        let key = key::of_message(
            header(header::KEY),
            header(header::MSG_ID),
            message.sequence,
            stored_at_ns,
        )
        .unwrap_or_else(|_bad| key::of_place(message.sequence, stored_at_ns));
        let detail = if names::is_valid(queue) {
            let after = self.options.strays_after;
            format!("no worker, schedule or enqueue has named the queue {queue:?} for {after:?}")
        } else {
            format!("{queue:?} can be no queue: use 1 to 64 of A-Z a-z 0-9 _ -")
        };
        let body = &message.payload[..message.payload.len().min(PAYLOAD_MAX)];
        // Only its beginning is kept, and must never be replayed.
        let reason = if body.len() < message.payload.len() {
            DeadReason::TooLarge
        } else {
            DeadReason::UnknownQueue
        };
        Some(DeadLetter {
            job: job.to_owned(),
            queue: queue.to_owned(),
            key,
            reason,
            detail,
            payload: Payload {
                bytes: body.to_vec(),
                content_type: header(header::CONTENT_TYPE)
                    .unwrap_or(header::JSON)
                    .to_owned(),
            },
        })
    }
}

impl Look {
    /// The first message of the filter from a sequence on; none if there is none, or if this
    /// look has done enough.
    async fn next(&self, filter: &str, from: u64) -> Result<Option<StreamMessage>, Error> {
        if self.left == 0 || self.over {
            return Ok(None);
        }
        let found = self.stream.get_first_raw_message_by_subject(filter, from);
        match found.await {
            Ok(message) => Ok(Some(message)),
            Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(unavailable(&error)),
        }
    }

    /// Whether the stream is another one than at the begin of this look: then nothing that it
    /// holds is judged, for it may be another ledger's.
    async fn is_over(&mut self) -> Result<bool, Error> {
        let now = self.stream.get_info().await;
        let now = now.map_err(|error| unavailable(&error))?;
        self.over |= now.created != self.stream.cached_info().created;
        Ok(self.over)
    }

    /// Deletes the message if it is still the one at its place; false = another one is.
    async fn delete(&mut self, message: &StreamMessage) -> Result<bool, Error> {
        match self.stream.get_raw_message(message.sequence).await {
            Ok(now) if (now.time, &now.subject) == (message.time, &message.subject) => {}
            Ok(_another) => {
                self.over = true;
                return Ok(false);
            }
            // Another relay was faster.
            Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => return Ok(true),
            Err(error) => return Err(unavailable(&error)),
        }
        match self.stream.delete_message(message.sequence).await {
            Ok(_deleted) => Ok(true),
            // Likewise.
            Err(error) if matches!(error.kind(), DeleteMessageErrorKind::JetStream(_)) => Ok(true),
            Err(error) => Err(unavailable(&error)),
        }
    }
}

fn unavailable(error: &dyn std::fmt::Display) -> Error {
    declare::Error::Unavailable {
        doing: "read messages of unknown queues".to_owned(),
        reason: error.to_string(),
    }
    .into()
}
