//! Retention where one call is not enough: each is bounded, and what stays or fails keeps nothing else.

use bellwether_schemas::ids;
use bellwether_store::executions::NewExecution;
use bellwether_store::retention::{Forgotten, Leftover};
use serde_json::Value;
use uuid::Uuid;

use crate::fixture::Fixture;
use crate::outbox::rows_read;
use crate::plans::plan_of;
use crate::purge::explained;
use crate::raw::args;
use crate::retention::{
    OLD, RETENTION, aged, ended, history_from, is_there, lap, leftovers, of_old, rows_of, succeeded,
};
use crate::vocabulary::{complete, hours, one_shot, secs};

/// Lets it have been claimed so many times more, before it ended.
async fn with_history(ledger: &Fixture, id: Uuid, attempts: i64) {
    let session = ids::fresh();
    let at = ledger.ago(OLD + hours(1)).await;
    for generation in 1..=attempts {
        let text = "INSERT INTO attempt (execution_id, generation, attempt, claim_id, session_id,
                        claimed_at, started_at, ended_at, reason, left_by)
                    VALUES ($1, $2, 1, $3, $4, $5, $5, $5, 'snooze', 'commit')";
        let token = ids::token();
        ledger
            .sql(text, args![id, generation, token, session, at])
            .await;
        let text =
            "INSERT INTO fenced_result (execution_id, claim_id, generation, outcome, recorded_at)
                    VALUES ($1, $2, $3, 'complete', $4)";
        ledger.sql(text, args![id, token, generation, at]).await;
    }
    let text = "UPDATE execution
                SET generation = $2 + 1, result_generation = $2 + 1 WHERE id = $1";
    ledger.sql(text, args![id, attempts]).await;
    ledger.assert_laws_hold().await;
}

async fn forgotten(ledger: &Fixture, limit: u32) -> Forgotten {
    let gone = ledger.forget_fires(RETENTION, limit).await.unwrap();
    ledger.assert_laws_hold().await;
    gone
}

pub(crate) async fn fires_with_long_histories_go_in_several_calls(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    for _ in 0..5 {
        let id = succeeded(ledger, session, OLD).await;
        with_history(ledger, id, 6).await;
    }
    let mut calls = Vec::new();
    for _ in 0..3 {
        let gone = forgotten(ledger, 10).await;
        calls.push((gone.executions, gone.attempts, gone.more));
    }
    // One has seven rows: the second of a call fits, the third does not.
    assert_eq!(calls, [(2, 12, true), (2, 12, true), (1, 6, false)]);
    for table in ["execution", "attempt", "fenced_result"] {
        assert_eq!(rows_of(ledger, table).await, 0, "{table}");
    }
}

pub(crate) async fn a_history_longer_than_a_call_goes_before_its_execution(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let mut both = [
        succeeded(ledger, session, OLD).await,
        succeeded(ledger, session, OLD).await,
    ];
    both.sort_unstable();
    let [long, behind] = both;
    with_history(ledger, long, 25).await;
    for left in [15, 5] {
        let gone = forgotten(ledger, 10).await;
        let (attempts, refused) = (gone.attempts, gone.refused_results);
        assert_eq!((attempts, refused, gone.executions), (10, 10, 0));
        assert!(gone.more);
        assert_eq!(rows_of(ledger, "attempt").await, left);
        let story = ledger.story(long).await;
        assert_eq!(story.attempts[0].generation, 26 - left, "the oldest first");
    }
    let gone = forgotten(ledger, 10).await;
    assert_eq!((gone.executions, gone.attempts, gone.more), (2, 5, false));
    assert!(!is_there(ledger, long).await && !is_there(ledger, behind).await);
    for table in ["attempt", "fenced_result"] {
        assert_eq!(rows_of(ledger, table).await, 0, "{table}");
    }
}

pub(crate) async fn a_long_history_of_shards_goes_before_the_fire_and_moves_nothing(
    ledger: &Fixture,
) {
    let schedule = ledger.schedule("tick", 3, OLD).await;
    let term = ledger.lead().await;
    let session = ledger.session("worker").await;
    for id in ledger.plan_next(&term, &schedule).await {
        ended(ledger, session, id, complete(), OLD).await;
        with_history(ledger, id, 5).await;
    }
    for left in [8, 1] {
        let gone = forgotten(ledger, 7).await;
        assert_eq!((gone.fires, gone.attempts, gone.more), (0, 7, true));
        assert_eq!(rows_of(ledger, "attempt").await, left);
        let from = history_from(ledger, &schedule).await;
        assert_eq!(from, schedule.history_from);
    }
    let gone = forgotten(ledger, 7).await;
    assert_eq!((gone.fires, gone.executions, gone.attempts), (1, 3, 1));
    assert!(history_from(ledger, &schedule).await > schedule.history_from);
}

