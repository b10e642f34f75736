//! Planning: cursors move inside a term, and what follows moves with them.

use std::time::Duration;

use bellwether_schemas::ids;
use bellwether_schemas::state::{Priority, State, Trigger};
use bellwether_schemas::subject::WIRE_VERSION;
use bellwether_schemas::trace::TraceContext;
use bellwether_schemas::wire::KIND_DISPATCH;
use bellwether_store::edit::{self, Synced};
use bellwether_store::executions::Outcome;
use bellwether_store::leadership::Term;
use bellwether_store::planning::{MissedRange, PlanStep, Planned};
use bellwether_store::schedules::{NewSchedule, Origin, Removed, Timing};
use bellwether_store::{ErrorKind, Payload, Store};
use uuid::Uuid;

use crate::fixture::{Fixture, whole_ms};
use crate::raw::args;
use crate::vocabulary::{complete, hours, secs, step};

pub(crate) async fn plan_one(store: &dyn Store, term: &Term, step: &PlanStep) -> Planned {
    store.plan(term, std::slice::from_ref(step)).await.unwrap()
}

/// Rows that planning writes: fires, executions, outbox.
pub(crate) async fn written(ledger: &Fixture) -> (i64, i64, i64) {
    let row = ledger
        .row(
            "SELECT (SELECT count(*) FROM fire), (SELECT count(*) FROM execution),
                    (SELECT count(*) FROM outbox)",
            args![],
        )
        .await;
    (row.int(0), row.int(1), row.int(2))
}

