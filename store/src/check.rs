//! What is refused before it reaches the database.

use std::time::Duration;

use bellwether_schemas::limits::{KEY_MAX, OUTPUT_MAX, PAYLOAD_MAX, SHARD_TOTAL_MAX};
use bellwether_schemas::{header, names};

use crate::executions::{Commit, NewExecution, Outcome, SubmitAsk};
use crate::schedules::{NewSchedule, Policy, Timing};
use crate::{Error, ErrorKind, Payload, Result};

/// Shortest timeout or start deadline of a policy.
pub const POLICY_MIN: Duration = Duration::from_millis(1);

/// Longest duration of a policy: ten years.
pub const POLICY_MAX: Duration = Duration::from_hours(10 * 366 * 24);

/// Most attempts a policy may allow.
pub const ATTEMPTS_MAX: u32 = 1_000_000;

fn invalid(op: &'static str, what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(op, ErrorKind::Invalid, what)
}

/// A name of the ledger's alphabet.
pub(crate) fn name(kind: &'static str, name: &str) -> Result<()> {
    Ok(names::check(kind, name)?)
}

/// A name that may be quoted as a schema.
pub(crate) fn schema(schema: &str) -> Result<()> {
    if !names::is_valid(schema) || schema.len() > 63 || schema.starts_with("pg_") {
        return Err(invalid(
            "check the schema's name",
            format!("{schema:?} is refused: use 1 to 63 of A-Z a-z 0-9 _ -, not pg_…"),
        ));
    }
    Ok(())
}

/// A schedule to be registered.
pub(crate) fn schedule(new: &NewSchedule) -> Result<()> {
    const OP: &str = "check a schedule";
    name("schedule", &new.name)?;
    name("job", &new.job)?;
    name("queue", &new.queue)?;
    payload(OP, &new.payload)?;
    policy(OP, &new.policy)?;
    if new.shard_total == 0 || new.shard_total > SHARD_TOTAL_MAX {
        return Err(invalid(
            OP,
            format!(
                "{} shards are refused: use 1 to {SHARD_TOTAL_MAX}",
                new.shard_total
            ),
        ));
    }
    if new.grace > POLICY_MAX {
        return Err(invalid(
            OP,
            format!("a grace of {:?} is refused: use less", new.grace),
        ));
    }
    let timing = new
        .timing
        .evaluate()
        .map_err(|rejected| invalid(OP, rejected))?;
    // The evaluated form repairs a bad period; a new one is refused.
    if let (Timing::Every { period_ms, .. }, bellwether_time::Timing::Every { anchor, .. }) =
        (&new.timing, &timing)
    {
        let period = Duration::from_millis(u64::try_from(*period_ms).unwrap_or(0));
        bellwether_time::Timing::every(*anchor, period)
            .map_err(|rejected| invalid(OP, rejected))?;
    }
    Ok(())
}

/// A one-shot for the outbox path.
pub(crate) fn one_shot(new: &NewExecution) -> Result<()> {
    const OP: &str = "check a one-shot";
    name("job", &new.job)?;
    name("queue", &new.queue)?;
    payload(OP, &new.payload)?;
    policy(OP, &new.policy)?;
    new.key
        .as_deref()
        .map_or(Ok(()), |key| self::key(OP, key))?;
    // Keys that begin with `~` are made from a stream's sequence, never by a client.
    if new.key.as_deref().is_some_and(|key| key.starts_with('~')) {
        return Err(invalid(
            OP,
            "a key that begins with `~` is refused: it is reserved",
        ));
    }
    Ok(())
}

/// A submitted message.
pub(crate) fn submitted(ask: &SubmitAsk) -> Result<()> {
    const OP: &str = "check a submitted message";
    name("job", &ask.job)?;
    name("queue", &ask.queue)?;
    payload(OP, &ask.payload)?;
    policy(OP, &ask.policy)?;
    key(OP, &ask.key)
}

/// A result: its output is bounded by the worker before it comes here.
pub(crate) fn commit(commit: &Commit) -> Result<()> {
    match &commit.outcome {
        Outcome::Complete(output) if output.bytes.len() > OUTPUT_MAX => Err(invalid(
            "check a result",
            format!(
                "the output of execution {} has {} bytes, at most {OUTPUT_MAX} are kept",
                commit.execution_id,
                output.bytes.len()
            ),
        )),
        _ => Ok(()),
    }
}

fn key(op: &'static str, key: &str) -> Result<()> {
    if key.is_empty() || key.len() > KEY_MAX || key.contains('\0') {
        return Err(invalid(
            op,
            format!("the idempotency key is refused: use 1 to {KEY_MAX} bytes without NUL"),
        ));
    }
    Ok(())
}

fn payload(op: &'static str, payload: &Payload) -> Result<()> {
    if payload.bytes.len() > PAYLOAD_MAX {
        return Err(invalid(
            op,
            format!(
                "a payload of {} bytes is refused: at most {PAYLOAD_MAX}; store it elsewhere and \
                 send where it is",
                payload.bytes.len()
            ),
        ));
    }
    if ![header::JSON, header::MSGPACK].contains(&payload.content_type.as_str()) {
        return Err(invalid(
            op,
            format!(
                "content type {:?} is refused: use {} or {}",
                payload.content_type.chars().take(80).collect::<String>(),
                header::JSON,
                header::MSGPACK
            ),
        ));
    }
    Ok(())
}

fn policy(op: &'static str, policy: &Policy) -> Result<()> {
    let bounded = |time: Duration| (POLICY_MIN..=POLICY_MAX).contains(&time);
    if !bounded(policy.timeout) || !bounded(policy.start_deadline) {
        return Err(invalid(
            op,
            "a timeout or start deadline is refused: use 1 ms to 10 years",
        ));
    }
    if policy.max_attempts == 0 || policy.max_attempts > ATTEMPTS_MAX {
        return Err(invalid(
            op,
            format!(
                "{} attempts are refused: use 1 to {ATTEMPTS_MAX}",
                policy.max_attempts
            ),
        ));
    }
    Ok(())
}
