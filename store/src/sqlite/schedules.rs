//! Schedules: registration, changes and the definitions that they follow.

use bellwether_schemas::ids;
use bellwether_schemas::state::NonFireReason;
use bellwether_time::MisfirePolicy;
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::clock::Millis;
use super::enqueue::ensure_queue;
use super::errors::Fault;
use super::row::{Columns, instant, millis};
use super::{SqliteStore, check};
use crate::definition::{self, Definition};
use crate::planning::MissedRange;
use crate::schedules::{
    self, Author, Changed, FoundSchedule, KnownDefinition, NewSchedule, Origin, Policy, RECORDED,
    Registered, Removed, Schedule, ScheduleChange, Schedules, TIMING, Timing, TimingColumns,
    unreadable,
};
use crate::{Error, ErrorKind, Payload, Result};

/// How long ago a report of a definition is recent.
const RECENT_MS: Millis = 60_000;

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
        description: row.value("description")?,
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
            retry: row.retry_policy()?,
        },
        grace: row.duration("grace_ms")?,
        misfire: misfire(row)?,
        overlap: row.word("overlap")?,
        origin: match row.value::<&str>("origin")? {
            "code" => Origin::Code,
            "api" => Origin::Api,
            other => return Err(Fault::Corrupt(format!("{other:?} is no origin"))),
        },
        code_hash: row.value("code_hash")?,
        edited_at: row.instant_opt("edited_at")?,
        enabled: row.value("enabled")?,
        version: row.value("version")?,
        partition: row.value("partition")?,
        cursor: row.instant("cursor")?,
        next_at: row.instant_opt("next_at")?,
        ended: row.value("ended")?,
        fault: row.value("fault")?,
        history_from: row.instant("history_from")?,
        created_at: row.instant("created_at")?,
    })
}

fn misfire(row: &SqliteRow) -> Result<MisfirePolicy, Fault> {
    Ok(match row.value::<&str>("misfire")? {
        "fire_once" => MisfirePolicy::FireOnce,
        "skip" => MisfirePolicy::Skip,
        "catch_up" => MisfirePolicy::CatchUp {
            max: row.number("catch_up_max")?,
            window: row.duration("catch_up_window_ms")?,
        },
        other => return Err(Fault::Corrupt(format!("{other:?} is no misfire policy"))),
    })
}

/// A schedule for a list: one whose row cannot be read stops no other.
fn listed(row: &SqliteRow) -> Option<Schedule> {
    let schedule = read(row).inspect_err(|fault| {
        let id: Option<Uuid> = row.value("id").ok();
        let why = unreadable(fault);
        tracing::warn!(
            ?id,
            name = name(row),
            why,
            "a schedule is left out of the list"
        );
    });
    schedule.ok()
}

fn name(row: &SqliteRow) -> &str {
    row.value("name").unwrap_or("?")
}

fn found(row: &SqliteRow, now: Millis) -> Result<FoundSchedule, Fault> {
    let schedule = read(row)?;
    // A row that a hand has inserted has no history of timings.
    let recorded = match row.value::<Option<&str>>(RECORDED.kind)? {
        Some(_) => timing_of(row, &RECORDED)?,
        None => schedule.timing.clone(),
    };
    Ok(FoundSchedule {
        schedule,
        payload: Payload {
            bytes: row.value("payload")?,
            content_type: row.value("content_type")?,
        },
        recorded,
        now: instant(now)?,
    })
}

fn known(row: &SqliteRow) -> Result<KnownDefinition, Fault> {
    Ok(KnownDefinition {
        name: row.value("name")?,
        hash: row.value("hash")?,
        body: row.value("body")?,
        first_seen_at: row.instant("first_seen_at")?,
        live: row.value("live")?,
        recent: row.value("recent")?,
        retired: row.value("retired")?,
    })
}

/// The timing in columns `kind`, `expr`, `zone`, `period_ms`, `anchor` and `at`.
pub(super) fn timing(row: &SqliteRow) -> Result<Timing, Fault> {
    timing_of(row, &TIMING)
}

fn timing_of(row: &SqliteRow, columns: &TimingColumns) -> Result<Timing, Fault> {
    Ok(match row.value::<&str>(columns.kind)? {
        "cron" => Timing::Cron {
            expr: row.value(columns.expr)?,
            zone: row.value(columns.zone)?,
        },
        "every" => Timing::Every {
            period_ms: row.value(columns.period_ms)?,
            anchor: Some(row.instant(columns.anchor)?),
        },
        "at" => Timing::At {
            at: row.instant(columns.at)?,
        },
        other => return Err(Fault::Corrupt(format!("{other:?} is no kind of schedule"))),
    })
}

