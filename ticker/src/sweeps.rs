//! The sweeping loops: conditions on rows, settled by every ticker whether it leads or not.
//!
//! Each sweep has a loop of its own, so that a slow or failing one delays no other. Only what
//! declares somebody lost or overdue asks for an unbroken view first.

use std::sync::Arc;

use bellwether_schemas::state::State;
use bellwether_store::{Result, Store};
use bellwether_telemetry::metrics;
use tokio_util::sync::CancellationToken;

use crate::Waker;
use crate::calls::{bounded, rest};
use crate::handle::Shared;
use crate::options::jittered;
use crate::progress::Loop;
use crate::watch;

/// The sweeps of one ticker.
#[derive(Clone)]
pub(crate) struct Sweeper {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) waker: Arc<dyn Waker>,
    pub(crate) shared: Arc<Shared>,
}

/// What a look of a sweep came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Swept {
    /// Nothing is left for now.
    Done,
    /// It met its row limit: look again at once.
    More,
}

// === impl Sweeper ===

impl Sweeper {
    /// The loops with a sweep of their own.
    pub(crate) const LOOPS: [Loop; 6] = [
        Loop::Losses,
        Loop::Dispatch,
        Loop::Starts,
        Loop::Unknown,
        Loop::Keys,
        Loop::Definitions,
    ];

    /// Runs one sweep until asked to stop.
    pub(crate) async fn run(self, sweep: Loop, stop: CancellationToken) {
        let Shared {
            options,
            clock,
            progress,
            counters,
            ..
        } = &*self.shared;
        let mut idle_turns = 0;
        while !stop.is_cancelled() {
            progress.turned(sweep, clock.now());
            let swept = if idle_turns > 0 {
                idle_turns -= 1;
                Ok(Swept::Done)
            } else {
                let swept = self.sweep(sweep).await;
                if matches!(swept, Ok(Swept::Done)) {
                    idle_turns = idle_turns_of(sweep);
                }
                swept
            };
            match &swept {
                Ok(_) => progress.succeeded(sweep, clock.now()),
                Err(error) => {
                    counters.sweep_errors.add(1);
                    progress.turned(sweep, clock.now());
                    tracing::warn!(%error, sweep = sweep.as_str(), "a sweep failed and is repeated");
                }
            }
            if matches!(swept, Ok(Swept::More)) {
                tokio::task::yield_now().await;
            } else {
                rest(&stop, jittered(options.sweep_every)).await;
            }
        }
    }

    async fn sweep(&self, sweep: Loop) -> Result<Swept> {
        let Shared {
            options, counters, ..
        } = &*self.shared;
        let (store, limit) = (&self.store, options.sweep_rows_max);
        let within = options.call_timeout;
        match sweep {
            Loop::Losses => self.losses().await,
            Loop::Dispatch => {
                let call = store.dispatch_due(limit);
                let count = bounded("dispatch due executions", within, call).await?;
                counters.dispatched.add(count);
                if count > 0 {
                    self.waker.wake();
                }
                Ok(self.swept(count))
            }
            Loop::Starts => {
                let call = store.expire_starts(limit);
                let count = bounded("end what missed its start deadline", within, call).await?;
                counters.starts_ended.add(count);
                Ok(self.swept(count))
            }
            Loop::Unknown => {
                let call = store.escalate_unknown(options.unknown_after, limit);
                let count = bounded("escalate unknown executions", within, call).await?;
                counters.unknown_escalated.add(count);
                if count > 0 {
                    tracing::error!(
                        count,
                        "executions are unknown for too long; an operator decides"
                    );
                }
                Ok(self.swept(count))
            }
            Loop::Keys => {
                let call = store.forget_keys(options.key_retention, limit);
                let count = bounded("forget idempotency keys", within, call).await?;
                counters.keys_forgotten.add(count);
                Ok(self.swept(count))
            }
            Loop::Definitions => self.definitions().await,
            Loop::Leadership | Loop::Planning => Ok(Swept::Done),
        }
    }

