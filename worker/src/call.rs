//! Calls of the ledger that end, whatever the network does.

use std::time::Duration;

use bellwether_store as store;

/// Longest call: above the longest statement (10 s), below anybody's patience.
pub(crate) const CALL_MAX: Duration = Duration::from_secs(12);

/// The call's result, or `Unavailable` when it takes longer than `limit`: whether a write
/// took place is then unknown, and the same call with the same ids asks again.
pub(crate) async fn bounded<T>(
    limit: Duration,
    call: impl Future<Output = store::Result<T>>,
) -> store::Result<T> {
    tokio::time::timeout(limit, call)
        .await
        .unwrap_or_else(|_elapsed| {
            let late = format!("no answer within {limit:?}");
            Err(store::Error::new(
                "reach the database",
                store::ErrorKind::Unavailable,
                late,
            ))
        })
}
