//! The subject path: publish a one-shot to the submit stream.

use std::time::Instant;

use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use bellwether_schemas::limits::{KEY_MAX, PAYLOAD_MAX, YEAR_MAX};
use bellwether_schemas::trace::TraceContext;
use bellwether_schemas::{header, ids, names, subject};
use bellwether_store::Payload;
use bellwether_telemetry::spans::{self, About, Open};
use chrono::{DateTime, Datelike, SecondsFormat, Utc};

use crate::{Client, Error, Result};

/// Longest timeout: 365 days.
const TIMEOUT_MAX_S: u32 = 365 * 24 * 3600;

/// A one-shot for the submit subject.
#[derive(Debug, Clone)]
pub struct Submission {
    job: String,
    queue: String,
    payload: Payload,
    key: Option<String>,
    run_at: Option<DateTime<Utc>>,
    timeout_s: Option<u32>,
    trace: Option<TraceContext>,
}

/// What a submission is known by: `wait` takes it, and submitting it again runs nothing twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submitted {
    /// The job.
    pub job: String,
    /// The key, given or made up.
    pub key: String,
    /// The broker had stored the same message a moment ago. That does not mean done, nor
    /// that it will run: only the ledger knows.
    pub duplicate: bool,
}

impl Submission {
    /// A submission of ready-made bytes to the job's queue `default`.
    pub fn new(job: impl Into<String>, payload: Payload) -> Self {
        Self {
            job: job.into(),
            queue: subject::DEFAULT_QUEUE.to_owned(),
            payload,
            key: None,
            run_at: None,
            timeout_s: None,
            trace: None,
        }
    }

    /// A submission of a value as JSON.
    pub fn json(job: impl Into<String>, value: &impl serde::Serialize) -> Result<Self> {
        Ok(Self::new(job, Payload::json(serde_json::to_vec(value)?)))
    }

    /// The queue whose workers serve the job. Default `default`.
    #[must_use]
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = queue.into();
        self
    }

    /// One execution per `(job, key)`, however often it is submitted. Default: a fresh key.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Not before this instant, of the years 1970 to 9999. Default: now.
    #[must_use]
    pub fn run_at(mut self, run_at: DateTime<Utc>) -> Self {
        self.run_at = Some(run_at);
        self
    }

    /// Time an attempt may run, in whole seconds, at most 365 days. Default: the job's.
    #[must_use]
    pub fn timeout_s(mut self, seconds: u32) -> Self {
        self.timeout_s = Some(seconds);
        self
    }

    /// The caller's trace; one that W3C calls invalid is not sent. Default: a new one.
    #[must_use]
    pub fn trace(mut self, trace: TraceContext) -> Self {
        self.trace = Some(trace);
        self
    }

    /// Refuses what no worker takes, by name, before anything is connected or sent.
    /// [`Client::submit`] does the same.
    ///
    /// # Errors
    ///
    /// A name, a key, a content type, a timeout or an instant out of bounds, or a payload above
    /// [`PAYLOAD_MAX`].
    pub fn check(&self) -> Result<()> {
        check(self)?;
        self.key.as_deref().map_or(Ok(()), check_key)
    }
}

