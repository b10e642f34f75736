//! `hostile`: jobs that end the process they run in, for the end-to-end tests.
//!
//! * `abort` ends the process at its first `times` claims, as a job does that runs out of memory.
//! * `sound` shares the process with it and does no harm.
//! * `book` writes down its operation in a table of its own, and the first time ends the process
//!   before it can complete: the window that *effectively once* speaks of. The unique key on
//!   `operation_id` makes the repeat harmless.
//! * `contradict` says that it has failed after its own transaction has completed it.

use std::env;
use std::process::abort;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context as _;
use bellwether_worker::store::Transaction;
use bellwether_worker::{Context, Lease, Worker, job};
use serde::Deserialize;
use sqlx::postgres::{PgConnectOptions, PgPool};

#[derive(Deserialize)]
struct Deaths {
    /// So many first claims end the process.
    times: i64,
}

#[job(name = "abort", queue = "hostile")]
async fn abort_process(ctx: Context, deaths: Deaths) -> Result<i64, anyhow::Error> {
    if ctx.generation() <= deaths.times {
        abort();
    }
    Ok(ctx.generation())
}

#[job(name = "sound", queue = "hostile")]
async fn sound() -> Result<(), anyhow::Error> {
    tokio::time::sleep(Duration::from_millis(50)).await;
    Ok(())
}

#[job(name = "book", queue = "hostile")]
async fn book(ctx: Context) -> Result<&'static str, anyhow::Error> {
    let booked = sqlx::query(
        "INSERT INTO booked (operation_id, generation) VALUES ($1, $2)
         ON CONFLICT (operation_id) DO NOTHING",
    )
    .bind(ctx.operation_id())
    .bind(ctx.generation())
    .execute(&database().await?)
    .await?;
    if ctx.generation() == 1 {
        // The effect is there, and nobody will ever say so.
        abort();
    }
    Ok(if booked.rows_affected() == 1 {
        "booked"
    } else {
        "booked before"
    })
}

#[job(name = "contradict", queue = "hostile")]
async fn contradict(ctx: Context) -> Result<(), anyhow::Error> {
    let schema = variable("BELLWETHER_DATABASE_SCHEMA")?;
    let mut tx = database().await?.begin().await?;
    let own = Transaction::Postgres {
        connection: &mut tx,
        schema: &schema,
    };
    ctx.commit_in(own, "done").await?;
    tx.commit().await?;
    anyhow::bail!("failed after it was done")
}

fn variable(name: &'static str) -> anyhow::Result<String> {
    env::var(name).with_context(|| format!("{name} is not set"))
}

/// The schema that the worker uses, too.
async fn database() -> anyhow::Result<PgPool> {
    let options = PgConnectOptions::from_str(&variable("BELLWETHER_DATABASE_URL")?)?;
    let schema = variable("BELLWETHER_DATABASE_SCHEMA")?;
    Ok(PgPool::connect_with(options.options([("search_path", schema)])).await?)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let _telemetry = bellwether_telemetry::init_from_env("hostile")?;
    let ttl = Duration::from_secs(2);
    let worker = Worker::builder()
        .from_env()
        .register(abort_process::job())
        .register(sound::job())
        .register(book::job())
        .register(contradict::job())
        .lease(Lease::of(ttl));
    Ok(worker.run().await?)
}
