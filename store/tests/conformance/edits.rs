//! Edits of schedules: what fires, what is recorded, and who is told that it was too late.

use bellwether_schemas::ids;
use bellwether_schemas::state::{Overlap, Priority};
use bellwether_store::edit::{self, Edited};
use bellwether_store::executions::Triggered;
use bellwether_store::leadership::Term;
use bellwether_store::planning::PlanStep;
use bellwether_store::schedules::{FoundSchedule, NewSchedule, RetryPolicy, Timing};
use bellwether_store::{Payload, Store};
use bellwether_time::MisfirePolicy;
use chrono::{DateTime, Utc};

use crate::fixture::Fixture;
use crate::planning::plan_one;
use crate::raw::args;
use crate::vocabulary::{hours, nothing_planned, secs, step};

pub(crate) fn every(seconds: i64) -> Timing {
    Timing::Every {
        period_ms: seconds * 1000,
        anchor: None,
    }
}

pub(crate) fn cron(expr: &str) -> Timing {
    Timing::Cron {
        expr: expr.to_owned(),
        zone: "UTC".to_owned(),
    }
}

impl Fixture {
    /// What an edit reads.
    pub(crate) async fn found(&self, name: &str) -> FoundSchedule {
        let mut found = self.find_schedules(&[name.to_owned()]).await.unwrap();
        assert_eq!(found.len(), 1, "schedules of the name {name}");
        found.remove(0).unwrap()
    }

    /// Reason and count of each range without fires, oldest first.
    pub(crate) async fn ranges(&self) -> Vec<(String, i64)> {
        let text = "SELECT reason, count FROM non_fire ORDER BY from_at";
        let rows = self.rows(text, args![]).await;
        rows.iter()
            .map(|row| (row.text(0).to_owned(), row.int(1)))
            .collect()
    }

    pub(crate) async fn timings(&self) -> i64 {
        self.count("SELECT count(*) FROM schedule_timing", args![])
            .await
    }

    /// Edits the timing of `name`.
    pub(crate) async fn retime(&self, name: &str, timing: Timing) -> Edited {
        edit::edit(&**self, name, |new| {
            new.timing = timing.clone();
            Ok(())
        })
        .await
        .unwrap()
    }
}

/// Plans all that is due, as a ticker does.
pub(crate) async fn plan_due(store: &dyn Store, term: &Term) {
    let due = store.due_schedules(&[0], 100).await.unwrap();
    let steps = due.schedules.iter().map(|schedule| {
        let timing = schedule.timing.evaluate().unwrap();
        let mut instants: Vec<DateTime<Utc>> = Vec::new();
        let mut at = schedule.cursor;
        while let Some(next) = timing.next_after(at).filter(|next| *next <= due.now) {
            instants.push(next);
            at = next;
        }
        PlanStep {
            new_next_at: timing.next_after(at),
            ..step(schedule, &instants)
        }
    });
    let steps: Vec<PlanStep> = steps.collect();
    assert!(store.plan(term, &steps).await.unwrap().term_ok);
}

/// Three days of a daily schedule that no ticker planned, then another time of day that has
/// passed today, and yesterday.
pub(crate) async fn p08_a_changed_cron_does_not_fire_at_once(ledger: &Fixture) {
    let new = NewSchedule::new("nightly", cron("0 0 0 * * *"));
    let old = ledger.schedule_of(&new, hours(3 * 24)).await;
    let term = ledger.lead().await;
    let edited = ledger.retime("nightly", cron("*/30 * * * * *")).await;
    assert_eq!(edited, Edited::Done(2));

    let row = ledger.schedule_row(old.id).await;
    assert_eq!((row.id, row.version, row.next_at), (old.id, 2, None));
    assert!(row.edited_at.is_some() && row.code_hash.is_none());
    let now = ledger.now().await;
    let patience = chrono::TimeDelta::seconds(20);
    assert!(row.cursor <= now && row.cursor > now - patience, "{row:?}");
    let passed = old.timing.evaluate().unwrap();
    let passed = i64::try_from(passed.count(old.cursor, row.cursor)).unwrap();
    assert!(passed >= 3, "{passed} midnights");
    assert_eq!(ledger.ranges().await, [("edited".to_owned(), passed)]);

    let late = step(&old, &[old.cursor + hours(24)]);
    assert!(nothing_planned(&plan_one(&**ledger, &term, &late).await));
    let due = ledger.due_schedules(&[0], 10).await.unwrap();
    let [again] = &due.schedules[..] else {
        panic!("{due:?}")
    };
    let next = again.timing.evaluate().unwrap().next_after(again.cursor);
    assert!(next.unwrap() > row.cursor, "nothing of the past");
    plan_due(&**ledger, &term).await;
    let since = ledger.count("SELECT count(*) FROM fire", args![]).await;
    assert!(since <= 1, "{since} fires within seconds");
    ledger.assert_laws_hold().await;
}

