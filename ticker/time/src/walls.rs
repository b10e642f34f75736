//! The set of local ("wall clock") date-times an expression names, without any zone.
//!
//! A wall is a count of seconds since 1970-01-01 00:00:00 as if the local time were UTC. The set
//! is kept as bits per field, so seeking and counting cost a few steps a month, whatever the set's size.

use crate::calendar::{self, DAY, DAYS, MONTHS};
use crate::day::DayMasks;
use crate::field::Values;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Walls {
    pub(crate) seconds: u64,
    pub(crate) minutes: u64,
    pub(crate) hours: u64,
    pub(crate) days: DayMasks,
    pub(crate) months: u64,
    /// Counted from 1970.
    pub(crate) years: Values,
}

/// A wall's day and second of the day; what lies outside the calendar is moved to its edge.
fn split(wall: i64) -> (u32, u32) {
    let wall = wall.clamp(0, i64::from(DAYS) * DAY);
    let day = u32::try_from(wall / DAY).unwrap_or(DAYS);
    let time = u32::try_from(wall % DAY).unwrap_or(0);
    (day, time)
}

fn join(day: u32, time: u32) -> i64 {
    i64::from(day) * DAY + i64::from(time)
}

/// The lowest member at or above `at` (`at` ≤ 63).
fn at_or_above(bits: u64, at: u32) -> Option<u32> {
    let rest = bits & (u64::MAX << at);
    (rest != 0).then(|| rest.trailing_zeros())
}

/// The highest member below `end` (`end` ≤ 63).
fn below(bits: u64, end: u32) -> Option<u32> {
    let rest = bits & ((1 << end) - 1);
    (rest != 0).then(|| rest.ilog2())
}

fn has(bits: u64, at: u32) -> bool {
    bits >> at & 1 == 1
}

/// The number of members below `end` (`end` ≤ 63).
fn rank(bits: u64, end: u32) -> u32 {
    (bits & ((1 << end) - 1)).count_ones()
}

impl Walls {
    /// The earliest wall at or after `wall`.
    pub(crate) fn next(&self, wall: i64) -> Option<i64> {
        let (day, time) = split(wall);
        if self.has_day(day)
            && let Some(time) = self.next_time(time)
        {
            return Some(join(day, time));
        }
        Some(join(self.next_day(day + 1)?, self.next_time(0)?))
    }

    /// The latest wall before `wall`.
    pub(crate) fn last_before(&self, wall: i64) -> Option<i64> {
        let (day, time) = split(wall);
        if self.has_day(day)
            && let Some(time) = self.last_time_before(time)
        {
            return Some(join(day, time));
        }
        Some(join(
            self.last_day_before(day)?,
            self.last_time_before(86_400)?,
        ))
    }

    /// The number of walls in `[from, until)`.
    pub(crate) fn count(&self, from: i64, until: i64) -> u64 {
        if from >= until {
            return 0;
        }
        let (first, first_time) = split(from);
        let (last, last_time) = split(until);
        let part = |day, time| {
            if self.has_day(day) {
                u64::from(self.time_rank(time))
            } else {
                0
            }
        };
        u64::from(self.count_days(first, last)) * u64::from(self.times()) + part(last, last_time)
            - part(first, first_time)
    }

    pub(crate) fn contains(&self, wall: i64) -> bool {
        self.next(wall) == Some(wall)
    }

    // === days ===

    /// The matching days of a month: bit d is day d.
    fn month(&self, month: u32) -> u64 {
        if month < MONTHS && self.years.contains(month / 12) && has(self.months, month % 12 + 1) {
            u64::from(self.days[calendar::shape(month)])
        } else {
            0
        }
    }

    fn has_day(&self, day: u32) -> bool {
        let month = calendar::month_of(day);
        has(self.month(month), day - calendar::first_day(month) + 1)
    }

    fn next_day(&self, day: u32) -> Option<u32> {
        let first = calendar::month_of(day);
        let mut at = day - calendar::first_day(first) + 1;
        for month in first..MONTHS {
            if let Some(found) = at_or_above(self.month(month), at) {
                return Some(calendar::first_day(month) + found - 1);
            }
            at = 1;
        }
        None
    }

    fn last_day_before(&self, day: u32) -> Option<u32> {
        let first = calendar::month_of(day);
        let mut end = day - calendar::first_day(first) + 1;
        for month in (0..=first).rev() {
            if let Some(found) = below(self.month(month), end) {
                return Some(calendar::first_day(month) + found - 1);
            }
            end = 32;
        }
        None
    }

    /// The number of matching days in `[first, last)`.
    fn count_days(&self, first: u32, last: u32) -> u32 {
        let first_month = calendar::month_of(first);
        let last_month = calendar::month_of(last);
        let whole: u32 = (first_month..last_month)
            .map(|month| self.month(month).count_ones())
            .sum();
        let in_month = |month, day| rank(self.month(month), day - calendar::first_day(month) + 1);
        whole + in_month(last_month, last) - in_month(first_month, first)
    }

