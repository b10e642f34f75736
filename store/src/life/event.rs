//! What can happen to an execution.

use bellwether_schemas::state::Verdict;
use uuid::Uuid;

use super::{Fact, Pinned, Token};
use crate::executions::Outcome;

/// One thing that happens: a call that reaches the row's lock, or the passing of time.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Something becomes true by itself.
    Happens(Fact),

    /// A relay hands the outbox to the broker, and the broker stores it.
    Publish,
    /// The broker refuses the message of a dispatch for its own sake.
    Undeliverable {
        /// That dispatch.
        dispatch_no: u32,
    },
    /// A relay sends again what a lost stream held.
    Redispatch,
    /// A relay finds that a single message is lost.
    Overdue {
        /// Its dispatch.
        dispatch_no: u32,
        /// Whether a worker that serves it had free slots ever since.
        idle: bool,
        /// Such dispatches that end the execution (default 5).
        unclaimed_max: u32,
    },

    /// A worker asks for what a message named.
    Claim {
        /// Its token; the same on every repeat.
        claim_id: Uuid,
        /// The dispatch its message named.
        dispatch_no: u32,
        /// Whether the worker's session is live.
        live: bool,
    },
    /// A worker that has the job pins its policy on the claim of what was recorded without it.
    Pin {
        /// The fence.
        token: Token,
        /// The job's own.
        policy: Pinned,
    },
    /// A worker has no handler for the job of a message.
    Defer {
        /// The dispatch its message named.
        dispatch_no: u32,
    },
    /// A handler saves how far it is.
    Checkpoint {
        /// The fence.
        token: Token,
        /// What it saves.
        bytes: Vec<u8>,
    },
    /// A worker tells a result.
    Commit {
        /// The fence.
        token: Token,
        /// The result.
        outcome: Outcome,
        /// In a transaction of the handler's own, which keeps nothing of what is refused.
        in_transaction: bool,
    },
    /// After a transaction of the handler's own: a worker reads how its claim stands.
    Standing {
        /// The claim.
        claim_id: Uuid,
    },
    /// A worker asks for the probe that a message named.
    ClaimProbe {
        /// Its token; the same on every repeat.
        probe_id: Uuid,
        /// The dispatch its message named.
        dispatch_no: u32,
        /// Whether the worker's session is live.
        live: bool,
    },
    /// A probe says what became of the effect.
    Verdict {
        /// The fence: the probe's claim.
        probe_id: Uuid,
        /// What it says; never [`Verdict::Abandon`].
        verdict: Verdict,
    },
    /// A worker's build has no probe for the job.
    DeclineProbe {
        /// The fence: the probe's claim.
        probe_id: Uuid,
        /// Whether a live worker of the queue has one.
        elsewhere: bool,
    },
    /// A worker gives a probe back that said nothing.
    ReleaseProbe {
        /// The fence: the probe's claim.
        probe_id: Uuid,
    },

    /// A condition is settled that any ticker sees.
    Sweep(Sweep),

    /// Somebody asks it to stop.
    RequestCancel,
    /// An operator says what became of an `unknown` effect.
    Resolve {
        /// Chosen by the operator's command; the same on every repeat.
        token: Uuid,
        /// `done`, `not_done` or `abandon`.
        verdict: Verdict,
    },
}

/// A condition on the row that a sweep settles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sweep {
    /// Runs without a live session, or past its deadline.
    LostWork,
    /// Due, and not dispatched.
    Due,
    /// `unknown`, and nobody asks what became of it.
    Probes,
    /// A probe without a live session, or past its deadline.
    LostProbes,
    /// Held behind a fire that has ended.
    Held,
    /// Of a fire that another replaces.
    Replaced,
    /// Waits past its start deadline, without an attempt left, or with a cancel request.
    Starts,
    /// `unknown` for long.
    Unknown,
}

impl Sweep {
    /// Every sweep.
    pub const ALL: [Self; 8] = [
        Self::LostWork,
        Self::Due,
        Self::Probes,
        Self::LostProbes,
        Self::Held,
        Self::Replaced,
        Self::Starts,
        Self::Unknown,
    ];
}

/// Who makes an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Actor {
    /// Nobody: time passes, a process dies.
    World,
    /// An outbox-relay.
    Relay,
    /// A worker.
    Worker,
    /// A worker that runs a probe.
    Probe,
    /// Any ticker, leader or not.
    Sweep,
    /// A person or a client.
    Operator,
}

impl Event {
    /// Who makes it.
    pub const fn by(&self) -> Actor {
        match self {
            Self::Happens(_) => Actor::World,
            Self::Publish
            | Self::Undeliverable { .. }
            | Self::Redispatch
            | Self::Overdue { .. } => Actor::Relay,
            Self::Claim { .. }
            | Self::Pin { .. }
            | Self::Defer { .. }
            | Self::Checkpoint { .. }
            | Self::Commit { .. }
            | Self::Standing { .. } => Actor::Worker,
            Self::ClaimProbe { .. }
            | Self::Verdict { .. }
            | Self::DeclineProbe { .. }
            | Self::ReleaseProbe { .. } => Actor::Probe,
            Self::Sweep(_) => Actor::Sweep,
            Self::RequestCancel | Self::Resolve { .. } => Actor::Operator,
        }
    }
}
