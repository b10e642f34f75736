//! One attempt: from the claim to its result.
//!
//! The handler runs in a task of its own. This task watches it: the deadline (counted from
//! the handler's start), the cancellation, a panic. The slot is free when the handler has
//! returned; the result waits in the commit queue, not in the slot.

use std::sync::Arc;
use std::time::Duration;

use bellwether_schemas::limits::ERROR_TEXT_MAX;
use bellwether_schemas::state::Reason;
use bellwether_schemas::text;
use bellwether_store::executions::{Claimed, Outcome as Sent};
use bellwether_store::schedules::Policy;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::capacity::Place;
use crate::checkpoint::Checkpoints;
use crate::claims::{Known, Requested};
use crate::commit::Commits;
use crate::context::Context;
use crate::handler::Call;
use crate::leaks::Leaks;
use crate::outcome::{Failure, Outcome, SNOOZE_MIN, encoded};
use crate::panic::{Panicked, caught, told};
use crate::pin::Pins;
use crate::retry::Delays;
use crate::session::Session;
use crate::teller::Finished;
use crate::trace::Traced;
use crate::watch::{Leak, Over, Watch, Watched};

/// What every attempt of a worker needs.
#[derive(Debug, Clone)]
pub(crate) struct Tools {
    pub(crate) commits: Commits,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) pins: Pins,
    pub(crate) delays: Delays,
    pub(crate) leaks: Leaks,
    /// The attempts' tasks.
    pub(crate) tracker: TaskTracker,
    /// Those that wait for handlers that were given up.
    pub(crate) leaving: TaskTracker,
    /// A handler that was told to stop is given up after this time.
    pub(crate) cancel_grace: Duration,
}

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
    fn released(self) -> Finished {
        self.unstarted(Sent::Release)
    }

    /// The same of one that found no free slot in time.
    pub(crate) fn overloaded(self) -> Finished {
        self.unstarted(Sent::Overloaded)
    }

    fn unstarted(self, outcome: Sent) -> Finished {
        Finished {
            known: self.known,
            traced: Some(self.traced.ready(None)),
            ..Finished::of(&self.claimed, None, outcome)
        }
    }

    /// Gives it back, not started. Where its session is lost the ledger is asked first: what
    /// nobody has tried must not stay `unknown`.
    pub(crate) async fn give_back(self, commits: &Commits) {
        tracing::debug!(execution_id = %self.claimed.execution_id, "released unstarted");
        if self.session.lost.is_cancelled() {
            commits.send_stopped(self.released()).await;
        } else {
            commits.send(self.released()).await;
        }
    }
}

/// What a handler returned.
pub(crate) type Returned = Result<Result<Outcome, Failure>, Panicked>;

/// How the handler's task ended.
pub(crate) type Handled = Result<Returned, JoinError>;

/// Runs the attempt, whose place has been started, and hands its result over; `policy` is that of
/// its job where the row does not have it yet.
pub(crate) async fn run(
    mut attempt: Attempt,
    handler: Arc<dyn Call>,
    policy: Option<Policy>,
    tools: Tools,
) {
    if let Some(policy) = policy
        && !tools.pins.pin(&mut attempt.claimed, &policy).await
    {
        attempt.give_back(&tools.commits).await;
        return;
    }
    handle(attempt, handler, tools).await;
}

