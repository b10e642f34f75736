//! The ledger's clock: a stored anchor plus boot time elapsed since.
//!
//! All processes of the host share the anchor, so they agree on the time to the
//! millisecond whatever the wall clock does meanwhile. A step of the wall clock is put
//! under watch and taken over only after it has persisted; a blip is never seen by the
//! ledger. [`advance`] is pure; [`now`] is called inside a transaction.

use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use sqlx::SqliteConnection;

use super::errors::Fault;
use super::row::Columns;

/// Unix milliseconds, UTC.
pub(super) type Millis = i64;

/// A wall clock this far from the ledger's has stepped.
const STEP_MIN_MS: i64 = 1_000;

/// A step is taken over once it has been there this long, in boot time.
const STEP_PERSISTS_MS: i64 = 60_000;

/// The anchor moves along this often, so that after a restart of the host the ledger
/// knows how late it was already.
const REFRESH_MS: i64 = 60_000;

/// Longest that a lease may still have to run when time went back.
const LEASE_MS: i64 = 9_000;

/// What the host's clocks show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reading<'a> {
    /// This start of the kernel.
    boot_id: &'a str,
    /// The wall clock, Unix ms.
    wall_ms: Millis,
    /// Time since that start, suspend included.
    boot_ms: i64,
}

/// A moment at which the ledger's time was `wall_ms`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Anchor {
    boot_id: String,
    wall_ms: Millis,
    boot_ms: i64,
    /// A wall step under watch.
    step: Option<Step>,
}

/// How far the wall clock went, and the boot time at which that was first seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    by_ms: i64,
    seen_boot_ms: i64,
}

/// The ledger's time, and what has to be stored for it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Advanced {
    now_ms: Millis,
    /// The new anchor; none = the stored one stands.
    anchor: Option<Anchor>,
    /// Time went back: what was leased before lies in the future.
    back: bool,
    /// What an operator should know.
    anomaly: Option<String>,
}

/// The ledger's time at `reading`.
fn advance(anchor: Option<Anchor>, reading: Reading<'_>) -> Advanced {
    let Some(anchor) = anchor else {
        return reanchored(reading, reading.wall_ms, None);
    };
    if anchor.boot_id != reading.boot_id {
        let behind_ms = anchor.wall_ms - reading.wall_ms;
        let anomaly = (behind_ms > 0).then(|| {
            format!(
                "after a restart of the host its wall clock is {behind_ms} ms behind the ledger"
            )
        });
        return reanchored(reading, reading.wall_ms.max(anchor.wall_ms), anomaly);
    }
    let elapsed_ms = (reading.boot_ms - anchor.boot_ms).max(0);
    let now_ms = anchor.wall_ms + elapsed_ms;
    let step = watch(anchor.step, reading.wall_ms - now_ms, reading.boot_ms);
    if let Some(Step {
        by_ms,
        seen_boot_ms,
    }) = step
        && reading.boot_ms - seen_boot_ms >= STEP_PERSISTS_MS
    {
        let anomaly = format!("the wall clock stepped by {by_ms} ms and stayed there");
        return Advanced {
            back: by_ms < 0,
            ..reanchored(reading, reading.wall_ms, Some(anomaly))
        };
    }
    let stands = step == anchor.step && elapsed_ms < REFRESH_MS;
    Advanced {
        now_ms,
        anchor: (!stands).then(|| Anchor {
            step,
            ..reanchor(reading, now_ms)
        }),
        back: false,
        anomaly: None,
    }
}

/// The step under watch after the wall clock was seen `by_ms` off.
fn watch(watched: Option<Step>, by_ms: i64, boot_ms: i64) -> Option<Step> {
    if by_ms.abs() <= STEP_MIN_MS {
        return None;
    }
    watched
        .filter(|step| (step.by_ms - by_ms).abs() <= STEP_MIN_MS)
        .or(Some(Step {
            by_ms,
            seen_boot_ms: boot_ms,
        }))
}

fn reanchor(reading: Reading<'_>, wall_ms: Millis) -> Anchor {
    Anchor {
        boot_id: reading.boot_id.to_owned(),
        wall_ms,
        boot_ms: reading.boot_ms,
        step: None,
    }
}

