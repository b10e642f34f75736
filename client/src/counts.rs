//! What a call ends is counted by the process that made it, under its meter provider, as the roles
//! count what they end.

use std::time::Duration;

use bellwether_schemas::state::{Reason, State, Verdict};
use bellwether_store::Store;
use bellwether_store::inspect::ShardResult;
use bellwether_telemetry::metrics::{counters, job, kind, outcome, reason};
use futures_util::StreamExt as _;
use uuid::Uuid;

/// Rows read at once: few enough to leave a pool its connections.
const READS: usize = 8;

/// For all rows together: the caller waits for its answer meanwhile, and all is done already.
const READ_WITHIN: Duration = Duration::from_secs(1);

/// These were brought to `state`, their end, by a request of this client.
///
/// Their jobs stand in their rows alone. Those that cannot be read, or not within [`READ_WITHIN`] for all
/// together, are counted without: what was done is done, and no error of the call.
pub(crate) async fn ended(store: &dyn Store, ids: impl IntoIterator<Item = Uuid>, state: State) {
    let ids: Vec<_> = ids.into_iter().collect();
    let mut uncounted = ids.len();
    let read = async {
        let mut rows = futures_util::stream::iter(ids)
            .map(|id| store.execution_result(id))
            .buffer_unordered(READS);
        while let Some(row) = rows.next().await {
            match row {
                Ok(row) => count(1, row.as_ref(), state),
                Err(error) => {
                    tracing::debug!(%error, "what was ended is counted without its job");
                    break;
                }
            }
            uncounted -= 1;
        }
    };
    if tokio::time::timeout(READ_WITHIN, read).await.is_err() {
        tracing::debug!(
            uncounted,
            "what was ended is counted without its job, the ledger is slow"
        );
    }
    if uncounted > 0 {
        count(u64::try_from(uncounted).unwrap_or(u64::MAX), None, state);
    }
}

/// So many have ended, of the job in `row` if it is known.
fn count(many: u64, row: Option<&ShardResult>, state: State) {
    let why = match state {
        State::Cancelled => Some(Reason::Cancelled),
        _ => row.and_then(|row| row.reason),
    };
    let mut labels = vec![
        outcome(state.as_str()),
        reason(why.map_or("none", Reason::as_str)),
    ];
    labels.extend(row.map(|row| job(&row.job)));
    counters().executions.add(many, &labels);
}

/// An operator's word was accepted about one that was `unknown`.
pub(crate) fn resolved(verdict: Verdict) {
    let labels = [kind("operator"), outcome(verdict.as_str())];
    counters().unknown_resolved.add(1, &labels);
}
