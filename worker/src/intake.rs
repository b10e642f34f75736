//! From the delivery of a message to the start of its handler: how long what waits there is held.

use std::time::Duration;

use crate::error::Error;

const HELD_MIN: Duration = Duration::from_millis(100);
/// As long as any `AckWait`: more would never hold.
const HELD_MAX: Duration = Duration::from_hours(1);
/// What the ledger adds to a timeout for the way from the claim to the start: `deadline = claim +
/// 2 s + timeout`, in the statements of both stores.
const DEADLINE_SLACK: Duration = Duration::from_secs(2);

/// How long what has not started is held. The defaults fit together and need no tuning.
///
/// Before the claim the broker owns the recovery, and its `AckWait` is the clock; after it the
/// ledger does, and the clock is the attempt's deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Intake {
    /// A message that was not claimed for so long is forgotten without a word. 100 ms to 1 h, and
    /// never more than four fifths of the `AckWait` that its consumer has, which the worker reads
    /// from the broker; `None`, the default, is just that: 8 s of the 10 s that `migrate` and the
    /// relay declare unless they were told otherwise (`nats_ack_wait`). Then the broker is about to
    /// deliver it again, perhaps to a worker with room, and a claim that is asked for now would come
    /// too late to stop that.
    pub unclaimed_max: Option<Duration>,
    /// A claim that was not started for so long is released without a charge. 100 ms to 2 s;
    /// default 2 s: the ledger adds that much to an attempt's timeout, so that a handler that
    /// starts later would have less than its whole timeout.
    pub unstarted_max: Duration,
    /// Beyond the free slots only so much is pulled and claimed as starts within this time, by the
    /// handler times seen lately; 0 = nothing. At most `unstarted_max`; default 1 s: quick handlers
    /// never wait for the network, and what is claimed ahead of slow ones is not kept from others.
    pub ahead_max: Duration,
}

impl Default for Intake {
    fn default() -> Self {
        Self {
            unclaimed_max: None,
            unstarted_max: DEADLINE_SLACK,
            ahead_max: Duration::from_secs(1),
        }
    }
}

impl Intake {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let refuse = |option, bounds| Err(Error::OutOfBounds { option, bounds });
        let held = HELD_MIN..=HELD_MAX;
        if self.unclaimed_max.is_some_and(|max| !held.contains(&max)) {
            return refuse("unclaimed_max", "use 100 ms to 1 h");
        }
        if !(HELD_MIN..=DEADLINE_SLACK).contains(&self.unstarted_max) {
            return refuse("unstarted_max", "use 100 ms to 2 s");
        }
        if self.ahead_max > self.unstarted_max {
            return refuse("ahead_max", "use 0 to unstarted_max");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_architecture() {
        let intake = Intake::default();
        intake.check().unwrap();
        assert_eq!(intake.unclaimed_max, None, "as the consumer's AckWait says");
        let seconds = [intake.unstarted_max, intake.ahead_max];
        assert_eq!(seconds.map(|time| time.as_secs()), [2, 1]);
    }

    #[test]
    fn times_that_contradict_each_other_are_refused_with_both_names() {
        type Change = fn(&mut Intake);
        let (ms, secs) = (Duration::from_millis, Duration::from_secs);
        let fine: [Change; 3] = [
            |it| it.unclaimed_max = Some(Duration::from_hours(1)),
            |it| it.unclaimed_max = Some(Duration::from_millis(100)),
            |it| it.ahead_max = Duration::ZERO,
        ];
        for change in fine {
            let mut intake = Intake::default();
            change(&mut intake);
            intake.check().unwrap();
        }
        let base = Intake::default();
        for (intake, words) in [
            (
                Intake {
                    unclaimed_max: Some(secs(3_601)),
                    ..base
                },
                ["unclaimed_max is", "1 h"],
            ),
            (
                Intake {
                    unclaimed_max: Some(ms(99)),
                    ..base
                },
                ["unclaimed_max is", "100 ms"],
            ),
            (
                Intake {
                    unstarted_max: ms(2_001),
                    ..base
                },
                ["unstarted_max is", "2 s"],
            ),
            (
                Intake {
                    ahead_max: secs(3),
                    ..base
                },
                ["ahead_max is", "unstarted_max"],
            ),
        ] {
            let said = intake.check().unwrap_err().to_string();
            for word in words {
                assert!(said.contains(word), "{word}: {said}");
            }
        }
    }
}
