//! What kinds of values there are, and what of each kind is taken.

use std::time::Duration;

use crate::duration;

/// What a value must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Any text.
    Text,
    /// An address, which may hold a password.
    Url,
    /// A number with its unit, within these bounds.
    Duration(Span),
    /// The same, or the word `off`.
    DurationOrOff(Span),
    /// A whole number from 1 on.
    Count,
    /// One of these whole numbers.
    Choice(&'static [u32]),
    /// A number of bytes with its unit.
    Size,
}

/// Where a time is meant to have no end.
pub(crate) const OFF: &str = "off";

/// The shortest and the longest duration that is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    min: Duration,
    max: Duration,
}

/// The lease of a term, or something that may take as long.
pub(super) const LEASE: Span = Span::new(Duration::from_secs(1), Duration::from_hours(1));
/// The lease of a worker's session: well within [`UNKNOWN`], for only after it a probe's `NotDone` counts.
pub(super) const SESSION_LEASE: Span = Span::new(Duration::from_secs(1), Duration::from_mins(10));
/// A period, or an age at which something follows. Nothing looks more often than once a second.
pub(super) const PERIOD: Span = Span::new(Duration::from_secs(1), Duration::from_hours(30 * 24));
/// Back-off: what is well again is found within that.
pub(super) const BACKOFF: Span = Span::new(Duration::from_secs(1), Duration::from_mins(10));
/// Age of an unknown execution: the audit judges by its upper bound.
pub(super) const UNKNOWN: Span = Span::new(Duration::from_secs(1), Duration::from_mins(15));
/// `AckWait`: a message has most of it to be claimed in.
pub(super) const ACK_WAIT: Span = Span::new(Duration::from_secs(9), Duration::from_hours(1));
/// Something that is held in a worker.
pub(super) const HELD: Span = Span::new(Duration::from_millis(100), Duration::from_hours(1));
/// The runtime of a worker answers once a second.
pub(super) const SILENCE: Span = Span::new(Duration::from_secs(2), Duration::from_hours(24));
/// Time for something that ends.
pub(super) const LIMIT: Span = Span::new(Duration::from_secs(1), Duration::from_hours(24));
/// A drain limit and what a stop takes beside it.
pub(super) const STOP: Span = Span::new(Duration::from_secs(1), Duration::from_hours(48));
pub(super) const GRACE: Span = Span::new(Duration::from_millis(100), Duration::from_hours(24));
/// A deploy of the whole fleet fits into it.
pub(super) const ROLLOUT: Span = Span::new(Duration::from_mins(1), Duration::from_hours(30 * 24));
/// A message is stale a day before its key may be forgotten; it has another one to be claimed in.
pub(super) const RETENTION: Span = Span::new(
    Duration::from_hours(2 * 24),
    Duration::from_hours(3_650 * 24),
);

/// Above the shortest retention of keys.
pub(super) const HISTORY: Span = Span::new(
    Duration::from_hours(3 * 24),
    Duration::from_hours(3_650 * 24),
);

impl Span {
    const fn new(min: Duration, max: Duration) -> Self {
        Self { min, max }
    }

    fn check(self, text: &str) -> Result<(), String> {
        duration::parse_within(text, self.min, self.max).map(drop)
    }
}

impl Kind {
    /// What to write, for an error.
    pub(crate) const fn expected(self) -> &'static str {
        match self {
            Self::Text => "a text in quotes",
            Self::Url => "an address in quotes",
            Self::Duration(_) => "a duration in quotes, such as \"9s\", or whole seconds",
            Self::DurationOrOff(_) => "a duration in quotes, such as \"40d\", or \"off\"",
            Self::Count => "a whole number from 1 on",
            Self::Choice(_) => "one of a few whole numbers",
            Self::Size => "a size in quotes, such as \"1GiB\"",
        }
    }

    /// Refuses a value that is of another kind; the error says what to write.
    pub(crate) fn check(self, text: &str) -> Result<(), String> {
        match self {
            Self::Text | Self::Url if text.is_empty() => Err("it is empty".to_owned()),
            Self::Text | Self::Url => Ok(()),
            Self::Duration(span) => span.check(text),
            Self::DurationOrOff(_) if text == OFF => Ok(()),
            Self::DurationOrOff(span) => {
                let checked = span.check(text);
                checked.map_err(|why| format!("{why}, or {OFF}"))
            }
            Self::Count => count(text).map(drop),
            Self::Choice(known) => match text.parse() {
                Ok(number) if known.contains(&number) => Ok(()),
                _ => {
                    let known: Vec<_> = known.iter().map(u32::to_string).collect();
                    Err(format!(
                        "{text:?} is not possible; use {}",
                        known.join(", ")
                    ))
                }
            },
            Self::Size => size(text).map(drop),
        }
    }
}

/// A number of bytes with its unit, 64 MiB to 1 PiB: what nats-server reserves for a stream.
pub(crate) fn size(text: &str) -> Result<i64, String> {
    const MIB: i64 = 1024 * 1024;
    let refused = || format!("{text:?} is no size; write 64MiB to 1024TiB, such as 4GiB");
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .ok_or_else(refused)?;
    let (number, unit) = text.split_at(split);
    let factor = match unit {
        "MiB" => MIB,
        "GiB" => 1024 * MIB,
        "TiB" => 1024 * 1024 * MIB,
        _ => return Err(refused()),
    };
    let number: i64 = number.parse().map_err(|_| refused())?;
    let bytes = number.checked_mul(factor).ok_or_else(refused)?;
    if (64 * MIB..=1024 * 1024 * 1024 * MIB).contains(&bytes) {
        Ok(bytes)
    } else {
        Err(refused())
    }
}

/// A whole number from 1 on.
pub(crate) fn count(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("{text:?} is no whole number from 1 on")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_span_has_a_lower_bound_that_costs_nothing() {
        for span in [
            LEASE,
            SESSION_LEASE,
            PERIOD,
            UNKNOWN,
            ACK_WAIT,
            HELD,
            SILENCE,
            LIMIT,
            STOP,
            GRACE,
            ROLLOUT,
            RETENTION,
            HISTORY,
        ] {
            assert!(span.min >= Duration::from_millis(100), "{span:?}");
            assert!(span.min < span.max, "{span:?}");
        }
        assert!(LEASE.check("2h").unwrap_err().ends_with("use 1s to 1h"));
    }
}
