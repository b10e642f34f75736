//! The laws, checked on a live ledger.
//!
//! Laws that are conditions on rows are queries (`sql/<dialect>/laws/`). Law 2 needs the
//! instants of a schedule, which no database can compute: its rows are read and judged here,
//! the same for both dialects.

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;
use uuid::Uuid;

use crate::Result;
use crate::schedules::Timing;

/// What an audit found for one law.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LawReport {
    /// Number of the law in `ARCHITECTURE.md`.
    pub law: u8,
    /// The law in one sentence.
    pub title: &'static str,
    /// Rows looked at; zero = the law was not exercised.
    pub looked_at: u64,
    /// Rows that break it.
    pub violations: u64,
    /// The first of them, each naming its row.
    pub examples: Vec<String>,
}

/// Most examples kept per law.
pub const EXAMPLES_MAX: usize = 20;

/// The audit.
#[async_trait::async_trait]
pub trait Audit {
    /// Checks every law whose subject exists, by number. Reads only; bounded examples.
    async fn audit(&self) -> Result<Vec<LawReport>>;
}

/// The laws in one sentence each; law `n` stands at `n - 1`.
pub(crate) const TITLES: [&str; 15] = [
    "one fire per instant of a schedule",
    "every instant up to the cursor is a fire or inside one recorded range; none is invented",
    "a planned fire has the executions 0..shard_total-1",
    "for every fire, shard_total is the number of its executions over all states",
    "no attempt is claimed after its execution's end",
    "generations have no gaps, the row's is the highest, an accepted result has that one",
    "claims of one execution do not overlap in database time",
    "charged attempts do not exceed max_attempts",
    "nothing keeps running on a lost session or past its deadline and grace",
    "due work is represented: an outbox row, or a dispatch neither lost nor left behind by its lane",
    "the outbox drains",
    "every fire was written inside the term it names; terms do not overlap",
    "no unknown execution older than 15 min without escalation",
    "nothing is claimed after a cancel request",
    "a workflow node starts only after its parents succeeded",
];

/// What law 2 needs to know of one schedule, live or deleted, all of one snapshot.
#[derive(Debug, Clone)]
pub(crate) struct ScheduleHistory {
    /// The schedule.
    pub(crate) id: Uuid,
    /// Its name.
    pub(crate) name: String,
    /// What its timing was: since when (exclusive) and what, oldest first; never empty.
    pub(crate) timings: Vec<(DateTime<Utc>, Timing)>,
    /// Nothing of it is older.
    pub(crate) created_at: DateTime<Utc>,
    /// From here on (exclusive) the history is complete.
    pub(crate) history_from: DateTime<Utc>,
    /// Up to here (inclusive) every instant is settled.
    pub(crate) cursor: DateTime<Utc>,
    /// Due instants of its fires of kind cron, every or at (manual ones are not instants). Those
    /// from `created_at` up to `history_from` are not judged.
    pub(crate) fires: Vec<DateTime<Utc>>,
    /// Recorded ranges without fires.
    pub(crate) ranges: Vec<Range>,
}

/// First and last instant (inclusive) and their number.
pub(crate) type Range = (DateTime<Utc>, DateTime<Utc>, u64);

/// Law 2. Looks at instants, fires and ranges; counts are computed, never enumerated, so a
/// year of seconds costs what one fire costs.
pub(crate) fn law_two(schedules: &[ScheduleHistory]) -> LawReport {
    let mut findings = Findings::default();
    for schedule in schedules {
        judge_schedule(schedule, &mut findings);
    }
    LawReport {
        law: 2,
        title: TITLES[1],
        looked_at: findings.looked_at,
        violations: findings.violations,
        examples: findings.examples,
    }
}

/// The report of a law from what its query found.
pub(crate) fn report(law: u8, looked_at: u64, violations: u64, examples: Vec<String>) -> LawReport {
    let title = TITLES[usize::from(law) - 1];
    LawReport {
        law,
        title,
        looked_at,
        violations,
        examples,
    }
}

#[derive(Debug, Default)]
struct Findings {
    looked_at: u64,
    violations: u64,
    examples: Vec<String>,
}

