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

    async fn renew_terms(&self, terms: &[Term], lease: Duration) -> Result<Vec<Renewed>> {
        let partitions: Vec<_> = terms.iter().map(|term| term.partition).collect();
        let epochs: Vec<_> = terms.iter().map(|term| term.epoch).collect();
        let term_ids: Vec<_> = terms.iter().map(|term| term.term_id).collect();
        let map_versions: Vec<_> = terms.iter().map(|term| term.map_version).collect();
        call!(self, "renew terms", |conn| {
            let renewed: Vec<i64> = sqlx::query_scalar(sql!("leadership/renew_terms"))
                .bind(&partitions)
                .bind(&epochs)
                .bind(&term_ids)
                .bind(&map_versions)
                .bind(row::micros(lease))
                .fetch_all(conn)
                .await?;
            let answer = |position: i64| {
                if renewed.contains(&position) {
                    Renewed::Renewed
                } else {
                    Renewed::Lost
                }
            };
            Ok((1..).take(terms.len()).map(answer).collect())
        })
    }

    async fn resign_terms(&self, terms: &[Term]) -> Result<()> {
        let partitions: Vec<_> = terms.iter().map(|term| term.partition).collect();
        let epochs: Vec<_> = terms.iter().map(|term| term.epoch).collect();
        let term_ids: Vec<_> = terms.iter().map(|term| term.term_id).collect();
        call!(self, "resign terms", |conn| {
            sqlx::query(sql!("leadership/resign_terms"))
                .bind(&partitions)
                .bind(&epochs)
                .bind(&term_ids)
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
