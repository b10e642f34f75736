//! Retention: each step one statement.

use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::PgConnection;

use super::{PgStore, call, row, sql};
use crate::Result;
use crate::retention::{Forgotten, Leftover, NAMED_MAX, Retention, Unnamed, naming_max};

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

    async fn forget_leftovers(
        &self,
        kind: Leftover,
        retention: Duration,
        limit: u32,
    ) -> Result<Forgotten> {
        let limit = limit.max(1);
        let (old, most) = (row::micros(retention), i64::from(limit));
        let full = |rows: u64| rows >= u64::from(limit);
        let mut gone = Forgotten::default();
        match kind {
            Leftover::Schedules => {
                gone = self.forget_schedules(old, most).await?;
                gone.more = full(gone.schedules);
            }
            Leftover::RefusedResults => {
                gone.refused_results = call!(self, "delete old refused results", |conn| {
                    delete(conn, sql!("retention/refused"), old, most).await
                })?;
                gone.more = full(gone.refused_results);
            }
            Leftover::DeadLetters => {
                gone.dead_letters = call!(self, "delete old dead letters", |conn| {
                    delete(conn, sql!("retention/dead"), old, most).await
                })?;
                gone.more = full(gone.dead_letters);
            }
            Leftover::Sessions => {
                let mut look = self.unnamed.after();
                gone.sessions = call!(self, "delete old sessions", |conn| {
                    forget_sessions(conn, &mut look, old, limit).await
                })?;
                let unfinished = look.unfinished();
                gone.more = unfinished.is_some();
                self.unnamed.looked_up_to(unfinished);
            }
            Leftover::Terms => {
                gone.terms = call!(self, "delete old terms", |conn| {
                    let deleted = sqlx::query(sql!("retention/terms"))
                        .bind(old)
                        .bind(most)
                        .bind(i64::from(NAMED_MAX))
                        .execute(conn);
                    Ok(deleted.await?.rows_affected())
                })?;
                gone.more = full(gone.terms);
            }
        }
        Ok(gone)
    }
}

impl PgStore {
    async fn forget_schedules(&self, retention: i64, limit: i64) -> Result<Forgotten> {
        call!(self, "delete old schedules", |conn| {
            let row = sqlx::query(sql!("retention/schedules"))
                .bind(retention)
                .bind(limit)
                .fetch_one(conn)
                .await?;
            Ok(Forgotten {
                schedules: row::total(&row, "schedules")?,
                non_fires: row::total(&row, "non_fires")?,
                timings: row::total(&row, "timings")?,
                ..Forgotten::default()
            })
        })
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

/// Goes on with the look for what names some sessions, or begins with the next ones; deletes those
/// that nothing names.
async fn forget_sessions(
    conn: &mut PgConnection,
    look: &mut Unnamed,
    retention: i64,
    limit: u32,
) -> sqlx::Result<u64> {
    if look.sessions.is_empty() {
        let (ended_at, id) = look.behind.unwrap_or_default();
        let rows = sqlx::query(sql!("retention/sessions_ended"))
            .bind(retention)
            .bind(i64::from(limit))
            .bind(ended_at)
            .bind(id)
            .fetch_all(&mut *conn)
            .await?;
        let ended = rows
            .iter()
            .map(|row| Ok((row::instant(row, "ended_at")?, row.try_get("id")?)))
            .collect::<sqlx::Result<Vec<_>>>()?;
        *look = Unnamed::of(&ended, limit);
        if ended.is_empty() {
            return Ok(0);
        }
    }
    let row = sqlx::query(sql!("retention/sessions_named"))
        .bind(retention)
        .bind(&look.sessions)
        .bind(look.after)
        .bind(naming_max(limit))
        .fetch_one(&mut *conn)
        .await?;
    let unnamed = look.looked(row.try_get("unnamed")?, row.try_get("last")?);
    if unnamed.is_empty() {
        return Ok(0);
    }
    let deleted = sqlx::query(sql!("retention/sessions"))
        .bind(unnamed)
        .execute(conn);
    Ok(deleted.await?.rows_affected())
}
