//! Interval texts: `90s`, `15m`, `2h`, `1d`.

use std::time::Duration;

use crate::field::number;
use crate::reject::{self, Rejected};

/// Shortest interval of a schedule: 1 s.
pub const PERIOD_MIN: Duration = Duration::from_secs(1);
/// Longest interval of a schedule: 36,525 days.
pub const PERIOD_MAX: Duration = Duration::from_hours(36_525 * 24);

/// Reads one whole number and one unit: `s`, `m`, `h` or `d` (of 24 hours).
///
/// # Errors
///
/// `bad_interval` for anything else, and for intervals below [`PERIOD_MIN`] or above [`PERIOD_MAX`].
pub fn parse_interval(text: &str) -> Result<Duration, Rejected> {
    let text = text.trim();
    let units = [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)];
    let read = units.iter().find_map(|(unit, seconds)| {
        let count = number(text.strip_suffix(*unit)?)?;
        Some(Duration::from_secs(u64::from(count) * seconds))
    });
    check_period(
        read.ok_or_else(|| reject::bad_interval(text, "is not understood"))?,
        text,
    )
}

/// Refuses a period that no schedule may have; `shown_as` is how the user wrote it.
pub(crate) fn check_period(period: Duration, shown_as: &str) -> Result<Duration, Rejected> {
    if period < PERIOD_MIN {
        return Err(reject::bad_interval(shown_as, "is shorter than a second"));
    }
    if period > PERIOD_MAX {
        return Err(reject::bad_interval(
            shown_as,
            "is longer than a hundred years",
        ));
    }
    Ok(period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_one_number_and_one_unit() {
        let seconds = |text| parse_interval(text).unwrap().as_secs();
        assert_eq!(seconds("90s"), 90);
        assert_eq!(seconds("15m"), 900);
        assert_eq!(seconds(" 2h "), 7200);
        assert_eq!(seconds("1d"), 86_400);
        assert_eq!(seconds("36525d"), PERIOD_MAX.as_secs());
    }

    #[test]
    fn refuses_the_rest() {
        let texts = [
            "",
            "s",
            "0s",
            "90",
            "1.5h",
            "-1m",
            "1h30m",
            "36526d",
            "99999999999d",
            "1w",
            "１s",
        ];
        for text in texts {
            assert_eq!(
                parse_interval(text).unwrap_err().code,
                "bad_interval",
                "{text}"
            );
        }
    }
}
