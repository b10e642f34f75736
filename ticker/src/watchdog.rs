//! A loop that hangs ends the ticker.
//!
//! The ages of the stamps would be wrong after the host slept or the process was stopped: then all
//! of them are old at once. So the watchdog counts its own turns during which a stamp stood still.

use std::time::Duration;

use crate::Error;
use crate::handle::Shared;
use crate::progress::{Loop, Progress};

/// Time between two turns of the watchdog.
const TICK: Duration = Duration::from_secs(1);

/// Turns during which each loop's stamp stood still.
#[derive(Debug, Default)]
struct Watched {
    last: [u64; Loop::ALL.len()],
    still: [u32; Loop::ALL.len()],
}

/// Ends with the loop that has hung for [`Options::stall_max`](crate::Options::stall_max).
pub(crate) async fn stalled(shared: &Shared) -> Error {
    let max = |one| match one {
        // Comes round with each renewal, and rests for a whole term after a stall.
        Loop::Leadership => shared.options.stall_max.max(shared.options.lease * 2),
        _ => shared.options.stall_max,
    };
    let mut watched = Watched::default();
    loop {
        tokio::time::sleep(TICK).await;
        if let Some((one, age)) = watched.turn(&shared.progress, max) {
            let name = one.as_str();
            return Error::LoopStalled { name, age };
        }
    }
}

impl Watched {
    fn turn(
        &mut self,
        progress: &Progress,
        max: impl Fn(Loop) -> Duration,
    ) -> Option<(Loop, Duration)> {
        for one in Loop::ALL {
            let (at, stamp) = (one as usize, progress.stamp(one));
            self.still[at] = if stamp == self.last[at] {
                self.still[at].saturating_add(1)
            } else {
                0
            };
            self.last[at] = stamp;
        }
        Loop::ALL
            .into_iter()
            .map(|one| (one, TICK * self.still[one as usize]))
            .find(|(one, age)| *age >= max(*one))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::BootTime;

    const MAX: Duration = Duration::from_secs(3);

    #[test]
    fn only_a_loop_that_stands_still_while_it_is_watched_hangs() {
        let progress = Progress::default();
        progress.start(BootTime::from_millis(1_000));
        let mut watched = Watched::default();
        assert_eq!(watched.turn(&progress, |_| MAX), None);
        // The host slept for an hour: all stamps are old, and none has hung.
        for turn in 1..=2 {
            assert_eq!(watched.turn(&progress, |_| MAX), None, "{turn}");
        }
        for turn in 0..10_u64 {
            for one in Loop::ALL {
                progress.turned(one, BootTime::from_millis(3_600_000 + turn));
            }
            assert_eq!(watched.turn(&progress, |_| MAX), None, "{turn}");
        }
        for one in Loop::ALL.into_iter().filter(|one| *one != Loop::Keys) {
            progress.turned(one, BootTime::from_millis(4_000_000));
        }
        for _ in 0..2 {
            assert_eq!(watched.turn(&progress, |_| MAX), None);
        }
        for one in Loop::ALL.into_iter().filter(|one| *one != Loop::Keys) {
            progress.turned(one, BootTime::from_millis(5_000_000));
        }
        assert_eq!(watched.turn(&progress, |_| MAX), Some((Loop::Keys, MAX)));
    }
}
