//! The two day fields, and which days of a month they match.
//!
//! Whether a day matches depends only on the shape of its month (length and first weekday), so
//! croner is asked once per shape when the expression is parsed and the answers are kept as 28 masks.
//! Two things croner 4.0.3 cannot do are done here: `L-n`, and `L` or `LW` beside another `W`
//! item (it keeps one flag for both, so `L,15W` would become `LW`); each of them is a pattern of its
//! own.

use croner::Weekday;
use croner::parser::{CronParser, Seconds, Year};

use crate::calendar::{self, EXAMPLES, LENGTHS, SHAPES, YEAR_MIN};
use crate::field::{DAY_OF_MONTH, DAY_OF_WEEK, Values, number};
use crate::reject::{self, Rejected};

/// For each shape of month the matching days: bit d is day d of the month.
pub(crate) type DayMasks = [u32; SHAPES];

/// Bits 1 to 31.
const ALL_DAYS: u32 = !1;

/// The day-of-month field.
#[derive(Default)]
struct DaysOfMonth {
    /// The field is `*` or `?`.
    any: bool,
    /// An item begins with a star.
    starred: bool,
    /// Patterns for croner, each matched on its own.
    patterns: Vec<String>,
    /// Days before the last one, from `L-n`.
    before_last: Vec<u32>,
}

/// The day-of-week field.
#[derive(Default)]
struct DaysOfWeek {
    any: bool,
    starred: bool,
    /// A leading `+`: both day fields must match.
    and: bool,
    patterns: Vec<String>,
}

/// Reads both day fields, in upper case with `?` already written as `*`.
pub(crate) fn masks(day_of_month: &str, day_of_week: &str) -> Result<DayMasks, Rejected> {
    let month_days = days_of_month(day_of_month)?;
    let week_days = days_of_week(day_of_week)?;
    // Vixie cron requires both fields as soon as one begins with a star, Kubernetes accepts either
    // unless one is a star and nothing else.
    let restricted = !month_days.any && !week_days.any;
    if restricted && !week_days.and && (month_days.starred || week_days.starred) {
        return Err(reject::ambiguous_day_fields(day_of_month, day_of_week));
    }
    let mut by_month = [0; SHAPES];
    for pattern in &month_days.patterns {
        add_matches(pattern, "*", &mut by_month)?;
    }
    for back in &month_days.before_last {
        for (mask, length) in by_month.iter_mut().zip(LENGTHS) {
            *mask |= ((1 << length) >> back) & ALL_DAYS;
        }
    }
    let mut by_week = [0; SHAPES];
    for pattern in &week_days.patterns {
        add_matches("*", pattern, &mut by_week)?;
    }
    let mut masks = [0; SHAPES];
    for (shape, mask) in masks.iter_mut().enumerate() {
        let (month, week) = (by_month[shape], by_week[shape]);
        *mask = match (month_days.any, week_days.any) {
            (true, true) => (u32::MAX >> (31 - LENGTHS[shape])) & ALL_DAYS,
            (true, false) => week,
            (false, true) => month,
            (false, false) if week_days.and => month & week,
            (false, false) => month | week,
        };
    }
    Ok(masks)
}

fn days_of_month(text: &str) -> Result<DaysOfMonth, Rejected> {
    if text == "*" {
        return Ok(DaysOfMonth {
            any: true,
            ..DaysOfMonth::default()
        });
    }
    let field = &DAY_OF_MONTH;
    let mut read = DaysOfMonth::default();
    let mut plain = Values::default();
    let mut nearest = Vec::new();
    for item in field.items(text) {
        let item = item?;
        if item == "L" || item == "LW" {
            read.patterns.push(item.to_owned());
        } else if let Some(back) = item.strip_prefix("L-") {
            match number(back) {
                Some(back @ 1..=30) => read.before_last.push(back),
                Some(_) => return Err(reject::last_out_of_range(field, item)),
                None => return Err(reject::bad_item(field, item)),
            }
        } else if let Some(day) = item.strip_suffix('W') {
            nearest.push(format!("{}W", field.value(day, item)?));
        } else {
            read.starred |= field.item(item, &mut plain)?;
        }
    }
    let days = (field.min..=field.max).filter(|day| plain.contains(*day));
    let listed: Vec<String> = days.map(|day| day.to_string()).chain(nearest).collect();
    if !listed.is_empty() {
        read.patterns.push(listed.join(","));
    }
    Ok(read)
}

fn days_of_week(text: &str) -> Result<DaysOfWeek, Rejected> {
    let (text, and) = text
        .strip_prefix('+')
        .map_or((text, false), |rest| (rest, true));
    if text == "*" {
        return Ok(DaysOfWeek {
            any: true,
            and,
            ..DaysOfWeek::default()
        });
    }
    let field = &DAY_OF_WEEK;
    let mut read = DaysOfWeek {
        and,
        ..DaysOfWeek::default()
    };
    let mut plain = Values::default();
    let mut listed = Vec::new();
    for item in field.items(text) {
        let item = item?;
        if let Some((day, nth)) = item.split_once('#') {
            let nth_is_known = matches!(nth, "1" | "2" | "3" | "4" | "5" | "L");
            if !nth_is_known || day.is_empty() || day.contains('-') {
                return Err(reject::bad_nth(field, item));
            }
            listed.push(format!("{}#{nth}", field.value(day, item)?));
        } else if item == "L" {
            return Err(reject::bare_last_weekday(field, item));
        } else if let Some(day) = item.strip_suffix('L') {
            listed.push(format!("{}#L", field.value(day, item)?));
        } else {
            read.starred |= field.item(item, &mut plain)?;
        }
    }
    let days = (field.min..=field.max).filter(|day| plain.contains(*day));
    listed.extend(days.map(|day| day.to_string()));
    read.patterns.push(listed.join(","));
    Ok(read)
}