/// What is due is planned by the ticker while the edit waits: it fires, as it was to.
pub(crate) async fn an_edit_lets_the_ticker_plan_what_is_due(ledger: &Fixture) {
    let new = NewSchedule::new("hourly", every(3600));
    let old = ledger.schedule_of(&new, hours(1) + secs(10)).await;
    let term = ledger.lead().await;
    let (edited, ()) = tokio::join!(ledger.retime("hourly", every(7200)), async {
        plan_one(&**ledger, &term, &step(&old, &[old.cursor + hours(1)])).await;
    });
    assert_eq!(edited, Edited::Done(2));
    assert_eq!(ledger.fires(old.id, 10).await.unwrap().len(), 1);
    assert_eq!(ledger.ranges().await, []);
    assert_eq!(ledger.timings().await, 2);
    let row = ledger.schedule_row(old.id).await;
    let Timing::Every { anchor, period_ms } = row.timing else {
        panic!("{row:?}")
    };
    assert_eq!((anchor, period_ms), (Some(row.cursor), 7_200_000));
    ledger.assert_laws_hold().await;

    // The same once more changes nothing.
    let again = edit::edit(&**ledger, "hourly", |new| {
        new.timing = every(7200);
        Ok(())
    });
    assert_eq!(again.await.unwrap(), Edited::Unchanged);
    assert_eq!(ledger.retime("nobody", every(60)).await, Edited::NotFound);
}

/// What was due before a pause fires, where a ticker is there to plan it.
pub(crate) async fn a_pause_lets_the_ticker_plan_what_is_due(ledger: &Fixture) {
    let new = NewSchedule::new("hourly", every(3600));
    let old = ledger.schedule_of(&new, hours(1) + secs(10)).await;
    let term = ledger.lead().await;
    let pause = async |enabled| {
        edit::set_enabled(&**ledger, "hourly", enabled)
            .await
            .unwrap()
    };
    let (paused, ()) = tokio::join!(pause(false), async {
        plan_one(&**ledger, &term, &step(&old, &[old.cursor + hours(1)])).await;
    });
    assert_eq!(paused, Edited::Done(2));
    assert_eq!(ledger.fires(old.id, 10).await.unwrap().len(), 1);
    assert_eq!(pause(true).await, Edited::Done(3));
    assert_eq!(ledger.ranges().await, [], "nothing was passed");
    ledger.assert_laws_hold().await;
}

/// What is due is planned as it was to be, while the edit waits: with the payload and by the rule that
/// stood when it came.
pub(crate) async fn what_was_missed_is_judged_by_the_definition_of_its_time(ledger: &Fixture) {
    let mut new = NewSchedule::new("hourly", every(3600));
    new.payload = Payload::json("1");
    let old = ledger.schedule_of(&new, hours(1) + secs(10)).await;
    let term = ledger.lead().await;
    let edited = edit::edit(&**ledger, "hourly", |new| {
        new.payload = Payload::json("2");
        new.overlap = Overlap::Skip;
        new.shard_total = 3;
        Ok(())
    });
    let due = step(&old, &[old.cursor + hours(1)]);
    let (edited, planned) = tokio::join!(edited, plan_one(&**ledger, &term, &due));
    assert_eq!((edited.unwrap(), planned.fires), (Edited::Done(2), 1));
    let session = ledger.session("worker").await;
    let claimed = ledger
        .claim_one(session, ids::execution(due.fires[0].id, 0))
        .await;
    assert_eq!(
        (&claimed.payload.bytes[..], claimed.shard_total),
        (&b"1"[..], 1)
    );
    assert_eq!(ledger.ranges().await, []);
    let row = ledger.schedule_row(old.id).await;
    assert_eq!(row.cursor, due.new_cursor, "nothing else was due");
    ledger.assert_laws_hold().await;
}

