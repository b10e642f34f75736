//! Supervision of a relay's parts: none may end by itself, break or hang unseen.
//!
//! A part that panics, ends or hangs ends the relay with an error, in order: the others finish and
//! rows are given back. Its process is to be started again; nothing that matters was in memory.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bellwether_telemetry::metrics::{self, Role};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::relay::{Handle, NotReady};

/// Time between two looks at the stamps.
const TICK: Duration = Duration::from_secs(1);

/// A part that has not come round for so long hangs: each of its calls has a shorter limit.
const STALL_MAX: Duration = Duration::from_mins(2);

/// A part that has done nothing of use for so long makes the relay unready.
pub(crate) const READY_MAX: Duration = Duration::from_secs(15);

/// How long parts that were asked to end are waited for.
const END_MAX: Duration = Duration::from_secs(30);

/// What a relay is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    Keeper,
    Publisher,
    Strays,
    Watch,
    Meter,
    /// Ends by itself where it may not listen: the poll does its work.
    Listener,
}

impl Part {
    /// Those that leave stamps.
    const STAMPED: [Self; 2] = [Self::Keeper, Self::Publisher];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Keeper => "keeper",
            Self::Publisher => "publisher",
            Self::Strays => "strays",
            Self::Watch => "watch",
            Self::Meter => "meter",
            Self::Listener => "listener",
        }
    }
}

/// When the stamped parts last came round, and last did what they are for.
#[derive(Debug)]
pub(crate) struct Progress {
    began: Instant,
    turns: [AtomicU64; Part::STAMPED.len()],
    succeeded_ms: [AtomicU64; Part::STAMPED.len()],
    /// When the first of the looks of the watch came to no good end that have failed since; 0 = the
    /// last one did. Looks are rare, so no stamp of theirs is ever fresh.
    watch_failed_ms: AtomicU64,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            turns: Default::default(),
            succeeded_ms: Default::default(),
            watch_failed_ms: AtomicU64::new(0),
        }
    }
}

impl Progress {
    /// The part came round, with or without success.
    pub(crate) fn turned(&self, part: Part) {
        if let Some(turns) = self.turns.get(part as usize) {
            turns.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The part did what it is for, or had nothing to do.
    pub(crate) fn succeeded(&self, part: Part) {
        self.turned(part);
        if let Some(at) = self.succeeded_ms.get(part as usize) {
            at.store(self.now_ms(), Ordering::Relaxed);
        }
    }

    /// A look for what is lost or stuck came to its end, or did not.
    pub(crate) fn watched(&self, is_well: bool) {
        let failed = &self.watch_failed_ms;
        if is_well {
            failed.store(0, Ordering::Relaxed);
        } else if failed.load(Ordering::Relaxed) == 0 {
            failed.store(self.now_ms(), Ordering::Relaxed);
        }
    }

    /// Never 0.
    fn now_ms(&self) -> u64 {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        now.max(1)
    }

    fn age(&self, at_ms: u64) -> Duration {
        self.began
            .elapsed()
            .saturating_sub(Duration::from_millis(at_ms))
    }

    /// What has never succeeded, or not lately.
    pub(crate) fn failing(&self) -> Option<NotReady> {
        let stamped = Part::STAMPED.into_iter().find_map(|part| {
            let at = self.succeeded_ms[part as usize].load(Ordering::Relaxed);
            let age = self.age(at);
            match at {
                0 => Some(NotReady::Starting),
                _ if age > READY_MAX => Some(NotReady::Stalled {
                    name: part.as_str(),
                    age,
                }),
                _ => None,
            }
        });
        stamped.or_else(|| {
            let at = self.watch_failed_ms.load(Ordering::Relaxed);
            let age = self.age(at);
            (at != 0 && age > READY_MAX).then_some(NotReady::Stalled {
                name: Part::Watch.as_str(),
                age,
            })
        })
    }
}

/// The running parts. Dropping them cuts all off.
pub(crate) struct Parts {
    tasks: JoinSet<Result<(), Error>>,
    names: HashMap<Id, Part>,
    progress: Arc<dyn AsRef<Progress> + Send + Sync>,
    /// Turns of each stamped part at the last look, and looks since it moved.
    seen: [(u64, u32); Part::STAMPED.len()],
}

impl Parts {
    pub(crate) fn new(progress: Arc<dyn AsRef<Progress> + Send + Sync>) -> Self {
        Self {
            tasks: JoinSet::new(),
            names: HashMap::new(),
            progress,
            seen: Default::default(),
        }
    }

    pub(crate) fn spawn<F>(&mut self, part: Part, run: F)
    where
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let id = self.tasks.spawn(run).id();
        self.names.insert(id, part);
    }

    /// Watches over the parts until all have ended: after `stop`, which the first failure
    /// cancels. The first error, if any.
    pub(crate) async fn run(mut self, stop: &CancellationToken) -> Result<(), Error> {
        let mut first = Ok(());
        let mut end_at = None;
        loop {
            if stop.is_cancelled() {
                end_at.get_or_insert_with(|| Instant::now() + END_MAX);
            }
            let failed = tokio::select! {
                ended = self.tasks.join_next_with_id() => match ended {
                    None => return first,
                    Some(ended) => self.why(ended, stop.is_cancelled()),
                },
                () = stop.cancelled(), if end_at.is_none() => None,
                () = sleep(TICK), if end_at.is_none() => self.stalled(),
                () = sleep_until(end_at.unwrap_or_else(Instant::now)), if end_at.is_some() => {
                    tracing::warn!("a part of the relay has not ended in time and is cut off");
                    self.tasks.abort_all();
                    return first;
                }
            };
            if let Some(error) = failed {
                tracing::error!(%error, "the relay ends");
                if let Some(name) = error.broken_part() {
                    metrics::count_loop_failure(Role::Relay, name);
                }
                first = first.and(Err(error));
                stop.cancel();
            }
        }
    }

    fn why(&self, ended: Ended, asked: bool) -> Option<Error> {
        let (id, result) = match ended {
            Ok((id, result)) => (id, Ok(result)),
            Err(error) => (error.id(), Err(error)),
        };
        let part = self.names.get(&id).copied()?;
        let name = part.as_str();
        match result {
            Ok(Err(error)) => Some(error),
            Ok(Ok(())) if asked || part == Part::Listener => None,
            Ok(Ok(())) => Some(Error::PartEnded { name }),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => Some(Error::PartPanicked {
                    name,
                    message: message(&*panic),
                }),
                Err(_cancelled) => Some(Error::PartEnded { name }),
            },
        }
    }

