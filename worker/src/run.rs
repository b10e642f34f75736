//! One attempt: from the claim to its result.
//!
//! The handler runs in a task of its own. This task watches it: the deadline (counted from
//! the handler's start), the cancellation, a panic. The slot is free when the handler has
//! returned; the result waits in the commit queue, not in the slot.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bellwether_schemas::header;
use bellwether_schemas::limits::{ERROR_TEXT_MAX, OUTPUT_MAX};
use bellwether_schemas::state::Reason;
use bellwether_schemas::text;
use bellwether_store::Payload;
use bellwether_store::executions::{Claimed, Outcome as Sent};
use serde_json::Value;
use tokio::task::{JoinError, JoinHandle};
use tracing::Instrument;

use crate::capacity::Place;
use crate::claims::Known;
use crate::clock;
use crate::commit::{Commits, Finished};
use crate::context::Context;
use crate::handler::Call;
use crate::outcome::{Failure, Outcome, SNOOZE_MIN};
use crate::retry::retry_delay;
use crate::session::Session;

/// After its deadline a handler has this long to return before it is given up.
const GRACE: Duration = Duration::from_secs(5);

/// A claimed execution with everything that goes with it.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) claimed: Claimed,
    pub(crate) session: Arc<Session>,
    pub(crate) place: Place,
    pub(crate) known: Option<Known>,
}

impl Attempt {
    /// The result of an attempt that did not start: given back without a charge.
    pub(crate) fn released(self) -> Finished {
        finished(&self.claimed, self.known, None, Sent::Release)
    }
}

fn finished(
    claimed: &Claimed,
    known: Option<Known>,
    started: Option<Duration>,
    outcome: Sent,
) -> Finished {
    Finished {
        job: claimed.job.clone(),
        execution_id: claimed.execution_id,
        claim_id: claimed.claim_id,
        generation: claimed.generation,
        started,
        outcome,
        known,
    }
}

/// How the handler's task ended.
type Handled = Result<Result<Outcome, Failure>, JoinError>;

/// Runs the attempt, whose place has been started, and hands its result over.
pub(crate) async fn run(
    attempt: Attempt,
    handler: Arc<dyn Call>,
    commits: Commits,
    leaked: Arc<AtomicUsize>,
) {
    let Attempt {
        claimed,
        session,
        place,
        known,
    } = attempt;
    let claimed = Arc::new(claimed);
    let cancel = session.handlers.child_token();
    let started = clock::boot();
    let span = tracing::info_span!(
        "attempt",
        job = claimed.job,
        execution_id = %claimed.execution_id,
        generation = claimed.generation,
        shard_index = claimed.shard_index,
    );
    let context = Context::new(Arc::clone(&claimed), cancel.clone());
    let payload = claimed.payload.clone();
    // Spawned, so that a panic or a handler that blocks its thread leaves this task alone.
    let mut task =
        tokio::spawn(async move { handler.call(context, payload).await }.instrument(span));
    let (end, timed_out) = tokio::select! {
        end = &mut task => (Some(end), false),
        () = tokio::time::sleep(claimed.timeout) => {
            cancel.cancel();
            (tokio::time::timeout(GRACE, &mut task).await.ok(), true)
        }
    };
    let leak = end.is_none();
    let mut verdict = Verdict {
        claimed: &claimed,
        timed_out,
        stopped: session.handlers.is_cancelled(),
    };
    let outcome = verdict.outcome(end, &mut fastrand::Rng::new());
    if leak {
        tokio::spawn(wait_for_leak(task, place, claimed.job.clone(), leaked));
    } else {
        drop(place);
    }
    if session.lost.is_cancelled() && outcome == Sent::Release {
        // The ledger has taken the work from the session already.
        return;
    }
    commits
        .send(finished(&claimed, known, Some(started), outcome))
        .await;
}

/// A handler that ignores its cancellation keeps its slot until it returns.
async fn wait_for_leak<T>(
    task: JoinHandle<T>,
    place: Place,
    job: String,
    leaked: Arc<AtomicUsize>,
) {
    tracing::warn!(job, "handler runs on after its deadline and keeps its slot");
    leaked.fetch_add(1, Ordering::Relaxed);
    // Its result is void: the attempt has timed out.
    let _void = task.await;
    leaked.fetch_sub(1, Ordering::Relaxed);
    drop(place);
}

/// From what a handler did to what the ledger is told.
struct Verdict<'a> {
    claimed: &'a Claimed,
    /// The deadline passed before it returned.
    timed_out: bool,
    /// The worker asked its handlers to stop.
    stopped: bool,
}

impl Verdict<'_> {
    /// A definite outcome stands, even if it came late: the work is done. An error after the
    /// deadline is the timeout's, after a stop the stop's (and not charged).
    fn outcome(&mut self, handled: Option<Handled>, rng: &mut fastrand::Rng) -> Sent {
        let (reason, error) = match handled {
            Some(Ok(Ok(outcome))) => match self.definite(outcome) {
                Ok(sent) => return sent,
                Err(error) => (Reason::Error, error),
            },
            Some(Ok(Err(Failure::BadPayload(error)))) => (Reason::BadPayload, error),
            Some(Ok(Err(Failure::Error(_)))) if self.stopped && !self.timed_out => {
                return Sent::Release;
            }
            Some(Ok(Err(Failure::Error(_)))) | None if self.timed_out => self.timeout(),
            Some(Ok(Err(Failure::Error(error)))) => (Reason::Error, error),
            Some(Err(failed)) if failed.is_panic() => {
                (Reason::Panic, panic_message(failed.into_panic().as_ref()))
            }
            // The runtime is being torn down under the handler.
            Some(Err(_)) | None => return Sent::Release,
        };
        Sent::Retry {
            reason,
            error: text::clean(&error, ERROR_TEXT_MAX).into_owned(),
            delay: retry_delay(self.claimed.attempt, rng),
        }
    }

    fn timeout(&self) -> (Reason, String) {
        (
            Reason::Timeout,
            format!("no result within {:?}", self.claimed.timeout),
        )
    }

    fn definite(&self, outcome: Outcome) -> Result<Sent, String> {
        let clean = |reason: String| text::clean(&reason, ERROR_TEXT_MAX).into_owned();
        Ok(match outcome {
            Outcome::Complete(value) => {
                Sent::Complete(encode(&value, &self.claimed.payload.content_type)?)
            }
            Outcome::Snooze(delay) => Sent::Snooze(delay.max(SNOOZE_MIN)),
            Outcome::Cancel(reason) => Sent::Cancel(clean(reason)),
            Outcome::Fail(reason) => Sent::Fail(clean(reason)),
        })
    }
}

