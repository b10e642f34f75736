//! What a call ends is counted by the process that made it, under its meter provider, as the roles
//! count what they end.

use bellwether_schemas::state::{Reason, State, Verdict};
use bellwether_store::Store;
use bellwether_telemetry::metrics::{counters, job, kind, outcome, reason};
use uuid::Uuid;

/// These were brought to `state`, their end, by a request of this client.
///
/// Their jobs stand in their rows alone. Where one cannot be read it is counted without: what was done
/// is done, and no error of the call.
pub(crate) async fn ended(store: &dyn Store, ids: impl IntoIterator<Item = Uuid>, state: State) {
    let mut unread = false;
    for id in ids {
        let row = if unread {
            None
        } else {
            let read = store.execution_result(id).await;
            read.unwrap_or_else(|error| {
                tracing::debug!(%error, "what was ended is counted without its job");
                unread = true;
                None
            })
        };
        let why = match state {
            State::Cancelled => Some(Reason::Cancelled),
            _ => row.as_ref().and_then(|row| row.reason),
        };
        let mut labels = vec![
            outcome(state.as_str()),
            reason(why.map_or("none", Reason::as_str)),
        ];
        labels.extend(row.map(|row| job(&row.job)));
        counters().executions.add(1, &labels);
    }
}

/// An operator's word was accepted about one that was `unknown`.
pub(crate) fn resolved(verdict: Verdict) {
    let labels = [kind("operator"), outcome(verdict.as_str())];
    counters().unknown_resolved.add(1, &labels);
}
