//! How a statement reaches the database: bounded in time, repeated where the server says so.

use std::time::Duration;

use bellwether_telemetry::metrics;
use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, Postgres, Transaction};
use tokio::time::Instant;
use tokio::time::error::Elapsed;

use super::{PgStore, errors};
use crate::{Result, abandoned};

/// A call that takes this long, the wait for a connection included, is worth a line of the log.
const SLOW: Duration = Duration::from_secs(1);

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
            let began = tokio::time::Instant::now();
            let answer = match store.pool.acquire().await {
                Ok(conn) => {
                    let mut held = $crate::postgres::call::Held::from(conn);
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
            $crate::postgres::call::tell_if_slow(op, began.elapsed());
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

/// A connection of the pool that goes back there only once its answer has come. One whose caller
/// was cut off is closed: in the pool it would wait for the old answer first, for ever if none
/// comes, and hold a place of the pool meanwhile.
pub(super) struct Held {
    conn: PoolConnection<Postgres>,
    since: Instant,
    /// It may go back to the pool.
    answered: bool,
    /// Somebody was told how the call ended.
    settled: bool,
}

impl From<PoolConnection<Postgres>> for Held {
    fn from(conn: PoolConnection<Postgres>) -> Self {
        Self {
            conn,
            since: Instant::now(),
            answered: false,
            settled: false,
        }
    }
}

impl std::ops::Deref for Held {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.conn
    }
}

impl std::ops::DerefMut for Held {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.conn
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.answered {
            self.conn.close_on_drop();
        }
        if !self.settled {
            // Its caller has given it up before its own time was over.
            let why = [metrics::reason(abandoned::word(self.since.elapsed()))];
            metrics::counters().db_errors.add(1, &why);
        }
    }
}

/// Gives the connection back; one without an answer is closed instead, and so is one whose server
/// takes no writes: a new one may find the member of the cluster that does.
pub(super) fn settle<T>(
    held: impl Into<Held>,
    answer: Result<sqlx::Result<T>, Elapsed>,
    waited: Duration,
) -> sqlx::Result<T> {
    let mut held = held.into();
    held.settled = true;
    let answer = answer.unwrap_or_else(|_| Err(errors::no_answer(waited)));
    held.answered = !answer
        .as_ref()
        .is_err_and(|error| errors::in_doubt(error) || errors::read_only(error));
    answer
}

/// The driver would log the whole text of the statement, each time.
pub(super) fn tell_if_slow(op: &'static str, took: Duration) {
    if took >= SLOW {
        let took_s = took.as_secs_f32();
        tracing::info!(op, took_s, "a slow call to the ledger");
    }
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
            metrics::counters()
                .db_errors
                .add(1, &[metrics::reason(errors::word(&error))]);
            return Err(errors::of_role(op, self.role, error));
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
