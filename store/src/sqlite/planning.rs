//! Planning: cursors move inside the term, and fires follow in the same transaction.

use std::time::Duration;

use bellwether_schemas::limits::{ERROR_TEXT_MAX, PLAN_EXECUTIONS_MAX};
use bellwether_schemas::state::{NonFireReason, Overlap};
use bellwether_schemas::text;
use sqlx::SqliteConnection;
use uuid::Uuid;

use super::SqliteStore;
use super::clock::Millis;
use super::errors::Fault;
use super::fires::{self, NewFire};
use super::row::{Columns, between, instant};
use super::{check, leadership, schedules};
use crate::leadership::Term;
use crate::planning::{Due, MissedRange, PlanStep, Planned, PlannedFire, Planning};
use crate::schedules::unreadable;
use crate::{Error, ErrorKind, Result};

#[async_trait::async_trait]
impl Planning for SqliteStore {
    async fn due_schedules(&self, partitions: &[i32], limit: u32) -> Result<Due> {
        let partitions = partitions.to_vec();
        let (due, set_aside) = self
            .writer
            .read("read the due schedules", async move |conn, now| {
                due(conn, now, &partitions, limit).await
            })
            .await?;
        if !set_aside.is_empty() {
            self.set_aside(set_aside).await;
        }
        Ok(due)
    }

    async fn plan(&self, term: &Term, steps: &[PlanStep]) -> Result<Planned> {
        const OP: &str = "plan fires";
        check::steps(steps)?;
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

/// What is due in some partitions, and the rows of it that cannot be read.
async fn due(
    conn: &mut SqliteConnection,
    now: Millis,
    partitions: &[i32],
    limit: u32,
) -> Result<(Due, Vec<Unreadable>), Fault> {
    let (mut rows, mut next) = (Vec::new(), None);
    for partition in partitions {
        // One more than asked for tells whether anything due is left.
        let own = sqlx::query(sql!("planning/due"))
            .bind(now)
            .bind(i64::from(limit) + 1)
            .bind(partition)
            .fetch_all(&mut *conn)
            .await?;
        rows.extend(own);
        let own: Option<Millis> = sqlx::query(sql!("planning/next"))
            .bind(now)
            .bind(partition)
            .fetch_one(&mut *conn)
            .await?
            .value("next_at")?;
        next = next.into_iter().chain(own).min();
    }
    // Oldest first over all partitions. What is no instant at all comes last, to be set aside.
    rows.sort_by_key(|row| match row.value::<Option<Millis>>("next_at") {
        Ok(next_at) => (false, next_at),
        Err(_) => (true, None),
    });
    let asked = limit as usize;
    let mut due = Due {
        now: instant(now)?,
        schedules: Vec::with_capacity(rows.len()),
        next_in: if rows.len() > asked {
            Some(Duration::ZERO)
        } else {
            next.map(|at| between(now, at))
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
        held: 0,
        overlapped: Vec::new(),
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
        .bind(step.overlap.as_str())
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
        let held_behind = match rule(conn, now, step, fire).await? {
            Rule::Fires => None,
            Rule::Held { behind } => {
                planned.held += 1;
                Some(behind)
            }
            Rule::Passed(reason) => {
                planned.overlapped.push((step.schedule_id, reason));
                record_passed(conn, now, step, fire, reason).await?;
                continue;
            }
        };
        let new = NewFire {
            id: fire.id,
            schedule_id: step.schedule_id,
            trigger: None,
            scheduled_at: fire.scheduled_at.timestamp_millis(),
            nominal_local: Some(&fire.nominal_local),
            fold: Some(&fire.fold),
            trace: &fire.trace,
            term: Some(term),
            held_behind,
        };
        if fires::insert_fire(conn, now, &new).await? {
            planned.fires += 1;
            planned.executions +=
                fires::insert_executions(conn, now, &new, step.shard_total).await?;
        } else {
            planned.fires_existing += 1;
        }
    }
    if let Some(missed) = &step.missed {
        record_range(conn, now, step, NonFireReason::Misfired, missed).await?;
    }
    Ok(())
}

/// What becomes of a due instant.
enum Rule {
    Fires,
    /// Its fire waits for another.
    Held {
        behind: Uuid,
    },
    /// It does not fire.
    Passed(NonFireReason),
}

/// Asks the overlap policy. With `replace`, what stands in the way is asked to stop. A fire that is
/// there already is a repeat, and not asked again.
async fn rule(
    conn: &mut SqliteConnection,
    now: Millis,
    step: &PlanStep,
    fire: &PlannedFire,
) -> Result<Rule, Fault> {
    if step.overlap == Overlap::Allow {
        return Ok(Rule::Fires);
    }
    let row = sqlx::query(sql!("planning/overlap"))
        .bind(step.schedule_id)
        .bind(fire.id)
        .fetch_one(&mut *conn)
        .await?;
    let waits: bool = row.value("waits")?;
    let unfinished: Option<Uuid> = row.value("unfinished")?;
    if row.value("there")? || unfinished.is_none() && !waits {
        return Ok(Rule::Fires);
    }
    if step.overlap == Overlap::Replace {
        sqlx::query(sql!("planning/replace"))
            .bind(step.schedule_id)
            .bind(now)
            .execute(conn)
            .await?;
    }
    Ok(match (step.overlap, unfinished) {
        (Overlap::Skip, _) => Rule::Passed(NonFireReason::Skipped),
        (_, Some(behind)) if !waits => Rule::Held { behind },
        _ => Rule::Passed(NonFireReason::Coalesced),
    })
}

/// Records an instant that the overlap policy passed, in the range of the one before if that has
/// the same reason.
async fn record_passed(
    conn: &mut SqliteConnection,
    now: Millis,
    step: &PlanStep,
    fire: &PlannedFire,
    reason: NonFireReason,
) -> Result<(), Fault> {
    let at = fire.scheduled_at.timestamp_millis();
    if step.missed.is_none() {
        let joined = sqlx::query(sql!("planning/join_range"))
            .bind(step.schedule_id)
            .bind(step.version)
            .bind(reason.as_str())
            .bind(at)
            .bind(step.cursor.timestamp_millis())
            .bind(now)
            .execute(&mut *conn)
            .await?;
        if joined.rows_affected() == 1 {
            return Ok(());
        }
    }
    let range = MissedRange {
        from: fire.scheduled_at,
        until: fire.scheduled_at,
        count: 1,
    };
    record_range(conn, now, step, reason, &range).await
}

/// Records instants without fires.
async fn record_range(
    conn: &mut SqliteConnection,
    now: Millis,
    step: &PlanStep,
    reason: NonFireReason,
    range: &MissedRange,
) -> Result<(), Fault> {
    schedules::record_passed(conn, now, (step.schedule_id, step.version), reason, range).await
}
