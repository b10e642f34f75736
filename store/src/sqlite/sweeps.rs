//! Sweeps: conditions on rows, settled in id order.

use std::sync::Arc;
use std::time::Duration;

use bellwether_schemas::limits::ERROR_TEXT_MAX;
use bellwether_schemas::state::{OnLost, Reason, State};
use bellwether_schemas::text;
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::clock::{self, Millis};
use super::errors::Fault;
use super::row::{Columns, millis};
use super::{SqliteStore, dispatch, held};
use crate::Result;
use crate::sweeps::{
    Ended, FiresSwept, KEY_RETENTION_MIN, KeysSwept, Lap, LostSession, REPORTS_KEPT, Recovered,
    Sweeps,
};

#[async_trait::async_trait]
impl Sweeps for SqliteStore {
    async fn lose_sessions(&self, limit: u32) -> Result<Vec<LostSession>> {
        self.writer
            .write("sweep lost sessions", async move |conn, now| {
                let rows = sqlx::query(sql!("sweeps/lose_sessions"))
                    .bind(now)
                    .bind(limit)
                    .fetch_all(conn)
                    .await?;
                let mut lost = rows
                    .iter()
                    .map(|row| {
                        Ok(LostSession {
                            id: row.value("id")?,
                            name: row.value("name")?,
                        })
                    })
                    .collect::<Result<Vec<_>, Fault>>()?;
                lost.sort_by_key(|session| session.id);
                Ok(lost)
            })
            .await
    }

    async fn recover_lost(&self, grace: Duration, limit: u32) -> Result<Vec<Recovered>> {
        self.writer
            .write("sweep lost work", async move |conn, now| {
                let rows = sqlx::query(sql!("sweeps/lost_work"))
                    .bind(now - millis(grace))
                    .bind(limit)
                    .fetch_all(&mut *conn)
                    .await?;
                let mut recovered = Vec::with_capacity(rows.len());
                for row in &rows {
                    recovered.push(recover(conn, now, LostWork::read(row)?).await?);
                }
                Ok(recovered)
            })
            .await
    }

    async fn dispatch_due(&self, limit: u32) -> Result<u64> {
        self.writer
            .write("sweep due executions", async move |conn, now| {
                let due = sqlx::query(sql!("sweeps/due"))
                    .bind(now)
                    .bind(limit)
                    .fetch_all(&mut *conn)
                    .await?;
                for row in &due {
                    dispatch::dispatch(conn, now, row.value("id")?).await?;
                }
                Ok(due.len() as u64)
            })
            .await
    }

    async fn release_held(&self, limit: u32) -> Result<FiresSwept> {
        let lap = Arc::clone(&self.held);
        self.writer
            .write("release held fires", async move |conn, now| {
                held::release(conn, now, limit, &lap).await
            })
            .await
    }

    async fn apply_fire_cancels(&self, limit: u32) -> Result<FiresSwept> {
        self.writer
            .write("cancel replaced fires", async move |conn, now| {
                held::cancel_replaced(conn, now, limit).await
            })
            .await
    }

    async fn expire_starts(&self, limit: u32) -> Result<Vec<Ended>> {
        self.writer
            .write("sweep start deadlines", async move |conn, now| {
                let rows = sqlx::query(sql!("sweeps/expire"))
                    .bind(now)
                    .bind(limit)
                    .fetch_all(conn)
                    .await?;
                let ended = rows.iter().map(|row| {
                    Ok(Ended {
                        job: row.value("job")?,
                        state: row.word("state")?,
                        reason: row.word_opt("reason")?,
                    })
                });
                ended.collect()
            })
            .await
    }

    async fn escalate_unknown(&self, age: Duration, limit: u32) -> Result<u64> {
        self.writer
            .write("sweep unknown executions", async move |conn, now| {
                let escalated = sqlx::query(sql!("sweeps/escalate"))
                    .bind(now)
                    .bind(now - millis(age))
                    .bind(limit)
                    .execute(conn)
                    .await?;
                Ok(escalated.rows_affected())
            })
            .await
    }

    async fn forget_keys(&self, retention: Duration, limit: u32) -> Result<KeysSwept> {
        let lap = Arc::clone(&self.keys);
        self.writer
            .write("sweep old keys", async move |conn, now| {
                let before = now - millis(retention);
                let swept = forget_keys(conn, before, limit.max(1), &lap).await?;
                sqlx::query(sql!("sweeps/mark_keys"))
                    .bind(now)
                    .bind(before)
                    .bind(now - millis(KEY_RETENTION_MIN))
                    .execute(conn)
                    .await?;
                Ok(swept)
            })
            .await
    }

