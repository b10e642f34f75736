//! Money: transfers between accounts while the workers are killed at random. The total stays and
//! each transfer happens once, whether the accounts lie in the ledger's database or elsewhere.

use std::collections::BTreeSet;
use std::time::Duration;

use bellwether_client::NewExecution;
use bellwether_schemas::state::State;
use bellwether_store::Payload;
use serde_json::json;
use sqlx::postgres::PgPool;
use sqlx::{AssertSqlSafe, Row, SqlitePool};
use uuid::Uuid;

use crate::support::{Cluster, Role};

const ACCOUNTS: i32 = 20;
const CENTS_EACH: i64 = 1_000_000;
const TRANSFERS: usize = 10_000;
const WORKERS: usize = 3;
/// Workers killed in a run; `BELLWETHER_TEST_KILLS` asks for more.
const KILLS: usize = 10;
/// Work that is left when another batch is enqueued: a kill shall always hit something.
const BACKLOG_MIN: u64 = 1_000;

fn kills() -> usize {
    let asked = std::env::var("BELLWETHER_TEST_KILLS").ok();
    asked.map_or(KILLS, |asked| asked.parse().unwrap())
}

/// `count` transfers between two accounts each.
async fn order(cluster: &Cluster, job: &str, count: usize, rng: &mut fastrand::Rng) -> Vec<Uuid> {
    let mut ids = Vec::with_capacity(count);
    let orders: Vec<_> = (0..count)
        .map(|_| {
            let from = rng.i32(1..=ACCOUNTS);
            let to = (from + rng.i32(0..ACCOUNTS - 1)) % ACCOUNTS + 1;
            let order = json!({ "from": from, "to": to, "cents": rng.i64(1..50) });
            let mut new = NewExecution::new(job, Payload::json(order.to_string()));
            // However often the same one is hit.
            new.policy.max_attempts = 100;
            new.queue = format!("{job}s");
            if job == "transfer-elsewhere" {
                new.queue = job.replace("transfer", "transfers");
                new.policy.on_lost = bellwether_schemas::state::OnLost::Unknown;
            }
            new
        })
        .collect();
    for batch in orders.chunks(1_000) {
        let answers = cluster.client.enqueue_all(batch).await.unwrap();
        ids.extend(
            answers
                .into_iter()
                .map(bellwether_client::Enqueued::execution_id),
        );
    }
    ids
}

/// Orders transfers and kills workers until all is done; answers the operations.
async fn kill_at_random(
    cluster: &Cluster,
    program: &str,
    job: &str,
    env: &[(&str, &str)],
) -> BTreeSet<Uuid> {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut workers: Vec<Role> = Vec::new();
    for n in 0..WORKERS {
        workers.push(cluster.example(program, &format!("teller-{n}"), env).await);
    }
    let mut ordered: BTreeSet<Uuid> = order(cluster, job, TRANSFERS, &mut rng)
        .await
        .into_iter()
        .collect();
    let mut killed = 0;
    while killed < kills() {
        let counts = cluster.counts().await;
        let ended = counts.get(&State::Succeeded).copied().unwrap_or(0);
        let left = u64::try_from(ordered.len()).unwrap() - ended;
        if left < BACKLOG_MIN {
            ordered.extend(order(cluster, job, TRANSFERS / 5, &mut rng).await);
        }
        // Not a wait for anything: kills fall at any moment of the work.
        tokio::time::sleep(Duration::from_millis(rng.u64(100..900))).await;
        let hit = rng.usize(..workers.len());
        workers[hit].kill();
        killed += 1;
        workers[hit] = cluster.example_unwatched(program, &format!("teller-{hit}"), env);
    }
    println!("{} transfers, {killed} workers killed", ordered.len());
    cluster.until_all_succeeded(ordered.len()).await;
    ordered
}

