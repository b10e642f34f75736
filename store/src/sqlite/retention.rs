//! Retention: each call one transaction, set by set.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::clock::Millis;
use super::errors::Fault;
use super::row::{Columns, millis};
use super::{SqliteStore, leftovers};
use crate::Result;
use crate::retention::{Forgotten, Leftover, Retention};
use crate::sweeps::Lap;

pub(super) const DAY_MS: i64 = 86_400_000;

#[async_trait::async_trait]
impl Retention for SqliteStore {
    async fn forget_fires(&self, retention: Duration, limit: u32) -> Result<Forgotten> {
        let lap = Arc::clone(&self.history);
        self.writer
            .write("delete old fires", async move |conn, now| {
                fires(conn, now, now - millis(retention), limit.max(1), &lap).await
            })
            .await
    }

    async fn forget_leftovers(
        &self,
        kind: Leftover,
        retention: Duration,
        limit: u32,
    ) -> Result<Forgotten> {
        let look = Arc::clone(&self.unnamed);
        self.writer
            .write("delete what fires left behind", async move |conn, now| {
                let old = leftovers::Old {
                    now,
                    before: now - millis(retention),
                    limit: limit.max(1),
                };
                leftovers::forget(conn, kind, &old, &look).await
            })
            .await
    }
}

/// A fire that may go.
struct Old {
    id: Uuid,
    /// Where it was met first.
    place: usize,
    executions: u64,
    /// Of its executions, but for the current ones.
    attempts: u64,
    /// The instant of a schedule that it is.
    instant: Option<(Uuid, Millis)>,
}

impl Old {
    fn read(row: &SqliteRow) -> Result<Self, Fault> {
        let instant = if row.value("instant")? {
            Some((row.value("schedule_id")?, row.value("scheduled_at")?))
        } else {
            None
        };
        Ok(Self {
            id: row.value("fire_id")?,
            place: row.number("place")?,
            executions: row.number("executions")?,
            attempts: row.number("attempts")?,
            instant,
        })
    }
}

/// The first id that an instant has.
pub(super) fn first_id(at: Millis) -> Uuid {
    Uuid::from_u128(u128::from(at.max(0).unsigned_abs()) << 80)
}

/// As a JSON array for `unhex`.
pub(super) fn hex<'a>(ids: impl Iterator<Item = &'a Uuid>) -> String {
    let quoted: Vec<_> = ids.map(|id| format!("\"{}\"", id.simple())).collect();
    format!("[{}]", quoted.join(","))
}

async fn fires(
    conn: &mut SqliteConnection,
    now: Millis,
    before: Millis,
    limit: u32,
    lap: &Lap,
) -> Result<Forgotten, Fault> {
    let near = sqlx::query(sql!("retention/near"))
        .bind(lap.after())
        .bind(first_id(before))
        .bind(limit)
        .bind(first_id(now + DAY_MS))
        .fetch_all(&mut *conn)
        .await?;
    // Each fire once, where it was met first, and the execution it was met by.
    let (mut met, mut firsts): (Vec<Uuid>, Vec<usize>) = (Vec::new(), Vec::new());
    let mut known = std::collections::HashSet::new();
    for (at, row) in near.iter().enumerate() {
        let fire = row.value("fire_id")?;
        if known.insert(fire) {
            met.push(fire);
            firsts.push(at);
        }
    }
    let judged = sqlx::query(sql!("retention/judge"))
        .bind(hex(met.iter()))
        .bind(before)
        .fetch_all(&mut *conn)
        .await?;
    let mut old = judged
        .iter()
        .map(Old::read)
        .collect::<Result<Vec<_>, _>>()?;
    let (most, mut ahead) = (u64::from(limit), 0);
    let fits = old
        .iter()
        .take_while(|fire| {
            let fits = ahead < most && fire.attempts <= most;
            ahead += fire.executions + fire.attempts;
            fits
        })
        .count();
    let cut = old.drain(fits..).next();
    let mut gone = Forgotten::default();
    if !old.is_empty() {
        gone = delete_fires(conn, &old).await?;
    }
    let last = match cut {
        // What does not fit is looked at by the next call; the first fits, or becomes shorter.
        Some(fire) => {
            if fits == 0 {
                shorten(conn, fire.id, most, &mut gone).await?;
            }
            let at = firsts.get(fire.place).and_then(|at| at.checked_sub(1));
            Some(id_at(&near, at)?.unwrap_or(lap.after()))
        }
        None if near.len() == limit as usize => id_at(&near, near.len().checked_sub(1))?,
        None => None,
    };
    gone.more = last.is_some();
    lap.looked_up_to(last);
    Ok(gone)
}

