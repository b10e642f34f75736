//! Log lines that a long outage may repeat: the first at once, then a few a minute.

use std::time::Duration;

use tokio::time::Instant;

/// Time between two lines of one kind.
const BETWEEN: Duration = Duration::from_secs(20);

/// Lets one line of a kind through and counts the rest.
#[derive(Debug, Default)]
pub(crate) struct Limiter {
    last: Option<Instant>,
    held_back: u64,
}

impl Limiter {
    /// Whether to write a line now, and how many were held back since the last one.
    pub(crate) fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now < last + BETWEEN) {
            self.held_back += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.held_back))
    }

    /// What was wrong is over; true if something was. The next line comes at once.
    pub(crate) fn reset(&mut self) -> bool {
        std::mem::take(self).last.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_writes_a_few_lines_a_minute() {
        let (start, mut limiter) = (Instant::now(), Limiter::default());
        let lines: Vec<_> = (0..600)
            .filter_map(|i| limiter.admit(start + Duration::from_millis(100 * i)))
            .collect();
        assert_eq!(lines, [0, 199, 199]);
        assert!(limiter.reset());
        assert!(!limiter.reset());
        assert_eq!(limiter.admit(start), Some(0));
    }
}
