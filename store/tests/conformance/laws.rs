//! For each law a row planted by plain SQL that breaks it, and the audit names that row.
//!
//! Some states cannot be reached even by hand: what the schema itself forbids is dropped first.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use bellwether_schemas::ids;
use bellwether_store::executions::{Outcome, Retried};
use bellwether_store::leadership::Term;
use bellwether_store::schedules::Schedule;
use uuid::Uuid;

use crate::fixture::Fixture;
use crate::raw::args;
use crate::vocabulary::{hours, one_shot, secs};

/// The laws whose subject exists.
pub(crate) const LAWS: RangeInclusive<u8> = 1..=14;

/// `law` is broken by the row whose name is `named`, and no other law is.
pub(crate) async fn assert_broken(ledger: &Fixture, law: u8, named: impl Display) {
    assert_broken_with(ledger, law, named, None).await;
}

/// As [`assert_broken`], but the same row breaks `also` too.
async fn assert_broken_with(ledger: &Fixture, law: u8, named: impl Display, also: Option<u8>) {
    let named = named.to_string();
    let reports = ledger.audit().await.unwrap();
    for report in &reports {
        if report.law == law {
            assert!(
                report.looked_at > 0 && report.violations > 0,
                "not seen: {report:?}"
            );
            let told = report
                .examples
                .iter()
                .any(|example| example.contains(&named));
            assert!(told, "{named} is not named: {report:?}");
        } else if Some(report.law) != also {
            assert_eq!(
                report.violations, 0,
                "law {law} was broken, and: {report:?}"
            );
        }
    }
}

/// A schedule of `shards` shards with three fires under one term.
async fn planned(ledger: &Fixture, shards: u32) -> (Term, Schedule, Vec<Vec<Uuid>>) {
    let schedule = ledger.schedule("tick", shards, secs(20)).await;
    let term = ledger.lead().await;
    let mut fires = Vec::new();
    for _ in 0..3 {
        fires.push(ledger.plan_next(&term, &schedule).await);
    }
    ledger.assert_laws_hold().await;
    (term, schedule, fires)
}

pub(crate) async fn law_01_one_fire_per_instant(ledger: &Fixture) {
    let (_term, schedule, fires) = planned(ledger, 1).await;
    let original = ledger.view(fires[1][0]).await.fire_id;
    let copy = ids::fresh();
    ledger
        .sql(
            "INSERT INTO fire (id, schedule_id, schedule_version, trigger, scheduled_at,
                 nominal_local, fold, shard_total, payload, content_type, traceparent, tracestate,
                 partition, epoch, term_id, planned_at)
             SELECT $2, schedule_id, schedule_version, trigger, scheduled_at,
                 nominal_local, fold, shard_total, payload, content_type, traceparent, tracestate,
                 partition, epoch, term_id, planned_at
             FROM fire WHERE id = $1",
            args![original, copy],
        )
        .await;
    let execution = ids::execution(copy, 0);
    let insert = "INSERT INTO execution (id, fire_id, shard_index, shard_total, operation_id,
             schedule_id, schedule_version, trigger, job, queue, priority, content_type, timeout_ms,
             max_attempts, on_lost, scheduled_at, start_deadline_at, created_at, state,
             available_at, dispatch_no, dispatched_at)
         SELECT $2, $3, shard_index, shard_total, $2, schedule_id, schedule_version, trigger, job,
             queue, priority, content_type, timeout_ms, max_attempts, on_lost, scheduled_at,
             start_deadline_at, created_at, state, available_at, dispatch_no, dispatched_at
         FROM execution WHERE id = $1";
    ledger
        .sql(insert, args![fires[1][0], execution, copy])
        .await;
    // One fire too many is one more than the schedule has instants.
    assert_broken_with(ledger, 1, schedule.id, Some(2)).await;
}

pub(crate) async fn law_02_every_instant_is_accounted_for(ledger: &Fixture) {
    let (_term, schedule, fires) = planned(ledger, 1).await;
    let missing = ledger.view(fires[1][0]).await;
    ledger
        .sql("DELETE FROM fire WHERE id = $1", args![missing.fire_id])
        .await;
    ledger
        .sql("DELETE FROM execution WHERE id = $1", args![missing.id])
        .await;
    ledger
        .sql(
            "DELETE FROM outbox WHERE execution_id = $1",
            args![missing.id],
        )
        .await;
    assert_broken(ledger, 2, schedule.id).await;
}

pub(crate) async fn law_02_no_instant_is_invented(ledger: &Fixture) {
    let (_term, schedule, fires) = planned(ledger, 1).await;
    let fire = ledger.view(fires[1][0]).await.fire_id;
    let between = schedule.cursor + Duration::from_millis(2500);
    ledger
        .sql(
            "UPDATE fire SET scheduled_at = $2 WHERE id = $1",
            args![fire, between],
        )
        .await;
    assert_broken(ledger, 2, schedule.id).await;
}

