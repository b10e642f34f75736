//! A parsed cron expression and the mapping of its walls to instants (the DST rule).
//!
//! Pinned schedules rest on one idea: the instant of a wall is the first instant at which the local
//! clock shows it *or has jumped over it*. That gives a repeated wall its first pass, gives a missing
//! wall the first instant after its gap, and keeps order, so walls that meet at one instant are one
//! fire. A gap of more than three hours swallows its walls.

use std::sync::Arc;

use chrono_tz::Tz;
use serde::{Deserialize, Serialize};

use crate::calendar::{DAY, DAYS};
use crate::day;
use crate::expression::Expression;
use crate::field::{HOUR, MINUTE, MONTH, SECOND, YEAR};
use crate::reject::{self, Rejected};
use crate::walls::Walls;
use crate::zone::{self, Piece, pieces};

/// Longest gap whose walls fire after it; longer ones are changes of zone or of the date line.
const GAP_SHIFTED_MAX: i64 = 3 * 3600;
/// UTC looked at in one turn of a search.
const WINDOW: i64 = 2 * DAY;
/// Turns of a search. A turn finds an instant, or jumps to the next matching day; only days inside
/// a long gap give a turn without either, so even 10 turns are never reached.
const TURNS_MAX: u32 = 1000;
/// First and last second of the search: the calendar, and a day more for offsets.
const FIRST: i64 = -DAY;
const END: i64 = (DAYS as i64 + 1) * DAY;
const ALL_HOURS: u64 = (1 << 24) - 1;

/// How a schedule behaves when the clocks change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// The hour field names all 24 hours, however written: every instant whose local time matches.
    /// Hours in a gap vanish, repeated hours fire again.
    Interval,
    /// Otherwise: every local date-time named fires exactly once. A repeated one on its first pass,
    /// one missing in a gap of at most 3 h at the first instant after it, one missing in a longer
    /// gap not at all.
    Pinned,
}

impl Class {
    /// `interval` or `pinned`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Interval => "interval",
            Self::Pinned => "pinned",
        }
    }
}

/// A cron expression in a zone, checked and ready to be evaluated. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cron {
    canonical: Arc<str>,
    zone: Tz,
    class: Class,
    walls: Arc<Walls>,
}

// === parsing ===

impl Cron {
    /// Reads `expr` (5 fields, 6 with leading seconds, 7 with a trailing year, or a nickname such
    /// as `@daily`) in the IANA zone `zone`.
    ///
    /// The result depends on nothing but the arguments and the compiled-in zone data: an expression
    /// whose years are over is accepted and has no next instant; `never_fires` means no instant from
    /// 1970 to 2199, which includes every run of 100 years that a schedule could wait for.
    ///
    /// # Errors
    ///
    /// [`Rejected`] with one of its codes, the expression's faults before the zone's.
    pub fn parse(expr: &str, zone: &str) -> Result<Self, Rejected> {
        let Expression { canonical, fields } = Expression::read(expr)?;
        let [second, minute, hour, day_of_month, month, day_of_week, year] = &fields;
        let walls = Walls {
            seconds: SECOND.values(second)?.low(),
            minutes: MINUTE.values(minute)?.low(),
            hours: HOUR.values(hour)?.low(),
            days: day::masks(day_of_month, day_of_week)?,
            months: MONTH.values(month)?.low(),
            years: YEAR.values(year)?,
        };
        let class = if walls.hours == ALL_HOURS {
            Class::Interval
        } else {
            Class::Pinned
        };
        let zone = zone::parse(zone)?;
        let cron = Self {
            canonical: canonical.into(),
            zone,
            class,
            walls: Arc::new(walls),
        };
        if cron.next_second(FIRST).is_none() {
            return Err(reject::never_fires(expr.trim()));
        }
        Ok(cron)
    }

    /// What the DST rule makes of it.
    #[must_use]
    pub const fn class(&self) -> Class {
        self.class
    }