impl Findings {
    fn add(&mut self, schedule: &ScheduleHistory, what: &str) {
        self.violations += 1;
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(format!(
                "schedule {} ({}): {what}",
                schedule.id, schedule.name
            ));
        }
    }
}

/// A span of the history with one timing: `(after, until]`.
struct Segment {
    timing: Result<bellwether_time::Timing, bellwether_time::Rejected>,
    valid_from: DateTime<Utc>,
    after: DateTime<Utc>,
    until: DateTime<Utc>,
    /// Fires and ranges.
    rows: u64,
    /// Instants in them.
    settled: u64,
}

/// The history cut where the timing changed.
struct Segments(Vec<Segment>);

impl Segments {
    fn of(schedule: &ScheduleHistory) -> Self {
        let (begin, end) = (schedule.history_from, schedule.cursor);
        let inside = |at: DateTime<Utc>| at.min(end).max(begin);
        let timings = &schedule.timings;
        let segments = timings
            .iter()
            .enumerate()
            .map(|(at, (valid_from, timing))| {
                let next = timings.get(at + 1);
                Segment {
                    timing: timing.evaluate(),
                    valid_from: *valid_from,
                    // The oldest that is known stands for what was before it.
                    after: if at == 0 { begin } else { inside(*valid_from) },
                    until: next.map_or(end, |(valid_from, _)| inside(*valid_from)),
                    rows: 0,
                    settled: 0,
                }
            });
        Self(segments.collect())
    }

    /// The place of the segment that an instant belongs to: the last that began before it.
    fn place(&self, at: DateTime<Utc>) -> usize {
        let begun = self.0.partition_point(|segment| segment.valid_from < at);
        begun.saturating_sub(1)
    }

    /// The timing that an instant is judged by, which has `instants` in one row there; none for
    /// a timing that this build refuses.
    fn settle(&mut self, at: DateTime<Utc>, instants: u64) -> Option<&bellwether_time::Timing> {
        let place = self.place(at);
        let segment = self.0.get_mut(place)?;
        segment.rows += 1;
        segment.settled += instants;
        segment.timing.as_ref().ok()
    }
}

fn judge_schedule(schedule: &ScheduleHistory, findings: &mut Findings) {
    let mut segments = Segments::of(schedule);
    let mut ranges = schedule.ranges.clone();
    ranges.sort_unstable();
    judge_fires(schedule, &ranges, &mut segments, findings);
    judge_ranges(schedule, &ranges, &mut segments, findings);
    for segment in &segments.0 {
        judge_sum(schedule, segment, findings);
    }
}

fn just_before(at: DateTime<Utc>) -> DateTime<Utc> {
    at - TimeDelta::milliseconds(1)
}

fn inside(schedule: &ScheduleHistory, at: DateTime<Utc>) -> bool {
    at > schedule.history_from && at <= schedule.cursor
}

fn judge_fires(
    schedule: &ScheduleHistory,
    ranges: &[Range],
    segments: &mut Segments,
    findings: &mut Findings,
) {
    let in_a_range = covered(ranges);
    for &fire in &schedule.fires {
        // Retention had to leave it, and moved the history past it.
        if fire > schedule.created_at && fire <= schedule.history_from {
            continue;
        }
        let Some(timing) = segments.settle(fire, 1) else {
            continue;
        };
        if timing.next_after(just_before(fire)) != Some(fire) {
            findings.add(schedule, &format!("fire at {fire} is no instant of it"));
        } else if !inside(schedule, fire) {
            findings.add(
                schedule,
                &format!("fire at {fire} lies outside its settled history"),
            );
        }
        if in_a_range(fire) {
            findings.add(
                schedule,
                &format!("fire at {fire} lies inside a range without fires"),
            );
        }
    }
}

