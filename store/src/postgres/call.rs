//! How a statement reaches the database: bounded in time, repeated where the server says so.

use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Postgres, Transaction};
use tokio::time::error::Elapsed;

use super::{PgStore, errors};
use crate::Result;

/// How often a statement that gave way to another transaction is repeated.
const REPEATS_MAX: u32 = 3;

/// `call!(store, "verb phrase", |conn| work)`: runs `work`, an expression that awaits nothing
/// but the database and yields a `sqlx::Result`, on a connection of the pool; yields a
/// [`crate::Result`]. Ends at the latest after the call's time-out. `work` may run more than
/// once: up to three times more when the server says that it rolled it back in favour of
/// another transaction.
///
/// A macro, because the futures of async closures that borrow cannot be shown to be `Send`.
macro_rules! call {
    ($store:expr, $op:expr, |$conn:ident| $work:expr) => {{
        use tracing::Instrument as _;

        let store: &$crate::postgres::PgStore = &$store;
        let op: &'static str = $op;
        let mut repeats = 0;
        loop {
            let answer = match store.pool.acquire().await {
                Ok(mut held) => {
                    let work = async {
                        let $conn: &mut sqlx::PgConnection = &mut held;
                        $work
                    };
                    let work = work.instrument(tracing::debug_span!("ledger", op));
                    let answer = tokio::time::timeout(store.call_timeout, work).await;
                    $crate::postgres::call::settle(held, answer, store.call_timeout)
                }
                Err(error) => Err(error),
            };
            match answer {
                Ok(done) => break Ok(done),
                Err(error) => {
                    let again = store.repeats(op, repeats, error).await;
                    if let Err(error) = again {
                        break Err(error);
                    }
                    repeats += 1;
                }
            }
        }
    }};
}
pub(super) use call;

/// Gives the connection back; one without an answer is closed instead: in the pool it would
/// wait for the old answer first, for ever if none comes.
pub(super) fn settle<T>(
    mut held: PoolConnection<Postgres>,
    answer: Result<sqlx::Result<T>, Elapsed>,
    waited: Duration,
) -> sqlx::Result<T> {
    answer.unwrap_or_else(|_| {
        held.close_on_drop();
        Err(errors::no_answer(waited))
    })
}

impl PgStore {
    /// Waits before the next repeat, or says that `error` is final.
    pub(super) async fn repeats(
        &self,
        op: &'static str,
        repeats: u32,
        error: sqlx::Error,
    ) -> Result<()> {
        if repeats == REPEATS_MAX || !errors::gave_way(&error) {
            return Err(errors::error(op, error));
        }
        tracing::debug!(op, repeats, %error, "gave way to another transaction, repeating");
        tokio::time::sleep(Duration::from_millis(fastrand::u64(1..=10 << repeats))).await;
        Ok(())
    }
}

/// Ends a transaction by what became of its work; rolled back explicitly, so that its locks
/// end at once.
pub(super) async fn finish<T>(
    tx: Transaction<'_, Postgres>,
    done: sqlx::Result<T>,
) -> sqlx::Result<T> {
    match done {
        Ok(done) => tx.commit().await.map(|()| done),
        Err(error) => {
            // The first error says what went wrong; a failed rollback ends the connection.
            if let Err(rollback) = tx.rollback().await {
                tracing::debug!(%rollback, "rolling back failed too");
            }
            Err(error)
        }
    }
}
