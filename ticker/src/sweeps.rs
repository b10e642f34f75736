//! The sweeping loops: conditions on rows, settled by every ticker whether it leads or not.
//!
//! Each sweep has a loop of its own, so that a slow or failing one delays no other. Only what
//! declares somebody lost or overdue asks for an unbroken view first.

use std::sync::Arc;
use std::time::Duration;

use bellwether_schemas::state::{Reason, State};
use bellwether_store::retention::{Forgotten, Leftover};
use bellwether_store::sweeps::Recovered;
use bellwether_store::{Result, Store};
use bellwether_telemetry::{Trouble, metrics};
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
    /// It met its row limit and found nothing to do: look on after a rest.
    Later,
    /// It met its row limit: look again at once.
    More,
}

// === impl Swept ===

impl Swept {
    /// Of a walk with or without an end in sight, which has deleted so many rows.
    const fn of_walk(more: bool, rows: u64) -> Self {
        match (more, rows) {
            (false, _) => Self::Done,
            // Past what has to stay: there may be much of it, and there is no hurry.
            (true, 0) => Self::Later,
            (true, _) => Self::More,
        }
    }
}

// === impl Sweeper ===

impl Sweeper {
    /// The loops with a sweep of their own.
    pub(crate) const LOOPS: [Loop; 8] = [
        Loop::Losses,
        Loop::Dispatch,
        Loop::Held,
        Loop::Starts,
        Loop::Unknown,
        Loop::Keys,
        Loop::Definitions,
        Loop::History,
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
        let (mut idle_turns, mut failing) = (0, false);
        let mut trouble = Trouble::with(sweep.purpose());
        while !stop.is_cancelled() {
            let began = clock.now();
            progress.turned(sweep, began);
            if idle_turns > 0 {
                idle_turns -= 1;
                if !failing {
                    progress.succeeded(sweep, began);
                }
                rest(&stop, jittered(options.sweep_every)).await;
                continue;
            }
            let swept = self.sweep(sweep).await;
            failing = swept.is_err();
            idle_turns = match &swept {
                Ok(Swept::Done) => idle_turns_of(sweep),
                Ok(Swept::More | Swept::Later) => 0,
                // What costs much and is no hurry is not repeated each second.
                Err(_) => idle_turns_of(sweep).min(FAILED_TURNS),
            };
            match &swept {
                Ok(_) => {
                    progress.succeeded(sweep, clock.now());
                    trouble.over();
                }
                Err(error) => {
                    counters.sweep_errors.add(1);
                    progress.turned(sweep, clock.now());
                    trouble.note(error);
                }
            }
            match swept {
                // Others write meanwhile: a long history is no hurry.
                Ok(Swept::More) if sweep == Loop::History => {
                    rest(&stop, clock.now().since(began)).await;
                }
                Ok(Swept::More) => tokio::task::yield_now().await,
                Ok(Swept::Done | Swept::Later) | Err(_) => {
                    rest(&stop, jittered(options.sweep_every)).await;
                }
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
            Loop::Held => self.held().await,
            Loop::Starts => {
                let call = store.expire_starts(limit);
                let ended = bounded("end what missed its start deadline", within, call).await?;
                counters.starts_ended.add(count(ended.len()));
                for one in &ended {
                    count_ended(Some(&one.job), one.state, one.reason, 1);
                }
                Ok(self.swept(count(ended.len())))
            }
            Loop::Unknown => self.unknown().await,
            Loop::Keys => self.keys().await,
            Loop::Definitions => self.definitions().await,
            Loop::History => self.history().await,
            Loop::Leadership | Loop::Planning | Loop::Gauges => Ok(Swept::Done),
        }
    }

    /// Escalates first: what is too old is not asked about once more.
    async fn unknown(&self) -> Result<Swept> {
        let Shared {
            options, counters, ..
        } = &*self.shared;
        let (limit, within) = (options.sweep_rows_max, options.call_timeout);
        let call = self.store.escalate_unknown(options.unknown_after, limit);
        let escalated = bounded("escalate unknown executions", within, call).await?;
        counters.unknown_escalated.add(escalated);
        if escalated > 0 {
            tracing::error!(
                count = escalated,
                "executions are unknown for too long; an operator decides: see `bellwether \
                 executions list --state unknown`"
            );
        }
        self.turned(Loop::Unknown);
        let call = self.store.dispatch_probes(options.probe_after, limit);
        let probes = bounded("dispatch probes", within, call).await?;
        counters.probes_dispatched.add(probes);
        if probes > 0 {
            self.waker.wake();
        }
        Ok(self.swept(escalated.max(probes)))
    }

    /// Hands requests to cancel on first: what ends by them may let a held fire go at once.
    async fn held(&self) -> Result<Swept> {
        let Shared {
            options, counters, ..
        } = &*self.shared;
        let (limit, within) = (options.sweep_rows_max, options.call_timeout);
        let call = self.store.apply_fire_cancels(limit);
        let replaced = bounded("cancel what is replaced", within, call).await?;
        counters.fires_cancelled.add(replaced.fires);
        if replaced.ended > 0 {
            let why = Some(Reason::Cancelled);
            count_ended(None, State::Cancelled, why, replaced.ended);
        }
        self.turned(Loop::Held);
        let call = self.store.release_held(limit);
        let released = bounded("let held fires go", within, call).await?;
        counters.fires_released.add(released.fires);
        if released.executions > 0 {
            self.waker.wake();
        }
        Ok(self.swept(replaced.executions.max(released.executions)))
    }

    /// Forgets keys that have outlived what they name for long enough.
    async fn keys(&self) -> Result<Swept> {
        let Shared {
            options, counters, ..
        } = &*self.shared;
        let (limit, within) = (options.sweep_rows_max, options.call_timeout);
        if !self.may_delete(Loop::Keys).await? {
            return Ok(Swept::Later);
        }
        let call = self.store.forget_keys(options.key_retention, limit);
        let named = bounded("forget idempotency keys", within, call).await;
        self.turned(Loop::Keys);
        // One kind that fails keeps none of the other.
        let call = self.store.forget_idempotency(options.key_retention, limit);
        let settled = bounded("forget settled idempotency keys", within, call).await;
        if let Ok(settled) = &settled {
            counters.keys_forgotten.add(*settled);
        }
        let named = named?;
        counters.keys_forgotten.add(named.keys);
        let settled = settled?;
        let more = named.more || settled >= u64::from(limit);
        Ok(Swept::of_walk(more, named.keys + settled))
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

    /// Deletes what ended longer ago than the retention: fires first, and at the end of a walk what
    /// they leave behind.
    async fn history(&self) -> Result<Swept> {
        let options = &self.shared.options;
        let Some(retention) = options.history_retention else {
            return Ok(Swept::Done);
        };
        let (limit, within) = (options.sweep_rows_max, options.call_timeout);
        if !self.may_delete(Loop::History).await? {
            return Ok(Swept::Later);
        }
        let call = self.store.forget_fires(retention, limit);
        match bounded("delete old fires", within, call).await {
            Ok(gone) => {
                self.count_forgotten(&gone);
                if gone.more && gone.rows() > 0 {
                    return Ok(Swept::of_walk(true, gone.rows()));
                }
                // A long walk over what has to stay keeps nothing of what was left behind.
                match self.leftovers(retention).await? {
                    Swept::Done if gone.more => Ok(Swept::Later),
                    swept => Ok(swept),
                }
            }
            // What others have left behind can go all the same.
            Err(error) => self.leftovers(retention).await.and(Err(error)),
        }
    }

    /// Deletes what old fires leave behind. A kind that fails keeps none of the others.
    async fn leftovers(&self, retention: Duration) -> Result<Swept> {
        let options = &self.shared.options;
        let (mut more, mut rows, mut failed) = (false, 0, None);
        for kind in Leftover::ALL {
            self.turned(Loop::History);
            let call = self
                .store
                .forget_leftovers(kind, retention, options.sweep_rows_max);
            match bounded(
                "delete what old fires left behind",
                options.call_timeout,
                call,
            )
            .await
            {
                Ok(gone) => {
                    self.count_forgotten(&gone);
                    more |= gone.more;
                    rows += gone.rows();
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or_else(|| Ok(Swept::of_walk(more, rows)), Err)
    }

    fn count_forgotten(&self, gone: &Forgotten) {
        self.shared.counters.history_deleted.add(gone.rows());
        for (kind, rows) in gone.by_kind() {
            if rows > 0 {
                let kind = [metrics::kind(kind)];
                metrics::counters().history_deleted.add(rows, &kind);
            }
        }
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
            count_recovered(one);
            tracing::warn!(execution = %one.execution_id, state = %one.state, "an execution was taken from its claim");
        }
        if recovered.iter().any(|one| one.state == State::Retrying) {
            self.waker.wake();
        }
        if !self.looks_unbroken().await? {
            return Ok(Swept::Done);
        }
        let call = self.watched(self.store.recover_probes(options.recover_grace, limit));
        let probes = bounded("take back lost probes", within, call).await?;
        counters.probes_recovered.add(count(probes.len()));
        for execution in &probes {
            tracing::warn!(%execution, "a probe was taken from its worker, and is asked again");
        }
        let most = lost.len().max(recovered.len()).max(probes.len());
        Ok(self.swept(count(most)))
    }

    /// A sign of life between two calls of one sweep.
    fn turned(&self, sweep: Loop) {
        let Shared {
            clock, progress, ..
        } = &*self.shared;
        progress.turned(sweep, clock.now());
    }

    /// Looks at the ledger; whether losses may be declared.
    async fn looks_unbroken(&self) -> Result<bool> {
        self.look(Loop::Losses).await?;
        Ok(self.shared.may_declare_losses())
    }

    /// Whether what is old may be deleted; looks at the ledger's clock if there is nothing else in
    /// the way.
    async fn may_delete(&self, sweep: Loop) -> Result<bool> {
        if !self.shared.may_delete() {
            return Ok(false);
        }
        self.look(sweep).await?;
        Ok(self.shared.may_delete())
    }

    /// Looks at the ledger, with a stamp before and after.
    async fn look(&self, sweep: Loop) -> Result<()> {
        self.turned(sweep);
        watch::look_now(&*self.store, &self.shared).await?;
        self.turned(sweep);
        Ok(())
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

/// Turns that such a sweep skips after it failed, without the stamp of a success.
const FAILED_TURNS: u32 = 9;

/// Turns that a sweep skips after it found nothing left to do. It still leaves its stamps.
const fn idle_turns_of(sweep: Loop) -> u32 {
    match sweep {
        // Their conditions take minutes or days to come true; the one looks at what every session
        // reported.
        Loop::Definitions | Loop::History | Loop::Keys => 29,
        _ => 0,
    }
}

fn count_recovered(one: &Recovered) {
    let labels = [
        metrics::outcome(one.state.as_str()),
        metrics::reason(one.reason.as_str()),
    ];
    metrics::counters().recovered.add(1, &labels);
    let [outcome, reason] = labels;
    let attempt = [metrics::job(&one.job), outcome, reason];
    metrics::counters().attempts.add(1, &attempt);
    if one.reason == Reason::Timeout {
        let seen_by = [metrics::kind("sweep")];
        metrics::counters().execution_timeouts.add(1, &seen_by);
    }
    if one.state.is_terminal() {
        count_ended(Some(&one.job), one.state, Some(one.reason), 1);
    }
}

/// Executions that a sweep ended; of several jobs without the label.
fn count_ended(job: Option<&str>, state: State, reason: Option<Reason>, many: u64) {
    let reason = reason.map_or("none", Reason::as_str);
    let mut labels = vec![metrics::outcome(state.as_str()), metrics::reason(reason)];
    labels.extend(job.map(metrics::job));
    metrics::counters().executions.add(many, &labels);
}

fn count(rows: usize) -> u64 {
    u64::try_from(rows).unwrap_or(u64::MAX)
}
