//! The child nats-server: started, watched, started again when it ends.

use std::time::Duration;

use bellwether_sandbox::{Folder, NatsServer};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::builder::ChildNats;
use crate::{Error, parts};

/// Time between two looks at the child.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Pause before a child that keeps ending is started again: doubled each time, up to the cap.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// A child that ran this long was well.
const WELL_AFTER: Duration = Duration::from_mins(1);

/// Time between two lines about it in the log.
const SAY_EVERY: Duration = Duration::from_mins(1);

/// Starts it on the port asked for, else on the one of the last run, else on a free one.
pub(crate) async fn start(folder: &Folder, asked: &ChildNats) -> Result<NatsServer, Error> {
    let started = folder.nats(asked.port, None, asked.binary.clone()).await;
    started.map_err(|error| match error {
        bellwether_sandbox::Error::NotFound { reason, .. } => Error::NoNatsServer { reason },
        other => in_words(other),
    })
}

/// What is said of the folder, in this crate's words.
pub(crate) fn in_words(error: bellwether_sandbox::Error) -> Error {
    match error {
        bellwether_sandbox::Error::Folder { path, source } => Error::Folder { path, source },
        bellwether_sandbox::Error::FolderInUse { path, owner } => {
            Error::FolderInUse { path, owner }
        }
        other => Error::ChildNats(other),
    }
}

/// Starts the child again whenever it ends; stops it at the end.
pub(crate) async fn watch(mut server: NatsServer, stop: CancellationToken) -> parts::Ended {
    let mut restarts = Restarts::new(Instant::now());
    while !is_over(&stop, LOOK_EVERY).await {
        let Some(status) = server.process()?.try_wait()? else {
            continue;
        };
        let (pause, say) = restarts.ended(Instant::now());
        if let Some(untold) = say {
            tracing::error!(
                %status, untold, ?pause,
                "the child nats-server ended; starting it again"
            );
        }
        if is_over(&stop, pause).await {
            break;
        }
        server.restart().await?;
        restarts.started = Instant::now();
    }
    Ok(server.stop().await?)
}

/// Waits; true = it is time to end.
async fn is_over(stop: &CancellationToken, pause: Duration) -> bool {
    let waited = stop.run_until_cancelled(tokio::time::sleep(pause)).await;
    waited.is_none()
}

/// How often the child is started again, and how often that is said.
struct Restarts {
    started: Instant,
    /// Before the next start; none after one that went well.
    pause: Duration,
    said: Option<Instant>,
    untold: u32,
}

impl Restarts {
    fn new(started: Instant) -> Self {
        Self {
            started,
            pause: Duration::ZERO,
            said: None,
            untold: 0,
        }
    }

    /// The child was found ended: the pause before its start, and whether to say so, with how
    /// many ends were not told since the last time.
    fn ended(&mut self, now: Instant) -> (Duration, Option<u32>) {
        if now.duration_since(self.started) >= WELL_AFTER {
            self.pause = Duration::ZERO;
        }
        let pause = self.pause;
        self.pause = (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        if self
            .said
            .is_some_and(|said| now.duration_since(said) < SAY_EVERY)
        {
            self.untold += 1;
            return (pause, None);
        }
        self.said = Some(now);
        (pause, Some(std::mem::take(&mut self.untold)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_keeps_ending_is_started_ever_more_seldom_and_seldom_told() {
        let mut now = Instant::now();
        let mut restarts = Restarts::new(now);
        let mut pauses = Vec::new();
        let mut told = Vec::new();
        for _ in 0..9 {
            now += Duration::from_secs(1);
            let (pause, say) = restarts.ended(now);
            pauses.push(pause.as_millis());
            told.push(say);
            now += pause;
            restarts.started = now;
        }
        assert_eq!(
            pauses,
            [0, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]
        );
        assert_eq!(told.iter().flatten().collect::<Vec<_>>(), [&0, &7]);

        now += WELL_AFTER;
        assert_eq!(restarts.ended(now).0, Duration::ZERO, "it had been well");
    }
}