fn judge_ranges(
    schedule: &ScheduleHistory,
    ranges: &[Range],
    segments: &mut Segments,
    findings: &mut Findings,
) {
    for (at, &(from, until, recorded)) in ranges.iter().enumerate() {
        let whole = segments.place(from) == segments.place(until);
        let Some(timing) = segments.settle(from, recorded) else {
            continue;
        };
        let counted = timing.count(just_before(from), until);
        if !whole {
            findings.add(
                schedule,
                &format!("range {from} to {until} reaches over a change of its timing"),
            );
        } else if counted != recorded {
            findings.add(
                schedule,
                &format!("range {from} to {until} says {recorded} instants and has {counted}"),
            );
        }
        if !inside(schedule, from) || !inside(schedule, until) {
            findings.add(
                schedule,
                &format!("range {from} to {until} lies outside its settled history"),
            );
        }
        if at > 0 && ranges[at - 1].1 >= from {
            findings.add(
                schedule,
                &format!("range {from} to {until} overlaps the one before it"),
            );
        }
    }
}

/// Every instant of a segment is settled. Its rows have been counted before.
fn judge_sum(schedule: &ScheduleHistory, segment: &Segment, findings: &mut Findings) {
    let Segment {
        after,
        until,
        rows,
        settled,
        ..
    } = *segment;
    match &segment.timing {
        Ok(timing) => {
            let expected = timing.count(after, until);
            findings.looked_at += expected.max(rows);
            if expected != settled {
                findings.add(
                    schedule,
                    &format!(
                        "{expected} instants in ({after}, {until}], but {settled} in fires and \
                         ranges"
                    ),
                );
            }
        }
        Err(rejected) => {
            findings.looked_at += rows;
            // Without rows nothing was planned by it: its fault is shown, no law is broken.
            if rows > 0 {
                findings.add(
                    schedule,
                    &format!("its {rows} rows after {after} cannot be judged: {rejected}"),
                );
            }
        }
    }
}

