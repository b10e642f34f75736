//! Sweeps: each one statement, a condition on rows under their locks.

use std::time::Duration;

use bellwether_schemas::{limits, text};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::{PgStore, call, row, sql};
use crate::Result;
use crate::sweeps::{
    Ended, FiresSwept, KEY_RETENTION_MIN, KeysSwept, LostSession, REPORTS_KEPT, Recovered, Sweeps,
    held_max,
};

#[async_trait::async_trait]
impl Sweeps for PgStore {
    async fn lose_sessions(&self, limit: u32) -> Result<Vec<LostSession>> {
        call!(self, "end lost sessions", |conn| {
            let rows = sqlx::query(sql!("sweeps/lose_sessions"))
                .bind(i64::from(limit))
                .fetch_all(conn)
                .await?;
            rows.iter()
                .map(|row| {
                    Ok(LostSession {
                        id: row.try_get("id")?,
                        name: row.try_get("name")?,
                    })
                })
                .collect()
        })
    }

    async fn recover_lost(&self, grace: Duration, limit: u32) -> Result<Vec<Recovered>> {
        call!(self, "take over lost work", |conn| {
            let rows = sqlx::query(sql!("sweeps/recover_lost"))
                .bind(row::micros(grace))
                .bind(i64::from(limit))
                .fetch_all(conn)
                .await?;
            rows.iter()
                .map(|row| {
                    Ok(Recovered {
                        execution_id: row.try_get("id")?,
                        job: row.try_get("job")?,
                        state: row::word(row, "state")?,
                        reason: row::word(row, "reason")?,
                    })
                })
                .collect()
        })
    }

    async fn dispatch_due(&self, limit: u32) -> Result<u64> {
        call!(self, "dispatch due executions", |conn| {
            let done = sqlx::query(sql!("sweeps/dispatch_due"))
                .bind(i64::from(limit))
                .execute(conn)
                .await?;
            Ok(done.rows_affected())
        })
    }

    async fn release_held(&self, limit: u32) -> Result<FiresSwept> {
        call!(self, "release held fires", |conn| {
            let row = sqlx::query(sql!("sweeps/release_held"))
                .bind(i64::from(limit))
                .bind(self.held.after())
                .bind(held_max(limit))
                .fetch_one(conn)
                .await?;
            self.held.looked_up_to(row.try_get("last")?);
            fires_swept(&row)
        })
    }

    async fn apply_fire_cancels(&self, limit: u32) -> Result<FiresSwept> {
        call!(self, "cancel replaced fires", |conn| {
            let row = sqlx::query(sql!("sweeps/apply_fire_cancels"))
                .bind(i64::from(limit))
                .fetch_one(conn)
                .await?;
            fires_swept(&row)
        })
    }

    async fn expire_starts(&self, limit: u32) -> Result<Vec<Ended>> {
        call!(self, "end executions past their start deadline", |conn| {
            let rows = sqlx::query(sql!("sweeps/expire_starts"))
                .bind(i64::from(limit))
                .fetch_all(conn)
                .await?;
            let ended = rows.iter().map(|row| {
                Ok(Ended {
                    job: row.try_get("job")?,
                    state: row::word(row, "state")?,
                    reason: row::word_opt(row, "reason")?,
                })
            });
            ended.collect()
        })
    }

    async fn escalate_unknown(&self, age: Duration, limit: u32) -> Result<u64> {
        call!(self, "escalate unknown executions", |conn| {
            let done = sqlx::query(sql!("sweeps/escalate_unknown"))
                .bind(row::micros(age))
                .bind(i64::from(limit))
                .execute(conn)
                .await?;
            Ok(done.rows_affected())
        })
    }

    async fn forget_keys(&self, retention: Duration, limit: u32) -> Result<KeysSwept> {
        call!(self, "forget old keys", |conn| {
            let (recorded, job, key) = self.keys.after();
            let row = sqlx::query(sql!("sweeps/forget_keys"))
                .bind(row::micros(retention))
                .bind(i64::from(limit.max(1)))
                .bind(row::micros(KEY_RETENTION_MIN))
                .bind(recorded)
                .bind(job)
                .bind(key)
                .fetch_one(conn)
                .await?;
            let last = match row::instant_opt(&row, "created_at")? {
                Some(recorded) => Some((recorded, row.try_get("job")?, row.try_get("key")?)),
                None => None,
            };
            let more = last.is_some();
            self.keys.looked_up_to(last);
            let keys = row::total(&row, "keys")?;
            Ok(KeysSwept { keys, more })
        })
    }

    async fn retire_definitions(&self, after: Duration, limit: u32) -> Result<Vec<String>> {
        call!(self, "retire schedules that no code defines", |conn| {
            sqlx::query(sql!("sweeps/forget_reports"))
                .bind(row::micros(after.max(REPORTS_KEPT)))
                .bind(i64::from(limit))
                .execute(&mut *conn)
                .await?;
            sqlx::query_scalar(sql!("sweeps/retire_definitions"))
                .bind(row::micros(after))
                .bind(i64::from(limit))
                .fetch_all(conn)
                .await
        })
    }

    async fn record_clock_anomaly(&self, seen_by: &str, detail: &str) -> Result<()> {
        let seen_by = text::clean(seen_by, limits::ERROR_TEXT_MAX);
        let detail = text::clean(detail, limits::ERROR_TEXT_MAX);
        call!(self, "record a clock anomaly", |conn| {
            sqlx::query(sql!("sweeps/record_clock_anomaly"))
                .bind(&*seen_by)
                .bind(&*detail)
                .execute(conn)
                .await
        })
        .map(drop)
    }
}

fn fires_swept(row: &PgRow) -> sqlx::Result<FiresSwept> {
    Ok(FiresSwept {
        fires: row::total(row, "fires")?,
        executions: row::total(row, "executions")?,
        ended: row::total(row, "ended")?,
    })
}