pub(crate) async fn a_fire_is_planned_with_its_shards_and_outbox_rows(ledger: &Fixture) {
    let mut new = NewSchedule::new(
        "report",
        Timing::Every {
            period_ms: 1000,
            anchor: None,
        },
    );
    new.job = "nightly".into();
    new.queue = "reports".into();
    new.priority = Priority::Low;
    new.shard_total = 4;
    new.payload = Payload::json("{\"dir\":\"/\"}");
    new.policy.max_attempts = 3;
    let schedule = ledger.schedule_of(&new, secs(10)).await;
    let term = ledger.lead().await;
    let due = schedule.cursor + secs(1);
    let step = step(&schedule, &[due]);

    let before = ledger.now().await;
    let planned = plan_one(&**ledger, &term, &step).await;
    let after = ledger.now().await;
    let expected = Planned {
        term_ok: true,
        moved: vec![schedule.id],
        fires: 1,
        fires_existing: 0,
        executions: 4,
        held: 0,
        overlapped: Vec::new(),
    };
    assert_eq!(planned, expected);

    let fires = ledger.fires(schedule.id, 10).await.unwrap();
    assert_eq!(fires.len(), 1);
    assert_eq!(
        fires[0].id,
        ids::fire(schedule.id, due.timestamp_millis()),
        "deterministic"
    );
    assert_eq!(
        (fires[0].trigger, fires[0].shard_total),
        (Trigger::Every, 4)
    );
    assert_eq!(
        (fires[0].scheduled_at, fires[0].epoch),
        (due, Some(term.epoch))
    );
    assert!(before <= fires[0].planned_at && fires[0].planned_at <= after);
    for shard in 0..4 {
        let id = ids::execution(fires[0].id, shard);
        let view = ledger.view(id).await;
        assert_eq!(
            (view.fire_id, view.shard_index, view.shard_total),
            (fires[0].id, shard, 4)
        );
        assert_eq!((view.state, view.operation_id), (State::Pending, id));
        assert_eq!(
            (view.job.as_str(), view.queue.as_str()),
            ("nightly", "reports")
        );
        assert_eq!(
            (view.priority, view.trigger),
            (Priority::Low, Trigger::Every)
        );
        assert_eq!(
            (view.schedule_id, view.schedule_version),
            (Some(schedule.id), Some(1))
        );
        assert_eq!(
            (view.attempt, view.generation, view.max_attempts),
            (0, 0, 3)
        );
        assert_eq!(
            (view.scheduled_at, view.start_deadline_at),
            (due, due + hours(24))
        );
        assert_eq!(view.dispatch_no, 1);
        assert!(
            view.dispatched_at
                .is_some_and(|at| before <= at && at <= after)
        );
        assert_eq!(ledger.outbox_of(id).await, [1]);
        assert_eq!(
            view.traceparent,
            Some(TraceContext::root(fires[0].id).traceparent)
        );
    }
    assert_eq!(written(ledger).await, (1, 4, 4));
    let read = ledger.schedule_row(schedule.id).await;
    assert_eq!((read.cursor, read.next_at), (due, Some(due + secs(1))));

    let session = ledger.session("worker").await;
    let claimed = ledger
        .claim_one(session, ids::execution(fires[0].id, 2))
        .await;
    assert_eq!(claimed.payload, new.payload, "the fire's payload");
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_fault_takes_a_schedule_out_of_planning(ledger: &Fixture) {
    let bad = ledger.schedule("bad", 1, secs(10)).await;
    let good = ledger.schedule("good", 1, secs(10)).await;
    let term = ledger.lead().await;
    let fault = PlanStep {
        fault: Some("zone is gone".to_owned()),
        ..step(&bad, &[])
    };
    let planned = plan_one(&**ledger, &term, &fault).await;
    assert_eq!((planned.term_ok, planned.fires), (true, 0));
    let read = ledger.schedule_row(bad.id).await;
    assert_eq!(read.fault.as_deref(), Some("zone is gone"), "it is shown");
    assert_eq!(read.cursor, bad.cursor);
    let due = ledger.due_schedules(&[0], 10).await.unwrap();
    let ids: Vec<Uuid> = due.schedules.iter().map(|schedule| schedule.id).collect();
    assert_eq!(ids, [good.id]);
}

/// What hands have written: an instant as text or without end, a limit in words.
pub(crate) async fn p38_an_unreadable_schedule_gets_a_fault_and_stops_no_other(ledger: &Fixture) {
    ledger.schedule("bad", 1, secs(10)).await;
    let good = ledger.schedule("good", 1, secs(10)).await;
    ledger.schedule("worse", 1, secs(10)).await;
    ledger
        .ddl(
            "UPDATE schedule SET next_at = '-infinity' WHERE name = 'bad';
             UPDATE schedule SET cursor = '290000-01-01Z' WHERE name = 'worse'",
            "UPDATE schedule SET next_at = '2026-12-01T00:00:00Z' WHERE name = 'bad';
             UPDATE schedule SET timeout_ms = 'soon' WHERE name = 'worse'",
        )
        .await;
    for _ in 0..2 {
        let due = ledger.due_schedules(&[0], 10).await.unwrap();
        let ids: Vec<Uuid> = due.schedules.iter().map(|schedule| schedule.id).collect();
        assert_eq!((ids, due.next_in), (vec![good.id], None));
        let text = "SELECT name FROM schedule WHERE fault LIKE '%cannot be read%' ORDER BY name";
        let faulty = ledger.rows(text, args![]).await;
        assert_eq!(faulty.len(), 2);
        assert_eq!((faulty[0].text(0), faulty[1].text(0)), ("bad", "worse"));
    }
    let read = ledger.schedule_row(good.id).await;
    assert_eq!(read.fault, None);
    assert_eq!(
        ledger.schedules().await.unwrap().len(),
        1,
        "no other listed"
    );
    let names = ["worse", "good", "bad"].map(str::to_owned);
    let found = ledger.find_schedules(&names).await.unwrap();
    let [Err(bad), Ok(found), Err(worse)] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!(found.schedule.id, good.id);
    for (error, name) in [(bad, "bad"), (worse, "worse")] {
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains(name), "{error}");
    }

    // A worker that defines one of them starts, and its other schedules stand.
    let defined = ["bad", "new"].map(|name| NewSchedule {
        name: name.to_owned(),
        origin: Origin::Code,
        ..NewSchedule::new("book", read.timing.clone())
    });
    let synced = edit::sync(&**ledger, &defined, true).await.unwrap();
    assert_eq!(synced, [Synced::Unreadable, Synced::Inserted]);

    // An operator's way out; and an instant that is never due is none to wait for.
    for name in ["bad", "worse", "new"] {
        let removed = ledger.remove_schedule(name).await.unwrap();
        assert!(matches!(removed, Removed::Removed(_)), "{removed:?}");
    }
    ledger
        .ddl(
            "UPDATE schedule SET next_at = 'infinity' WHERE name = 'good'",
            "UPDATE schedule SET next_at = 1e15 + 0.5 WHERE name = 'good'",
        )
        .await;
    let due = ledger.due_schedules(&[0], 10).await.unwrap();
    assert!(due.schedules.is_empty(), "{due:?}");
}