pub(crate) async fn law_02_a_fire_from_before_its_schedule_is_invented(ledger: &Fixture) {
    let (_term, schedule, fires) = planned(ledger, 1).await;
    let fire = ledger.view(fires[0][0]).await.fire_id;
    let first = schedule.cursor + secs(1);
    // Retention has come to the first; what it leaves there is no part of the history.
    let moved = "UPDATE schedule SET history_from = $2 WHERE id = $1";
    ledger.sql(moved, args![schedule.id, first]).await;
    ledger.assert_laws_hold().await;
    let before = schedule.created_at - secs(2);
    let text = "UPDATE fire SET scheduled_at = $2 WHERE id = $1";
    ledger.sql(text, args![fire, before]).await;
    assert_broken(ledger, 2, schedule.id).await;
}

pub(crate) async fn law_03_a_fire_has_all_its_shards(ledger: &Fixture) {
    let (_term, _schedule, fires) = planned(ledger, 3).await;
    let fire = ledger.view(fires[2][1]).await.fire_id;
    ledger
        .sql(
            "UPDATE execution SET shard_index = 7 WHERE id = $1",
            args![fires[2][1]],
        )
        .await;
    assert_broken(ledger, 3, fire).await;
}

pub(crate) async fn law_03_no_execution_is_without_its_fire(ledger: &Fixture) {
    let (_term, _schedule, fires) = planned(ledger, 1).await;
    let orphan = ledger.view(fires[1][0]).await;
    ledger
        .sql("DELETE FROM fire WHERE id = $1", args![orphan.fire_id])
        .await;
    // Its instant is not accounted for either.
    assert_broken_with(ledger, 3, orphan.id, Some(2)).await;
}

pub(crate) async fn law_04_shards_add_up(ledger: &Fixture) {
    let (_term, _schedule, fires) = planned(ledger, 2).await;
    let fire = ledger.view(fires[0][0]).await.fire_id;
    let (id, other) = (fires[0][1], ids::execution(fire, 2));
    let insert = "INSERT INTO execution (id, fire_id, shard_index, shard_total, operation_id,
             schedule_id, schedule_version, trigger, job, queue, priority, content_type, timeout_ms,
             max_attempts, on_lost, scheduled_at, start_deadline_at, created_at, state,
             available_at, dispatch_no, dispatched_at)
         SELECT $2, fire_id, 2, shard_total, $2, schedule_id, schedule_version, trigger, job, queue,
             priority, content_type, timeout_ms, max_attempts, on_lost, scheduled_at,
             start_deadline_at, created_at, state, available_at, dispatch_no, dispatched_at
         FROM execution WHERE id = $1";
    ledger.sql(insert, args![id, other]).await;
    // Shards that do not add up cannot be exactly 0..shard_total-1 either.
    assert_broken_with(ledger, 4, fire, Some(3)).await;
}

pub(crate) async fn law_10_due_work_is_represented(ledger: &Fixture) {
    let lost = ledger.enqueue_one(&one_shot("book")).await;
    ledger.enqueue_one(&one_shot("book")).await;
    let past = ledger.ago(hours(1)).await;
    ledger
        .sql("DELETE FROM outbox WHERE execution_id = $1", args![lost])
        .await;
    ledger
        .sql(
            "UPDATE execution SET dispatched_at = NULL, dispatch_no = 0, available_at = $2,
                 created_at = $2, scheduled_at = $2
             WHERE id = $1",
            args![lost, past],
        )
        .await;
    assert_broken(ledger, 10, lost).await;
}

/// The broker lost one message of many: the lane goes on without it.
pub(crate) async fn law_10_a_lane_leaves_nothing_behind(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let lost = ledger.enqueue_one(&one_shot("book")).await;
    ledger.running(session, &one_shot("book")).await;
    ledger.sql("DELETE FROM outbox", args![]).await;
    ledger.assert_laws_hold().await;
    let past = ledger.ago(hours(1)).await;
    ledger
        .sql(
            "UPDATE execution SET dispatched_at = $2, available_at = $2 WHERE id = $1",
            args![lost, past],
        )
        .await;
    assert_broken(ledger, 10, lost).await;
    // Another lane says nothing of this one.
    ledger
        .sql(
            "UPDATE execution SET priority = 'low' WHERE id = $1",
            args![lost],
        )
        .await;
    ledger.assert_laws_hold().await;
}