#[tokio::test(flavor = "multi_thread")]
async fn money_in_the_ledgers_database_moves_once_whoever_is_killed() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let schema = format!("{}_bank", cluster.subjects.namespace());
    let sql = cluster.sql().await;
    sqlx::query(AssertSqlSafe(format!("CREATE SCHEMA {schema}")))
        .execute(&sql)
        .await
        .unwrap();
    let url = cluster.database_url();
    let joint = if url.contains('?') { '&' } else { '?' };
    let bank_url = format!("{url}{joint}options[search_path]={schema}");
    let bank = PgPool::connect(&bank_url).await.unwrap();
    let _ticker = cluster.ticker(&[]);
    let _relay = cluster.relay();

    let env = [("BANK_URL", bank_url.as_str())];
    // The program makes its tables; they are filled before the first order.
    let first = cluster.example("transfers", "opening", &env).await;
    drop(first);
    sqlx::query("INSERT INTO account SELECT n, $2 FROM generate_series(1, $1) AS n")
        .bind(ACCOUNTS)
        .bind(CENTS_EACH)
        .execute(&bank)
        .await
        .unwrap();
    let ordered = kill_at_random(&cluster, "transfers", "transfer", &env).await;

    let total: i64 = sqlx::query_scalar("SELECT sum(cents)::bigint FROM account")
        .fetch_one(&bank)
        .await
        .unwrap();
    assert_eq!(total, CENTS_EACH * i64::from(ACCOUNTS), "the total");
    let rows = sqlx::query("SELECT operation_id FROM transfer")
        .fetch_all(&bank)
        .await
        .unwrap();
    let moved: BTreeSet<Uuid> = rows.iter().map(|row| row.get("operation_id")).collect();
    assert_eq!(rows.len(), ordered.len(), "each once");
    assert_eq!(moved, ordered, "those that were ordered");
    let lost: i64 = sqlx::query_scalar("SELECT count(*) FROM attempt WHERE reason = 'worker_lost'")
        .fetch_one(&sql)
        .await
        .unwrap();
    println!("{lost} attempts were cut off by a kill");
    assert!(lost > 0, "no kill hit any work");
    cluster.audit_clean(&[4, 5, 6, 7, 8]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn money_elsewhere_moves_once_with_a_probe_whoever_is_killed() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    let _ticker = cluster.ticker(&[]);
    let _relay = cluster.relay();
    let file = cluster.folder().join("bank.db");
    let env = [("BANK_FILE", file.to_str().unwrap())];
    let ordered = kill_at_random(&cluster, "transfers_elsewhere", "transfer-elsewhere", &env).await;

    let bank = SqlitePool::connect(&format!("sqlite:{}", file.display()))
        .await
        .unwrap();
    let total: i64 = sqlx::query_scalar("SELECT sum(cents) FROM account")
        .fetch_one(&bank)
        .await
        .unwrap();
    assert_eq!(total, CENTS_EACH * i64::from(ACCOUNTS), "the total");
    let rows: Vec<String> = sqlx::query_scalar("SELECT operation_id FROM transfer")
        .fetch_all(&bank)
        .await
        .unwrap();
    let moved: BTreeSet<Uuid> = rows.iter().map(|id| id.parse().unwrap()).collect();
    assert_eq!(rows.len(), ordered.len(), "each once");
    assert_eq!(moved, ordered, "those that were ordered");
    let said: Vec<(String, i64)> = sqlx::query_as(
        "SELECT verdict, count(*) FROM verdict WHERE said_by = 'probe' GROUP BY 1 ORDER BY 1",
    )
    .fetch_all(&sql)
    .await
    .unwrap();
    println!("what the probes said: {said:?}");
    assert!(!said.is_empty(), "no kill hit any work");
    assert!(
        said.iter().all(|(verdict, _)| verdict != "cannot_tell"),
        "{said:?}"
    );
    cluster.audit_clean(&[4, 5, 6, 7, 8]).await;
}
