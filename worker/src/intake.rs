//! From the delivery of a message to the start of its handler: how long what waits there is held.

use std::time::Duration;

use crate::error::Error;

/// The least that `migrate` and the relay declare; what a worker's messages are held for by default
/// stays below it, whatever the installation chose.
const ACK_WAIT_MIN: Duration = Duration::from_secs(9);
const ACK_WAIT_MAX: Duration = Duration::from_hours(1);
const HELD_MIN: Duration = Duration::from_millis(100);
/// What the ledger adds to a timeout for the way from the claim to the start: `deadline = claim +
/// 2 s + timeout`, in the statements of both stores.
const DEADLINE_SLACK: Duration = Duration::from_secs(2);

/// How long what has not started is held. The defaults fit together and need no tuning.
///
/// Before the claim the broker owns the recovery, and its `AckWait` is the clock; after it the
/// ledger does, and the clock is the attempt's deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Intake {
    /// The `AckWait` of the installation's consumers, from delivery to redelivery: what `migrate`
    /// and the relay were told (`nats_ack_wait`). A worker does not set it; it must not hold
    /// messages for as long. 9 s to 1 h; default 10 s.
    pub ack_wait: Duration,
    /// A message that was not claimed for so long is forgotten without a word. 100 ms to less than
    /// `ack_wait`; default 8 s: the broker is about to deliver it again, perhaps to a worker with
    /// room, and a claim that is asked for now would come too late to stop that.
    pub unclaimed_max: Duration,
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
            ack_wait: Duration::from_secs(10),
            unclaimed_max: Duration::from_secs(8),
            unstarted_max: DEADLINE_SLACK,
            ahead_max: Duration::from_secs(1),
        }
    }
}

impl Intake {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let refuse = |option, bounds| Err(Error::OutOfBounds { option, bounds });
        if !(ACK_WAIT_MIN..=ACK_WAIT_MAX).contains(&self.ack_wait) {
            return refuse("ack_wait", "use 9 s to 1 h, as nats_ack_wait of the relay");
        }
        if self.unclaimed_max < HELD_MIN || self.unclaimed_max >= self.ack_wait {
            return refuse(
                "unclaimed_max",
                "use 100 ms to less than ack_wait (nats_ack_wait of migrate and the relay), at which \
                 the broker delivers again",
            );
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
        let seconds = [
            intake.ack_wait,
            intake.unclaimed_max,
            intake.unstarted_max,
            intake.ahead_max,
        ];
        assert_eq!(seconds.map(|time| time.as_secs()), [10, 8, 2, 1]);
    }

    #[test]
    fn times_that_contradict_each_other_are_refused_with_both_names() {
        type Change = fn(&mut Intake);
        let (ms, secs) = (Duration::from_millis, Duration::from_secs);
        let fine: [Change; 4] = [
            |it| it.ack_wait = Duration::from_hours(1),
            |it| {
                (it.ack_wait, it.unclaimed_max) = (Duration::from_secs(61), Duration::from_mins(1));
            },
            |it| it.unclaimed_max = Duration::from_millis(100),
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
                    ack_wait: ms(8_999),
                    ..base
                },
                ["ack_wait is", "nats_ack_wait"],
            ),
            (
                Intake {
                    ack_wait: secs(3_601),
                    ..base
                },
                ["ack_wait is", "1 h"],
            ),
            (
                Intake {
                    unclaimed_max: secs(10),
                    ..base
                },
                ["unclaimed_max is", "less than ack_wait"],
            ),
            (
                Intake {
                    unclaimed_max: ms(99),
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
