//! How Postgres carries out what planning and sweeps repeat, where its statistics mislead: most of what is
//! unfinished is another schedule's, and the one asked for has nothing. SQLite has a test of its own, which
//! reads the plan of every statement.

use bellwether_schemas::ids;
use bellwether_schemas::state::Overlap;
use bellwether_store::leadership::Term;
use bellwether_store::planning::PlanStep;
use serde_json::Value;
use sqlx::{PgPool, Row as _};
use uuid::Uuid;

use crate::fixture::Fixture;
use crate::outbox::rows_read;
use crate::overlap::{HELD, finish, plan, scheduled};
use crate::vocabulary::{secs, step};

/// Ten thousand copies of each execution that is there, in the order of their ids; a quarter waits.
const COPIES: &str = "
    INSERT INTO execution
    SELECT copy.*
    FROM generate_series(1, 10000) AS n
    CROSS JOIN (
        SELECT id, row_number() OVER (ORDER BY name) AS number FROM schedule
    ) AS schedule
    JOIN execution AS origin ON origin.schedule_id = schedule.id
    CROSS JOIN LATERAL (
        SELECT lpad(to_hex(n * 10 + schedule.number), 12, '0') || '00008000800000000000' AS id
    ) AS fresh
    CROSS JOIN LATERAL jsonb_populate_record(
        origin, jsonb_build_object('id', fresh.id, 'fire_id', fresh.id)
    ) AS copy";

pub(crate) async fn what_is_unfinished_is_found_by_its_index(ledger: &Fixture) {
    let Some(pool) = ledger.raw().postgres() else {
        return;
    };
    let term = ledger.lead().await;
    let session = ledger.session("worker").await;
    let mut last = None;
    for name in ["a", "b", "c", "d"] {
        let schedule = scheduled(ledger, name, Overlap::Replace, 1).await;
        let (_, first) = plan(ledger, &term, &schedule).await;
        if name != "b" {
            finish(ledger, session, first[0]).await;
        }
        last = Some(schedule);
    }
    ledger.raw().script(COPIES).await;
    ledger
        .raw()
        .script("ANALYZE execution; ANALYZE fire; ANALYZE schedule")
        .await;
    let asked = ledger.schedule_row(last.unwrap().id).await;
    let next = step(&asked, &[asked.cursor + secs(1)]);
    is_probed(&planning(pool, &term, &next).await);

    // One is held behind a trigger.
    let manual = ids::fresh();
    ledger.trigger("d", manual, None).await.unwrap();
    assert_eq!(plan(ledger, &term, &asked).await.0, HELD);
    finish(ledger, session, ids::execution(manual, 0)).await;
    is_probed(&releasing(pool).await);
}

/// Neither the table nor its key is walked.
fn is_probed(plan: &Value) {
    let read = rows_read(plan, "execution");
    assert!(read < 50, "{read} rows were read: {plan:#}");
    assert!(!walks(plan), "{plan:#}");
}

fn walks(node: &Value) -> bool {
    let by_key = node["Index Name"] == "execution_pkey" && node["Index Cond"].is_null();
    let whole = node["Node Type"] == "Seq Scan" && node["Relation Name"] == "execution";
    let below = node["Plans"].as_array();
    by_key || whole || below.is_some_and(|nodes| nodes.iter().any(walks))
}

async fn planning(pool: &PgPool, term: &Term, step: &PlanStep) -> Value {
    const EXPLAIN: &str = concat!(
        "EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) ",
        include_str!("../../sql/postgres/planning/plan.sql")
    );
    let fire = &step.fires[0];
    let none: Option<&str> = None;
    let query = sqlx::query(EXPLAIN)
        .bind(term.partition)
        .bind(term.epoch)
        .bind(term.term_id)
        .bind(term.map_version)
        .bind([step.schedule_id])
        .bind([step.version])
        .bind([step.cursor])
        .bind([step.new_cursor])
        .bind([step.new_next_at])
        .bind([none])
        .bind([None::<chrono::DateTime<chrono::Utc>>])
        .bind([None::<chrono::DateTime<chrono::Utc>>])
        .bind([None::<i64>])
        .bind([step.overlap.as_str()])
        .bind([1_i64])
        .bind([fire.id])
        .bind([fire.scheduled_at])
        .bind([&*fire.nominal_local])
        .bind([&*fire.fold])
        .bind([&*fire.trace.traceparent])
        .bind([&*fire.trace.tracestate])
        .bind([ids::execution(fire.id, 0)])
        .bind([fire.id])
        .bind([0_i32]);
    let mut tx = pool.begin().await.unwrap();
    let row = query.fetch_one(&mut *tx).await.unwrap();
    tx.rollback().await.unwrap();
    plan_of(&row)
}

async fn releasing(pool: &PgPool) -> Value {
    const EXPLAIN: &str = concat!(
        "EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) ",
        include_str!("../../sql/postgres/sweeps/release_held.sql")
    );
    let query = sqlx::query(EXPLAIN)
        .bind(100_i64)
        .bind(Uuid::nil())
        .bind(1000_i64);
    let mut tx = pool.begin().await.unwrap();
    let row = query.fetch_one(&mut *tx).await.unwrap();
    tx.rollback().await.unwrap();
    plan_of(&row)
}

pub(crate) fn plan_of(row: &sqlx::postgres::PgRow) -> Value {
    let plan = row.try_get_raw(0).unwrap().as_str().unwrap().to_owned();
    let plan: Value = serde_json::from_str(&plan).unwrap();
    plan[0]["Plan"].clone()
}
