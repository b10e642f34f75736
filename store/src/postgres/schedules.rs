//! Schedules: registration, changes and the definitions that they follow.

use bellwether_schemas::ids;
use bellwether_time::MisfirePolicy;
use chrono::{DateTime, SubsecRound, Utc};
use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};
use uuid::Uuid;

use super::{PgStore, call, check, errors, row, sql};
use crate::definition::{self, Definition};
use crate::schedules::{
    self, Author, Changed, FoundSchedule, KnownDefinition, NewSchedule, Origin, Policy, RECORDED,
    Registered, Removed, Schedule, ScheduleChange, Schedules, TIMING, Timing, TimingColumns,
    unreadable,
};
use crate::{Error, ErrorKind, Payload, Result};

/// How often a name may be taken and given up under our feet.
const RACES_MAX: u32 = 5;

#[async_trait::async_trait]
impl Schedules for PgStore {
    async fn register_schedule(&self, new: &NewSchedule) -> Result<Registered> {
        const OP: &str = "register a schedule";
        check::schedule(new)?;
        let code_hash = definition::hash_from_code(new)?;
        let (id, code_hash) = (ids::fresh(), code_hash.as_deref());
        for _ in 0..RACES_MAX {
            let registered = call!(self, OP, |conn| {
                if let Some(id) = insert(conn, id, new, code_hash).await? {
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

    async fn find_schedules(&self, names: &[String]) -> Result<Vec<Result<FoundSchedule>>> {
        const OP: &str = "find schedules";
        let rows = call!(self, OP, |conn| {
            sqlx::query(sql!("schedules/find"))
                .bind(names)
                .fetch_all(conn)
                .await
        })?;
        let answer = |row| {
            found(row).map_err(|error| {
                let why = format!("{:?}: {}", name(row), unreadable(&error));
                Error::new(OP, ErrorKind::Corrupt, why)
            })
        };
        Ok(rows.iter().map(answer).collect())
    }

    async fn change_schedule(&self, change: &ScheduleChange) -> Result<Changed> {
        check::change(change)?;
        let version = call!(self, "change a schedule", |conn| {
            write(conn, change).await
        })?;
        Ok(version.map_or(Changed::Stale, Changed::Done))
    }

    async fn note_definitions(&self, definitions: &[Definition]) -> Result<()> {
        definitions
            .iter()
            .try_for_each(|definition| check::name("schedule", &definition.name))?;
        let columns = |column: fn(&Definition) -> &str| -> Vec<&str> {
            definitions.iter().map(column).collect()
        };
        let names = columns(|definition| &definition.name);
        let hashes = columns(|definition| &definition.hash);
        let bodies = columns(|definition| &definition.body);
        call!(self, "note definitions", |conn| {
            sqlx::query(sql!("schedules/note_definitions"))
                .bind(&names)
                .bind(&hashes)
                .bind(&bodies)
                .execute(conn)
                .await
        })
        .map(drop)
    }

    async fn definitions(&self, names: &[String]) -> Result<Vec<KnownDefinition>> {
        call!(self, "read definitions", |conn| {
            let rows = sqlx::query(sql!("schedules/definitions"))
                .bind(names)
                .fetch_all(conn)
                .await?;
            rows.iter().map(known).collect()
        })
    }

    async fn schedules(&self) -> Result<Vec<Schedule>> {
        call!(self, "list the schedules", |conn| {
            let rows = sqlx::query(sql!("schedules/list")).fetch_all(conn).await?;
            Ok(rows.iter().filter_map(listed).collect())
        })
    }
}

async fn insert(
    conn: &mut PgConnection,
    id: Uuid,
    new: &NewSchedule,
    code_hash: Option<&str>,
) -> sqlx::Result<Option<Uuid>> {
    let stored = StoredTiming::of(&new.timing);
    let catch_up = schedules::catch_up(new.misfire);
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
        .bind(&new.description)
        .bind(code_hash)
        .bind(new.misfire.as_str())
        .bind(catch_up.map(|(max, _)| row::int(max)))
        .bind(catch_up.map(|(_, window)| row::millis(window)))
        .bind(new.overlap.as_str())
        .bind(row::millis(new.policy.retry.first))
        .bind(row::millis(new.policy.retry.cap))
        .fetch_optional(conn)
        .await
}

/// The new version; none = the change is stale.
async fn write(conn: &mut PgConnection, change: &ScheduleChange) -> sqlx::Result<Option<i64>> {
    let new = &change.definition;
    let stored = StoredTiming::of(&new.timing);
    let catch_up = schedules::catch_up(new.misfire);
    let passed = change
        .settled
        .as_ref()
        .and_then(|settled| settled.skipped.as_ref());
    sqlx::query_scalar(sql!("schedules/change"))
        .bind(change.id)
        .bind(change.version)
        .bind(change.cursor)
        .bind(change.enabled)
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
        .bind(&new.description)
        .bind(change.author.as_ref().map(Author::as_str))
        .bind(change.author.as_ref().and_then(Author::hash))
        .bind(change.settled.as_ref().map(|settled| settled.cursor))
        .bind(passed.map(|(reason, _)| reason.as_str()))
        .bind(passed.map(|(_, range)| range.from))
        .bind(passed.map(|(_, range)| range.until))
        .bind(passed.map(|(_, range)| i64::try_from(range.count).unwrap_or(i64::MAX)))
        .bind(change.timing_changed)
        .bind(new.misfire.as_str())
        .bind(catch_up.map(|(max, _)| row::int(max)))
        .bind(catch_up.map(|(_, window)| row::millis(window)))
        .bind(new.overlap.as_str())
        .bind(row::millis(new.policy.retry.first))
        .bind(row::millis(new.policy.retry.cap))
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

/// A schedule for a list: one whose row cannot be read stops no other.
fn listed(row: &PgRow) -> Option<Schedule> {
    let read = schedule(row).inspect_err(|error| {
        let id: Option<Uuid> = row.try_get("id").ok();
        let why = unreadable(error);
        tracing::warn!(
            ?id,
            name = name(row),
            why,
            "a schedule is left out of the list"
        );
    });
    read.ok()
}

fn name(row: &PgRow) -> &str {
    row.try_get("name").unwrap_or("?")
}

/// A schedule's row.
pub(super) fn schedule(row: &PgRow) -> sqlx::Result<Schedule> {
    Ok(Schedule {
        id: row.try_get("id")?,
        name: row.try_get("name")?,
        description: row.try_get("description")?,
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
            retry: row::retry_policy(row)?,
        },
        grace: row::stored_ms(row, "grace_ms")?,
        misfire: misfire(row)?,
        overlap: row::word(row, "overlap")?,
        origin: match row.try_get("origin")? {
            "code" => Origin::Code,
            "api" => Origin::Api,
            other => return Err(errors::corrupt("origin", format!("{other:?} is no origin"))),
        },
        code_hash: row.try_get("code_hash")?,
        edited_at: row::instant_opt(row, "edited_at")?,
        enabled: row.try_get("enabled")?,
        version: row.try_get("version")?,
        partition: row.try_get("partition")?,
        cursor: row::instant(row, "cursor")?,
        next_at: row::instant_opt(row, "next_at")?,
        ended: row.try_get("ended")?,
        fault: row.try_get("fault")?,
        history_from: row::instant(row, "history_from")?,
        created_at: row::instant(row, "created_at")?,
    })
}

fn misfire(row: &PgRow) -> sqlx::Result<MisfirePolicy> {
    Ok(match row.try_get("misfire")? {
        "fire_once" => MisfirePolicy::FireOnce,
        "skip" => MisfirePolicy::Skip,
        "catch_up" => MisfirePolicy::CatchUp {
            max: row::count(row, "catch_up_max")?,
            window: row::stored_ms(row, "catch_up_window_ms")?,
        },
        other => {
            let why = format!("{other:?} is no misfire policy");
            return Err(errors::corrupt("misfire", why));
        }
    })
}

fn found(row: &PgRow) -> sqlx::Result<FoundSchedule> {
    let schedule = schedule(row)?;
    // A row that a hand has inserted has no history of timings.
    let recorded = match row.try_get::<Option<&str>, _>(RECORDED.kind)? {
        Some(_) => timing_of(row, &RECORDED)?,
        None => schedule.timing.clone(),
    };
    Ok(FoundSchedule {
        schedule,
        payload: Payload {
            bytes: row.try_get("payload")?,
            content_type: row.try_get("content_type")?,
        },
        recorded,
        now: row.try_get("now")?,
    })
}

fn known(row: &PgRow) -> sqlx::Result<KnownDefinition> {
    Ok(KnownDefinition {
        name: row.try_get("name")?,
        hash: row.try_get("hash")?,
        body: row.try_get("body")?,
        first_seen_at: row::instant(row, "first_seen_at")?,
        live: row.try_get("live")?,
        recent: row.try_get("recent")?,
        retired: row.try_get("retired")?,
    })
}

/// The timing in columns `kind`, `expr`, `zone`, `period_ms`, `anchor` and `at`.
pub(super) fn timing(row: &PgRow) -> sqlx::Result<Timing> {
    timing_of(row, &TIMING)
}

fn timing_of(row: &PgRow, columns: &TimingColumns) -> sqlx::Result<Timing> {
    Ok(match row.try_get(columns.kind)? {
        "cron" => Timing::Cron {
            expr: row.try_get(columns.expr)?,
            zone: row.try_get(columns.zone)?,
        },
        "every" => Timing::Every {
            period_ms: row.try_get(columns.period_ms)?,
            anchor: Some(row::instant(row, columns.anchor)?),
        },
        "at" => Timing::At {
            at: row::instant(row, columns.at)?,
        },
        other => {
            return Err(errors::corrupt(
                columns.kind,
                format!("{other:?} is no kind of timing"),
            ));
        }
    })
}
