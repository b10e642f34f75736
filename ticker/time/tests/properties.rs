//! The properties of every schedule: least, increasing, counted, and never a panic.

mod oracle;

use std::collections::BTreeSet;
use std::time::Duration;

use bellwether_time::{Cron, Timing, parse_interval};
use chrono::{DateTime, TimeDelta, Utc};
use chrono_tz::Tz;
use oracle::Spec;
use proptest::prelude::*;
use proptest::sample::select;

/// Zones at days on which their clocks change.
const CHANGES: [(&str, &str); 16] = [
    ("Europe/Berlin", "2026-03-28T00:00:00Z"),
    ("Europe/Berlin", "2026-10-24T00:00:00Z"),
    ("America/New_York", "2026-03-07T12:00:00Z"),
    ("America/New_York", "2026-10-31T12:00:00Z"),
    ("Australia/Lord_Howe", "2026-10-02T12:00:00Z"),
    ("Australia/Lord_Howe", "2026-04-03T12:00:00Z"),
    ("Antarctica/Troll", "2026-03-28T00:00:00Z"),
    ("Antarctica/Troll", "2026-10-24T00:00:00Z"),
    ("Africa/Cairo", "2026-04-22T12:00:00Z"),
    ("Africa/Cairo", "2026-10-28T12:00:00Z"),
    ("Pacific/Apia", "2011-12-28T20:00:00Z"),
    ("Africa/Casablanca", "2025-02-22T00:00:00Z"),
    ("Africa/Casablanca", "2025-04-05T00:00:00Z"),
    ("Africa/Monrovia", "1972-01-06T00:00:00Z"),
    ("Antarctica/Vostok", "1994-10-31T00:00:00Z"),
    ("Asia/Shanghai", "2026-10-01T00:00:00Z"),
];
const WINDOW_S: i64 = 3 * 86_400;

fn set(max: u32, size_max: usize) -> impl Strategy<Value = BTreeSet<u32>> {
    prop::collection::btree_set(0..max, 1..=size_max)
}