fn reanchored(reading: Reading<'_>, wall_ms: Millis, anomaly: Option<String>) -> Advanced {
    Advanced {
        now_ms: wall_ms,
        anchor: Some(reanchor(reading, wall_ms)),
        back: false,
        anomaly,
    }
}

/// The ledger's time inside a transaction that may write. Call it after the transaction
/// has its lock: time read before a wait is old.
pub(super) async fn now(conn: &mut SqliteConnection) -> Result<Millis, Fault> {
    let advanced = look(conn).await?;
    if let Some(anchor) = advanced.anchor {
        sqlx::query(sql!("clock/write_anchor"))
            .bind(anchor.boot_id)
            .bind(anchor.wall_ms)
            .bind(anchor.boot_ms)
            .bind(anchor.step.map(|step| step.by_ms))
            .bind(anchor.step.map(|step| step.seen_boot_ms))
            .execute(&mut *conn)
            .await?;
    }
    if advanced.back {
        shorten_leases(conn, advanced.now_ms).await?;
    }
    if let Some(detail) = advanced.anomaly {
        let seen_by = format!("sqlite clock, pid {}", std::process::id());
        record_anomaly(conn, advanced.now_ms, &seen_by, &detail).await?;
    }
    Ok(advanced.now_ms)
}

/// After a step back: a lease that its holder does not renew ends as soon as any other.
async fn shorten_leases(conn: &mut SqliteConnection, now: Millis) -> Result<(), Fault> {
    for statement in [sql!("clock/clamp_lease"), sql!("clock/clamp_sessions")] {
        sqlx::query(statement)
            .bind(now + LEASE_MS)
            .execute(&mut *conn)
            .await?;
    }
    sqlx::query(sql!("clock/return_outbox"))
        .execute(conn)
        .await?;
    Ok(())
}

/// The ledger's time inside a transaction that only reads.
pub(super) async fn peek(conn: &mut SqliteConnection) -> Result<Millis, Fault> {
    Ok(look(conn).await?.now_ms)
}

/// Keeps `detail` for operators.
pub(super) async fn record_anomaly(
    conn: &mut SqliteConnection,
    now: Millis,
    seen_by: &str,
    detail: &str,
) -> Result<(), Fault> {
    sqlx::query(sql!("clock/record_anomaly"))
        .bind(now)
        .bind(seen_by)
        .bind(detail)
        .execute(conn)
        .await?;
    Ok(())
}

async fn look(conn: &mut SqliteConnection) -> Result<Advanced, Fault> {
    let row = sqlx::query(sql!("clock/read_anchor"))
        .fetch_optional(conn)
        .await?;
    let anchor = match row {
        Some(row) => Some(Anchor {
            boot_id: row.value("boot_id")?,
            wall_ms: row.value("wall_ms")?,
            boot_ms: row.value("boot_ms")?,
            step: match (row.value("step_ms")?, row.value("step_boot_ms")?) {
                (Some(by_ms), Some(seen_boot_ms)) => Some(Step {
                    by_ms,
                    seen_boot_ms,
                }),
                _ => None,
            },
        }),
        None => None,
    };
    Ok(advance(anchor, read_host()?))
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place that reads the wall clock: it anchors the ledger's"
)]
fn read_host() -> Result<Reading<'static>, Fault> {
    let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let wall = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_err(std::io::Error::other)?;
    Ok(Reading {
        boot_id: boot_id()?,
        wall_ms: i64::try_from(wall.as_millis()).map_err(std::io::Error::other)?,
        boot_ms: boot.tv_sec * 1_000 + boot.tv_nsec / 1_000_000,
    })
}

