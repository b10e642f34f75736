//! Planning: cursors move inside the term, and fires follow in the same transaction.

use std::time::Duration;

use bellwether_schemas::limits::{ERROR_TEXT_MAX, PLAN_EXECUTIONS_MAX};
use bellwether_schemas::text;
use sqlx::SqliteConnection;

use super::SqliteStore;
use super::clock::Millis;
use super::errors::Fault;
use super::fires::{self, NewFire};
use super::row::{Columns, between, instant};
use super::{leadership, schedules};
use crate::leadership::Term;
use crate::planning::{Due, PlanStep, Planned, Planning};
use crate::{Error, ErrorKind, Result};

#[async_trait::async_trait]
impl Planning for SqliteStore {
    async fn due_schedules(&self, limit: u32) -> Result<Due> {
        self.writer
            .read("read the due schedules", async move |conn, now| {
                // One more than asked for tells whether anything due is left.
                let rows = sqlx::query(sql!("planning/due"))
                    .bind(now)
                    .bind(i64::from(limit) + 1)
                    .fetch_all(&mut *conn)
                    .await?;
                let next = sqlx::query(sql!("planning/next"))
                    .bind(now)
                    .fetch_one(conn)
                    .await?;
                let next_in = next
                    .value::<Option<Millis>>("next_at")?
                    .map(|at| between(now, at));
                let asked = limit as usize;
                Ok(Due {
                    now: instant(now)?,
                    schedules: rows
                        .iter()
                        .take(asked)
                        .map(schedules::read)
                        .collect::<Result<_, _>>()?,
                    next_in: if rows.len() > asked {
                        Some(Duration::ZERO)
                    } else {
                        next_in
                    },
                })
            })
            .await
    }

    async fn plan(&self, term: &Term, steps: &[PlanStep]) -> Result<Planned> {
        const OP: &str = "plan fires";
        let executions: usize = steps
            .iter()
            .map(|step| step.fires.len() * step.shard_total as usize)
            .sum();
        if executions > PLAN_EXECUTIONS_MAX {
            let why = format!("{executions} executions are more than {PLAN_EXECUTIONS_MAX}");
            return Err(Error::new(OP, ErrorKind::Invalid, why));
        }
        let (term, steps) = (term.clone(), steps.to_vec());
        self.writer
            .write(OP, async move |conn, now| {
                plan(conn, now, &term, &steps).await
            })
            .await
    }
}

async fn plan(
    conn: &mut SqliteConnection,
    now: Millis,
    term: &Term,
    steps: &[PlanStep],
) -> Result<Planned, Fault> {
    let mut planned = Planned {
        term_ok: leadership::in_force(conn, now, term).await?,
        moved: Vec::new(),
        fires: 0,
        fires_existing: 0,
        executions: 0,
    };
    if !planned.term_ok {
        return Ok(planned);
    }
    for step in steps {
        if move_cursor(conn, now, term, step).await? {
            planned.moved.push(step.schedule_id);
            insert(conn, now, term, step, &mut planned).await?;
        }
    }
    Ok(planned)
}

async fn move_cursor(
    conn: &mut SqliteConnection,
    now: Millis,
    term: &Term,
    step: &PlanStep,
) -> Result<bool, Fault> {
    let fault = step
        .fault
        .as_deref()
        .map(|fault| text::clean(fault, ERROR_TEXT_MAX));
    let moved = sqlx::query(sql!("planning/move_cursor"))
        .bind(step.schedule_id)
        .bind(step.version)
        .bind(step.cursor.timestamp_millis())
        .bind(step.new_cursor.timestamp_millis())
        .bind(step.new_next_at.map(|next_at| next_at.timestamp_millis()))
        .bind(fault.as_deref())
        .bind(now)
        .bind(term.partition)
        .execute(conn)
        .await?;
    Ok(moved.rows_affected() == 1)
}

/// What follows from a moved cursor.
async fn insert(
    conn: &mut SqliteConnection,
    now: Millis,
    term: &Term,
    step: &PlanStep,
    planned: &mut Planned,
) -> Result<(), Fault> {
    for fire in &step.fires {
        let new = NewFire {
            id: fire.id,
            schedule_id: step.schedule_id,
            trigger: None,
            scheduled_at: fire.scheduled_at.timestamp_millis(),
            nominal_local: Some(&fire.nominal_local),
            fold: Some(&fire.fold),
            trace: &fire.trace,
            term: Some(term),
        };
        if fires::insert_fire(conn, now, &new).await? {
            planned.fires += 1;
            planned.executions +=
                fires::insert_executions(conn, now, fire.id, step.shard_total).await?;
        } else {
            planned.fires_existing += 1;
        }
    }
    if let Some(missed) = &step.missed {
        sqlx::query(sql!("planning/record_missed"))
            .bind(step.schedule_id)
            .bind(step.version)
            .bind(missed.from.timestamp_millis())
            .bind(missed.until.timestamp_millis())
            .bind(i64::try_from(missed.count).unwrap_or(i64::MAX))
            .bind(now)
            .execute(conn)
            .await?;
    }
    Ok(())
}
