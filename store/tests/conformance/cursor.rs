//! Cursors: when a planning statement moves one, and when it must not.

use bellwether_schemas::ids;
use bellwether_schemas::limits::PLAN_EXECUTIONS_MAX;
use bellwether_store::ErrorKind;
use bellwether_store::leadership::Term;
use bellwether_store::planning::PlanStep;

use crate::fixture::Fixture;
use crate::planning::{plan_one, written};
use crate::raw::args;
use crate::vocabulary::{hours, nothing_planned, secs, step};

pub(crate) async fn the_same_step_twice_changes_nothing(ledger: &Fixture) {
    let schedule = ledger.schedule("tick", 3, secs(10)).await;
    let term = ledger.lead().await;
    let step = step(&schedule, &[schedule.cursor + secs(1)]);
    assert_eq!(plan_one(&**ledger, &term, &step).await.executions, 3);
    let again = plan_one(&**ledger, &term, &step).await;
    assert!(
        again.term_ok && nothing_planned(&again),
        "the cursor has moved: {again:?}"
    );
    assert_eq!(written(ledger).await, (1, 3, 3));

    // As after a restored backup: the cursor stands where it stood, the fire is there already.
    let id = step.fires[0].id;
    let before = ledger.snapshot(ids::execution(id, 1)).await;
    ledger
        .sql(
            "UPDATE schedule SET cursor = $2 WHERE id = $1",
            args![schedule.id, schedule.cursor],
        )
        .await;
    let restored = plan_one(&**ledger, &term, &step).await;
    assert_eq!(restored.moved, [schedule.id]);
    assert_eq!(
        (restored.fires, restored.fires_existing, restored.executions),
        (0, 1, 0)
    );
    assert_eq!(written(ledger).await, (1, 3, 3));
    assert_eq!(ledger.snapshot(ids::execution(id, 1)).await, before);
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_stale_term_writes_nothing(ledger: &Fixture) {
    let schedule = ledger.schedule("tick", 2, secs(10)).await;
    let step = step(&schedule, &[schedule.cursor + secs(1)]);
    let old = ledger.lead().await;
    ledger.expire_lease().await;
    let expired = plan_one(&**ledger, &old, &step).await;
    assert!(
        !expired.term_ok && nothing_planned(&expired),
        "expired: {expired:?}"
    );
    let new = ledger.lead().await;
    let stale = [
        old,
        Term {
            term_id: ids::token(),
            ..new.clone()
        },
        Term {
            epoch: new.epoch + 1,
            ..new.clone()
        },
        Term {
            map_version: 2,
            ..new.clone()
        },
        Term {
            partition: 1,
            ..new.clone()
        },
    ];
    for term in stale {
        let planned = plan_one(&**ledger, &term, &step).await;
        assert!(
            !planned.term_ok && nothing_planned(&planned),
            "{term:?}: {planned:?}"
        );
    }
    assert_eq!(written(ledger).await, (0, 0, 0));
    assert_eq!(
        ledger.schedule_row(schedule.id).await.cursor,
        schedule.cursor
    );
    assert_eq!(
        plan_one(&**ledger, &new, &step).await.fires,
        1,
        "the term in force plans"
    );
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_step_ahead_of_the_clock_is_not_moved(ledger: &Fixture) {
    let early = ledger.schedule("early", 1, secs(10)).await;
    let due = ledger.schedule("due", 1, secs(10)).await;
    let term = ledger.lead().await;
    let ahead = step(&early, &[early.cursor + hours(1)]);
    let steps = [ahead.clone(), step(&due, &[due.cursor + secs(1)])];
    let planned = ledger.plan(&term, &steps).await.unwrap();
    assert_eq!((planned.term_ok, planned.moved), (true, vec![due.id]));
    assert_eq!((planned.fires, planned.executions), (1, 1));
    assert_eq!(written(ledger).await, (1, 1, 1));
    assert_eq!(ledger.schedule_row(early.id).await.cursor, early.cursor);
    assert!(nothing_planned(&plan_one(&**ledger, &term, &ahead).await));
    ledger.assert_laws_hold().await;
}

/// Two processes of one term, as a leader that was restarted and its own ghost.
pub(crate) async fn p58_one_of_two_planners_moves_the_cursor(ledger: &Fixture) {
    let schedule = ledger.schedule("tick", 2, secs(60)).await;
    let term = ledger.lead().await;
    let second = ledger.second().await;
    for round in 1..=10 {
        let read = ledger.schedule_row(schedule.id).await;
        let step = step(&read, &[read.cursor + secs(1)]);
        let plans = [ledger.first(), second.clone()].map(|store| {
            let (term, step) = (term.clone(), step.clone());
            tokio::spawn(async move { store.plan(&term, &[step]).await.unwrap() })
        });
        let answers = futures_util::future::try_join_all(plans).await.unwrap();
        let moved: usize = answers.iter().map(|planned| planned.moved.len()).sum();
        let fires: u64 = answers.iter().map(|planned| planned.fires).sum();
        let existing: u64 = answers.iter().map(|planned| planned.fires_existing).sum();
        assert_eq!(
            (moved, fires, existing),
            (1, 1, 0),
            "round {round}: {answers:?}"
        );
        assert!(answers.iter().all(|planned| planned.term_ok));
        assert_eq!(written(ledger).await, (round, 2 * round, 2 * round));
    }
    second.close().await;
    ledger.assert_laws_hold().await;
}

/// What was read is not what is there: an edit in between makes the step stale.
pub(crate) async fn p34_a_changed_schedule_is_read_again(ledger: &Fixture) {
    let schedule = ledger.schedule("tick", 1, secs(10)).await;
    let term = ledger.lead().await;
    let read = step(&schedule, &[schedule.cursor + secs(1)]);
    let changes: [(&'static str, &'static str); 3] = [
        (
            "UPDATE schedule SET version = version + 1",
            "UPDATE schedule SET version = version - 1",
        ),
        (
            "UPDATE schedule SET enabled = false",
            "UPDATE schedule SET enabled = true",
        ),
        (
            "UPDATE schedule SET deleted_at = created_at",
            "UPDATE schedule SET deleted_at = NULL",
        ),
    ];
    for (change, back) in changes {
        ledger.sql(change, args![]).await;
        let planned = plan_one(&**ledger, &term, &read).await;
        assert!(
            planned.term_ok && nothing_planned(&planned),
            "{change}: {planned:?}"
        );
        ledger.sql(back, args![]).await;
    }
    let elsewhere = PlanStep {
        cursor: schedule.cursor - secs(1),
        ..read.clone()
    };
    assert!(nothing_planned(
        &plan_one(&**ledger, &term, &elsewhere).await
    ));
    let unknown = PlanStep {
        schedule_id: ids::fresh(),
        ..read.clone()
    };
    assert!(nothing_planned(&plan_one(&**ledger, &term, &unknown).await));
    assert_eq!(written(ledger).await, (0, 0, 0));
    assert_eq!(plan_one(&**ledger, &term, &read).await.fires, 1);
    ledger.assert_laws_hold().await;
}

/// The outbox refuses the row: the cursor stays too.
pub(crate) async fn p37_cursor_and_outbox_move_together(ledger: &Fixture) {
    let schedule = ledger.schedule("tick", 2, secs(10)).await;
    let term = ledger.lead().await;
    let step = step(&schedule, &[schedule.cursor + secs(1)]);
    ledger
        .ddl(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql
                 AS $$ BEGIN RAISE EXCEPTION 'disk full'; END $$;
             CREATE TRIGGER refuse BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION refuse()",
            "CREATE TRIGGER refuse BEFORE INSERT ON outbox
                 BEGIN SELECT RAISE(ABORT, 'disk full'); END",
        )
        .await;
    let error = ledger
        .plan(&term, std::slice::from_ref(&step))
        .await
        .expect_err("disk full");
    assert!(error.to_string().contains("disk full"), "{error}");
    assert_eq!(written(ledger).await, (0, 0, 0));
    assert_eq!(
        ledger.schedule_row(schedule.id).await.cursor,
        schedule.cursor
    );

    ledger
        .ddl("DROP TRIGGER refuse ON outbox", "DROP TRIGGER refuse")
        .await;
    let planned = plan_one(&**ledger, &term, &step).await;
    assert_eq!(
        (planned.fires, planned.executions),
        (1, 2),
        "the same step goes through"
    );
    assert_eq!(written(ledger).await, (1, 2, 2));
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_step_too_large_for_one_statement_is_refused(ledger: &Fixture) {
    let big = u32::try_from(PLAN_EXECUTIONS_MAX / 2).unwrap();
    let schedule = ledger.schedule("slices", big, secs(10)).await;
    let term = ledger.lead().await;
    let instants = [1, 2, 3].map(|n| schedule.cursor + secs(n));
    let three = step(&schedule, &instants);
    let error = ledger
        .plan(&term, std::slice::from_ref(&three))
        .await
        .expect_err("1,500 executions");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("1500"), "{error}");
    assert_eq!(written(ledger).await, (0, 0, 0));
    let two = step(&schedule, &instants[..2]);
    let planned = plan_one(&**ledger, &term, &two).await;
    assert_eq!(
        (planned.fires, planned.executions),
        (2, 1000),
        "as many as a statement may"
    );
    ledger.assert_laws_hold().await;
}

/// A session that was left open holds one schedule's row: it is left out, and read again.
pub(crate) async fn a_locked_schedule_stops_no_other(ledger: &Fixture) {
    let Some(pool) = ledger.raw().postgres() else {
        return; // One writer: no single row is ever locked.
    };
    let term = ledger.lead().await;
    let locked = ledger.schedule("locked", 1, secs(10)).await;
    let free = ledger.schedule("free", 1, secs(10)).await;
    let steps = [&locked, &free].map(|one| step(one, &[one.cursor + secs(1)]));
    let mut held = pool.begin().await.unwrap();
    sqlx::query("SELECT id FROM schedule WHERE id = $1 FOR UPDATE")
        .bind(locked.id)
        .execute(&mut *held)
        .await
        .unwrap();
    let planned = ledger.plan(&term, &steps).await.unwrap();
    assert_eq!((planned.term_ok, planned.fires), (true, 1), "{planned:?}");
    assert_eq!(planned.moved, [free.id]);
    held.rollback().await.unwrap();
    let planned = ledger.plan(&term, &steps).await.unwrap();
    assert_eq!(planned.moved, [locked.id]);
    ledger.assert_laws_hold().await;
}
