//! What an edit makes of the row: by compare-and-set, with a version and the timing that was.

use bellwether_schemas::ids;
use bellwether_schemas::state::NonFireReason;
use bellwether_store::ErrorKind;
use bellwether_store::definition::Definition;
use bellwether_store::edit::{self, Edited};
use bellwether_store::planning::{MissedRange, PlanStep};
use bellwether_store::schedules::{
    Author, Changed, FoundSchedule, NewSchedule, Schedule, ScheduleChange, Settled, Timing,
};

use crate::edits::{cron, every, plan_due};
use crate::fixture::Fixture;
use crate::planning::plan_one;
use crate::raw::args;
use crate::vocabulary::{hours, secs, step};

/// A change that settles `read` up to its clock.
fn settling(read: &FoundSchedule, timing: Timing) -> ScheduleChange {
    let mut definition = edit::definition(read);
    definition.timing = timing;
    let row = &read.schedule;
    let passed = read.recorded.evaluate().unwrap();
    let range = MissedRange {
        from: passed.next_after(row.cursor).unwrap(),
        until: passed.last_at_or_before(read.now, row.cursor).unwrap(),
        count: passed.count(row.cursor, read.now),
    };
    ScheduleChange {
        id: row.id,
        version: row.version,
        cursor: row.cursor,
        definition,
        enabled: true,
        author: Some(Author::Operator),
        settled: Some(Settled {
            cursor: read.now,
            skipped: Some((NonFireReason::Edited, range)),
        }),
        timing_changed: true,
    }
}