    /// The expression to store and show: upper case, single spaces, nicknames written out, `?` as
    /// `*`, the fields that were given and no others. Parsing it gives the same schedule.
    #[must_use]
    pub fn canonical(&self) -> &str {
        &self.canonical
    }

    /// The zone's IANA name.
    #[must_use]
    pub fn zone(&self) -> &str {
        self.zone.name()
    }

    pub(crate) const fn tz(&self) -> Tz {
        self.zone
    }
}

// === searching ===

impl Cron {
    /// The earliest instant at or after `second`.
    pub(crate) fn next_second(&self, second: i64) -> Option<i64> {
        let mut from = second.max(FIRST);
        for _ in 0..TURNS_MAX {
            if from >= END {
                return None;
            }
            let until = from + WINDOW;
            if let Some(found) =
                pieces(self.zone, from, until).find_map(|piece| self.view(piece).first())
            {
                return Some(found);
            }
            // Offsets are shorter than a day, so what comes after has a wall after this.
            let wall = self.walls.next(until - DAY)?;
            from = until.max(wall - DAY);
        }
        None
    }

    /// The latest instant in `[low, high]`.
    pub(crate) fn last_second(&self, low: i64, high: i64) -> Option<i64> {
        let low = low.max(FIRST);
        let mut until = high.saturating_add(1).min(END);
        for _ in 0..TURNS_MAX {
            if until <= low {
                return None;
            }
            let from = low.max(until - WINDOW);
            let window: Vec<Piece> = pieces(self.zone, from, until).collect();
            if let Some(found) = window
                .into_iter()
                .rev()
                .find_map(|piece| self.view(piece).last())
            {
                return Some(found);
            }
            let wall = self.walls.last_before(from + DAY)?;
            until = from.min(wall + DAY + 1);
        }
        None
    }

    /// The number of instants in `[low, high]`.
    pub(crate) fn count_seconds(&self, low: i64, high: i64) -> u64 {
        let (from, until) = (low.max(FIRST), high.saturating_add(1).min(END));
        if from >= until {
            return 0;
        }
        pieces(self.zone, from, until)
            .map(|piece| self.view(piece).count())
            .sum()
    }

    /// Whether an instant of this schedule stands for walls in a gap before it and for no other.
    pub(crate) fn is_shifted(&self, second: i64) -> bool {
        pieces(self.zone, second, second + 1)
            .any(|piece| self.view(piece).shifts() && !self.walls.contains(second + piece.offset))
    }

    fn view(&self, piece: Piece) -> View<'_> {
        let first = piece.from + piece.offset;
        let low = match self.class {
            Class::Interval => first,
            Class::Pinned => first.max(piece.passed),
        };
        View {
            walls: &self.walls,
            class: self.class,
            piece,
            low,
            end: piece.until + piece.offset,
        }
    }
}

/// One schedule in one piece of constant offset: its instants are the walls in `[low, end)` moved
/// to UTC, and the piece's first second if it stands for walls in the gap before it.
struct View<'a> {
    walls: &'a Walls,
    class: Class,
    piece: Piece,
    low: i64,
    end: i64,
}

impl View<'_> {
    fn shifts(&self) -> bool {
        let (gap, end) = (self.piece.passed, self.piece.from + self.piece.offset);
        self.class == Class::Pinned
            && gap < end
            && end - gap <= GAP_SHIFTED_MAX
            && self.walls.next(gap).is_some_and(|wall| wall < end)
    }

    fn first(&self) -> Option<i64> {
        if self.shifts() {
            return Some(self.piece.from);
        }
        let wall = self.walls.next(self.low)?;
        (wall < self.end).then(|| wall - self.piece.offset)
    }

    fn last(&self) -> Option<i64> {
        let wall = self
            .walls
            .last_before(self.end)
            .filter(|wall| *wall >= self.low);
        wall.map(|wall| wall - self.piece.offset)
            .or_else(|| self.shifts().then_some(self.piece.from))
    }

    fn count(&self) -> u64 {
        let alone = self.shifts() && !self.walls.contains(self.low);
        self.walls.count(self.low, self.end) + u64::from(alone)
    }
}