fn id_at(near: &[SqliteRow], at: Option<usize>) -> Result<Option<Uuid>, Fault> {
    let row = at.and_then(|at| near.get(at));
    Ok(row.map(|row| row.value("id")).transpose()?)
}

/// Deletes the oldest attempts of a fire that has more than one call may delete.
async fn shorten(
    conn: &mut SqliteConnection,
    fire: Uuid,
    most: u64,
    gone: &mut Forgotten,
) -> Result<(), Fault> {
    let long = sqlx::query(sql!("retention/long"))
        .bind(fire)
        .fetch_all(&mut *conn)
        .await?;
    let mut left = i64::try_from(most).unwrap_or(i64::MAX);
    for row in long {
        let some = left.min(row.value("attempts")?);
        if some == 0 {
            break;
        }
        left -= some;
        let id: Uuid = row.value("id")?;
        let up_to = row.value::<i64>("attempts_gone")? + some;
        gone.attempts += delete_past(conn, sql!("retention/past_attempts"), id, up_to).await?;
        gone.verdicts += delete_past(conn, sql!("retention/past_verdicts"), id, up_to).await?;
        gone.refused_results +=
            delete_past(conn, sql!("retention/past_refused"), id, up_to).await?;
        delete_past(conn, sql!("retention/past_gone"), id, up_to).await?;
    }
    Ok(())
}

/// Runs one of the statements about an execution up to a generation.
async fn delete_past(
    conn: &mut SqliteConnection,
    sql: &'static str,
    execution: Uuid,
    up_to: i64,
) -> Result<u64, Fault> {
    let done = sqlx::query(sql).bind(execution).bind(up_to).execute(conn);
    Ok(done.await?.rows_affected())
}

async fn delete_fires(conn: &mut SqliteConnection, old: &[Old]) -> Result<Forgotten, Fault> {
    let fires = hex(old.iter().map(|fire| &fire.id));
    let mut moved: BTreeMap<Uuid, Millis> = BTreeMap::new();
    for (schedule, at) in old.iter().filter_map(|fire| fire.instant) {
        let up_to = moved.entry(schedule).or_insert(at);
        *up_to = at.max(*up_to);
    }
    let moved: Vec<_> = moved
        .iter()
        .map(|(schedule, at)| format!("[\"{}\",{at}]", schedule.simple()))
        .collect();
    let moved = format!("[{}]", moved.join(","));
    delete(conn, sql!("retention/history"), &moved).await?;
    Ok(Forgotten {
        attempts: delete(conn, sql!("retention/attempts"), &fires).await?,
        verdicts: delete(conn, sql!("retention/verdicts"), &fires).await?,
        refused_results: delete(conn, sql!("retention/refused_of"), &fires).await?,
        executions: delete(conn, sql!("retention/executions"), &fires).await?,
        fires: delete(conn, sql!("retention/fires"), &fires).await?,
        non_fires: delete(conn, sql!("retention/ranges"), &moved).await?,
        timings: delete(conn, sql!("retention/timings"), &moved).await?,
        ..Forgotten::default()
    })
}

/// Runs one of the statements about a list.
pub(super) async fn delete(
    conn: &mut SqliteConnection,
    sql: &'static str,
    list: &str,
) -> Result<u64, Fault> {
    let done = sqlx::query(sql).bind(list).execute(conn).await?;
    Ok(done.rows_affected())
}
