//! This process's own clock. It only stops things early; the ledger's clock decides.

use std::time::Duration;

/// Time since the machine was started, including the time it was suspended.
pub(crate) fn boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}
