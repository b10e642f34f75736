//! What an event leaves behind besides the row, and what its caller is told.

use bellwether_schemas::state::{DeadReason, State, Verdict};

use super::{Attempt, Token};
use crate::checkpoints::CheckpointSaved;
use crate::executions::{Committed, Refusal};
use crate::inspect::ClaimState;
use crate::probes::{Decided, Declined};

/// A row written elsewhere, by the statement that writes the execution's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// An outbox row.
    Dispatch {
        /// Its dispatch.
        dispatch_no: u32,
    },
    /// The broker has the message of this dispatch.
    Sent {
        /// That dispatch.
        dispatch_no: u32,
    },
    /// A row of the history: the attempt that a claim superseded.
    Supersede(Attempt),
    /// A refused result, kept for audit; one for each claim.
    KeepFenced {
        /// Whose result it is.
        token: Token,
        /// `Outcome::as_str`.
        outcome: &'static str,
        /// What the fence found.
        found: State,
        /// What the fence found.
        found_generation: i64,
    },
    /// What was said of an `unknown` effect.
    KeepVerdict {
        /// Which probe said it; none = an operator.
        probe_no: Option<u32>,
        /// What it said.
        verdict: Verdict,
    },
    /// A dead letter.
    Bury(DeadReason),
}

/// What the caller is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// To nobody: time has no ears.
    Nothing,
    /// To a relay or a sweep: whether there was anything to do with this row.
    Handled(bool),
    /// To a claim: the caller runs it.
    Claimed {
        /// The fence.
        generation: i64,
        /// Which try it is.
        attempt: u32,
    },
    /// To a claim that pins a policy.
    Pinned {
        /// Most charged tries from here on.
        max_attempts: u32,
    },
    /// To a claim that pins a policy: it holds nothing any more.
    NotPinned,
    /// To a claim: the caller claims the probe with the same token.
    ProbeDue,
    /// To the claim of a probe: the caller asks what became of the effect.
    Probe {
        /// Which probe it is.
        probe_no: u32,
    },
    /// To a claim: definitely not; the message is acked.
    Refused(Refusal),
    /// To the claim of a probe: not now; nothing is said to the broker.
    Busy,
    /// To a claim: the caller's session is not live.
    SessionLost,
    /// To a result.
    Committed(Committed),
    /// To a worker after a transaction of its handler's own.
    Standing(ClaimState),
    /// To a checkpoint.
    Saved(CheckpointSaved),
    /// To a verdict.
    Decided(Decided),
    /// To a worker without a probe.
    Declined(Declined),
    /// To a request to cancel: it runs, its worker is told.
    CancelRequested,
    /// To a request to cancel: it is over.
    Cancelled,
    /// To a request to cancel: it had ended before.
    Ended(State),
}
