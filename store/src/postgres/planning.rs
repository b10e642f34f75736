//! Planning: one fenced statement a batch.

use bellwether_schemas::state::{NonFireReason, UnknownWord};
use bellwether_schemas::{ids, limits, text};
use chrono::{DateTime, Utc};
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::schedules::schedule;
use super::{PgStore, call, check, errors, row, sql};
use crate::leadership::Term;
use crate::planning::{Due, PlanStep, Planned, Planning};
use crate::schedules::unreadable;
use crate::{Error, ErrorKind, Result};

#[async_trait::async_trait]
impl Planning for PgStore {
    async fn due_schedules(&self, partitions: &[i32], limit: u32) -> Result<Due> {
        let (due, set_aside) = call!(self, "read the due schedules", |conn| {
            // One more than asked for tells whether anything due is left.
            let rows = sqlx::query(sql!("planning/due"))
                .bind(partitions)
                .bind(i64::from(limit) + 1)
                .fetch_all(conn)
                .await?;
            let mut due = Due {
                now: rows
                    .first()
                    .ok_or(sqlx::Error::RowNotFound)?
                    .try_get("now")?,
                schedules: Vec::with_capacity(rows.len()),
                next_in: None,
            };
            let asked = usize::try_from(limit).unwrap_or(usize::MAX);
            let mut set_aside = SetAside::default();
            for (at, row) in rows.iter().enumerate() {
                if at < asked
                    && let Some(id) = row.try_get::<Option<Uuid>, _>("id")?
                {
                    match schedule(row) {
                        Ok(schedule) => due.schedules.push(schedule),
                        Err(error) => set_aside.push(id, &error),
                    }
                }
                if row.try_get::<Option<i64>, _>("next_in_us")?.is_some() {
                    due.next_in = Some(row::computed_us(row, "next_in_us")?);
                }
            }
            if rows.len() > asked {
                due.next_in = Some(std::time::Duration::ZERO);
            }
            Ok((due, set_aside))
        })?;
        if !set_aside.ids.is_empty() {
            self.set_aside(&set_aside).await;
        }
        Ok(due)
    }

    async fn plan(&self, term: &Term, steps: &[PlanStep]) -> Result<Planned> {
        check::steps(steps)?;
        let batch = Batch::of(steps);
        if batch.execution_ids.len() > limits::PLAN_EXECUTIONS_MAX {
            return Err(Error::new(
                "plan fires",
                ErrorKind::Invalid,
                format!(
                    "{} executions in one statement, at most {} are allowed",
                    batch.execution_ids.len(),
                    limits::PLAN_EXECUTIONS_MAX
                ),
            ));
        }
        call!(self, "plan fires", |conn| {
            let row = sqlx::query(sql!("planning/plan"))
                .bind(term.partition)
                .bind(term.epoch)
                .bind(term.term_id)
                .bind(term.map_version)
                .bind(&batch.schedule_ids)
                .bind(&batch.versions)
                .bind(&batch.cursors)
                .bind(&batch.new_cursors)
                .bind(&batch.new_next_ats)
                .bind(&batch.faults)
                .bind(&batch.missed_froms)
                .bind(&batch.missed_untils)
                .bind(&batch.missed_counts)
                .bind(&batch.overlaps)
                .bind(&batch.fire_steps)
                .bind(&batch.fire_ids)
                .bind(&batch.scheduled_ats)
                .bind(&batch.nominal_locals)
                .bind(&batch.folds)
                .bind(&batch.traceparents)
                .bind(&batch.tracestates)
                .bind(&batch.execution_ids)
                .bind(&batch.execution_fires)
                .bind(&batch.shard_indexes)
                .fetch_one(conn)
                .await?;
            Ok(Planned {
                term_ok: row.try_get("term_ok")?,
                moved: row.try_get("moved")?,
                fires: row::total(&row, "fires")?,
                fires_existing: row::total(&row, "fires_existing")?,
                executions: row::total(&row, "executions")?,
                held: row::total(&row, "held")?,
                overlapped: overlapped(&row)?,
            })
        })
    }
}

