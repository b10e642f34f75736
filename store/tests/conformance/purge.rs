//! A ledger in which tens of thousands of executions grow old: what a purge leaves of its size, and
//! what it reads.

use std::time::Duration;

use bellwether_schemas::state::State;
use bellwether_store::retention::Forgotten;
use bellwether_store::schedules::Schedule;
use serde_json::Value;
use sqlx::PgPool;

use crate::fixture::Fixture;
use crate::outbox::rows_read;
use crate::plans::plan_of;
use crate::raw::args;
use crate::retention::{OLD, RETENTION, aged, ended, history_from, rows_of};
use crate::vocabulary::{complete, error_after, secs};

/// Copies of each round.
const EACH: u32 = 10_000;

/// The last fire, its execution and that one's attempt, to be copied.
const ORIGINS: &str = "
    CREATE TABLE origin_fire AS SELECT * FROM fire;
    CREATE TABLE origin_execution AS SELECT * FROM execution;
    CREATE TABLE origin_attempt AS SELECT * FROM attempt";

/// The instants after the origin's, from the number `FROM` on, as if each had fired, failed once and
/// then succeeded as it did.
const COPIES: &str = "
    CREATE TABLE copies AS
        SELECT n, origin.scheduled_at + n * interval '1 second' AS at,
               lpad(to_hex(
                   (extract(epoch FROM origin.scheduled_at) * 1000)::bigint + n * 1000
               ), 12, '0') AS prefix
        FROM origin_fire AS origin, generate_series(FROM + 1, FROM + EACH) AS n;
    INSERT INTO fire
        SELECT copy.* FROM copies CROSS JOIN origin_fire AS origin
        CROSS JOIN LATERAL jsonb_populate_record(origin, jsonb_build_object(
            'id', prefix || '80008000000000000001', 'scheduled_at', at)) AS copy;
    INSERT INTO execution
        SELECT copy.* FROM copies CROSS JOIN origin_execution AS origin
        CROSS JOIN LATERAL jsonb_populate_record(origin, jsonb_build_object(
            'id', prefix || '80008000000000000002', 'fire_id', prefix || '80008000000000000001',
            'operation_id', prefix || '80008000000000000002', 'scheduled_at', at)) AS copy;
    INSERT INTO attempt
        SELECT copy.* FROM copies CROSS JOIN origin_attempt AS origin
        CROSS JOIN LATERAL jsonb_populate_record(origin, jsonb_build_object(
            'execution_id', prefix || '80008000000000000002')) AS copy;
    UPDATE schedule SET cursor = (SELECT max(at) FROM copies);
    DROP TABLE copies";

/// The same.
const COPIES_SQLITE: &str = "
    CREATE TABLE fires AS
        WITH RECURSIVE n(i) AS (
            VALUES (FROM + 1) UNION ALL SELECT i + 1 FROM n WHERE i < FROM + EACH)
        SELECT origin_fire.*, i FROM origin_fire, n;
    UPDATE fires SET scheduled_at = scheduled_at + i * 1000;
    UPDATE fires SET id = unhex(printf('%012x', scheduled_at) || '80008000000000000001');
    CREATE TABLE executions AS
        SELECT origin_execution.*, fires.scheduled_at AS at FROM origin_execution, fires;
    UPDATE executions SET scheduled_at = at,
        id = unhex(printf('%012x', at) || '80008000000000000002'),
        operation_id = unhex(printf('%012x', at) || '80008000000000000002'),
        fire_id = unhex(printf('%012x', at) || '80008000000000000001');
    CREATE TABLE attempts AS
        SELECT origin_attempt.*, executions.id FROM origin_attempt, executions;
    UPDATE attempts SET execution_id = id;
    UPDATE schedule SET cursor = (SELECT max(scheduled_at) FROM fires);
    ALTER TABLE fires DROP COLUMN i;
    ALTER TABLE executions DROP COLUMN at;
    ALTER TABLE attempts DROP COLUMN id;
    INSERT INTO fire SELECT * FROM fires;
    INSERT INTO execution SELECT * FROM executions;
    INSERT INTO attempt SELECT * FROM attempts;
    DROP TABLE fires;
    DROP TABLE executions;
    DROP TABLE attempts";

/// A schedule of which the first instant has fired, failed once and succeeded, long ago; what `copy`
/// copies.
async fn origin(ledger: &Fixture) -> Schedule {
    let schedule = ledger.schedule("tick", 1, OLD).await;
    let term = ledger.lead().await;
    let id = ledger.plan_next(&term, &schedule).await[0];
    let session = ledger.session("worker").await;
    let claimed = ledger.claim_one(session, id).await;
    ledger
        .commit_one(&claimed, error_after(Duration::ZERO))
        .await;
    ledger.dispatch_due(10).await.unwrap();
    ended(ledger, session, id, complete(), OLD).await;
    assert_eq!(ledger.view(id).await.state, State::Succeeded);
    aged(ledger, id, OLD).await;
    ledger.ddl(ORIGINS, ORIGINS).await;
    schedule
}