/// Without a ticker what was due fires by neither rule, and is told; of words nothing depends.
pub(crate) async fn what_no_ticker_planned_before_an_edit_is_one_range(ledger: &Fixture) {
    let old = ledger.schedule("tick", 1, hours(1)).await;
    let edited = edit::edit(&**ledger, "tick", |new| {
        "in other words".clone_into(&mut new.description);
        Ok(())
    });
    assert_eq!(edited.await.unwrap(), Edited::Done(2));
    assert_eq!(ledger.schedule_row(old.id).await.cursor, old.cursor);
    let edited = edit::edit(&**ledger, "tick", |new| {
        new.misfire = MisfirePolicy::CatchUp {
            max: 100,
            window: hours(2),
        };
        Ok(())
    });
    assert_eq!(edited.await.unwrap(), Edited::Done(3));
    let row = ledger.schedule_row(old.id).await;
    let passed = (row.cursor - old.cursor).num_seconds();
    assert!(passed >= 3600, "{passed}");
    assert_eq!(ledger.ranges().await, [("edited".to_owned(), passed)]);
    assert_eq!(ledger.timings().await, 1, "its timing is what it was");
    let term = ledger.lead().await;
    plan_due(&**ledger, &term).await;
    assert!(ledger.fires(old.id, 100).await.unwrap().len() < 60);
    ledger.assert_laws_hold().await;
}

pub(crate) async fn p48_a_pause_is_one_range_and_resuming_fires_nothing(ledger: &Fixture) {
    let schedule = ledger.schedule("tick", 1, secs(20)).await;
    let term = ledger.lead().await;
    for _ in 0..3 {
        ledger.plan_next(&term, &schedule).await;
    }
    let before = ledger.schedule_row(schedule.id).await;
    let pause = async |enabled| edit::set_enabled(&**ledger, "tick", enabled).await.unwrap();
    assert_eq!(pause(false).await, Edited::Done(2));
    assert_eq!(pause(false).await, Edited::Unchanged);
    let paused = ledger.schedule_row(schedule.id).await;
    assert_eq!(
        (paused.enabled, paused.version, paused.cursor),
        (false, 2, before.cursor)
    );
    assert_eq!(paused.edited_at, None, "a pause is no edit");
    assert!(
        ledger
            .due_schedules(&[0], 10)
            .await
            .unwrap()
            .schedules
            .is_empty()
    );
    for read in [&before, &paused] {
        let late = step(read, &[read.cursor + secs(1)]);
        assert!(nothing_planned(&plan_one(&**ledger, &term, &late).await));
    }
    assert_eq!(ledger.ranges().await, []);
    ledger.assert_laws_hold().await;

    assert_eq!(pause(true).await, Edited::Done(3));
    let resumed = ledger.schedule_row(schedule.id).await;
    assert!(resumed.enabled && resumed.cursor >= before.cursor + secs(17));
    assert_eq!((resumed.next_at, resumed.ended), (None, false));
    let instants = (resumed.cursor - before.cursor).num_seconds();
    assert_eq!(ledger.ranges().await, [("paused".to_owned(), instants)]);
    assert_eq!(ledger.fires(schedule.id, 10).await.unwrap().len(), 3);
    assert_eq!(ledger.timings().await, 1, "its timing is what it was");
    ledger.assert_laws_hold().await;

    // Another pause, with an edit of the timing inside: what each instants is told apart.
    assert_eq!(pause(false).await, Edited::Done(4));
    assert_eq!(ledger.retime("tick", every(2)).await, Edited::Done(5));
    assert_eq!(pause(true).await, Edited::Done(6));
    assert_eq!(ledger.timings().await, 2);
    plan_due(&**ledger, &term).await;
    ledger.assert_laws_hold().await;
}

