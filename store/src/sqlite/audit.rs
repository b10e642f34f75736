//! The laws, each a query in `sql/sqlite/laws/` that returns how many rows it looked at,
//! how many break it, and some of them.
//!
//! An audit reads one snapshot on a connection of its own, so that a large ledger's audit
//! delays nobody's claim or renewal; in WAL a reader holds up no writer.

use std::collections::{HashMap, HashSet};

use sqlx::{Connection, SqliteConnection};
use uuid::Uuid;

use super::clock::{self, Millis};
use super::errors::Fault;
use super::row::Columns;
use super::{SqliteStore, file, schedules};
use crate::Result;
use crate::audit::{Audit, EXAMPLES_MAX, LawReport, ScheduleHistory, law_two, report};

/// Parameters: the ledger's now, and how many examples to name. Law 2 is judged in
/// [`crate::audit`]; law 15 has no subject yet.
const LAWS: &[(u8, &str)] = &[
    (1, sql!("laws/01_one_fire_per_instant")),
    (3, sql!("laws/03_shards_of_a_fire")),
    (4, sql!("laws/04_conservation")),
    (5, sql!("laws/05_no_claim_after_the_end")),
    (6, sql!("laws/06_generations")),
    (7, sql!("laws/07_claims_do_not_overlap")),
    (8, sql!("laws/08_attempts_within_budget")),
    (9, sql!("laws/09_no_abandoned_running")),
    (10, sql!("laws/10_due_work_is_represented")),
    (11, sql!("laws/11_outbox_drains")),
    (12, sql!("laws/12_fires_inside_their_term")),
    (13, sql!("laws/13_unknown_is_escalated")),
    (14, sql!("laws/14_no_claim_after_cancel")),
];

#[async_trait::async_trait]
impl Audit for SqliteStore {
    async fn audit(&self) -> Result<Vec<LawReport>> {
        const OP: &str = "audit the ledger";
        let mut connection = file::open(&self.file).await.map_err(|fault| fault.of(OP))?;
        let reports = audit(&mut connection).await.map_err(|fault| fault.of(OP))?;
        connection
            .close()
            .await
            .map_err(|error| Fault::from(error).of(OP))?;
        Ok(reports)
    }
}

async fn audit(conn: &mut SqliteConnection) -> Result<Vec<LawReport>, Fault> {
    let mut snapshot = conn.begin_with("BEGIN DEFERRED").await?;
    let now = clock::peek(&mut snapshot).await?;
    let mut reports = Vec::with_capacity(LAWS.len() + 1);
    for (law, sql) in LAWS {
        reports.push(check(&mut snapshot, now, *law, sql).await?);
    }
    reports.push(law_two(&histories(&mut snapshot).await?));
    snapshot.rollback().await?;
    reports.sort_by_key(|report| report.law);
    Ok(reports)
}

/// Every row names one example; the counts are the same in all of them.
async fn check(
    conn: &mut SqliteConnection,
    now: Millis,
    law: u8,
    sql: &'static str,
) -> Result<LawReport, Fault> {
    let rows = sqlx::query(sql)
        .bind(now)
        .bind(i64::try_from(EXAMPLES_MAX).unwrap_or(i64::MAX))
        .fetch_all(conn)
        .await?;
    let first = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    let examples = rows
        .iter()
        .filter_map(|row| row.value::<Option<&str>>("example").transpose())
        .map(|example| example.map(dashed))
        .collect::<Result<_, _>>()?;
    Ok(report(
        law,
        first.number("looked_at")?,
        first.number("violations")?,
        examples,
    ))
}

/// Writes ids the way every other place shows them; SQLite knows only their hex digits.
fn dashed(example: &str) -> String {
    let words = example.split_inclusive(|c: char| !c.is_ascii_alphanumeric());
    words
        .map(|word| {
            let (digits, rest) = word.split_at_checked(32).unwrap_or((word, ""));
            match Uuid::try_parse(digits) {
                Ok(id) if digits.len() == 32 => format!("{id}{rest}"),
                _ => word.to_owned(),
            }
        })
        .collect()
}

/// What law 2 is judged by, of all schedules, deleted ones too.
async fn histories(conn: &mut SqliteConnection) -> Result<Vec<ScheduleHistory>, Fault> {
    let mut histories = Vec::new();
    let mut places: HashMap<Uuid, usize> = HashMap::new();
    for row in sqlx::query(sql!("audit/schedules"))
        .fetch_all(&mut *conn)
        .await?
    {
        let id = row.value("id")?;
        places.insert(id, histories.len());
        histories.push(ScheduleHistory {
            id,
            name: row.value("name")?,
            timings: vec![(row.instant("history_from")?, schedules::timing(&row)?)],
            created_at: row.instant("created_at")?,
            history_from: row.instant("history_from")?,
            cursor: row.instant("cursor")?,
            fires: Vec::new(),
            ranges: Vec::new(),
        });
    }
    let place = |id: Uuid| {
        places
            .get(&id)
            .copied()
            .ok_or_else(|| Fault::Corrupt(format!("no schedule {id} for its fires")))
    };
    let mut judged = HashSet::new();
    for row in sqlx::query(sql!("audit/timings"))
        .fetch_all(&mut *conn)
        .await?
    {
        let at = place(row.value("schedule_id")?)?;
        // The row's own timing counts only where a hand has inserted the schedule.
        if judged.insert(at) {
            histories[at].timings.clear();
        }
        let timing = (row.instant("valid_from")?, schedules::timing(&row)?);
        histories[at].timings.push(timing);
    }
    for row in sqlx::query(sql!("audit/fires"))
        .fetch_all(&mut *conn)
        .await?
    {
        let at = place(row.value("schedule_id")?)?;
        histories[at].fires.push(row.instant("scheduled_at")?);
    }
    for row in sqlx::query(sql!("audit/ranges")).fetch_all(conn).await? {
        let at = place(row.value("schedule_id")?)?;
        let range = (
            row.instant("from_at")?,
            row.instant("until_at")?,
            row.number("count")?,
        );
        histories[at].ranges.push(range);
    }
    Ok(histories)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_name_rows_as_people_see_them() {
        let id = Uuid::from_u128(0x0197_7420_dc00_87c3_bfef_ef2f_f75d_5c24);
        let hex = id.simple().to_string().to_uppercase();
        assert_eq!(
            dashed(&format!("execution {hex}: generation 2, schedule {hex}")),
            format!("execution {id}: generation 2, schedule {id}")
        );
    }
}
