//! What a ticker does with due instants: fire them, or account for those it came too late for.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::timing::Timing;

/// The misfire rule `fire_once`: after an outage the newest missed instant fires and stands for the
/// rest, which is recorded as one range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Misfire {
    /// How late the oldest unsettled instant may be for all to count as on time. Default 60 s.
    pub grace: Duration,
}

impl Default for Misfire {
    fn default() -> Self {
        Self {
            grace: Duration::from_mins(1),
        }
    }
}

/// Instants that were passed without a fire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissedRange {
    /// The first missed instant.
    pub from: DateTime<Utc>,
    /// The last missed instant.
    pub until: DateTime<Utc>,
    /// Exactly how many there are from the first to the last, both included.
    pub count: u64,
}

/// One move of a schedule's cursor. Every instant between the old cursor and the new one is a fire
/// or inside the range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Instants to fire, oldest first.
    pub fires: Vec<DateTime<Utc>>,
    /// Instants before the fires to record as misfired.
    pub misfired: Option<MissedRange>,
    /// The new cursor: the last instant settled, or the old cursor if none was due.
    pub cursor: DateTime<Utc>,
    /// The first instant after the new cursor: due already if `fires_max` cut the step short, `None`
    /// if the schedule has ended.
    pub next: Option<DateTime<Utc>>,
}

/// Settles the instants in `(cursor, now]`, at most `fires_max` of them as fires (0 settles none).
///
/// With the oldest one at most `grace` late each fires on its own; otherwise only the newest does
/// and the older ones become one range, whatever their number.
#[must_use]
pub fn step(
    timing: &Timing,
    cursor: DateTime<Utc>,
    now: DateTime<Utc>,
    misfire: &Misfire,
    fires_max: usize,
) -> Step {
    let next = timing.next_after(cursor);
    let Some(first) = next.filter(|first| *first <= now && fires_max > 0) else {
        return Step {
            fires: Vec::new(),
            misfired: None,
            cursor,
            next,
        };
    };
    let late = now.signed_duration_since(first);
    if TimeDelta::from_std(misfire.grace).is_ok_and(|grace| late > grace) {
        return settle_late(timing, cursor, first, now);
    }
    let mut fires = vec![first];
    let mut cursor = first;
    let mut next = timing.next_after(cursor);
    while let Some(due) = next.filter(|due| *due <= now && fires.len() < fires_max) {
        fires.push(due);
        cursor = due;
        next = timing.next_after(cursor);
    }
    Step {
        fires,
        misfired: None,
        cursor,
        next,
    }
}

/// One fire at the newest instant; `first` is the oldest unsettled one, and due.
fn settle_late(
    timing: &Timing,
    cursor: DateTime<Utc>,
    first: DateTime<Utc>,
    now: DateTime<Utc>,
) -> Step {
    let newest = timing.last_at_or_before(now, cursor).unwrap_or(first);
    let before_newest = newest - TimeDelta::nanoseconds(1);
    let misfired = timing
        .last_at_or_before(before_newest, cursor)
        .map(|until| MissedRange {
            from: first,
            until,
            count: timing.count(cursor, until),
        });
    Step {
        fires: vec![newest],
        misfired,
        cursor: newest,
        next: timing.next_after(newest),
    }
}
