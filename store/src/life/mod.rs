//! The life of an execution: one pure state machine, `(row, event) → (row, effects, answer)`.
//!
//! ```text
//!            claim                     Complete                        ┌───────────┐
//!  pending ─────────► running ───────────────────────────────────────►│ succeeded │
//!     │      ▲          │ │ │           Fail, or no attempt left        ├───────────┤
//!     │      │          │ │ └────────────────────────────────────────►│  failed   │
//!     │      │ claim    │ │             Cancel, or asked to             ├───────────┤
//!     │   retrying ◄────┘ │  ┌──────────────────────────────────────►│ cancelled │
//!     │      │  ▲  Retry, │  │                                         ├───────────┤
//!     │      │  │  Snooze,│  │           nobody started it in time     │  expired  │
//!     │      │  │  Release│  │        ┌──────────────────────────────►└───────────┘
//!     │      │  │  worker lost,         │                                    ▲
//!     │      │  │  on_lost="unknown"    │                                    │
//!     │      │  │         ▼  │        │        late result, probe, operator │
//!     │      │  └───── unknown ───────┼─────────────────────────────────────┘
//!     └──────┴────────────────────────┘
//! ```
//!
//! Nothing here reads a clock, draws a number or speaks to a database. The SQL of both stores does
//! the same under the row's lock, and `tests/conformance/life` holds it to that: the same random
//! histories run through both, and after every step row, effects and answer are equal.
//!
//! **Conditions, not events.** That time has passed or that a process has died is a [`Fact`]: it
//! becomes true by itself and changes nothing but that. A [`Sweep`] finds it whenever it looks.
//!
//! **The fence.** A claim yields a [`Token`]. What is written under it counts while it is the
//! row's; a new claim has another. Dispatches and probes have numbers of their own for the same end.
//!
//! Who moves each state on, and what a crash leaves behind, as a table: `docs/life.md`.

mod cancel;
mod claim;
mod commit;
mod dispatch;
mod effect;
mod event;
mod execution;
mod moves;
mod probe;
mod sweep;

pub(crate) use commit::commit;
pub use effect::{Answer, Effect};
pub use event::{Actor, Event, Sweep};
pub use execution::{
    Attempt, Dispatch, Execution, Fact, Flag, LastRefusal, LeftBy, Pinned, Probes, Said, Token,
};

/// What an event makes of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The row from here on.
    pub next: Execution,
    /// Rows written elsewhere by the same statement.
    pub effects: Vec<Effect>,
    /// What the caller is told.
    pub answer: Answer,
}

/// The transition function. Total: what does not apply changes nothing, and says so.
pub fn step(row: &Execution, event: &Event) -> Step {
    match event {
        Event::Happens(fact) => moves::happens(row, *fact),
        Event::Publish => dispatch::publish(row),
        Event::Undeliverable { dispatch_no } => dispatch::undeliverable(row, *dispatch_no),
        Event::Redispatch => dispatch::redispatch(row),
        Event::Overdue {
            dispatch_no,
            idle,
            unclaimed_max,
        } => dispatch::overdue(row, *dispatch_no, *idle, *unclaimed_max),
        Event::Claim {
            claim_id,
            dispatch_no,
            live,
        } => claim::claim(row, *claim_id, *dispatch_no, *live),
        Event::Pin { token, policy } => claim::pin(row, *token, *policy),
        Event::Defer { dispatch_no } => claim::defer(row, *dispatch_no),
        Event::Checkpoint { token, bytes } => commit::checkpoint(row, *token, bytes),
        Event::Commit {
            token,
            outcome,
            in_transaction,
        } => commit::commit(row, *token, outcome, *in_transaction),
        Event::Standing { claim_id } => commit::standing(row, *claim_id),
        Event::ClaimProbe {
            probe_id,
            dispatch_no,
            live,
        } => probe::claim(row, *probe_id, *dispatch_no, *live),
        Event::Verdict { probe_id, verdict } => probe::verdict(row, *probe_id, *verdict),
        Event::DeclineProbe {
            probe_id,
            elsewhere,
        } => probe::decline(row, *probe_id, *elsewhere),
        Event::ReleaseProbe { probe_id } => probe::release(row, *probe_id),
        Event::Sweep(sweep) => sweep::sweep(row, *sweep),
        Event::RequestCancel => cancel::request(row),
        Event::Resolve { token, verdict } => probe::resolve(row, *token, *verdict),
    }
}
