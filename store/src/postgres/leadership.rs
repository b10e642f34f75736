//! Terms and their leases.

use std::time::Duration;

use bellwether_schemas::{ids, limits, text};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::{PgStore, call, row, sql};
use crate::Result;
use crate::leadership::{Acquired, Bid, Leadership, Renewed, Term};

#[async_trait::async_trait]
impl Leadership for PgStore {
    async fn acquire_term(&self, bid: &Bid<'_>) -> Result<Acquired> {
        let term_id = ids::token();
        let holder = text::clean(bid.holder, limits::ERROR_TEXT_MAX);
        call!(self, "acquire a term", |conn| {
            let row = sqlx::query(sql!("leadership/acquire_term"))
                .bind(bid.partition)
                .bind(bid.map_version)
                .bind(bid.zone_version)
                .bind(term_id)
                .bind(&*holder)
                .bind(row::micros(bid.lease))
                .fetch_optional(conn)
                .await?;
            let Some(row) = row else {
                return Ok(Acquired::LeaseMissing);
            };
            Ok(match row.try_get("won_epoch")? {
                Some(epoch) => Acquired::Won(Term {
                    partition: bid.partition,
                    epoch,
                    term_id,
                    map_version: bid.map_version,
                }),
                None => refusal(&row)?,
            })
        })
    }

    async fn renew_term(&self, term: &Term, lease: Duration) -> Result<Renewed> {
        call!(self, "renew a term", |conn| {
            let done = sqlx::query(sql!("leadership/renew_term"))
                .bind(term.partition)
                .bind(term.epoch)
                .bind(term.term_id)
                .bind(term.map_version)
                .bind(row::micros(lease))
                .execute(conn)
                .await?;
            Ok(if done.rows_affected() == 1 {
                Renewed::Renewed
            } else {
                Renewed::Lost
            })
        })
    }

    async fn resign_term(&self, term: &Term) -> Result<()> {
        call!(self, "resign a term", |conn| {
            sqlx::query(sql!("leadership/resign_term"))
                .bind(term.partition)
                .bind(term.epoch)
                .bind(term.term_id)
                .execute(conn)
                .await
                .map(drop)
        })
    }
}

fn refusal(row: &PgRow) -> sqlx::Result<Acquired> {
    if row.try_get("map_changed")? {
        return Ok(Acquired::MapChanged);
    }
    if row.try_get("zone_older")? {
        return Ok(Acquired::ZoneDataOlder {
            required: row.try_get("required")?,
        });
    }
    Ok(Acquired::Held {
        holder: row.try_get("holder")?,
        remaining: row::computed_us(row, "remaining_us")?,
    })
}
