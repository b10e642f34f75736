//! Worker sessions.

use std::time::Duration;

use bellwether_schemas::state::SessionState;
use bellwether_schemas::{limits, text};
use serde::Serialize;
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::{PgStore, call, check, row, sql};
use crate::sessions::{
    CancelHint, NewSession, RunningRow, SessionClosed, SessionRenewed, SessionReport, Sessions,
};
use crate::{Error, ErrorKind, Result};

#[async_trait::async_trait]
impl Sessions for PgStore {
    async fn open_session(&self, new: &NewSession) -> Result<()> {
        const OP: &str = "open a session";
        new.queues
            .iter()
            .try_for_each(|queue| check::name("queue", queue))?;
        new.jobs
            .iter()
            .chain(&new.probes)
            .try_for_each(|job| check::name("job", job))?;
        new.definitions
            .iter()
            .try_for_each(|(schedule, _)| check::name("schedule", schedule))?;
        let (queues, jobs) = (json(OP, &new.queues)?, json(OP, &new.jobs)?);
        let capabilities: Vec<&str> = new.capabilities.iter().map(|can| can.as_str()).collect();
        let (capabilities, probes) = (json(OP, &capabilities)?, json(OP, &new.probes)?);
        let (schedules, hashes): (Vec<&str>, Vec<&str>) = new
            .definitions
            .iter()
            .map(|(schedule, hash)| (schedule.as_str(), hash.as_str()))
            .unzip();
        let [name, host, version] = [&new.name, &new.host, &new.version]
            .map(|label| text::clean(label, limits::ERROR_TEXT_MAX));
        call!(self, OP, |conn| {
            sqlx::query(sql!("sessions/open"))
                .bind(new.id)
                .bind(&*name)
                .bind(&*host)
                .bind(row::int(new.pid))
                .bind(&*version)
                .bind(&queues)
                .bind(&jobs)
                .bind(row::int(new.max_concurrent))
                .bind(row::micros(new.lease))
                .bind(&capabilities)
                .bind(&new.queues)
                .bind(&schedules)
                .bind(&hashes)
                .bind(&probes)
                .execute(conn)
                .await
        })
        .map(drop)
    }

    async fn renew_session(
        &self,
        id: Uuid,
        lease: Duration,
        report: SessionReport,
    ) -> Result<SessionRenewed> {
        call!(self, "renew a session", |conn| {
            let done = sqlx::query(sql!("sessions/renew"))
                .bind(id)
                .bind(row::micros(lease))
                .bind(report.free_for.map(row::micros))
                .bind(row::int(report.leaked))
                .bind(report.draining)
                .execute(conn)
                .await?;
            let live = done.rows_affected() == 1;
            Ok(if live {
                SessionRenewed::Live
            } else {
                SessionRenewed::Lost
            })
        })
    }

    async fn close_session(&self, id: Uuid) -> Result<SessionClosed> {
        call!(self, "close a session", |conn| {
            let ended = sqlx::query(sql!("sessions/close"))
                .bind(id)
                .fetch_optional(conn)
                .await?;
            let Some(ended) = ended else {
                return Ok(SessionClosed::AlreadyEnded);
            };
            Ok(match row::word(&ended, "state")? {
                SessionState::Closed => SessionClosed::Closed,
                SessionState::Live | SessionState::Lost => SessionClosed::Lost,
            })
        })
    }

    async fn cancel_hints(&self, id: Uuid) -> Result<Vec<CancelHint>> {
        call!(self, "look for requests to cancel", |conn| {
            let rows = sqlx::query(sql!("sessions/cancel_hints"))
                .bind(id)
                .fetch_all(conn)
                .await?;
            let hint = |row: &PgRow| {
                Ok(CancelHint {
                    claim_id: row.try_get("claim_id")?,
                    ago: row::computed_us(row, "ago_us")?,
                })
            };
            rows.iter().map(hint).collect()
        })
    }

    async fn running_of(&self, id: Uuid) -> Result<Vec<RunningRow>> {
        call!(self, "read what a session runs", |conn| {
            let rows = sqlx::query(sql!("sessions/running_of"))
                .bind(id)
                .fetch_all(conn)
                .await?;
            rows.iter()
                .map(|row| {
                    Ok(RunningRow {
                        execution_id: row.try_get("id")?,
                        claim_id: row.try_get("claim_id")?,
                        generation: row.try_get("generation")?,
                        job: row.try_get("job")?,
                        claimed_ago: row::computed_us(row, "claimed_ago_us")?,
                    })
                })
                .collect()
        })
    }
}

fn json(op: &'static str, words: &[impl Serialize]) -> Result<String> {
    serde_json::to_string(words).map_err(|error| Error::new(op, ErrorKind::Invalid, error))
}
