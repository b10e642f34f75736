//! The roster of tickers, and the change of the number of partitions.

use std::time::Duration;

use bellwether_schemas::{limits, text};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Connection, Row};
use tokio::time::timeout;
use uuid::Uuid;

use super::{PgStore, call, errors, finish, row, sql};
use crate::Result;
use crate::partitions::{
    CheckIn, FORGET_AFTER, Grown, Lease, Partitions, Roster, TickerView, check_count, settled,
};

/// Longest statement of a change of the map: all schedules move. Planning rests meanwhile.
const STATEMENT_MAX: Duration = Duration::from_mins(1);

/// Longest change of the map as a whole, waits for locks included.
const GROW_MAX: Duration = Duration::from_secs(90);

#[async_trait::async_trait]
impl Partitions for PgStore {
    async fn check_in(&self, check_in: &CheckIn<'_>, seen_within: Duration) -> Result<Roster> {
        let holder = text::clean(check_in.holder, limits::ERROR_TEXT_MAX);
        call!(self, "check in", |conn| {
            sqlx::query(sql!("partitions/check_in"))
                .bind(check_in.id)
                .bind(&*holder)
                .bind(check_in.host)
                .bind(i32::try_from(check_in.pid).unwrap_or(i32::MAX))
                .bind(check_in.version)
                .bind(check_in.map_version)
                .bind(check_in.bids)
                .bind(row::micros(FORGET_AFTER))
                .execute(&mut *conn)
                .await?;
            roster(conn, seen_within).await
        })
    }

    async fn check_out(&self, id: Uuid) -> Result<()> {
        call!(self, "check out", |conn| {
            sqlx::query(sql!("partitions/check_out"))
                .bind(id)
                .execute(conn)
                .await
                .map(drop)
        })
    }

    async fn roster(&self, seen_within: Duration) -> Result<Roster> {
        call!(self, "read the partitions", |conn| {
            roster(conn, seen_within).await
        })
    }

    async fn schedules_by_partition(&self) -> Result<Vec<(i32, u64)>> {
        call!(self, "count the schedules of each partition", |conn| {
            let rows = sqlx::query(sql!("partitions/schedules"))
                .fetch_all(conn)
                .await?;
            rows.iter()
                .map(|row| Ok((row.try_get("partition")?, row::total(row, "schedules")?)))
                .collect()
        })
    }

    async fn grow_partitions(&self, to: u32) -> Result<Grown> {
        const OP: &str = "change the number of partitions";
        check_count(OP, to)?;
        let mut conn = self
            .pool
            .acquire()
            .await
            .map_err(|error| errors::error(OP, error))?;
        let work = async {
            let mut tx = conn.begin().await?;
            let done = grow(&mut tx, to).await;
            finish(tx, done).await
        };
        let answer = timeout(GROW_MAX, work).await;
        match super::call::settle(conn, answer, GROW_MAX) {
            Err(error) if errors::lock_timeout(&error) || errors::gave_way(&error) => {
                Ok(Grown::Busy)
            }
            answer => answer.map_err(|error| errors::of_role(OP, self.role, error)),
        }
    }
}

async fn roster(conn: &mut PgConnection, seen_within: Duration) -> sqlx::Result<Roster> {
    let rows = sqlx::query(sql!("partitions/leases"))
        .fetch_all(&mut *conn)
        .await?;
    let map = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    let tickers = sqlx::query(sql!("partitions/tickers"))
        .bind(row::micros(seen_within))
        .fetch_all(conn)
        .await?;
    let leases: sqlx::Result<Vec<Option<Lease>>> = rows.iter().map(lease).collect();
    Ok(Roster {
        partition_count: row::count(map, "partition_count")?,
        map_version: map.try_get("map_version")?,
        leases: leases?.into_iter().flatten().collect(),
        tickers: tickers.iter().map(ticker).collect::<sqlx::Result<_>>()?,
    })
}

fn lease(row: &PgRow) -> sqlx::Result<Option<Lease>> {
    let Some(partition) = row.try_get("partition")? else {
        return Ok(None);
    };
    let remaining: Option<i64> = row.try_get("remaining_us")?;
    Ok(Some(Lease {
        partition,
        map_version: row.try_get("lease_map_version")?,
        epoch: row.try_get("epoch")?,
        term_id: row.try_get("term_id")?,
        zone_version: row.try_get("zone_version")?,
        holder: row.try_get("holder")?,
        remaining: remaining
            .map(|_| row::computed_us(row, "remaining_us"))
            .transpose()?,
    }))
}

fn ticker(row: &PgRow) -> sqlx::Result<TickerView> {
    Ok(TickerView {
        holder: row.try_get("holder")?,
        host: row.try_get("host")?,
        pid: row.try_get::<i32, _>("pid")?.into(),
        version: row.try_get("version")?,
        map_version: row.try_get("map_version")?,
        bids: row.try_get("bids")?,
        started_at: row::instant(row, "started_at")?,
        seen_ago: row::computed_us(row, "seen_us")?,
    })
}

/// Inside a transaction. The map is locked before the leases, and those in their order.
async fn grow(conn: &mut PgConnection, to: u32) -> sqlx::Result<Grown> {
    sqlx::query(sql!("partitions/patience"))
        .bind(STATEMENT_MAX.as_millis().to_string())
        .execute(&mut *conn)
        .await?;
    let map = sqlx::query(sql!("partitions/lock_ledger"))
        .fetch_one(&mut *conn)
        .await?;
    let from = row::count(&map, "partition_count")?;
    if let Some(settled) = settled(from, to) {
        return Ok(settled);
    }
    sqlx::query(sql!("partitions/lock_leases"))
        .execute(&mut *conn)
        .await?;
    // From here on each statement sees what was written before the locks were ours.
    let holders: Vec<String> = sqlx::query_scalar(sql!("partitions/old_tickers"))
        .fetch_all(&mut *conn)
        .await?;
    if !holders.is_empty() {
        return Ok(Grown::OldTickers { holders });
    }
    let moved = sqlx::query(sql!("partitions/move_schedules"))
        .bind(row::int(to))
        .execute(&mut *conn)
        .await?;
    let map_version = map.try_get::<i64, _>("map_version")? + 1;
    sqlx::query(sql!("partitions/new_map"))
        .bind(row::int(to))
        .bind(map_version)
        .execute(conn)
        .await?;
    Ok(Grown::Grown {
        from,
        to,
        map_version,
        moved: moved.rows_affected(),
    })
}
