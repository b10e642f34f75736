//! The terms that this process may believe in, and why one ends. Shared by the loops.

use std::collections::BTreeMap;
use std::sync::Arc;

use bellwether_store::leadership::Term;
use tokio::sync::{OwnedRwLockReadGuard, RwLock};
use uuid::Uuid;

use crate::clock::BootTime;
use crate::handle::Standing;
use crate::progress::Loop;

/// Why a term ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The process was asked to stop.
    Stopped,
    /// Another ticker is there to lead the partition.
    GivenUp,
    /// The number of partitions has changed.
    MapChanged,
    /// A renewal was refused.
    Lost,
    /// A planning statement was refused.
    Fenced,
    /// No renewal succeeded in time.
    SelfFenced,
    /// A loop made no progress.
    Stalled(Loop),
}

/// A term that this process holds, as far as it knows.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) term: Term,
    /// From then on the process no longer believes it.
    pub(crate) trusted_until: BootTime,
    /// Held by each planning statement under way.
    pub(crate) plans: Arc<RwLock<()>>,
}

/// What keeps a process from a lease that is free.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// A lease row is missing.
    LeaseMissing,
    /// The last term planned with newer time zone data.
    ZoneDataOlder { required: String },
}

/// How far the life of the process has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    #[default]
    Starting,
    Running,
    Stopped,
}

/// Where this process stands, as one value that the loops watch.
#[derive(Debug, Clone, Default)]
pub(crate) struct Terms {
    pub(crate) phase: Phase,
    /// By partition.
    held: BTreeMap<i32, Held>,
    /// Of another process, as far as known.
    pub(crate) leader: Option<String>,
    pub(crate) obstacle: Option<Obstacle>,
}

/// A planning statement is under way; the term is not given back before it has ended.
pub(crate) type UnderWay = OwnedRwLockReadGuard<()>;

// === impl End ===

impl End {
    /// Whether it is what an operator wants to know of.
    pub(crate) const fn is_loss(self) -> bool {
        !matches!(self, Self::Stopped | Self::GivenUp)
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stopped => f.write_str("asked to stop"),
            Self::GivenUp => f.write_str("another ticker takes its share"),
            Self::MapChanged => f.write_str("the number of partitions has changed"),
            Self::Lost => f.write_str("a renewal was refused"),
            Self::Fenced => f.write_str("a plan was refused"),
            Self::SelfFenced => f.write_str("no renewal succeeded in time"),
            Self::Stalled(stalled) => write!(f, "the {} loop makes no progress", stalled.as_str()),
        }
    }
}

// === impl Terms ===

impl Terms {
    /// All terms that have not ended, believed in or not, by partition.
    pub(crate) fn held(&self) -> impl ExactSizeIterator<Item = &Held> {
        self.held.values()
    }

    /// The terms to believe in at `now`, by partition.
    pub(crate) fn trusted(&self, now: BootTime) -> impl Iterator<Item = &Term> {
        let trusted = self.held().filter(move |held| now < held.trusted_until);
        trusted.map(|held| &held.term)
    }

    pub(crate) fn win(&mut self, term: Term, trusted_until: BootTime) {
        let held = Held {
            trusted_until,
            plans: Arc::default(),
            term,
        };
        self.held.insert(held.term.partition, held);
    }

    /// Prolongs the belief in a term, unless it has ended; says whether it did.
    pub(crate) fn trust(&mut self, term: &Term, until: BootTime) -> bool {
        match self.held.get_mut(&term.partition) {
            Some(held) if held.term == *term => {
                held.trusted_until = until;
                true
            }
            _ => false,
        }
    }

    /// Ends the belief in a term; none if that has happened already.
    pub(crate) fn end(&mut self, term_id: Uuid) -> Option<Held> {
        let found = self.held().find(|held| held.term.term_id == term_id);
        let partition = found?.term.partition;
        self.held.remove(&partition)
    }

    /// Leave to send one planning statement inside the term; none if it is over at `now`.
    pub(crate) fn plan(&self, term: &Term, now: BootTime) -> Option<UnderWay> {
        let held = self.held.get(&term.partition)?;
        if held.term != *term || now >= held.trusted_until {
            return None;
        }
        let plans = Arc::clone(&held.plans);
        plans.try_read_owned().ok()
    }

    /// As others see it.
    pub(crate) fn standing(&self) -> Standing {
        match (self.phase, &self.obstacle) {
            (Phase::Starting, _) => Standing::Starting,
            (Phase::Stopped, _) => Standing::Stopped,
            (Phase::Running, _) if !self.held.is_empty() => Standing::Leading {
                terms: self.held().map(|held| held.term.clone()).collect(),
            },
            (Phase::Running, Some(Obstacle::LeaseMissing)) => Standing::LeaseMissing,
            (Phase::Running, Some(Obstacle::ZoneDataOlder { required })) => {
                Standing::ZoneDataOlder {
                    required: required.clone(),
                }
            }
            (Phase::Running, None) => Standing::Standby {
                leader: self.leader.clone(),
            },
        }
    }
}
