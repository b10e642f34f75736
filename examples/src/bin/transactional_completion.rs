//! A worker that books money in the database that holds the ledger: the booking and the end of
//! the execution become true in one transaction, so each is booked exactly as often as it is
//! shown to have succeeded. On Postgres the same, with a `PgPool` and a plain `begin()`.
//!
//! ```sh
//! export BELLWETHER_DATABASE_URL=sqlite:$PWD/.bellwether/ledger.db   # as `bellwether dev` says
//! export BELLWETHER_NATS_URL=nats://127.0.0.1:4222
//! cargo run -p bellwether-examples --bin transactional_completion
//! bellwether submit default book '{"account": "A-1", "cents": 1250}' --wait 10
//! ```

use bellwether_worker::{Context, Job, Worker};
use serde::Deserialize;
use sqlx::SqlitePool;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS balance (
    account text PRIMARY KEY,
    cents integer NOT NULL CHECK (cents >= 0)
)";

const BOOK: &str = "INSERT INTO balance (account, cents) VALUES (?, ?)
    ON CONFLICT (account) DO UPDATE SET cents = balance.cents + excluded.cents
    RETURNING cents";

#[derive(Deserialize)]
struct Booking {
    account: String,
    cents: i64,
}

/// Books and completes with the new balance. An error on the way rolls back both.
async fn book(pool: SqlitePool, ctx: Context, booking: Booking) -> anyhow::Result<()> {
    // IMMEDIATE: SQLite has one writer, and it is better to wait for it at the beginning.
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    let balance: i64 = sqlx::query_scalar(BOOK)
        .bind(booking.account)
        .bind(booking.cents)
        .fetch_one(&mut *tx)
        .await?;
    ctx.commit_in(&mut *tx, balance).await?;
    tx.commit().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let pool = SqlitePool::connect(&std::env::var("BELLWETHER_DATABASE_URL")?).await?;
    sqlx::query(TABLE).execute(&pool).await?;
    let job = Job::new("book", move |ctx: Context, booking: Booking| {
        book(pool.clone(), ctx, booking)
    });
    Ok(Worker::builder().from_env().register(job).run().await?)
}
