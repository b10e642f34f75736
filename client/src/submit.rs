//! The subject path: publish a one-shot to the submit stream.

use bellwether_schemas::limits::{KEY_MAX, PAYLOAD_MAX};
use bellwether_schemas::trace::TraceContext;
use bellwether_schemas::{header, ids, names, subject};
use bellwether_store::Payload;
use chrono::{DateTime, SecondsFormat, Utc};

use crate::{Client, Error, Result};

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

    /// Not before this instant. Default: now.
    #[must_use]
    pub fn run_at(mut self, run_at: DateTime<Utc>) -> Self {
        self.run_at = Some(run_at);
        self
    }

    /// Time an attempt may run, in whole seconds. Default: the job's.
    #[must_use]
    pub fn timeout_s(mut self, seconds: u32) -> Self {
        self.timeout_s = Some(seconds);
        self
    }

    /// The caller's trace. Default: a new one.
    #[must_use]
    pub fn trace(mut self, trace: TraceContext) -> Self {
        self.trace = Some(trace);
        self
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
        let Submission {
            job,
            queue,
            payload,
            ..
        } = submission;
        names::check("job", job)?;
        names::check("queue", queue)?;
        if payload.bytes.len() > PAYLOAD_MAX {
            return Err(Error::PayloadTooLarge {
                size: payload.bytes.len(),
            });
        }
        let key = submission
            .key
            .clone()
            .unwrap_or_else(|| ids::fresh().to_string());
        check_key(&key)?;

        let headers = headers(submission, &key, &self.subjects.submit_stream());
        let jetstream = async_nats::jetstream::new(nats.clone());
        let failed = |source| Error::Submit {
            job: job.clone(),
            key: key.clone(),
            source,
        };
        let body = bytes::Bytes::copy_from_slice(&payload.bytes);
        let confirmed = jetstream
            .publish_with_headers(self.subjects.submit(queue, job), headers, body)
            .await
            .map_err(failed)?;
        let ack = confirmed.await.map_err(failed)?;
        Ok(Submitted {
            job: job.clone(),
            key,
            duplicate: ack.duplicate,
        })
    }
}

fn headers(submission: &Submission, key: &str, stream: &str) -> async_nats::HeaderMap {
    let mut headers = async_nats::HeaderMap::new();
    headers.insert(header::KEY, key);
    // The broker's window is per stream, the key is per job.
    headers.insert(header::MSG_ID, format!("{}:{key}", submission.job));
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
    if let Some(trace) = &submission.trace {
        headers.insert(header::TRACEPARENT, trace.traceparent.as_str());
        if !trace.tracestate.is_empty() {
            headers.insert(header::TRACESTATE, trace.tracestate.as_str());
        }
    }
    headers
}

fn check_key(key: &str) -> Result<()> {
    let fine = !key.is_empty()
        && key.len() <= KEY_MAX
        && !key.starts_with('~')
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
        for bad in ["", "~1.2", "a\nb", "a\0", &"x".repeat(KEY_MAX + 1)] {
            assert!(check_key(bad).is_err(), "{bad:?}");
        }
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
