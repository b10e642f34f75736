//! What is refused before it reaches the file.

use std::time::Duration;

use bellwether_schemas::limits::{KEY_MAX, OUTPUT_MAX, PAYLOAD_MAX, SHARD_TOTAL_MAX};
use bellwether_schemas::{header, names};

use crate::executions::{Commit, NewExecution, Outcome, SubmitAsk};
use crate::schedules::{NewSchedule, Policy, Timing};
use crate::{Error, ErrorKind, Payload, Result};

/// Longest duration of a policy: ten years.
const POLICY_MAX: Duration = Duration::from_hours(10 * 366 * 24);

/// Most attempts a policy may allow.
const ATTEMPTS_MAX: u32 = 1_000_000;

fn refused(op: &'static str, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(op, ErrorKind::Invalid, why)
}

/// A schedule to be registered.
pub(super) fn new_schedule(new: &NewSchedule) -> Result<()> {
    const OP: &str = "register a schedule";
    names::check("schedule", &new.name)?;
    names::check("job", &new.job)?;
    names::check("queue", &new.queue)?;
    payload(OP, &new.payload)?;
    policy(OP, &new.policy)?;
    if !(1..=SHARD_TOTAL_MAX).contains(&new.shard_total) {
        let why = format!("{} shards are not 1 to {SHARD_TOTAL_MAX}", new.shard_total);
        return Err(refused(OP, why));
    }
    if new.grace > POLICY_MAX {
        return Err(refused(
            OP,
            format!("a grace of {:?} is refused: use less", new.grace),
        ));
    }
    let timing = new
        .timing
        .evaluate()
        .map_err(|rejected| refused(OP, rejected))?;
    if let (Timing::Every { period_ms, .. }, bellwether_time::Timing::Every { anchor, .. }) =
        (&new.timing, timing)
    {
        let period = Duration::from_millis(u64::try_from(*period_ms).unwrap_or(0));
        bellwether_time::Timing::every(anchor, period).map_err(|rejected| refused(OP, rejected))?;
    }
    Ok(())
}

/// A one-shot of the outbox path.
pub(super) fn new_execution(new: &NewExecution) -> Result<()> {
    const OP: &str = "enqueue an execution";
    names::check("job", &new.job)?;
    names::check("queue", &new.queue)?;
    payload(OP, &new.payload)?;
    policy(OP, &new.policy)?;
    if let Some(name) = &new.key {
        key(OP, name)?;
        if name.starts_with('~') {
            return Err(refused(
                OP,
                "keys that begin with `~` are made by the ledger alone",
            ));
        }
    }
    Ok(())
}

/// A submitted message; its worker has checked it before and dead-lettered the others.
pub(super) fn submit_ask(ask: &SubmitAsk) -> Result<()> {
    const OP: &str = "claim a submitted message";
    names::check("job", &ask.job)?;
    names::check("queue", &ask.queue)?;
    payload(OP, &ask.payload)?;
    policy(OP, &ask.policy)?;
    key(OP, &ask.key)
}

/// A result; its worker has bounded the output before.
pub(super) fn commit(commit: &Commit) -> Result<()> {
    match &commit.outcome {
        Outcome::Complete(output) if output.bytes.len() > OUTPUT_MAX => {
            let why = format!(
                "the output of execution {} has {} bytes, at most {OUTPUT_MAX} are kept",
                commit.execution_id,
                output.bytes.len()
            );
            Err(refused("commit a result", why))
        }
        _ => Ok(()),
    }
}

fn key(op: &'static str, key: &str) -> Result<()> {
    if key.is_empty() || key.len() > KEY_MAX || key.contains('\0') {
        let why = format!(
            "a key of {} bytes is refused: 1 to {KEY_MAX} without NUL",
            key.len()
        );
        return Err(refused(op, why));
    }
    Ok(())
}

fn payload(op: &'static str, payload: &Payload) -> Result<()> {
    if payload.bytes.len() > PAYLOAD_MAX {
        let why = format!(
            "a payload of {} bytes is larger than {PAYLOAD_MAX}",
            payload.bytes.len()
        );
        return Err(refused(op, why));
    }
    if ![header::JSON, header::MSGPACK].contains(&payload.content_type.as_str()) {
        let why = format!(
            "content type {:?} is neither {} nor {}",
            payload.content_type,
            header::JSON,
            header::MSGPACK
        );
        return Err(refused(op, why));
    }
    Ok(())
}

fn policy(op: &'static str, policy: &Policy) -> Result<()> {
    let bounded = |time: Duration| time >= Duration::from_millis(1) && time <= POLICY_MAX;
    if !bounded(policy.timeout) || !bounded(policy.start_deadline) {
        return Err(refused(
            op,
            "a timeout or start deadline is refused: use 1 ms to 10 years",
        ));
    }
    if !(1..=ATTEMPTS_MAX).contains(&policy.max_attempts) {
        let why = format!(
            "{} attempts are not 1 to {ATTEMPTS_MAX}",
            policy.max_attempts
        );
        return Err(refused(op, why));
    }
    Ok(())
}
