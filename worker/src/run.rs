//! One attempt: from the claim to its result.
//!
//! The handler runs in a task of its own. This task watches it: the deadline (counted from
//! the handler's start), the cancellation, a panic. The slot is free when the handler has
//! returned; the result waits in the commit queue, not in the slot.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bellwether_schemas::limits::ERROR_TEXT_MAX;
use bellwether_schemas::state::Reason;
use bellwether_schemas::text;
use bellwether_store::Payload;
use bellwether_store::executions::{Claimed, Outcome as Sent};
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::capacity::Place;
use crate::claims::Known;
use crate::commit::Commits;
use crate::context::Context;
use crate::handler::Call;
use crate::outcome::{Failure, Outcome, SNOOZE_MIN, encoded};
use crate::panic::{Panicked, caught, told};
use crate::retry::retry_delay;
use crate::session::Session;
use crate::teller::Finished;
use crate::trace::Traced;

/// After its deadline a handler has this long to return before it is given up.
const GRACE: Duration = Duration::from_secs(5);

/// A claimed execution with everything that goes with it.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) claimed: Claimed,
    pub(crate) session: Arc<Session>,
    pub(crate) place: Place,
    pub(crate) known: Option<Known>,
    pub(crate) traced: Traced,
}

impl Attempt {
    /// Whether there is nothing to start any more: an operator requested a cancel.
    pub(crate) fn is_cancel_requested(&self) -> bool {
        self.cancel_requested().is_cancelled()
    }

    fn cancel_requested(&self) -> CancellationToken {
        let known = self.known.as_ref();
        known.map_or_else(CancellationToken::new, |known| {
            known.cancel_requested.clone()
        })
    }

    /// The result of an attempt that did not start: given back without a charge.
    pub(crate) fn released(self) -> Finished {
        finished(&self.claimed, self.known, self.traced, None, Sent::Release)
    }
}

fn finished(
    claimed: &Claimed,
    known: Option<Known>,
    traced: Traced,
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
        traced: Some(traced.ready()),
        decided: None,
    }
}

/// How the handler's task ended.
type Handled = Result<Result<Result<Outcome, Failure>, Panicked>, JoinError>;

/// Runs the attempt, whose place has been started, and hands its result over.
pub(crate) async fn run(
    attempt: Attempt,
    handler: Arc<dyn Call>,
    commits: Commits,
    leaked: Arc<AtomicUsize>,
) {
    let cancel_requested = attempt.cancel_requested();
    let Attempt {
        claimed,
        session,
        place,
        known,
        traced,
    } = attempt;
    let claimed = Arc::new(claimed);
    let cancel = session.handlers.child_token();
    let span = traced.handler(&claimed);
    let context = Context::new(
        Arc::clone(&claimed),
        cancel.clone(),
        cancel_requested.clone(),
    );
    let (started, own) = (context.started(), Arc::clone(context.own()));
    let payload = claimed.payload.clone();
    // Spawned, so that a handler that blocks its thread leaves this task alone.
    let handling = caught(async move { handler.call(context, payload).await });
    let mut task = tokio::spawn(span.wrap(handling));
    let (end, timed_out) = watch(&mut task, &claimed, &cancel, &cancel_requested).await;
    let leaks = end.is_none();
    let own_commit = own.close();
    let verdict = Verdict {
        claimed: &claimed,
        timed_out,
        stopped: session.handlers.is_cancelled(),
        own_commit,
    };
    let outcome = verdict.outcome(end, &mut fastrand::Rng::new());
    span.ended(&outcome);
    let mut decided = None;
    if leaks {
        let leak = Leak {
            claimed: Arc::clone(&claimed),
            started,
            own_commit,
            decided: CancellationToken::new(),
            commits: commits.clone(),
        };
        decided = Some(leak.decided.clone().drop_guard());
        tokio::spawn(leak.wait(task, place, leaked));
    } else {
        drop(place);
    }
    if own_commit {
        let outcome = verdict.without_commit(outcome, &mut fastrand::Rng::new());
        let mut finished = finished(&claimed, known, traced, Some(started), outcome);
        finished.decided = decided;
        commits.settle(finished).await;
        return;
    }
    if session.lost.is_cancelled() && outcome == Sent::Release {
        // The ledger has taken the work from the session already.
        return;
    }
    let mut finished = finished(&claimed, known, traced, Some(started), outcome);
    finished.decided = decided;
    commits.send(finished).await;
}