async fn handle(attempt: Attempt, handler: Arc<dyn Call>, tools: Tools) {
    let cancel_requested = attempt.cancel_requested();
    let Attempt {
        claimed,
        session,
        place,
        known,
        traced,
    } = attempt;
    let claimed = Arc::new(claimed);
    let requested = known
        .as_ref()
        .map_or_else(Requested::default, |known| known.requested.clone());
    let cancel = session.handlers.child_token();
    let span = traced.handler(&claimed);
    let context = Context::new(
        Arc::clone(&claimed),
        cancel.clone(),
        cancel_requested.clone(),
        Some(tools.checkpoints.clone()),
    );
    let (started, own) = (context.started(), Arc::clone(context.own()));
    let payload = claimed.payload.clone();
    // Spawned, so that a handler that blocks its thread leaves this task alone.
    let handling = caught(async move { handler.call(context, payload).await });
    let mut task = tokio::spawn(span.wrap(handling));
    let watch = Watch {
        claimed: &claimed,
        cancel: &cancel,
        cancel_requested: &cancel_requested,
        lost: &session.lost,
        cancel_grace: tools.cancel_grace,
    };
    let watched = watch.until_end(&mut task).await;
    let own_commit = own.close();
    let over = match watched {
        Watched::GivenUp(over) => over,
        Watched::Returned { end, timed_out } => {
            drop(place);
            requested.obeyed(&claimed.queue);
            let verdict = Verdict {
                claimed: &claimed,
                timed_out,
                stopped: session.handlers.is_cancelled(),
                own_commit,
            };
            let outcome = verdict.returned(end, tools.delays);
            span.ended(&outcome);
            let finished = Finished {
                known,
                traced: Some(traced.ready(Some(started))),
                ..Finished::of(&claimed, Some(started), outcome)
            };
            return tell(finished, own_commit, &session, &tools.commits).await;
        }
    };
    let leak = Leak {
        claimed: Arc::clone(&claimed),
        started,
        over,
        own_commit,
        requested,
        decided: CancellationToken::new(),
        tools: tools.clone(),
    };
    let decided = leak.decided.clone().drop_guard();
    // Tracked before this task ends: a stop waits for what it says.
    tools.leaving.spawn(leak.wait(task, place));
    let Some(outcome) = given_up(&claimed, over, tools.delays) else {
        // The ledger has taken the work from the session, and nothing definite can be said
        // before the handler's end.
        return;
    };
    span.ended(&outcome);
    let finished = Finished {
        known,
        traced: Some(traced.ready(Some(started))),
        decided: Some(decided),
        ..Finished::of(&claimed, Some(started), outcome)
    };
    if own_commit {
        tools.commits.settle(finished).await;
    } else {
        tools.commits.send(finished).await;
    }
}

/// Hands the result of a handler that has returned over.
async fn tell(finished: Finished, own_commit: bool, session: &Session, commits: &Commits) {
    if own_commit {
        commits.settle(finished).await;
    } else if finished.outcome == Sent::Release && session.lost.is_cancelled() {
        commits.send_stopped(finished).await;
    } else {
        commits.send(finished).await;
    }
}

/// What the ledger is told of a handler that has not returned, and may do anything yet: never
/// that it has stopped. None = nothing, for its session is lost.
fn given_up(claimed: &Claimed, over: Over, delays: Delays) -> Option<Sent> {
    let (reason, error) = match over {
        Over::Deadline => timeout(claimed),
        Over::Cancel => (
            Reason::Cancelled,
            "told to stop, the handler ran on and was given up".to_owned(),
        ),
        Over::Lost => return None,
    };
    Some(Sent::Retry {
        reason,
        error,
        delay: delays.after(claimed.retry, claimed.attempt),
        stopped: false,
    })
}

fn timeout(claimed: &Claimed) -> (Reason, String) {
    (
        Reason::Timeout,
        format!("no result within {:?}", claimed.timeout),
    )
}

/// From what a handler that has returned did to what the ledger is told.
pub(crate) struct Verdict<'a> {
    pub(crate) claimed: &'a Claimed,
    /// It returned after its deadline.
    pub(crate) timed_out: bool,
    /// The worker asked its handlers to stop.
    pub(crate) stopped: bool,
    /// The handler has called `commit_in`.
    pub(crate) own_commit: bool,
}

