//! What a handler says became of its attempt.

use std::fmt;
use std::time::Duration;

use bellwether_schemas::limits::{ERROR_TEXT_MAX, OUTPUT_MAX};
use bellwether_schemas::{header, text};
use bellwether_store::Payload;
use serde::Serialize;
use serde_json::Value;

/// Shortest snooze; a shorter one is taken as this.
pub const SNOOZE_MIN: Duration = Duration::from_secs(1);

/// A boxed error, as handlers may return it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What became of an attempt, other than an error. `Err(e)` from a handler means *retry by
/// policy*: 1 s × 2^(attempt − 1), at most 10 min, full jitter, until `max_attempts` are used.
///
/// It covers what the handler has awaited and nothing else: a task that it spawned and did not
/// await may fail, or be cut off by the end of the process, after the execution has succeeded.
/// Await such tasks (a `tokio::task::JoinSet` does), or make them executions of their own.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Done: `succeeded`. The value is the output, at most 256 KiB encoded; a larger one is
    /// an error of the attempt.
    Complete(Value),
    /// Not yet: `retrying` after this time (at least [`SNOOZE_MIN`]); the attempt is not charged.
    Snooze(Duration),
    /// Not any more: `cancelled`, with a reason for people.
    Cancel(String),
    /// Never: `failed(rejected)`, with a reason for people. No further attempt is made.
    Fail(String),
}

/// An output that cannot be encoded as JSON.
#[derive(Debug, thiserror::Error)]
#[error("failed to encode the output as JSON: {0}")]
pub struct OutputError(#[from] serde_json::Error);

impl Outcome {
    /// Done, with an output.
    ///
    /// # Errors
    ///
    /// [`OutputError`] for what JSON cannot hold, such as a map whose keys are no strings.
    pub fn complete(output: impl Serialize) -> Result<Self, OutputError> {
        Ok(Self::Complete(serde_json::to_value(output)?))
    }

    /// Done, without an output.
    pub const fn done() -> Self {
        Self::Complete(Value::Null)
    }

    /// Not yet: call again after `delay`, without a charge.
    pub const fn snooze(delay: Duration) -> Self {
        Self::Snooze(delay)
    }

    /// Not any more.
    pub fn cancel(reason: impl fmt::Display) -> Self {
        Self::Cancel(reason.to_string())
    }

    /// Never: another attempt cannot help.
    pub fn fail(reason: impl fmt::Display) -> Self {
        Self::Fail(reason.to_string())
    }
}

/// An output in the encoding of the payload.
pub(crate) fn encoded(value: &Value, content_type: &str) -> Result<Payload, String> {
    let (bytes, content_type) = if content_type == header::MSGPACK {
        let bytes = rmp_serde::to_vec_named(value).map_err(|error| error.to_string());
        (bytes?, header::MSGPACK)
    } else {
        let bytes = serde_json::to_vec(value).map_err(|error| error.to_string());
        (bytes?, header::JSON)
    };
    if bytes.len() > OUTPUT_MAX {
        return Err(format!(
            "output of {} bytes is larger than {OUTPUT_MAX}",
            bytes.len()
        ));
    }
    Ok(Payload {
        bytes,
        content_type: content_type.to_owned(),
    })
}

/// An attempt that ended without an outcome: charged, and repeated by policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The payload does not decode into the handler's type.
    BadPayload(String),
    /// The handler returned an error.
    Error(String),
}

/// What stands in the `Ok` of a handler: an [`Outcome`], or anything `Serialize`, which
/// completes the execution with that output.
pub trait Completion {
    /// The outcome it stands for.
    fn into_outcome(self) -> Result<Outcome, OutputError>;
}

impl Completion for Outcome {
    fn into_outcome(self) -> Result<Outcome, OutputError> {
        Ok(self)
    }
}

impl<T: Serialize> Completion for T {
    fn into_outcome(self) -> Result<Outcome, OutputError> {
        Outcome::complete(self)
    }
}

/// What a handler returns: `Result<T, E>` where `T` is a [`Completion`] and `E` an error, a
/// text, an `anyhow::Error` or anything else that converts into a boxed error.
pub trait HandlerResult {
    /// The outcome, or why there is none.
    fn into_result(self) -> Result<Outcome, Failure>;
}

impl<T: Completion, E: Into<BoxError>> HandlerResult for Result<T, E> {
    fn into_result(self) -> Result<Outcome, Failure> {
        match self {
            Ok(value) => value
                .into_outcome()
                .map_err(|error| Failure::Error(error.to_string())),
            Err(error) => Err(Failure::Error(chain(error.into().as_ref()))),
        }
    }
}

/// The error and its causes on one line. A cause that the text before it already ends with
/// is not said twice.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !said.ends_with(&text) {
            said.push_str(": ");
            said.push_str(&text);
        }
        cause = error.source();
    }
    text::clean(&said, ERROR_TEXT_MAX).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("failed to write the report: {source}")]
    struct Outer {
        #[from]
        source: Inner,
    }

    #[derive(Debug, thiserror::Error)]
    #[error("the disk is full")]
    struct Inner;

    #[test]
    fn any_value_completes_and_an_outcome_stays_one() {
        let done: Result<u32, BoxError> = Ok(7);
        assert_eq!(done.into_result(), Ok(Outcome::Complete(7.into())));
        let unit: Result<(), String> = Ok(());
        assert_eq!(unit.into_result(), Ok(Outcome::done()));
        let fail: Result<Outcome, String> = Ok(Outcome::fail("no such region"));
        assert_eq!(
            fail.into_result(),
            Ok(Outcome::Fail("no such region".into()))
        );
        let unencodable = std::collections::BTreeMap::from([(vec![1], 2)]);
        assert!(Outcome::complete(unencodable).is_err());
    }

    #[test]
    fn outputs_keep_the_payloads_encoding_and_the_limit() {
        let value = serde_json::json!({ "files": 3 });
        assert_eq!(
            encoded(&value, header::JSON).unwrap().bytes,
            br#"{"files":3}"#
        );
        let packed = encoded(&value, header::MSGPACK).unwrap();
        assert_eq!(
            rmp_serde::from_slice::<Value>(&packed.bytes).unwrap(),
            value
        );
        let large = Value::String("x".repeat(OUTPUT_MAX));
        assert!(
            encoded(&large, header::JSON)
                .unwrap_err()
                .contains("larger than 262144")
        );
    }

    #[test]
    fn causes_are_said_once() {
        let error: Result<(), Outer> = Err(Outer { source: Inner });
        assert_eq!(
            error.into_result(),
            Err(Failure::Error(
                "failed to write the report: the disk is full".into()
            ))
        );
        let text: Result<(), String> = Err("x".repeat(5000));
        let Failure::Error(said) = text.into_result().unwrap_err() else {
            unreachable!("an error is no bad payload")
        };
        assert_eq!(said.chars().count(), ERROR_TEXT_MAX);
    }
}
