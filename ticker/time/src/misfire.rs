//! What a ticker does with due instants: fire them, or account for those it came too late for.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::timing::Timing;

/// When an instant counts as missed, and what becomes of it then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Misfire {
    /// How late an instant may be and still be on time; one that is later is missed.
    /// Default 60 s.
    pub grace: Duration,
    /// What fires of those that were missed. Default `fire_once`.
    pub policy: MisfirePolicy,
}

impl Default for Misfire {
    fn default() -> Self {
        Self {
            grace: Duration::from_mins(1),
            policy: MisfirePolicy::FireOnce,
        }
    }
}

/// What fires once an instant was missed; what does not is recorded as one range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MisfirePolicy {
    /// The newest due instant, missed or not, stands for all that are due.
    #[default]
    FireOnce,
    /// None of the missed ones; those on time fire.
    Skip,
    /// The newest few of the missed ones, oldest first; then those on time.
    CatchUp {
        /// Most of them, at least 1.
        max: u32,
        /// None that lies longer ago than this. One that is not longer than the grace leaves none.
        window: Duration,
    },
}

impl MisfirePolicy {
    /// `fire_once`, `skip` or `catch_up`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FireOnce => "fire_once",
            Self::Skip => "skip",
            Self::CatchUp { .. } => "catch_up",
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
/// While none is missed each fires on its own. Once one is, the policy says up to which instant
/// all are passed over, as one range; what is due after that fires, oldest first, and what
/// `fires_max` leaves is due at the next call.
///
/// # What the cursor carries
///
/// The answer is a function of the cursor and now, and the cursor is all that a later call, of
/// this process or another, gets to know. It stands behind the range at once, so no instant can
/// fall into a second one, and every instant is a fire or in exactly one range however often and
/// whenever the function is called.
///
/// A call judges anew what the one before left. What that one chose for a catch-up stays chosen as
/// long as planning is not slower than the schedule: the range has made room up to `max`, each
/// fire makes room for one more, and the oldest instant left is younger than the one that fired by
/// at least the time that has passed. Slower planning, and another outage amid the catch-up, mean
/// that instants were missed once more: the newest `max` count again, so a schedule cannot lag
/// behind by more and more.
#[must_use]
pub fn step(
    timing: &Timing,
    cursor: DateTime<Utc>,
    now: DateTime<Utc>,
    misfire: &Misfire,
    fires_max: usize,
) -> Step {
    let misfired = if fires_max == 0 {
        None
    } else {
        passed_over(timing, cursor, now, misfire)
    };
    let mut fires = Vec::new();
    let mut cursor = misfired.as_ref().map_or(cursor, |range| range.until);
    let mut next = timing.next_after(cursor);
    while let Some(due) = next.filter(|due| *due <= now && fires.len() < fires_max) {
        fires.push(due);
        cursor = due;
        next = timing.next_after(cursor);
    }
    Step {
        fires,
        misfired,
        cursor,
        next,
    }
}

/// The instants after the cursor that the policy passes over, if any.
fn passed_over(
    timing: &Timing,
    cursor: DateTime<Utc>,
    now: DateTime<Utc>,
    misfire: &Misfire,
) -> Option<MissedRange> {
    let on_time_from = ago(now, misfire.grace)?;
    let newest_missed = timing.last_at_or_before(just_before(on_time_from), cursor)?;
    let until = match misfire.policy {
        MisfirePolicy::FireOnce => {
            let newest = timing.last_at_or_before(now, cursor)?;
            timing.last_at_or_before(just_before(newest), cursor)?
        }
        MisfirePolicy::Skip => newest_missed,
        MisfirePolicy::CatchUp { max, window } => {
            let window_from = ago(now, window).map_or(cursor, just_before);
            let from = window_from.max(cursor).min(newest_missed);
            let behind = newest(timing, from, newest_missed, u64::from(max));
            timing.last_at_or_before(behind, cursor)?
        }
    };
    Some(MissedRange {
        from: timing.next_after(cursor)?,
        until,
        count: timing.count(cursor, until),
    })
}

/// A moment in `[from, until]` after which there are the newest `max` instants of
/// `(from, until]`, or all if there are no more. Found by halving: about 40 counts for a
/// century, whatever `max` is.
fn newest(timing: &Timing, from: DateTime<Utc>, until: DateTime<Utc>, max: u64) -> DateTime<Utc> {
    if timing.count(from, until) <= max {
        return from;
    }
    // After `too_early` there are more than `max`, after `found` no more than that. Instants are
    // at least a second apart, so a millisecond holds one at most.
    let (mut too_early, mut found) = (from, until);
    loop {
        let half = found.signed_duration_since(too_early) / 2;
        if half < TimeDelta::milliseconds(1) {
            return found;
        }
        let middle = too_early + half;
        if timing.count(middle, until) > max {
            too_early = middle;
        } else {
            found = middle;
        }
    }
}

/// `None` = before the calendar of chrono.
fn ago(now: DateTime<Utc>, span: Duration) -> Option<DateTime<Utc>> {
    now.checked_sub_signed(TimeDelta::from_std(span).ok()?)
}

fn just_before(instant: DateTime<Utc>) -> DateTime<Utc> {
    instant
        .checked_sub_signed(TimeDelta::nanoseconds(1))
        .unwrap_or(instant)
}