/// Whether an instant lies in one of the ranges, which are sorted; those that break the law may
/// overlap.
fn covered(ranges: &[Range]) -> impl Fn(DateTime<Utc>) -> bool {
    let latest_ends: Vec<DateTime<Utc>> = ranges
        .iter()
        .scan(DateTime::<Utc>::MIN_UTC, |latest, range| {
            *latest = range.1.max(*latest);
            Some(*latest)
        })
        .collect();
    move |at| {
        let begun = ranges.partition_point(|range| range.0 <= at);
        begun > 0 && latest_ends[begun - 1] >= at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_750_000_000 + seconds, 0).unwrap_or_default()
    }

    fn every(seconds: i64) -> Timing {
        Timing::Every {
            period_ms: seconds * 1_000,
            anchor: Some(at(0)),
        }
    }

    fn every_second() -> ScheduleHistory {
        ScheduleHistory {
            id: Uuid::from_u128(7),
            name: "tick".to_owned(),
            timings: vec![(at(0), every(1))],
            created_at: at(0),
            history_from: at(0),
            cursor: at(10),
            fires: (6..=10).map(at).collect(),
            ranges: vec![(at(1), at(5), 5)],
        }
    }

    #[test]
    fn a_complete_history_keeps_law_two() {
        let report = law_two(&[every_second()]);
        assert_eq!(
            (report.law, report.looked_at, report.violations),
            (2, 10, 0),
            "{report:?}"
        );
    }

    #[test]
    fn a_fire_that_retention_had_to_leave_is_no_part_of_the_history() {
        let mut shortened = every_second();
        shortened.history_from = at(8);
        shortened.ranges.clear();
        shortened.fires = vec![at(6), at(9), at(10)];
        let report = law_two(&[shortened.clone()]);
        assert_eq!((report.looked_at, report.violations), (2, 0), "{report:?}");
        // A range goes with what it lies before.
        shortened.ranges = vec![(at(7), at(8), 2)];
        assert!(law_two(&[shortened]).violations > 0);
    }

    #[test]
    fn a_fire_from_before_its_schedule_is_no_leaving_of_retention() {
        let mut shortened = every_second();
        shortened.history_from = at(8);
        shortened.ranges.clear();
        for fire in [at(0), at(-3)] {
            shortened.fires = vec![fire, at(6), at(9), at(10)];
            let report = law_two(&[shortened.clone()]);
            let named = format!("fire at {fire} ");
            assert!(
                report
                    .examples
                    .iter()
                    .any(|example| example.contains(&named)),
                "{report:?}"
            );
        }
    }

    #[test]
    fn law_two_names_what_is_missing_invented_or_doubled() {
        type Break = fn(&mut ScheduleHistory);
        let breaks: [(&str, Break); 7] = [
            ("but 9 in fires", |schedule| schedule.fires.truncate(4)),
            ("is no instant", |schedule| {
                schedule.fires[0] += TimeDelta::milliseconds(500);
            }),
            ("outside its settled history", |schedule| {
                schedule.fires[0] = at(11);
            }),
            ("inside a range", |schedule| schedule.fires[0] = at(3)),
            ("says 4 instants and has 5", |schedule| {
                schedule.ranges[0].2 = 4;
            }),
            ("overlaps", |schedule| {
                schedule.ranges.push((at(5), at(6), 2));
            }),
            // Behind a short range that begins later, inside a long one.
            (
                "fire at 2025-06-15 15:06:47 UTC lies inside a range",
                |schedule| {
                    schedule.ranges = vec![(at(1), at(8), 8), (at(2), at(3), 2)];
                },
            ),
        ];
        for (text, break_it) in breaks {
            let mut schedule = every_second();
            break_it(&mut schedule);
            let report = law_two(&[schedule]);
            assert!(report.violations > 0, "{text}");
            assert!(
                report.examples.iter().any(|example| example.contains(text)),
                "{report:?}"
            );
            assert!(report.examples[0].contains("tick"), "{report:?}");
        }
    }
    /// Every second, paused after 2, resumed at 5; from the middle of 7 on every two seconds,
    /// with the last second before that edited over.
    fn edited() -> ScheduleHistory {
        let edit = at(7) + TimeDelta::milliseconds(500);
        ScheduleHistory {
            timings: vec![(at(0), every(1)), (edit, every(2))],
            cursor: at(13),
            fires: [1, 2, 6, 8, 10, 12].map(at).to_vec(),
            ranges: vec![(at(3), at(5), 3), (at(7), at(7), 1)],
            ..every_second()
        }
    }

    #[test]
    fn each_segment_is_judged_by_its_own_timing() {
        let mut twice = edited();
        // Another edit in the same millisecond: what it replaced was valid for nothing.
        twice.timings.insert(1, (twice.timings[1].0, every(60)));
        // The history before 5 was given up.
        let mut shortened = edited();
        shortened.history_from = at(5);
        shortened.fires.drain(..2);
        shortened.ranges.remove(0);
        let mut only_the_new = edited();
        only_the_new.history_from = at(9);
        only_the_new.fires = [10, 12].map(at).to_vec();
        only_the_new.ranges.clear();
        for (history, looked_at) in [
            (edited(), 10),
            (twice, 10),
            (shortened, 5),
            (only_the_new, 2),
        ] {
            let report = law_two(&[history]);
            assert_eq!(
                (report.looked_at, report.violations),
                (looked_at, 0),
                "{report:?}"
            );
        }
    }

    #[test]
    fn law_two_names_what_an_edit_lost_or_left_running() {
        type Break = fn(&mut ScheduleHistory);
        let breaks: [(&str, Break); 5] = [
            ("is no instant", |schedule| schedule.fires[3] = at(9)),
            ("7 instants in", |schedule| {
                schedule.ranges.pop();
            }),
            ("reaches over a change", |schedule| {
                schedule.fires.retain(|fire| *fire != at(8));
                schedule.ranges[1] = (at(7), at(8), 2);
            }),
            ("but 4 in fires", |schedule| {
                schedule.ranges.remove(0);
            }),
            // A timing that no build can judge, and fires that were planned by it.
            ("its 3 rows after", |schedule| {
                schedule.timings[1].1 = Timing::Cron {
                    expr: "never".to_owned(),
                    zone: "UTC".to_owned(),
                };
            }),
        ];
        for (text, break_it) in breaks {
            let mut schedule = edited();
            break_it(&mut schedule);
            let report = law_two(&[schedule]);
            assert!(
                report.examples.iter().any(|example| example.contains(text)),
                "{text}: {report:?}"
            );
        }
    }
}
