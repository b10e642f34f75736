//! What others may know of a ticker, and what its loops share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bellwether_store::leadership::Term;
use tokio::sync::watch;
use uuid::Uuid;

use crate::Options;
use crate::clock::{BootClock, BootTime};
use crate::progress::{Loop, Progress};
use crate::view::{Judgement, Look, View};

/// Where a ticker stands between the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// `run` has not read the ledger yet.
    Starting,
    /// Another ticker leads, or nobody does and this one bids.
    Standby {
        /// The leader's identity, as far as known.
        leader: Option<String>,
    },
    /// This ticker leads, as far as it may believe: see [`Handle::is_leader`].
    Leading {
        /// The term.
        term: Term,
        /// From then on the process no longer believes it.
        trusted_until: BootTime,
    },
    /// The lease row is missing. Nobody plans until an operator restores it.
    LeaseMissing,
    /// The last term planned with newer time zone data; this build may not lead.
    ZoneDataOlder {
        /// The data it needs at least.
        required: String,
    },
    /// `run` has ended.
    Stopped,
}

/// Why a ticker is not ready.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotReady {
    /// `run` has not read the ledger yet.
    #[error("the ticker has not reached its ledger yet")]
    Starting,
    /// A loop has not succeeded for too long, as when the database is away.
    #[error("the {name} loop has not succeeded for {} s", age.as_secs())]
    Stalled {
        /// The loop.
        name: &'static str,
        /// For how long.
        age: Duration,
    },
    /// The lease row is missing.
    #[error(
        "the lease row of the partition is missing, nobody may plan; restore the row in table lease"
    )]
    LeaseMissing,
    /// The build's time zone data is older than the ledger's.
    #[error("time zone data {required} or newer is needed to lead; use a newer build")]
    ZoneDataOlder {
        /// The data it needs at least.
        required: String,
    },
    /// `run` has ended.
    #[error("the ticker has stopped")]
    Stopped,
}

macro_rules! stats {
    ($($(#[$meta:meta])* $name:ident,)+) => {
        /// Counts since the start of the process.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Stats { $($(#[$meta])* pub $name: u64,)+ }

        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: Counter,)+ }

        impl Counters {
            fn read(&self) -> Stats {
                Stats { $($name: self.$name.get(),)+ }
            }
        }
    };
}

stats! {
    /// Fires planned.
    fires,
    /// Fires that were there already when they were planned: a repeat, nothing changed.
    fires_existing,
    /// Executions planned.
    executions,
    /// Instants recorded as misfired.
    misfired,
    /// Schedules taken out of planning because they cannot be evaluated.
    faults,
    /// Terms won.
    terms_won,
    /// Terms that ended otherwise than by a stop.
    terms_lost,
    /// Planning statements that the ledger refused because the term was over.
    fenced_plans,
    /// Schedules that had changed between read and plan and were read again.
    conflicts,
    /// Calls of the planner that failed.
    plan_errors,
    /// Bids and renewals that failed.
    lease_errors,
    /// Calls of sweeps that failed.
    sweep_errors,
    /// Sessions declared lost.
    sessions_lost,
    /// Running executions taken from their claims.
    recovered,
    /// Due executions dispatched by the sweep.
    dispatched,
    /// Waiting executions ended at their start deadline or without an attempt left.
    starts_ended,
    /// UNKNOWN executions escalated.
    unknown_escalated,
    /// Idempotency keys forgotten.
    keys_forgotten,
    /// Schedules ended because no code defines them any more.
    definitions_retired,
    /// Breaks of the view of the ledger, the start apart.
    view_breaks,
    /// Clock anomalies seen.
    clock_anomalies,
}

/// A count that only rises.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

/// A cheap, cloneable look at a ticker.
#[derive(Debug, Clone)]
pub struct Handle {
    shared: Arc<Shared>,
}

/// What the loops of one ticker share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) clock: Arc<dyn BootClock>,
    pub(crate) holder: String,
    pub(crate) progress: Progress,
    pub(crate) counters: Counters,
    standing: watch::Sender<Standing>,
    view: Mutex<View>,
}

// === impl Counter ===

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

// === impl Handle ===

impl Handle {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Whether this process may believe that it leads: it holds a term and renewed it within
    /// [`Options::self_fence`]. Only the ledger knows for sure, and asks at every plan.
    pub fn is_leader(&self) -> bool {
        self.shared.leading().is_some()
    }

    /// The epoch of the term that this process may believe in.
    pub fn epoch(&self) -> Option<i64> {
        self.shared.leading().map(|term| term.epoch)
    }

    /// The identity of this process start, as written into the lease.
    pub fn holder(&self) -> &str {
        &self.shared.holder
    }

