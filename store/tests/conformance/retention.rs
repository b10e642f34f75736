//! Retention: what goes, what stays, and that every law holds in between.

use std::time::Duration;

use bellwether_schemas::ids;
use bellwether_schemas::state::{OnLost, State};
use bellwether_store::dead::{DeadFilter, Discarded};
use bellwether_store::executions::{Committed, NewExecution, Outcome, Retried};
use bellwether_store::planning::{MissedRange, PlanStep};
use bellwether_store::retention::{Forgotten, Leftover};
use bellwether_store::schedules::Schedule;
use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::fixture::Fixture;
use crate::raw::args;
use crate::vocabulary::{complete, error_after, hours, one_shot, secs, step};

/// What the cases sweep with.
pub(crate) const RETENTION: Duration = days(30);
/// Before it.
pub(crate) const OLD: Duration = days(50);

const fn days(count: u64) -> Duration {
    Duration::from_secs(count * 86_400)
}

/// A one-shot whose id is as old as if it had been enqueued then.
pub(crate) async fn of_old(ledger: &Fixture, job: &str) -> NewExecution {
    let mut new = one_shot(job);
    new.fire_id = old_id(ledger).await;
    new
}

async fn old_id(ledger: &Fixture) -> Uuid {
    let at = ledger.ago(OLD).await;
    ids::fire(ids::fresh(), at.timestamp_millis())
}

/// Lets an execution that has ended have been claimed and have ended `ago`.
pub(crate) async fn aged(ledger: &Fixture, id: Uuid, ago: Duration) {
    let at = ledger.ago(ago).await;
    let row = "UPDATE execution
               SET created_at = $2, dispatched_at = $2, claimed_at = $2, started_at = $2,
                   attempt_ended_at = $2, ended_at = $2
               WHERE id = $1 AND ended_at IS NOT NULL";
    assert_eq!(ledger.sql(row, args![id, at]).await, 1, "{id} has ended");
    let past = "UPDATE attempt SET claimed_at = $2, started_at = $2, ended_at = $2
                WHERE execution_id = $1";
    ledger.sql(past, args![id, at]).await;
}

/// Runs it to this end; then it has been over for `ago`.
pub(crate) async fn ended(
    ledger: &Fixture,
    session: Uuid,
    id: Uuid,
    outcome: Outcome,
    ago: Duration,
) {
    let claimed = ledger.claim_one(session, id).await;
    let committed = ledger.commit_one(&claimed, outcome).await;
    assert!(matches!(committed, Committed::Accepted(state) if state.is_terminal()));
    ledger
        .sql("DELETE FROM outbox WHERE execution_id = $1", args![id])
        .await;
    aged(ledger, id, ago).await;
}

/// An old one-shot that succeeded `ago`.
pub(crate) async fn succeeded(ledger: &Fixture, session: Uuid, ago: Duration) -> Uuid {
    let id = ledger.enqueue_one(&of_old(ledger, "book").await).await;
    ended(ledger, session, id, complete(), ago).await;
    id
}

pub(crate) async fn is_there(ledger: &Fixture, id: Uuid) -> bool {
    ledger.execution(id).await.unwrap().is_some()
}

/// One walk over all that is old, with the laws after each batch.
pub(crate) async fn lap(ledger: &Fixture, limit: u32) -> Forgotten {
    let mut all = Forgotten::default();
    loop {
        let gone = ledger.forget_fires(RETENTION, limit).await.unwrap();
        ledger.assert_laws_hold().await;
        all.fires += gone.fires;
        all.executions += gone.executions;
        all.attempts += gone.attempts;
        all.verdicts += gone.verdicts;
        all.refused_results += gone.refused_results;
        all.non_fires += gone.non_fires;
        all.timings += gone.timings;
        if !gone.more {
            return all;
        }
    }
}

/// What fires leave behind, of every kind once.
pub(crate) async fn leftovers(ledger: &Fixture, limit: u32) -> Forgotten {
    let mut all = Forgotten::default();
    for kind in Leftover::ALL {
        let gone = ledger
            .forget_leftovers(kind, RETENTION, limit)
            .await
            .unwrap();
        all.schedules += gone.schedules;
        all.non_fires += gone.non_fires;
        all.timings += gone.timings;
        all.refused_results += gone.refused_results;
        all.dead_letters += gone.dead_letters;
        all.sessions += gone.sessions;
        all.terms += gone.terms;
        all.more |= gone.more;
    }
    all
}

