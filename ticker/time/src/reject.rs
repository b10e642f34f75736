//! Every refusal of a schedule: its stable code, what is wrong, and what to write instead.

use std::fmt::Display;

use serde::Serialize;

use crate::field::Field;

/// A refused expression, zone or interval.
///
/// `code` is stable and meant for programs: `bare_start_step`, `step_too_large`,
/// `ambiguous_day_fields`, `wrapped_range`, `bare_L_in_dow`, `empty_list_item`, `step_zero`,
/// `out_of_range`, `bad_character`, `too_long`, `unknown_nickname`, `field_count`, `bad_nth`,
/// `never_fires`, `unknown_zone`, `bad_interval`. Displayed as one line: message, then remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{message}: {remedy}")]
pub struct Rejected {
    /// Stable identifier of the rule that refused it.
    pub code: &'static str,
    /// What is wrong, naming the field and the offending text.
    pub message: String,
    /// What to write instead.
    pub remedy: String,
}

fn rejected(code: &'static str, message: impl Into<String>, remedy: impl Into<String>) -> Rejected {
    Rejected {
        code,
        message: message.into(),
        remedy: remedy.into(),
    }
}

/// User text made safe for one line of output: escaped, at most 60 characters.
fn shown(text: &str) -> String {
    const SHOWN_MAX: usize = 60;
    let mut short: String = text
        .chars()
        .take(SHOWN_MAX)
        .flat_map(char::escape_default)
        .collect();
    if text.chars().nth(SHOWN_MAX).is_some() {
        short.push('…');
    }
    format!("`{short}`")
}

fn at(field: &Field, item: &str) -> String {
    format!("{} in the {} field", shown(item), field.name)
}

pub(crate) fn too_long(chars: usize, chars_max: usize) -> Rejected {
    rejected(
        "too_long",
        format!("the expression has {chars} characters, more than {chars_max}"),
        "use ranges and steps instead of long lists, or several schedules",
    )
}

pub(crate) fn not_ascii(found: char) -> Rejected {
    rejected(
        "bad_character",
        format!("the expression contains the character {found:?}"),
        "write digits, English names and * , - / ? # + L W, separated by spaces",
    )
}

pub(crate) fn bad_item(field: &Field, item: &str) -> Rejected {
    rejected(
        "bad_character",
        format!("{} is not understood", at(field, item)),
        format!("write {}", field.grammar),
    )
}

/// croner refused text that our own reading had accepted.
pub(crate) fn day_pattern(text: &str, cause: impl Display) -> Rejected {
    rejected(
        "bad_character",
        format!(
            "the day pattern {} cannot be matched ({cause})",
            shown(text)
        ),
        "write the days as a plain list such as 1,15 or MON,FRI",
    )
}

pub(crate) fn unknown_nickname(expr: &str) -> Rejected {
    let remedy = if expr.to_ascii_lowercase().starts_with("@every") {
        "use an interval schedule such as every 15m instead of a cron expression"
    } else if expr.eq_ignore_ascii_case("@reboot") {
        "a schedule has no boot to wait for; submit the job when the program starts"
    } else {
        "use @yearly, @annually, @monthly, @weekly, @daily, @midnight or @hourly"
    };
    rejected(
        "unknown_nickname",
        format!("{} is not a known nickname", shown(expr)),
        remedy,
    )
}

pub(crate) fn field_count(count: usize) -> Rejected {
    rejected(
        "field_count",
        format!(
            "the expression has {count} field{}, not 5, 6 or 7",
            if count == 1 { "" } else { "s" }
        ),
        "write [second] minute hour day-of-month month day-of-week [year], \
         for example 0 2 * * * for daily at 02:00",
    )
}

pub(crate) fn empty_list_item(field: &Field, text: &str) -> Rejected {
    let filled: Vec<&str> = text.split(',').filter(|item| !item.is_empty()).collect();
    let fixed = if filled.is_empty() {
        "*".to_owned()
    } else {
        filled.join(",")
    };
    rejected(
        "empty_list_item",
        format!("{} has an empty list item", at(field, text)),
        format!("write {fixed}"),
    )
}

pub(crate) fn out_of_range(field: &Field, item: &str) -> Rejected {
    rejected(
        "out_of_range",
        format!("{} is out of range", at(field, item)),
        format!("write values from {} to {}", field.min, field.max),
    )
}