pub(crate) async fn a_schedule_ends_with_its_last_instant(ledger: &Fixture) {
    let at = ledger.ago(secs(5)).await;
    let once = ledger
        .schedule_of(&NewSchedule::new("once", Timing::At { at }), secs(10))
        .await;
    let term = ledger.lead().await;
    let last = PlanStep {
        new_next_at: None,
        ..step(&once, &[at])
    };
    let planned = plan_one(&**ledger, &term, &last).await;
    assert_eq!((planned.fires, planned.executions), (1, 1));
    let read = ledger.schedule_row(once.id).await;
    assert!(read.ended, "{read:?}");
    assert_eq!((read.next_at, read.cursor), (None, at));
    assert_eq!(
        ledger.fires(once.id, 2).await.unwrap()[0].trigger,
        Trigger::At
    );
    let due = ledger.due_schedules(&[0], 10).await.unwrap();
    assert!(due.schedules.is_empty() && due.next_in.is_none(), "{due:?}");
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_missed_range_is_stored_with_the_cursor(ledger: &Fixture) {
    let schedule = ledger.schedule("tick", 1, secs(3600)).await;
    let term = ledger.lead().await;
    let newest = schedule.cursor + secs(3590);
    let missed = MissedRange {
        from: schedule.cursor + secs(1),
        until: newest - secs(1),
        count: 3589,
    };
    let step = PlanStep {
        missed: Some(missed.clone()),
        ..step(&schedule, &[newest])
    };
    let planned = plan_one(&**ledger, &term, &step).await;
    assert_eq!((planned.fires, planned.executions), (1, 1));
    let row = ledger
        .row(
            "SELECT schedule_id, reason, from_at, until_at, count, schedule_version FROM non_fire",
            args![],
        )
        .await;
    assert_eq!((row.id(0), row.text(1)), (schedule.id, "misfired"));
    assert_eq!(
        (row.at(2), row.at(3), row.int(4)),
        (missed.from, missed.until, 3589)
    );
    assert_eq!(row.int(5), schedule.version);
    ledger.assert_laws_hold().await;

    ledger
        .sql(
            "UPDATE schedule SET cursor = $2 WHERE id = $1",
            args![schedule.id, schedule.cursor],
        )
        .await;
    let again = plan_one(&**ledger, &term, &step).await;
    assert_eq!((again.moved.len(), again.fires_existing), (1, 1));
    assert_eq!(
        ledger.count("SELECT count(*) FROM non_fire", args![]).await,
        1
    );
    ledger.assert_laws_hold().await;
}

pub(crate) async fn due_schedules_are_those_to_look_at(ledger: &Fixture) {
    let term = ledger.lead().await;
    let nothing = ledger.due_schedules(&[0], 10).await.unwrap();
    assert!(nothing.schedules.is_empty() && nothing.next_in.is_none());

    let fresh = ledger.schedule("fresh", 1, secs(1)).await; // no next_at yet
    let late = ledger.schedule("late", 1, secs(50)).await;
    let later = ledger.schedule("later", 1, secs(40)).await;
    let ahead = ledger.schedule("ahead", 1, secs(1)).await;
    let now = ledger.ago(Duration::ZERO).await;
    let next = |schedule, new_next_at| PlanStep {
        new_next_at: Some(new_next_at),
        ..step(schedule, &[])
    };
    let steps = [
        next(&late, now - secs(49)),
        next(&later, now - secs(39)),
        next(&ahead, now + secs(600)),
    ];
    let planned = ledger.plan(&term, &steps).await.unwrap();
    assert_eq!(
        (planned.moved.len(), planned.fires),
        (3, 0),
        "a next instant is computed"
    );

    let due = ledger.due_schedules(&[0], 10).await.unwrap();
    let mut ids: Vec<Uuid> = due.schedules.iter().map(|schedule| schedule.id).collect();
    let order: Vec<Uuid> = ids
        .iter()
        .copied()
        .filter(|id| [late.id, later.id].contains(id))
        .collect();
    assert_eq!(order, [late.id, later.id], "oldest first");
    ids.sort();
    let mut expected = [fresh.id, late.id, later.id];
    expected.sort();
    assert_eq!(ids, expected);
    assert!(due.now >= now);
    let next_in = due.next_in.expect("the one ahead");
    assert!(next_in > secs(590) && next_in <= secs(600), "{next_in:?}");
    assert_eq!(
        ledger.due_schedules(&[0], 2).await.unwrap().schedules.len(),
        2,
        "the limit holds"
    );
}

pub(crate) async fn r83_dispatch_carries_its_identity(ledger: &Fixture) {
    let mut new = NewSchedule::new(
        "report",
        Timing::Every {
            period_ms: 1000,
            anchor: None,
        },
    );
    new.job = "nightly".into();
    new.queue = "reports".into();
    new.priority = Priority::High;
    new.shard_total = 3;
    new.policy.timeout = secs(77);
    new.policy.start_deadline = hours(1);
    let schedule = ledger.schedule_of(&new, secs(10)).await;
    ledger.sql("UPDATE schedule SET version = 5", args![]).await;
    let term = ledger.lead().await;
    ledger.plan_next(&term, &schedule).await;
    let due = schedule.cursor + secs(1);
    let fire = ids::fire(schedule.id, due.timestamp_millis());

    let rows = ledger.claim_outbox(10, secs(30), &[]).await.unwrap();
    assert_eq!(rows.len(), 3);
    let mut shards = Vec::new();
    for row in rows {
        assert_eq!(
            (row.lane.queue.as_str(), row.lane.priority),
            ("reports", Priority::High)
        );
        let dispatch = row.dispatch;
        assert_eq!(
            (dispatch.v, dispatch.kind.as_str()),
            (WIRE_VERSION, KIND_DISPATCH)
        );
        assert_eq!(dispatch.ledger_id, ledger.ledger().await.unwrap().id);
        assert_eq!((dispatch.job.as_str(), dispatch.fire_id), ("nightly", fire));
        assert_eq!(
            dispatch.execution_id,
            ids::execution(fire, dispatch.shard_index)
        );
        assert_eq!((dispatch.dispatch_no, dispatch.shard_total), (1, 3));
        assert_eq!(dispatch.schedule_version, Some(5));
        assert_eq!(dispatch.scheduled_at_ms, due.timestamp_millis());
        assert_eq!(
            dispatch.start_deadline_ms,
            (due + hours(1)).timestamp_millis()
        );
        assert_eq!(dispatch.timeout_ms, 77_000);
        assert_eq!(dispatch.trace, Some(TraceContext::root(fire)));
        shards.push(dispatch.shard_index);
    }
    shards.sort_unstable();
    assert_eq!(shards, [0, 1, 2]);
}

pub(crate) async fn r70_a_sharded_fire_is_n_executions_of_their_own(ledger: &Fixture) {
    let schedule = ledger.schedule("slices", 4, secs(10)).await;
    let term = ledger.lead().await;
    let shards = ledger.plan_next(&term, &schedule).await;
    let sessions = [
        ledger.session("a").await,
        ledger.session("b").await,
        ledger.session("c").await,
    ];
    let mut seen = Vec::new();
    for (n, id) in shards.iter().enumerate() {
        let claimed = ledger.claim_one(sessions[n % 3], *id).await;
        assert_eq!(claimed.shard_total, 4);
        seen.push(claimed.shard_index);
        ledger.commit_one(&claimed, complete()).await;
    }
    assert_eq!(seen, [0, 1, 2, 3]);
    let results = ledger
        .fire_results(ledger.view(shards[0]).await.fire_id)
        .await
        .unwrap();
    assert_eq!(results.len(), 4);
    assert!(
        results
            .iter()
            .all(|result| result.state == State::Succeeded)
    );
    ledger.assert_laws_hold().await;
}

/// A change of the schedule's shard count or payload leaves what was planned as it was.
pub(crate) async fn r73_shards_are_pinned_when_planned(ledger: &Fixture) {
    let schedule = ledger.schedule("slices", 3, secs(10)).await;
    let term = ledger.lead().await;
    let shards = ledger.plan_next(&term, &schedule).await;
    ledger
        .sql(
            "UPDATE schedule SET shard_total = 2, timeout_ms = 1, max_attempts = 1",
            args![],
        )
        .await;
    let session = ledger.session("worker").await;
    let claimed = ledger.claim_one(session, shards[2]).await;
    assert_eq!(
        (
            claimed.shard_index,
            claimed.shard_total,
            claimed.max_attempts
        ),
        (2, 3, 5)
    );
    assert_eq!(claimed.timeout, secs(300));
    ledger
        .commit_one(&claimed, Outcome::Fail("no".to_owned()))
        .await;
    let read = ledger.schedule_row(schedule.id).await;
    assert_eq!(read.shard_total, 2);
    let next = step(&read, &[read.cursor + secs(1)]);
    assert_eq!(plan_one(&**ledger, &term, &next).await.executions, 2);
    ledger.assert_laws_hold().await;
}

/// What made up for missed instants is not dead on arrival.
pub(crate) async fn a_late_fire_has_its_whole_time_to_start(ledger: &Fixture) {
    let term = ledger.lead().await;
    let mut new = NewSchedule::new(
        "short",
        Timing::Every {
            period_ms: 1000,
            anchor: None,
        },
    );
    new.policy.start_deadline = secs(90);
    let late = ledger.schedule_of(&new, secs(3600)).await;
    new.name = "punctual".into();
    let in_time = ledger.schedule_of(&new, secs(30)).await;
    let session = ledger.session("worker").await;
    for schedule in [&late, &in_time] {
        let due = schedule.cursor + secs(1);
        let before = whole_ms(ledger.now().await);
        let id = ledger.plan_next(&term, schedule).await[0];
        let view = ledger.view(id).await;
        assert_eq!((view.scheduled_at, view.available_at), (due, due));
        let range = if schedule.id == late.id {
            before + secs(90)..=ledger.now().await + secs(90)
        } else {
            due + secs(90)..=due + secs(90)
        };
        assert!(
            range.contains(&view.start_deadline_at),
            "{range:?}: {view:?}"
        );
        assert_eq!(ledger.expire_starts(10).await.unwrap().len(), 0);
        ledger.claim_one(session, id).await;
    }
}
