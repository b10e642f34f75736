//! Messages on their way, and what their answers mean.

use std::collections::HashSet;
use std::error::Error as _;
use std::pin::Pin;
use std::time::Duration;

use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::publish::PublishAck;
use async_nats::jetstream::{self, ErrorCode};
use bellwether_store::outbox::Lane;
use bellwether_telemetry::spans::Open;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::time::Instant;

use crate::amnesia::Floor;
use crate::gate::Pass;
use crate::message::Message;

/// A row whose message was handed to the client.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) id: i64,
    pub(crate) lane: Lane,
    /// Leave under which it was sent.
    pub(crate) pass: Pass,
    /// What the stream had confirmed when it was sent.
    pub(crate) floor: Floor,
    pub(crate) age: Age,
}

/// Time since the row was written, by the ledger's clock up to its lease and this process's since.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Age {
    waited: Duration,
    leased: Instant,
}

impl Age {
    /// Of a row that had waited so long when it was leased, just now.
    pub(crate) fn of(waited: Duration) -> Self {
        let leased = Instant::now();
        Self { waited, leased }
    }

    /// In seconds, now.
    pub(crate) fn as_secs(self) -> f64 {
        (self.waited + self.leased.elapsed()).as_secs_f64()
    }
}

/// What the broker's answer, or its absence, means for a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Stored under this sequence.
    Stored(u64),
    /// The broker had it, or believes so: no evidence that it exists.
    Duplicate,
    /// No stream takes the subject, or another one does.
    NoStream,
    /// Refused for the row's own sake: sending it again cannot help.
    Unsendable(String),
    /// Not taken, such as a full lane.
    Refused(String),
    /// No answer: it may be stored or not. The same message id is sent again.
    Unknown(String),
}

impl Answer {
    /// Ends the span of the hand-over.
    fn tell(&self, span: &Open) {
        match self {
            Self::Stored(_) => span.outcome("ok"),
            Self::Duplicate => span.outcome("duplicate"),
            Self::NoStream => span.fail("no_stream", "no stream takes it"),
            Self::Unsendable(reason) => span.fail("unsendable", reason),
            Self::Refused(reason) => span.fail("refused", reason),
            Self::Unknown(reason) => span.fail("unknown", reason),
        }
        span.end();
    }
}

type Landing = Pin<Box<dyn Future<Output = (Sent, Answer)> + Send>>;

/// Rows that this relay holds: on their way, or confirmed and not yet deleted.
#[derive(Default)]
pub(crate) struct Flight {
    landings: FuturesUnordered<Landing>,
    held: HashSet<i64>,
}

impl Flight {
    /// Rows held.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    /// A row whose lease ran out while its message is under way is claimed once more.
    pub(crate) fn holds(&self, id: i64) -> bool {
        self.held.contains(&id)
    }

    pub(crate) fn release(&mut self, ids: &[i64]) {
        for id in ids {
            self.held.remove(id);
        }
    }

    /// Ids of all rows held.
    pub(crate) fn ids(&self) -> Vec<i64> {
        self.held.iter().copied().collect()
    }

    /// Sends a message; the send itself happens when landings are polled. `span` ends with
    /// the answer.
    pub(crate) fn launch(
        &mut self,
        js: &jetstream::Context,
        message: Message,
        sent: Sent,
        span: Open,
    ) {
        self.held.insert(sent.id);
        let js = js.clone();
        self.landings.push(Box::pin(async move {
            let Message {
                subject,
                headers,
                body,
            } = message;
            let publish = PublishMessage::build().headers(headers).payload(body);
            let result = match js.send_publish(subject, publish).await {
                Ok(ack) => ack.await,
                Err(error) => Err(error),
            };
            let answer = answer(result);
            answer.tell(&span);
            (sent, answer)
        }));
    }

    /// Whether anything is on its way.
    pub(crate) fn is_empty(&self) -> bool {
        self.landings.is_empty()
    }

    /// The next answer; never, if nothing is on its way.
    pub(crate) async fn next(&mut self) -> (Sent, Answer) {
        match self.landings.next().await {
            Some(landed) => landed,
            None => std::future::pending().await,
        }
    }

    /// The answers that are there already. Also moves the sends on.
    pub(crate) fn ready(&mut self) -> Vec<(Sent, Answer)> {
        let mut landed = Vec::new();
        while let Some(Some(one)) = self.landings.next().now_or_never() {
            landed.push(one);
        }
        landed
    }
}

fn answer(result: Result<PublishAck, PublishError>) -> Answer {
    let error = match result {
        Ok(ack) if ack.duplicate => return Answer::Duplicate,
        Ok(ack) => return Answer::Stored(ack.sequence),
        Err(error) => error,
    };
    let text = match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    };
    let server = error
        .source()
        .and_then(|source| source.downcast_ref::<jetstream::Error>());
    match (error.kind(), server.map(jetstream::Error::error_code)) {
        (PublishErrorKind::StreamNotFound, _) | (_, Some(ErrorCode::STREAM_NOT_MATCH)) => {
            Answer::NoStream
        }
        (PublishErrorKind::MaxPayloadExceeded, _)
        | (_, Some(ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM)) => Answer::Unsendable(text),
        (_, Some(_)) => Answer::Refused(text),
        (_, None) => Answer::Unknown(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server_says(code: u64) -> PublishError {
        let json = format!(r#"{{"code": 503, "err_code": {code}, "description": "d"}}"#);
        let bytes = bytes::Bytes::from(json);
        let error: jetstream::Error = serde_json::from_slice(&bytes).unwrap();
        PublishError::with_source(PublishErrorKind::Other, error)
    }

    #[test]
    fn answers_are_told_apart() {
        let ack = |duplicate| PublishAck {
            sequence: 7,
            duplicate,
            ..PublishAck::default()
        };
        assert_eq!(answer(Ok(ack(false))), Answer::Stored(7));
        assert_eq!(answer(Ok(ack(true))), Answer::Duplicate);
        let kind = |kind| answer(Err(PublishError::new(kind)));
        assert_eq!(kind(PublishErrorKind::StreamNotFound), Answer::NoStream);
        assert!(matches!(
            kind(PublishErrorKind::TimedOut),
            Answer::Unknown(_)
        ));
        assert!(matches!(
            kind(PublishErrorKind::BrokenPipe),
            Answer::Unknown(_)
        ));
        assert!(matches!(
            kind(PublishErrorKind::MaxPayloadExceeded),
            Answer::Unsendable(_)
        ));
        assert_eq!(answer(Err(server_says(10_060))), Answer::NoStream);
        assert!(matches!(
            answer(Err(server_says(10_054))),
            Answer::Unsendable(_)
        ));
        let Answer::Refused(text) = answer(Err(server_says(10_077))) else {
            panic!("a full lane is a refusal");
        };
        assert!(text.contains("10077"), "{text}");
    }
}
