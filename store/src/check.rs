//! What is refused before it reaches the database.

use std::time::Duration;

use bellwether_schemas::limits::{
    CHECKPOINT_MAX, DESCRIPTION_MAX, ERROR_TEXT_MAX, KEY_MAX, OUTPUT_MAX, PAYLOAD_MAX,
    SHARD_TOTAL_MAX, YEAR_MAX,
};
use bellwether_schemas::state::{Overlap, Verdict};
use bellwether_schemas::{header, names, text};
use bellwether_time::MisfirePolicy;
use chrono::{DateTime, Datelike, Utc};

use crate::checkpoints::Checkpoint;
use crate::executions::{Commit, NewExecution, Outcome, SubmitAsk};
use crate::planning::PlanStep;
use crate::probes::{ProbeResult, Ruling};
use crate::schedules::{self, NewSchedule, Policy, RetryPolicy, ScheduleChange, Timing};
use crate::{Error, ErrorKind, Payload, Result};

/// Shortest timeout or start deadline of a policy.
pub const POLICY_MIN: Duration = Duration::from_millis(1);

/// Longest duration of a policy: ten years.
pub const POLICY_MAX: Duration = Duration::from_hours(10 * 366 * 24);

/// Most missed instants that a `catch_up` may fire.
pub const CATCH_UP_MAX: u32 = 1_000;

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
    description(OP, &new.description)?;
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
    misfire(OP, new.misfire)?;
    match new.timing {
        Timing::At { at } => instant(OP, at)?,
        Timing::Every { anchor, .. } => anchor.map_or(Ok(()), |at| instant(OP, at))?,
        Timing::Cron { .. } => {}
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

/// Steps of planning: an overlap policy is asked of one instant at a time.
pub(crate) fn steps(steps: &[PlanStep]) -> Result<()> {
    let asked = |step: &&PlanStep| step.overlap != Overlap::Allow;
    match steps.iter().filter(asked).find(|step| step.fires.len() > 1) {
        Some(step) => Err(invalid(
            "plan fires",
            format!(
                "{} instants of schedule {} are refused: with overlap {} plan one at a time",
                step.fires.len(),
                step.schedule_id,
                step.overlap.as_str()
            ),
        )),
        None => Ok(()),
    }
}

/// A change of a schedule. Where it only pauses or resumes, the definition is the row's own,
/// which a build that refuses it must still be able to pause.
pub(crate) fn change(change: &ScheduleChange) -> Result<()> {
    const OP: &str = "change a schedule";
    if change.author.is_some() {
        schedule(&change.definition)?;
    }
    if let Timing::Every { anchor: None, .. } = change.definition.timing {
        return Err(invalid(OP, "an interval without an anchor is refused"));
    }
    match &change.settled {
        None if change.timing_changed => Err(invalid(
            OP,
            "another timing without a settled cursor is refused",
        )),
        Some(settled) if settled.cursor < change.cursor => Err(invalid(
            OP,
            format!(
                "a cursor at {} is refused: the schedule is settled up to {}",
                settled.cursor, change.cursor
            ),
        )),
        _ => Ok(()),
    }
}

/// An instant that headers, the console and both databases can write.
fn instant(op: &'static str, at: DateTime<Utc>) -> Result<()> {
    if (1970..=YEAR_MAX).contains(&at.year()) {
        return Ok(());
    }
    Err(invalid(
        op,
        format!(
            "an instant in the year {} is refused: use one of the years 1970 to {YEAR_MAX}",
            at.year()
        ),
    ))
}

fn description(op: &'static str, text: &str) -> Result<()> {
    if text.contains('\0') || text.chars().count() > DESCRIPTION_MAX {
        return Err(invalid(
            op,
            format!("the description is refused: use at most {DESCRIPTION_MAX} characters, no NUL"),
        ));
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
    new.run_at.map_or(Ok(()), |at| instant(OP, at))?;
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

/// The content type that `given` means, parameters aside; none = the ledger takes no such body.
pub(crate) fn content_type(given: &str) -> Option<&'static str> {
    let essence = given.split(';').next().unwrap_or_default().trim();
    [header::JSON, header::MSGPACK]
        .into_iter()
        .find(|known| essence.eq_ignore_ascii_case(known))
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

/// A checkpoint.
pub(crate) fn checkpoint(checkpoint: &Checkpoint) -> Result<()> {
    let size = checkpoint.bytes.len();
    if size > CHECKPOINT_MAX {
        let why = format!("the checkpoint has {size} bytes, at most {CHECKPOINT_MAX} are kept");
        return Err(invalid("check a checkpoint", why));
    }
    Ok(())
}

/// What a probe says; answers its note, fit for the ledger.
pub(crate) fn probe_result(result: &ProbeResult) -> Result<String> {
    if result.verdict == Verdict::Abandon {
        return Err(invalid(
            "check a verdict",
            "only an operator abandons an execution",
        ));
    }
    Ok(text::clean(&result.note, ERROR_TEXT_MAX).into_owned())
}

/// What an operator says of an unknown execution; answers the reason, fit for the ledger.
pub(crate) fn ruling(ruling: &Ruling) -> Result<String> {
    const OP: &str = "check a ruling";
    if !matches!(
        ruling.verdict,
        Verdict::Done | Verdict::NotDone | Verdict::Abandon
    ) {
        return Err(invalid(OP, "an operator says done, not_done or abandon"));
    }
    let reason = ruling.reason.trim();
    if reason.is_empty() {
        return Err(invalid(
            OP,
            "the reason is empty: say why, for those who come later",
        ));
    }
    Ok(text::clean(reason, ERROR_TEXT_MAX).into_owned())
}

/// A result of an effect that an idempotency key stands for.
pub(crate) fn result(op: &'static str, result: &[u8]) -> Result<()> {
    let size = result.len();
    if size > OUTPUT_MAX {
        let why = format!("the result has {size} bytes, at most {OUTPUT_MAX} are kept");
        return Err(invalid(op, why));
    }
    Ok(())
}

/// An idempotency key.
pub(crate) fn key(op: &'static str, key: &str) -> Result<()> {
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

fn bounded(time: Duration) -> bool {
    (POLICY_MIN..=POLICY_MAX).contains(&time)
}

fn misfire(op: &'static str, policy: MisfirePolicy) -> Result<()> {
    let Some((max, window)) = schedules::catch_up(policy) else {
        return Ok(());
    };
    if max == 0 || max > CATCH_UP_MAX {
        return Err(invalid(
            op,
            format!("a catch-up of {max} instants is refused: use 1 to {CATCH_UP_MAX}"),
        ));
    }
    if !bounded(window) {
        return Err(invalid(
            op,
            format!("a catch-up window of {window:?} is refused: use 1 ms to 10 years"),
        ));
    }
    Ok(())
}

pub(crate) fn policy(op: &'static str, policy: &Policy) -> Result<()> {
    if !bounded(policy.timeout) || !bounded(policy.start_deadline) {
        return Err(invalid(
            op,
            "a timeout or start deadline is refused: use 1 ms to 10 years",
        ));
    }
    let RetryPolicy { first, cap } = policy.retry;
    if !bounded(first) || !bounded(cap) || cap < first {
        return Err(invalid(
            op,
            format!(
                "retries after {first:?} up to {cap:?} are refused: use 1 ms to 10 years, the \
                 first not above the cap"
            ),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_beyond_the_calendar_are_refused() {
        for (at, fine) in [
            ("9999-12-31T23:59:59Z", true),
            ("1970-01-01T00:00:00Z", true),
            ("+10000-01-01T00:00:00Z", false),
            ("1969-12-31T23:59:59Z", false),
        ] {
            let at: DateTime<Utc> = at.parse().unwrap();
            let mut new = NewExecution::new("pay", Payload::json("1"));
            new.run_at = Some(at);
            let once = NewSchedule::new("once", Timing::At { at });
            let anchored = Timing::Every {
                period_ms: 1_000,
                anchor: Some(at),
            };
            let answers = [
                one_shot(&new),
                schedule(&once),
                schedule(&NewSchedule::new("every", anchored)),
            ];
            for answer in answers {
                assert_eq!(answer.is_ok(), fine, "{at}: {answer:?}");
            }
        }
    }
}
