//! Retention: each step one statement.

use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::PgConnection;

use super::{PgStore, call, row, sql};
use crate::Result;
use crate::retention::{Forgotten, NAMED_MAX, Retention};

#[async_trait::async_trait]
impl Retention for PgStore {
    async fn forget_fires(&self, retention: Duration, limit: u32) -> Result<Forgotten> {
        call!(self, "delete old fires", |conn| {
            let row = sqlx::query(sql!("retention/fires"))
                .bind(row::micros(retention))
                .bind(i64::from(limit.max(1)))
                .bind(self.history.after())
                .fetch_one(conn)
                .await?;
            let last = row.try_get("last")?;
            self.history.looked_up_to(last);
            Ok(Forgotten {
                fires: row::total(&row, "fires")?,
                executions: row::total(&row, "executions")?,
                attempts: row::total(&row, "attempts")?,
                verdicts: row::total(&row, "verdicts")?,
                refused_results: row::total(&row, "refused_results")?,
                non_fires: row::total(&row, "non_fires")?,
                timings: row::total(&row, "timings")?,
                more: last.is_some(),
                ..Forgotten::default()
            })
        })
    }

    async fn forget_leftovers(&self, retention: Duration, limit: u32) -> Result<Forgotten> {
        let micros = row::micros(retention);
        let most = i64::from(limit.max(1));
        let mut gone = call!(self, "delete old schedules", |conn| {
            let row = sqlx::query(sql!("retention/schedules"))
                .bind(micros)
                .bind(most)
                .fetch_one(conn)
                .await?;
            Ok(Forgotten {
                schedules: row::total(&row, "schedules")?,
                non_fires: row::total(&row, "non_fires")?,
                timings: row::total(&row, "timings")?,
                ..Forgotten::default()
            })
        })?;
        gone.refused_results = call!(self, "delete old refused results", |conn| {
            delete(conn, sql!("retention/refused"), micros, most).await
        })?;
        gone.dead_letters = call!(self, "delete old dead letters", |conn| {
            delete(conn, sql!("retention/dead"), micros, most).await
        })?;
        gone.sessions = call!(self, "delete old sessions", |conn| {
            delete_unnamed(conn, sql!("retention/sessions"), micros, most).await
        })?;
        gone.terms = call!(self, "delete old terms", |conn| {
            delete_unnamed(conn, sql!("retention/terms"), micros, most).await
        })?;
        gone.more = gone.any_reached(limit);
        Ok(gone)
    }
}

async fn delete(
    conn: &mut PgConnection,
    sql: &'static str,
    retention: i64,
    limit: i64,
) -> sqlx::Result<u64> {
    let deleted = sqlx::query(sql).bind(retention).bind(limit).execute(conn);
    Ok(deleted.await?.rows_affected())
}

/// Likewise, of a kind that other rows may name.
async fn delete_unnamed(
    conn: &mut PgConnection,
    sql: &'static str,
    retention: i64,
    limit: i64,
) -> sqlx::Result<u64> {
    let deleted = sqlx::query(sql)
        .bind(retention)
        .bind(limit)
        .bind(i64::from(NAMED_MAX))
        .execute(conn);
    Ok(deleted.await?.rows_affected())
}
