//! The process's own clock: boot time, which goes on during suspend.
//!
//! It is only ever used to stop early (a term not renewed, a view that broke), never to decide
//! what is due. tokio's clock stands still during suspend and is used for sleeping alone.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

/// A moment of this host's boot time. Means nothing on another host or after a reboot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct BootTime(Duration);

/// Where boot time comes from; a parameter, so that tests can suspend a process.
pub trait BootClock: fmt::Debug + Send + Sync + 'static {
    /// The moment of the call. Never goes backwards.
    fn now(&self) -> BootTime;
}

/// The kernel's `CLOCK_BOOTTIME`.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemBootClock;

impl BootTime {
    /// The moment `since_boot` after the boot.
    pub const fn from_boot(since_boot: Duration) -> Self {
        Self(since_boot)
    }

    /// Time since the boot.
    pub const fn since_boot(self) -> Duration {
        self.0
    }

    /// Time since `earlier`; zero if that lies ahead.
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    pub(crate) fn millis(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) const fn from_millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }
}

impl Add<Duration> for BootTime {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }
}

impl BootClock for SystemBootClock {
    fn now(&self) -> BootTime {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        // The kernel counts both from zero and keeps nanoseconds below one second.
        let secs = u64::try_from(now.tv_sec).unwrap_or(0);
        let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
        BootTime(Duration::new(secs, nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_time_moves_on_and_never_underflows() {
        let first = SystemBootClock.now();
        let second = SystemBootClock.now();
        assert!(second >= first && first > BootTime::default());
        assert_eq!(first.since(second + Duration::from_secs(1)), Duration::ZERO);
        assert_eq!(
            BootTime::from_millis(first.millis()).millis(),
            first.millis()
        );
    }
}
