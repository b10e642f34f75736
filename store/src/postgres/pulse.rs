//! How the ledger is.

use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::PgRow;

use super::{PgStore, call, row, sql};
use crate::Result;
use crate::pulse::{COUNT_MAX, Hold, Holder, Pulse, TakePulse};

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

    async fn oldest_hold(&self) -> Result<Option<Hold>> {
        call!(self, "look for what holds cleaning back", |conn| {
            let row = sqlx::query(sql!("pulse/hold")).fetch_optional(conn).await?;
            row.as_ref().map(hold).transpose()
        })
    }
}

fn hold(row: &PgRow) -> sqlx::Result<Hold> {
    let (name, user): (String, String) = (row.try_get("name")?, row.try_get("owner")?);
    let holder = match row.try_get("kind")? {
        "session" => Holder::Session {
            pid: row.try_get("pid")?,
            user,
            application: name,
        },
        "prepared" => Holder::Prepared { gid: name, user },
        _ => Holder::Slot { name },
    };
    let age: Option<i64> = row.try_get("age_us")?;
    Ok(Hold {
        holder,
        horizon: row.try_get("horizon")?,
        // One that began in this very moment.
        age: age.map(|age| Duration::from_micros(u64::try_from(age).unwrap_or(0))),
    })
}
