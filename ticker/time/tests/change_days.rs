//! Days on which clocks change, as other schedulers' bug reports tell them (`pitfalls.md`).

#![expect(clippy::unwrap_used, reason = "tests")]

use bellwether_time::{Cron, Fold, Misfire, Timing, next_n, step};
use chrono::{DateTime, TimeDelta, Utc};

fn at(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

fn cron(expr: &str, zone: &str) -> Timing {
    Timing::Cron(Cron::parse(expr, zone).unwrap())
}

fn fires(timing: &Timing, after: &str, until: &str) -> Vec<DateTime<Utc>> {
    std::iter::successors(timing.next_after(at(after)), |last| {
        timing.next_after(*last)
    })
    .take_while(|fire| *fire <= at(until))
    .collect()
}

/// Runs the ticker's step on a clock that jumps `tick` at a time; every fire, and the steps taken.
fn run(timing: &Timing, from: &str, until: &str, tick: TimeDelta) -> (Vec<DateTime<Utc>>, usize) {
    let (mut cursor, mut now, mut fires, mut steps) = (at(from), at(from), Vec::new(), 0);
    while now <= at(until) {
        let settled = step(timing, cursor, now, &Misfire::default(), 100);
        assert!(
            settled.next.is_none_or(|next| next > now),
            "nothing due is left over"
        );
        assert_eq!(settled.misfired, None);
        fires.extend(settled.fires);
        cursor = settled.cursor;
        steps += 1;
        now += tick;
    }
    (fires, steps)
}

#[test]
fn p47_minute_and_daily_jobs_on_change_days() {
    let minutely = cron("*/1 * * * *", "Europe/Berlin");
    // 2024-10-27, 02:00–03:00 local: first pass from 00:00Z, second from 01:00Z.
    for (after, until) in [
        ("2024-10-26T23:59:59Z", "2024-10-27T00:59:59Z"),
        ("2024-10-27T00:59:59Z", "2024-10-27T01:59:59Z"),
    ] {
        assert_eq!(fires(&minutely, after, until).len(), 60);
        assert_eq!(minutely.count(at(after), at(until)), 60);
    }
    let daily = cron("5 2 * * *", "Europe/Berlin");
    let once = fires(&daily, "2024-10-26T22:00:00Z", "2024-10-27T22:59:59Z");
    assert_eq!(once, [at("2024-10-27T00:05:00Z")]);

    let missing = next_n(
        &cron("30 2 * * *", "Europe/Berlin"),
        at("2025-03-29T12:00:00Z"),
        2,
    );
    let read: Vec<_> = missing
        .iter()
        .map(|one| (one.local.as_str(), one.fold))
        .collect();
    assert_eq!(
        read,
        [
            ("2025-03-30 03:00:00", Fold::Shifted),
            ("2025-03-31 02:30:00", Fold::Only)
        ]
    );
    assert_eq!(missing[0].offset, "+02:00");

    // The clock goes back at 03:00 local, 02:00Z, on this day; seconds after the change.
    let casablanca = cron("*/5 * * * *", "Africa/Casablanca");
    let from = at("2025-02-23T02:05:29Z");
    assert_eq!(
        casablanca.next_after(from),
        Some(at("2025-02-23T02:10:00Z"))
    );
    let daily = cron("5 2 * * *", "Africa/Casablanca");
    assert_eq!(
        daily.next_after(from),
        Some(at("2025-02-24T02:05:00Z")),
        "02:05 was at 01:05Z"
    );
}

#[test]
fn p54_dst_gap_no_storm() {
    let nightly = cron("0 2 * * *", "America/New_York");
    let (from, until) = ("2026-03-07T12:00:00Z", "2026-03-10T12:00:00Z");
    let (fired, steps) = run(&nightly, from, until, TimeDelta::seconds(5));
    let expected = [
        at("2026-03-08T07:00:00Z"),
        at("2026-03-09T06:00:00Z"),
        at("2026-03-10T06:00:00Z"),
    ];
    assert_eq!(fired, expected);
    assert_eq!(steps, 3 * 86_400 / 5 + 1, "one step a tick");

    let quarterly = cron("*/15 * * * *", "Europe/Berlin");
    let (from, until) = ("2026-10-25T01:20:00Z", "2026-10-25T02:00:00Z");
    let (fired, _) = run(&quarterly, from, until, TimeDelta::seconds(1));
    let expected = [
        at("2026-10-25T01:30:00Z"),
        at("2026-10-25T01:45:00Z"),
        at("2026-10-25T02:00:00Z"),
    ];
    assert_eq!(fired, expected);
}

#[test]
fn p55_next_is_later_than_every_second_of_the_repeated_hour() {
    for (expr, distinct) in [("*/5 * * * *", 25), ("*/5 2 * * *", 12), ("0 3 * * *", 2)] {
        let timing = cron(expr, "Europe/Berlin");
        let mut answers = Vec::new();
        for second in 0..=7200 {
            let from = at("2026-10-25T00:00:00Z") + TimeDelta::seconds(second);
            let next = timing.next_after(from).unwrap();
            assert!(next > from, "{expr} after {from}");
            answers.push(next);
        }
        assert!(answers.is_sorted(), "{expr}");
        answers.dedup();
        assert_eq!(answers.len(), distinct, "{expr}: {answers:?}");
    }
}

#[test]
fn p56_daily_job_in_the_repeated_hour_runs_once() {
    let daily = cron("30 2 * * *", "Europe/Berlin");
    let (from, until) = ("2026-10-24T12:00:00Z", "2026-10-27T12:00:00Z");
    let (fired, _) = run(&daily, from, until, TimeDelta::seconds(30));
    let expected = [
        at("2026-10-25T00:30:00Z"),
        at("2026-10-26T01:30:00Z"),
        at("2026-10-27T01:30:00Z"),
    ];
    assert_eq!(fired, expected);
    assert_eq!(next_n(&daily, at(from), 1)[0].fold, Fold::First);
    let hourly = next_n(
        &cron("30 * * * *", "Europe/Berlin"),
        at("2026-10-25T00:00:00Z"),
        2,
    );
    assert_eq!(
        [hourly[0].fold, hourly[1].fold],
        [Fold::First, Fold::Second]
    );
}

#[test]
fn p71_counts_per_local_day() {
    // (zone, first and last second of the local day, hours of it)
    let days = [
        (
            "Europe/Berlin",
            "2026-03-28T22:59:59Z",
            "2026-03-29T21:59:59Z",
            23,
        ),
        (
            "Europe/Berlin",
            "2026-10-24T21:59:59Z",
            "2026-10-25T22:59:59Z",
            25,
        ),
        (
            "Europe/Berlin",
            "2026-06-30T21:59:59Z",
            "2026-07-01T21:59:59Z",
            24,
        ),
        (
            "America/New_York",
            "2026-03-08T04:59:59Z",
            "2026-03-09T03:59:59Z",
            23,
        ),
        (
            "America/New_York",
            "2026-11-01T03:59:59Z",
            "2026-11-02T04:59:59Z",
            25,
        ),
    ];
    for (zone, before, end, hours) in days {
        for (expr, per_hour) in [("0 * * * *", 1), ("*/15 * * * *", 4), ("* * * * * *", 3600)] {
            let timing = cron(expr, zone);
            assert_eq!(
                timing.count(at(before), at(end)),
                hours * per_hour,
                "{expr} {zone} {end}"
            );
            if per_hour < 3600 {
                let listed = fires(&timing, before, end).len() as u64;
                assert_eq!(listed, hours * per_hour, "{expr} {zone} {end}");
            }
        }
        for (expr, a_day) in [("0 */2 * * *", 12), ("30 1 * * *", 1), ("0 2,3 * * *", 2)] {
            let timing = cron(expr, zone);
            let count = timing.count(at(before), at(end));
            // 02:00 and 03:00 meet where the clock jumps over the first.
            let met = u64::from(expr == "0 2,3 * * *" && hours == 23);
            assert_eq!(count, a_day - met, "{expr} {zone} {end}");
            assert_eq!(
                fires(&timing, before, end).len() as u64,
                count,
                "{expr} {zone} {end}"
            );
        }
    }
}
