//! The README's worker: a cron job in shards and a one-shot.

use bellwether_worker::{Context, Outcome, Worker, job};
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
struct Payment {
    account: String,
    cents: i64,
}

#[derive(Serialize)]
struct Slice {
    rows: u64,
}

/// Every night at two, in four shards. Each takes its slice of the data.
#[job(
    name = "nightly-report",
    cron = "0 0 2 * * *",
    tz = "Asia/Shanghai",
    shards = 4
)]
async fn nightly_report(ctx: Context) -> anyhow::Result<Slice> {
    let mine = (0..1000).filter(|row| row % ctx.shard_total() == ctx.shard_index());
    Ok(Slice {
        rows: mine.count() as u64,
    })
}

/// A one-shot. The operation id is the same on every attempt: use it as the key of the effect.
#[job(name = "pay", timeout = "30s", max_attempts = 3)]
async fn pay(ctx: Context, payment: Payment) -> anyhow::Result<Outcome> {
    if payment.cents <= 0 {
        return Ok(Outcome::fail("an amount must be positive")); // never tried again
    }
    println!(
        "{}: {} cents to {}",
        ctx.operation_id(),
        payment.cents,
        payment.account
    );
    Ok(Outcome::done())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let worker = Worker::builder().from_env();
    Ok(worker
        .register(nightly_report::job())
        .register(pay::job())
        .run()
        .await?)
}
