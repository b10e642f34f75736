//! Days and months as small numbers: day 0 is 1970-01-01, month 0 is January 1970.

/// Seconds of a day.
pub(crate) const DAY: i64 = 86_400;
/// First year of the calendar and of the year field.
pub(crate) const YEAR_MIN: u32 = 1970;
/// Months up to and including December 2199.
pub(crate) const MONTHS: u32 = 230 * 12;
/// Days up to and including 2199-12-31.
pub(crate) const DAYS: u32 = first_day(MONTHS);
/// Kinds of month: 28 to 31 days, beginning on one of seven weekdays.
pub(crate) const SHAPES: usize = 28;

const fn is_leap(year: u32) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

/// Leap years up to and including `year`.
const fn leaps(year: u32) -> u32 {
    year / 4 - year / 100 + year / 400
}

/// The first day of a month.
pub(crate) const fn first_day(month: u32) -> u32 {
    const BEFORE: [u32; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let year = YEAR_MIN + month / 12;
    let leap_day = (month % 12 > 1 && is_leap(year)) as u32;
    (year - YEAR_MIN) * 365 + leaps(year - 1) - leaps(YEAR_MIN - 1)
        + BEFORE[(month % 12) as usize]
        + leap_day
}

/// The number of days of a month.
pub(crate) const fn length(month: u32) -> u32 {
    first_day(month + 1) - first_day(month)
}

/// The month of a day.
pub(crate) const fn month_of(day: u32) -> u32 {
    // 4,800 months are 146,097 days; the estimate is at most one month off.
    let mut month = day * 48 / 1461;
    while first_day(month) > day {
        month -= 1;
    }
    while first_day(month + 1) <= day {
        month += 1;
    }
    month
}

/// The shape of a month: all that decides which of its days a day pattern matches.
pub(crate) const fn shape(month: u32) -> usize {
    ((length(month) - 28) * 7 + weekday(first_day(month))) as usize
}

/// The weekday of a day, 0 = Sunday.
pub(crate) const fn weekday(day: u32) -> u32 {
    // 1970-01-01 was a Thursday.
    (day + 4) % 7
}

/// The year and the month of the year, 1 to 12.
pub(crate) const fn year_month(month: u32) -> (u32, u32) {
    (YEAR_MIN + month / 12, month % 12 + 1)
}

/// One real month of each shape.
pub(crate) const EXAMPLES: [u32; SHAPES] = {
    let mut examples = [0; SHAPES];
    // Every shape occurs within 28 years without a century in between.
    let mut month = 0;
    while month < 28 * 12 {
        examples[shape(month)] = month;
        month += 1;
    }
    examples
};

/// The length of the months of each shape.
pub(crate) const LENGTHS: [u32; SHAPES] = {
    let mut lengths = [0; SHAPES];
    let mut at = 0;
    while at < SHAPES {
        lengths[at] = length(EXAMPLES[at]);
        at += 1;
    }
    lengths
};

#[cfg(test)]
mod tests {
    use chrono::{Datelike, NaiveDate};

    use super::*;

    #[test]
    fn agrees_with_chrono_on_every_day() {
        let mut date = NaiveDate::from_ymd_opt(1970, 1, 1).unwrap();
        let mut shapes = std::collections::BTreeSet::new();
        for day in 0..DAYS {
            let month = month_of(day);
            assert_eq!(date.year().cast_unsigned(), YEAR_MIN + month / 12, "{date}");
            assert_eq!(date.month0(), month % 12, "{date}");
            assert_eq!(date.day0(), day - first_day(month), "{date}");
            if date.day() == 1 {
                let weekday = date.weekday().num_days_from_sunday();
                assert_eq!(
                    shape(month),
                    ((length(month) - 28) * 7 + weekday) as usize,
                    "{date}"
                );
                shapes.insert(shape(month));
            }
            date = date.succ_opt().unwrap();
        }
        assert_eq!(date, NaiveDate::from_ymd_opt(2200, 1, 1).unwrap());
        assert_eq!(shapes.len(), SHAPES);
        assert_eq!(
            EXAMPLES.map(shape).to_vec(),
            (0..SHAPES).collect::<Vec<_>>()
        );
    }
}