/// A ticker that goes on planning while operators edit and pause: no instant is lost or doubled.
pub(crate) async fn edits_race_a_planner_without_a_gap(ledger: &Fixture) {
    let schedule = ledger.schedule("tick", 1, secs(5)).await;
    let term = ledger.lead().await;
    plan_due(&**ledger, &term).await;
    let second = ledger.second().await;
    let (done, stop) = tokio::sync::oneshot::channel::<()>();
    let planner = tokio::spawn({
        let (store, term) = (ledger.first(), term.clone());
        async move {
            let mut stop = stop;
            while stop.try_recv().is_err() {
                plan_due(&*store, &term).await;
            }
        }
    });
    let mut version = 1;
    for round in 0..20 {
        let period = 1 + round % 2;
        let edited = edit::edit(&*second, "tick", |new| {
            new.timing = every(period);
            new.payload = Payload::json(round.to_string());
            Ok(())
        });
        version += 1;
        assert_eq!(edited.await.unwrap(), Edited::Done(version), "{round}");
        for enabled in [false, true] {
            let paused = edit::set_enabled(&*second, "tick", enabled);
            version += 1;
            assert_eq!(paused.await.unwrap(), Edited::Done(version), "{round}");
        }
    }
    done.send(()).unwrap();
    planner.await.unwrap();
    second.close().await;
    assert!(ledger.fires(schedule.id, 100).await.unwrap().len() >= 5);
    ledger.assert_laws_hold().await;
}

pub(crate) async fn an_edit_of_other_fields_keeps_cursor_and_next_instant(ledger: &Fixture) {
    let new = NewSchedule::new("tick", every(3600));
    let schedule = ledger.schedule_of(&new, hours(1) + secs(10)).await;
    let term = ledger.lead().await;
    let first = PlanStep {
        new_next_at: Some(schedule.cursor + hours(2)),
        ..step(&schedule, &[schedule.cursor + hours(1)])
    };
    assert_eq!(plan_one(&**ledger, &term, &first).await.fires, 1);
    let before = ledger.schedule_row(schedule.id).await;
    let edited = edit::edit(&**ledger, "tick", |new| {
        "another".clone_into(&mut new.name);
        "in other words".clone_into(&mut new.description);
        "elsewhere".clone_into(&mut new.queue);
        new.priority = Priority::High;
        new.payload = Payload::json("{\"n\":2}");
        new.shard_total = 2;
        new.policy.max_attempts = 9;
        new.policy.retry = RetryPolicy {
            first: secs(3),
            cap: secs(4),
        };
        new.misfire = MisfirePolicy::CatchUp {
            max: 7,
            window: hours(2),
        };
        new.overlap = Overlap::Skip;
        Ok(())
    });
    assert_eq!(edited.await.unwrap(), Edited::Done(2));
    let row = ledger.schedule_row(schedule.id).await;
    assert_eq!(row.name, "tick", "a name is for ever");
    let caught_up = MisfirePolicy::CatchUp {
        max: 7,
        window: hours(2),
    };
    assert_eq!((row.misfire, row.overlap), (caught_up, Overlap::Skip));
    assert_eq!(
        (row.policy.retry.first, row.policy.retry.cap),
        (secs(3), secs(4))
    );
    let back = edit::edit(&**ledger, "tick", |new| {
        new.misfire = MisfirePolicy::Skip;
        new.overlap = Overlap::Allow;
        Ok(())
    });
    assert_eq!(back.await.unwrap(), Edited::Done(3));
    let row = ledger.schedule_row(schedule.id).await;
    assert_eq!(
        (row.misfire, row.overlap),
        (MisfirePolicy::Skip, Overlap::Allow)
    );
    assert_eq!(
        (row.version, row.cursor, row.next_at, row.ended),
        (3, before.cursor, before.next_at, false)
    );
    assert_eq!((&*row.description, row.shard_total), ("in other words", 2));
    assert_eq!(row.timing, before.timing);
    assert_eq!((ledger.timings().await, ledger.ranges().await), (1, vec![]));
    let queues = ledger.queues().await.unwrap();
    assert!(queues.contains(&"elsewhere".to_owned()), "{queues:?}");

    let late = step(&before, &[before.cursor + secs(1)]);
    assert!(
        nothing_planned(&plan_one(&**ledger, &term, &late).await),
        "what was read is not what is there"
    );
    let fire_id = ids::fresh();
    let fired = Triggered::Fired {
        fire_id,
        shard_total: 2,
    };
    assert_eq!(ledger.trigger("tick", fire_id, None).await.unwrap(), fired);
    let shards = [0, 1].map(|shard| ids::execution(fire_id, shard));
    let view = ledger.view(shards[1]).await;
    assert_eq!((view.schedule_version, view.max_attempts), (Some(3), 9));
    assert_eq!((&*view.queue, view.priority), ("elsewhere", Priority::High));
    let session = ledger.session("worker").await;
    let claimed = ledger.claim_one(session, shards[1]).await;
    assert_eq!(claimed.payload.bytes, b"{\"n\":2}");
    ledger.assert_laws_hold().await;
}
