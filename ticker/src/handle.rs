//! What others may know of a ticker, and what its loops share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bellwether_store::leadership::Term;
use tokio::sync::{Notify, watch};
use uuid::Uuid;

use crate::Options;
use crate::clock::{BootClock, BootTime};
use crate::progress::{Loop, Progress};
use crate::terms::{End, Held, Obstacle, Phase, Terms, UnderWay};
use crate::view::{Judgement, Look, View};

/// Where a ticker stands between the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// `run` has not read the ledger yet.
    Starting,
    /// Another ticker leads, or nobody does and this one bids.
    Standby {
        /// The identity of a leader, as far as known.
        leader: Option<String>,
    },
    /// This ticker leads, as far as it may believe: see [`Handle::is_leader`].
    Leading {
        /// The terms it holds, by partition.
        terms: Vec<Term>,
    },
    /// This ticker leads nothing, and a lease row is missing. Nobody plans its partition until an
    /// operator restores it.
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
    /// A loop has not succeeded since the start: a database that takes no writes looks so.
    #[error("the {name} loop has not succeeded yet")]
    NotYet {
        /// The loop.
        name: &'static str,
    },
    /// A loop has not succeeded for too long, as when the database is away.
    #[error("the {name} loop has not succeeded for {} s", age.as_secs())]
    Stalled {
        /// The loop.
        name: &'static str,
        /// For how long.
        age: Duration,
    },
    /// A lease row is missing: nobody plans its partition; all others go on.
    #[error(
        "the lease row of a partition is missing, nobody may plan that partition; restore the row \
         in table lease"
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
    /// Instants recorded as skipped or coalesced.
    overlapped,
    /// Schedules taken out of planning because they cannot be evaluated.
    faults,
    /// Terms won.
    terms_won,
    /// Terms that ended otherwise than by a stop or for another ticker's share.
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
    /// Held fires let go.
    fires_released,
    /// Replaced fires whose executions were all asked to stop.
    fires_cancelled,
    /// Waiting executions ended at their start deadline or without an attempt left.
    starts_ended,
    /// UNKNOWN executions escalated for their age.
    unknown_escalated,
    /// Probes of UNKNOWN executions dispatched.
    probes_dispatched,
    /// Probes taken back from their workers.
    probes_recovered,
    /// Idempotency keys forgotten.
    keys_forgotten,
    /// Schedules ended because no code defines them any more.
    definitions_retired,
    /// Rows of history deleted, of all kinds.
    history_deleted,
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
    /// Of this process start, as `holder`.
    pub(crate) id: Uuid,
    pub(crate) holder: String,
    pub(crate) progress: Progress,
    pub(crate) counters: Counters,
    /// A term has ended: the partitions are looked at at once.
    pub(crate) look_again: Notify,
    /// The time of a term is over: it is given back at once.
    pub(crate) keep_now: Notify,
    terms: watch::Sender<Terms>,
    /// No bid before this, in milliseconds of boot time.
    bids_rest_until: AtomicU64,
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

    /// Whether this process may believe that it leads a partition: it holds a term and renewed it
    /// within [`Options::self_fence`]. Only the ledger knows for sure, and asks at every plan.
    pub fn is_leader(&self) -> bool {
        !self.shared.leading().is_empty()
    }

    /// The terms that this process may believe in, by partition.
    pub fn terms(&self) -> Vec<Term> {
        self.shared.leading()
    }

    /// The epoch of the first of these terms: of the only one where there is one partition.
    pub fn epoch(&self) -> Option<i64> {
        self.shared.leading().first().map(|term| term.epoch)
    }

    /// The identity of this process start, as written into the lease.
    pub fn holder(&self) -> &str {
        &self.shared.holder
    }

    /// Where the ticker stands.
    pub fn standing(&self) -> Standing {
        self.shared.terms.borrow().standing()
    }

    /// Counts since the start.
    pub fn stats(&self) -> Stats {
        self.shared.counters.read()
    }

    /// Time since planning last succeeded or had nothing to do; grows while the database is
    /// away. Counts from boot before the start.
    pub fn planning_age(&self) -> Duration {
        let Shared {
            progress, clock, ..
        } = &*self.shared;
        let now = clock.now();
        let planning = progress.success_age(Loop::Planning, now);
        if self.is_leader() {
            return planning;
        }
        // Nothing to plan, as far as the last look at the leases says.
        planning.max(progress.success_age(Loop::Leadership, now))
    }

    /// Whether the ticker does its part, leader or not.
    ///
    /// # Errors
    ///
    /// [`NotReady`] says what is wrong.
    pub fn ready(&self) -> Result<(), NotReady> {
        {
            let terms = self.shared.terms.borrow();
            match terms.phase {
                Phase::Starting => return Err(NotReady::Starting),
                Phase::Stopped => return Err(NotReady::Stopped),
                Phase::Running => {}
            }
            match &terms.obstacle {
                Some(Obstacle::LeaseMissing) => return Err(NotReady::LeaseMissing),
                Some(Obstacle::ZoneDataOlder { required }) => {
                    let required = required.clone();
                    return Err(NotReady::ZoneDataOlder { required });
                }
                None => {}
            }
        }
        let Shared {
            progress, options, ..
        } = &*self.shared;
        let now = self.shared.clock.now();
        if let Some(one) = progress.failing(now, options.progress_max) {
            return Err(NotReady::Stalled {
                name: one.as_str(),
                age: progress.success_age(one, now),
            });
        }
        match progress.unproved() {
            None => Ok(()),
            Some(one) => Err(NotReady::NotYet { name: one.as_str() }),
        }
    }
}

