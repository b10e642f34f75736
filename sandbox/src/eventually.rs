//! Waiting for a condition instead of sleeping for a guess.

use std::time::Duration;

use tokio::time::Instant;

use crate::Error;

/// How long to wait between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// Calls `probe` until it answers true, at most for `within`.
///
/// `what` names the condition in the error. The probe is always called at least once, and once
/// more after the time is up, so that a slow machine does not fail a condition that holds.
///
/// # Errors
///
/// [`Error::Never`] if the condition does not come true in time.
pub async fn eventually<F, Fut>(what: &str, within: Duration, mut probe: F) -> Result<(), Error>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = bool>,
{
    let deadline = Instant::now() + within;
    loop {
        let last = Instant::now() >= deadline;
        if probe().await {
            return Ok(());
        }
        if last {
            return Err(Error::Never {
                what: what.to_owned(),
                within,
            });
        }
        tokio::time::sleep(PAUSE).await;
    }
}