/// Adds the days that one croner pattern matches, asking it about one real month of each shape.
fn add_matches(
    day_of_month: &str,
    day_of_week: &str,
    masks: &mut DayMasks,
) -> Result<(), Rejected> {
    // The one year keeps croner from filling a table of 5,000; its day match does not look at it.
    let text = format!("0 0 0 {day_of_month} * {day_of_week} {YEAR_MIN}");
    let refused = |cause| reject::day_pattern(&text, cause);
    let parser = CronParser::builder()
        .seconds(Seconds::Required)
        .year(Year::Required)
        .build();
    let pattern = parser.parse(&text).map_err(refused)?.pattern;
    for (mask, month) in masks.iter_mut().zip(EXAMPLES) {
        let (year, month_of_year) = calendar::year_month(month);
        for day in 1..=calendar::length(month) {
            let weekday = calendar::weekday(calendar::first_day(month) + day - 1);
            let weekday = Weekday::from_days_from_sunday(weekday);
            let matched = pattern.day_match(year.cast_signed(), month_of_year, day, weekday);
            if matched.map_err(refused)? {
                *mask |= 1 << day;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use chrono::{Datelike, NaiveDate, Weekday};

    use super::*;

    /// The matching days of one month.
    fn days(day_of_month: &str, day_of_week: &str, year: u32, month: u32) -> Vec<u32> {
        let index = (year - YEAR_MIN) * 12 + month - 1;
        let mask = masks(day_of_month, day_of_week).unwrap()[calendar::shape(index)];
        (1..=31).filter(|day| mask >> day & 1 == 1).collect()
    }

    #[test]
    fn nearest_weekday_stays_in_its_month() {
        assert_eq!(days("1W", "*", 2026, 8), [3], "1 August 2026 is a Saturday");
        assert_eq!(days("31W", "*", 2026, 5), [29], "31 May 2026 is a Sunday");
        assert_eq!(days("31W", "*", 2026, 4), [] as [u32; 0], "no 31 April");
        assert_eq!(days("15W", "*", 2026, 8), [14]);
    }

    #[test]
    fn last_day_items_do_not_disturb_each_other() {
        assert_eq!(days("L,15W", "*", 2026, 2), [16, 28], "not read as LW");
        assert_eq!(days("LW,15W", "*", 2026, 2), [16, 27]);
        assert_eq!(days("L,LW", "*", 2026, 2), [27, 28]);
        assert_eq!(days("L-2,1,L", "*", 2026, 2), [1, 26, 28]);
        assert_eq!(days("L-30", "*", 2026, 1), [1]);
        assert_eq!(days("L-30", "*", 2026, 2), [] as [u32; 0]);
    }

    #[test]
    fn weekday_items() {
        assert_eq!(days("*", "FRIL", 2026, 2), [27]);
        assert_eq!(days("*", "FRI#L", 2026, 2), [27]);
        assert_eq!(days("*", "7#2", 2026, 2), [8]);
        assert_eq!(
            days("*", "FRI#5,MON#1,0", 2026, 5),
            [3, 4, 10, 17, 24, 29, 31]
        );
        assert_eq!(days("*", "SAT-SUN", 2026, 2), [1, 7, 8, 14, 15, 21, 22, 28]);
        assert_eq!(days("13", "FRI", 2026, 2), [6, 13, 20, 27]);
        assert_eq!(days("12", "+FRI", 2026, 2), [] as [u32; 0]);
        assert_eq!(days("*/10", "+*", 2026, 2), [1, 11, 21]);
    }

    /// Last weekday, nth weekday and nearest weekday by counting through each month of 28 years.
    #[test]
    fn agrees_with_counting_days() {
        for month in 360..360 + 28 * 12 {
            let (year, month_of_year) = calendar::year_month(month);
            let date = |day| NaiveDate::from_ymd_opt(year.cast_signed(), month_of_year, day);
            let all: Vec<NaiveDate> = (1..=31).filter_map(date).collect();
            let working = |date: &&NaiveDate| date.weekday().number_from_monday() <= 5;
            let last_working = all.iter().rfind(working).unwrap().day();
            assert_eq!(days("LW", "*", year, month_of_year), [last_working]);
            for nth in 1..=5_usize {
                let tuesdays = all.iter().filter(|date| date.weekday() == Weekday::Tue);
                let expected: Vec<u32> =
                    tuesdays.map(Datelike::day).skip(nth - 1).take(1).collect();
                assert_eq!(
                    days("*", &format!("TUE#{nth}"), year, month_of_year),
                    expected
                );
            }
            for day in [1, 15, 30] {
                let distance = |date: &&NaiveDate| {
                    // The nearest working day of the same month; a tie cannot happen.
                    date.day().abs_diff(day)
                };
                let expected: Vec<u32> = date(day)
                    .and_then(|_| all.iter().filter(working).min_by_key(distance))
                    .map(|date| vec![date.day()])
                    .unwrap_or_default();
                assert_eq!(days(&format!("{day}W"), "*", year, month_of_year), expected);
            }
        }
    }
}