/// An every-second schedule whose next instants were due then.
async fn scheduled(ledger: &Fixture, name: &str, shards: u32) -> Schedule {
    ledger.schedule(name, shards, OLD).await
}

pub(crate) async fn history_from(ledger: &Fixture, schedule: &Schedule) -> DateTime<Utc> {
    ledger.schedule_row(schedule.id).await.history_from
}

pub(crate) async fn rows_of(ledger: &Fixture, table: &str) -> i64 {
    let text = match table {
        "fire" => "SELECT count(*) FROM fire",
        "execution" => "SELECT count(*) FROM execution",
        "attempt" => "SELECT count(*) FROM attempt",
        "verdict" => "SELECT count(*) FROM verdict",
        "fenced_result" => "SELECT count(*) FROM fenced_result",
        "non_fire" => "SELECT count(*) FROM non_fire",
        "schedule_timing" => "SELECT count(*) FROM schedule_timing",
        "schedule" => "SELECT count(*) FROM schedule",
        "session" => "SELECT count(*) FROM session",
        "term" => "SELECT count(*) FROM term",
        "dead_letter" => "SELECT count(*) FROM dead_letter",
        "submission_key" => "SELECT count(*) FROM submission_key",
        other => panic!("no query for {other}"),
    };
    ledger.count(text, args![]).await
}

pub(crate) async fn what_ended_before_the_retention_goes_with_all_that_belongs_to_it(
    ledger: &Fixture,
) {
    let lost = ledger.session("lost").await;
    let mut new = of_old(ledger, "book").await;
    new.policy.on_lost = OnLost::Unknown;
    let stale = ledger.running(lost, &new).await;
    let id = stale.execution_id;
    ledger.take_over(lost).await;
    // A verdict sends it to another attempt; the first one's result comes too late.
    let text = "UPDATE execution SET state = 'retrying', dispatched_at = created_at,
                    available_at = created_at, dispatch_no = 2 WHERE id = $1";
    ledger.sql(text, args![id]).await;
    let session = ledger.session("worker").await;
    let second = ledger.claim_one(session, id).await;
    let late = ledger.commit_one(&stale, complete()).await;
    assert!(matches!(late, Committed::Fenced { .. }), "{late:?}");
    ledger.commit_one(&second, complete()).await;
    let text =
        "INSERT INTO verdict (token, execution_id, generation, recorded_at, said_by, verdict,
                    note, became) VALUES ($1, $2, 1, $3, 'operator', 'not_done', 'no', 'retrying')";
    let now = ledger.now().await;
    ledger.sql(text, args![ids::token(), id, now]).await;
    ledger.sql("DELETE FROM outbox", args![]).await;
    aged(ledger, id, days(31)).await;

    let young = succeeded(ledger, session, days(29)).await;
    let today = ledger
        .running(session, &one_shot("book"))
        .await
        .execution_id;
    assert_eq!(
        lap(ledger, 100).await,
        Forgotten {
            executions: 1,
            attempts: 1,
            verdicts: 1,
            refused_results: 1,
            ..Forgotten::default()
        }
    );
    for (id, stays) in [(id, false), (young, true), (today, true)] {
        assert_eq!(is_there(ledger, id).await, stays, "{id}");
    }
    for table in ["attempt", "verdict", "fenced_result"] {
        assert_eq!(rows_of(ledger, table).await, 0, "{table}");
    }
    assert_eq!(lap(ledger, 100).await, Forgotten::default());
}

