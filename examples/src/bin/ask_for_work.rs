//! A program that asks for work: one-shots on both paths, a schedule, a trigger, and waiting.
//!
//! ```sh
//! BELLWETHER_DATABASE_URL=sqlite:.bellwether/ledger.db \
//! BELLWETHER_NATS_URL=nats://127.0.0.1:4222 cargo run --bin ask_for_work
//! ```
//!
//! It needs a worker that serves the jobs `pay` and `report`, like `readme_worker`.
#![expect(clippy::print_stdout, reason = "a program for people")]

use std::time::Duration;

use bellwether_client::{Client, NewExecution, Payload, Submission, What};

const PATIENCE: Duration = Duration::from_mins(1);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let client = Client::from_env().await?;
    let payment = serde_json::json!({ "account": "DE02", "cents": 995 });

    // Through the database: as durable as its commit.
    let mut new = NewExecution::new("pay", Payload::json(payment.to_string()));
    new.key = Some("invoice-17".to_owned());
    let first = client.enqueue(&new).await?.execution_id();
    let ended = client.wait(What::Execution(first), PATIENCE).await?;
    println!("invoice-17: {}", ended.shards[0].state);

    // Through the subject: as any NATS client would.
    let submission = Submission::json("pay", &payment)?.key("invoice-18");
    let submitted = client.submit(&submission).await?;
    let ended = client.wait(&submitted, PATIENCE).await?;
    println!("invoice-18: {}", ended.shards[0].state);

    // A schedule may be fired at any time; its shards come back in order.
    let fire = client.trigger("report").await?;
    let rows: Vec<u64> = client.wait(What::Fire(fire), PATIENCE).await?.outputs()?;
    println!(
        "report: {} rows in {} shards",
        rows.iter().sum::<u64>(),
        rows.len()
    );
    Ok(())
}
