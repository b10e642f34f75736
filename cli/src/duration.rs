//! Durations on the command line: `500ms`, `1.5s`, `10m`, `2h`.

use std::time::Duration;

/// Reads a duration with its unit; the error says what to write.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let refused = || format!("{text:?} is no duration; write for example 500ms, 1.5s, 10m or 2h");
    let split = text
        .find(|c: char| c.is_ascii_alphabetic())
        .ok_or_else(refused)?;
    let (number, unit) = text.split_at(split);
    let factor = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(refused()),
    };
    let number: f64 = number.parse().map_err(|_| refused())?;
    Duration::try_from_secs_f64(number * factor).map_err(|_| refused())
}

#[cfg(test)]
mod tests {
    use super::parse;
    use std::time::Duration;

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse("2h"), Ok(Duration::from_hours(2)));
        for bad in ["", "5", "-1s", "1d", "s", "1e99h", "NaNs"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
