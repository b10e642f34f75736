//! The roster of tickers, and the change of the number of partitions.

use std::time::Duration;

use bellwether_schemas::limits::ERROR_TEXT_MAX;
use bellwether_schemas::text;
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::SqliteStore;
use super::clock::Millis;
use super::errors::Fault;
use super::row::{Columns, between, millis};
use crate::partitions::{
    CheckIn, FORGET_AFTER, Grown, Lease, Partitions, Roster, TickerView, check_count, settled,
};
use crate::{ErrorKind, Result};

#[async_trait::async_trait]
impl Partitions for SqliteStore {
    async fn check_in(&self, check_in: &CheckIn<'_>, seen_within: Duration) -> Result<Roster> {
        let (id, map_version, bids) = (check_in.id, check_in.map_version, check_in.bids);
        let holder = text::clean(check_in.holder, ERROR_TEXT_MAX).into_owned();
        let (host, pid) = (check_in.host.to_owned(), i64::from(check_in.pid));
        let version = check_in.version.to_owned();
        self.writer
            .write("check in", async move |conn, now| {
                sqlx::query(sql!("partitions/forget"))
                    .bind(now - millis(FORGET_AFTER))
                    .bind(id)
                    .execute(&mut *conn)
                    .await?;
                sqlx::query(sql!("partitions/check_in"))
                    .bind(id)
                    .bind(&holder)
                    .bind(&host)
                    .bind(pid)
                    .bind(&version)
                    .bind(map_version)
                    .bind(bids)
                    .bind(now)
                    .execute(&mut *conn)
                    .await?;
                roster(conn, now, seen_within).await
            })
            .await
    }

    async fn check_out(&self, id: Uuid) -> Result<()> {
        self.writer
            .write("check out", async move |conn, now| {
                sqlx::query(sql!("partitions/check_out"))
                    .bind(id)
                    .bind(now)
                    .execute(conn)
                    .await?;
                Ok(())
            })
            .await
    }

    async fn roster(&self, seen_within: Duration) -> Result<Roster> {
        self.writer
            .read("read the partitions", async move |conn, now| {
                roster(conn, now, seen_within).await
            })
            .await
    }

    async fn schedules_by_partition(&self) -> Result<Vec<(i32, u64)>> {
        self.writer
            .read("count the schedules of each partition", async |conn, _| {
                let rows = sqlx::query(sql!("partitions/schedules"))
                    .fetch_all(conn)
                    .await?;
                rows.iter()
                    .map(|row| Ok((row.value("partition")?, row.number("schedules")?)))
                    .collect()
            })
            .await
    }

    async fn grow_partitions(&self, to: u32) -> Result<Grown> {
        const OP: &str = "change the number of partitions";
        check_count(OP, to)?;
        let grown = self
            .writer
            .write(OP, async move |conn, now| grow(conn, now, to).await)
            .await;
        match grown {
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(Grown::Busy),
            grown => grown,
        }
    }
}

async fn roster(
    conn: &mut SqliteConnection,
    now: Millis,
    seen_within: Duration,
) -> Result<Roster, Fault> {
    let map = sqlx::query(sql!("ledger")).fetch_one(&mut *conn).await?;
    let leases = sqlx::query(sql!("partitions/leases"))
        .fetch_all(&mut *conn)
        .await?;
    let tickers = sqlx::query(sql!("partitions/tickers"))
        .bind(now - millis(seen_within))
        .bind(now)
        .fetch_all(conn)
        .await?;
    let leases = leases.iter().map(|row| lease(row, now));
    let tickers = tickers.iter().map(|row| ticker(row, now));
    Ok(Roster {
        partition_count: map.number("partition_count")?,
        map_version: map.value("map_version")?,
        leases: leases.collect::<Result<_, Fault>>()?,
        tickers: tickers.collect::<Result<_, Fault>>()?,
    })
}

fn lease(row: &SqliteRow, now: Millis) -> Result<Lease, Fault> {
    let expires_at: Millis = row.value("expires_at")?;
    Ok(Lease {
        partition: row.value("partition")?,
        map_version: row.value("map_version")?,
        epoch: row.value("epoch")?,
        term_id: row.value("term_id")?,
        zone_version: row.value("zone_version")?,
        holder: row.value("holder")?,
        remaining: (expires_at > now).then(|| between(now, expires_at)),
    })
}

fn ticker(row: &SqliteRow, now: Millis) -> Result<TickerView, Fault> {
    Ok(TickerView {
        holder: row.value("holder")?,
        host: row.value("host")?,
        pid: row.value("pid")?,
        version: row.value("version")?,
        map_version: row.value("map_version")?,
        bids: row.value("bids")?,
        started_at: row.instant("started_at")?,
        seen_ago: between(row.value("seen_at")?, now),
    })
}

async fn grow(conn: &mut SqliteConnection, now: Millis, to: u32) -> Result<Grown, Fault> {
    let map = sqlx::query(sql!("ledger")).fetch_one(&mut *conn).await?;
    let from = map.number("partition_count")?;
    if let Some(settled) = settled(from, to) {
        return Ok(settled);
    }
    let holders: Vec<String> = sqlx::query_scalar(sql!("partitions/old_tickers"))
        .bind(now)
        .fetch_all(&mut *conn)
        .await?;
    if !holders.is_empty() {
        return Ok(Grown::OldTickers { holders });
    }
    let moved = sqlx::query(sql!("partitions/move_schedules"))
        .bind(to)
        .execute(&mut *conn)
        .await?;
    let map_version = map.value::<i64>("map_version")? + 1;
    sqlx::query(sql!("partitions/end_terms"))
        .bind(now)
        .execute(&mut *conn)
        .await?;
    sqlx::query(sql!("partitions/expire_leases"))
        .bind(map_version)
        .bind(now)
        .execute(&mut *conn)
        .await?;
    sqlx::query(sql!("partitions/add_leases"))
        .bind(to)
        .bind(map_version)
        .bind(now)
        .execute(&mut *conn)
        .await?;
    sqlx::query(sql!("partitions/set_map"))
        .bind(to)
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
