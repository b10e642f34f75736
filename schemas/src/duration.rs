//! Durations on a command line, in a variable and in a file: `500ms`, `1.5s`, `10m`, `2h`, `1d`; a bare
//! whole number is seconds.

use std::time::Duration;

/// Reads a duration; a day has 24 hours, and what has no unit is seconds. The error says what to write.
pub fn parse(text: &str) -> Result<Duration, String> {
    let refused =
        || format!("{text:?} is no duration; write for example 500ms, 1.5s, 10m, 2h or 1d");
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if digits(text) {
        return text.parse().map(Duration::from_secs).map_err(|_| refused());
    }
    let split = text
        .find(|c: char| c.is_ascii_alphabetic())
        .ok_or_else(refused)?;
    let (number, unit) = text.split_at(split);
    let factor = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(refused()),
    };
    let number: f64 = number.parse().map_err(|_| refused())?;
    Duration::try_from_secs_f64(number * factor).map_err(|_| refused())
}

/// Writes a duration so that [`parse`] reads it back, to the millisecond: in the largest unit
/// that divides it.
pub fn show(duration: Duration) -> String {
    let ms = duration.as_millis();
    if ms == 0 {
        return "0s".to_owned();
    }
    let units = [
        (86_400_000, "d"),
        (3_600_000, "h"),
        (60_000, "m"),
        (1_000, "s"),
    ];
    units
        .into_iter()
        .find(|(size, _)| ms.is_multiple_of(*size))
        .map_or_else(
            || format!("{ms}ms"),
            |(size, unit)| format!("{}{unit}", ms / size),
        )
}

/// [`parse`], within bounds; the error says which.
pub fn parse_within(text: &str, min: Duration, max: Duration) -> Result<Duration, String> {
    let said = parse(text)?;
    if (min..=max).contains(&said) {
        return Ok(said);
    }
    let (min, max) = (show(min), show(max));
    Err(format!("{text:?} is out of bounds; use {min} to {max}"))
}

#[cfg(test)]
mod tests {
    use super::{parse, show};
    use std::time::Duration;

    #[test]
    fn durations_have_a_unit_or_are_seconds() {
        assert_eq!(parse("30"), Ok(Duration::from_secs(30)));
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse("2h"), Ok(Duration::from_hours(2)));
        assert_eq!(parse("1d"), Ok(Duration::from_hours(24)));
        for bad in ["", "-5", "+5", "1.5", "-1s", "1w", "s", "1e99h", "NaNs"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_duration_reads_back() {
        for text in ["500ms", "1500ms", "90s", "15m", "2h", "1d", "10d", "0s"] {
            assert_eq!(parse(text).map(show).as_deref(), Ok(text));
        }
    }
}