/// The schedules of which an instant was passed, with the reasons in their order.
fn overlapped(row: &PgRow) -> sqlx::Result<Vec<(Uuid, NonFireReason)>> {
    let schedules: Vec<Uuid> = row.try_get("passed")?;
    let reasons: Vec<String> = row.try_get("passed_why")?;
    let reason = |word: String| {
        word.parse()
            .map_err(|unknown: UnknownWord| errors::corrupt("passed_why", unknown))
    };
    schedules
        .into_iter()
        .zip(reasons)
        .map(|(schedule, word)| Ok((schedule, reason(word)?)))
        .collect()
}

/// Due schedules whose rows cannot be read, and why.
#[derive(Default)]
struct SetAside {
    ids: Vec<Uuid>,
    faults: Vec<String>,
}

impl SetAside {
    fn push(&mut self, id: Uuid, why: &sqlx::Error) {
        let fault = unreadable(why);
        tracing::error!(schedule = %id, fault, "a schedule is taken out of planning");
        self.ids.push(id);
        self.faults
            .push(text::clean(&fault, limits::ERROR_TEXT_MAX).into_owned());
    }
}

impl PgStore {
    /// Gives them a fault, so that they are not due again. They stop no other: what fails here is
    /// tried again by the next look.
    async fn set_aside(&self, these: &SetAside) {
        let done = call!(self, "set unreadable schedules aside", |conn| {
            sqlx::query(sql!("planning/set_aside"))
                .bind(&these.ids)
                .bind(&these.faults)
                .execute(conn)
                .await
        });
        if let Err(error) = done {
            tracing::warn!(%error, "unreadable schedules stay due");
        }
    }
}

/// The steps as parallel arrays; a fire names its step by position (from 1), an execution its
/// fire by id.
#[derive(Default)]
struct Batch<'a> {
    schedule_ids: Vec<Uuid>,
    versions: Vec<i64>,
    cursors: Vec<DateTime<Utc>>,
    new_cursors: Vec<DateTime<Utc>>,
    new_next_ats: Vec<Option<DateTime<Utc>>>,
    faults: Vec<Option<String>>,
    missed_froms: Vec<Option<DateTime<Utc>>>,
    missed_untils: Vec<Option<DateTime<Utc>>>,
    missed_counts: Vec<Option<i64>>,
    overlaps: Vec<&'static str>,
    fire_steps: Vec<i64>,
    fire_ids: Vec<Uuid>,
    scheduled_ats: Vec<DateTime<Utc>>,
    nominal_locals: Vec<&'a str>,
    folds: Vec<&'a str>,
    traceparents: Vec<&'a str>,
    tracestates: Vec<&'a str>,
    execution_ids: Vec<Uuid>,
    execution_fires: Vec<Uuid>,
    shard_indexes: Vec<i32>,
}

impl<'a> Batch<'a> {
    fn of(steps: &'a [PlanStep]) -> Self {
        let mut batch = Self::default();
        for (step, position) in steps.iter().zip(1..) {
            batch.push_step(step);
            for fire in &step.fires {
                batch.fire_steps.push(position);
                batch.fire_ids.push(fire.id);
                batch.scheduled_ats.push(fire.scheduled_at);
                batch.nominal_locals.push(&fire.nominal_local);
                batch.folds.push(&fire.fold);
                batch.traceparents.push(&fire.trace.traceparent);
                batch.tracestates.push(&fire.trace.tracestate);
                for shard in 0..step.shard_total {
                    batch.execution_ids.push(ids::execution(fire.id, shard));
                    batch.execution_fires.push(fire.id);
                    batch.shard_indexes.push(row::int(shard));
                }
            }
        }
        batch
    }

    fn push_step(&mut self, step: &PlanStep) {
        let fault = step
            .fault
            .as_deref()
            .map(|fault| text::clean(fault, limits::ERROR_TEXT_MAX));
        let missed = step.missed.as_ref();
        self.schedule_ids.push(step.schedule_id);
        self.versions.push(step.version);
        self.cursors.push(step.cursor);
        self.new_cursors.push(step.new_cursor);
        self.new_next_ats.push(step.new_next_at);
        self.faults.push(fault.map(std::borrow::Cow::into_owned));
        self.missed_froms.push(missed.map(|missed| missed.from));
        self.missed_untils.push(missed.map(|missed| missed.until));
        self.missed_counts
            .push(missed.map(|missed| i64::try_from(missed.count).unwrap_or(i64::MAX)));
        self.overlaps.push(step.overlap.as_str());
    }
}
