//! Bounded calls and rests, the two things every loop waits for.

use std::time::Duration;

use bellwether_store::{Error, ErrorKind, Result};
use tokio_util::sync::CancellationToken;

/// A call that is given up after `within`. Whether it took effect is then unknown, as with any
/// lost answer; every caller's next read tells.
pub(crate) async fn bounded<T>(
    op: &'static str,
    within: Duration,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::time::timeout(within, call)
        .await
        .unwrap_or_else(|_| {
            let text = format!("the database has not answered within {within:?}");
            Err(Error::new(op, ErrorKind::Unavailable, text))
        })
}

/// Sleeps unless or until asked to stop.
pub(crate) async fn rest(stop: &CancellationToken, duration: Duration) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = tokio::time::sleep(duration) => {}
    }
}

/// Rest after the `failures`-th failure in a row: 50 ms, 100 ms, 200 ms … at most `max`, ±10 %.
pub(crate) fn back_off(failures: u32, max: Duration) -> Duration {
    let first = Duration::from_millis(50);
    let doubled = first.saturating_mul(1 << failures.saturating_sub(1).min(10));
    crate::options::jittered(doubled.min(max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_off_doubles_up_to_its_limit() {
        let max = Duration::from_secs(1);
        for (failures, ms) in [
            (1, 50.0),
            (2, 100.0),
            (5, 800.0),
            (6, 1_000.0),
            (900, 1_000.0),
        ] {
            let rest = back_off(failures, max).as_secs_f64() * 1_000.0;
            assert!((0.9 * ms..=1.1 * ms).contains(&rest), "{failures}: {rest}");
        }
    }
}
