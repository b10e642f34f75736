//! Money that moves between accounts in the database that holds the ledger. A transfer and the
//! end of its execution are one transaction: kill this worker whenever you like, the total stays
//! the same and each transfer happens once.
//!
//! ```sh
//! export BELLWETHER_DATABASE_URL=postgres://…   # a ledger made by `bellwether migrate`
//! export BELLWETHER_NATS_URL=nats://127.0.0.1:4222
//! cargo run -p bellwether-examples --bin transfers
//! ```
//!
//! In another terminal, with the same variables:
//!
//! ```sh
//! psql "$BELLWETHER_DATABASE_URL" -c 'INSERT INTO account VALUES (1, 100000), (2, 100000)'
//! bellwether submit transfers transfer '{"from": 1, "to": 2, "cents": 1250}' --wait 10s
//! ```
//!
//! To kill it in the middle, let it wait before its commit: `"ms": 20000` in the payload.
//!
//! The same with the money in another database: `transfers_elsewhere`.

use std::env;
use std::time::Duration;

use anyhow::Context as _;
use bellwether_worker::store::Transaction;
use bellwether_worker::{Context, Job, Outcome, Worker, telemetry};
use serde::Deserialize;
use sqlx::PgPool;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS account (id integer PRIMARY KEY, cents bigint NOT NULL);
    -- A second row for one operation would tell that it was repeated.
    CREATE TABLE IF NOT EXISTS transfer (
        operation_id uuid NOT NULL, from_id integer NOT NULL, to_id integer NOT NULL,
        cents bigint NOT NULL
    );";
/// In the order of their ids, so that no two transfers wait for each other.
const LOCK: &str = "SELECT id FROM account WHERE id IN ($1, $2) ORDER BY id FOR UPDATE";
const TAKE: &str = "UPDATE account SET cents = cents - $2 WHERE id = $1 AND cents >= $2";
const GIVE: &str = "UPDATE account SET cents = cents + $2 WHERE id = $1";
const WRITE: &str = "INSERT INTO transfer VALUES ($1, $2, $3, $4)";

#[derive(Clone)]
struct Bank {
    pool: PgPool,
    /// The schema of the ledger, which is in the same database.
    ledger: String,
}

#[derive(Deserialize)]
struct Transfer {
    from: i32,
    to: i32,
    cents: i64,
    /// Wait before the commit, in milliseconds: time to be killed in the middle.
    #[serde(default)]
    ms: u64,
}

impl Bank {
    async fn transfer(self, ctx: Context, order: Transfer) -> anyhow::Result<Outcome> {
        let Transfer {
            from,
            to,
            cents,
            ms,
        } = order;
        let mut tx = self.pool.begin().await?;
        let accounts = sqlx::query(LOCK).bind(from).bind(to);
        if cents <= 0 || accounts.fetch_all(&mut *tx).await?.len() < 2 {
            return Ok(Outcome::fail("an amount and two accounts are needed"));
        }
        let taken = sqlx::query(TAKE).bind(from).bind(cents);
        if taken.execute(&mut *tx).await?.rows_affected() == 0 {
            return Ok(Outcome::fail("not enough money"));
        }
        let given = sqlx::query(GIVE).bind(to).bind(cents);
        given.execute(&mut *tx).await?;
        let written = sqlx::query(WRITE).bind(ctx.operation_id());
        let written = written.bind(from).bind(to).bind(cents);
        written.execute(&mut *tx).await?;
        tracing::info!(operation = %ctx.operation_id(), from, to, cents, "written, not committed");
        tokio::time::sleep(Duration::from_millis(ms)).await;
        let transaction = Transaction::Postgres {
            connection: &mut tx,
            schema: &self.ledger,
        };
        ctx.commit_in(transaction, ()).await?;
        tx.commit().await?;
        tracing::info!(operation = %ctx.operation_id(), "committed");
        Ok(Outcome::complete(())?)
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let telemetry = telemetry::init_from_env("transfers")?; // log, traces
    let url = env::var("BANK_URL").or_else(|_| env::var("BELLWETHER_DATABASE_URL"));
    let bank = Bank {
        pool: PgPool::connect(&url.context("set BELLWETHER_DATABASE_URL")?).await?,
        ledger: env::var("BELLWETHER_DATABASE_SCHEMA").unwrap_or("bellwether".to_owned()),
    };
    sqlx::raw_sql(TABLES).execute(&bank.pool).await?;
    let job = Job::new("transfer", move |ctx: Context, order: Transfer| {
        bank.clone().transfer(ctx, order)
    });
    let worker = Worker::builder()
        .from_env()
        .register(job.queue("transfers"));
    let ended = worker.run().await;
    telemetry.shutdown().await;
    Ok(ended?)
}
