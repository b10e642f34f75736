//! Zones: UTC cut into pieces of constant offset.
//!
//! chrono-tz answers "which offset at this instant" but lists no transitions, so they are found by
//! probing and bisecting. All instants are whole seconds since 1970 UTC.

use std::str::FromStr;

use chrono::{DateTime, Offset, TimeDelta, TimeZone, Utc};
use chrono_tz::{TZ_VARIANTS, Tz};

use crate::calendar::DAY;
use crate::reject::{self, Rejected};

/// Distance of two probes. The closest two transitions of any zone between 1970 and 2199 are seven
/// days apart (measured over the data of 2025b), so none is stepped over.
const PROBE: i64 = 5 * DAY;

/// How far before a piece an offset change can still matter: local times repeat at most a day.
const LOOKBACK: i64 = 2 * DAY;

/// Version of the compiled-in IANA zone data, such as `2025b`.
#[must_use]
pub fn zone_data_version() -> &'static str {
    chrono_tz::IANA_TZDB_VERSION
}

/// Finds a zone by its IANA name.
///
/// Abbreviations are refused although the zone data knows some of them: `CST` is four zones, and
/// `EST` never has summer time.
pub(crate) fn parse(name: &str) -> Result<Tz, Rejected> {
    let abbreviation = !name.contains('/') && !name.contains(|c: char| c.is_ascii_lowercase());
    match Tz::from_str(name) {
        Ok(zone) if !abbreviation || zone == Tz::UTC => Ok(zone),
        Ok(_) => Err(reject::unknown_zone(name, None)),
        Err(_) => {
            let mut known = TZ_VARIANTS.iter().map(|zone| zone.name());
            let meant = known.find(|known| known.eq_ignore_ascii_case(name));
            Err(reject::unknown_zone(name, meant))
        }
    }
}

/// The instant of a whole second; the callers stay within the calendar.
pub(crate) fn instant(second: i64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::seconds(second)
}

/// Seconds that local time is ahead of UTC.
pub(crate) fn offset(zone: Tz, second: i64) -> i64 {
    let utc = instant(second).naive_utc();
    i64::from(zone.offset_from_utc_datetime(&utc).fix().local_minus_utc())
}

/// A stretch of UTC with one offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// First second.
    pub(crate) from: i64,
    /// First second after it.
    pub(crate) until: i64,
    /// Seconds that local time is ahead of UTC.
    pub(crate) offset: i64,
    /// Every wall below this was shown, or jumped over, before `from`. Above the piece's own first
    /// wall: the piece begins by repeating. Below it: the walls in between are a gap.
    pub(crate) passed: i64,
}

/// The pieces of `[from, until)`, in order.
pub(crate) struct Pieces {
    zone: Tz,
    at: i64,
    until: i64,
    passed: i64,
}

pub(crate) fn pieces(zone: Tz, from: i64, until: i64) -> Pieces {
    let start = from - LOOKBACK;
    let passed = start + offset(zone, start);
    let mut pieces = Pieces {
        zone,
        at: start,
        until: from,
        passed,
    };
    while pieces.next().is_some() {}
    Pieces { until, ..pieces }
}

impl Iterator for Pieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if self.at >= self.until {
            return None;
        }
        let offset = offset(self.zone, self.at);
        let until = self.change_after(offset);
        let piece = Piece {
            from: self.at,
            until,
            offset,
            passed: self.passed,
        };
        self.at = until;
        self.passed = self.passed.max(until + offset);
        Some(piece)
    }
}

impl Pieces {
    /// The first second after `at` with another offset, at most `until`.
    fn change_after(&self, current: i64) -> i64 {
        let mut same = self.at;
        loop {
            let probe = (same + PROBE).min(self.until);
            if offset(self.zone, probe) != current {
                return self.bisect(same, probe, current);
            }
            if probe == self.until {
                return probe;
            }
            same = probe;
        }
    }

    fn bisect(&self, mut same: i64, mut other: i64, current: i64) -> i64 {
        while other - same > 1 {
            let middle = same + (other - same) / 2;
            if offset(self.zone, middle) == current {
                same = middle;
            } else {
                other = middle;
            }
        }
        other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(text: &str) -> i64 {
        text.parse::<DateTime<Utc>>().unwrap().timestamp()
    }

    #[test]
    fn pieces_find_the_closest_transitions_from_any_start() {
        let cases = [
            (
                "America/Recife",
                "2000-10-08T03:00:00Z",
                "2000-10-15T02:00:00Z",
            ),
            (
                "Africa/Casablanca",
                "2025-02-23T02:00:00Z",
                "2025-04-06T02:00:00Z",
            ),
            (
                "Europe/Berlin",
                "2026-03-29T01:00:00Z",
                "2026-10-25T01:00:00Z",
            ),
        ];
        for (name, first, second_change) in cases {
            let zone = parse(name).unwrap();
            let changes = [second(first), second(second_change)];
            for start in (changes[0] - 12 * DAY..changes[0]).step_by(7 * 3600) {
                let found: Vec<i64> = pieces(zone, start, changes[1] + DAY)
                    .skip(1)
                    .map(|piece| piece.from)
                    .collect();
                assert_eq!(found, changes, "{name} from {start}");
            }
        }
    }

    #[test]
    fn pieces_know_gaps_and_repeats_at_and_after_a_change() {
        let zone = parse("Europe/Berlin").unwrap();
        let spring = second("2026-03-29T01:00:00Z");
        let piece = pieces(zone, spring, spring + 10).next().unwrap();
        assert_eq!(
            (piece.from + piece.offset) - piece.passed,
            3600,
            "an hour is missing"
        );
        let piece = pieces(zone, spring + 1, spring + 10).next().unwrap();
        assert_eq!(
            piece.from + piece.offset,
            piece.passed,
            "nothing is missing any more"
        );
        let autumn = second("2026-10-25T01:00:00Z");
        let piece = pieces(zone, autumn + 600, autumn + 700).next().unwrap();
        assert_eq!(
            piece.passed - (piece.from + piece.offset),
            3000,
            "still repeating"
        );
    }

    #[test]
    fn abbreviations_are_refused_and_spelling_is_corrected() {
        for name in [
            "EST",
            "CET",
            "GMT",
            "CST",
            "PRC",
            "EST5EDT",
            "GMT+8",
            "",
            "Mars/Base",
            "+02:00",
        ] {
            assert_eq!(parse(name).unwrap_err().code, "unknown_zone", "{name}");
        }
        for name in [
            "UTC",
            "Etc/UTC",
            "Asia/Shanghai",
            "America/Argentina/Buenos_Aires",
            "Japan",
        ] {
            assert_eq!(parse(name).unwrap().name(), name);
        }
        assert_eq!(
            parse("europe/berlin").unwrap_err().remedy,
            "use Europe/Berlin"
        );
        assert_eq!(parse("utc").unwrap_err().remedy, "use UTC");
    }
}
