//! A slow second opinion: fires by listing, straight from the words of the rule.

use std::collections::BTreeSet;

use chrono::{DateTime, Datelike, Days, MappedLocalTime, TimeDelta, TimeZone, Timelike, Utc};
use chrono_tz::Tz;

/// Grid of the listing; all offsets and seconds used are multiples of it.
const GRID_S: i64 = 30;

/// A schedule as sets.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) seconds: BTreeSet<u32>,
    pub(crate) minutes: BTreeSet<u32>,
    pub(crate) hours: BTreeSet<u32>,
    pub(crate) days_of_month: Option<BTreeSet<u32>>,
    pub(crate) days_of_week: Option<BTreeSet<u32>>,
    pub(crate) both_days: bool,
}

fn list(values: &BTreeSet<u32>) -> String {
    values
        .iter()
        .map(u32::to_string)
        .collect::<Vec<_>>()
        .join(",")
}

impl Spec {
    pub(crate) fn expression(&self) -> String {
        let days_of_month = self.days_of_month.as_ref().map_or("*".to_owned(), list);
        let days_of_week = self.days_of_week.as_ref().map_or("*".to_owned(), list);
        let plus = if self.both_days { "+" } else { "" };
        let (seconds, minutes, hours) =
            (list(&self.seconds), list(&self.minutes), list(&self.hours));
        format!("{seconds} {minutes} {hours} {days_of_month} * {plus}{days_of_week}")
    }

    fn has_day(&self, date: &impl Datelike) -> bool {
        let by_month = self
            .days_of_month
            .as_ref()
            .map(|days| days.contains(&date.day()));
        let weekday = date.weekday().num_days_from_sunday();
        let by_week = self
            .days_of_week
            .as_ref()
            .map(|days| days.contains(&weekday));
        match (by_month, by_week) {
            (Some(month), Some(week)) if self.both_days => month && week,
            (Some(month), Some(week)) => month || week,
            (month, week) => month.or(week).unwrap_or(true),
        }
    }

    /// All fires in `[from, until]`.
    pub(crate) fn fires(
        &self,
        zone: Tz,
        from: DateTime<Utc>,
        until: DateTime<Utc>,
    ) -> BTreeSet<DateTime<Utc>> {
        if self.hours.len() == 24 {
            self.interval_fires(zone, from, until)
        } else {
            self.pinned_fires(zone, from, until)
        }
    }

    fn interval_fires(
        &self,
        zone: Tz,
        from: DateTime<Utc>,
        until: DateTime<Utc>,
    ) -> BTreeSet<DateTime<Utc>> {
        grid(from, until)
            .filter(|instant| {
                let local = instant.with_timezone(&zone);
                self.seconds.contains(&local.second())
                    && self.minutes.contains(&local.minute())
                    && self.has_day(&local)
            })
            .collect()
    }

    fn pinned_fires(
        &self,
        zone: Tz,
        from: DateTime<Utc>,
        until: DateTime<Utc>,
    ) -> BTreeSet<DateTime<Utc>> {
        // (first instant after the gap, first missing local time, first local time after it)
        let gaps: Vec<_> = grid(from - TimeDelta::days(2), until + TimeDelta::days(2))
            .filter_map(|instant| {
                let before = (instant - TimeDelta::seconds(GRID_S))
                    .with_timezone(&zone)
                    .naive_local();
                let missing = before + TimeDelta::seconds(GRID_S);
                let after = instant.with_timezone(&zone).naive_local();
                (after > missing).then_some((instant, missing, after))
            })
            .collect();
        let mut fires = BTreeSet::new();
        let mut date = from.date_naive() - Days::new(2);
        while date <= until.date_naive() + Days::new(2) {
            let times = self.hours.iter().flat_map(|hour| {
                let minutes = self.minutes.iter();
                minutes
                    .flat_map(move |minute| self.seconds.iter().map(move |s| (*hour, *minute, *s)))
            });
            for (hour, minute, second) in times.filter(|_| self.has_day(&date)) {
                let Some(wall) = date.and_hms_opt(hour, minute, second) else {
                    continue;
                };
                match zone.from_local_datetime(&wall) {
                    MappedLocalTime::Single(at) | MappedLocalTime::Ambiguous(at, _) => {
                        fires.insert(at.with_timezone(&Utc));
                    }
                    MappedLocalTime::None => {
                        let gap = gaps
                            .iter()
                            .find(|(_, missing, after)| (*missing..*after).contains(&wall));
                        fires.extend(gap.and_then(|(instant, missing, after)| {
                            (*after - *missing <= TimeDelta::hours(3)).then_some(*instant)
                        }));
                    }
                }
            }
            date = date + Days::new(1);
        }
        fires
            .into_iter()
            .filter(|at| (from..=until).contains(at))
            .collect()
    }
}

fn grid(from: DateTime<Utc>, until: DateTime<Utc>) -> impl Iterator<Item = DateTime<Utc>> {
    let first = from.timestamp().div_euclid(GRID_S) * GRID_S;
    (first..=until.timestamp())
        .step_by(30)
        .filter_map(|second| DateTime::from_timestamp(second, 0))
        .filter(move |instant| *instant >= from)
}
