//! A fleet that has nothing to do.

use std::collections::BTreeMap;

use sqlx::PgPool;

use crate::support::{Cluster, Role, until};
use crate::tickers::count;

const WORKERS: usize = 10;

/// Notes every row that anybody writes.
const NOTE: &str = "
    CREATE TABLE written (relation text NOT NULL);
    CREATE FUNCTION note_write() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        EXECUTE format('INSERT INTO %I.written VALUES ($1)', TG_TABLE_SCHEMA) USING TG_TABLE_NAME;
        RETURN NULL;
    END $$;
    DO $$
    DECLARE relation text;
    BEGIN
        FOR relation IN
            SELECT tablename FROM pg_tables
            WHERE schemaname = current_schema() AND tablename <> 'written'
        LOOP
            EXECUTE format('CREATE TRIGGER note_write AFTER INSERT OR UPDATE OR DELETE ON %I
                            FOR EACH ROW EXECUTE FUNCTION note_write()', relation);
        END LOOP;
    END $$;
    CREATE TABLE began AS SELECT clock_timestamp() AS at";

async fn written(sql: &PgPool) -> BTreeMap<String, i64> {
    let text = "SELECT relation, count(*) FROM written GROUP BY relation";
    let rows: Vec<(String, i64)> = sqlx::query_as(text).fetch_all(sql).await.unwrap();
    rows.into_iter().collect()
}

/// A worker without work renews its session every 3 s, in one row, and writes nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn p27_an_idle_fleet_writes_its_renewals_and_nothing_else() {
    const SECONDS: i64 = 9;
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    let mut workers = Vec::new();
    for number in 0..WORKERS {
        let name = format!("idle-{number}");
        workers.push(cluster.example_unwatched("patient", &name, &[]));
    }
    until("all sessions", async || {
        let live = "SELECT count(*) FROM session WHERE state = 'live' AND renewed_at > opened_at";
        count(&sql, live).await == i64::try_from(WORKERS).unwrap()
    })
    .await;
    sqlx::raw_sql(NOTE).execute(&sql).await.unwrap();
    until("the end of the time in question", async || {
        let passed = "SELECT extract(epoch FROM clock_timestamp() - at)::bigint FROM began";
        count(&sql, passed).await >= SECONDS
    })
    .await;
    let mut written = written(&sql).await;
    println!("{WORKERS} workers without work wrote in {SECONDS} s: {written:?}");
    let renewals = written.remove("session").unwrap_or(0);
    let due = i64::try_from(WORKERS).unwrap() * SECONDS / 3;
    assert!(
        (due / 2..=due * 5 / 4 + 1).contains(&renewals),
        "{renewals} renewals instead of {due}"
    );
    // Less than one a second for each hundred workers.
    assert_eq!(written, BTreeMap::new());
    assert!(workers.iter_mut().all(Role::is_running));
}
