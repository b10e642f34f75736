//! Money that moves between accounts in a database that is *not* the ledger's: here a file, `bank.db`.
//! No transaction spans both, so a worker that dies between the transfer and its result leaves an
//! execution of which nobody knows whether the money moved. Repeating it blindly could move it
//! twice. So the job says `on_lost = unknown`, and has a probe that looks the operation up.
//!
//! ```sh
//! export BELLWETHER_DATABASE_URL=sqlite:$PWD/.bellwether/ledger.db   # as `bellwether dev` says
//! export BELLWETHER_NATS_URL=nats://127.0.0.1:4222
//! cargo run -p bellwether-examples --bin transfers_elsewhere
//! ```
//!
//! In another terminal, with the same variables:
//!
//! ```sh
//! bellwether submit transfers-elsewhere transfer-elsewhere \
//!     '{"from": 1, "to": 2, "cents": 1250, "ms": 20000}' --wait 2m
//! ```
//!
//! The money has moved, and the result waits for 20 s (`ms`): kill the worker (Ctrl-\), start it
//! again, and see in `bellwether executions show` how its probe finds the money moved.

use std::time::Duration;

use bellwether_worker::{Context, Job, OnLost, Outcome, ProbeContext, Probed, Worker, telemetry};
use serde::Deserialize;
use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS account (id integer PRIMARY KEY, cents integer NOT NULL);
    -- What a probe looks for. A second row for one operation would tell that it was repeated.
    CREATE TABLE IF NOT EXISTS transfer (
        operation_id text NOT NULL, from_id integer NOT NULL, to_id integer NOT NULL,
        cents integer NOT NULL
    );
    CREATE INDEX IF NOT EXISTS transfer_operation ON transfer (operation_id);
    INSERT INTO account
        WITH RECURSIVE n (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM n WHERE n < 20)
        SELECT n, 1000000 FROM n WHERE NOT EXISTS (SELECT 1 FROM account);";
const TAKE: &str = "UPDATE account SET cents = cents - $2 WHERE id = $1 AND cents >= $2";
const GIVE: &str = "UPDATE account SET cents = cents + $2 WHERE id = $1";
const WRITE: &str = "INSERT INTO transfer VALUES ($1, $2, $3, $4)";
const LOOK: &str = "SELECT EXISTS (SELECT 1 FROM transfer WHERE operation_id = $1)";

#[derive(Deserialize)]
struct Transfer {
    from: i64,
    to: i64,
    cents: i64,
    /// Wait between the transfer and its result, in milliseconds: time to be killed there.
    #[serde(default)]
    ms: u64,
}

async fn transfer(bank: SqlitePool, ctx: Context, order: Transfer) -> anyhow::Result<Outcome> {
    let Transfer {
        from,
        to,
        cents,
        ms,
    } = order;
    let mut tx = bank.begin_with("BEGIN IMMEDIATE").await?;
    let taken = sqlx::query(TAKE).bind(from).bind(cents);
    if cents <= 0 || taken.execute(&mut *tx).await?.rows_affected() == 0 {
        return Ok(Outcome::fail("no such account, or not enough money"));
    }
    let given = sqlx::query(GIVE).bind(to).bind(cents);
    if given.execute(&mut *tx).await?.rows_affected() == 0 {
        return Ok(Outcome::fail("no such account"));
    }
    let written = sqlx::query(WRITE).bind(ctx.operation_id().to_string());
    let written = written.bind(from).bind(to).bind(cents);
    written.execute(&mut *tx).await?;
    // A commit that fails has moved nothing, and is repeated. After it the worker may die at any
    // line, but must not answer with an error: that would be a repeat, too.
    tx.commit().await?;
    tracing::info!(operation = %ctx.operation_id(), from, to, cents, "moved");
    tokio::time::sleep(Duration::from_millis(ms)).await;
    Ok(Outcome::complete(())?)
}

/// Did the money of a lost attempt move? It changes nothing.
async fn has_moved(bank: SqlitePool, ctx: ProbeContext) -> anyhow::Result<Probed> {
    let operation = ctx.operation_id().to_string();
    let moved: bool = sqlx::query_scalar(LOOK)
        .bind(operation)
        .fetch_one(&bank)
        .await?;
    tracing::info!(operation = %ctx.operation_id(), moved, "looked up");
    Ok(if moved { Probed::Done } else { Probed::NotDone })
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let telemetry = telemetry::init_from_env("transfers-elsewhere")?; // log, traces
    let file = SqliteConnectOptions::new()
        .filename(std::env::var("BANK_FILE").unwrap_or("bank.db".to_owned()))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .busy_timeout(Duration::from_secs(30));
    let bank = SqlitePoolOptions::new()
        .max_connections(4)
        .connect_with(file)
        .await?;
    let mut tx = bank.begin_with("BEGIN IMMEDIATE").await?;
    sqlx::raw_sql(TABLES).execute(&mut *tx).await?;
    tx.commit().await?;

    let asked = bank.clone();
    let job = Job::new(
        "transfer-elsewhere",
        move |ctx: Context, order: Transfer| transfer(bank.clone(), ctx, order),
    );
    let job = job
        .queue("transfers-elsewhere")
        .on_lost(OnLost::Unknown)
        .probe(move |ctx: ProbeContext| has_moved(asked.clone(), ctx));
    let ended = Worker::builder().from_env().register(job).run().await;
    telemetry.shutdown().await;
    Ok(ended?)
}