/// Waits for the handler's end, passes a request to cancel on, and keeps its deadline (true =
/// it passed). No end = it has not obeyed.
async fn watch<T>(
    task: &mut JoinHandle<T>,
    claimed: &Claimed,
    cancel: &CancellationToken,
    cancel_requested: &CancellationToken,
) -> (Option<Result<T, JoinError>>, bool) {
    let mut deadline = std::pin::pin!(tokio::time::sleep(claimed.timeout));
    let mut told = false;
    loop {
        tokio::select! {
            end = &mut *task => return (Some(end), false),
            () = &mut deadline => {
                cancel.cancel();
                return (tokio::time::timeout(GRACE, task).await.ok(), true);
            }
            () = cancel_requested.cancelled(), if !told => {
                told = true;
                tracing::info!(
                    job = claimed.job,
                    execution_id = %claimed.execution_id,
                    "cancel requested: the handler is told to stop",
                );
                cancel.cancel();
            }
        }
    }
}

/// A handler that ignores its cancellation.
struct Leak {
    claimed: Arc<Claimed>,
    started: Duration,
    own_commit: bool,
    /// What was said of it at its deadline is decided, or given up.
    decided: CancellationToken,
    commits: Commits,
}

impl Leak {
    /// It keeps its slot until it returns. The attempt has timed out; only where nobody may
    /// repeat it blindly, and the execution is `unknown` for that, its result still counts.
    async fn wait(
        self,
        task: JoinHandle<Result<Result<Outcome, Failure>, Panicked>>,
        place: Place,
        leaked: Arc<AtomicUsize>,
    ) {
        let claimed = &self.claimed;
        tracing::warn!(
            job = claimed.job,
            execution_id = %claimed.execution_id,
            "handler runs on after its deadline and keeps its slot",
        );
        leaked.fetch_add(1, Ordering::Relaxed);
        let handled = task.await;
        leaked.fetch_sub(1, Ordering::Relaxed);
        let verdict = Verdict {
            claimed,
            timed_out: true,
            stopped: false,
            own_commit: self.own_commit,
        };
        let mut rng = fastrand::Rng::new();
        let mut outcome = verdict.outcome(Some(handled), &mut rng);
        if self.own_commit {
            outcome = verdict.without_commit(outcome, &mut rng);
        }
        // A release: the runtime is being torn down.
        if outcome != Sent::Release {
            self.decided.cancelled().await;
            let late = Finished {
                job: claimed.job.clone(),
                execution_id: claimed.execution_id,
                claim_id: claimed.claim_id,
                generation: claimed.generation,
                started: Some(self.started),
                outcome,
                known: None,
                traced: None,
                decided: None,
            };
            self.commits.send_late(late).await;
        }
        drop(place);
    }
}

/// From what a handler did to what the ledger is told.
struct Verdict<'a> {
    claimed: &'a Claimed,
    /// The deadline passed before it returned.
    timed_out: bool,
    /// The worker asked its handlers to stop.
    stopped: bool,
    /// The handler has called `commit_in`.
    own_commit: bool,
}

