//! Schedules: registration and removal.

use bellwether_schemas::ids;
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::clock::Millis;
use super::enqueue::ensure_queue;
use super::errors::Fault;
use super::row::{Columns, millis};
use super::{SqliteStore, check};
use crate::Result;
use crate::schedules::{
    NewSchedule, Origin, Policy, Registered, Removed, Schedule, Schedules, Timing,
};

/// The live schedule of that name.
pub(super) async fn find(conn: &mut SqliteConnection, name: &str) -> Result<Option<Uuid>, Fault> {
    let row = sqlx::query(sql!("schedules/find"))
        .bind(name)
        .fetch_optional(conn)
        .await?;
    Ok(row.map(|row| row.value("id")).transpose()?)
}

/// A schedule from its row.
pub(super) fn read(row: &SqliteRow) -> Result<Schedule, Fault> {
    Ok(Schedule {
        id: row.value("id")?,
        name: row.value("name")?,
        job: row.value("job")?,
        queue: row.value("queue")?,
        priority: row.word("priority")?,
        timing: timing(row)?,
        shard_total: row.number("shard_total")?,
        policy: Policy {
            timeout: row.duration("timeout_ms")?,
            max_attempts: row.number("max_attempts")?,
            start_deadline: row.duration("start_deadline_ms")?,
            on_lost: row.word("on_lost")?,
        },
        grace: row.duration("grace_ms")?,
        origin: match row.value::<&str>("origin")? {
            "code" => Origin::Code,
            "api" => Origin::Api,
            other => return Err(Fault::Corrupt(format!("{other:?} is no origin"))),
        },
        enabled: row.value("enabled")?,
        version: row.value("version")?,
        cursor: row.instant("cursor")?,
        next_at: row.instant_opt("next_at")?,
        ended: row.value("ended")?,
        fault: row.value("fault")?,
        history_from: row.instant("history_from")?,
        created_at: row.instant("created_at")?,
    })
}

/// The timing in columns `kind`, `expr`, `zone`, `period_ms`, `anchor` and `at`.
pub(super) fn timing(row: &SqliteRow) -> Result<Timing, Fault> {
    Ok(match row.value::<&str>("kind")? {
        "cron" => Timing::Cron {
            expr: row.value("expr")?,
            zone: row.value("zone")?,
        },
        "every" => Timing::Every {
            period_ms: row.value("period_ms")?,
            anchor: Some(row.instant("anchor")?),
        },
        "at" => Timing::At {
            at: row.instant("at")?,
        },
        other => return Err(Fault::Corrupt(format!("{other:?} is no kind of schedule"))),
    })
}

#[async_trait::async_trait]
impl Schedules for SqliteStore {
    async fn register_schedule(&self, new: &NewSchedule) -> Result<Registered> {
        check::schedule(new)?;
        let (new, id) = (new.clone(), ids::fresh());
        self.writer
            .write("register a schedule", async move |conn, now| {
                if let Some(existing) = find(conn, &new.name).await? {
                    return Ok(Registered::Exists(existing));
                }
                ensure_queue(conn, now, &new.queue).await?;
                insert(conn, now, id, &new).await?;
                Ok(Registered::Inserted(id))
            })
            .await
    }

    async fn remove_schedule(&self, name: &str) -> Result<Removed> {
        let name = name.to_owned();
        self.writer
            .write("remove a schedule", async move |conn, now| {
                let row = sqlx::query(sql!("schedules/remove"))
                    .bind(&name)
                    .bind(now)
                    .fetch_optional(conn)
                    .await?;
                Ok(match row {
                    Some(row) => Removed::Removed(row.value("id")?),
                    None => Removed::NotFound,
                })
            })
            .await
    }

    async fn schedules(&self) -> Result<Vec<Schedule>> {
        self.writer
            .read("list the schedules", async |conn, _| {
                sqlx::query(sql!("schedules/list"))
                    .fetch_all(conn)
                    .await?
                    .iter()
                    .map(read)
                    .collect()
            })
            .await
    }
}

async fn insert(
    conn: &mut SqliteConnection,
    now: Millis,
    id: Uuid,
    new: &NewSchedule,
) -> Result<(), Fault> {
    let (mut expr, mut zone, mut period_ms, mut anchor, mut once_at) =
        (None, None, None, None, None);
    match &new.timing {
        Timing::Cron {
            expr: text,
            zone: name,
        } => (expr, zone) = (Some(text), Some(name)),
        Timing::Every {
            period_ms: period,
            anchor: from,
        } => {
            period_ms = Some(period);
            anchor = Some(from.map_or(now, |from| from.timestamp_millis()));
        }
        Timing::At { at } => once_at = Some(at.timestamp_millis()),
    }
    sqlx::query(sql!("schedules/insert"))
        .bind(id)
        .bind(&new.name)
        .bind(&new.job)
        .bind(&new.queue)
        .bind(new.priority.as_str())
        .bind(new.timing.kind())
        .bind(expr)
        .bind(zone)
        .bind(period_ms)
        .bind(anchor)
        .bind(once_at)
        .bind(&new.payload.bytes)
        .bind(&new.payload.content_type)
        .bind(new.shard_total)
        .bind(millis(new.policy.timeout))
        .bind(new.policy.max_attempts)
        .bind(millis(new.policy.start_deadline))
        .bind(new.policy.on_lost.as_str())
        .bind(millis(new.grace))
        .bind(new.origin.as_str())
        .bind(partition_seed(id))
        .bind(now)
        .execute(conn)
        .await?;
    Ok(())
}

/// The random end of an id, never negative.
fn partition_seed(id: Uuid) -> i64 {
    let bytes = id.as_bytes();
    i64::from(u32::from_be_bytes([
        bytes[12], bytes[13], bytes[14], bytes[15],
    ]))
}
