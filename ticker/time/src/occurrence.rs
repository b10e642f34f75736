//! Instants as people read them: local time, and where clock changes put them.

use chrono::{DateTime, MappedLocalTime, TimeZone, Utc};
use serde::{Deserialize, Serialize};

use crate::cron::Cron;
use crate::timing::Timing;

/// How a local time relates to a clock change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fold {
    /// The zone's clock shows this time once.
    Only,
    /// The clock shows this time twice and this is the first pass.
    First,
    /// The clock shows this time twice and this is the second pass.
    Second,
    /// The local times named fell into a gap; this is the first instant after it.
    Shifted,
}

impl Fold {
    /// `only`, `first`, `second` or `shifted`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Only => "only",
            Self::First => "first",
            Self::Second => "second",
            Self::Shifted => "shifted",
        }
    }
}

/// One instant of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Occurrence {
    /// The instant.
    pub scheduled_at: DateTime<Utc>,
    /// What the zone's clock shows then: `2026-03-29 03:00:00`. UTC for schedules without a zone,
    /// with a fraction only where there is one.
    pub local: String,
    /// The zone's offset then: `+02:00`.
    pub offset: String,
    /// Where a clock change put it.
    pub fold: Fold,
}

impl Timing {
    /// Describes `scheduled_at`, which must be an instant of this schedule.
    #[must_use]
    pub fn occurrence(&self, scheduled_at: DateTime<Utc>) -> Occurrence {
        match self {
            Self::Cron(cron) => occurrence(cron, scheduled_at),
            Self::Every { .. } | Self::At(_) => Occurrence {
                scheduled_at,
                local: scheduled_at.format("%Y-%m-%d %H:%M:%S%.f").to_string(),
                offset: "+00:00".to_owned(),
                fold: Fold::Only,
            },
        }
    }
}

fn occurrence(cron: &Cron, scheduled_at: DateTime<Utc>) -> Occurrence {
    let local = scheduled_at.with_timezone(&cron.tz());
    let fold = if cron.is_shifted(scheduled_at.timestamp()) {
        Fold::Shifted
    } else {
        match cron.tz().from_local_datetime(&local.naive_local()) {
            MappedLocalTime::Ambiguous(_, second) if second == scheduled_at => Fold::Second,
            MappedLocalTime::Ambiguous(..) => Fold::First,
            MappedLocalTime::Single(_) | MappedLocalTime::None => Fold::Only,
        }
    };
    Occurrence {
        scheduled_at,
        local: local.format("%Y-%m-%d %H:%M:%S%.f").to_string(),
        offset: local.format("%:z").to_string(),
        fold,
    }
}

/// The next `n` instants after `after`, fewer if the schedule ends. What the preview shows and what
/// the ticker fires come from the same [`Timing::next_after`].
#[must_use]
pub fn next_n(timing: &Timing, after: DateTime<Utc>, n: usize) -> Vec<Occurrence> {
    let first = timing.next_after(after);
    std::iter::successors(first, |last| timing.next_after(*last))
        .take(n)
        .map(|scheduled_at| timing.occurrence(scheduled_at))
        .collect()
}
