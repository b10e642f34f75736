//! A worker whose definition comes from its environment: two builds of one program that say
//! different things about one schedule, for the tests of deployments.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `DEFINITION_NAME` | the worker's label | `definition` |
//! | `DEFINITION_CRON` | the cron expression; empty = the code defines no schedule | every second |
//! | `DEFINITION_TZ` | its zone | `UTC` |
//! | `DEFINITION_SHARDS` | shards of each fire | 1 |
//! | `DEFINITION_WORK_MS` | how long each execution takes | 0 |
//!
//! Where the ledger and the broker are, is said by `BELLWETHER_…` as everywhere.

use std::str::FromStr;
use std::time::Duration;

use anyhow::Context as _;
use bellwether_worker::{Context, Job, Worker};

fn variable(name: &str, default: &str) -> String {
    std::env::var(name).unwrap_or_else(|_unset| default.to_owned())
}

fn number<T>(name: &str, default: &str) -> anyhow::Result<T>
where
    T: FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    let text = variable(name, default);
    text.parse().with_context(|| format!("{name}={text:?}"))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let telemetry = bellwether_telemetry::init_from_env("definition")?;
    let work = Duration::from_millis(number("DEFINITION_WORK_MS", "0")?);
    let mut job = Job::new("definition", move |ctx: Context| async move {
        tokio::time::sleep(work).await;
        Ok::<_, std::io::Error>(ctx.shard_index())
    })
    .shards(number("DEFINITION_SHARDS", "1")?);
    let cron = variable("DEFINITION_CRON", "* * * * * *");
    if !cron.is_empty() {
        job = job.cron(cron, variable("DEFINITION_TZ", "UTC"));
    }
    let worker = Worker::builder().from_env().register(job);
    let name = variable("DEFINITION_NAME", "definition");
    let ran = worker.name(name).run().await;
    telemetry.shutdown().await;
    Ok(ran?)
}
