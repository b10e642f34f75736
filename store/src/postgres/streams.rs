//! What the ledger remembers of the broker's streams.

use chrono::{DateTime, SubsecRound, Utc};
use sqlx::Row;

use super::{PgStore, call, row, sql};
use crate::Result;
use crate::outbox::StreamMark;
use crate::streams::{Moved, Streams};

/// The broker counts nanoseconds, the ledger keeps milliseconds: on both stores the same, and
/// enough to tell two streams of one name apart.
fn kept(created: DateTime<Utc>) -> DateTime<Utc> {
    created.trunc_subsecs(3)
}

/// Sequences of a stream stay far below the edge of `bigint`.
fn seq(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[async_trait::async_trait]
impl Streams for PgStore {
    async fn stream_mark(&self, stream: &str) -> Result<Option<StreamMark>> {
        call!(self, "read a stream's mark", |conn| {
            let row = sqlx::query(sql!("streams/mark"))
                .bind(stream)
                .fetch_optional(conn)
                .await?;
            row.map(|row| {
                Ok(StreamMark {
                    created: row.try_get("created")?,
                    last_seq: row::total(&row, "last_seq")?,
                    seen_at: row.try_get("seen_at")?,
                })
            })
            .transpose()
        })
    }

    async fn move_stream(
        &self,
        stream: &str,
        found: Option<&StreamMark>,
        created: DateTime<Utc>,
        last_seq: u64,
    ) -> Result<Moved> {
        call!(self, "move a stream's mark", |conn| {
            let query = match found {
                None => sqlx::query(sql!("streams/first")).bind(stream),
                Some(found) => sqlx::query(sql!("streams/move"))
                    .bind(stream)
                    .bind(kept(found.created))
                    .bind(seq(found.last_seq)),
            };
            let done = query
                .bind(kept(created))
                .bind(seq(last_seq))
                .execute(conn)
                .await?;
            Ok(if done.rows_affected() == 1 {
                Moved::Moved
            } else {
                Moved::Raced
            })
        })
    }

    async fn note_puback(&self, stream: &str, created: DateTime<Utc>, number: u64) -> Result<()> {
        call!(self, "note a confirmed sequence", |conn| {
            sqlx::query(sql!("streams/note_puback"))
                .bind(stream)
                .bind(kept(created))
                .bind(seq(number))
                .execute(conn)
                .await
        })
        .map(drop)
    }
}
