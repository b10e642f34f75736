//! The README's worker: a cron job in shards and a one-shot.

use std::path::Path;

use bellwether_worker::{Context, Outcome, Worker, job, telemetry};
use serde::Deserialize;

/// Four times a minute, in four shards. Each takes its slice of the data.
#[job(
    name = "report",
    cron = "*/15 * * * * *",
    tz = "Asia/Shanghai",
    shards = 4
)]
async fn report(ctx: Context) -> anyhow::Result<usize> {
    let mine = (0..1000).filter(|row| row % ctx.shard_total() == ctx.shard_index());
    Ok(mine.count())
}

#[derive(Deserialize)]
struct Payment {
    account: String,
    cents: i64,
}

/// A one-shot. The operation id is the same on every attempt: the key of the effect.
#[job(name = "pay", timeout = "30s", max_attempts = 3)]
async fn pay(ctx: Context, payment: Payment) -> anyhow::Result<Outcome> {
    if payment.cents <= 0 {
        return Ok(Outcome::fail("an amount must be positive")); // never tried again
    }
    anyhow::ensure!(!Path::new("bank-closed").exists(), "the bank is closed"); // tried again
    let receipt = format!("{} to {}", ctx.operation_id(), payment.account);
    Ok(Outcome::complete(receipt)?)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let telemetry = telemetry::init_from_env("my-worker")?; // log, traces
    let worker = Worker::builder().from_env();
    let worker = worker.register(report::job()).register(pay::job());
    let ended = worker.run().await;
    telemetry.shutdown().await;
    Ok(ended?)
}
