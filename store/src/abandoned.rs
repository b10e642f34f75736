//! The word for a call that its caller gave up before the call's own time was over.

use std::time::Duration;

/// Callers that have a time of their own for a call give it longer than this, at the leases and
/// bounds of production.
const PATIENCE_MIN: Duration = Duration::from_secs(1);

/// Why a call failed that was dropped unanswered after `waited`: the database was slow, or the caller
/// wanted it no more, as at a stop.
pub(crate) const fn word(waited: Duration) -> &'static str {
    if waited.as_millis() < PATIENCE_MIN.as_millis() {
        "abandoned"
    } else {
        "timeout"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_was_dropped_soon_says_nothing_of_the_database() {
        assert_eq!(word(Duration::ZERO), "abandoned");
        assert_eq!(word(Duration::from_millis(999)), "abandoned");
        assert_eq!(word(PATIENCE_MIN), "timeout");
    }
}