    // === times of day ===

    /// Matching times of a whole day.
    fn times(&self) -> u32 {
        self.hours.count_ones() * self.minutes.count_ones() * self.seconds.count_ones()
    }

    fn next_time(&self, time: u32) -> Option<u32> {
        let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
        if has(self.hours, hour) {
            if has(self.minutes, minute)
                && let Some(second) = at_or_above(self.seconds, second)
            {
                return Some(hour * 3600 + minute * 60 + second);
            }
            if let Some(minute) = at_or_above(self.minutes, minute + 1) {
                return Some(hour * 3600 + minute * 60 + at_or_above(self.seconds, 0)?);
            }
        }
        let hour = at_or_above(self.hours, hour + 1)?;
        Some(hour * 3600 + at_or_above(self.minutes, 0)? * 60 + at_or_above(self.seconds, 0)?)
    }

    /// `time` may be 86,400, the end of the day.
    fn last_time_before(&self, time: u32) -> Option<u32> {
        let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
        if has(self.hours, hour) {
            if has(self.minutes, minute)
                && let Some(second) = below(self.seconds, second)
            {
                return Some(hour * 3600 + minute * 60 + second);
            }
            if let Some(minute) = below(self.minutes, minute) {
                return Some(hour * 3600 + minute * 60 + below(self.seconds, 60)?);
            }
        }
        let hour = below(self.hours, hour)?;
        Some(hour * 3600 + below(self.minutes, 60)? * 60 + below(self.seconds, 60)?)
    }

    /// The number of matching times of a day before `time`.
    fn time_rank(&self, time: u32) -> u32 {
        let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
        let (minutes, seconds) = (self.minutes.count_ones(), self.seconds.count_ones());
        let mut before = rank(self.hours, hour) * minutes * seconds;
        if has(self.hours, hour) {
            before += rank(self.minutes, minute) * seconds;
            if has(self.minutes, minute) {
                before += rank(self.seconds, second);
            }
        }
        before
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Days 1 to 31 of every month, all years.
    fn walls(seconds: u64, minutes: u64, hours: u64, days: u32, months: u64) -> Walls {
        let mut years = Values::default();
        (0..230).for_each(|year| years.insert(year));
        let lengths = calendar::LENGTHS;
        let days = lengths.map(|length| days & (u32::MAX >> (31 - length)) & !1);
        Walls {
            seconds,
            minutes,
            hours,
            days,
            months,
            years,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn seeking_and_counting_agree_with_listing(
            seconds in 1_u64..1 << 60, minutes in 1_u64..1 << 60, hours in 1_u64..1 << 24,
            thin in any::<bool>(), days in 0_u32..u32::MAX, months in 0_u64..1 << 13,
            at in 0_i64..3 * DAY, until in 0_i64..3 * DAY,
        ) {
            // February and March 2024, so that months end inside the window.
            let start = i64::from(calendar::first_day(54 * 12 + 2) - 1) * DAY;
            let seconds = if thin { seconds & seconds.wrapping_neg() } else { seconds };
            let walls = walls(seconds, minutes, hours, days, months);
            let listed: Vec<i64> = (start..start + 3 * DAY)
                .filter(|wall| {
                    let (day, time) = split(*wall);
                    let month = calendar::month_of(day);
                    has(months, month % 12 + 1)
                        && days >> (day - calendar::first_day(month) + 1) & 1 == 1
                        && has(hours, time / 3600)
                        && has(minutes, time / 60 % 60)
                        && has(seconds, time % 60)
                })
                .collect();
            let (at, until) = (start + at, start + until);
            let next = listed.iter().copied().find(|wall| *wall >= at);
            prop_assert_eq!(walls.next(at).filter(|wall| *wall < start + 3 * DAY), next);
            let last = listed.iter().copied().rfind(|wall| *wall < at);
            prop_assert_eq!(walls.last_before(at).filter(|wall| *wall >= start), last);
            let count = listed.iter().filter(|wall| (at..until).contains(*wall)).count();
            prop_assert_eq!(walls.count(at, until), count as u64);
        }
    }

    #[test]
    fn the_edges_of_the_calendar_hold() {
        let every = walls(1, 1, 1, u32::MAX, !1);
        let end = i64::from(DAYS) * DAY;
        assert_eq!(every.next(i64::MIN), Some(0));
        assert_eq!(every.next(end), None);
        assert_eq!(every.last_before(0), None);
        assert_eq!(every.last_before(i64::MAX), Some(end - DAY));
        assert_eq!(every.count(i64::MIN, i64::MAX), u64::from(DAYS));
    }
}
