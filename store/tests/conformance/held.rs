//! Held fires and replaced ones: what the sweeps do about them.

use std::time::Duration;

use bellwether_schemas::ids;
use bellwether_schemas::state::{OnLost, Overlap, State, Verdict};
use bellwether_store::executions::{CancelRequested, Claimed, Outcome, Retried, Triggered};
use bellwether_store::probes::Decided;
use bellwether_store::schedules::{NewSchedule, Timing};
use futures_util::future::try_join_all;
use uuid::Uuid;

use crate::fixture::Fixture;
use crate::overlap::{
    FIRES, HELD, PASSED, cancelled, finish, fires, lengths, plan, range, release, scheduled, swept,
};
use crate::probes::said;
use crate::raw::args;
use crate::vocabulary::{LEASE, error_after, hours, secs};

/// The handler obeyed.
fn stopped() -> Outcome {
    Outcome::Cancel("asked to".to_owned())
}

/// A fire of five shards: one waits, one runs, one waits for another attempt, one is unknown,
/// one has ended. Returns it with the running one.
async fn in_every_state(ledger: &Fixture, shards: &[Uuid]) -> Claimed {
    let session = ledger.session("worker").await;
    let lost = ledger.session("lost").await;
    let retried = ledger.claim_one(session, shards[2]).await;
    ledger.commit_one(&retried, error_after(hours(1))).await;
    ledger.claim_one(lost, shards[3]).await;
    ledger.take_over(lost).await;
    finish(ledger, session, shards[4]).await;
    let running = ledger.claim_one(session, shards[1]).await;
    let mut states = Vec::new();
    for &id in shards {
        states.push(ledger.view(id).await.state);
    }
    assert_eq!(
        states,
        [
            State::Pending,
            State::Running,
            State::Retrying,
            State::Unknown,
            State::Succeeded
        ]
    );
    running
}

pub(crate) async fn replace_cancels_what_is_unfinished_and_fires_after_it(ledger: &Fixture) {
    let mut new = NewSchedule::new(
        "tick",
        Timing::Every {
            period_ms: 1000,
            anchor: None,
        },
    );
    new.overlap = Overlap::Replace;
    new.shard_total = 5;
    new.policy.on_lost = OnLost::Unknown;
    let schedule = ledger.schedule_of(&new, hours(1)).await;
    let term = ledger.lead().await;
    let (became, first) = plan(ledger, &term, &schedule).await;
    assert_eq!(became, FIRES);
    assert_eq!(ledger.apply_fire_cancels(100).await.unwrap(), swept(0, 0));
    let running = in_every_state(ledger, &first).await;

    let mut before = Vec::new();
    for &id in &first {
        before.push(ledger.snapshot(id).await);
    }
    let (became, second) = plan(ledger, &term, &schedule).await;
    assert_eq!(became, HELD);
    let views = fires(ledger, &schedule).await;
    assert!(views[0].cancel_requested_at.is_some() && views[1].cancel_requested_at.is_none());
    for (&id, before) in first.iter().zip(before) {
        assert_eq!(
            ledger.snapshot(id).await,
            before,
            "planning asks the fire alone"
        );
    }

    // More executions than one sweep may touch: it goes on with the next.
    // Which of them come first is up to their ids; two only waited, and end.
    let three = ledger.apply_fire_cancels(3).await.unwrap();
    let one = ledger.apply_fire_cancels(3).await.unwrap();
    assert_eq!(three, cancelled(0, 3, three.ended));
    assert_eq!(one, cancelled(1, 1, 2 - three.ended));
    assert_eq!(ledger.apply_fire_cancels(3).await.unwrap(), swept(0, 0));
    for (id, state) in first.iter().zip([
        State::Cancelled,
        State::Running,
        State::Cancelled,
        State::Unknown,
    ]) {
        let view = ledger.view(*id).await;
        assert_eq!(view.state, state);
        assert!(view.cancel_requested_at.is_some());
        let story = ledger.story(*id).await;
        assert_eq!(story.schedule.as_deref(), Some("tick"));
        assert_eq!(story.replaced_by, Some(views[1].id));
        assert!(story.replaced_at <= view.cancel_requested_at);
    }
    assert_eq!(ledger.view(first[4]).await.state, State::Succeeded);
    assert_eq!(release(ledger).await, swept(0, 0), "it still runs");
    assert_eq!(plan(ledger, &term, &schedule).await.0, PASSED);
    assert_eq!(lengths(ledger).await, [range("coalesced", 1)]);

    ledger.commit_one(&running, stopped()).await;
    assert_eq!(release(ledger).await, swept(0, 0), "one may still run");
    let ended = (**ledger).request_cancel(&first[3..4]).await.unwrap();
    assert_eq!(
        ended,
        [CancelRequested::Cancelled],
        "an operator may end it"
    );
    assert_eq!(release(ledger).await, swept(1, 5));
    assert_eq!(ledger.view(second[0]).await.state, State::Pending);
    ledger.assert_laws_hold().await;
}

