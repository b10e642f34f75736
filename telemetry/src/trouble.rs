//! One log line when something that passes by itself begins, one a minute while it lasts,
//! one when it is over: an outage of an hour fills no disk.

use std::fmt::Display;
use std::time::Duration;

use tokio::time::Instant;

/// Between two lines about the same trouble.
const SAID_AGAIN: Duration = Duration::from_mins(1);

/// Trouble with one thing, which passes by itself and is tried again meanwhile.
#[derive(Debug)]
pub struct Trouble {
    /// What fails, as a verb phrase: "failed to …".
    what: &'static str,
    /// What is over sooner is not worth a line.
    patience: Duration,
    /// Its begin.
    since: Option<Instant>,
    /// The last line about it.
    said: Option<Instant>,
}

impl Trouble {
    /// None yet. `what` is a verb phrase that fits "failed to …".
    #[must_use]
    pub const fn with(what: &'static str) -> Self {
        Self {
            what,
            patience: Duration::ZERO,
            since: None,
            said: None,
        }
    }

    /// The same, not told before it has lasted so long.
    #[must_use]
    pub const fn after(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// It failed (again); it will be tried again.
    pub fn note(&mut self, error: &dyn Display) {
        let now = Instant::now();
        let lasted = now.saturating_duration_since(*self.since.get_or_insert(now));
        let seconds = lasted.as_secs();
        match self.said {
            None if lasted >= self.patience => {
                tracing::warn!(%error, "failed to {}, trying again", self.what);
            }
            Some(said) if now.saturating_duration_since(said) >= SAID_AGAIN => {
                tracing::warn!(%error, seconds, "still failing to {}", self.what);
            }
            None | Some(_) => {
                tracing::debug!(%error, seconds, "failing to {}", self.what);
                return;
            }
        }
        self.said = Some(now);
    }

    /// It works.
    pub fn over(&mut self) {
        let since = self.since.take();
        if let (Some(since), Some(_)) = (since, self.said.take()) {
            let seconds = since.elapsed().as_secs();
            tracing::info!(seconds, "able to {} again", self.what);
        }
    }
}