pub(crate) fn last_out_of_range(field: &Field, item: &str) -> Rejected {
    rejected(
        "out_of_range",
        format!("{} is out of range", at(field, item)),
        "write L for the last day of the month, or L-1 to L-30 for days before it",
    )
}

pub(crate) fn step_zero(field: &Field, item: &str) -> Rejected {
    let start = item.split('/').next().unwrap_or(item);
    rejected(
        "step_zero",
        format!("{} has a step of zero", at(field, item)),
        format!("write {start} for every value, or a step of at least 1"),
    )
}

pub(crate) fn step_too_large(field: &Field, item: &str, step: u32, step_max: u32) -> Rejected {
    let largest = step_max.max(1);
    let remedy = match field.unit {
        Some(unit) => {
            format!("use every {step}{unit} for a steady interval, or a step of at most {largest}")
        }
        None => format!("use a step of at most {largest}, or name the values"),
    };
    rejected(
        "step_too_large",
        format!(
            "{} steps past the end, so only its first value would ever match",
            at(field, item)
        ),
        remedy,
    )
}

pub(crate) fn bare_start_step(field: &Field, item: &str, start: u32, step: u32) -> Rejected {
    let end = field.star_max.max(start);
    let remedy = if step > end - start {
        format!("write {start}, the only value it reaches")
    } else {
        format!("write {start}-{end}/{step} to step from {start}, or {start} for that value alone")
    };
    rejected(
        "bare_start_step",
        format!(
            "{} has a step after a single value, which schedulers read differently",
            at(field, item)
        ),
        remedy,
    )
}

pub(crate) fn wrapped_range(field: &Field, item: &str, start: u32, end: u32) -> Rejected {
    rejected(
        "wrapped_range",
        format!("{} runs past the end of its field", at(field, item)),
        format!(
            "write {start}-{},{}-{end}",
            field.star_max.max(start),
            field.min
        ),
    )
}

pub(crate) fn sunday_to_sunday(field: &Field, item: &str) -> Rejected {
    rejected(
        "wrapped_range",
        format!(
            "{} is one day to some schedulers and the whole week to others",
            at(field, item)
        ),
        "write SUN for Sundays or * for every day",
    )
}

pub(crate) fn bare_last_weekday(field: &Field, item: &str) -> Rejected {
    rejected(
        "bare_L_in_dow",
        format!(
            "{} means Saturday to some schedulers and nothing to others",
            at(field, item)
        ),
        "write SAT for Saturdays, FRIL for the last Friday of the month, \
         or L in the day-of-month field for the last day",
    )
}

pub(crate) fn bad_nth(field: &Field, item: &str) -> Rejected {
    let day = item
        .split('#')
        .next()
        .filter(|day| !day.is_empty() && !day.contains('-'));
    let day = day.unwrap_or("MON");
    rejected(
        "bad_nth",
        format!("{} does not name a weekday of the month", at(field, item)),
        format!("write {day}#1 to {day}#5, or {day}#L for the last one"),
    )
}

pub(crate) fn ambiguous_day_fields(day_of_month: &str, day_of_week: &str) -> Rejected {
    rejected(
        "ambiguous_day_fields",
        format!(
            "day of month {} with weekday {} needs both in some schedulers and either in others",
            shown(day_of_month),
            shown(day_of_week)
        ),
        format!(
            "write +{day_of_week} as the weekday to require both, \
             or list the days (1,3,5,…) to accept either"
        ),
    )
}

pub(crate) fn never_fires(expr: &str) -> Rejected {
    rejected(
        "never_fires",
        format!("{} names no instant from 1970 to 2199", shown(expr)),
        "name a day that exists in the months and years given, or L for the last day of the month",
    )
}

pub(crate) fn unknown_zone(zone: &str, meant: Option<&str>) -> Rejected {
    rejected(
        "unknown_zone",
        format!("{} is not an IANA time zone", shown(zone)),
        meant.map_or_else(
            || "use an IANA name such as Europe/Berlin, or UTC".to_owned(),
            |meant| format!("use {meant}"),
        ),
    )
}

pub(crate) fn bad_interval(shown_as: &str, why: &str) -> Rejected {
    rejected(
        "bad_interval",
        format!("the interval {} {why}", shown(shown_as)),
        "write a whole number and a unit from 1s to 36525d, such as 90s, 15m, 2h or 1d",
    )
}
