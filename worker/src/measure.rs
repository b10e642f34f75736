//! What is measured of an attempt and of the worker as a whole. None of it decides anything.

use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use async_nats::connection::State as Connection;
use bellwether_schemas::state::{Reason, State};
use bellwether_store::executions::{Claimed, Outcome};
use bellwether_telemetry::metrics::{
    self, Role, error_type, gauges, histograms, outcome, process, queue, queues, role,
};
use bellwether_telemetry::spans::Heard;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::capacity::Limits;
use crate::clock;
use crate::session::Keeper;
use crate::stats::Counted;

/// How often the worker's standing is shown.
const EVERY: Duration = Duration::from_secs(1);

/// The times of one attempt, in boot time: from its message to the ledger's answer.
#[derive(Debug)]
pub(crate) struct Times {
    queue: String,
    template: String,
    received: Duration,
    /// From its dispatch to its claim, as the ledger says, and when that was.
    waited: Option<Duration>,
    claimed: Duration,
    /// Of its handler; none = it never ran.
    ran: Option<Duration>,
}

impl Times {
    /// Of a claim whose message was received at `received`.
    pub(crate) fn new(claimed: &Claimed, heard: &Heard, received: Duration) -> Self {
        Self {
            queue: claimed.queue.clone(),
            template: heard.template().to_owned(),
            received,
            waited: claimed.waited,
            claimed: clock::boot(),
            ran: None,
        }
    }

    /// Its handler starts.
    pub(crate) fn started(&self) {
        if let Some(waited) = self.waited {
            let delay = waited + clock::boot().saturating_sub(self.claimed);
            histograms()
                .dispatch_delay
                .record(delay.as_secs_f64(), &[queue(&self.queue)]);
        }
    }

    /// Its handler, which had started at `started`, has returned or was given up.
    pub(crate) fn ended(&mut self, started: Option<Duration>) {
        self.ran = started.map(|started| clock::boot().saturating_sub(started));
    }

    /// The ledger has answered: the row is in `state`, or (none) the result was refused.
    pub(crate) fn decided(&self, state: Option<State>, failed: Option<&'static str>) {
        if let (Some(ran), Some(state)) = (self.ran, state) {
            let labels = [queue(&self.queue), outcome(state.as_str())];
            histograms()
                .execution_duration
                .record(ran.as_secs_f64(), &labels);
        }
        let took = clock::boot().saturating_sub(self.received).as_secs_f64();
        let mut labels = process(&self.template).to_vec();
        labels.extend(failed.map(error_type));
        histograms().process_duration.record(took, &labels);
    }
}

/// The word for why an attempt left `running`, `none` for a success.
pub(crate) const fn reason_of(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Complete(_) => "none",
        Outcome::Snooze(_) => Reason::Snooze.as_str(),
        Outcome::Cancel(_) => Reason::Cancelled.as_str(),
        Outcome::Fail(_) => Reason::Rejected.as_str(),
        Outcome::Retry { reason, .. } => reason.as_str(),
        Outcome::Release | Outcome::Overloaded => Reason::Release.as_str(),
    }
}

/// Why a worker is not ready.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotReady {
    /// It has not reached its ledger, its broker and their streams yet.
    #[error("the worker has not reached its ledger and its broker yet")]
    Starting,
    /// There is no connection to the broker.
    #[error("there is no connection to the broker")]
    NoBroker,
    /// Its session was not confirmed lately: the ledger is away, or has given the worker up.
    #[error("the ledger has not confirmed the session")]
    NoSession,
    /// So many results wait for the ledger that no new work is taken.
    #[error("results pile up: the ledger does not take them")]
    ResultsPileUp,
    /// The loop that feeds the handlers does not come round.
    #[error("the feeding loop has not come round for {} s", age.as_secs())]
    Stalled {
        /// For how long it was watched hanging.
        age: Duration,
    },
    /// It stops, or has stopped.
    #[error("the worker has stopped")]
    Stopped,
}

/// The feeding loop looks up at least once a second; a call that waits for a ledger is shorter.
const STALL_MAX: Duration = Duration::from_mins(1);

/// What is looked at for the gauges.
pub(crate) struct Meter {
    pub(crate) client: Client,
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) limits: Limits,
    pub(crate) queues: Vec<String>,
    pub(crate) counted: Counted,
    pub(crate) standing: Arc<watch::Sender<Result<(), NotReady>>>,
}

impl Meter {
    /// Shows the limits, then the standing until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        metrics::announce(Role::Worker);
        let gauges = gauges();
        let of = [queues(&self.queues)];
        let held = self.limits.max_concurrent + self.limits.prefetch;
        for (gauge, limit) in [
            (&gauges.worker_active_limit, self.limits.max_concurrent),
            (&gauges.worker_queued_limit, held),
        ] {
            gauge.record(u64::try_from(limit).unwrap_or(u64::MAX), &of);
        }
        let (mut turns, mut still) = (0, 0);
        while !stop.is_cancelled() {
            let now = self.counted.turns();
            still = if now == turns { still + 1 } else { 0 };
            turns = now;
            self.show(self.standing(EVERY * still));
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(EVERY) => {}
            }
        }
        self.show(Err(NotReady::Stopped));
    }

    fn standing(&self, still: Duration) -> Result<(), NotReady> {
        let current = self.keeper.current.borrow().clone();
        if self.client.connection_state() != Connection::Connected {
            Err(NotReady::NoBroker)
        } else if !current.is_some_and(|session| session.is_trusted()) {
            Err(NotReady::NoSession)
        } else if self.counted.is_paused() {
            Err(NotReady::ResultsPileUp)
        } else if still >= STALL_MAX {
            Err(NotReady::Stalled { age: still })
        } else {
            Ok(())
        }
    }

    fn show(&self, standing: Result<(), NotReady>) {
        let connected = !matches!(standing, Err(NotReady::NoBroker | NotReady::Stopped));
        let gauges = gauges();
        gauges.worker_connected.record(u64::from(connected), &[]);
        let role = [role(Role::Worker.as_str())];
        gauges.ready.record(u64::from(standing.is_ok()), &role);
        self.standing.send_if_modified(|was| {
            let changed = *was != standing;
            *was = standing;
            changed
        });
    }
}