    /// Counted in looks, not read from a clock: after the process was stopped, or the host slept,
    /// every stamp is old and no part hangs.
    fn stalled(&mut self) -> Option<Error> {
        let progress = (*self.progress).as_ref();
        for part in Part::STAMPED {
            let turns = progress.turns[part as usize].load(Ordering::Relaxed);
            let (last, still) = &mut self.seen[part as usize];
            *still = if turns == *last { *still + 1 } else { 0 };
            *last = turns;
            if TICK * *still >= STALL_MAX {
                let name = part.as_str();
                return Some(Error::PartStalled { name });
            }
        }
        None
    }
}

type Ended = Result<(Id, Result<(), Error>), JoinError>;

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no message".to_owned())
}

/// Shows every second whether the relay is ready; to be dropped or stopped.
pub(crate) async fn show_ready(handle: Handle, stop: CancellationToken) {
    metrics::announce(Role::Relay);
    let role = [metrics::role(Role::Relay.as_str())];
    while !stop.is_cancelled() {
        let ready = u64::from(handle.ready().is_ok());
        metrics::gauges().ready.record(ready, &role);
        tokio::select! {
            () = stop.cancelled() => {}
            () = sleep(TICK) => {}
        }
    }
    metrics::gauges().ready.record(0, &role);
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Alone(Progress);

    impl AsRef<Progress> for Alone {
        fn as_ref(&self) -> &Progress {
            &self.0
        }
    }

    fn parts() -> (Arc<Alone>, Parts) {
        let progress = Arc::new(Alone(Progress::default()));
        let parts = Parts::new(Arc::clone(&progress) as Arc<dyn AsRef<Progress> + Send + Sync>);
        (progress, parts)
    }

    async fn until(stop: CancellationToken) -> Result<(), Error> {
        stop.cancelled().await;
        Ok(())
    }

    #[tokio::test]
    async fn a_part_that_panics_or_ends_stops_the_others_in_order() {
        for panics in [true, false] {
            let stop = CancellationToken::new();
            let (_progress, mut parts) = parts();
            parts.spawn(Part::Publisher, until(stop.clone()));
            parts.spawn(Part::Listener, async { Ok(()) });
            parts.spawn(Part::Strays, async move {
                assert!(!panics, "a fault");
                Ok(())
            });
            let error = parts.run(&stop).await.unwrap_err();
            assert!(stop.is_cancelled());
            let said = error.to_string();
            assert!(said.contains("strays") && error.is_final(), "{said}");
            assert_eq!(said.contains("a fault"), panics, "{said}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_hangs_ends_the_relay_and_one_that_turns_does_not() {
        let stop = CancellationToken::new();
        let (progress, mut parts) = parts();
        parts.spawn(Part::Keeper, async { std::future::pending().await });
        let turning = Arc::clone(&progress);
        let until = stop.clone();
        parts.spawn(Part::Publisher, async move {
            while !until.is_cancelled() {
                turning.0.succeeded(Part::Publisher);
                sleep(TICK / 2).await;
            }
            Ok(())
        });
        let error = parts.run(&stop).await.unwrap_err();
        assert!(error.to_string().contains("the keeper part"), "{error}");
    }

    #[tokio::test]
    async fn a_part_hangs_after_as_many_looks_as_the_limit_says_and_no_sooner() {
        let (progress, mut parts) = parts();
        let looks = STALL_MAX.as_secs() / TICK.as_secs();
        let both = |progress: &Alone| {
            progress.0.turned(Part::Keeper);
            progress.0.turned(Part::Publisher);
        };
        for round in 0..2 {
            both(&progress);
            for look in 0..looks {
                assert!(parts.stalled().is_none(), "{round} {look}");
            }
        }
        both(&progress);
        for _ in 0..looks {
            progress.0.turned(Part::Keeper);
            assert!(parts.stalled().is_none());
        }
        progress.0.turned(Part::Keeper);
        let said = parts.stalled().unwrap().to_string();
        assert!(said.contains("publisher"), "{said}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_waits_for_every_part_and_cuts_off_what_does_not_end() {
        for (takes, is_done) in [(END_MAX / 2, true), (END_MAX + TICK, false)] {
            let stop = CancellationToken::new();
            let (_progress, mut parts) = parts();
            parts.spawn(Part::Listener, until(stop.clone()));
            let (done, asked) = (CancellationToken::new(), stop.clone());
            let told = done.clone();
            parts.spawn(Part::Publisher, async move {
                asked.cancelled().await;
                sleep(takes).await;
                told.cancel();
                Ok(())
            });
            stop.cancel();
            let began = Instant::now();
            parts.run(&stop).await.unwrap();
            assert_eq!(done.is_cancelled(), is_done, "{takes:?}");
            assert_eq!(began.elapsed().as_secs(), takes.min(END_MAX).as_secs());
        }
    }

    /// The process gives up its relay: nothing of it goes on.
    #[tokio::test(start_paused = true)]
    async fn a_stop_that_is_interrupted_leaves_no_part_behind() {
        let stop = CancellationToken::new();
        let (_progress, mut parts) = parts();
        let held = Arc::new(());
        let own = Arc::clone(&held);
        parts.spawn(Part::Publisher, async move {
            std::future::pending::<()>().await;
            drop(own);
            Ok(())
        });
        stop.cancel();
        let stopped = tokio::time::timeout(TICK, parts.run(&stop)).await;
        assert!(stopped.is_err(), "it waits");
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&held), 1);
    }

    /// It looks once a minute: an old success says nothing, a failure that lasts does.
    #[tokio::test(start_paused = true)]
    async fn looks_that_keep_failing_make_the_relay_unready_until_one_does_not() {
        let progress = Progress::default();
        let later = async |by| {
            tokio::time::advance(by).await;
            progress.succeeded(Part::Keeper);
            progress.succeeded(Part::Publisher);
        };
        later(READY_MAX * 3).await;
        assert_eq!(progress.failing(), None);
        progress.watched(false);
        later(READY_MAX).await;
        progress.watched(false);
        assert_eq!(progress.failing(), None);
        later(TICK).await;
        let age = READY_MAX + TICK;
        let name = "watch";
        assert_eq!(progress.failing(), Some(NotReady::Stalled { name, age }));
        progress.watched(true);
        assert_eq!(progress.failing(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn readiness_names_what_has_not_worked_lately() {
        let progress = Progress::default();
        sleep(TICK).await;
        assert!(matches!(progress.failing(), Some(NotReady::Starting)));
        progress.succeeded(Part::Keeper);
        progress.succeeded(Part::Publisher);
        assert!(progress.failing().is_none());
        sleep(READY_MAX + TICK).await;
        progress.succeeded(Part::Keeper);
        let said = progress.failing().unwrap().to_string();
        assert!(said.contains("publisher"), "{said}");
    }
}
