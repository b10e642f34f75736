//! How results that the ledger does not take at once are held.

use std::time::Duration;

use crate::error::Error;

/// Most results that may be held: the size of the queue, and of the area for retries.
pub(crate) const QUEUE_MAX: usize = 1_024;
const RETRY_MIN: Duration = Duration::from_millis(10);
const RETRY_MAX: Duration = Duration::from_mins(1);
const TRIES_MAX: u32 = 1_000_000;

/// How results that the ledger does not take at once are held. Memory is no durable queue: this is
/// back-pressure for a ledger that blinks. A result that is given up is logged and counted; its
/// execution is taken over at its deadline or with the session, as after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Persist {
    /// Fixed time between two tries, give or take a fifth. 10 ms to 1 min; default 1 s.
    pub retry_every: Duration,
    /// A result that the ledger has not decided after so many tries is given up. 1 to 1,000,000;
    /// default 3,600: an hour's outage costs no result.
    pub tries: u32,
    /// With so many results undecided no new work is taken. At most 1,024; default 512.
    pub high_water: usize,
    /// Work is taken again when so many are left. Below `high_water`; default 256.
    pub low_water: usize,
}

impl Default for Persist {
    fn default() -> Self {
        Self {
            retry_every: Duration::from_secs(1),
            tries: 3_600,
            high_water: 512,
            low_water: 256,
        }
    }
}

impl Persist {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let refuse = |option, bounds| Err(Error::OutOfBounds { option, bounds });
        if !(RETRY_MIN..=RETRY_MAX).contains(&self.retry_every) {
            return refuse("persist.retry_every", "use 10 ms to 1 min");
        }
        if !(1..=TRIES_MAX).contains(&self.tries) {
            return refuse("persist.tries", "use 1 to 1,000,000");
        }
        if self.low_water >= self.high_water || self.high_water > QUEUE_MAX {
            return refuse("persist.high_water", "use low_water < high_water ≤ 1,024");
        }
        Ok(())
    }

    /// Whether new work must wait. `was` is the last answer: between the two marks it stands.
    pub(crate) fn is_full(&self, pending: usize, was: bool) -> bool {
        pending >= self.high_water || (was && pending > self.low_water)
    }
}

/// Why a result was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// The ledger did not decide it in so many tries.
    TriesExhausted,
    /// The worker's time to stop was over.
    Shutdown,
}

impl Rejection {
    /// The label in metrics.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::TriesExhausted => "attempts_exhausted",
            Self::Shutdown => "shutdown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r13_work_pauses_at_the_high_mark_and_goes_on_at_the_low_one() {
        let persist = Persist {
            high_water: 4,
            low_water: 2,
            ..Persist::default()
        };
        let mut full = false;
        let seen = [0, 3, 4, 3, 5, 3, 2, 3].map(|pending| {
            full = persist.is_full(pending, full);
            full
        });
        assert_eq!(seen, [false, false, true, true, true, true, false, false]);
    }

    #[test]
    fn the_defaults_are_sound_and_what_is_unbounded_is_refused() {
        assert!(Persist::default().check().is_ok());
        let said = |persist: Persist| persist.check().unwrap_err().to_string();
        let fine = Persist::default();
        let tries = Persist { tries: 0, ..fine };
        assert!(said(tries).contains("persist.tries"));
        let low_water = 512;
        assert!(said(Persist { low_water, ..fine }).contains("high_water"));
        let high_water = 1_025;
        assert!(said(Persist { high_water, ..fine }).contains("1,024"));
        let retry_every = Duration::ZERO;
        assert!(
            said(Persist {
                retry_every,
                ..fine
            })
            .contains("retry_every")
        );
    }
}
