//! Supervision: a set of named loops, none of which may end by itself.

use std::any::Any;
use std::collections::HashMap;
use std::time::Duration;

use tokio::task::{Id, JoinError, JoinSet};

use crate::Error;
use crate::progress::Loop;

/// Running loops. Dropping the set aborts them.
#[derive(Default)]
pub(crate) struct Loops {
    tasks: JoinSet<Result<(), Error>>,
    names: HashMap<Id, Loop>,
}

// === impl Loops ===

impl Loops {
    pub(crate) fn spawn<F>(&mut self, name: Loop, run: F)
    where
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let id = self.tasks.spawn(run).id();
        self.names.insert(id, name);
    }

    /// Waits for a loop to end although nobody asked it to; says why. Waits for ever if there
    /// is no loop.
    pub(crate) async fn failure(&mut self) -> Error {
        match self.tasks.join_next_with_id().await {
            Some(ended) => {
                let (id, result) = split(ended);
                let name = name_of(&self.names, id);
                result
                    .map_err(|error| named(name, error))
                    .and_then(std::convert::identity)
                    .err()
                    .unwrap_or(Error::LoopEnded { name })
            }
            None => std::future::pending().await,
        }
    }

    /// Waits for all loops, which have been asked to end; aborts those that have not within
    /// `within`. The first error, if any.
    pub(crate) async fn finish(&mut self, within: Duration) -> Result<(), Error> {
        let mut first = Ok(());
        let all = async {
            while let Some(ended) = self.tasks.join_next_with_id().await {
                let (id, result) = split(ended);
                let name = name_of(&self.names, id);
                let result = result.map_err(|error| named(name, error));
                if let Err(error) = result.and_then(std::convert::identity) {
                    tracing::error!(%error, "a loop failed while stopping");
                    first = std::mem::replace(&mut first, Ok(())).and(Err(error));
                }
            }
        };
        if tokio::time::timeout(within, all).await.is_err() {
            tracing::warn!(
                within_s = within.as_secs_f32(),
                "a loop has not ended in time and is cut off"
            );
            self.tasks.abort_all();
        }
        first
    }
}

fn name_of(names: &HashMap<Id, Loop>, id: Id) -> &'static str {
    names.get(&id).map_or("unnamed", |one| one.as_str())
}

type Ended = Result<(Id, Result<(), Error>), JoinError>;

fn split(ended: Ended) -> (Id, Result<Result<(), Error>, JoinError>) {
    match ended {
        Ok((id, result)) => (id, Ok(result)),
        Err(error) => (error.id(), Err(error)),
    }
}

fn named(name: &'static str, error: JoinError) -> Error {
    match error.try_into_panic() {
        Ok(panic) => Error::LoopPanicked {
            name,
            message: message(&*panic),
        },
        Err(_) => Error::LoopEnded { name },
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
#[expect(clippy::panic, reason = "tests")]
mod tests {
    use super::*;

    #[tokio::test]
    async fn r113_a_loop_that_panics_or_ends_is_named() {
        let mut loops = Loops::default();
        loops.spawn(Loop::Planning, async { panic!("planning broke {}", 1) });
        assert_eq!(
            loops.failure().await.to_string(),
            "the planning loop panicked: planning broke 1; restart the ticker"
        );
        loops.spawn(Loop::Starts, async { Ok(()) });
        assert!(matches!(
            loops.failure().await,
            Error::LoopEnded { name: "starts" }
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn finish_reports_the_first_error_and_cuts_off_what_hangs() {
        let mut loops = Loops::default();
        loops.spawn(Loop::Keys, async { Ok(()) });
        loops.spawn(Loop::Unknown, async { panic!("late") });
        loops.spawn(Loop::Starts, std::future::pending());
        let finished = loops.finish(Duration::from_secs(5)).await;
        assert!(matches!(
            finished,
            Err(Error::LoopPanicked {
                name: "unknown",
                ..
            })
        ));
    }
}
