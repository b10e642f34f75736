//! The laws on Postgres: a query each, but for law 2, whose rows are judged in
//! [`crate::audit`].

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::postgres::{PgArguments, PgConnection, PgRow};
use sqlx::query::Query;
use sqlx::{Connection, Postgres, Row};

use super::schedules::timing;
use super::{PgStore, call, errors, finish, row, sql};
use crate::Result;
use crate::audit::{Audit, EXAMPLES_MAX, LawReport, ScheduleHistory, law_two, report};
use crate::schedules::Timing;

/// Longest look at one law; its statements end after 5 min by themselves.
const LAW_MAX: Duration = Duration::from_secs(310);

/// The laws that are a query: number and text.
const QUERIES: [(u8, &str); 13] = [
    (1, sql!("laws/01_one_fire_per_instant")),
    (3, sql!("laws/03_shards_complete")),
    (4, sql!("laws/04_shards_conserved")),
    (5, sql!("laws/05_no_claim_after_end")),
    (6, sql!("laws/06_generations")),
    (7, sql!("laws/07_claims_do_not_overlap")),
    (8, sql!("laws/08_charges_bounded")),
    (9, sql!("laws/09_nothing_runs_on")),
    (10, sql!("laws/10_due_work_is_represented")),
    (11, sql!("laws/11_outbox_drains")),
    (12, sql!("laws/12_fires_inside_terms")),
    (13, sql!("laws/13_unknown_is_escalated")),
    (14, sql!("laws/14_no_claim_after_cancel")),
];

#[async_trait::async_trait]
impl Audit for PgStore {
    /// Each law looks at a snapshot of its own: none waits for the others, and what a law
    /// compares with the clock is as fresh as its look.
    async fn audit(&self) -> Result<Vec<LawReport>> {
        let store = Self {
            call_timeout: LAW_MAX,
            ..self.clone()
        };
        let mut reports = Vec::with_capacity(QUERIES.len() + 1);
        let histories = call!(store, "read the histories of law 2", |conn| {
            let rows = look(conn, sqlx::query(sql!("laws/02_history"))).await?;
            rows.iter().map(history).collect::<sqlx::Result<Vec<_>>>()
        })?;
        reports.push(law_two(&histories));
        for (law, query) in QUERIES {
            let limit = i64::try_from(EXAMPLES_MAX).unwrap_or(i64::MAX);
            let found = call!(store, "check a law", |conn| {
                let rows = look(conn, sqlx::query(query).bind(limit)).await?;
                law_report(law, rows.first().ok_or(sqlx::Error::RowNotFound)?)
            })?;
            reports.push(found);
        }
        reports.sort_by_key(|report| report.law);
        Ok(reports)
    }
}

/// Runs a query with the patience that whole tables need.
async fn look(
    conn: &mut PgConnection,
    query: Query<'static, Postgres, PgArguments>,
) -> sqlx::Result<Vec<PgRow>> {
    let mut tx = conn.begin().await?;
    let rows = match sqlx::query(sql!("audit/patience")).execute(&mut *tx).await {
        Ok(_) => query.fetch_all(&mut *tx).await,
        Err(error) => Err(error),
    };
    finish(tx, rows).await
}

fn law_report(law: u8, row: &PgRow) -> sqlx::Result<LawReport> {
    Ok(report(
        law,
        row::total(row, "looked_at")?,
        row::total(row, "violations")?,
        row.try_get("examples")?,
    ))
}

fn history(row: &PgRow) -> sqlx::Result<ScheduleHistory> {
    let from: Vec<DateTime<Utc>> = row.try_get("range_from")?;
    let until: Vec<DateTime<Utc>> = row.try_get("range_until")?;
    let counts: Vec<i64> = row.try_get("range_count")?;
    let ranges = from
        .into_iter()
        .zip(until)
        .zip(counts)
        .map(|((from, until), count)| {
            let count = u64::try_from(count).map_err(|error| errors::corrupt("count", error))?;
            Ok((from, until, count))
        });
    Ok(ScheduleHistory {
        id: row.try_get("id")?,
        name: row.try_get("name")?,
        timings: timings(row)?,
        created_at: row::instant(row, "created_at")?,
        history_from: row::instant(row, "history_from")?,
        cursor: row::instant(row, "cursor")?,
        fires: row.try_get("fires")?,
        ranges: ranges.collect::<sqlx::Result<_>>()?,
    })
}

/// What the timing was, oldest first; the row's own where a hand has inserted the schedule.
fn timings(row: &PgRow) -> sqlx::Result<Vec<(DateTime<Utc>, Timing)>> {
    match row.try_get::<Option<&str>, _>("timings")? {
        Some(json) => serde_json::from_str(json).map_err(|error| errors::corrupt("timings", error)),
        None => Ok(vec![(row.try_get("history_from")?, timing(row)?)]),
    }
}