/// Ten thousand attempts before the one that there is, and as many of others.
const ATTEMPTS: &str = "
    INSERT INTO attempt (execution_id, generation, attempt, claim_id, session_id, claimed_at,
        started_at, ended_at, reason, left_by)
    SELECT id, n, 1, gen_random_uuid(), session_id, claimed_at, started_at, claimed_at, 'snooze',
        'commit'
    FROM execution, generate_series(1, 10000) AS n;
    INSERT INTO attempt (execution_id, generation, attempt, claim_id, session_id, claimed_at,
        started_at, ended_at, reason, left_by)
    SELECT gen_random_uuid(), 1, 1, claim_id, session_id, claimed_at, started_at, ended_at, reason,
        left_by
    FROM attempt;
    UPDATE execution SET generation = 10001, result_generation = 10001;
    ANALYZE attempt; ANALYZE execution";

pub(crate) async fn a_long_history_is_read_in_portions(ledger: &Fixture) {
    let Some(pool) = ledger.raw().postgres() else {
        return;
    };
    let session = ledger.session("worker").await;
    succeeded(ledger, session, OLD).await;
    ledger.raw().script(ATTEMPTS).await;
    let plan = explained(pool, RETENTION, 100).await;
    let read = rows_read(&plan, "attempt");
    assert_eq!(read, 200, "found and deleted: {plan:#}");
}

/// Its id tells nothing of its age.
fn of_id(id: Uuid) -> NewExecution {
    NewExecution {
        fire_id: id,
        ..one_shot("book")
    }
}

pub(crate) async fn an_id_that_begins_with_no_instant_keeps_nothing_for_ever(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let in_a_year = (ledger.now().await + hours(24 * 365)).timestamp_millis();
    let own = [
        Uuid::from_u128(0x6ba7_b810_9dad_41d1_80b4_00c0_4fd4_30c8),
        Uuid::from_u128(0xf81d_4fae_7dec_41d0_a765_00a0_c91e_6bf6),
        ids::fire(ids::fresh(), in_a_year),
    ];
    let mut old = Vec::new();
    for id in own {
        let id = ledger.enqueue_one(&of_id(id)).await;
        ended(ledger, session, id, complete(), OLD).await;
        old.push(id);
    }
    let recent = Uuid::from_u128(0x7d44_4840_9dc0_41d1_b245_5ffd_ce74_fad2);
    let recent = ledger.enqueue_one(&of_id(recent)).await;
    ended(ledger, session, recent, complete(), hours(24)).await;
    let waits = Uuid::from_u128(0x7d44_4841_9dc0_41d1_b245_5ffd_ce74_fad2);
    let waits = ledger.enqueue_one(&of_id(waits)).await;
    let early = succeeded(ledger, session, OLD).await;
    let at = ledger.ago(OLD).await;
    let text =
        "INSERT INTO fenced_result (execution_id, claim_id, generation, outcome, recorded_at)
                VALUES ($1, $2, 1, 'complete', $3)";
    let orphan = Uuid::from_u128(0x8d44_4840_9dc0_41d1_b245_5ffd_ce74_fad2);
    ledger.sql(text, args![orphan, ids::token(), at]).await;

    assert_eq!(lap(ledger, 2).await.executions, 4);
    for id in [old[0], old[1], old[2], early] {
        assert!(!is_there(ledger, id).await, "{id}");
    }
    assert!(is_there(ledger, recent).await && is_there(ledger, waits).await);
    assert_eq!(leftovers(ledger, 10).await.refused_results, 1);
}

/// So many keys of `id`, recorded eight days ago.
async fn old_keys(ledger: &Fixture, id: Uuid, prefix: &str, count: u32) {
    let past = ledger.ago(hours(24 * 8)).await;
    for n in 0..count {
        let key = format!("{prefix}-{n:03}");
        let text = "INSERT INTO submission_key (job, key, execution_id, created_at)
                    VALUES ('book', $1, $2, $3)";
        ledger.sql(text, args![key.as_str(), id, past]).await;
    }
}

pub(crate) async fn keys_that_stay_hide_none_behind_them(ledger: &Fixture) {
    let week = hours(24 * 7);
    let session = ledger.session("worker").await;
    let waits = ledger.enqueue_one(&one_shot("book")).await;
    let over = ledger.running(session, &one_shot("book")).await;
    ledger.commit_one(&over, complete()).await;
    aged(ledger, over.execution_id, hours(24 * 8)).await;
    old_keys(ledger, waits, "a", 30).await;
    old_keys(ledger, over.execution_id, "b", 15).await;
    let mut calls = Vec::new();
    for _ in 0..6 {
        let swept = ledger.forget_keys(week, 10).await.unwrap();
        calls.push((swept.keys, swept.more));
    }
    let nothing = (0, true);
    assert_eq!(
        calls,
        [nothing, nothing, nothing, (10, true), (5, false), nothing],
        "and anew"
    );
    let left = "SELECT count(*) FROM submission_key WHERE key LIKE 'a-%'";
    assert_eq!(ledger.count(left, args![]).await, 30);
    assert_eq!(rows_of(ledger, "submission_key").await, 30);
}

/// Ten thousand keys of one execution, recorded eight days ago one after the other.
const KEYS: &str = "
    INSERT INTO submission_key (job, key, execution_id, created_at)
    SELECT 'book', 'k-' || n, execution.id,
           clock_timestamp() - interval '8 days' + n * interval '1 millisecond'
    FROM execution, generate_series(1, 10000) AS n;
    ANALYZE submission_key; ANALYZE execution";

