//! `enqueue_in ORDER END [PAYLOAD]`: an order and its job `patient` in one transaction, which
//! ends as it is told: `commit`, `rollback`, `die-before` its commit or `die-after` it, by
//! SIGKILL.
//!
//! The end-to-end tests look for orders without a job and for jobs without an order.

use anyhow::{Context, bail};
use bellwether_client::{NewExecution, Payload, Transaction, enqueue_in};
use rustix::process::{Signal, getpid, kill_process};
use sqlx::{Connection, PgConnection, SqliteConnection};

/// How the transaction ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Commit,
    Rollback,
    DieBefore,
    DieAfter,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let order = args.next().context("name the order")?;
    let end = match args.next().as_deref() {
        Some("commit") => End::Commit,
        Some("rollback") => End::Rollback,
        Some("die-before") => End::DieBefore,
        Some("die-after") => End::DieAfter,
        _ => bail!("say how it ends: commit, rollback, die-before or die-after"),
    };
    let payload = args.next().unwrap_or_else(|| "{}".to_owned());
    let job = NewExecution::new("patient", Payload::json(payload));
    let url = std::env::var("BELLWETHER_DATABASE_URL").context("set BELLWETHER_DATABASE_URL")?;
    if url.starts_with("sqlite:") {
        sqlite(&url, &order, &job, end).await?;
    } else {
        postgres(&url, &order, &job, end).await?;
    }
    if end == End::DieAfter {
        die()?;
    }
    Ok(())
}

/// No destructor, no flush, no goodbye to the database.
fn die() -> anyhow::Result<()> {
    kill_process(getpid(), Signal::KILL)?;
    // The signal may take a moment to arrive; nothing else is done in it.
    loop {
        std::thread::park();
    }
}

async fn postgres(url: &str, order: &str, job: &NewExecution, end: End) -> anyhow::Result<()> {
    let schema = std::env::var("BELLWETHER_DATABASE_SCHEMA");
    let schema = schema.unwrap_or_else(|_| "bellwether".to_owned());
    let mut connection = PgConnection::connect(url).await?;
    let mut tx = connection.begin().await?;
    sqlx::query("INSERT INTO orders (id, execution_id) VALUES ($1, $2)")
        .bind(order)
        .bind(job.execution_id().to_string())
        .execute(&mut *tx)
        .await?;
    let at = Transaction::Postgres {
        connection: &mut tx,
        schema: &schema,
    };
    enqueue_in(at, job).await?;
    match end {
        End::Rollback => tx.rollback().await?,
        End::DieBefore => die()?,
        End::Commit | End::DieAfter => tx.commit().await?,
    }
    Ok(())
}

async fn sqlite(url: &str, order: &str, job: &NewExecution, end: End) -> anyhow::Result<()> {
    let mut connection = SqliteConnection::connect(url).await?;
    let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
    sqlx::query("INSERT INTO orders (id, execution_id) VALUES (?1, ?2)")
        .bind(order)
        .bind(job.execution_id().to_string())
        .execute(&mut *tx)
        .await?;
    let at = Transaction::Sqlite {
        connection: &mut tx,
    };
    enqueue_in(at, job).await?;
    match end {
        End::Rollback => tx.rollback().await?,
        End::DieBefore => die()?,
        End::Commit | End::DieAfter => tx.commit().await?,
    }
    Ok(())
}