impl Verdict<'_> {
    /// A definite outcome stands, even if it came late: the work is done. An error after the
    /// deadline is the timeout's, after a stop the stop's (and not charged). After a request to
    /// cancel an error is told as such: the ledger knows of the request, and ends what would
    /// run again. If the handler has called `commit_in`, this is what is sent while the row still
    /// runs: its word that all is done does not hold then.
    pub(crate) fn returned(&self, handled: Handled, delays: Delays) -> Sent {
        let (reason, error) = match handled {
            Ok(Ok(Ok(Outcome::Complete(_)))) if self.own_commit => (
                Reason::TxNotCommitted,
                "the transaction that holds the completion was not committed".to_owned(),
            ),
            Ok(Ok(Ok(outcome))) => match self.definite(outcome) {
                Ok(sent) => return sent,
                Err(error) => (Reason::Error, error),
            },
            Ok(Ok(Err(Failure::BadPayload(error)))) => (Reason::BadPayload, error),
            Ok(Ok(Err(Failure::Error(_)))) if self.timed_out => timeout(self.claimed),
            Ok(Ok(Err(Failure::Error(_)))) if self.stopped => return Sent::Release,
            Ok(Ok(Err(Failure::Error(error)))) => (Reason::Error, error),
            Ok(Err(Panicked(error))) => (Reason::Panic, error),
            Err(failed) if failed.is_panic() => (Reason::Panic, told(failed.into_panic(), None)),
            // The runtime is being torn down under the handler.
            Err(_) => return Sent::Release,
        };
        Sent::Retry {
            reason,
            error: text::clean(&error, ERROR_TEXT_MAX).into_owned(),
            delay: delays.after(self.claimed.retry, self.claimed.attempt),
            stopped: true,
        }
    }

    fn definite(&self, outcome: Outcome) -> Result<Sent, String> {
        let clean = |reason: String| text::clean(&reason, ERROR_TEXT_MAX).into_owned();
        Ok(match outcome {
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
    use bellwether_store::Payload;

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
            waited: None,
            timeout: Duration::from_secs(1),
            retry: bellwether_store::schedules::RetryPolicy::default(),
            policy_known: true,
            payload: Payload {
                bytes: Vec::new(),
                content_type: content_type.into(),
            },
            checkpoint: None,
            trace: None,
        }
    }

    fn verdict(handled: Handled, timed_out: bool, stopped: bool) -> (String, String) {
        let claimed = claimed(header::JSON);
        let sent = Verdict {
            claimed: &claimed,
            timed_out,
            stopped,
            own_commit: false,
        }
        .returned(handled, Delays::new(Some(1)));
        match sent {
            Sent::Retry {
                reason,
                error,
                delay,
                stopped,
            } => {
                assert!(delay <= Duration::from_secs(1));
                assert!(stopped);
                (reason.to_string(), error)
            }
            other => (other.as_str().to_owned(), String::new()),
        }
    }

    fn word(handled: Handled, timed_out: bool, stopped: bool) -> String {
        verdict(handled, timed_out, stopped).0
    }

    #[test]
    fn a_definite_outcome_stands_however_late() {
        for (timed_out, stopped) in [(false, false), (true, false), (false, true), (true, true)] {
            assert_eq!(
                word(Ok(Ok(Ok(Outcome::done()))), timed_out, stopped),
                "complete"
            );
            assert_eq!(
                word(Ok(Ok(Ok(Outcome::fail("no")))), timed_out, stopped),
                "fail"
            );
        }
    }

    #[test]
    fn an_error_is_the_handlers_the_deadlines_or_the_stops() {
        let error = || Ok(Ok(Err(Failure::Error("e".into()))));
        assert_eq!(verdict(error(), false, false), ("error".into(), "e".into()));
        assert_eq!(word(error(), true, false), "timeout");
        assert_eq!(word(error(), true, true), "timeout");
        assert_eq!(word(error(), false, true), "release");
        assert_eq!(
            word(Ok(Ok(Err(Failure::BadPayload("p".into())))), false, true),
            "bad_payload"
        );
    }

    #[test]
    fn p53_who_runs_on_is_never_told_as_stopped() {
        let claimed = claimed(header::JSON);
        let said = [Over::Deadline, Over::Cancel, Over::Lost].map(|over| {
            let sent = given_up(&claimed, over, Delays::new(Some(1)))?;
            assert!(!sent.stopped(), "{sent:?}");
            match sent {
                Sent::Retry { reason, .. } => Some(reason),
                other => panic!("{other:?}"),
            }
        });
        assert_eq!(said, [Some(Reason::Timeout), Some(Reason::Cancelled), None]);
    }

    #[test]
    fn done_without_its_own_commit_is_not_done() {
        let claimed = claimed(header::JSON);
        let verdict = Verdict {
            claimed: &claimed,
            timed_out: false,
            stopped: false,
            own_commit: true,
        };
        match verdict.returned(Ok(Ok(Ok(Outcome::done()))), Delays::new(Some(1))) {
            Sent::Retry { reason, .. } => assert_eq!(reason, Reason::TxNotCommitted),
            other => panic!("{other:?}"),
        }
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