pub(crate) async fn a_look_at_keys_reads_no_more_than_its_limit(ledger: &Fixture) {
    const EXPLAIN: &str = concat!(
        "EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) ",
        include_str!("../../sql/postgres/sweeps/forget_keys.sql")
    );
    let Some(pool) = ledger.raw().postgres() else {
        return;
    };
    ledger.enqueue_one(&one_shot("book")).await;
    ledger.raw().script(KEYS).await;
    let middle = ledger.ago(hours(24 * 8)).await + secs(4);
    let micros = |time: std::time::Duration| i64::try_from(time.as_micros()).unwrap();
    let query = sqlx::query(EXPLAIN)
        .bind(micros(hours(24 * 7)))
        .bind(100_i64)
        .bind(micros(hours(48)))
        .bind(middle)
        .bind("book")
        .bind("k-0");
    let mut tx = pool.begin().await.unwrap();
    let plan: Value = plan_of(&query.fetch_one(&mut *tx).await.unwrap());
    tx.rollback().await.unwrap();
    let read = rows_read(&plan, "submission_key");
    assert!((100..=100).contains(&read), "{read} keys: {plan:#}");
    let read = rows_read(&plan, "execution");
    assert!(read <= 100, "{read} executions: {plan:#}");
}

pub(crate) async fn sessions_go_however_much_waits(ledger: &Fixture) {
    let new = of_old(ledger, "book").await;
    let mut ids: Vec<Uuid> = vec![ledger.enqueue_one(&new).await];
    for _ in 0..99 {
        let new = of_old(ledger, "book").await;
        ids.push(ledger.enqueue_one(&new).await);
    }
    ids.sort_unstable();
    let at = ledger.ago(OLD).await;
    let mut sessions = Vec::new();
    for n in 0..7 {
        let id = ledger.session(&format!("worker-{n}")).await;
        let text = "UPDATE session SET state = 'closed', ended_at = $2 WHERE id = $1";
        ledger.sql(text, args![id, at]).await;
        sessions.push(id);
    }
    sessions.sort_unstable();
    // Each is named where another look comes to it, and the fourth by nothing at all.
    for (session, execution) in [(0, 0), (2, 99), (5, 50)] {
        let text = "UPDATE execution SET session_id = $2 WHERE id = $1";
        let of = args![ids[execution], sessions[session]];
        ledger.sql(text, of).await;
    }
    let text = "UPDATE execution SET probe_session_id = $2 WHERE id = $1";
    ledger.sql(text, args![ids[70], sessions[6]]).await;
    let (mut gone, mut calls) = (0, 0);
    loop {
        // A look at forty executions for two sessions.
        let of = ledger.forget_leftovers(Leftover::Sessions, RETENTION, 2);
        let some = of.await.unwrap();
        gone += some.sessions;
        calls += 1;
        assert!(some.sessions <= 2, "{some:?}");
        assert!(calls < 30, "it comes to an end");
        if !some.more {
            break;
        }
    }
    assert_eq!(gone, 3, "those that nothing names");
    let left = ledger
        .rows("SELECT id FROM session ORDER BY id", args![])
        .await;
    let left: Vec<_> = left.iter().map(|row| row.id(0)).collect();
    let named = [0, 2, 5, 6].map(|at| sessions[at]);
    assert_eq!(left, named);
}

/// Whatever is deleted from dead letters fails.
const REFUSING: &str = "
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'not this one'; END $$;
    CREATE TRIGGER refusing BEFORE DELETE ON dead_letter FOR EACH ROW EXECUTE FUNCTION refuse()";

/// The same.
const REFUSING_SQLITE: &str = "
    CREATE TRIGGER refusing BEFORE DELETE ON dead_letter
    BEGIN SELECT RAISE(ABORT, 'not this one'); END";

pub(crate) async fn a_kind_that_cannot_go_keeps_no_other(ledger: &Fixture) {
    let at = ledger.ago(OLD).await;
    let text = "INSERT INTO dead_letter (job, key, queue, reason, detail, payload, recorded_at, id,
                    resolved_at, resolution)
                VALUES ('book', 'k', 'default', 'unknown_job', '', '', $1, $2, $1, 'discarded')";
    ledger.sql(text, args![at, ids::fresh()]).await;
    let session = ledger.session("worker").await;
    let text = "UPDATE session SET state = 'closed', ended_at = $2 WHERE id = $1";
    ledger.sql(text, args![session, at]).await;
    ledger.ddl(REFUSING, REFUSING_SQLITE).await;
    let (mut sessions, mut failed) = (0, Vec::new());
    for kind in Leftover::ALL {
        match ledger.forget_leftovers(kind, RETENTION, 10).await {
            Ok(gone) => sessions += gone.sessions,
            Err(_) => failed.push(kind),
        }
    }
    assert_eq!(failed, [Leftover::DeadLetters]);
    assert_eq!(sessions, 1);
    assert_eq!(rows_of(ledger, "dead_letter").await, 1);
}
