//! Enqueue inside the caller's own transaction: the job exists if and only if the caller
//! commits.

pub use bellwether_store::Transaction;
use bellwether_store::executions::{Enqueued, NewExecution};

use crate::{Result, trace};

/// Enqueues a one-shot in the caller's transaction. Rolled back, it leaves nothing; committed,
/// it runs even if the caller dies at that moment. Call [`crate::Client::wake`] after the
/// commit for the quickest dispatch.
pub async fn enqueue_in(transaction: Transaction<'_>, new: &NewExecution) -> Result<Enqueued> {
    let (new, asked) = trace::one_shot(new);
    let answered = bellwether_store::enqueue_in(transaction, &new).await;
    asked.ended(&answered, trace::enqueued);
    Ok(answered?)
}
