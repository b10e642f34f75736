//! How the ledger is.

use std::time::Duration;

use super::SqliteStore;
use super::clock::Millis;
use super::row::{Columns, between, instant};
use crate::Result;
use crate::pulse::{COUNT_MAX, Hold, Pulse, TakePulse};

#[async_trait::async_trait]
impl TakePulse for SqliteStore {
    async fn pulse(&self) -> Result<Pulse> {
        self.writer
            .read("take the ledger's pulse", async |conn, now| {
                let row = sqlx::query(sql!("pulse/take"))
                    .bind(now)
                    .bind(COUNT_MAX)
                    .fetch_one(conn)
                    .await?;
                let age = |since: Option<Millis>| {
                    since.map_or(Duration::ZERO, |since| between(since, now))
                };
                Ok(Pulse {
                    now: instant(now)?,
                    due: row.number("due")?,
                    overdue: age(row.value("due_since")?),
                    outbox: row.number("outbox")?,
                    outbox_oldest: age(row.value("outbox_since")?),
                    dead_messages: row.number("dead_messages")?,
                    dead_executions: row.number("dead_executions")?,
                    unknown: row.number::<u64>("unknown")?.min(u64::from(COUNT_MAX)),
                })
            })
            .await
    }

    async fn oldest_hold(&self) -> Result<Option<Hold>> {
        Ok(None)
    }
}
