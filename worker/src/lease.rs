//! How a session lives: its times, and their order.

use std::time::Duration;

use crate::error::Error;

/// Shortest and longest lease: below, a session is lost while the ledger merely blinks; above,
/// the work of a dead worker waits for longer than anybody would.
const TTL_MIN: Duration = Duration::from_secs(1);
const TTL_MAX: Duration = Duration::from_hours(1);
/// Shortest time between renewals.
const RENEW_MIN: Duration = Duration::from_millis(100);

/// How a session lives. The defaults fit together and need no tuning; tests shorten them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// The ledger declares the session lost when it was not renewed for this long. 1 s to 1 h;
    /// default 9 s.
    pub ttl: Duration,
    /// Time between renewals. At least 100 ms; default 3 s.
    pub renew_every: Duration,
    /// Without a confirmed renewal for this long, nothing is claimed and nothing started.
    /// Default 7 s.
    pub fence_after: Duration,
    /// Without any answer for this long, handlers are cancelled. Default 18 s.
    pub cancel_after: Duration,
}

impl Default for Lease {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(9),
            renew_every: Duration::from_secs(3),
            fence_after: Duration::from_secs(7),
            cancel_after: Duration::from_secs(18),
        }
    }
}

impl Lease {
    /// A lease of this length, whose other times keep the ratio that they have by default.
    pub fn of(ttl: Duration) -> Self {
        Self {
            ttl,
            renew_every: ttl / 3,
            fence_after: ttl.saturating_mul(7) / 9,
            cancel_after: ttl.saturating_mul(2),
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let refuse = |bounds| {
            Err(Error::OutOfBounds {
                option: "lease",
                bounds,
            })
        };
        if !(TTL_MIN..=TTL_MAX).contains(&self.ttl) {
            return refuse("use 1 s to 1 h");
        }
        let ordered = RENEW_MIN <= self.renew_every
            && self.renew_every.saturating_mul(2) <= self.fence_after
            && self.fence_after < self.ttl
            && self.ttl <= self.cancel_after;
        if ordered {
            Ok(())
        } else {
            refuse("use 100 ms ≤ renew_every, 2 × renew_every ≤ fence_after < ttl ≤ cancel_after")
        }
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
        for (ttl, fine) in [(0, false), (999, false), (1_000, true), (3_600_001, false)] {
            let ttl = Duration::from_millis(ttl);
            let lease = Lease {
                ttl,
                renew_every: ttl / 3,
                fence_after: ttl * 7 / 9,
                cancel_after: ttl * 2,
            };
            assert_eq!(lease.check().is_ok(), fine, "{ttl:?}");
        }
        let endless = Lease {
            renew_every: Duration::MAX,
            ..Lease::default()
        };
        let said = endless.check().unwrap_err().to_string();
        assert!(said.contains("renew_every"), "{said}");
    }
}
