//! The misfire policies against their plain definitions, call after call while time moves on.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use bellwether_time::{Cron, Misfire, MisfirePolicy, Step, Timing, step};
use chrono::{DateTime, TimeDelta, Utc};
use proptest::prelude::*;
use proptest::sample::select;

/// Zones, and moments shortly before their clocks change.
const CHANGES: [(&str, &str); 6] = [
    ("Europe/Berlin", "2026-03-28T22:00:00Z"),
    ("Europe/Berlin", "2026-10-24T22:00:00Z"),
    ("America/New_York", "2026-11-01T04:30:00Z"),
    ("Australia/Lord_Howe", "2026-10-03T14:00:00Z"),
    ("Pacific/Apia", "2011-12-30T08:00:00Z"),
    ("Africa/Cairo", "2026-04-23T20:30:00Z"),
];

/// From the densest to some that fire once or never within the hours looked at.
const EXPRESSIONS: [&str; 8] = [
    "* * * * * *",
    "*/7 * * * * *",
    "0,1,59 * * * * *",
    "* * * * *",
    "*/15 * * * *",
    "*/20 2 * * *",
    "30 2,3 * * *",
    "0 0 1 1 *",
];

/// Hours of instants that a case knows.
const HOURS: i64 = 9;

type Instant = DateTime<Utc>;

/// A schedule, and a moment near which it may be looked at.
fn timing() -> impl Strategy<Value = (Timing, Instant)> {
    let cron = (select(EXPRESSIONS.to_vec()), select(CHANGES.to_vec())).prop_map(
        |(expression, (zone, start))| {
            let cron = Cron::parse(expression, zone).unwrap();
            (Timing::Cron(cron), start.parse().unwrap())
        },
    );
    let start: Instant = "2026-01-01T00:00:00Z".parse().unwrap();
    let every = (
        -3_000_000_i64..3_000_000,
        prop_oneof![1_000_u64..3_000, 1_000_u64..4_000_000],
    )
        .prop_map(move |(anchor_ms, period_ms)| {
            let anchor = start + TimeDelta::milliseconds(anchor_ms);
            let period = Duration::from_millis(period_ms);
            (Timing::every(anchor, period).unwrap(), start)
        });
    let at = (0_i64..20_000_000_000).prop_map(move |us| {
        let at = start + TimeDelta::microseconds(us);
        (Timing::At(at), start)
    });
    prop_oneof![4 => cron, 3 => every, 1 => at]
}

fn misfire() -> impl Strategy<Value = Misfire> {
    let grace = prop_oneof![
        Just(Duration::from_mins(1)),
        (0_u64..600_000).prop_map(Duration::from_millis),
    ];
    let catch_up = (
        prop_oneof![1_u32..12, 1_u32..3_000],
        prop_oneof![1_u64..200_000, 1_u64..20_000_000],
    )
        .prop_map(|(max, window_ms)| MisfirePolicy::CatchUp {
            max,
            window: Duration::from_millis(window_ms),
        });
    let policy = prop_oneof![
        1 => Just(MisfirePolicy::FireOnce),
        1 => Just(MisfirePolicy::Skip),
        3 => catch_up,
    ];
    (grace, policy).prop_map(|(grace, policy)| Misfire { grace, policy })
}

fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap()
}

/// Every instant from the first hour before `start` on, by stepping.
fn listed(timing: &Timing, start: Instant) -> Vec<Instant> {
    let end = start + TimeDelta::hours(HOURS);
    let first = timing.next_after(start - TimeDelta::hours(1));
    std::iter::successors(first, |at| timing.next_after(*at))
        .take_while(|at| *at <= end)
        .collect()
}

/// How many of the due instants the policy passes over, said as plainly as it can be.
fn passed_over(due: &[Instant], now: Instant, misfire: &Misfire) -> usize {
    let later_than = |at: Instant, span| now - at > TimeDelta::milliseconds(ms(span));
    let missed = due
        .iter()
        .filter(|at| later_than(**at, misfire.grace))
        .count();
    if missed == 0 {
        return 0;
    }
    match misfire.policy {
        MisfirePolicy::FireOnce => due.len() - 1,
        MisfirePolicy::Skip => missed,
        MisfirePolicy::CatchUp { max, window } => {
            let kept = due[..missed]
                .iter()
                .rev()
                .take(usize::try_from(max).unwrap())
                .take_while(|at| !later_than(**at, window))
                .count();
            missed - kept
        }
    }
}

