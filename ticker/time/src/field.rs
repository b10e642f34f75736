//! The fields that every cron dialect shares: numbers, names, ranges, steps and lists.
//!
//! Stricter than croner on purpose: see the refusals in `reject`.

use crate::reject::{self, Rejected};

const MONTHS: [&str; 12] = [
    "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// One column of an expression.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) min: u32,
    pub(crate) max: u32,
    /// Last value of `*`; below `max` only for weekdays, where 7 is Sunday again.
    pub(crate) star_max: u32,
    /// Unit of an `every` interval that says what an oversized step meant.
    pub(crate) unit: Option<&'static str>,
    /// What may be written, for remedies.
    pub(crate) grammar: &'static str,
    /// Names of the values from `min` on.
    names: &'static [&'static str],
}

pub(crate) const SECOND: Field = Field {
    name: "seconds",
    min: 0,
    max: 59,
    star_max: 59,
    unit: Some("s"),
    grammar: "0 to 59, *, ranges 0-30, steps */15 and lists 0,30",
    names: &[],
};
pub(crate) const MINUTE: Field = Field {
    name: "minutes",
    min: 0,
    max: 59,
    star_max: 59,
    unit: Some("m"),
    grammar: "0 to 59, *, ranges 0-30, steps */15 and lists 0,30",
    names: &[],
};
pub(crate) const HOUR: Field = Field {
    name: "hours",
    min: 0,
    max: 23,
    star_max: 23,
    unit: Some("h"),
    grammar: "0 to 23, *, ranges 9-17, steps */2 and lists 9,17",
    names: &[],
};
pub(crate) const DAY_OF_MONTH: Field = Field {
    name: "day-of-month",
    min: 1,
    max: 31,
    star_max: 31,
    unit: Some("d"),
    grammar: "1 to 31, *, ?, ranges 1-7, steps */2, lists 1,15, L, L-2, LW and 15W",
    names: &[],
};
pub(crate) const MONTH: Field = Field {
    name: "months",
    min: 1,
    max: 12,
    star_max: 12,
    unit: None,
    grammar: "1 to 12, JAN to DEC, *, ranges 1-6, steps */3 and lists 1,7",
    names: &MONTHS,
};
pub(crate) const DAY_OF_WEEK: Field = Field {
    name: "day-of-week",
    min: 0,
    max: 7,
    star_max: 6,
    unit: None,
    grammar: "0 to 7, SUN to SAT, *, ?, ranges MON-FRI, lists MON,FRI, MON#2, FRIL, \
              and a leading + to require both day fields",
    names: &WEEKDAYS,
};
pub(crate) const YEAR: Field = Field {
    name: "years",
    min: 1970,
    max: 2199,
    star_max: 2199,
    unit: None,
    grammar: "1970 to 2199, *, ranges 2027-2030, steps */2 and lists 2027,2029",
    names: &[],
};

/// A set of values of one field: 1 bit each, counted from `Field::base`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Values([u64; 4]);

impl Values {
    pub(crate) fn insert(&mut self, bit: u32) {
        self.0[(bit / 64) as usize] |= 1 << (bit % 64);
    }

    pub(crate) fn contains(&self, bit: u32) -> bool {
        self.0
            .get((bit / 64) as usize)
            .is_some_and(|word| word >> (bit % 64) & 1 == 1)
    }

    /// The first 64 values, which are all of them for every field but the year.
    pub(crate) const fn low(&self) -> u64 {
        self.0[0]
    }
}

impl Field {
    /// The value that bit 0 stands for.
    pub(crate) const fn base(&self) -> u32 {
        if self.min > 63 { self.min } else { 0 }
    }

    /// Reads a whole field of lists, ranges and steps.
    pub(crate) fn values(&self, text: &str) -> Result<Values, Rejected> {
        let mut values = Values::default();
        for item in self.items(text) {
            self.item(item?, &mut values)?;
        }
        Ok(values)
    }

    /// The comma-separated items of a field, none of them empty.
    pub(crate) fn items<'a>(
        &'a self,
        text: &'a str,
    ) -> impl Iterator<Item = Result<&'a str, Rejected>> {
        text.split(',').map(move |item| {
            if item.is_empty() {
                Err(reject::empty_list_item(self, text))
            } else {
                Ok(item)
            }
        })
    }

    /// Reads `*`, `a`, `a-b`, `*/n` or `a-b/n`; true if it began with a star.
    pub(crate) fn item(&self, item: &str, values: &mut Values) -> Result<bool, Rejected> {
        let (body, step) = match item.split_once('/') {
            Some((body, step)) => (body, Some(self.step(step, item)?)),
            None => (item, None),
        };
        let starred = body == "*";
        let (low, high) = if starred {
            (self.min, self.star_max)
        } else if let Some((low, high)) = body.split_once('-') {
            self.range(low, high, item)?
        } else {
            let value = self.value(body, item)?;
            if let Some(step) = step {
                return Err(reject::bare_start_step(self, item, value, step));
            }
            (value, value)
        };
        let step = step.unwrap_or(1);
        if step > 1 && step > high - low {
            return Err(reject::step_too_large(self, item, step, high - low));
        }
        let mut value = low;
        while value <= high {
            values.insert(value - self.base());
            value += step;
        }
        Ok(starred)
    }

    /// Reads one number or name.
    pub(crate) fn value(&self, token: &str, item: &str) -> Result<u32, Rejected> {
        if let Some(value) = number(token) {
            let in_range = (self.min..=self.max).contains(&value);
            return if in_range {
                Ok(value)
            } else {
                Err(reject::out_of_range(self, item))
            };
        }
        (self.min..)
            .zip(self.names)
            .find_map(|(value, name)| (*name == token).then_some(value))
            .ok_or_else(|| reject::bad_item(self, item))
    }

    fn range(&self, low: &str, high: &str, item: &str) -> Result<(u32, u32), Rejected> {
        let start = self.value(low, item)?;
        let mut end = self.value(high, item)?;
        // Sunday ends a week as well as it begins one: SAT-SUN is two days.
        if high == WEEKDAYS[0] {
            if start == 0 {
                return Err(reject::sunday_to_sunday(self, item));
            }
            end = self.max;
        }
        if start > end {
            return Err(reject::wrapped_range(self, item, start, end));
        }
        Ok((start, end))
    }

    fn step(&self, text: &str, item: &str) -> Result<u32, Rejected> {
        match number(text) {
            Some(0) => Err(reject::step_zero(self, item)),
            Some(step) => Ok(step),
            None => Err(reject::bad_item(self, item)),
        }
    }
}

/// A plain decimal number; one too large for the type is as out of range as any other.
pub(crate) fn number(token: &str) -> Option<u32> {
    let digits = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| token.parse().unwrap_or(u32::MAX))
}