// === impl Shared ===

impl Shared {
    pub(crate) fn new(options: Options, clock: Arc<dyn BootClock>) -> Self {
        Self {
            id: bellwether_schemas::ids::token(),
            holder: options.fresh_holder(),
            view: Mutex::new(View::new(&options)),
            look_again: Notify::new(),
            keep_now: Notify::new(),
            terms: watch::Sender::default(),
            bids_rest_until: AtomicU64::new(0),
            progress: Progress::default(),
            counters: Counters::default(),
            options,
            clock,
        }
    }

    /// Tells when the terms change.
    pub(crate) fn watch_terms(&self) -> watch::Receiver<Terms> {
        self.terms.subscribe()
    }

    /// The process begins or ends its work.
    pub(crate) fn enter(&self, phase: Phase) {
        self.terms.send_modify(|terms| terms.phase = phase);
    }

    /// Knows of a process that leads a partition.
    pub(crate) fn stand_by(&self, leader: Option<String>) {
        self.change(|terms| &mut terms.leader, leader);
    }

    /// Knows of what keeps it from leading.
    pub(crate) fn obstruct(&self, obstacle: Option<Obstacle>) {
        self.change(|terms| &mut terms.obstacle, obstacle);
    }

    fn change<T: PartialEq>(&self, field: fn(&mut Terms) -> &mut T, value: T) {
        self.terms.send_if_modified(|terms| {
            let field = field(terms);
            let changed = *field != value;
            *field = value;
            changed
        });
    }

    /// Whether others may count on it to lead: a lease row that is missing hinders all alike.
    pub(crate) fn is_outdated(&self) -> bool {
        let terms = self.terms.borrow();
        matches!(terms.obstacle, Some(Obstacle::ZoneDataOlder { .. }))
    }

    /// Whether it holds a term, believed in or not.
    pub(crate) fn holds_any(&self) -> bool {
        self.terms.borrow().held().len() > 0
    }

    /// Begins to believe in a term.
    pub(crate) fn win(&self, term: Term, trusted_until: BootTime) {
        self.terms
            .send_modify(|terms| terms.win(term, trusted_until));
    }

    /// Prolongs the belief in a term, unless somebody has learnt that it is over.
    pub(crate) fn trust(&self, term: &Term, until: BootTime) {
        self.terms
            .send_if_modified(|terms| terms.trust(term, until));
    }

    /// Ends the belief in a term, whoever learns first that it is over; none if that has happened
    /// already.
    pub(crate) fn end(&self, term: &Term, why: End) -> Option<Held> {
        let mut ended = None;
        self.terms.send_if_modified(|terms| {
            ended = terms.end(term.term_id);
            ended.is_some()
        });
        ended.as_ref()?;
        let (epoch, partition) = (term.epoch, term.partition);
        if why.is_loss() {
            self.counters.terms_lost.add(1);
            tracing::warn!(epoch, partition, %why, "the term is over");
        } else {
            tracing::info!(epoch, partition, %why, "resigning");
        }
        ended
    }

    /// All terms that have not ended, believed in or not, by partition.
    pub(crate) fn held(&self) -> Vec<Held> {
        self.terms.borrow().held().cloned().collect()
    }

    /// The terms this process may believe in now, by partition.
    pub(crate) fn leading(&self) -> Vec<Term> {
        let terms = self.terms.borrow();
        terms.trusted(self.clock.now()).cloned().collect()
    }

    /// Leave to send one planning statement inside the term; none if it is over.
    pub(crate) fn plan(&self, term: &Term) -> Option<UnderWay> {
        self.terms.borrow().plan(term, self.clock.now())
    }

    /// No bid before `until`.
    pub(crate) fn rest_until(&self, until: BootTime) {
        self.bids_rest_until
            .store(until.millis(), Ordering::Relaxed);
    }

    /// Whether bids may go on.
    pub(crate) fn has_rested(&self, now: BootTime) -> bool {
        now >= BootTime::from_millis(self.bids_rest_until.load(Ordering::Relaxed))
    }

    /// Takes a look at the ledger's clock into account and logs what it says.
    pub(crate) fn look(&self, look: Look) -> Judgement {
        let judgement = self.view().look(look);
        match judgement {
            Judgement::Unbroken => {}
            Judgement::First => tracing::info!(
                lease_s = self.options.session_lease.as_secs_f32(),
                "first look at the ledger: no session is declared lost for one lease, and nothing \
                 is deleted for its age before its clock has been steady for a while"
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

    /// Whether what is old by the ledger's clock may be deleted now.
    pub(crate) fn may_delete(&self) -> bool {
        self.view().may_delete(self.clock.now())
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
