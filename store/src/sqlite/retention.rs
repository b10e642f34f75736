//! Retention: each call one transaction, set by set.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::SqliteStore;
use super::clock::Millis;
use super::errors::Fault;
use super::row::{Columns, millis};
use crate::Result;
use crate::retention::{Forgotten, NAMED_MAX, Retention};
use crate::sweeps::Lap;

/// How much longer than what they claimed sessions are kept: see `sql/postgres/retention/sessions.sql`.
const DAY_MS: i64 = 86_400_000;

#[async_trait::async_trait]
impl Retention for SqliteStore {
    async fn forget_fires(&self, retention: Duration, limit: u32) -> Result<Forgotten> {
        let lap = Arc::clone(&self.history);
        self.writer
            .write("delete old fires", async move |conn, now| {
                fires(conn, now - millis(retention), limit.max(1), &lap).await
            })
            .await
    }

    async fn forget_leftovers(&self, retention: Duration, limit: u32) -> Result<Forgotten> {
        self.writer
            .write("delete what fires left behind", async move |conn, now| {
                leftovers(conn, now - millis(retention), limit.max(1)).await
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
            instant,
        })
    }
}

/// The first id that an instant has.
fn first_id(at: Millis) -> Uuid {
    Uuid::from_u128(u128::from(at.max(0).unsigned_abs()) << 80)
}

/// As a JSON array for `unhex`.
fn hex<'a>(ids: impl Iterator<Item = &'a Uuid>) -> String {
    let quoted: Vec<_> = ids.map(|id| format!("\"{}\"", id.simple())).collect();
    format!("[{}]", quoted.join(","))
}

async fn fires(
    conn: &mut SqliteConnection,
    before: Millis,
    limit: u32,
    lap: &Lap,
) -> Result<Forgotten, Fault> {
    let near = sqlx::query(sql!("retention/near"))
        .bind(lap.after())
        .bind(first_id(before))
        .bind(limit)
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
    let mut ahead = 0;
    let fits = old
        .iter()
        .take_while(|fire| {
            let fits = ahead < u64::from(limit);
            ahead += fire.executions;
            fits
        })
        .count();
    let cut = old.drain(fits..).next();
    let last = match cut {
        // What does not fit is looked at by the next call; the first always fits.
        Some(fire) => firsts.get(fire.place).and_then(|at| at.checked_sub(1)),
        None if near.len() == limit as usize => near.len().checked_sub(1),
        None => None,
    };
    let last = last
        .and_then(|at| near.get(at))
        .map(|row| row.value::<Uuid>("id"))
        .transpose()?;
    let mut gone = Forgotten::default();
    if !old.is_empty() {
        gone = delete_fires(conn, &old).await?;
    }
    gone.more = last.is_some();
    lap.looked_up_to(last);
    Ok(gone)
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
async fn delete(conn: &mut SqliteConnection, sql: &'static str, list: &str) -> Result<u64, Fault> {
    let done = sqlx::query(sql).bind(list).execute(conn).await?;
    Ok(done.rows_affected())
}

async fn leftovers(
    conn: &mut SqliteConnection,
    before: Millis,
    limit: u32,
) -> Result<Forgotten, Fault> {
    let tombstones = sqlx::query(sql!("retention/tombstones"))
        .bind(before)
        .bind(limit)
        .fetch_all(&mut *conn)
        .await?;
    let mut gone = Forgotten::default();
    if !tombstones.is_empty() {
        let ids = tombstones
            .iter()
            .map(|row| Ok(row.value::<Uuid>("id")?))
            .collect::<Result<Vec<_>, Fault>>()?;
        let ids = hex(ids.iter());
        gone.non_fires = delete(conn, sql!("retention/ranges_of"), &ids).await?;
        gone.timings = delete(conn, sql!("retention/timings_of"), &ids).await?;
        gone.schedules = delete(conn, sql!("retention/schedules"), &ids).await?;
    }
    let refused = sqlx::query(sql!("retention/refused"))
        .bind(before)
        .bind(first_id(before))
        .bind(limit)
        .execute(&mut *conn)
        .await?;
    let dead = sqlx::query(sql!("retention/dead"))
        .bind(before)
        .bind(limit)
        .execute(&mut *conn)
        .await?;
    let sessions = sqlx::query(sql!("retention/sessions"))
        .bind(before - 2 * DAY_MS)
        .bind(first_id(before - DAY_MS))
        .bind(limit)
        .bind(NAMED_MAX)
        .execute(&mut *conn)
        .await?;
    let terms = sqlx::query(sql!("retention/terms"))
        .bind(before)
        .bind(first_id(before))
        .bind(limit)
        .bind(NAMED_MAX)
        .execute(conn)
        .await?;
    gone.refused_results = refused.rows_affected();
    gone.dead_letters = dead.rows_affected();
    gone.sessions = sessions.rows_affected();
    gone.terms = terms.rows_affected();
    gone.more = gone.any_reached(limit);
    Ok(gone)
}
