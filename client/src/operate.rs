//! What an operator does with executions: cancel, retry, resolve.

use std::time::Duration;

use bellwether_schemas::ids;
use bellwether_schemas::state::{State, Verdict};
use bellwether_store::executions::{CancelRequested, Retried};
use bellwether_store::probes::{Decided, Ruling};
use tokio::time::Instant;
use uuid::Uuid;

use crate::{Client, Error, Result, counts, trace};

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
    /// What this ends is counted by `bellwether.executions` under the meter provider of this process.
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
    /// What this ends is counted as by [`Client::cancel`]. The jobs are read for that, for one second at
    /// most: what is not read by then is counted without its job.
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
        let both = execution_ids.iter().zip(&answers);
        let ended = both.filter(|(_, answer)| **answer == CancelRequested::Cancelled);
        let ended = ended.map(|(id, _)| *id);
        counts::ended(store.as_ref(), ended, State::Cancelled).await;
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

    /// Says what became of an execution that is `unknown`, and why you know: [`Verdict::Done`] makes it
    /// `succeeded`; [`Verdict::NotDone`] runs it again while it has attempts, or ends it if a cancel was
    /// requested; [`Verdict::Abandon`] makes it `failed`. Answers the state it came to, or with
    /// [`Decided::Fenced`] the one that it has, which is not `unknown`: nothing was changed. A probe or a
    /// late result that comes first decides instead. The verdict is kept with the execution.
    ///
    /// An accepted verdict is counted by `bellwether.unknown.resolved` under the meter provider of this
    /// process, and by `bellwether.executions` if it ended the execution.
    ///
    /// # Errors
    ///
    /// No execution has that id, `reason` is empty, the verdict is another one, or the ledger fails, also
    /// when asked three times.
    pub async fn resolve(
        &self,
        execution_id: Uuid,
        verdict: Verdict,
        reason: &str,
    ) -> Result<Decided> {
        let store = self.store("resolve")?;
        let ruling = Ruling {
            execution_id,
            token: ids::fresh(),
            verdict,
            reason: reason.to_owned(),
        };
        let decided = again(async || store.resolve(&ruling).await).await?;
        match decided {
            Decided::Accepted(state) => {
                counts::resolved(verdict);
                if state.is_terminal() {
                    counts::ended(store.as_ref(), [execution_id], state).await;
                } else {
                    self.wake().await;
                }
                Ok(decided)
            }
            Decided::Fenced(_) => Ok(decided),
            Decided::Gone => Err(Error::NoSuchExecution { id: execution_id }),
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