impl Client {
    /// Publishes a one-shot and waits for the broker to confirm that it is stored. As durable
    /// as the stream until a worker claims it; it cannot be cancelled before that.
    pub async fn submit(&self, submission: &Submission) -> Result<Submitted> {
        let nats = self
            .nats
            .as_ref()
            .ok_or(Error::NeedsNats { call: "submit" })?;
        check(submission)?;
        let Submission {
            job,
            queue,
            payload,
            ..
        } = submission;
        let key = submission
            .key
            .clone()
            .unwrap_or_else(|| ids::fresh().to_string());
        check_key(&key)?;

        let mut headers = headers(submission, &key, &self.subjects.submit_stream());
        let subject = self.subjects.submit(queue, job);
        let asked = submission
            .trace
            .is_none()
            .then(|| span(submission, &subject, &key));
        if let Some(trace) = asked.as_ref().and_then(Open::trace) {
            carry(&mut headers, &trace);
        }
        let jetstream = async_nats::jetstream::new(nats.clone());
        let body = bytes::Bytes::copy_from_slice(&payload.bytes);
        let begin = Instant::now();
        let sent = jetstream
            .publish_with_headers(subject.clone(), headers, body)
            .await;
        let answer = async {
            match sent {
                Ok(confirmed) => confirmed.await,
                Err(error) => Err(error),
            }
        };
        // What the server refuses has no answer: it is told by itself, at once.
        let answered = tokio::select! {
            biased;
            answered = answer => answered,
            reason = self.refusals.concerning(&subject, begin) => {
                Err(PublishError::with_source(PublishErrorKind::Other, reason))
            }
        };
        if let Some(asked) = asked {
            match &answered {
                Ok(ack) => asked.outcome(if ack.duplicate { "duplicate" } else { "ok" }),
                Err(error) => asked.fail("unconfirmed", &error.to_string()),
            }
            asked.end();
        }
        let ack = answered.map_err(|source| {
            let refused = self.refusals.of(&subject, begin);
            unconfirmed(job, &key, &subject, refused, source)
        })?;
        Ok(Submitted {
            job: job.clone(),
            key,
            duplicate: ack.duplicate,
        })
    }
}

/// Why there is no confirmation; `refused` is what the server said of it meanwhile.
fn unconfirmed(
    job: &str,
    key: &str,
    subject: &str,
    refused: Option<String>,
    source: PublishError,
) -> Error {
    let (job, key) = (job.to_owned(), key.to_owned());
    match (source.kind(), refused) {
        (PublishErrorKind::StreamNotFound, _) => Error::NoStream {
            job,
            key,
            subject: subject.to_owned(),
        },
        (_, Some(reason)) => Error::NotPermitted { job, key, reason },
        (_, None) => Error::Submit { job, key, source },
    }
}

/// The span of a submission. One for later is a root that links to the caller's: its trace must
/// not grow hours later.
fn span(submission: &Submission, subject: &str, key: &str) -> Open {
    let about = About {
        job: &submission.job,
        queue: &submission.queue,
        trigger: Some("submit"),
        scheduled_at: submission.run_at,
        ..About::default()
    };
    let caller = bellwether_telemetry::current();
    let id = message_id(submission, key);
    spans::publish(
        caller.as_ref(),
        submission.run_at.is_some(),
        subject,
        &id,
        &about,
    )
}

fn message_id(submission: &Submission, key: &str) -> String {
    // The broker's window is per stream, the key is per job.
    format!("{}:{key}", submission.job)
}

/// What a worker would make a dead letter of is refused here, where it can be told.
fn check(submission: &Submission) -> Result<()> {
    names::check("job", &submission.job)?;
    names::check("queue", &submission.queue)?;
    let payload = &submission.payload;
    if payload.bytes.len() > PAYLOAD_MAX {
        return Err(Error::PayloadTooLarge {
            size: payload.bytes.len(),
        });
    }
    if ![header::JSON, header::MSGPACK].contains(&payload.content_type.as_str()) {
        return Err(Error::BadContentType {
            content_type: payload.content_type.chars().take(80).collect(),
        });
    }
    if let Some(seconds) = submission.timeout_s
        && !(1..=TIMEOUT_MAX_S).contains(&seconds)
    {
        return Err(Error::BadTimeout { seconds });
    }
    match submission.run_at.map(|at| at.year()) {
        Some(year) if !(1970..=YEAR_MAX).contains(&year) => Err(Error::BadRunAt { year }),
        _ => Ok(()),
    }
}

fn headers(submission: &Submission, key: &str, stream: &str) -> async_nats::HeaderMap {
    let mut headers = async_nats::HeaderMap::new();
    headers.insert(header::KEY, key);
    headers.insert(header::MSG_ID, message_id(submission, key));
    headers.insert(header::EXPECTED_STREAM, stream);
    headers.insert(
        header::CONTENT_TYPE,
        submission.payload.content_type.as_str(),
    );
    if let Some(run_at) = submission.run_at {
        headers.insert(
            header::RUN_AT,
            run_at.to_rfc3339_opts(SecondsFormat::Millis, true),
        );
    }
    if let Some(seconds) = submission.timeout_s {
        headers.insert(header::TIMEOUT, seconds.to_string());
    }
    // Others would drop the rest, and a line break has no place in a header.
    let trace = submission
        .trace
        .as_ref()
        .and_then(|trace| TraceContext::parse(&trace.traceparent, Some(&trace.tracestate)));
    if let Some(trace) = trace {
        carry(&mut headers, &trace);
    }
    headers
}