    /// Ends schedules that the whole fleet has stopped to define.
    ///
    /// The condition is on rows: no session reported the name for `definition_gone_after`,
    /// while one of its queue was live all that time. An outage of the ledger alone makes it
    /// true for nobody: a session is `live` until a sweep ends it, and ends at that sweep's
    /// now, so what it reported counts for all of the outage and the full time after it. What
    /// is left is a worker that had gone before the outage and could not come back during it;
    /// it returns within a few seconds of the ledger, and therefore this asks for the same
    /// unbroken view as a loss does: one lease without a gap. A worker that returns later than
    /// that (kept from its start by a broker that is away, say) makes its schedules anew with
    /// its session.
    async fn definitions(&self) -> Result<Swept> {
        let Shared {
            options, counters, ..
        } = &*self.shared;
        if !self.shared.may_declare_losses() {
            return Ok(Swept::Done);
        }
        let call = self
            .store
            .retire_definitions(options.definition_gone_after, options.sweep_rows_max);
        let within = options.call_timeout;
        let retired = bounded("end what no code defines any more", within, call).await?;
        counters.definitions_retired.add(count(retired.len()));
        for schedule in &retired {
            tracing::warn!(
                schedule,
                minutes = options.definition_gone_after.as_secs() / 60,
                "schedule ended: no worker has defined it for that long while others served its queue"
            );
        }
        Ok(self.swept(count(retired.len())))
    }

    /// Looks before and during each statement, so that a slow one is no break of the view;
    /// declares losses only with an unbroken view, because the process may have slept in between.
    async fn losses(&self) -> Result<Swept> {
        let Shared {
            options, counters, ..
        } = &*self.shared;
        let (limit, within) = (options.sweep_rows_max, options.call_timeout);
        if !self.looks_unbroken().await? {
            return Ok(Swept::Done);
        }
        let call = self.watched(self.store.lose_sessions(limit));
        let lost = bounded("end sessions past their lease", within, call).await?;
        counters.sessions_lost.add(count(lost.len()));
        metrics::counters()
            .sessions_lost
            .add(count(lost.len()), &[]);
        for session in &lost {
            tracing::warn!(session = %session.id, name = session.name, "a worker session is lost");
        }
        if !self.looks_unbroken().await? {
            return Ok(Swept::Done);
        }
        let call = self.watched(self.store.recover_lost(options.recover_grace, limit));
        let recovered = bounded("recover lost executions", within, call).await?;
        counters.recovered.add(count(recovered.len()));
        for one in &recovered {
            let outcome = [metrics::outcome(one.state.as_str())];
            metrics::counters().recovered.add(1, &outcome);
            tracing::warn!(execution = %one.execution_id, state = %one.state, "an execution was taken from its claim");
        }
        if recovered.iter().any(|one| one.state == State::Retrying) {
            self.waker.wake();
        }
        Ok(self.swept(count(lost.len().max(recovered.len()))))
    }

    /// Looks at the ledger, with a stamp before and after; whether losses may be declared.
    async fn looks_unbroken(&self) -> Result<bool> {
        let Shared {
            clock, progress, ..
        } = &*self.shared;
        progress.turned(Loop::Losses, clock.now());
        watch::look_now(&*self.store, &self.shared).await?;
        progress.turned(Loop::Losses, clock.now());
        Ok(self.shared.may_declare_losses())
    }

    /// The call's answer. Looks go on until it comes: a statement that waits for others is no
    /// sleep of this process. They leave no stamps: a statement that hangs must show.
    async fn watched<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let looks = async {
            loop {
                tokio::time::sleep(self.shared.options.sweep_every).await;
                if let Err(error) = watch::look_now(&*self.store, &self.shared).await {
                    tracing::debug!(%error, "a look during a sweep failed; the next one tells");
                }
            }
        };
        tokio::select! {
            biased;
            answer = call => answer,
            never = looks => never,
        }
    }

    fn swept(&self, rows: u64) -> Swept {
        let full = rows >= u64::from(self.shared.options.sweep_rows_max);
        if full { Swept::More } else { Swept::Done }
    }
}

/// Turns that a sweep skips after it found nothing left to do. It still leaves its stamps.
const fn idle_turns_of(sweep: Loop) -> u32 {
    match sweep {
        // Its condition takes minutes to come true, and looks at what every session reported.
        Loop::Definitions => 29,
        _ => 0,
    }
}

fn count(rows: usize) -> u64 {
    u64::try_from(rows).unwrap_or(u64::MAX)
}