pub(crate) async fn what_is_not_over_stays_however_old_it_is(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let pending = ledger.enqueue_one(&of_old(ledger, "book").await).await;
    let running = ledger.running(session, &of_old(ledger, "book").await).await;
    let retrying = ledger.running(session, &of_old(ledger, "book").await).await;
    ledger.commit_one(&retrying, error_after(hours(1))).await;
    let lost = ledger.session("lost").await;
    let mut new = of_old(ledger, "book").await;
    new.policy.on_lost = OnLost::Unknown;
    let unknown = ledger.running(lost, &new).await;
    ledger.take_over(lost).await;
    let over = succeeded(ledger, session, OLD).await;
    assert_eq!(lap(ledger, 100).await.executions, 1);
    assert!(!is_there(ledger, over).await);
    for (id, state) in [
        (pending, State::Pending),
        (running.execution_id, State::Running),
        (retrying.execution_id, State::Retrying),
        (unknown.execution_id, State::Unknown),
    ] {
        assert_eq!(ledger.view(id).await.state, state);
    }
}

pub(crate) async fn a_fire_goes_with_all_its_shards_or_not_at_all(ledger: &Fixture) {
    let schedule = scheduled(ledger, "slices", 3).await;
    let term = ledger.lead().await;
    let session = ledger.session("worker").await;
    let shards = ledger.plan_next(&term, &schedule).await;
    for id in &shards[..2] {
        ended(ledger, session, *id, complete(), OLD).await;
    }
    let last = ledger.claim_one(session, shards[2]).await;
    assert_eq!(lap(ledger, 1).await, Forgotten::default(), "one runs");
    ledger.commit_one(&last, complete()).await;
    ledger.sql("DELETE FROM outbox", args![]).await;
    assert_eq!(lap(ledger, 1).await, Forgotten::default(), "it ended today");
    aged(ledger, shards[2], OLD).await;
    let gone = ledger.forget_fires(RETENTION, 1).await.unwrap();
    assert_eq!((gone.fires, gone.executions), (1, 3), "beyond the limit");
    ledger.assert_laws_hold().await;
}