impl Verdict<'_> {
    /// A definite outcome stands, even if it came late: the work is done. An error after the
    /// deadline is the timeout's, after a stop the stop's (and not charged). After a request to
    /// cancel an error is told as such: the ledger knows of the request, and ends what would
    /// run again.
    /// A handler that has not returned may do anything yet: the ledger is told so.
    fn outcome(&self, handled: Option<Handled>, rng: &mut fastrand::Rng) -> Sent {
        let stopped = handled.is_some();
        let (reason, error) = match handled {
            Some(Ok(Ok(Ok(outcome)))) => match self.definite(outcome) {
                Ok(sent) => return sent,
                Err(error) => (Reason::Error, error),
            },
            Some(Ok(Ok(Err(Failure::BadPayload(error))))) => (Reason::BadPayload, error),
            Some(Ok(Ok(Err(Failure::Error(_))))) if self.stopped && !self.timed_out => {
                return Sent::Release;
            }
            Some(Ok(Ok(Err(Failure::Error(_))))) | None if self.timed_out => self.timeout(),
            Some(Ok(Ok(Err(Failure::Error(error))))) => (Reason::Error, error),
            Some(Ok(Err(Panicked(error)))) => (Reason::Panic, error),
            Some(Err(failed)) if failed.is_panic() => {
                (Reason::Panic, told(failed.into_panic(), None))
            }
            // The runtime is being torn down under the handler.
            Some(Err(_)) | None => return Sent::Release,
        };
        Sent::Retry {
            reason,
            error: text::clean(&error, ERROR_TEXT_MAX).into_owned(),
            delay: retry_delay(self.claimed.attempt, rng),
            stopped,
        }
    }

    /// What is sent if the handler has called `commit_in` and the row still runs: its word that
    /// all is done does not hold.
    fn without_commit(&self, outcome: Sent, rng: &mut fastrand::Rng) -> Sent {
        let Sent::Complete(_) = outcome else {
            return outcome;
        };
        Sent::Retry {
            reason: Reason::TxNotCommitted,
            error: "the transaction that holds the completion was not committed".to_owned(),
            delay: retry_delay(self.claimed.attempt, rng),
            stopped: true,
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
            // What counts is the output that it gave to `commit_in`; this one may be any value.
            Outcome::Complete(_) if self.own_commit => Sent::Complete(Payload::json("null")),
            Outcome::Complete(value) => {
                Sent::Complete(encoded(&value, &self.claimed.payload.content_type)?)
            }
            Outcome::Snooze(delay) => Sent::Snooze(delay.max(SNOOZE_MIN)),
            Outcome::Cancel(reason) => Sent::Cancel(clean(reason)),
            Outcome::Fail(reason) => Sent::Fail(clean(reason)),
        })
    }
}

#[cfg(test)]
mod tests {
    use bellwether_schemas::header;

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
        let (claimed, returned) = (claimed(header::JSON), handled.is_some());
        let sent = Verdict {
            claimed: &claimed,
            timed_out,
            stopped,
            own_commit: false,
        }
        .outcome(handled, &mut fastrand::Rng::with_seed(1));
        match sent {
            Sent::Retry {
                reason,
                error,
                delay,
                stopped,
            } => {
                assert!(delay <= Duration::from_secs(1));
                assert_eq!(stopped, returned);
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
                word(Some(Ok(Ok(Ok(Outcome::done())))), timed_out, stopped),
                "complete"
            );
            assert_eq!(
                word(Some(Ok(Ok(Ok(Outcome::fail("no"))))), timed_out, stopped),
                "fail"
            );
        }
    }

    #[test]
    fn an_error_is_the_handlers_the_deadlines_or_the_stops() {
        let error = || Some(Ok(Ok(Err(Failure::Error("e".into())))));
        assert_eq!(verdict(error(), false, false), ("error".into(), "e".into()));
        assert_eq!(word(error(), true, false), "timeout");
        assert_eq!(word(error(), true, true), "timeout");
        assert_eq!(word(error(), false, true), "release");
        assert_eq!(word(None, true, false), "timeout");
        assert_eq!(
            word(
                Some(Ok(Ok(Err(Failure::BadPayload("p".into()))))),
                false,
                true
            ),
            "bad_payload"
        );
    }

    #[test]
    fn a_snooze_lasts_a_second_at_least() {
        let claimed = claimed(header::JSON);
        let verdict = Verdict {
            claimed: &claimed,
            timed_out: false,
            stopped: false,
            own_commit: false,
        };
        assert_eq!(
            verdict.definite(Outcome::snooze(Duration::ZERO)),
            Ok(Sent::Snooze(SNOOZE_MIN))
        );
    }
}
