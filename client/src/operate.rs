//! What an operator does with executions: cancel, retry.

use std::time::Duration;

use bellwether_schemas::ids;
use bellwether_schemas::state::State;
use bellwether_store::executions::{CancelRequested, Retried};
use tokio::time::Instant;
use uuid::Uuid;

use crate::{Client, Error, Result, trace};

/// Tries of a call that may be repeated, and the time between two.
const TRIES: u32 = 3;
const AGAIN: Duration = Duration::from_millis(100);
/// After this long no other try begins: a database that was silent for that long has cost the
/// caller enough.
const TRIES_WITHIN: Duration = Duration::from_secs(5);

impl Client {
    /// Requests that an execution stops, and answers how it stands. What waits or is `unknown` is `cancelled` at
    /// once; what runs is told by its worker ([`CancelRequested::Requested`]) and ends when its
    /// handler obeys, at the latest at its deadline: [`Client::wait`] for that end. One that has
    /// ended stays as it is ([`CancelRequested::Ended`]). A repeat is harmless.
    ///
    /// # Errors
    ///
    /// No execution has that id, or the ledger fails.
    pub async fn cancel(&self, execution_id: Uuid) -> Result<CancelRequested> {
        let answers = self.cancel_all(&[execution_id]).await?;
        match answers.into_iter().next() {
            None => Err(Error::NoAnswer { call: "cancel" }),
            Some(CancelRequested::NotFound) => Err(Error::NoSuchExecution { id: execution_id }),
            Some(answer) => Ok(answer),
        }
    }

    /// Requests that many executions stop, in one transaction; answers stand in the order of
    /// `execution_ids`, an unknown one as [`CancelRequested::NotFound`].
    ///
    /// # Errors
    ///
    /// The ledger fails, also when asked three times. Of many, all that others do not hold locked
    /// ([`CancelRequested::Locked`]) have their requests all the same.
    pub async fn cancel_all(&self, execution_ids: &[Uuid]) -> Result<Vec<CancelRequested>> {
        let store = self.store("cancel")?;
        let mut asked = 0;
        let answers = again(async || {
            asked += 1;
            store.request_cancel(execution_ids).await
        });
        let mut answers = answers.await?;
        if asked > 1 {
            // Most likely by the request whose reply was lost.
            for answer in &mut answers {
                if *answer == CancelRequested::Ended(State::Cancelled) {
                    *answer = CancelRequested::Cancelled;
                }
            }
        }
        Ok(answers)
    }

    /// Repeats an execution that has ended without success; returns the new execution. It is the
    /// same shard with the same payload, the same operation id and a whole budget of attempts.
    /// An error that may pass is answered by asking again for the same fire, three times in all:
    /// it is repeated once.
    ///
    /// # Errors
    ///
    /// * [`Error::NotRetryable`]: it has not ended, or it succeeded.
    /// * [`Error::AlreadyRetried`]: a retry of it has not ended, or has succeeded.
    /// * [`Error::NoSuchExecution`], or the ledger fails.
    pub async fn retry(&self, execution_id: Uuid) -> Result<Uuid> {
        let fire_id = ids::fresh();
        let store = self.store("retry")?;
        let (trace, asked) = trace::fire(fire_id, "", "retry");
        let ask = async || {
            store
                .retry_execution(execution_id, fire_id, Some(&trace))
                .await
        };
        let retried = again(ask).await;
        asked.ended(&retried, |retried| match retried {
            Retried::Retried { .. } => "retried",
            Retried::Refused(_) => "refused",
            Retried::AlreadyRetried { .. } => "exists",
            Retried::NotFound => "not_found",
        });
        match retried? {
            Retried::Retried { execution_id } => {
                self.wake().await;
                Ok(execution_id)
            }
            Retried::Refused(state) => Err(Error::NotRetryable {
                id: execution_id,
                state,
            }),
            Retried::AlreadyRetried {
                execution_id: retry,
                state,
            } => Err(Error::AlreadyRetried {
                id: execution_id,
                retry,
                state,
            }),
            Retried::NotFound => Err(Error::NoSuchExecution { id: execution_id }),
        }
    }
}

/// Asks again while the error may pass: three times in all, and not after [`TRIES_WITHIN`].
pub(crate) async fn again<T>(
    mut ask: impl AsyncFnMut() -> bellwether_store::Result<T>,
) -> Result<T> {
    let begin = Instant::now();
    let mut tries = 1;
    loop {
        match ask().await {
            Err(error)
                if error.is_transient() && tries < TRIES && begin.elapsed() < TRIES_WITHIN =>
            {
                tracing::debug!(%error, tries, "asking again");
                tries += 1;
                tokio::time::sleep(AGAIN).await;
            }
            answer => return Ok(answer?),
        }
    }
}