pub(crate) async fn the_history_begins_behind_the_last_instant_that_went(ledger: &Fixture) {
    let schedule = scheduled(ledger, "tick", 1).await;
    let began = schedule.history_from;
    let at = |second| began + secs(second);
    let term = ledger.lead().await;
    let session = ledger.session("worker").await;
    // 1 2, 3 to 5 missed, 6, 7 to 8 missed, 9.
    let mut fires = Vec::new();
    for (missed, second) in [(None, 1), (None, 2), (Some((3, 5)), 6), (Some((7, 8)), 9)] {
        let read = ledger.schedule_row(schedule.id).await;
        let next = PlanStep {
            missed: missed.map(|(from, until)| MissedRange {
                from: at(from),
                until: at(until),
                count: until - from + 1,
            }),
            ..step(&read, &[at(second)])
        };
        let planned = ledger
            .plan(&term, std::slice::from_ref(&next))
            .await
            .unwrap();
        assert_eq!(planned.fires, 1);
        fires.push(ids::execution(next.fires[0].id, 0));
    }
    // Its timing was edited between 8 and 9, to the same.
    let text =
        "INSERT INTO schedule_timing (schedule_id, version, valid_from, kind, period_ms, anchor)
                SELECT schedule_id, 3, $2, kind, period_ms, anchor FROM schedule_timing
                WHERE schedule_id = $1 AND version = 1";
    let edited = at(8) + Duration::from_millis(500);
    ledger.sql(text, args![schedule.id, edited]).await;
    ledger.assert_laws_hold().await;

    ended(ledger, session, fires[0], complete(), OLD).await;
    assert_eq!(lap(ledger, 100).await.fires, 1);
    assert_eq!(history_from(ledger, &schedule).await, at(1));
    // The second is not over; the history moves past it all the same, and it stays.
    ended(ledger, session, fires[2], complete(), OLD).await;
    let gone = lap(ledger, 100).await;
    assert_eq!((gone.fires, gone.non_fires, gone.timings), (1, 1, 0));
    assert_eq!(history_from(ledger, &schedule).await, at(6));
    assert_eq!(ledger.view(fires[1]).await.state, State::Pending);
    assert_eq!(rows_of(ledger, "schedule_timing").await, 2);
    // What went late moves nothing back.
    ended(ledger, session, fires[1], complete(), OLD).await;
    let gone = lap(ledger, 100).await;
    assert_eq!((gone.fires, gone.non_fires), (1, 0));
    assert_eq!(history_from(ledger, &schedule).await, at(6));
    ended(ledger, session, fires[3], complete(), OLD).await;
    let gone = lap(ledger, 100).await;
    assert_eq!((gone.fires, gone.non_fires, gone.timings), (1, 1, 1));
    assert_eq!(history_from(ledger, &schedule).await, at(9));
    let left = "SELECT version FROM schedule_timing WHERE schedule_id = $1";
    assert_eq!(
        ledger.count(left, args![schedule.id]).await,
        3,
        "the one in force"
    );
    // And it goes on.
    ledger.plan_next(&term, &schedule).await;
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_manual_fire_moves_no_history(ledger: &Fixture) {
    let schedule = scheduled(ledger, "tick", 1).await;
    let session = ledger.session("worker").await;
    let fire = old_id(ledger).await;
    ledger.trigger("tick", fire, None).await.unwrap();
    ended(ledger, session, ids::execution(fire, 0), complete(), OLD).await;
    assert_eq!(lap(ledger, 100).await.fires, 1);
    assert_eq!(history_from(ledger, &schedule).await, schedule.history_from);
}

/// Repeats `id`; the new execution.
async fn retried(ledger: &Fixture, id: Uuid) -> Uuid {
    let fire = old_id(ledger).await;
    match ledger.retry_execution(id, fire, None).await.unwrap() {
        Retried::Retried { execution_id } => execution_id,
        other => panic!("not retried: {other:?}"),
    }
}

pub(crate) async fn an_operation_stays_until_its_last_retry_is_old_and_goes_oldest_first(
    ledger: &Fixture,
) {
    let session = ledger.session("worker").await;
    let failed = || Outcome::Fail("no".to_owned());
    let first = ledger.enqueue_one(&of_old(ledger, "book").await).await;
    ended(ledger, session, first, failed(), OLD).await;
    let second = retried(ledger, first).await;
    assert_eq!(
        lap(ledger, 100).await,
        Forgotten::default(),
        "its retry waits"
    );
    ended(ledger, session, second, failed(), OLD).await;
    let third = retried(ledger, second).await;
    assert_eq!(
        lap(ledger, 100).await,
        Forgotten::default(),
        "a later one waits"
    );
    ended(ledger, session, third, complete(), days(1)).await;
    assert_eq!(
        lap(ledger, 100).await,
        Forgotten::default(),
        "it ended yesterday"
    );
    aged(ledger, third, OLD).await;
    for (gone, left) in [
        (first, vec![second, third]),
        (second, vec![third]),
        (third, vec![]),
    ] {
        assert_eq!(lap(ledger, 100).await.executions, 1);
        assert!(!is_there(ledger, gone).await);
        for id in left {
            assert!(
                is_there(ledger, id).await,
                "what was repeated goes before its repetition"
            );
            let again = ledger
                .retry_execution(second, old_id(ledger).await, None)
                .await;
            assert!(
                !matches!(again.unwrap(), Retried::Retried { .. }),
                "it has succeeded"
            );
        }
    }
}

pub(crate) async fn a_key_an_outbox_row_and_an_open_dead_letter_keep_what_they_name(
    ledger: &Fixture,
) {
    let session = ledger.session("worker").await;
    let mut new = of_old(ledger, "book").await;
    new.key = Some("order-7".to_owned());
    let keyed = ledger.enqueue_one(&new).await;
    ended(ledger, session, keyed, complete(), OLD).await;
    let sent = succeeded(ledger, session, OLD).await;
    let dead = ledger.enqueue_one(&of_old(ledger, "book").await).await;
    let rows = ledger.claim_outbox(100, secs(30), &[]).await.unwrap();
    let row = rows.iter().find(|row| row.dispatch.execution_id == dead);
    assert!(
        ledger
            .bury_dispatch(row.unwrap().id, "refused")
            .await
            .unwrap()
    );
    let at = ledger.ago(OLD).await;
    let text = "UPDATE execution SET ended_at = $2 WHERE id = $1";
    ledger.sql(text, args![dead, at]).await;
    let text = "INSERT INTO outbox (execution_id, dispatch_no, queue, priority, created_at)
                VALUES ($1, 1, 'default', 'normal', $2)";
    let now = ledger.now().await;
    ledger.sql(text, args![sent, now]).await;
    assert_eq!(lap(ledger, 100).await, Forgotten::default());

    ledger.sql("DELETE FROM submission_key", args![]).await;
    assert_eq!(lap(ledger, 100).await.executions, 1);
    assert!(!is_there(ledger, keyed).await);
    ledger.sql("DELETE FROM outbox", args![]).await;
    assert_eq!(lap(ledger, 100).await.executions, 1);
    assert!(!is_there(ledger, sent).await);
    let letters = ledger.dead_letters(&open()).await.unwrap();
    let discarded = ledger.discard_dead_letter(letters[0].id).await.unwrap();
    assert_eq!(discarded, Discarded::Discarded);
    assert_eq!(lap(ledger, 100).await.executions, 1);
    assert!(!is_there(ledger, dead).await);
}

fn open() -> DeadFilter {
    DeadFilter {
        limit: 10,
        ..DeadFilter::default()
    }
}

pub(crate) async fn a_fire_that_another_is_held_behind_stays(ledger: &Fixture) {
    let schedule = scheduled(ledger, "tick", 1).await;
    let term = ledger.lead().await;
    let session = ledger.session("worker").await;
    let first = ledger.plan_next(&term, &schedule).await[0];
    let second = ledger.plan_next(&term, &schedule).await[0];
    let other = ledger.plan_next(&term, &schedule).await[0];
    ended(ledger, session, first, complete(), OLD).await;
    let (front, behind) = (
        ledger.view(first).await.fire_id,
        ledger.view(second).await.fire_id,
    );
    let text = "UPDATE fire SET held_behind = $2 WHERE id = $1";
    ledger.sql(text, args![behind, front]).await;
    assert_eq!(lap(ledger, 100).await, Forgotten::default());
    let text = "UPDATE fire SET released_at = planned_at WHERE id = $1";
    ledger.sql(text, args![behind]).await;
    assert_eq!(lap(ledger, 100).await.fires, 1);
    assert!(is_there(ledger, second).await && is_there(ledger, other).await);
}

pub(crate) async fn a_walk_goes_on_behind_what_stays_and_begins_anew(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let mut rows = Vec::new();
    for _ in 0..7 {
        rows.push(succeeded(ledger, session, OLD).await);
    }
    rows.sort_unstable();
    // The two oldest stay for now.
    for id in &rows[..2] {
        aged(ledger, *id, days(1)).await;
    }
    let mut counts = Vec::new();
    for _ in 0..5 {
        let gone = ledger.forget_fires(RETENTION, 2).await.unwrap();
        counts.push((gone.executions, gone.more));
    }
    let walk = [(0, true), (2, true), (2, true), (1, false), (0, true)];
    assert_eq!(counts, walk);
    aged(ledger, rows[0], OLD).await;
    assert_eq!(
        lap(ledger, 2).await.executions,
        0,
        "the walk stood behind it"
    );
    assert_eq!(
        lap(ledger, 2).await.executions,
        1,
        "the next one begins with it"
    );
}

pub(crate) async fn two_sweeps_at_once_delete_nothing_twice(ledger: &Fixture) {
    const FIRES: u64 = 30;
    let term = ledger.lead().await;
    let session = ledger.session("worker").await;
    let mut schedules = Vec::new();
    for name in ["a", "b"] {
        let schedule = scheduled(ledger, name, 2).await;
        for _ in 0..FIRES / 2 {
            for id in ledger.plan_next(&term, &schedule).await {
                ended(ledger, session, id, complete(), OLD).await;
            }
        }
        schedules.push(ledger.schedule_row(schedule.id).await);
    }
    let sweep = |store: std::sync::Arc<dyn bellwether_store::Store>| async move {
        let (mut fires, mut executions) = (0, 0);
        // What the other holds at that moment is left to the next walk.
        for _ in 0..40 {
            let gone = store.forget_fires(RETENTION, 7).await.unwrap();
            fires += gone.fires;
            executions += gone.executions;
        }
        store.close().await;
        (fires, executions)
    };
    let one = tokio::spawn(sweep(ledger.second().await));
    let other = tokio::spawn(sweep(ledger.second().await));
    while !one.is_finished() || !other.is_finished() {
        ledger.assert_laws_hold().await;
        tokio::task::yield_now().await;
    }
    let (one, other) = (one.await.unwrap(), other.await.unwrap());
    assert_eq!(one.0 + other.0, FIRES, "fires");
    assert_eq!(one.1 + other.1, 2 * FIRES, "executions");
    ledger.assert_laws_hold().await;
    for schedule in schedules {
        let row = ledger.schedule_row(schedule.id).await;
        assert_eq!(row.history_from, row.cursor, "to the last one");
    }
}

pub(crate) async fn a_locked_row_delays_no_sweep_and_splits_no_fire(ledger: &Fixture) {
    let Some(pool) = ledger.raw().postgres() else {
        return;
    };
    let term = ledger.lead().await;
    let session = ledger.session("worker").await;
    let sharded = scheduled(ledger, "sharded", 2).await;
    let shards = ledger.plan_next(&term, &sharded).await;
    let edited = scheduled(ledger, "edited", 1).await;
    let single = ledger.plan_next(&term, &edited).await;
    for id in shards.iter().chain(&single) {
        ended(ledger, session, *id, complete(), OLD).await;
    }
    let free = succeeded(ledger, session, OLD).await;
    let mut held = pool.begin().await.unwrap();
    let lock = "SELECT FROM execution WHERE id = $1 FOR UPDATE";
    sqlx::query(lock)
        .bind(shards[1])
        .execute(&mut *held)
        .await
        .unwrap();
    let lock = "SELECT FROM schedule WHERE id = $1 FOR UPDATE";
    sqlx::query(lock)
        .bind(edited.id)
        .execute(&mut *held)
        .await
        .unwrap();
    let gone = lap(ledger, 100).await;
    assert_eq!((gone.fires, gone.executions), (0, 1));
    assert!(!is_there(ledger, free).await);
    held.rollback().await.unwrap();
    let gone = lap(ledger, 100).await;
    assert_eq!((gone.fires, gone.executions), (2, 3));
}

pub(crate) async fn tombstones_go_when_nothing_of_them_is_left(ledger: &Fixture) {
    let term = ledger.lead().await;
    let session = ledger.session("worker").await;
    let used = scheduled(ledger, "used", 1).await;
    let fired = ledger.plan_next(&term, &used).await[0];
    let recent = scheduled(ledger, "recent", 1).await;
    let empty = scheduled(ledger, "empty", 1).await;
    let live = scheduled(ledger, "live", 1).await;
    let text =
        "INSERT INTO non_fire (schedule_id, schedule_version, reason, from_at, until_at, count,
                    recorded_at) VALUES ($1, 1, 'paused', $2, $2, 1, $2)";
    let instant = empty.cursor + secs(1);
    ledger.sql(text, args![empty.id, instant]).await;
    let moved = "UPDATE schedule SET cursor = $2 WHERE id = $1";
    ledger.sql(moved, args![empty.id, instant]).await;
    for (schedule, ago) in [(&used, OLD), (&recent, days(29)), (&empty, OLD)] {
        let at = ledger.ago(ago).await;
        let text = "UPDATE schedule SET deleted_at = $2 WHERE id = $1";
        ledger.sql(text, args![schedule.id, at]).await;
    }
    let gone = leftovers(ledger, 100).await;
    assert_eq!((gone.schedules, gone.non_fires, gone.timings), (1, 1, 1));
    ledger.assert_laws_hold().await;
    ended(ledger, session, fired, complete(), OLD).await;
    assert_eq!(lap(ledger, 100).await.fires, 1);
    let gone = leftovers(ledger, 100).await;
    assert_eq!(gone.schedules, 1);
    let left = ledger
        .rows("SELECT id FROM schedule ORDER BY name", args![])
        .await;
    let left: Vec<_> = left.iter().map(|row| row.id(0)).collect();
    assert_eq!(left, [live.id, recent.id]);
    ledger.assert_laws_hold().await;
}