    /// Where the ticker stands.
    pub fn standing(&self) -> Standing {
        self.shared.standing.borrow().clone()
    }

    /// Counts since the start.
    pub fn stats(&self) -> Stats {
        self.shared.counters.read()
    }

    /// Time since planning last succeeded or had nothing to do; grows while the database is
    /// away. Counts from boot before the start.
    pub fn planning_age(&self) -> Duration {
        self.shared
            .progress
            .success_age(Loop::Planning, self.shared.clock.now())
    }

    /// Whether the ticker does its part, leader or not.
    ///
    /// # Errors
    ///
    /// [`NotReady`] says what is wrong.
    pub fn ready(&self) -> Result<(), NotReady> {
        match self.standing() {
            Standing::Starting => return Err(NotReady::Starting),
            Standing::Stopped => return Err(NotReady::Stopped),
            Standing::LeaseMissing => return Err(NotReady::LeaseMissing),
            Standing::ZoneDataOlder { required } => {
                return Err(NotReady::ZoneDataOlder { required });
            }
            Standing::Standby { .. } | Standing::Leading { .. } => {}
        }
        let now = self.shared.clock.now();
        match self
            .shared
            .progress
            .failing(now, self.shared.options.progress_max)
        {
            None => Ok(()),
            Some(one) => Err(NotReady::Stalled {
                name: one.as_str(),
                age: self.shared.progress.success_age(one, now),
            }),
        }
    }
}

// === impl Shared ===

impl Shared {
    pub(crate) fn new(options: Options, clock: Arc<dyn BootClock>) -> Self {
        Self {
            holder: options.fresh_holder(),
            view: Mutex::new(View::new(&options)),
            standing: watch::Sender::new(Standing::Starting),
            progress: Progress::default(),
            counters: Counters::default(),
            options,
            clock,
        }
    }

    /// Tells when the standing changes.
    pub(crate) fn watch_standing(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }

    /// Takes a new standing.
    pub(crate) fn stand(&self, standing: Standing) {
        self.standing.send_if_modified(|now| {
            let changed = *now != standing;
            *now = standing;
            changed
        });
    }

    /// Prolongs the belief in a term, unless the planner has learnt that it is over.
    pub(crate) fn trust(&self, term_id: Uuid, until: BootTime) {
        self.standing.send_if_modified(|now| match now {
            Standing::Leading {
                term,
                trusted_until,
            } if term.term_id == term_id => {
                *trusted_until = until;
                true
            }
            _ => false,
        });
    }

    /// Steps down from `term_id`, whoever learns first that it is over.
    pub(crate) fn step_down(&self, term_id: Uuid) {
        self.standing.send_if_modified(|now| {
            let led = leads(now, term_id);
            if led {
                *now = Standing::Standby { leader: None };
            }
            led
        });
    }

    /// The term this process may believe in now.
    pub(crate) fn leading(&self) -> Option<Term> {
        match &*self.standing.borrow() {
            Standing::Leading {
                term,
                trusted_until,
            } if self.clock.now() < *trusted_until => Some(term.clone()),
            _ => None,
        }
    }

    /// Takes a look at the ledger's clock into account and logs what it says.
    pub(crate) fn look(&self, look: Look) -> Judgement {
        let judgement = self.view().look(look);
        match judgement {
            Judgement::Unbroken => {}
            Judgement::First => tracing::info!(
                lease_s = self.options.session_lease.as_secs_f32(),
                "first look at the ledger: no session is declared lost for one lease"
            ),
            Judgement::Gap(gap) => {
                self.counters.view_breaks.add(1);
                tracing::warn!(
                    gap_s = gap.as_secs_f32(),
                    "the view of the ledger broke: no session is declared lost for one lease"
                );
            }
            Judgement::ClockStep(by) => {
                self.counters.view_breaks.add(1);
                self.counters.clock_anomalies.add(1);
                tracing::error!(
                    by_ms = by.num_milliseconds(),
                    "clock anomaly: the ledger's clock moved against boot time; planning rests \
                     for one term and no session is declared lost for one lease"
                );
            }
        }
        judgement
    }

    /// Whether sessions may be declared lost and executions overdue now.
    pub(crate) fn may_declare_losses(&self) -> bool {
        self.view().may_declare_losses(self.clock.now())
    }

    /// How much longer cursors are held.
    pub(crate) fn cursors_held_for(&self) -> Duration {
        self.view().cursors_held_for(self.clock.now())
    }

    fn view(&self) -> MutexGuard<'_, View> {
        // A panic inside a look leaves a view that is at worst too careful.
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether `standing` is leadership in this term.
pub(crate) fn leads(standing: &Standing, term_id: Uuid) -> bool {
    matches!(standing, Standing::Leading { term, .. } if term.term_id == term_id)
}