fn json(op: &'static str, names: &[String]) -> Result<String> {
    serde_json::to_string(names).map_err(|error| Error::new(op, ErrorKind::Invalid, error))
}

#[async_trait::async_trait]
impl Schedules for SqliteStore {
    async fn register_schedule(&self, new: &NewSchedule) -> Result<Registered> {
        check::schedule(new)?;
        let code_hash = definition::hash_from_code(new)?;
        let (new, id) = (new.clone(), ids::fresh());
        self.writer
            .write("register a schedule", async move |conn, now| {
                if let Some(existing) = find(conn, &new.name).await? {
                    return Ok(Registered::Exists(existing));
                }
                ensure_queue(conn, now, &new.queue).await?;
                insert(conn, now, id, &new, code_hash.as_deref()).await?;
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

    async fn find_schedules(&self, names: &[String]) -> Result<Vec<Result<FoundSchedule>>> {
        const OP: &str = "find schedules";
        let names = json(OP, names)?;
        self.writer
            .read(OP, async move |conn, now| {
                let rows = sqlx::query(sql!("schedules/found"))
                    .bind(&names)
                    .fetch_all(conn)
                    .await?;
                let answer = |row| {
                    found(row, now).map_err(|fault| {
                        let why = format!("{:?}: {}", name(row), unreadable(&fault));
                        Error::new(OP, ErrorKind::Corrupt, why)
                    })
                };
                Ok(rows.iter().map(answer).collect())
            })
            .await
    }

    async fn change_schedule(&self, change: &ScheduleChange) -> Result<Changed> {
        check::change(change)?;
        let change = change.clone();
        self.writer
            .write("change a schedule", async move |conn, now| {
                write(conn, now, &change).await
            })
            .await
    }

    async fn note_definitions(&self, definitions: &[Definition]) -> Result<()> {
        definitions
            .iter()
            .try_for_each(|definition| check::name("schedule", &definition.name))?;
        let definitions = definitions.to_vec();
        self.writer
            .write("note definitions", async move |conn, now| {
                for definition in &definitions {
                    sqlx::query(sql!("schedules/note_definition"))
                        .bind(&definition.name)
                        .bind(&definition.hash)
                        .bind(&definition.body)
                        .bind(now)
                        .execute(&mut *conn)
                        .await?;
                }
                Ok(())
            })
            .await
    }

    async fn definitions(&self, names: &[String]) -> Result<Vec<KnownDefinition>> {
        const OP: &str = "read definitions";
        let names = json(OP, names)?;
        self.writer
            .read(OP, async move |conn, now| {
                let rows = sqlx::query(sql!("schedules/definitions"))
                    .bind(&names)
                    .bind(now - RECENT_MS)
                    .fetch_all(conn)
                    .await?;
                rows.iter().map(known).collect()
            })
            .await
    }

    async fn schedules(&self) -> Result<Vec<Schedule>> {
        self.writer
            .read("list the schedules", async |conn, _| {
                let rows = sqlx::query(sql!("schedules/list")).fetch_all(conn).await?;
                Ok(rows.iter().filter_map(listed).collect())
            })
            .await
    }
}

async fn insert(
    conn: &mut SqliteConnection,
    now: Millis,
    id: Uuid,
    new: &NewSchedule,
    code_hash: Option<&str>,
) -> Result<(), Fault> {
    let stored = StoredTiming::of(&new.timing, now);
    let catch_up = schedules::catch_up(new.misfire);
    sqlx::query(sql!("schedules/insert"))
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
        .bind(new.shard_total)
        .bind(millis(new.policy.timeout))
        .bind(new.policy.max_attempts)
        .bind(millis(new.policy.start_deadline))
        .bind(new.policy.on_lost.as_str())
        .bind(millis(new.grace))
        .bind(new.origin.as_str())
        .bind(partition_seed(id))
        .bind(now)
        .bind(&new.description)
        .bind(code_hash)
        .bind(new.misfire.as_str())
        .bind(catch_up.map(|(max, _)| max))
        .bind(catch_up.map(|(_, window)| millis(window)))
        .bind(new.overlap.as_str())
        .bind(millis(new.policy.retry.first))
        .bind(millis(new.policy.retry.cap))
        .execute(&mut *conn)
        .await?;
    record_timing(conn, id).await
}

/// Records instants of a schedule (id and version) that do not fire.
pub(super) async fn record_passed(
    conn: &mut SqliteConnection,
    now: Millis,
    (id, version): (Uuid, i64),
    reason: NonFireReason,
    range: &MissedRange,
) -> Result<(), Fault> {
    sqlx::query(sql!("schedules/record_passed"))
        .bind(id)
        .bind(version)
        .bind(reason.as_str())
        .bind(range.from.timestamp_millis())
        .bind(range.until.timestamp_millis())
        .bind(i64::try_from(range.count).unwrap_or(i64::MAX))
        .bind(now)
        .execute(conn)
        .await?;
    Ok(())
}

async fn record_timing(conn: &mut SqliteConnection, id: Uuid) -> Result<(), Fault> {
    sqlx::query(sql!("schedules/record_timing"))
        .bind(id)
        .execute(conn)
        .await?;
    Ok(())
}

async fn write(
    conn: &mut SqliteConnection,
    now: Millis,
    change: &ScheduleChange,
) -> Result<Changed, Fault> {
    let cursor = change.cursor.timestamp_millis();
    let settled = change.settled.as_ref();
    let moved_to = settled.map(|settled| settled.cursor.timestamp_millis());
    // The clock was set back since the row was read. A cursor that stays may lie ahead of it.
    if moved_to.is_some_and(|moved_to| moved_to > now.max(cursor)) {
        return Ok(Changed::Stale);
    }
    if change.timing_changed {
        sqlx::query(sql!("schedules/record_first_timing"))
            .bind(change.id)
            .bind(change.version)
            .bind(cursor)
            .execute(&mut *conn)
            .await?;
    }
    let Some(version) = update(conn, now, change, moved_to).await? else {
        return Ok(Changed::Stale);
    };
    if let Some((reason, range)) = settled.and_then(|settled| settled.skipped.as_ref()) {
        record_passed(conn, now, (change.id, change.version), *reason, range).await?;
    }
    if change.timing_changed {
        record_timing(conn, change.id).await?;
    }
    ensure_queue(conn, now, &change.definition.queue).await?;
    Ok(Changed::Done(version))
}

/// The new version; none = the row is another one by now.
async fn update(
    conn: &mut SqliteConnection,
    now: Millis,
    change: &ScheduleChange,
    moved_to: Option<Millis>,
) -> Result<Option<i64>, Fault> {
    let new = &change.definition;
    let stored = StoredTiming::of(&new.timing, now);
    let catch_up = schedules::catch_up(new.misfire);
    let row = sqlx::query(sql!("schedules/change"))
        .bind(change.id)
        .bind(change.version)
        .bind(change.cursor.timestamp_millis())
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
        .bind(new.shard_total)
        .bind(millis(new.policy.timeout))
        .bind(new.policy.max_attempts)
        .bind(millis(new.policy.start_deadline))
        .bind(new.policy.on_lost.as_str())
        .bind(millis(new.grace))
        .bind(&new.description)
        .bind(change.author.as_ref().map(Author::as_str))
        .bind(change.author.as_ref().and_then(Author::hash))
        .bind(moved_to)
        .bind(now)
        .bind(new.misfire.as_str())
        .bind(catch_up.map(|(max, _)| max))
        .bind(catch_up.map(|(_, window)| millis(window)))
        .bind(new.overlap.as_str())
        .bind(millis(new.policy.retry.first))
        .bind(millis(new.policy.retry.cap))
        .fetch_optional(conn)
        .await?;
    Ok(row.map(|row| row.value("version")).transpose()?)
}

/// The columns of a timing.
#[derive(Default)]
struct StoredTiming<'a> {
    expr: Option<&'a str>,
    zone: Option<&'a str>,
    period_ms: Option<i64>,
    anchor: Option<Millis>,
    at: Option<Millis>,
}

impl<'a> StoredTiming<'a> {
    fn of(timing: &'a Timing, now: Millis) -> Self {
        match timing {
            Timing::Cron { expr, zone } => Self {
                expr: Some(expr),
                zone: Some(zone),
                ..Self::default()
            },
            Timing::Every { period_ms, anchor } => Self {
                period_ms: Some(*period_ms),
                anchor: Some(anchor.map_or(now, |anchor| anchor.timestamp_millis())),
                ..Self::default()
            },
            Timing::At { at } => Self {
                at: Some(at.timestamp_millis()),
                ..Self::default()
            },
        }
    }
}

/// The random end of an id, never negative.
fn partition_seed(id: Uuid) -> i64 {
    let bytes = id.as_bytes();
    i64::from(u32::from_be_bytes([
        bytes[12], bytes[13], bytes[14], bytes[15],
    ]))
}
