//! Everything in one process: ticker, relay, worker, SQLite; nats-server (on PATH) is a child.
#![expect(clippy::print_stdout, reason = "a program for people")]

use std::time::Duration;

use bellwether_client::{NewExecution, Payload, What};
use bellwether_embedded::Embedded;
use bellwether_worker::{Context, Worker, job};

#[job(name = "tidy", every = "2s")]
async fn tidy(ctx: Context) -> anyhow::Result<()> {
    println!("tidied up for {}", ctx.scheduled_at());
    Ok(())
}

#[job(name = "greet")]
async fn greet(_ctx: Context, name: String) -> anyhow::Result<String> {
    Ok(format!("hello, {name}"))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let worker = Worker::builder().register(tidy::job());
    let worker = worker.register(greet::job());
    let system = Embedded::builder().folder("embedded-data").worker(worker);
    let running = system.start().await?;

    let client = running.client();
    let greeting = NewExecution::new("greet", Payload::json("\"flock\""));
    let asked = What::Execution(client.enqueue(&greeting).await?.execution_id());
    let ended = client.wait(asked, Duration::from_mins(1)).await?;
    println!("{}", ended.outputs::<String>()?.concat());

    tokio::signal::ctrl_c().await?;
    Ok(running.shutdown().await?)
}
