//! Worker sessions.

use std::time::Duration;

use bellwether_schemas::limits::ERROR_TEXT_MAX;
use bellwether_schemas::{names, text};
use serde::Serialize;
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::SqliteStore;
use super::clock::Millis;
use super::enqueue::ensure_queue;
use super::errors::Fault;
use super::row::{Columns, between, millis};
use crate::sessions::{
    CancelHint, NewSession, RunningRow, SessionClosed, SessionRenewed, SessionReport, Sessions,
};
use crate::{Error, ErrorKind, Result};

#[async_trait::async_trait]
impl Sessions for SqliteStore {
    async fn open_session(&self, new: &NewSession) -> Result<()> {
        const OP: &str = "open a session";
        new.queues
            .iter()
            .try_for_each(|queue| names::check("queue", queue))?;
        new.jobs
            .iter()
            .chain(&new.probes)
            .try_for_each(|job| names::check("job", job))?;
        new.definitions
            .iter()
            .try_for_each(|(schedule, _)| names::check("schedule", schedule))?;
        let capabilities: Vec<&str> = new.capabilities.iter().map(|can| can.as_str()).collect();
        let lists = Lists {
            queues: json(OP, &new.queues)?,
            jobs: json(OP, &new.jobs)?,
            capabilities: json(OP, &capabilities)?,
            probes: json(OP, &new.probes)?,
        };
        let new = new.clone();
        self.writer
            .write(OP, async move |conn, now| {
                open(conn, now, &new, &lists).await
            })
            .await
    }

    async fn renew_session(
        &self,
        id: Uuid,
        lease: Duration,
        report: SessionReport,
    ) -> Result<SessionRenewed> {
        self.writer
            .write("renew a session", async move |conn, now| {
                let renewed = sqlx::query(sql!("sessions/renew"))
                    .bind(id)
                    .bind(now)
                    .bind(now + millis(lease))
                    .bind(report.free_for.map(|free| now - millis(free)))
                    .bind(report.leaked)
                    .bind(report.draining)
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

    async fn cancel_hints(&self, id: Uuid) -> Result<Vec<CancelHint>> {
        self.writer
            .read("look for requests to cancel", async move |conn, now| {
                let rows = sqlx::query(sql!("sessions/cancel_hints"))
                    .bind(id)
                    .fetch_all(conn)
                    .await?;
                let hint = |row: &SqliteRow| {
                    Ok(CancelHint {
                        claim_id: row.value("claim_id")?,
                        ago: between(row.value("cancel_requested_at")?, now),
                    })
                };
                rows.iter().map(hint).collect()
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
                            job: row.value("job")?,
                            claimed_ago: between(row.value("claimed_at")?, now),
                        })
                    })
                    .collect()
            })
            .await
    }
}

/// A session's lists as JSON.
struct Lists {
    queues: String,
    jobs: String,
    capabilities: String,
    probes: String,
}

fn json(op: &'static str, words: &[impl Serialize]) -> Result<String> {
    serde_json::to_string(words).map_err(|error| Error::new(op, ErrorKind::Invalid, error))
}

async fn open(
    conn: &mut SqliteConnection,
    now: Millis,
    new: &NewSession,
    lists: &Lists,
) -> Result<(), Fault> {
    for queue in &new.queues {
        ensure_queue(conn, now, queue).await?;
    }
    let opened = sqlx::query(sql!("sessions/open"))
        .bind(new.id)
        .bind(text::clean(&new.name, ERROR_TEXT_MAX).as_ref())
        .bind(text::clean(&new.host, ERROR_TEXT_MAX).as_ref())
        .bind(new.pid)
        .bind(&new.version)
        .bind(&lists.queues)
        .bind(&lists.jobs)
        .bind(new.max_concurrent)
        .bind(now)
        .bind(now + millis(new.lease))
        .bind(&lists.capabilities)
        .bind(&lists.probes)
        .execute(&mut *conn)
        .await?;
    // A repeat changes nothing.
    if opened.rows_affected() == 0 {
        return Ok(());
    }
    for (schedule, hash) in &new.definitions {
        sqlx::query(sql!("sessions/report"))
            .bind(new.id)
            .bind(schedule)
            .bind(hash)
            .execute(&mut *conn)
            .await?;
    }
    Ok(())
}