/// What a step settled, checked against the instants that were due.
fn check(settled: &Step, due: &[Instant], passed: usize, fires_max: usize) {
    let (over, fires) = due.split_at(passed);
    let fires = &fires[..fires.len().min(fires_max)];
    assert_eq!(settled.fires, fires);
    let range = settled.misfired.as_ref();
    assert_eq!(range.map(|range| range.from), over.first().copied());
    assert_eq!(range.map(|range| range.until), over.last().copied());
    assert_eq!(range.map_or(0, |range| range.count), over.len() as u64);
    let last = fires.last().or(over.last());
    if let Some(last) = last {
        assert_eq!(settled.cursor, *last);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whenever a call comes and whatever it may fire: it does what the definition says, and
    /// over all calls every instant is a fire or in one range, in order.
    #[test]
    fn every_instant_is_a_fire_or_in_one_range(
        (timing, start) in timing(),
        misfire in misfire(),
        cursor_ms in 0_i64..3_600_000,
        calls in prop::collection::vec(
            (
                prop_oneof![3 => 0_i64..1_500, 2 => 0_i64..90_000, 1 => 0_i64..9_000_000],
                prop_oneof![Just(0_usize), Just(1), 1_usize..9, 1_usize..2_000],
            ),
            1..14,
        ),
    ) {
        let listed = listed(&timing, start);
        let mut cursor = start + TimeDelta::milliseconds(cursor_ms - 3_600_000);
        let mut now = cursor;
        let mut unsettled = listed.partition_point(|at| *at <= cursor);
        for (passes_ms, fires_max) in calls {
            now += TimeDelta::milliseconds(passes_ms);
            if now > start + TimeDelta::hours(HOURS) {
                break;
            }
            let due = &listed[unsettled..listed.partition_point(|at| *at <= now).max(unsettled)];
            let settled = step(&timing, cursor, now, &misfire, fires_max);
            let passed = if fires_max == 0 { 0 } else { passed_over(due, now, &misfire) };
            check(&settled, due, passed, fires_max);
            if settled.fires.is_empty() && settled.misfired.is_none() {
                prop_assert_eq!(settled.cursor, cursor);
            }
            prop_assert_eq!(settled.next, timing.next_after(settled.cursor));
            prop_assert_eq!(&step(&timing, cursor, now, &misfire, fires_max), &settled);
            unsettled += passed + settled.fires.len();
            cursor = settled.cursor;
        }
    }

    /// Planning that is not slower than the schedule: one outage is one range at most, and all
    /// that the first call after it chose fires, however little a call may fire.
    #[test]
    fn what_was_chosen_fires_although_time_moves_on(
        (timing, start) in timing(),
        misfire in misfire(),
        outage_ms in 0_i64..14_000_000,
        fires_max in prop_oneof![Just(1_usize), 1_usize..40],
        paces in prop::collection::vec(0_i64..1_000, 16),
    ) {
        let listed = listed(&timing, start);
        let gap_ms = listed
            .windows(2)
            .map(|pair| (pair[1] - pair[0]).num_milliseconds())
            .min()
            .unwrap_or(1_000);
        let mut cursor = start;
        let mut now = start + TimeDelta::milliseconds(outage_ms);
        let from = listed.partition_point(|at| *at <= cursor);
        let due = &listed[from..listed.partition_point(|at| *at <= now)];
        let passed = passed_over(due, now, &misfire);
        let mut fired = Vec::new();
        for call in 0..600 {
            let settled = step(&timing, cursor, now, &misfire, fires_max);
            let range = settled.misfired.as_ref().map_or(0, |range| range.count);
            let expected = if call == 0 { passed as u64 } else { 0 };
            prop_assert_eq!(range, expected, "call {}, {}", call, now);
            if settled.fires.len() < fires_max {
                // Nothing is left: on time again.
                fired.extend(settled.fires);
                break;
            }
            let fires = i64::try_from(settled.fires.len()).unwrap();
            now += TimeDelta::milliseconds(gap_ms * fires * paces[call % paces.len()] / 1_000);
            fired.extend(settled.fires);
            cursor = settled.cursor;
        }
        let chosen = &due[passed..];
        let both = fired.len().min(chosen.len());
        prop_assert_eq!(&fired[..both], &chosen[..both]);
        prop_assert!(fired.len() >= chosen.len().min(600 * fires_max));
        prop_assert!(fired.is_sorted());
    }
}