fn spec() -> impl Strategy<Value = Spec> {
    let seconds = select(vec![vec![0], vec![30], vec![0, 30]]);
    let hours = prop_oneof![
        set(24, 6),
        // Hours around the changes, so that gaps and repeats are met often.
        set(5, 3),
        Just((0..24).collect()),
        Just((0..24).step_by(2).collect()),
    ];
    let days_of_month = prop::option::weighted(0.3, prop::collection::btree_set(1..=31_u32, 1..12));
    let days_of_week = prop::option::weighted(0.3, set(7, 4));
    (
        seconds,
        set(60, 6),
        hours,
        days_of_month,
        days_of_week,
        any::<bool>(),
    )
        .prop_map(
            |(seconds, minutes, hours, days_of_month, days_of_week, both_days)| Spec {
                seconds: seconds.into_iter().collect(),
                minutes,
                hours,
                days_of_month,
                days_of_week,
                both_days,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn cron_agrees_with_listing_around_clock_changes(
        spec in spec(),
        (zone, start) in select(CHANGES.to_vec()),
        probes in prop::collection::vec((0..WINDOW_S, 0..WINDOW_S, 0..1000_i64), 12),
    ) {
        let start: DateTime<Utc> = start.parse().unwrap();
        let end = start + TimeDelta::seconds(WINDOW_S);
        // An AND of day fields may name no day at all.
        let parsed = Cron::parse(&spec.expression(), zone);
        prop_assume!(!parsed.as_ref().is_err_and(|rejected| rejected.code == "never_fires"));
        let timing = Timing::Cron(parsed.unwrap());
        let fires = spec.fires(zone.parse::<Tz>().unwrap(), start, end);

        let before = start - TimeDelta::milliseconds(1);
        let stepped: Vec<_> = std::iter::successors(timing.next_after(before), |at| timing.next_after(*at))
            .take_while(|at| *at <= end)
            .collect();
        prop_assert_eq!(&stepped, &fires.iter().copied().collect::<Vec<_>>());
        prop_assert!(stepped.windows(2).all(|pair| pair[0] < pair[1]));

        for (after, until, ms) in probes {
            let after = start + TimeDelta::seconds(after) + TimeDelta::milliseconds(ms);
            let until = start + TimeDelta::seconds(until) + TimeDelta::milliseconds(ms / 2);
            let due = || fires.iter().copied().filter(|at| *at > after && *at <= until);
            prop_assert_eq!(timing.count(after, until), due().count() as u64);
            prop_assert_eq!(timing.last_at_or_before(until, after), due().next_back());
            let least = fires.iter().copied().find(|at| *at > after);
            prop_assert_eq!(timing.next_after(after).filter(|at| *at <= end), least);
        }
    }

    #[test]
    fn parsing_any_text_never_panics(text in any::<String>(), zone in any::<String>()) {
        prop_assert!(Cron::parse(&text, "UTC").is_err() || text.is_ascii());
        prop_assert!(Cron::parse("0 0 * * *", &zone).is_err() || zone.is_ascii());
        prop_assert!(parse_interval(&text).is_err() || text.is_ascii());
    }

    #[test]
    fn what_is_accepted_goes_forward_and_keeps_its_meaning(
        text in "([0-9]{1,2}|\\*|[0-9]-[0-9]{1,2}|\\*/[1-9]|[LW#?+/,-]|[A-Z]{3})( ([0-9]{1,2}|\\*|\\*/[0-9]|L|LW|L-[0-9]|[1-9]W|[A-Z]{3}|\\+?(MON|FRI)(#[1-6]|L)?|\\?)){3,6}",
        (zone, at) in select(CHANGES.to_vec()),
    ) {
        let Ok(cron) = Cron::parse(&text, zone) else { return Ok(()) };
        let again = Cron::parse(cron.canonical(), zone).unwrap();
        prop_assert_eq!(&again, &cron);
        let timing = Timing::Cron(cron);
        let mut after: DateTime<Utc> = at.parse().unwrap();
        for count in 1..=5 {
            let Some(next) = timing.next_after(after) else { break };
            prop_assert!(next > after);
            prop_assert_eq!(timing.next_after(next - TimeDelta::nanoseconds(1)), Some(next), "{}", count);
            prop_assert_eq!(timing.last_at_or_before(next, after), Some(next));
            prop_assert_eq!(timing.count(after, next), 1);
            after = next;
        }
    }

    #[test]
    fn every_agrees_with_arithmetic(
        anchor_ms in -5_000_000_i64..5_000_000, period_ms in 1000_u64..400_000,
        after_us in -10_000_000_000_i64..10_000_000_000, until_us in -10_000_000_000_i64..10_000_000_000,
    ) {
        let origin: DateTime<Utc> = "2026-01-01T00:00:00Z".parse().unwrap();
        let anchor = origin + TimeDelta::milliseconds(anchor_ms);
        let after = origin + TimeDelta::microseconds(after_us);
        let until = origin + TimeDelta::microseconds(until_us);
        let period = Duration::from_millis(period_ms);
        let timing = Timing::every(anchor, period).unwrap();
        let listed: Vec<_> = (0..20_000).map(|k| anchor + period * k).take_while(|at| *at <= until).collect();
        let due = || listed.iter().copied().filter(|at| *at > after);
        prop_assert_eq!(timing.count(after, until), due().count() as u64);
        prop_assert_eq!(timing.last_at_or_before(until, after), due().next_back());
        let next = timing.next_after(after).unwrap();
        prop_assert!(next > after && next >= anchor);
        prop_assert!(next == anchor || next - period <= after);
        prop_assert_eq!((next - anchor).num_milliseconds().cast_unsigned() % period_ms, 0);
    }
}

#[test]
fn counts_of_long_spans_need_no_listing() {
    let at = |text: &str| text.parse::<DateTime<Utc>>().unwrap();
    let count = |expr, zone, from, until| {
        Timing::Cron(Cron::parse(expr, zone).unwrap()).count(at(from), at(until))
    };
    let (begin, end) = ("1969-12-31T23:59:59Z", "2199-12-31T23:59:59Z");
    // 1972, 1976, … 2196 without 2100.
    assert_eq!(count("0 0 29 2 *", "UTC", begin, end), 56);
    assert_eq!(count("* * * * * *", "UTC", begin, end), 84_006 * 86_400);
    // A hundred years by the second in a zone of many changes: every second once, none twice.
    assert_eq!(
        count(
            "* * * * * *",
            "Africa/Casablanca",
            "1999-12-31T23:59:59Z",
            "2099-12-31T23:59:59Z"
        ),
        36_525 * 86_400
    );
    // One fire a day, whatever the clocks do.
    assert_eq!(
        count(
            "30 2 * * *",
            "Europe/Berlin",
            "2025-12-31T23:00:00Z",
            "2125-12-31T23:00:00Z"
        ),
        36_524
    );
    assert_eq!(
        count(
            "0 12 * * *",
            "Pacific/Apia",
            "2011-12-01T10:00:00Z",
            "2011-12-31T09:59:59Z"
        ),
        30
    );
}

#[test]
fn at_fires_once_and_every_needs_a_second() {
    let at: DateTime<Utc> = "2026-01-01T00:00:00.250Z".parse().unwrap();
    let timing = Timing::At(at);
    assert_eq!(timing.next_after(at - TimeDelta::milliseconds(1)), Some(at));
    assert_eq!(timing.next_after(at), None);
    assert_eq!(timing.count(at - TimeDelta::days(1), at), 1);
    assert_eq!(timing.last_at_or_before(at, at), None);
    assert_eq!(
        Timing::every(at, Duration::from_millis(999))
            .unwrap_err()
            .code,
        "bad_interval"
    );
    let timing = Timing::Every {
        anchor: at,
        period: Duration::ZERO,
    };
    assert_eq!(
        timing.next_after(at),
        Some(at + TimeDelta::seconds(1)),
        "no endless loop"
    );
}
