//! Worker sessions.

use std::time::Duration;

use bellwether_schemas::limits::ERROR_TEXT_MAX;
use bellwether_schemas::{names, text};
use sqlx::SqliteConnection;
use uuid::Uuid;

use super::SqliteStore;
use super::clock::Millis;
use super::enqueue::ensure_queue;
use super::errors::Fault;
use super::row::{Columns, between, millis};
use crate::sessions::{NewSession, RunningRow, SessionClosed, SessionRenewed, Sessions};
use crate::{Error, ErrorKind, Result};

#[async_trait::async_trait]
impl Sessions for SqliteStore {
    async fn open_session(&self, new: &NewSession) -> Result<()> {
        const OP: &str = "open a session";
        new.queues
            .iter()
            .try_for_each(|queue| names::check("queue", queue))?;
        let json = |list: &[String]| {
            serde_json::to_string(list).map_err(|error| Error::new(OP, ErrorKind::Invalid, error))
        };
        let (queues, jobs) = (json(&new.queues)?, json(&new.jobs)?);
        let new = new.clone();
        self.writer
            .write(OP, async move |conn, now| {
                open(conn, now, &new, &queues, &jobs).await
            })
            .await
    }

    async fn renew_session(&self, id: Uuid, lease: Duration) -> Result<SessionRenewed> {
        self.writer
            .write("renew a session", async move |conn, now| {
                let renewed = sqlx::query(sql!("sessions/renew"))
                    .bind(id)
                    .bind(now)
                    .bind(now + millis(lease))
                    .execute(conn)
                    .await?;
                Ok(match renewed.rows_affected() {
                    1 => SessionRenewed::Live,
                    _ => SessionRenewed::Lost,
                })
            })
            .await
    }

    async fn close_session(&self, id: Uuid) -> Result<SessionClosed> {
        self.writer
            .write("close a session", async move |conn, now| {
                let row = sqlx::query(sql!("sessions/close"))
                    .bind(id)
                    .bind(now)
                    .fetch_optional(conn)
                    .await?;
                let Some(row) = row else {
                    return Ok(SessionClosed::AlreadyEnded);
                };
                Ok(match row.value::<&str>("state")? {
                    "closed" => SessionClosed::Closed,
                    _ => SessionClosed::Lost,
                })
            })
            .await
    }

    async fn running_of(&self, id: Uuid) -> Result<Vec<RunningRow>> {
        self.writer
            .read("read a session's running rows", async move |conn, now| {
                let rows = sqlx::query(sql!("sessions/running"))
                    .bind(id)
                    .fetch_all(conn)
                    .await?;
                rows.iter()
                    .map(|row| {
                        Ok(RunningRow {
                            execution_id: row.value("id")?,
                            claim_id: row.value("claim_id")?,
                            generation: row.value("generation")?,
                            claimed_ago: between(row.value("claimed_at")?, now),
                        })
                    })
                    .collect()
            })
            .await
    }
}

async fn open(
    conn: &mut SqliteConnection,
    now: Millis,
    new: &NewSession,
    queues: &str,
    jobs: &str,
) -> Result<(), Fault> {
    for queue in &new.queues {
        ensure_queue(conn, now, queue).await?;
    }
    sqlx::query(sql!("sessions/open"))
        .bind(new.id)
        .bind(text::clean(&new.name, ERROR_TEXT_MAX).as_ref())
        .bind(text::clean(&new.host, ERROR_TEXT_MAX).as_ref())
        .bind(new.pid)
        .bind(&new.version)
        .bind(queues)
        .bind(jobs)
        .bind(new.max_concurrent)
        .bind(now)
        .bind(now + millis(new.lease))
        .execute(conn)
        .await?;
    Ok(())
}
