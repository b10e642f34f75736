//! Idempotency keys of business effects.

use std::time::Duration;

use sqlx::SqliteConnection;
use uuid::Uuid;

use super::clock::Millis;
use super::enqueue_in::in_savepoint;
use super::errors::Fault;
use super::row::{Columns, between, millis};
use super::{SqliteStore, check};
use crate::Result;
use crate::idempotency::{Acquisition, Idempotency, Settled, Settling, Token, check_ask};

#[async_trait::async_trait]
impl Idempotency for SqliteStore {
    async fn try_acquire(&self, key: &str, id: Uuid, lease: Duration) -> Result<Acquisition> {
        const OP: &str = "acquire an idempotency key";
        check_ask(OP, key, lease)?;
        let key = key.to_owned();
        self.writer
            .write(OP, async move |conn, now| {
                acquire(conn, now, &key, id, lease).await
            })
            .await
    }

    async fn settle_key(&self, key: &str, token: Token, settling: Settling<'_>) -> Result<Settled> {
        const OP: &str = "settle an idempotency key";
        check::key(OP, key)?;
        check::result(OP, settling.result().unwrap_or_default())?;
        let (key, state) = (key.to_owned(), settling.state());
        let result = settling.result().map(<[u8]>::to_vec);
        self.writer
            .write(OP, async move |conn, now| {
                settle(conn, now, &key, token, state, result.as_deref()).await
            })
            .await
    }

    async fn extend_key(&self, key: &str, token: Token, lease: Duration) -> Result<Settled> {
        const OP: &str = "extend the lease of an idempotency key";
        check_ask(OP, key, lease)?;
        let key = key.to_owned();
        self.writer
            .write(OP, async move |conn, now| {
                let done = sqlx::query(sql!("idempotency/extend"))
                    .bind(&key)
                    .bind(token.id)
                    .bind(token.generation)
                    .bind(now + millis(lease))
                    .execute(conn)
                    .await?;
                Ok(settled(done.rows_affected()))
            })
            .await
    }

    async fn forget_idempotency(&self, retention: Duration, limit: u32) -> Result<u64> {
        self.writer
            .write("forget settled idempotency keys", async move |conn, now| {
                let done = sqlx::query(sql!("idempotency/forget"))
                    .bind(now - millis(retention))
                    .bind(limit)
                    .execute(conn)
                    .await?;
                Ok(done.rows_affected())
            })
            .await
    }
}

/// [`crate::idempotency::mark_completed_in`] on a connection of the caller's.
pub async fn mark_completed_in(
    conn: &mut SqliteConnection,
    key: &str,
    token: Token,
    result: &[u8],
) -> Result<Settled> {
    const OP: &str = "mark an idempotency key in the caller's transaction";
    check::key(OP, key)?;
    check::result(OP, result)?;
    let state = Settling::Completed(result).state();
    let marked = in_savepoint(conn, async |conn, now| {
        settle(conn, now, key, token, state, Some(result)).await
    });
    marked.await.map_err(|fault| fault.of(OP))
}

async fn acquire(
    conn: &mut SqliteConnection,
    now: Millis,
    key: &str,
    id: Uuid,
    lease: Duration,
) -> Result<Acquisition, Fault> {
    let won = sqlx::query(sql!("idempotency/acquire"))
        .bind(key)
        .bind(id)
        .bind(now)
        .bind(now + millis(lease))
        .fetch_optional(&mut *conn)
        .await?;
    if let Some(won) = won {
        let generation = won.value("generation")?;
        return Ok(Acquisition::Acquired(Token { generation, id }));
    }
    let standing = sqlx::query(sql!("idempotency/standing"))
        .bind(key)
        .fetch_one(conn)
        .await?;
    let token = Token {
        generation: standing.value("generation")?,
        id: standing.value("token")?,
    };
    Ok(match standing.value::<&str>("state")? {
        "completed" => Acquisition::Completed {
            result: standing.value::<Option<_>>("result")?.unwrap_or_default(),
        },
        // The reply to this very call was lost.
        "in_progress" if token.id == id => Acquisition::Acquired(token),
        "in_progress" => Acquisition::InProgress {
            remaining: between(now, standing.value("expires_at")?),
        },
        other => return Err(Fault::Corrupt(format!("{other:?} is no state of a key"))),
    })
}

async fn settle(
    conn: &mut SqliteConnection,
    now: Millis,
    key: &str,
    token: Token,
    state: &str,
    result: Option<&[u8]>,
) -> Result<Settled, Fault> {
    let done = sqlx::query(sql!("idempotency/settle"))
        .bind(key)
        .bind(token.id)
        .bind(token.generation)
        .bind(state)
        .bind(result)
        .bind(now)
        .execute(conn)
        .await?;
    Ok(settled(done.rows_affected()))
}

const fn settled(rows: u64) -> Settled {
    if rows == 1 {
        Settled::Done
    } else {
        Settled::Fenced
    }
}
