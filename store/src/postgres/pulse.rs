//! How the ledger is.

use sqlx::Row;

use super::{PgStore, call, row, sql};
use crate::Result;
use crate::pulse::{COUNT_MAX, Pulse, TakePulse};

#[async_trait::async_trait]
impl TakePulse for PgStore {
    async fn pulse(&self) -> Result<Pulse> {
        call!(self, "take the ledger's pulse", |conn| {
            let row = sqlx::query(sql!("pulse/take"))
                .bind(i64::from(COUNT_MAX))
                .fetch_one(conn)
                .await?;
            Ok(Pulse {
                now: row.try_get("now")?,
                due: row::total(&row, "due")?,
                overdue: row::computed_us(&row, "overdue_us")?,
                outbox: row::total(&row, "outbox")?,
                outbox_oldest: row::computed_us(&row, "outbox_oldest_us")?,
                dead_messages: row::total(&row, "dead_messages")?,
                dead_executions: row::total(&row, "dead_executions")?,
                unknown: row::total(&row, "unknown")?.min(u64::from(COUNT_MAX)),
            })
        })
    }
}
