//! One handler, watched from outside: its deadline, and what it is told.
//!
//! | it is told to stop because | and is given up | the ledger is told |
//! |---|---|---|
//! | its deadline passed | 5 s later | timeout; `unknown` where it must not be repeated blindly |
//! | an operator requested a cancel | after the grace | cancelled; `unknown` as above |
//! | its session was lost | after the grace | nothing until it returns: the work is another's, or `unknown` |
//! | the worker stops | by the drain limit | nothing: the session's end hands the work on |

use std::sync::Arc;
use std::time::Duration;

use bellwether_store::executions::{Claimed, Outcome as Sent};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::capacity::Place;
use crate::claims::Requested;
use crate::run::{Handled, Returned, Tools, Verdict};
use crate::teller::Finished;

/// After its deadline a handler has this long to return before it is given up: as long as the
/// sweep waits, too.
const DEADLINE_GRACE: Duration = Duration::from_secs(5);

/// Why a handler's time was over before it returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// Its deadline passed.
    Deadline,
    /// An operator requested a cancel, and it ran on.
    Cancel,
    /// Its session was lost, and it ran on.
    Lost,
}

/// What is watched.
pub(crate) struct Watch<'a> {
    pub(crate) claimed: &'a Claimed,
    /// Tells the handler to stop.
    pub(crate) cancel: &'a CancellationToken,
    pub(crate) cancel_requested: &'a CancellationToken,
    pub(crate) lost: &'a CancellationToken,
    pub(crate) cancel_grace: Duration,
}

/// What was seen.
pub(crate) enum Watched<T> {
    /// It returned.
    Returned {
        /// What.
        end: Result<T, JoinError>,
        /// After its deadline.
        timed_out: bool,
    },
    /// It runs on.
    GivenUp(Over),
}

impl Watch<'_> {
    /// Waits for the handler's end, passes a request to cancel on, and keeps its times.
    pub(crate) async fn until_end<T>(&self, task: &mut JoinHandle<T>) -> Watched<T> {
        let mut deadline = std::pin::pin!(sleep(self.claimed.timeout));
        let mut grace = std::pin::pin!(sleep(Duration::ZERO));
        let mut told: Option<Over> = None;
        loop {
            tokio::select! {
                end = &mut *task => return Watched::Returned { end, timed_out: false },
                () = &mut deadline => {
                    self.cancel.cancel();
                    return match timeout(DEADLINE_GRACE, task).await {
                        Ok(end) => Watched::Returned { end, timed_out: true },
                        Err(_elapsed) => Watched::GivenUp(Over::Deadline),
                    };
                }
                () = self.cancel_requested.cancelled(), if told.is_none() => {
                    told = Some(Over::Cancel);
                    tracing::info!(
                        job = self.claimed.job,
                        execution_id = %self.claimed.execution_id,
                        "cancel requested: the handler is told to stop",
                    );
                    self.cancel.cancel();
                    grace.as_mut().reset(Instant::now() + self.cancel_grace);
                }
                // Whoever loses a session cancels its handlers, too.
                () = self.lost.cancelled(), if told.is_none() => {
                    told = Some(Over::Lost);
                    grace.as_mut().reset(Instant::now() + self.cancel_grace);
                }
                () = &mut grace, if told.is_some() => if let Some(over) = told {
                    return Watched::GivenUp(over);
                },
            }
        }
    }
}

/// A handler that ignores its cancellation.
pub(crate) struct Leak {
    pub(crate) claimed: Arc<Claimed>,
    /// Boot time of its start.
    pub(crate) started: Duration,
    pub(crate) over: Over,
    pub(crate) own_commit: bool,
    pub(crate) requested: Requested,
    /// What was said of it when it was given up is decided, or given up.
    pub(crate) decided: CancellationToken,
    pub(crate) tools: Tools,
}

impl Leak {
    /// It keeps its slot until it returns. The attempt is over; what it says at last counts where
    /// the ledger waits for it still: the execution is `unknown`, or nothing else was told of it.
    pub(crate) async fn wait(self, task: JoinHandle<Returned>, place: Place) {
        let claimed = &self.claimed;
        tracing::warn!(
            job = claimed.job,
            execution_id = %claimed.execution_id,
            why = ?self.over,
            "handler runs on although it was told to stop: it is given up and keeps its slot",
        );
        let leaked = self.tools.leaks.one_more(&claimed.queue);
        let handled: Handled = task.await;
        self.requested.obeyed(&claimed.queue);
        drop(leaked);
        let verdict = Verdict {
            claimed,
            timed_out: self.over == Over::Deadline,
            stopped: false,
            own_commit: self.own_commit,
        };
        let outcome = verdict.returned(handled, self.tools.delays);
        // A release: the runtime is being torn down.
        if outcome != Sent::Release {
            self.decided.cancelled().await;
            let late = Finished::of(claimed, Some(self.started), outcome);
            if self.own_commit && self.over == Over::Lost {
                // Nothing was asked yet about its own transaction.
                self.tools.commits.settle(late).await;
            } else {
                self.tools.commits.send_late(late).await;
            }
        }
        drop(place);
    }
}