pub(crate) async fn refused_results_and_dead_letters_go_by_their_own_age(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let kept = ledger.enqueue_one(&of_old(ledger, "book").await).await;
    let claimed = ledger.claim_one(session, kept).await;
    let (old, young) = (ledger.ago(OLD).await, ledger.ago(days(29)).await);
    let text =
        "INSERT INTO fenced_result (execution_id, claim_id, generation, outcome, recorded_at)
                VALUES ($1, $2, 1, 'complete', $3)";
    let (orphan, late) = (old_id(ledger).await, old_id(ledger).await);
    for (id, at) in [(orphan, old), (late, young), (claimed.execution_id, old)] {
        ledger.sql(text, args![id, ids::token(), at]).await;
    }
    let text = "INSERT INTO dead_letter (job, key, queue, reason, detail, payload, recorded_at, id,
                    resolved_at, resolution)
                VALUES ('book', $1, 'default', 'unknown_job', '', '', $2, $3, $4, 'discarded')";
    for (key, resolved) in [("old", old), ("young", young), ("open", old)] {
        ledger
            .sql(text, args![key, old, ids::fresh(), resolved])
            .await;
    }
    let text = "UPDATE dead_letter SET resolved_at = NULL, resolution = NULL WHERE key = 'open'";
    ledger.sql(text, args![]).await;
    let gone = leftovers(ledger, 100).await;
    assert_eq!((gone.refused_results, gone.dead_letters), (1, 1));
    assert_eq!(rows_of(ledger, "fenced_result").await, 2);
    let left = ledger
        .rows("SELECT key FROM dead_letter ORDER BY key", args![])
        .await;
    let left: Vec<_> = left.iter().map(|row| row.text(0)).collect();
    assert_eq!(left, ["open", "young"]);
}