fn carry(headers: &mut async_nats::HeaderMap, trace: &TraceContext) {
    headers.insert(header::TRACEPARENT, trace.traceparent.as_str());
    if !trace.tracestate.is_empty() {
        headers.insert(header::TRACESTATE, trace.tracestate.as_str());
    }
}

fn check_key(key: &str) -> Result<()> {
    let fine = !key.is_empty()
        && key.len() <= KEY_MAX
        && !key.starts_with('~')
        && key.trim() == key
        && !key.chars().any(char::is_control);
    if fine {
        return Ok(());
    }
    Err(Error::BadKey {
        key: key.chars().take(80).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_bounded_and_have_their_alphabet() {
        for good in ["a", "order 17/2", "ä", &"x".repeat(KEY_MAX)] {
            assert!(check_key(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "~1.2",
            "a\nb",
            "a\0",
            " a",
            "a\u{a0}",
            &"x".repeat(KEY_MAX + 1),
        ] {
            assert!(check_key(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_no_worker_takes_is_refused_before_it_is_sent() {
        let plain = || Submission::new("pay", Payload::json("1"));
        assert!(check(&plain().timeout_s(1)).is_ok());
        assert!(check(&plain().timeout_s(TIMEOUT_MAX_S)).is_ok());
        for seconds in [0, TIMEOUT_MAX_S + 1] {
            let said = check(&plain().timeout_s(seconds)).unwrap_err().to_string();
            assert!(said.contains("365 days"), "{said}");
        }
        let at = |text: &str| plain().run_at(text.parse().unwrap());
        assert!(check(&at("9999-12-31T23:59:59.999Z")).is_ok());
        for beyond in ["+10000-01-01T00:00:00Z", "1969-12-31T23:59:59Z"] {
            let said = check(&at(beyond)).unwrap_err().to_string();
            assert!(said.contains("1970 to 9999"), "{said}");
        }
        let mut text = plain();
        text.payload.content_type = "text/plain".to_owned();
        let said = check(&text).unwrap_err().to_string();
        assert!(said.contains(header::MSGPACK), "{said}");
    }

    #[test]
    fn a_trace_that_is_no_trace_is_not_sent() {
        let good = TraceContext::root(ids::fresh());
        let sent = |trace: TraceContext| {
            let submission = Submission::new("pay", Payload::json("1")).trace(trace);
            let headers = headers(&submission, "k", "BW_SUBMIT");
            [header::TRACEPARENT, header::TRACESTATE]
                .map(|name| headers.get(name).map(|value| value.as_str().to_owned()))
        };
        assert_eq!(sent(good.clone()), [Some(good.traceparent.clone()), None]);
        let broken_state = TraceContext {
            tracestate: "a=1\r\nx: y".to_owned(),
            ..good.clone()
        };
        assert_eq!(sent(broken_state), [Some(good.traceparent), None]);
        let broken = TraceContext {
            traceparent: "a\nb".to_owned(),
            tracestate: String::new(),
        };
        assert_eq!(sent(broken), [None, None]);
    }

    #[test]
    fn headers_say_what_the_submission_says() {
        let submission = Submission::json("pay", &serde_json::json!({"n": 1}))
            .unwrap()
            .run_at(DateTime::from_timestamp_millis(1_750_000_000_123).unwrap())
            .timeout_s(9);
        let headers = headers(&submission, "k1", "BW_SUBMIT");
        let value = |name: &str| headers.get(name).map(|v| v.as_str().to_owned());
        assert_eq!(value(header::KEY).as_deref(), Some("k1"));
        assert_eq!(value(header::MSG_ID).as_deref(), Some("pay:k1"));
        assert_eq!(
            value(header::RUN_AT).as_deref(),
            Some("2025-06-15T15:06:40.123Z")
        );
        assert_eq!(value(header::TIMEOUT).as_deref(), Some("9"));
        assert_eq!(value(header::TRACEPARENT), None);
    }
}
