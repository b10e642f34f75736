//! What the ledger remembers of the broker's streams. `created` is kept in milliseconds.

use chrono::{DateTime, Utc};

use super::SqliteStore;
use super::row::Columns;
use crate::outbox::StreamMark;
use crate::streams::{Moved, Streams};
use crate::{Error, ErrorKind, Result};

fn sequence(op: &'static str, seq: u64) -> Result<i64> {
    i64::try_from(seq).map_err(|error| Error::new(op, ErrorKind::Invalid, error))
}

#[async_trait::async_trait]
impl Streams for SqliteStore {
    async fn stream_mark(&self, stream: &str) -> Result<Option<StreamMark>> {
        let stream = stream.to_owned();
        self.writer
            .read("read a stream's mark", async move |conn, _| {
                let row = sqlx::query(sql!("streams/mark"))
                    .bind(&stream)
                    .fetch_optional(conn)
                    .await?;
                let Some(row) = row else { return Ok(None) };
                Ok(Some(StreamMark {
                    created: row.instant("created")?,
                    last_seq: row.number("last_seq")?,
                    seen_at: row.instant("seen_at")?,
                }))
            })
            .await
    }

    async fn move_stream(
        &self,
        stream: &str,
        found: Option<&StreamMark>,
        created: DateTime<Utc>,
        last_seq: u64,
    ) -> Result<Moved> {
        const OP: &str = "move a stream's mark";
        let last_seq = sequence(OP, last_seq)?;
        let found = match found {
            Some(mark) => Some((
                mark.created.timestamp_millis(),
                sequence(OP, mark.last_seq)?,
            )),
            None => None,
        };
        let stream = stream.to_owned();
        self.writer
            .write(OP, async move |conn, now| {
                let statement = if found.is_some() {
                    sql!("streams/move")
                } else {
                    sql!("streams/first_seen")
                };
                let mut query = sqlx::query(statement)
                    .bind(&stream)
                    .bind(created.timestamp_millis())
                    .bind(last_seq)
                    .bind(now);
                if let Some((created, last_seq)) = found {
                    query = query.bind(created).bind(last_seq);
                }
                let moved = query.execute(conn).await?;
                Ok(if moved.rows_affected() == 1 {
                    Moved::Moved
                } else {
                    Moved::Raced
                })
            })
            .await
    }

    async fn note_puback(&self, stream: &str, created: DateTime<Utc>, seq: u64) -> Result<()> {
        const OP: &str = "note a PubAck";
        let (stream, seq) = (stream.to_owned(), sequence(OP, seq)?);
        self.writer
            .write(OP, async move |conn, _| {
                sqlx::query(sql!("streams/note"))
                    .bind(&stream)
                    .bind(created.timestamp_millis())
                    .bind(seq)
                    .execute(conn)
                    .await?;
                Ok(())
            })
            .await
    }
}
