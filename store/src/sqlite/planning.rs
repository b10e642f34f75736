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
use crate::schedules::unreadable;
use crate::{Error, ErrorKind, Result};

#[async_trait::async_trait]
impl Planning for SqliteStore {
    async fn due_schedules(&self, limit: u32) -> Result<Due> {
        let (due, set_aside) = self
            .writer
            .read("read the due schedules", async move |conn, now| {
                due(conn, now, limit).await
            })
            .await?;
        if !set_aside.is_empty() {
            self.set_aside(set_aside).await;
        }
        Ok(due)
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

/// A due schedule whose row cannot be read.
#[derive(Clone)]
struct Unreadable {
    /// Of its row: also the id may be what cannot be read.
    rowid: i64,
    fault: String,
}

/// What is due, and the rows of it that cannot be read.
async fn due(
    conn: &mut SqliteConnection,
    now: Millis,
    limit: u32,
) -> Result<(Due, Vec<Unreadable>), Fault> {
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
    let mut due = Due {
        now: instant(now)?,
        schedules: Vec::with_capacity(rows.len()),
        next_in: if rows.len() > asked {
            Some(Duration::ZERO)
        } else {
            next_in
        },
    };
    let mut set_aside = Vec::new();
    for row in rows.iter().take(asked) {
        match schedules::read(row) {
            Ok(schedule) => due.schedules.push(schedule),
            Err(why) => set_aside.push(Unreadable {
                rowid: row.value("row")?,
                fault: unreadable(&why),
            }),
        }
    }
    Ok((due, set_aside))
}

impl SqliteStore {
    /// Gives them a fault, so that they are not due again. They stop no other: what fails here is
    /// tried again by the next look.
    async fn set_aside(&self, these: Vec<Unreadable>) {
        for one in &these {
            let (row, fault) = (one.rowid, &one.fault);
            tracing::error!(row, fault, "a schedule is taken out of planning");
        }
        let done = self
            .writer
            .write("set unreadable schedules aside", async move |conn, _| {
                for one in &these {
                    sqlx::query(sql!("planning/set_aside"))
                        .bind(one.rowid)
                        .bind(text::clean(&one.fault, ERROR_TEXT_MAX).as_ref())
                        .execute(&mut *conn)
                        .await?;
                }
                Ok(())
            })
            .await;
        if let Err(error) = done {
            tracing::warn!(%error, "unreadable schedules stay due");
        }
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
