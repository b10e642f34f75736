//! Terms: bids, renewals, resignations.

use std::time::Duration;

use bellwether_schemas::limits::ERROR_TEXT_MAX;
use bellwether_schemas::{ids, text};
use sqlx::SqliteConnection;

use super::SqliteStore;
use super::clock::Millis;
use super::errors::Fault;
use super::row::{Columns, between, millis};
use crate::Result;
use crate::leadership::{Acquired, Bid, Leadership, Renewed, Term};

/// Whether `term` may write now.
pub(super) async fn in_force(
    conn: &mut SqliteConnection,
    now: Millis,
    term: &Term,
) -> Result<bool, Fault> {
    let row = sqlx::query(sql!("leadership/in_force"))
        .bind(term.partition)
        .bind(term.term_id)
        .bind(term.epoch)
        .bind(term.map_version)
        .bind(now)
        .fetch_optional(conn)
        .await?;
    Ok(row.is_some())
}

#[async_trait::async_trait]
impl Leadership for SqliteStore {
    async fn acquire_term(&self, bid: &Bid<'_>) -> Result<Acquired> {
        let bid = OwnBid {
            partition: bid.partition,
            map_version: bid.map_version,
            holder: text::clean(bid.holder, ERROR_TEXT_MAX).into_owned(),
            lease: bid.lease,
            zone_version: bid.zone_version.to_owned(),
        };
        self.writer
            .write("acquire a term", async move |conn, now| {
                acquire(conn, now, &bid).await
            })
            .await
    }

    async fn renew_terms(&self, terms: &[Term], lease: Duration) -> Result<Vec<Renewed>> {
        let terms = terms.to_vec();
        self.writer
            .write("renew terms", async move |conn, now| {
                let mut answers = Vec::with_capacity(terms.len());
                for term in &terms {
                    let renewed = sqlx::query(sql!("leadership/renew"))
                        .bind(term.partition)
                        .bind(term.term_id)
                        .bind(term.epoch)
                        .bind(term.map_version)
                        .bind(now)
                        .bind(now + millis(lease))
                        .execute(&mut *conn)
                        .await?;
                    answers.push(if renewed.rows_affected() == 1 {
                        Renewed::Renewed
                    } else {
                        Renewed::Lost
                    });
                }
                Ok(answers)
            })
            .await
    }

    async fn resign_terms(&self, terms: &[Term]) -> Result<()> {
        let terms = terms.to_vec();
        self.writer
            .write("resign terms", async move |conn, now| {
                for term in &terms {
                    for statement in [sql!("leadership/expire"), sql!("leadership/end_term")] {
                        sqlx::query(statement)
                            .bind(term.partition)
                            .bind(term.term_id)
                            .bind(term.epoch)
                            .bind(now)
                            .execute(&mut *conn)
                            .await?;
                    }
                }
                Ok(())
            })
            .await
    }
}

struct OwnBid {
    partition: i32,
    map_version: i64,
    holder: String,
    lease: Duration,
    zone_version: String,
}

async fn acquire(
    conn: &mut SqliteConnection,
    now: Millis,
    bid: &OwnBid,
) -> Result<Acquired, Fault> {
    let Some(row) = sqlx::query(sql!("leadership/read_lease"))
        .bind(bid.partition)
        .fetch_optional(&mut *conn)
        .await?
    else {
        return Ok(Acquired::LeaseMissing);
    };
    if row.value::<i64>("map_version")? != bid.map_version {
        return Ok(Acquired::MapChanged);
    }
    // Versions of the zone data (`2026a`) order like their text.
    let required: String = row.value("zone_version")?;
    if required > bid.zone_version {
        return Ok(Acquired::ZoneDataOlder { required });
    }
    let expires_at: Millis = row.value("expires_at")?;
    if expires_at > now {
        let holder: Option<String> = row.value("holder")?;
        return Ok(Acquired::Held {
            holder: holder.unwrap_or_default(),
            remaining: between(now, expires_at),
        });
    }
    let term = Term {
        partition: bid.partition,
        epoch: row.value::<i64>("epoch")? + 1,
        term_id: ids::token(),
        map_version: bid.map_version,
    };
    start(conn, now, bid, &term).await?;
    Ok(Acquired::Won(term))
}

/// Makes `term` the one in force; the last one ends where it starts.
async fn start(
    conn: &mut SqliteConnection,
    now: Millis,
    bid: &OwnBid,
    term: &Term,
) -> Result<(), Fault> {
    sqlx::query(sql!("leadership/take_lease"))
        .bind(term.partition)
        .bind(term.epoch)
        .bind(term.term_id)
        .bind(&bid.holder)
        .bind(&bid.zone_version)
        .bind(now)
        .bind(now + millis(bid.lease))
        .execute(&mut *conn)
        .await?;
    sqlx::query(sql!("leadership/end_terms"))
        .bind(term.partition)
        .bind(now)
        .execute(&mut *conn)
        .await?;
    sqlx::query(sql!("leadership/start_term"))
        .bind(term.partition)
        .bind(term.epoch)
        .bind(term.term_id)
        .bind(&bid.holder)
        .bind(now)
        .execute(conn)
        .await?;
    Ok(())
}
