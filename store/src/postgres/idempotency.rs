//! Idempotency keys of business effects.

use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{Connection, Row};
use uuid::Uuid;

use super::enqueue_in::{enter, leave};
use super::{PgStore, call, check, errors, finish, row, sql};
use crate::grants::Role;
use crate::idempotency::{Acquisition, Idempotency, Settled, Settling, Token, check_ask};
use crate::{Error, ErrorKind, Result};

/// How often a key may be given up between two looks at it.
const RACES_MAX: u32 = 5;

#[async_trait::async_trait]
impl Idempotency for PgStore {
    async fn try_acquire(&self, key: &str, id: Uuid, lease: Duration) -> Result<Acquisition> {
        const OP: &str = "acquire an idempotency key";
        check_ask(OP, key, lease)?;
        for _ in 0..RACES_MAX {
            let answer = call!(self, OP, |conn| acquire(conn, key, id, lease).await)?;
            if let Some(answer) = answer {
                return Ok(answer);
            }
        }
        Err(Error::new(
            OP,
            ErrorKind::Conflict,
            "others keep taking it and giving it up",
        ))
    }

    async fn settle_key(&self, key: &str, token: Token, settling: Settling<'_>) -> Result<Settled> {
        const OP: &str = "settle an idempotency key";
        check::key(OP, key)?;
        check::result(OP, settling.result().unwrap_or_default())?;
        call!(self, OP, |conn| settle(conn, key, token, settling).await)
    }

    async fn extend_key(&self, key: &str, token: Token, lease: Duration) -> Result<Settled> {
        const OP: &str = "extend the lease of an idempotency key";
        check_ask(OP, key, lease)?;
        call!(self, OP, |conn| {
            let done = sqlx::query(sql!("idempotency/extend"))
                .bind(key)
                .bind(token.id)
                .bind(token.generation)
                .bind(row::micros(lease))
                .execute(conn)
                .await?;
            Ok(settled(done.rows_affected()))
        })
    }

    async fn forget_idempotency(&self, retention: Duration, limit: u32) -> Result<u64> {
        call!(self, "forget settled idempotency keys", |conn| {
            let done = sqlx::query(sql!("idempotency/forget"))
                .bind(row::micros(retention))
                .bind(i64::from(limit))
                .execute(conn)
                .await?;
            Ok(done.rows_affected())
        })
    }
}

/// [`crate::idempotency::mark_completed_in`] on a connection of the caller's; `schema` is the
/// ledger's.
pub async fn mark_completed_in(
    conn: &mut PgConnection,
    schema: &str,
    key: &str,
    token: Token,
    result: &[u8],
) -> Result<Settled> {
    const OP: &str = "mark an idempotency key in the caller's transaction";
    check::schema(schema)?;
    check::key(OP, key)?;
    check::result(OP, result)?;
    let work = async {
        let mut savepoint = conn.begin().await?;
        let marked = async {
            let before = enter(&mut savepoint, schema).await?;
            let settled = settle(&mut savepoint, key, token, Settling::Completed(result)).await?;
            leave(&mut savepoint, before).await?;
            Ok(settled)
        };
        let marked = marked.await;
        finish(savepoint, marked).await
    };
    work.await
        .map_err(|error| errors::of_role(OP, Some(Role::Worker), error))
}

/// None = the key was made or forgotten between two looks.
///
/// A look first: who finds the key done or owned locks nothing, and waits for nobody's transaction.
async fn acquire(
    conn: &mut PgConnection,
    key: &str,
    id: Uuid,
    lease: Duration,
) -> sqlx::Result<Option<Acquisition>> {
    let standing = standing(&mut *conn, key, id).await?;
    let free = match standing {
        Some(Standing::Known(known)) => return Ok(Some(known)),
        Some(Standing::Free) => true,
        None => false,
    };
    let ask = if free {
        sql!("idempotency/take_over")
    } else {
        sql!("idempotency/acquire")
    };
    let won = sqlx::query_scalar(ask)
        .bind(key)
        .bind(id)
        .bind(row::micros(lease))
        .fetch_optional(&mut *conn)
        .await?;
    if let Some(generation) = won {
        return Ok(Some(Acquisition::Acquired(Token { generation, id })));
    }
    Ok(match self::standing(conn, key, id).await? {
        Some(Standing::Known(known)) => Some(known),
        // Somebody's transaction holds it: it is marked as completed there, or taken over.
        Some(Standing::Free) => Some(Acquisition::InProgress {
            remaining: Duration::ZERO,
        }),
        None => None,
    })
}

/// How a key stands that is there.
enum Standing {
    /// The answer to whoever asks.
    Known(Acquisition),
    /// Released, or its lease has run out.
    Free,
}

async fn standing(conn: &mut PgConnection, key: &str, id: Uuid) -> sqlx::Result<Option<Standing>> {
    let row = sqlx::query(sql!("idempotency/standing"))
        .bind(key)
        .fetch_optional(conn)
        .await?;
    let Some(row) = row else {
        return Ok(None);
    };
    let token = Token {
        generation: row.try_get("generation")?,
        id: row.try_get("token")?,
    };
    let remaining = row::computed_us(&row, "remaining_us")?;
    Ok(Some(match row.try_get("state")? {
        "completed" => Standing::Known(Acquisition::Completed {
            result: row.try_get::<Option<_>, _>("result")?.unwrap_or_default(),
        }),
        // The reply to this very call was lost.
        "in_progress" if token.id == id => Standing::Known(Acquisition::Acquired(token)),
        "in_progress" if remaining > Duration::ZERO => {
            Standing::Known(Acquisition::InProgress { remaining })
        }
        _ => Standing::Free,
    }))
}

async fn settle(
    conn: &mut PgConnection,
    key: &str,
    token: Token,
    settling: Settling<'_>,
) -> sqlx::Result<Settled> {
    let done = sqlx::query(sql!("idempotency/settle"))
        .bind(key)
        .bind(token.id)
        .bind(token.generation)
        .bind(settling.state())
        .bind(settling.result())
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
