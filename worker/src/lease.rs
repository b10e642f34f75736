//! How a session lives: its times, and their order.

use std::time::Duration;

use crate::error::Error;

/// Shortest and longest lease: below, a session is lost while the ledger merely blinks; above,
/// the work of a dead worker waits for longer than anybody would, and no probe can say in time that it
/// was not done: that counts one lease after the loss, and after 15 min it is an operator's.
const TTL_MIN: Duration = Duration::from_secs(1);
pub(crate) const TTL_MAX: Duration = Duration::from_mins(10);
/// The runtime answers once a second.
const RUNTIME_MIN: Duration = Duration::from_secs(2);
const RUNTIME_MAX: Duration = Duration::from_hours(24);
const COMPARE_MAX: Duration = Duration::from_hours(1);
/// Shortest time between renewals, and between comparisons.
const RENEW_MIN: Duration = Duration::from_millis(100);

/// How a session lives. The defaults fit together and need no tuning; tests shorten them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// The ledger declares the session lost when it was not renewed for this long. 1 s to
    /// 10 min; default 9 s. Not more than the tickers' `session_lease`.
    pub ttl: Duration,
    /// Time between renewals. At least 100 ms; default 3 s.
    pub renew_every: Duration,
    /// Without a confirmed renewal for this long, nothing is claimed and nothing started.
    /// Default 7 s.
    pub fence_after: Duration,
    /// Without any answer for this long, handlers are cancelled. Default 18 s: twice the lease, so
    /// that a database that fails over within it costs no running work.
    pub cancel_after: Duration,
    /// The session is not renewed any more when the runtime of the handlers has answered nothing for
    /// this long. 2 s to 24 h; default 2 min: a handler that blocks every thread for a while keeps
    /// its work, a process that is stuck for good does not hold it for ever.
    pub runtime_max: Duration,
    /// Time between two comparisons of what the ledger says this session runs with what the process
    /// knows, give or take a fifth; what it does not know is released. 100 ms to 1 h; default
    /// 10 s: a claim whose answer was lost for good waits no longer, and it is one read.
    pub compare_every: Duration,
    /// When comparing has failed for this long while the session lives, another session begins: the
    /// ledger hands on what this one holds. At least `compare_every`, at most 1 h; default 30 s.
    pub compare_failing_max: Duration,
}

impl Default for Lease {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(9),
            renew_every: Duration::from_secs(3),
            fence_after: Duration::from_secs(7),
            cancel_after: Duration::from_secs(18),
            runtime_max: Duration::from_mins(2),
            compare_every: Duration::from_secs(10),
            compare_failing_max: Duration::from_secs(30),
        }
    }
}

impl Lease {
    /// A lease of this length. What is renewed, fenced and cancelled by it keeps the ratio that it has
    /// by default.
    pub fn of(ttl: Duration) -> Self {
        Self::default().of_length(ttl)
    }

    /// The same with another length; what does not follow from that stays.
    pub(crate) fn of_length(self, ttl: Duration) -> Self {
        Self {
            ttl,
            renew_every: ttl / 3,
            fence_after: ttl.saturating_mul(7) / 9,
            cancel_after: ttl.saturating_mul(2),
            ..self
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let refused = |option, bounds| Err(Error::OutOfBounds { option, bounds });
        let refuse = |bounds| refused("lease", bounds);
        if !(TTL_MIN..=TTL_MAX).contains(&self.ttl) {
            return refuse("use 1 s to 10 min");
        }
        let ordered = RENEW_MIN <= self.renew_every
            && self.renew_every.saturating_mul(2) <= self.fence_after
            && self.fence_after < self.ttl
            && self.ttl <= self.cancel_after;
        if !ordered {
            return refuse(
                "use 100 ms ≤ renew_every, 2 × renew_every ≤ fence_after < ttl ≤ cancel_after",
            );
        }
        if !(RUNTIME_MIN..=RUNTIME_MAX).contains(&self.runtime_max) {
            return refused("runtime_max", "use 2 s to 24 h");
        }
        let compared = RENEW_MIN <= self.compare_every
            && self.compare_every <= self.compare_failing_max
            && self.compare_failing_max <= COMPARE_MAX;
        if !compared {
            return refused(
                "compare_every",
                "use 100 ms ≤ compare_every ≤ compare_failing_max ≤ 1 h",
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_lease_is_sound_and_a_disordered_one_is_refused() {
        assert!(Lease::default().check().is_ok());
        let short = Lease {
            fence_after: Duration::from_secs(9),
            ..Lease::default()
        };
        assert!(short.check().is_err());
        for (ttl, fine) in [
            (0, false),
            (999, false),
            (1_000, true),
            (600_000, true),
            (600_001, false),
        ] {
            let ttl = Duration::from_millis(ttl);
            let lease = Lease::of(ttl);
            assert_eq!(lease.check().is_ok(), fine, "{ttl:?}");
        }
        let endless = Lease {
            renew_every: Duration::MAX,
            ..Lease::default()
        };
        let said = endless.check().unwrap_err().to_string();
        assert!(said.contains("renew_every"), "{said}");
    }

    #[test]
    fn the_other_clocks_of_a_session_have_bounds() {
        let (base, secs) = (Lease::default(), Duration::from_secs);
        assert_eq!(base.runtime_max, secs(120));
        assert_eq!(
            (base.compare_every, base.compare_failing_max),
            (secs(10), secs(30))
        );
        let refused = |lease: Lease| lease.check().unwrap_err().to_string();
        for runtime_max in [secs(1), secs(24 * 3_600 + 1)] {
            let said = refused(Lease {
                runtime_max,
                ..base
            });
            assert!(said.contains("runtime_max"), "{said}");
        }
        for (compare_every, compare_failing_max) in [
            (Duration::ZERO, secs(30)),
            (secs(31), secs(30)),
            (secs(10), secs(3_601)),
        ] {
            let said = refused(Lease {
                compare_every,
                compare_failing_max,
                ..base
            });
            assert!(said.contains("≤ compare_failing_max"), "{said}");
        }
    }
}