pub(crate) async fn of_two_sweeps_at_once_one_lets_a_fire_go(ledger: &Fixture) {
    let term = ledger.lead().await;
    let session = ledger.session("worker").await;
    let mut held = Vec::new();
    for number in 0..10 {
        let schedule = scheduled(ledger, &format!("s{number}"), Overlap::QueueOne, 2).await;
        let (_, first) = plan(ledger, &term, &schedule).await;
        let (became, second) = plan(ledger, &term, &schedule).await;
        assert_eq!(became, HELD);
        for id in first {
            finish(ledger, session, id).await;
        }
        held.extend(second);
    }
    assert_eq!(
        ledger.release_held(3).await.unwrap(),
        swept(2, 4),
        "bounded"
    );
    let second = ledger.second().await;
    let sweeps = (0..6).map(|number| {
        let store = if number % 2 == 0 {
            ledger.first()
        } else {
            second.clone()
        };
        tokio::spawn(async move { store.release_held(100).await.unwrap() })
    });
    let swept_by_all = try_join_all(sweeps).await.unwrap();
    let last = release(ledger).await;
    let fires: u64 = swept_by_all.iter().map(|swept| swept.fires).sum();
    let executions: u64 = swept_by_all.iter().map(|swept| swept.executions).sum();
    assert_eq!((fires + last.fires, executions + last.executions), (8, 16));
    for id in held {
        assert_eq!(ledger.outbox_of(id).await, [1], "{id}");
    }
    second.close().await;
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_held_fire_that_ended_makes_room_for_another(ledger: &Fixture) {
    let schedule = scheduled(ledger, "tick", Overlap::QueueOne, 2).await;
    let term = ledger.lead().await;
    let session = ledger.session("worker").await;
    let (_, first) = plan(ledger, &term, &schedule).await;
    let (_, second) = plan(ledger, &term, &schedule).await;
    let cancelled = (**ledger).request_cancel(&second[..1]).await.unwrap();
    assert_eq!(cancelled, [CancelRequested::Cancelled]);
    assert_eq!(
        plan(ledger, &term, &schedule).await.0,
        PASSED,
        "a shard waits"
    );
    assert_eq!(release(ledger).await, swept(0, 0));
    let past = ledger.ago(secs(1)).await;
    ledger
        .sql(
            "UPDATE execution SET start_deadline_at = $2 WHERE id = $1",
            args![second[1], past],
        )
        .await;
    assert_eq!(ledger.expire_starts(100).await.unwrap().len(), 1);
    assert_eq!(ledger.view(second[1]).await.state, State::Expired);

    let (became, third) = plan(ledger, &term, &schedule).await;
    assert_eq!(became, HELD, "nothing waits any more");
    assert_eq!(release(ledger).await, swept(1, 0), "the one that is over");
    for &id in &first {
        finish(ledger, session, id).await;
    }
    assert_eq!(release(ledger).await, swept(1, 2));
    for id in second {
        assert!(ledger.outbox_of(id).await.is_empty(), "never sent");
    }
    assert_eq!(ledger.outbox_of(third[0]).await, [1]);
    ledger.assert_laws_hold().await;
}

/// What an operator wishes is not asked for the policy; the instants are.
pub(crate) async fn triggers_and_retries_count_as_unfinished(ledger: &Fixture) {
    let schedule = scheduled(ledger, "tick", Overlap::Replace, 1).await;
    let term = ledger.lead().await;
    let session = ledger.session("worker").await;
    let (_, first) = plan(ledger, &term, &schedule).await;
    let claimed = ledger.claim_one(session, first[0]).await;
    let no = Outcome::Fail("no".to_owned());
    ledger.commit_one(&claimed, no).await;
    let fire_id = ids::fresh();
    let retried = ledger.retry_execution(first[0], fire_id, None).await;
    let execution_id = ids::execution(fire_id, 0);
    assert_eq!(retried.unwrap(), Retried::Retried { execution_id });
    let (became, second) = plan(ledger, &term, &schedule).await;
    assert_eq!(became, HELD);
    assert_eq!(fires(ledger, &schedule).await[1].held_behind, Some(fire_id));
    assert_eq!(ledger.apply_fire_cancels(100).await.unwrap(), swept(0, 0));
    assert_eq!(release(ledger).await, swept(0, 0), "it is waited for");

    let manual = ids::fresh();
    let fired = Triggered::Fired {
        fire_id: manual,
        shard_total: 1,
    };
    assert_eq!(ledger.trigger("tick", manual, None).await.unwrap(), fired);
    assert_eq!(
        ledger.outbox_of(ids::execution(manual, 0)).await,
        [1],
        "at once"
    );
    finish(ledger, session, execution_id).await;
    assert_eq!(release(ledger).await, swept(0, 0), "the trigger's");
    assert_eq!(plan(ledger, &term, &schedule).await.0, PASSED);
    assert_eq!(
        ledger.apply_fire_cancels(100).await.unwrap(),
        cancelled(1, 1, 1)
    );
    let replaced = ledger.view(ids::execution(manual, 0)).await;
    assert_eq!(
        replaced.state,
        State::Cancelled,
        "a trigger is replaced too"
    );
    assert_eq!(release(ledger).await, swept(1, 1));
    finish(ledger, session, second[0]).await;
    ledger.assert_laws_hold().await;
}

pub(crate) async fn law_10_a_held_fire_is_not_forgotten(ledger: &Fixture) {
    let schedule = scheduled(ledger, "tick", Overlap::QueueOne, 1).await;
    let term = ledger.lead().await;
    let session = ledger.session("worker").await;
    let (_, first) = plan(ledger, &term, &schedule).await;
    plan(ledger, &term, &schedule).await;
    let broken = async || {
        let reports = ledger.audit().await.unwrap();
        let report = reports.iter().find(|report| report.law == 10).unwrap();
        (report.violations, report.examples.concat())
    };
    let past = ledger.ago(secs(60)).await;
    ledger
        .sql("UPDATE fire SET planned_at = $1", args![past])
        .await;
    assert_eq!(broken().await.0, 0, "the one before is unfinished");
    finish(ledger, session, first[0]).await;
    assert_eq!(broken().await.0, 0, "the sweep has its time");
    ledger
        .sql(
            "UPDATE execution SET ended_at = $2 WHERE id = $1",
            args![first[0], past],
        )
        .await;
    let (violations, example) = broken().await;
    let held = fires(ledger, &schedule).await[1].id.to_string();
    assert_eq!(violations, 1);
    assert!(example.contains(&held), "{example}");
    assert_eq!(release(ledger).await, swept(1, 1));
    assert_eq!(broken().await.0, 0);
}

/// A user's transaction may hold an execution for long: neither planning nor a sweep waits for it.
pub(crate) async fn a_locked_execution_delays_no_plan_and_no_sweep(ledger: &Fixture) {
    let Some(pool) = ledger.raw().postgres() else {
        return; // One writer: no single row is ever locked.
    };
    let schedule = scheduled(ledger, "tick", Overlap::Replace, 2).await;
    let term = ledger.lead().await;
    let (_, first) = plan(ledger, &term, &schedule).await;
    let session = ledger.session("worker").await;
    let claimed = ledger.claim_one(session, first[0]).await;
    let mut held = pool.begin().await.unwrap();
    sqlx::query("SELECT id FROM execution WHERE id = $1 FOR UPDATE")
        .bind(first[0])
        .execute(&mut *held)
        .await
        .unwrap();
    assert_eq!(plan(ledger, &term, &schedule).await.0, HELD);
    assert_eq!(
        ledger.apply_fire_cancels(100).await.unwrap(),
        cancelled(0, 1, 1)
    );
    assert_eq!(ledger.apply_fire_cancels(100).await.unwrap(), swept(0, 0));
    assert_eq!(release(ledger).await, swept(0, 0));
    assert_eq!(plan(ledger, &term, &schedule).await.0, PASSED);
    held.rollback().await.unwrap();
    assert_eq!(ledger.apply_fire_cancels(100).await.unwrap(), swept(1, 1));
    ledger.commit_one(&claimed, stopped()).await;
    assert_eq!(release(ledger).await, swept(1, 2));
    ledger.assert_laws_hold().await;
}

/// What was promised goes on after a removal.
pub(crate) async fn a_held_fire_outlives_its_schedule(ledger: &Fixture) {
    let schedule = scheduled(ledger, "tick", Overlap::QueueOne, 1).await;
    let term = ledger.lead().await;
    let session = ledger.session("worker").await;
    let (_, first) = plan(ledger, &term, &schedule).await;
    let (became, second) = plan(ledger, &term, &schedule).await;
    assert_eq!(became, HELD);
    ledger.remove_schedule("tick").await.unwrap();
    assert_eq!(release(ledger).await, swept(0, 0));
    let claimed = ledger.claim_one(session, first[0]).await;
    ledger
        .commit_one(&claimed, error_after(Duration::ZERO))
        .await;
    assert_eq!(release(ledger).await, swept(0, 0), "it is tried again");
    finish(ledger, session, first[0]).await;
    assert_eq!(release(ledger).await, swept(1, 1));
    finish(ledger, session, second[0]).await;
    ledger.assert_laws_hold().await;
}

/// A schedule of policy `replace` whose first fire is unknown, with another held behind it and the
/// request handed on; the unknown execution.
async fn replaced_unknown(ledger: &Fixture, name: &str) -> Uuid {
    let term = ledger.lead().await;
    let mut new = NewSchedule::new(
        name,
        Timing::Every {
            period_ms: 1000,
            anchor: None,
        },
    );
    new.overlap = Overlap::Replace;
    new.policy.on_lost = OnLost::Unknown;
    let schedule = ledger.schedule_of(&new, hours(1)).await;
    let (_, first) = plan(ledger, &term, &schedule).await;
    let lost = ledger.session("lost").await;
    ledger.claim_one(lost, first[0]).await;
    ledger.take_over(lost).await;
    assert_eq!(plan(ledger, &term, &schedule).await.0, HELD);
    assert_eq!(ledger.apply_fire_cancels(100).await.unwrap(), swept(1, 1));
    let view = ledger.view(first[0]).await;
    assert_eq!(view.state, State::Unknown, "its worker may still be at it");
    assert!(view.cancel_requested_at.is_some());
    assert_eq!(ledger.apply_fire_cancels(100).await.unwrap(), swept(0, 0));
    assert_eq!(release(ledger).await, swept(0, 0), "it is waited for");
    first[0]
}

pub(crate) async fn a_replaced_unknown_execution_is_ended_by_its_probe(ledger: &Fixture) {
    let id = replaced_unknown(ledger, "tick").await;
    ledger.dispatch_probe(id).await;
    let session = ledger.session("worker").await;
    let probe = ledger.probe_one(session, id).await;
    let decided = ledger.commit_probe(&said(&probe, Verdict::NotDone)).await;
    assert_eq!(decided.unwrap(), Decided::Accepted(State::Cancelled));
    assert_eq!(release(ledger).await, swept(1, 1));
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_replaced_unknown_execution_is_escalated(ledger: &Fixture) {
    let id = replaced_unknown(ledger, "tick").await;
    ledger.lost_long_ago(id).await;
    assert_eq!(ledger.escalate_unknown(LEASE, 10).await.unwrap(), 1);
    assert_eq!(release(ledger).await, swept(0, 0));
    let ended = (**ledger).request_cancel(&[id]).await.unwrap();
    assert_eq!(ended, [CancelRequested::Cancelled]);
    assert_eq!(release(ledger).await, swept(1, 1));
    ledger.assert_laws_hold().await;
}

/// More are held than one round looks at: the next goes on behind them, and then from the first one.
pub(crate) async fn fires_that_stay_held_hide_none_behind_them(ledger: &Fixture) {
    let term = ledger.lead().await;
    let session = ledger.session("worker").await;
    let mut firsts = Vec::new();
    for number in 0..25 {
        let schedule = scheduled(ledger, &format!("s{number}"), Overlap::QueueOne, 1).await;
        let (_, first) = plan(ledger, &term, &schedule).await;
        assert_eq!(plan(ledger, &term, &schedule).await.0, HELD);
        firsts.push((schedule.id, first[0]));
    }
    firsts.sort_unstable();
    finish(ledger, session, firsts[24].1).await;
    let round = async || ledger.release_held(1).await.unwrap();
    for _ in 0..2 {
        assert_eq!(round().await, swept(0, 0), "ten are looked at");
    }
    assert_eq!(round().await, swept(1, 1));
    finish(ledger, session, firsts[0].1).await;
    assert_eq!(round().await, swept(1, 1), "from the first one again");
    ledger.assert_laws_hold().await;
}