    async fn retire_definitions(&self, after: Duration, limit: u32) -> Result<Vec<String>> {
        self.writer
            .write(
                "retire schedules that no code defines",
                async move |conn, now| {
                    let retired = sqlx::query(sql!("sweeps/retire_definitions"))
                        .bind(now)
                        .bind(now - millis(after))
                        .bind(limit)
                        .fetch_all(&mut *conn)
                        .await?;
                    sqlx::query(sql!("sweeps/forget_reports"))
                        .bind(now - millis(after.max(REPORTS_KEPT)))
                        .bind(limit)
                        .execute(conn)
                        .await?;
                    let names = retired.iter().map(|row| Ok(row.value("name")?));
                    names.collect()
                },
            )
            .await
    }

    async fn record_clock_anomaly(&self, seen_by: &str, detail: &str) -> Result<()> {
        let seen_by = text::clean(seen_by, ERROR_TEXT_MAX).into_owned();
        let detail = text::clean(detail, ERROR_TEXT_MAX).into_owned();
        self.writer
            .write("record a clock anomaly", async move |conn, now| {
                clock::record_anomaly(conn, now, &seen_by, &detail).await
            })
            .await
    }
}

/// Looks at some old keys, and forgets those whose executions are over.
async fn forget_keys(
    conn: &mut SqliteConnection,
    before: Millis,
    limit: u32,
    lap: &Lap<(Millis, i64)>,
) -> Result<KeysSwept, Fault> {
    let (recorded, place) = lap.after();
    let looked = sqlx::query(sql!("sweeps/old_keys"))
        .bind(before)
        .bind(limit)
        .bind(recorded)
        .bind(place)
        .fetch_all(&mut *conn)
        .await?;
    let mut old: Vec<i64> = Vec::new();
    let mut last = None;
    for row in &looked {
        let place = row.value("place")?;
        last = Some((row.value("created_at")?, place));
        if row.value("old")? {
            old.push(place);
        }
    }
    let old = old.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
    let forgotten = sqlx::query(sql!("sweeps/forget_keys"))
        .bind(format!("[{old}]"))
        .execute(conn)
        .await?;
    let more = looked.len() == limit as usize;
    lap.looked_up_to(last.filter(|_| more));
    Ok(KeysSwept {
        keys: forgotten.rows_affected(),
        more,
    })
}

/// A running row that lost its worker or its time.
struct LostWork {
    id: Uuid,
    job: String,
    attempts_left: bool,
    on_lost: OnLost,
    cancel_requested: bool,
    worker_lost: bool,
}

impl LostWork {
    fn read(row: &SqliteRow) -> Result<Self, Fault> {
        Ok(Self {
            id: row.value("id")?,
            job: row.value("job")?,
            attempts_left: row.value::<i64>("attempt")? < row.value::<i64>("max_attempts")?,
            on_lost: row.word("on_lost")?,
            cancel_requested: row
                .value::<Option<Millis>>("cancel_requested_at")?
                .is_some(),
            worker_lost: row.value("worker_lost")?,
        })
    }

    /// Nobody confirmed that the handler stopped: what must not be repeated is `unknown`.
    fn next_state(&self) -> State {
        match self.on_lost {
            OnLost::Unknown => State::Unknown,
            OnLost::Retry if self.cancel_requested => State::Cancelled,
            OnLost::Retry if self.attempts_left => State::Retrying,
            OnLost::Retry => State::Failed,
        }
    }
}

async fn recover(
    conn: &mut SqliteConnection,
    now: Millis,
    lost: LostWork,
) -> Result<Recovered, Fault> {
    let state = lost.next_state();
    let (reason, error) = if lost.worker_lost {
        (Reason::WorkerLost, "the session of its worker was lost")
    } else {
        (Reason::Timeout, "no result before the deadline")
    };
    let reason = if state == State::Cancelled {
        Reason::Cancelled
    } else {
        reason
    };
    sqlx::query(sql!("sweeps/recover"))
        .bind(lost.id)
        .bind(state.as_str())
        .bind(reason.as_str())
        .bind(state == State::Failed)
        .bind(now)
        .bind(error)
        .execute(&mut *conn)
        .await?;
    if state == State::Retrying {
        dispatch::dispatch(conn, now, lost.id).await?;
    }
    Ok(Recovered {
        execution_id: lost.id,
        job: lost.job,
        state,
        reason,
    })
}
