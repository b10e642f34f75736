//! The ticker: rings when something is due. One of several leads and plans; all of them sweep.
//!
//! [`Ticker`] is the service with one [`run`](Ticker::run), [`Options`] its settings,
//! [`Handle`] the view from outside. When schedules are due is the business of the crate
//! `bellwether-time`; SQL stands behind [`bellwether_store::Store`]; the ticker knows no
//! broker, only a [`Waker`].
//!
//! # The protocol of terms
//!
//! **Identity.** A ticker is a process start, `<host>/<pid>/<random>`: three tickers of one
//! host are three. A term is `(epoch, term_id)`: a counter that rises with each term and a
//! random token. Renewals, plans and resignations name the term, never the holder, so nobody
//! can renew another's lease.
//!
//! **What the ledger decides.** Who leads, from when and until when, by its own clock, on one
//! lease row per partition. A bid takes the row `FOR UPDATE`, which waits for planners that
//! hold it `FOR KEY SHARE`; so the last plan of the old term and the first of the new one are
//! never at work together. Every plan is one statement that checks term, epoch, partition map
//! and expiry and moves cursors by compare-and-set; nothing that a client does or fails to do
//! between two statements can hold a lock. A lease row that is missing is an error that all
//! tickers show; none of them plans.
//!
//! **What local time may decide.** Only to stop early. The process believes in its term for
//! [`Options::self_fence`] of *boot* time (it goes on during suspend) from the moment before
//! the last good renewal was sent, which is sooner than the ledger could end it. A process
//! that was stopped for a while therefore knows on waking that it no longer leads, and if it
//! does not, the ledger refuses its plan.
//!
//! ```text
//!                    a bid is won (epoch + 1)
//!        ┌─────────┐ ──────────────────────────────────► ┌─────────┐ renewed every 3 s
//!   ────►│ standby │                                     │ leading │ ◄─┐
//!        └─────────┘ ◄────────────────────────────────── └─────────┘ ──┘
//!          │     ▲     · a renewal or a plan is refused      │
//!          │     │     · no good renewal for 7 s             │
//!    bids  │     │     · a loop made no progress for 15 s:   │ shutdown: plans finish,
//!    every └─────┘       resigns, and rests for one lease    │ then resigns
//!    1 s                 before the next bid                 ▼
//!          lease row missing, zone data too old:         ┌─────────┐
//!          stays here, says so, bids on                  │ stopped │
//!                                                        └─────────┘
//! ```
//!
//! **Stepping down** is immediate and may come from either side: the leadership loop, or the
//! planner whose statement answered `term_ok = false`. It costs nothing but time: what was
//! planned is in the ledger, what was not is still behind the cursors, and the next leader
//! computes the same fires with the same ids.
//!
//! # Sweeps and the unbroken view
//!
//! Sweeps need no term (see [`bellwether_store::sweeps`]). One thing they must not do is to
//! declare workers dead that only could not reach the ledger, because it was away or this
//! process slept: see [`Options::session_lease`] and [`Options::view_gap`]. The same looks at
//! the ledger's clock find steps of that clock, which also hold all cursors for one term.
//!
//! # Supervision
//!
//! Each loop leaves a stamp; a term is renewed only while all are fresh. A loop that panics or
//! ends ends the role with an [`Error`]: the process restarts, and loses nothing.

mod calls;
mod clock;
mod error;
mod handle;
mod leadership;
mod loops;
mod options;
mod planner;
mod planning;
mod progress;
mod sweeps;
mod ticker;
mod view;
mod waker;
mod watch;

pub use clock::{BootClock, BootTime, SystemBootClock};
pub use error::Error;
pub use handle::{Handle, NotReady, Standing, Stats};
pub use options::Options;
pub use ticker::Ticker;
pub use view::{Judgement, Look, View};
pub use waker::{NoWaker, Waker};
