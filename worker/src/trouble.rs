//! One log line when something that passes by itself begins, one a minute while it lasts,
//! one when it is over: an outage of an hour fills no disk.

use std::fmt::Display;
use std::time::Duration;

use crate::clock;

const SAID_AGAIN: Duration = Duration::from_mins(1);

/// Trouble with one thing.
#[derive(Debug)]
pub(crate) struct Trouble {
    /// What fails, as a verb phrase: "failed to …".
    what: &'static str,
    since: Option<Duration>,
    said: Duration,
}

impl Trouble {
    pub(crate) const fn with(what: &'static str) -> Self {
        Self {
            what,
            since: None,
            said: Duration::ZERO,
        }
    }

    /// It failed (again); it will be tried again.
    pub(crate) fn note(&mut self, error: &dyn Display) {
        let now = clock::boot();
        let since = *self.since.get_or_insert(now);
        let seconds = now.saturating_sub(since).as_secs();
        if since == now {
            tracing::warn!(%error, "failed to {}, trying again", self.what);
        } else if now.saturating_sub(self.said) >= SAID_AGAIN {
            tracing::warn!(%error, seconds, "still failing to {}", self.what);
        } else {
            tracing::debug!(%error, seconds, "still failing to {}", self.what);
            return;
        }
        self.said = now;
    }

    /// It works.
    pub(crate) fn over(&mut self) {
        if let Some(since) = self.since.take() {
            let seconds = clock::boot().saturating_sub(since).as_secs();
            tracing::info!(seconds, "able to {} again", self.what);
        }
    }
}
