//! The misfire policies, by example.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use bellwether_time::{Cron, Misfire, MisfirePolicy, MissedRange, Timing, step};
use chrono::{DateTime, TimeDelta, Utc};

fn at(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

#[test]
fn p57_three_hours_down_is_one_fire_and_one_range() {
    let stopped = at("2026-01-01T00:00:00Z");
    let back = at("2026-01-01T03:00:00Z");
    let cron = Timing::Cron(Cron::parse("* * * * * *", "Europe/Berlin").unwrap());
    let every = Timing::every(stopped, Duration::from_secs(1)).unwrap();
    for timing in [cron, every] {
        let settled = step(&timing, stopped, back, &Misfire::default(), 1000);
        assert_eq!(settled.fires, [back]);
        assert_eq!(
            settled.misfired,
            Some(MissedRange {
                from: stopped + TimeDelta::seconds(1),
                until: back - TimeDelta::seconds(1),
                count: 10_799,
            })
        );
        assert_eq!(settled.cursor, back);
        assert_eq!(settled.next, Some(back + TimeDelta::seconds(1)));
        // On time again.
        let now = back + TimeDelta::seconds(2);
        let settled = step(&timing, settled.cursor, now, &Misfire::default(), 1000);
        assert_eq!(settled.fires, [back + TimeDelta::seconds(1), now]);
        assert_eq!(settled.misfired, None);
    }
}

#[test]
fn within_grace_every_instant_fires_and_fires_max_leaves_the_rest_due() {
    let timing = Timing::Cron(Cron::parse("* * * * * *", "UTC").unwrap());
    let cursor = at("2026-01-01T00:00:00Z");
    // The oldest instant is exactly as late as the grace allows.
    let now = cursor + TimeDelta::seconds(61);
    let settled = step(&timing, cursor, now, &Misfire::default(), 40);
    assert_eq!(settled.fires.len(), 40);
    assert_eq!(settled.misfired, None);
    assert_eq!(settled.cursor, cursor + TimeDelta::seconds(40));
    assert_eq!(settled.next, Some(cursor + TimeDelta::seconds(41)));
    let rest = step(&timing, settled.cursor, now, &Misfire::default(), 40);
    assert_eq!(rest.fires.len(), 21);
    assert_eq!(rest.next, Some(now + TimeDelta::seconds(1)));

    let late = step(
        &timing,
        cursor,
        now + TimeDelta::milliseconds(1),
        &Misfire::default(),
        40,
    );
    assert_eq!(late.fires, [now]);
    assert_eq!(late.misfired.unwrap().count, 60);
}

#[test]
fn a_late_single_instant_fires_without_a_range() {
    let timing = Timing::Cron(Cron::parse("0 2 * * *", "UTC").unwrap());
    let settled = step(
        &timing,
        at("2026-01-01T02:00:00Z"),
        at("2026-01-02T05:00:00Z"),
        &Misfire::default(),
        10,
    );
    assert_eq!(settled.fires, [at("2026-01-02T02:00:00Z")]);
    assert_eq!(settled.misfired, None);
    assert_eq!(settled.next, Some(at("2026-01-03T02:00:00Z")));

    let once = Timing::At(at("2026-01-01T00:00:00Z"));
    let settled = step(
        &once,
        at("2025-12-01T00:00:00Z"),
        at("2026-02-01T00:00:00Z"),
        &Misfire::default(),
        10,
    );
    assert_eq!(settled.fires, [at("2026-01-01T00:00:00Z")]);
    assert_eq!((settled.misfired, settled.next), (None, None));
}

fn policy(policy: MisfirePolicy) -> Misfire {
    Misfire {
        policy,
        ..Misfire::default()
    }
}

#[test]
fn p57_three_hours_down_with_skip_fires_what_is_on_time_only() {
    let stopped = at("2026-01-01T00:00:00Z");
    let back = at("2026-01-01T03:00:00Z");
    let timing = Timing::every(stopped, Duration::from_secs(1)).unwrap();
    let settled = step(&timing, stopped, back, &policy(MisfirePolicy::Skip), 1000);
    assert_eq!(
        settled.misfired,
        Some(MissedRange {
            from: stopped + TimeDelta::seconds(1),
            until: back - TimeDelta::seconds(61),
            count: 10_739,
        })
    );
    let on_time: Vec<_> = (0..=60)
        .rev()
        .map(|s| back - TimeDelta::seconds(s))
        .collect();
    assert_eq!(settled.fires, on_time);

    // Only missed ones: the cursor stands behind the range, and nothing fires.
    let daily = Timing::Cron(Cron::parse("0 2 * * *", "UTC").unwrap());
    let settled = step(&daily, stopped, back, &policy(MisfirePolicy::Skip), 1000);
    let two = at("2026-01-01T02:00:00Z");
    assert!(settled.fires.is_empty());
    assert_eq!(
        settled.misfired,
        Some(MissedRange {
            from: two,
            until: two,
            count: 1,
        })
    );
    assert_eq!(
        (settled.cursor, settled.next),
        (two, Some(two + TimeDelta::days(1)))
    );
}

#[test]
fn p48_a_week_down_fires_no_more_than_the_catch_up_allows() {
    let stopped = at("2026-01-01T00:00:00Z");
    let back = at("2026-01-08T00:10:00Z");
    let hourly = Timing::Cron(Cron::parse("0 * * * *", "UTC").unwrap());
    let catch_up = |max, hours| {
        let window = Duration::from_hours(hours);
        let misfire = policy(MisfirePolicy::CatchUp { max, window });
        step(&hourly, stopped, back, &misfire, 1000)
    };
    for (settled, fires) in [
        (catch_up(5, 24), 5),
        // The window is the narrower bound: 24 hours back from 00:10 there are 01:00 to 00:00.
        (catch_up(100, 24), 24),
        (catch_up(1_000, 10_000), 168),
        (catch_up(u32::MAX, u64::from(u32::MAX)), 168),
    ] {
        let missed = settled.misfired.map_or(0, |range| range.count);
        assert_eq!((settled.fires.len(), missed), (fires, 168 - fires as u64));
        assert!(settled.fires.is_sorted());
        assert_eq!(settled.fires.last(), Some(&at("2026-01-08T00:00:00Z")));
    }
}

#[test]
fn a_catch_up_that_is_cut_short_goes_on_and_makes_no_second_range() {
    let stopped = at("2026-01-01T00:00:00Z");
    let timing = Timing::every(stopped, Duration::from_secs(1)).unwrap();
    let misfire = policy(MisfirePolicy::CatchUp {
        max: 10,
        window: Duration::from_hours(1),
    });
    let mut now = at("2026-01-01T03:00:00Z");
    let first = step(&timing, stopped, now, &misfire, 1);
    let begins = now - TimeDelta::seconds(70);
    assert_eq!(first.fires, [begins]);
    assert_eq!(
        first.misfired.unwrap().until,
        begins - TimeDelta::seconds(1)
    );
    let mut cursor = first.cursor;
    // A round takes 300 ms: quicker than the schedule.
    let mut fired = 1;
    while timing.next_after(cursor).is_some_and(|next| next <= now) {
        now += TimeDelta::milliseconds(300);
        let next = step(&timing, cursor, now, &misfire, 1);
        assert_eq!(next.misfired, None, "{now}");
        assert_eq!(next.fires, [cursor + TimeDelta::seconds(1)]);
        cursor = next.cursor;
        fired += 1;
    }
    assert!(
        fired > 71,
        "the ten, the minute of grace, and what came due since"
    );
}

#[test]
fn nothing_due_moves_nothing() {
    let timing = Timing::Cron(Cron::parse("0 2 * * *", "UTC").unwrap());
    let cursor = at("2026-01-01T02:00:00Z");
    let next = Some(at("2026-01-02T02:00:00Z"));
    for (now, fires_max) in [
        (at("2026-01-01T12:00:00Z"), 10),
        // A clock behind the cursor, and no room for a fire.
        (at("2025-12-31T00:00:00Z"), 10),
        (at("2026-01-05T00:00:00Z"), 0),
    ] {
        let settled = step(&timing, cursor, now, &Misfire::default(), fires_max);
        assert!(settled.fires.is_empty() && settled.misfired.is_none());
        assert_eq!((settled.cursor, settled.next), (cursor, next));
    }
}

#[test]
fn a_missed_range_across_a_change_is_counted_exactly() {
    let timing = Timing::Cron(Cron::parse("*/15 * * * *", "Europe/Berlin").unwrap());
    // The whole local day of 25 hours.
    let settled = step(
        &timing,
        at("2026-10-24T21:59:00Z"),
        at("2026-10-25T22:59:00Z"),
        &Misfire::default(),
        10,
    );
    assert_eq!(settled.fires.len(), 1);
    assert_eq!(settled.misfired.unwrap().count, 99);
}