async fn copy(ledger: &Fixture, round: u32) {
    let script = match ledger.raw().postgres() {
        Some(_) => COPIES,
        None => COPIES_SQLITE,
    };
    let script = script
        .replace("FROM + ", &format!("{} + ", round * EACH))
        .replace("EACH", &EACH.to_string());
    ledger.raw().script_of(script).await;
}

/// Deletes all that is old, as a ticker does; answers what went and in how many batches.
async fn purge(ledger: &Fixture) -> (Forgotten, u32) {
    let (mut all, mut batches) = (Forgotten::default(), 0);
    loop {
        let gone = ledger.forget_fires(RETENTION, 500).await.unwrap();
        batches += 1;
        all.fires += gone.fires;
        all.executions += gone.executions;
        all.attempts += gone.attempts;
        assert!(gone.executions <= 500, "{gone:?}");
        if !gone.more {
            return (all, batches);
        }
    }
}

/// Bytes of the tables that were purged, or of the file; on Postgres once it has cleaned up.
async fn size(ledger: &Fixture) -> i64 {
    const TABLES: [&str; 3] = ["execution", "fire", "attempt"];
    let Some(pool) = ledger.raw().postgres() else {
        return ledger
            .count("SELECT page_count FROM pragma_page_count", args![])
            .await;
    };
    bellwether_sandbox::eventually("no dead rows", secs(120), async || {
        for table in TABLES {
            ledger.raw().script_of(format!("VACUUM {table}")).await;
        }
        let dead = "SELECT sum(n_dead_tup)::bigint FROM pg_stat_user_tables
                    WHERE schemaname = current_schema()
                        AND relname IN ('execution', 'fire', 'attempt')";
        let dead: i64 = sqlx::query_scalar(dead).fetch_one(pool).await.unwrap();
        dead == 0
    })
    .await
    .unwrap();
    let size = "SELECT pg_total_relation_size('execution') + pg_total_relation_size('fire')
                    + pg_total_relation_size('attempt')";
    sqlx::query_scalar(size).fetch_one(pool).await.unwrap()
}

/// Again and again tens of thousands of rows come and go: the ledger is no larger for it.
pub(crate) async fn p50_history_past_its_retention_is_deleted_and_the_size_stays(ledger: &Fixture) {
    let schedule = origin(ledger).await;
    let mut sizes: Vec<i64> = Vec::new();
    // Pages that were emptied are used again once no transaction of the server can see what was in
    // them, and the tests beside this one have theirs. Without that each round would add its size.
    let is_flat =
        |sizes: &[i64]| matches!(sizes, [.., before, last] if *last <= before + before / 20);
    for round in 0..10 {
        if is_flat(&sizes) {
            break;
        }
        copy(ledger, round).await;
        ledger.assert_laws_hold().await;
        let (gone, batches) = purge(ledger).await;
        let rows = u64::from(EACH) + u64::from(round == 0);
        assert_eq!(
            (gone.fires, gone.executions, gone.attempts),
            (rows, rows, rows)
        );
        let each = "of 250 executions with an attempt of history each";
        assert_eq!(u64::from(batches), rows.div_ceil(250), "{each}");
        for table in ["fire", "execution", "attempt"] {
            assert_eq!(rows_of(ledger, table).await, 0, "{table}");
        }
        let row = ledger.schedule_row(schedule.id).await;
        assert_eq!(history_from(ledger, &schedule).await, row.cursor);
        ledger.assert_laws_hold().await;
        sizes.push(size(ledger).await);
    }
    assert!(is_flat(&sizes), "the size grows: {sizes:?}");
}

pub(crate) async fn a_purge_reads_what_it_deletes_and_nothing_where_nothing_is_old(
    ledger: &Fixture,
) {
    let Some(pool) = ledger.raw().postgres() else {
        return;
    };
    origin(ledger).await;
    for round in 0..3 {
        copy(ledger, round).await;
    }
    let statistics = "ANALYZE execution; ANALYZE fire; ANALYZE attempt";
    ledger.raw().script(statistics).await;
    let nothing = explained(pool, OLD * 2, 500).await;
    for table in ["execution", "fire", "attempt"] {
        assert_eq!(rows_read(&nothing, table), 0, "{table}: {nothing:#}");
    }
    let batch = explained(pool, RETENTION, 500).await;
    // To find 500 and to count their fires, to lock 250 and to delete them.
    for (table, least, most) in [
        ("execution", 500, 1_600),
        ("fire", 250, 1_100),
        ("attempt", 250, 350),
    ] {
        let read = rows_read(&batch, table);
        assert!(
            (least..most).contains(&read),
            "{read} of {table} were read: {batch:#}"
        );
    }
}

/// The plan of a batch that is rolled back, with the rows it read.
pub(crate) async fn explained(pool: &PgPool, retention: Duration, limit: i64) -> Value {
    const EXPLAIN: &str = concat!(
        "EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) ",
        include_str!("../../sql/postgres/retention/fires.sql")
    );
    let query = sqlx::query(EXPLAIN)
        .bind(i64::try_from(retention.as_micros()).unwrap())
        .bind(limit)
        .bind(uuid::Uuid::nil());
    let mut tx = pool.begin().await.unwrap();
    let row = query.fetch_one(&mut *tx).await.unwrap();
    tx.rollback().await.unwrap();
    plan_of(&row)
}
