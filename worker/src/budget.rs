//! The longest that a stop may take, from SIGTERM to the end of the process.
//!
//! A platform kills what has not ended in its time. The parts of a stop are bounded one by one, so
//! their sum can be known, and a platform that gives less is refused at the start, not found out
//! by a kill in the middle of a commit.

use std::fmt;
use std::time::Duration;

use bellwether_telemetry::SHUTDOWN_MAX;

/// A pull that is under way when the stop begins is withdrawn within this time; what comes
/// through it until then is left to the broker's redelivery.
pub(crate) const PULL_EXPIRY: Duration = Duration::from_secs(2);
/// The loops of a worker look at least this often whether it stops.
pub(crate) const SCAN: Duration = Duration::from_secs(1);
/// The last acks get this long to reach the broker; a lost one costs a refused claim.
pub(crate) const FLUSH: Duration = Duration::from_secs(1);
/// Closing the session and the connections.
pub(crate) const CLOSE: Duration = Duration::from_secs(4);

/// The parts of a stop, each its longest time; they follow one another. What else a program does
/// once its worker has ended comes on top: `kill_after` should leave room for it, as its default of
/// 60 s does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopBudget {
    /// Until nothing comes through a pull any more. 2 s.
    pub pulls: Duration,
    /// Until every loop has seen the stop. 1 s.
    pub scan: Duration,
    /// The drain limit ([`Builder::drain`](crate::Builder::drain)): handlers finish, are
    /// cancelled, release, and what they said is committed.
    pub drain: Duration,
    /// Until the last acks are out. 1 s.
    pub flush: Duration,
    /// Until the session and the connections are closed. 4 s.
    pub close: Duration,
    /// Until the last traces and metrics are out, after the worker has ended. 4 s
    /// ([`telemetry::SHUTDOWN_MAX`](crate::telemetry::SHUTDOWN_MAX)), set to export or not: whether
    /// a program does is not the worker's to know.
    pub export: Duration,
}

impl StopBudget {
    /// Of a worker with this drain limit.
    pub const fn new(drain: Duration) -> Self {
        Self {
            pulls: PULL_EXPIRY,
            scan: SCAN,
            drain,
            flush: FLUSH,
            close: CLOSE,
            export: SHUTDOWN_MAX,
        }
    }

    /// The sum, up to the end of the process.
    pub const fn total(&self) -> Duration {
        self.worker().saturating_add(self.export)
    }

    /// The sum of the worker's own parts, up to the return of `run`.
    pub(crate) const fn worker(&self) -> Duration {
        self.pulls
            .saturating_add(self.scan)
            .saturating_add(self.drain)
            .saturating_add(self.flush)
            .saturating_add(self.close)
    }
}

impl fmt::Display for StopBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "pull expiry {:?} + scan period {:?} + drain limit {:?} + commit flush {:?} + close {:?} + last export {:?} = {:?}",
            self.pulls,
            self.scan,
            self.drain,
            self.flush,
            self.close,
            self.export,
            self.total()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r99_the_budget_is_the_sum_of_its_parts_and_says_so() {
        let budget = StopBudget::new(Duration::from_secs(30));
        assert_eq!(budget.total(), Duration::from_secs(42));
        assert_eq!(
            budget.to_string(),
            "pull expiry 2s + scan period 1s + drain limit 30s + commit flush 1s + close 4s \
             + last export 4s = 42s"
        );
        assert_eq!(StopBudget::new(Duration::MAX).total(), Duration::MAX);
    }
}
