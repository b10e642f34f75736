//! Requests to cancel: asked for while something is in this worker's hands.
//!
//! The request is a fact in the row. Nobody pushes it: a worker that has claims asks once a
//! second, and one that has none asks nothing. What the ledger does with the attempt's result
//! does not depend on whether the worker has heard of the request.

use std::sync::Arc;
use std::time::Duration;

use bellwether_store::Store;
use bellwether_telemetry::Trouble;
use tokio::time::sleep;

use crate::call::{CALL_MAX, bounded};
use crate::claims::Claims;
use crate::retry::between;
use crate::session::Keeper;

/// Time between two looks, give or take a fifth.
const EVERY: Duration = Duration::from_secs(1);
/// A ledger that is away for less is told of by whoever waits for it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Asks for ever; to be dropped.
pub(crate) async fn run(ledger: Arc<dyn Store>, keeper: Arc<Keeper>, claims: Claims) {
    let mut trouble = Trouble::with("ask for requests to cancel").after(PATIENCE);
    loop {
        sleep(between(EVERY * 4 / 5, EVERY * 6 / 5)).await;
        if claims.is_empty() {
            continue;
        }
        let Some(session) = keeper.current.borrow().as_ref().map(|session| session.id) else {
            continue;
        };
        match bounded(CALL_MAX, ledger.cancel_hints(session)).await {
            Ok(requested) => {
                trouble.over();
                for hint in requested {
                    claims.request_cancel(hint.claim_id, hint.ago);
                }
            }
            Err(error) => trouble.note(&error),
        }
    }
}
