//! An expression as text: its characters, nicknames and the number of its fields.

use crate::reject::{self, Rejected};

/// Longest expression, in characters.
const CHARS_MAX: usize = 256;

/// An expression cut into its seven fields, those not given filled in.
#[derive(Debug)]
pub(crate) struct Expression {
    /// The fields that were given, in the form to store and show.
    pub(crate) canonical: String,
    /// Second, minute, hour, day of month, month, day of week, year: upper case, `?` as `*`.
    pub(crate) fields: [String; 7],
}

impl Expression {
    pub(crate) fn read(text: &str) -> Result<Self, Rejected> {
        let chars = text.chars().count();
        if chars > CHARS_MAX {
            return Err(reject::too_long(chars, CHARS_MAX));
        }
        if let Some(found) = text
            .chars()
            .find(|c| !(c.is_ascii_graphic() || matches!(c, ' ' | '\t')))
        {
            return Err(reject::not_ascii(found));
        }
        let text = if text.trim().starts_with('@') {
            nickname(text.trim())?
        } else {
            text
        };
        let mut fields: Vec<String> = text
            .split_ascii_whitespace()
            .map(str::to_ascii_uppercase)
            .collect();
        let given = fields.len();
        if !(5..=7).contains(&given) {
            return Err(reject::field_count(given));
        }
        if given == 5 {
            fields.insert(0, "0".to_owned());
        }
        if given < 7 {
            fields.push("*".to_owned());
        }
        let mut fields: [String; 7] = fields
            .try_into()
            .map_err(|fields: Vec<String>| reject::field_count(fields.len()))?;
        for day_field in [3, 5] {
            match fields[day_field].as_str() {
                "?" => "*".clone_into(&mut fields[day_field]),
                "+?" => "+*".clone_into(&mut fields[day_field]),
                _ => {}
            }
        }
        let shown = match given {
            5 => &fields[1..6],
            6 => &fields[..6],
            _ => &fields[..],
        };
        Ok(Self {
            canonical: shown.join(" "),
            fields,
        })
    }
}

fn nickname(text: &str) -> Result<&'static str, Rejected> {
    match text.to_ascii_lowercase().as_str() {
        "@yearly" | "@annually" => Ok("0 0 1 1 *"),
        "@monthly" => Ok("0 0 1 * *"),
        "@weekly" => Ok("0 0 * * SUN"),
        "@daily" | "@midnight" => Ok("0 0 * * *"),
        "@hourly" => Ok("0 * * * *"),
        _ => Err(reject::unknown_nickname(text)),
    }
}