pub(crate) async fn a_change_is_made_by_compare_and_set(ledger: &Fixture) {
    let schedule = ledger.schedule("tick", 1, secs(10)).await;
    let term = ledger.lead().await;
    let read = ledger.found("tick").await;
    let anchored = Timing::Every {
        period_ms: 2000,
        anchor: Some(read.now),
    };
    let good = settling(&read, anchored);
    let with = |change: fn(&mut ScheduleChange)| {
        let mut other = good.clone();
        change(&mut other);
        other
    };
    let before = ledger.row("SELECT * FROM schedule", args![]).await;
    for stale in [
        with(|change| change.version = 2),
        with(|change| change.cursor -= secs(1)),
        with(|change| change.id = ids::fresh()),
        // As if the clock had been set back since it was read.
        with(|change| change.settled.as_mut().unwrap().cursor += hours(1)),
    ] {
        let changed = ledger.change_schedule(&stale).await.unwrap();
        assert_eq!(changed, Changed::Stale, "{stale:?}");
    }
    for refused in [
        with(|change| change.settled.as_mut().unwrap().cursor -= hours(1)),
        with(|change| change.settled = None),
        with(|change| change.definition.timing = every(2)),
        with(|change| change.definition.shard_total = 0),
        with(|change| change.definition.timing = cron("never")),
    ] {
        let error = ledger.change_schedule(&refused).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    assert_eq!(ledger.row("SELECT * FROM schedule", args![]).await, before);
    assert_eq!((ledger.timings().await, ledger.ranges().await), (1, vec![]));

    // Of two editors and a planner that read the same, one is in time.
    let second = ledger.second().await;
    let late = step(&schedule, &[schedule.cursor + secs(1)]);
    let (one, other, planned) = tokio::join!(
        ledger.change_schedule(&good),
        second.change_schedule(&good),
        ledger.plan(&term, std::slice::from_ref(&late)),
    );
    let won = [one.unwrap(), other.unwrap()]
        .iter()
        .filter(|changed| **changed == Changed::Done(2))
        .count();
    assert_eq!(won + planned.unwrap().moved.len(), 1);
    second.close().await;
    ledger.assert_laws_hold().await;

    ledger.remove_schedule("tick").await.unwrap();
    let gone = with(|_| ());
    assert_eq!(ledger.change_schedule(&gone).await.unwrap(), Changed::Stale);
    ledger.assert_laws_hold().await;
}

/// Two edits at one instant of the clock: the first was valid for nothing.
pub(crate) async fn two_edits_in_one_millisecond_are_two_versions(ledger: &Fixture) {
    ledger.schedule("tick", 1, secs(10)).await;
    let term = ledger.lead().await;
    let read = ledger.found("tick").await;
    let at_once = |period_ms| Timing::Every {
        period_ms,
        anchor: Some(read.now),
    };
    let first = settling(&read, at_once(3000));
    assert_eq!(
        ledger.change_schedule(&first).await.unwrap(),
        Changed::Done(2)
    );
    let second = ScheduleChange {
        version: 2,
        cursor: read.now,
        settled: Some(Settled {
            cursor: read.now,
            skipped: None,
        }),
        ..settling(&read, at_once(1000))
    };
    assert_eq!(
        ledger.change_schedule(&second).await.unwrap(),
        Changed::Done(3)
    );
    assert_eq!(ledger.found("tick").await.recorded, at_once(1000));
    plan_due(&**ledger, &term).await;
    ledger.assert_laws_hold().await;
}

/// A hand spoils the expression; the ticker takes it out of planning; an edit brings it back.
pub(crate) async fn an_edit_mends_a_faulted_schedule(ledger: &Fixture) {
    let new = NewSchedule::new("nightly", cron("0 0 0 * * *"));
    let old = ledger.schedule_of(&new, hours(2 * 24)).await;
    let term = ledger.lead().await;
    ledger
        .sql("UPDATE schedule SET expr = 'never'", args![])
        .await;
    let fault = PlanStep {
        new_next_at: None,
        fault: Some("it cannot be read".to_owned()),
        ..step(&ledger.schedule_row(old.id).await, &[])
    };
    assert_eq!(plan_one(&**ledger, &term, &fault).await.moved, [old.id]);
    // It can be paused as it is.
    for (enabled, version) in [(false, 2), (true, 3)] {
        let paused = edit::set_enabled(&**ledger, "nightly", enabled).await;
        assert_eq!(paused.unwrap(), Edited::Done(version));
    }
    let ranges = ledger.ranges().await;
    assert!(matches!(&ranges[..], [(reason, 2..)] if reason == "paused"));
    let described = edit::edit(&**ledger, "nightly", |new| {
        "still broken".clone_into(&mut new.description);
        Ok(())
    });
    assert_eq!(described.await.unwrap_err().kind(), ErrorKind::Invalid);

    let mended = ledger.retime("nightly", cron("0 0 0 * * *")).await;
    assert_eq!(mended, Edited::Done(4));
    let row = ledger.schedule_row(old.id).await;
    assert_eq!(
        (row.fault, row.ended, row.timing),
        (None, false, new.timing)
    );
    assert_eq!(
        ledger
            .due_schedules(&[0], 10)
            .await
            .unwrap()
            .schedules
            .len(),
        1
    );
    plan_due(&**ledger, &term).await;
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_single_instant_can_be_set_again(ledger: &Fixture) {
    let at = ledger.ago(secs(5)).await;
    let once = ledger
        .schedule_of(&NewSchedule::new("once", Timing::At { at }), secs(10))
        .await;
    let term = ledger.lead().await;
    plan_due(&**ledger, &term).await;
    assert!(ledger.schedule_row(once.id).await.ended);
    let described = edit::edit(&**ledger, "once", |new| {
        "it is over".clone_into(&mut new.description);
        Ok(())
    });
    assert_eq!(described.await.unwrap(), Edited::Done(2));
    assert!(ledger.schedule_row(once.id).await.ended, "and stays over");

    for (at, version) in [
        (ledger.now().await + hours(1), 3),
        (ledger.ago(secs(1)).await, 4),
    ] {
        let again = ledger.retime("once", Timing::At { at }).await;
        assert_eq!(again, Edited::Done(version));
        let row = ledger.schedule_row(once.id).await;
        assert_eq!((row.ended, row.next_at), (false, None));
        plan_due(&**ledger, &term).await;
        let row = ledger.schedule_row(once.id).await;
        assert_eq!(row.ended, version == 4, "what has passed does not fire");
    }
    assert_eq!(ledger.fires(once.id, 10).await.unwrap().len(), 1);
    ledger.assert_laws_hold().await;
}

/// As a build registered it that kept no history of timings, after the migration.
pub(crate) async fn a_first_edit_records_what_the_timing_was(ledger: &Fixture) {
    let schedule = ledger.schedule("tick", 1, secs(20)).await;
    ledger.sql("DELETE FROM schedule_timing", args![]).await;
    let term = ledger.lead().await;
    ledger.plan_next(&term, &schedule).await;
    let read = ledger.found("tick").await;
    assert_eq!(read.recorded, schedule.timing);
    let slower = Timing::Every {
        period_ms: 7000,
        anchor: Some(read.now),
    };
    let change = settling(&read, slower);
    for (read, expected) in [
        (with_version(&change, 7), Changed::Stale),
        (change, Changed::Done(2)),
    ] {
        let changed = ledger.change_schedule(&read).await.unwrap();
        assert_eq!(changed, expected);
        let timings = if changed == Changed::Stale { 0 } else { 2 };
        assert_eq!(ledger.timings().await, timings);
    }
    ledger.assert_laws_hold().await;
}

fn with_version(change: &ScheduleChange, version: i64) -> ScheduleChange {
    ScheduleChange {
        version,
        ..change.clone()
    }
}

/// The audit judges an instant by the timing of its time.
pub(crate) async fn law_02_each_instant_by_the_timing_of_its_time(ledger: &Fixture) {
    let schedule: Schedule = ledger.schedule("tick", 1, secs(20)).await;
    let term = ledger.lead().await;
    for _ in 0..3 {
        ledger.plan_next(&term, &schedule).await;
    }
    let read = ledger.found("tick").await;
    let yearly = Timing::Every {
        period_ms: 365 * 24 * 3_600_000,
        anchor: Some(read.now),
    };
    let changed = ledger.change_schedule(&settling(&read, yearly)).await;
    assert_eq!(changed.unwrap(), Changed::Done(2));
    let ranges = ledger.ranges().await;
    assert!(matches!(&ranges[..], [(reason, 16..)] if reason == "edited"));
    ledger.assert_laws_hold().await;

    // Had the edit been a few seconds earlier, the range would reach over it.
    let earlier = ledger.ago(secs(5)).await;
    ledger
        .sql(
            "UPDATE schedule_timing SET valid_from = $1 WHERE version = 2",
            args![earlier],
        )
        .await;
    let reports = ledger.audit().await.unwrap();
    let two = reports.iter().find(|report| report.law == 2).unwrap();
    assert!(
        two.examples
            .iter()
            .any(|found| found.contains("reaches over")),
        "{two:?}"
    );
}

/// A definition of code has no anchor: the interval keeps its own while the period stays.
pub(crate) async fn an_interval_keeps_its_anchor_while_its_period_stays(ledger: &Fixture) {
    let schedule = ledger
        .schedule_of(&NewSchedule::new("hourly", every(3600)), secs(600))
        .await;
    let mut same = NewSchedule::new("hourly", every(3600));
    same.policy.max_attempts = 2;
    let body = Definition::of(&same).unwrap().body;
    let edited = edit::edit(&**ledger, "hourly", |new| {
        *new = Definition::schedule("hourly", &body)?;
        Ok(())
    });
    assert_eq!(edited.await.unwrap(), Edited::Done(2));
    let row = ledger.schedule_row(schedule.id).await;
    assert_eq!((row.timing, row.cursor), (schedule.timing, schedule.cursor));
    assert_eq!((row.policy.max_attempts, row.origin), (2, schedule.origin));
    assert_eq!(ledger.timings().await, 1);
    ledger.assert_laws_hold().await;
}
