//! The three kinds of schedule behind one set of questions.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::cron::Cron;
use crate::interval::{PERIOD_MIN, check_period};
use crate::reject::Rejected;
use crate::zone::instant;

/// When a schedule fires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Timing {
    /// At the local date-times of an expression; instants are whole seconds from 1970 to 2199.
    Cron(Cron),
    /// At `anchor + k × period` for k = 0, 1, 2, …: independent of zones, without drift.
    Every {
        /// The first instant.
        anchor: DateTime<Utc>,
        /// Distance of two instants, in whole milliseconds (parts of one are ignored) and at least
        /// [`PERIOD_MIN`] (a shorter one is taken as that); [`Timing::every`] checks it.
        period: Duration,
    },
    /// Once.
    At(DateTime<Utc>),
}

impl Timing {
    /// An interval schedule with a checked period.
    ///
    /// # Errors
    ///
    /// `bad_interval` for a period below [`PERIOD_MIN`] or above [`crate::PERIOD_MAX`].
    pub fn every(anchor: DateTime<Utc>, period: Duration) -> Result<Self, Rejected> {
        let period = check_period(period, &format!("{period:?}"))?;
        Ok(Self::Every { anchor, period })
    }

    /// The least instant after `after`; `None` when the schedule has ended.
    #[must_use]
    pub fn next_after(&self, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
        match self {
            Self::Cron(cron) => cron.next_second(after.timestamp() + 1).map(instant),
            Self::Every { anchor, period } => {
                let series = Series::new(*anchor, *period);
                series.instant(series.up_to(after))
            }
            Self::At(at) => (*at > after).then_some(*at),
        }
    }

    /// The newest instant in `(after, at]`, found by seeking.
    #[must_use]
    pub fn last_at_or_before(
        &self,
        at: DateTime<Utc>,
        after: DateTime<Utc>,
    ) -> Option<DateTime<Utc>> {
        match self {
            Self::Cron(cron) => cron
                .last_second(after.timestamp() + 1, at.timestamp())
                .map(instant),
            Self::Every { anchor, period } => {
                let series = Series::new(*anchor, *period);
                let number = series.up_to(at);
                (number > series.up_to(after))
                    .then(|| series.instant(number - 1))
                    .flatten()
            }
            Self::At(only) => (*only > after && *only <= at).then_some(*only),
        }
    }

    /// The exact number of instants in `(after, until]`, computed without listing them.
    #[must_use]
    pub fn count(&self, after: DateTime<Utc>, until: DateTime<Utc>) -> u64 {
        match self {
            Self::Cron(cron) => cron.count_seconds(after.timestamp() + 1, until.timestamp()),
            Self::Every { anchor, period } => {
                let series = Series::new(*anchor, *period);
                series.up_to(until).saturating_sub(series.up_to(after))
            }
            Self::At(at) => u64::from(*at > after && *at <= until),
        }
    }
}

/// `anchor + k × period`, numbered from 0.
struct Series {
    anchor: DateTime<Utc>,
    period_ms: u64,
}

impl Series {
    fn new(anchor: DateTime<Utc>, period: Duration) -> Self {
        let period = period.max(PERIOD_MIN);
        Self {
            anchor,
            period_ms: u64::try_from(period.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// How many instants are at or before `at`.
    fn up_to(&self, at: DateTime<Utc>) -> u64 {
        // Whole milliseconds since the anchor are enough: instants are whole milliseconds from it,
        // and before the anchor there is none.
        let Ok(elapsed_ms) =
            u64::try_from(at.signed_duration_since(self.anchor).num_milliseconds())
        else {
            return 0;
        };
        if at < self.anchor {
            0
        } else {
            elapsed_ms / self.period_ms + 1
        }
    }

    /// The instant with this number, unless it lies beyond the calendar of chrono.
    fn instant(&self, number: u64) -> Option<DateTime<Utc>> {
        let elapsed_ms = i64::try_from(number.checked_mul(self.period_ms)?).ok()?;
        self.anchor
            .checked_add_signed(TimeDelta::try_milliseconds(elapsed_ms)?)
    }
}