/// The output in the encoding of the payload.
fn encode(value: &Value, content_type: &str) -> Result<Payload, String> {
    let (bytes, content_type) = if content_type == header::MSGPACK {
        (
            rmp_serde::to_vec_named(value).map_err(|error| error.to_string())?,
            header::MSGPACK,
        )
    } else {
        (
            serde_json::to_vec(value).map_err(|error| error.to_string())?,
            header::JSON,
        )
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

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let said = panic
        .downcast_ref::<&str>()
        .map(|said| (*said).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    said.unwrap_or_else(|| "panicked with a value that is no text".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claimed(content_type: &str) -> Claimed {
        Claimed {
            execution_id: uuid::Uuid::nil(),
            fire_id: uuid::Uuid::nil(),
            operation_id: uuid::Uuid::nil(),
            job: "job".into(),
            queue: "default".into(),
            claim_id: uuid::Uuid::nil(),
            generation: 1,
            attempt: 1,
            max_attempts: 5,
            shard_index: 0,
            shard_total: 1,
            trigger: bellwether_schemas::state::Trigger::Once,
            schedule_version: None,
            scheduled_at: chrono::DateTime::UNIX_EPOCH,
            deadline_at: chrono::DateTime::UNIX_EPOCH,
            timeout: Duration::from_secs(1),
            payload: Payload {
                bytes: Vec::new(),
                content_type: content_type.into(),
            },
            trace: None,
        }
    }

    fn verdict(handled: Option<Handled>, timed_out: bool, stopped: bool) -> (String, String) {
        let claimed = claimed(header::JSON);
        let sent = Verdict {
            claimed: &claimed,
            timed_out,
            stopped,
        }
        .outcome(handled, &mut fastrand::Rng::with_seed(1));
        match sent {
            Sent::Retry {
                reason,
                error,
                delay,
            } => {
                assert!(delay <= Duration::from_secs(1));
                (reason.to_string(), error)
            }
            other => (other.as_str().to_owned(), String::new()),
        }
    }

    fn word(handled: Option<Handled>, timed_out: bool, stopped: bool) -> String {
        verdict(handled, timed_out, stopped).0
    }

    #[test]
    fn a_definite_outcome_stands_however_late() {
        for (timed_out, stopped) in [(false, false), (true, false), (false, true), (true, true)] {
            assert_eq!(
                word(Some(Ok(Ok(Outcome::done()))), timed_out, stopped),
                "complete"
            );
            assert_eq!(
                word(Some(Ok(Ok(Outcome::fail("no")))), timed_out, stopped),
                "fail"
            );
        }
    }

    #[test]
    fn an_error_is_the_handlers_the_deadlines_or_the_stops() {
        let error = || Some(Ok(Err(Failure::Error("e".into()))));
        assert_eq!(verdict(error(), false, false), ("error".into(), "e".into()));
        assert_eq!(word(error(), true, false), "timeout");
        assert_eq!(word(error(), true, true), "timeout");
        assert_eq!(word(error(), false, true), "release");
        assert_eq!(word(None, true, false), "timeout");
        assert_eq!(
            word(Some(Ok(Err(Failure::BadPayload("p".into())))), false, true),
            "bad_payload"
        );
    }

    #[tokio::test]
    async fn panics_are_told_whatever_they_carry() {
        let texts: [(fn(), &str); 3] = [
            (|| panic!("plain"), "plain"),
            (|| panic!("number {}", 7), "number 7"),
            (|| std::panic::panic_any(7), "no text"),
        ];
        for (panics, said) in texts {
            let failed = tokio::spawn(async move { panics() }).await.unwrap_err();
            let (reason, error) = verdict(Some(Err(failed)), false, false);
            assert_eq!(reason, "panic");
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn outputs_keep_the_payloads_encoding_and_the_limit() {
        let value = serde_json::json!({ "files": 3 });
        assert_eq!(
            encode(&value, header::JSON).unwrap().bytes,
            br#"{"files":3}"#
        );
        let packed = encode(&value, header::MSGPACK).unwrap();
        assert_eq!(
            rmp_serde::from_slice::<Value>(&packed.bytes).unwrap(),
            value
        );
        let large = Value::String("x".repeat(OUTPUT_MAX));
        assert!(
            encode(&large, header::JSON)
                .unwrap_err()
                .contains("larger than 262144")
        );
    }

    #[test]
    fn a_snooze_lasts_a_second_at_least() {
        let claimed = claimed(header::JSON);
        let verdict = Verdict {
            claimed: &claimed,
            timed_out: false,
            stopped: false,
        };
        assert_eq!(
            verdict.definite(Outcome::snooze(Duration::ZERO)),
            Ok(Sent::Snooze(SNOOZE_MIN))
        );
    }
}