/// What a lost stream held is reported, but not while relays are seen to send it again.
pub(crate) async fn law_10_a_lost_stream_is_dispatched_again(ledger: &Fixture) {
    let lost = ledger.enqueue_one(&one_shot("book")).await;
    let again = ledger.enqueue_one(&one_shot("book")).await;
    ledger.sql("DELETE FROM outbox", args![]).await;
    let (dispatched, seen) = (ledger.ago(hours(3)).await, ledger.ago(secs(600)).await);
    ledger
        .sql(
            "INSERT INTO stream (name, created, last_seq, seen_at) VALUES ('BW_WORK', $1, 1, $1)",
            args![seen],
        )
        .await;
    ledger
        .sql(
            "UPDATE execution SET dispatched_at = $2, available_at = $2 WHERE id = $1",
            args![lost, dispatched],
        )
        .await;
    assert_broken(ledger, 10, lost).await;
    ledger
        .sql(
            "UPDATE execution SET dispatch_no = 2 WHERE id = $1",
            args![again],
        )
        .await;
    ledger.assert_laws_hold().await;
    let long_ago = ledger.ago(hours(2)).await;
    ledger
        .sql("UPDATE stream SET seen_at = $1", args![long_ago])
        .await;
    assert_broken(ledger, 10, lost).await;
}

pub(crate) async fn law_11_the_outbox_drains(ledger: &Fixture) {
    let stuck = ledger.enqueue_one(&one_shot("book")).await;
    let past = ledger.ago(hours(24)).await;
    ledger
        .sql("UPDATE outbox SET created_at = $1", args![past])
        .await;
    assert_broken(ledger, 11, stuck).await;
}

pub(crate) async fn law_12_fires_are_written_inside_their_term(ledger: &Fixture) {
    let (_term, _schedule, fires) = planned(ledger, 1).await;
    let fire = ledger.view(fires[1][0]).await.fire_id;
    let before = ledger
        .row("SELECT planned_at FROM fire WHERE id = $1", args![fire])
        .await
        .at(0);
    let early = ledger
        .row("SELECT started_at FROM term", args![])
        .await
        .at(0)
        - secs(60);
    ledger
        .sql(
            "UPDATE fire SET planned_at = $2 WHERE id = $1",
            args![fire, early],
        )
        .await;
    assert_broken(ledger, 12, fire).await;
    ledger
        .sql(
            "UPDATE fire SET planned_at = $2 WHERE id = $1",
            args![fire, before],
        )
        .await;
    ledger.assert_laws_hold().await;
    ledger
        .sql(
            "UPDATE fire SET term_id = $2 WHERE id = $1",
            args![fire, ids::token()],
        )
        .await;
    assert_broken(ledger, 12, fire).await;
}

pub(crate) async fn law_12_terms_do_not_overlap(ledger: &Fixture) {
    ledger.lead().await;
    ledger.expire_lease().await;
    ledger.lead().await;
    ledger.assert_laws_hold().await;
    let later = ledger.now().await + secs(60);
    ledger
        .sql(
            "UPDATE term SET ended_at = $1 WHERE epoch = 1",
            args![later],
        )
        .await;
    assert_broken(ledger, 12, "epoch 2").await;
}

/// An execution that failed and its retry, both of shard 1 of 3.
async fn repeated(ledger: &Fixture) -> (Uuid, Uuid) {
    let (_term, _schedule, fires) = planned(ledger, 3).await;
    let session = ledger.session("worker").await;
    let claimed = ledger.claim_one(session, fires[0][1]).await;
    ledger
        .commit_one(&claimed, Outcome::Fail("no".to_owned()))
        .await;
    let answer = ledger.retry_execution(claimed.execution_id, ids::fresh(), None);
    let Retried::Retried { execution_id } = answer.await.unwrap() else {
        panic!("not retried");
    };
    ledger.assert_laws_hold().await;
    (claimed.execution_id, execution_id)
}

pub(crate) async fn law_03_a_retry_repeats_its_shard(ledger: &Fixture) {
    let (_old, retry) = repeated(ledger).await;
    ledger
        .sql(
            "UPDATE execution SET shard_index = 2 WHERE id = $1",
            args![retry],
        )
        .await;
    assert_broken(ledger, 3, retry).await;
    // One that says nothing of what it repeats is an execution without its fire.
    ledger
        .sql(
            "UPDATE execution SET retry_of = NULL WHERE id = $1",
            args![retry],
        )
        .await;
    assert_broken_with(ledger, 3, retry, Some(4)).await;
}

pub(crate) async fn law_04_a_retry_is_one_execution(ledger: &Fixture) {
    let (_old, retry) = repeated(ledger).await;
    let fire = ledger.view(retry).await.fire_id;
    let insert = "INSERT INTO execution (id, fire_id, shard_index, shard_total, operation_id,
             schedule_id, schedule_version, trigger, job, queue, priority, content_type, timeout_ms,
             max_attempts, on_lost, scheduled_at, start_deadline_at, created_at, state,
             available_at, dispatch_no, dispatched_at, retry_of)
         SELECT $2, fire_id, 2, shard_total, $2, schedule_id, schedule_version, trigger, job, queue,
             priority, content_type, timeout_ms, max_attempts, on_lost, scheduled_at,
             start_deadline_at, created_at, state, available_at, dispatch_no, dispatched_at,
             retry_of
         FROM execution WHERE id = $1";
    ledger
        .sql(insert, args![retry, ids::execution(fire, 2)])
        .await;
    // It is not the shard that was repeated either.
    assert_broken_with(ledger, 4, fire, Some(3)).await;
}