fn boot_id() -> Result<&'static str, std::io::Error> {
    static BOOT_ID: OnceLock<String> = OnceLock::new();
    if let Some(id) = BOOT_ID.get() {
        return Ok(id);
    }
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(BOOT_ID.get_or_init(|| id.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: i64 = 1_750_000_000_000;

    fn at(wall_ms: i64, boot_ms: i64) -> Reading<'static> {
        Reading {
            boot_id: "boot-1",
            wall_ms,
            boot_ms,
        }
    }

    fn anchored() -> Anchor {
        advance(None, at(WALL, 5_000)).anchor.unwrap()
    }

    #[test]
    fn the_first_look_takes_the_wall_clock() {
        let first = advance(None, at(WALL, 5_000));
        assert_eq!((first.now_ms, first.anomaly), (WALL, None));
        assert_eq!(first.anchor.unwrap().boot_ms, 5_000);
    }

    #[test]
    fn time_is_the_anchor_plus_boot_time_and_nothing_is_written() {
        let later = advance(Some(anchored()), at(WALL + 7_900, 12_000));
        assert_eq!(
            later,
            Advanced {
                now_ms: WALL + 7_000,
                anchor: None,
                back: false,
                anomaly: None
            }
        );
    }

    #[test]
    fn the_anchor_moves_along_without_moving_time() {
        let moved = advance(Some(anchored()), at(WALL + 60_300, 65_000));
        assert_eq!(moved.now_ms, WALL + 60_000);
        let anchor = moved.anchor.unwrap();
        assert_eq!(
            (anchor.wall_ms, anchor.boot_ms, anchor.step),
            (WALL + 60_000, 65_000, None)
        );
    }

    #[test]
    fn a_step_that_goes_away_is_never_taken_over() {
        let hour = 3_600_000;
        let seen = advance(Some(anchored()), at(WALL + hour, 5_000));
        assert_eq!(seen.now_ms, WALL);
        let watched = seen.anchor.unwrap();
        assert_eq!(
            watched.step,
            Some(Step {
                by_ms: hour,
                seen_boot_ms: 5_000
            })
        );
        let gone = advance(Some(watched), at(WALL + 59_000, 64_000));
        assert_eq!((gone.now_ms, gone.anomaly), (WALL + 59_000, None));
        assert_eq!(gone.anchor.unwrap().step, None);
    }

    #[test]
    fn a_step_that_persists_is_taken_over_and_recorded() {
        for hour in [3_600_000, -3_600_000] {
            let watched = advance(Some(anchored()), at(WALL + hour, 5_000))
                .anchor
                .unwrap();
            let before = advance(Some(watched.clone()), at(WALL + hour + 59_999, 64_999));
            assert_eq!(
                before,
                Advanced {
                    now_ms: WALL + 59_999,
                    anchor: None,
                    back: false,
                    anomaly: None
                }
            );
            let after = advance(Some(watched), at(WALL + hour + 60_000, 65_000));
            assert_eq!(after.now_ms, WALL + hour + 60_000);
            assert_eq!(after.back, hour < 0);
            assert!(after.anomaly.unwrap().contains(&format!("{hour} ms")));
            let anchor = after.anchor.unwrap();
            assert_eq!((anchor.wall_ms, anchor.step), (WALL + hour + 60_000, None));
        }
    }

    #[test]
    fn a_second_step_starts_the_watch_again() {
        let watched = advance(Some(anchored()), at(WALL + 100_000, 5_000))
            .anchor
            .unwrap();
        let again = advance(Some(watched), at(WALL + 400_000, 45_000))
            .anchor
            .unwrap();
        assert_eq!(
            again.step,
            Some(Step {
                by_ms: 360_000,
                seen_boot_ms: 45_000
            })
        );
    }

    #[test]
    fn after_a_restart_time_follows_the_wall_but_never_goes_back() {
        let restarted = |wall_ms| Reading {
            boot_id: "boot-2",
            wall_ms,
            boot_ms: 300,
        };
        let later = advance(Some(anchored()), restarted(WALL + 90_000));
        assert_eq!((later.now_ms, later.anomaly), (WALL + 90_000, None));
        let behind = advance(Some(anchored()), restarted(WALL - 90_000));
        assert_eq!(behind.now_ms, WALL);
        assert!(behind.anomaly.unwrap().contains("90000 ms behind"));
        assert_eq!(behind.anchor.unwrap().boot_id, "boot-2");
    }
}