pub(crate) async fn sessions_and_terms_go_when_no_row_names_them(ledger: &Fixture) {
    let term = ledger.lead().await;
    let schedule = scheduled(ledger, "tick", 1).await;
    let fired = ledger.plan_next(&term, &schedule).await[0];
    // Three terms: the first has a fire, the second has none, the last is in force.
    for _ in 0..2 {
        ledger.expire_lease().await;
        ledger.lead().await;
    }
    let past = ledger.ago(OLD).await;
    let text = "UPDATE term SET started_at = $1, ended_at = $1 WHERE ended_at IS NOT NULL";
    ledger.sql(text, args![past]).await;
    ledger
        .sql("UPDATE fire SET planned_at = $1", args![past])
        .await;

    let names = ["worked", "tried", "unused", "recent", "live"];
    let mut sessions = Vec::new();
    for name in names {
        sessions.push(ledger.session(name).await);
    }
    let [worked, tried, _, recent, live] = sessions[..] else {
        unreachable!()
    };
    let attempt = ledger.claim_one(tried, fired).await;
    ledger
        .commit_one(&attempt, error_after(Duration::ZERO))
        .await;
    ledger.dispatch_due(10).await.unwrap();
    ended(ledger, worked, fired, complete(), OLD).await;
    let closed = "UPDATE session SET state = 'closed', ended_at = $2 WHERE id = $1";
    for id in &sessions {
        let ago = if *id == recent { days(31) } else { OLD };
        let at = ledger.ago(ago).await;
        if *id != live {
            ledger.sql(closed, args![*id, at]).await;
        }
    }
    let gone = leftovers(ledger, 100).await;
    assert_eq!(
        (gone.sessions, gone.terms),
        (1, 1),
        "those that nothing names"
    );
    ledger.assert_laws_hold().await;
    assert_eq!(lap(ledger, 100).await.fires, 1);
    let gone = leftovers(ledger, 100).await;
    assert_eq!((gone.sessions, gone.terms), (2, 1));
    let left = ledger
        .rows("SELECT name FROM session ORDER BY name", args![])
        .await;
    let left: Vec<_> = left.iter().map(|row| row.text(0)).collect();
    assert_eq!(left, ["live", "recent"], "two days more than the retention");
    assert_eq!(rows_of(ledger, "term").await, 1, "the one in force");
    ledger.assert_laws_hold().await;
}
