//! Registration of schedules.

use bellwether_schemas::ids;
use chrono::{DateTime, SubsecRound, Utc};
use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};
use uuid::Uuid;

use super::{PgStore, call, check, errors, row, sql};
use crate::schedules::{
    NewSchedule, Origin, Policy, Registered, Removed, Schedule, Schedules, Timing,
};
use crate::{Error, ErrorKind, Result};

/// How often a name may be taken and given up under our feet.
const RACES_MAX: u32 = 5;

#[async_trait::async_trait]
impl Schedules for PgStore {
    async fn register_schedule(&self, new: &NewSchedule) -> Result<Registered> {
        const OP: &str = "register a schedule";
        check::schedule(new)?;
        let id = ids::fresh();
        for _ in 0..RACES_MAX {
            let registered = call!(self, OP, |conn| {
                if let Some(id) = insert(conn, id, new).await? {
                    return Ok(Some(Registered::Inserted(id)));
                }
                let live = sqlx::query_scalar(sql!("schedules/live_id"))
                    .bind(&new.name)
                    .fetch_optional(conn)
                    .await?;
                Ok(live.map(Registered::Exists))
            })?;
            if let Some(registered) = registered {
                return Ok(registered);
            }
        }
        Err(Error::new(
            OP,
            ErrorKind::Conflict,
            "others keep taking and removing its name",
        ))
    }

    async fn remove_schedule(&self, name: &str) -> Result<Removed> {
        call!(self, "remove a schedule", |conn| {
            let removed = sqlx::query_scalar(sql!("schedules/remove"))
                .bind(name)
                .fetch_optional(conn)
                .await?;
            Ok(removed.map_or(Removed::NotFound, Removed::Removed))
        })
    }

    async fn schedules(&self) -> Result<Vec<Schedule>> {
        call!(self, "list the schedules", |conn| {
            let rows = sqlx::query(sql!("schedules/list")).fetch_all(conn).await?;
            rows.iter().map(schedule).collect()
        })
    }
}

async fn insert(
    conn: &mut PgConnection,
    id: Uuid,
    new: &NewSchedule,
) -> sqlx::Result<Option<Uuid>> {
    let stored = StoredTiming::of(&new.timing);
    sqlx::query_scalar(sql!("schedules/register"))
        .bind(id)
        .bind(&new.name)
        .bind(&new.job)
        .bind(&new.queue)
        .bind(new.priority.as_str())
        .bind(new.timing.kind())
        .bind(stored.expr)
        .bind(stored.zone)
        .bind(stored.period_ms)
        .bind(stored.anchor)
        .bind(stored.at)
        .bind(&new.payload.bytes)
        .bind(&new.payload.content_type)
        .bind(row::int(new.shard_total))
        .bind(row::millis(new.policy.timeout))
        .bind(row::int(new.policy.max_attempts))
        .bind(row::millis(new.policy.start_deadline))
        .bind(new.policy.on_lost.as_str())
        .bind(row::millis(new.grace))
        .bind(new.origin.as_str())
        .bind(partition_number(id))
        .fetch_optional(conn)
        .await
}

/// Spreads schedules over partitions: the random tail of the id.
fn partition_number(id: Uuid) -> i64 {
    let bytes = id.into_bytes();
    i64::from(u32::from_be_bytes([
        bytes[12], bytes[13], bytes[14], bytes[15],
    ]))
}

/// The columns of a timing. Instants are whole milliseconds, as in the ids of fires.
#[derive(Default)]
struct StoredTiming<'a> {
    expr: Option<&'a str>,
    zone: Option<&'a str>,
    period_ms: Option<i64>,
    anchor: Option<DateTime<Utc>>,
    at: Option<DateTime<Utc>>,
}

impl<'a> StoredTiming<'a> {
    fn of(timing: &'a Timing) -> Self {
        match timing {
            Timing::Cron { expr, zone } => Self {
                expr: Some(expr),
                zone: Some(zone),
                ..Self::default()
            },
            Timing::Every { period_ms, anchor } => Self {
                period_ms: Some(*period_ms),
                anchor: anchor.map(|anchor| anchor.trunc_subsecs(3)),
                ..Self::default()
            },
            Timing::At { at } => Self {
                at: Some(at.trunc_subsecs(3)),
                ..Self::default()
            },
        }
    }
}

/// A schedule's row.
pub(super) fn schedule(row: &PgRow) -> sqlx::Result<Schedule> {
    Ok(Schedule {
        id: row.try_get("id")?,
        name: row.try_get("name")?,
        job: row.try_get("job")?,
        queue: row.try_get("queue")?,
        priority: row::word(row, "priority")?,
        timing: timing(row)?,
        shard_total: row::count(row, "shard_total")?,
        policy: Policy {
            timeout: row::stored_ms(row, "timeout_ms")?,
            max_attempts: row::count(row, "max_attempts")?,
            start_deadline: row::stored_ms(row, "start_deadline_ms")?,
            on_lost: row::word(row, "on_lost")?,
        },
        grace: row::stored_ms(row, "grace_ms")?,
        origin: match row.try_get("origin")? {
            "code" => Origin::Code,
            "api" => Origin::Api,
            other => return Err(errors::corrupt("origin", format!("{other:?} is no origin"))),
        },
        enabled: row.try_get("enabled")?,
        version: row.try_get("version")?,
        cursor: row.try_get("cursor")?,
        next_at: row.try_get("next_at")?,
        ended: row.try_get("ended")?,
        fault: row.try_get("fault")?,
        history_from: row.try_get("history_from")?,
        created_at: row.try_get("created_at")?,
    })
}

/// The timing in columns `kind`, `expr`, `zone`, `period_ms`, `anchor` and `at`.
pub(super) fn timing(row: &PgRow) -> sqlx::Result<Timing> {
    Ok(match row.try_get("kind")? {
        "cron" => Timing::Cron {
            expr: row.try_get("expr")?,
            zone: row.try_get("zone")?,
        },
        "every" => Timing::Every {
            period_ms: row.try_get("period_ms")?,
            anchor: Some(row.try_get("anchor")?),
        },
        "at" => Timing::At {
            at: row.try_get("at")?,
        },
        other => {
            return Err(errors::corrupt(
                "kind",
                format!("{other:?} is no kind of timing"),
            ));
        }
    })
}
