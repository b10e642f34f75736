//! The ticker: rings when something is due. Of several, one leads each partition of the schedules
//! and plans it; all of them sweep.
//!
//! [`Ticker`] is the service with one [`run`](Ticker::run), [`Options`] its settings,
//! [`Handle`] the view from outside. When schedules are due is the business of the crate
//! `bellwether-time`; SQL stands behind [`bellwether_store::Store`]; the ticker knows no
//! broker, only a [`Waker`].
//!
//! # The protocol of terms
//!
//! **Identity.** A ticker is a process start, `<host>/<pid>/<random>`: three tickers of one
//! host are three. A term is `(epoch, term_id)`: a counter that rises with each term of its
//! partition and a random token. Renewals, plans and resignations name the term, never the holder, so nobody
//! can renew another's lease.
//!
//! **What the ledger decides.** Who leads, from when and until when, by its own clock, on one
//! lease row per partition. A bid takes the row `FOR UPDATE`, which waits for planners that
//! hold it `FOR KEY SHARE`; so the last plan of the old term and the first of the new one are
//! never at work together. Every plan is one statement that checks term, epoch, partition map
//! and expiry and moves cursors by compare-and-set; nothing that a client does or fails to do
//! between two statements can hold a lock. A lease row that is missing is an error that all
//! tickers show; none of them plans its partition, and all others go on.
//!
//! **What local time may decide.** Only to stop early. The process believes in its term for
//! [`Options::self_fence`] of *boot* time (it goes on during suspend) from the moment before
//! the last good renewal was sent, which is sooner than the ledger could end it. A process
//! that was stopped for a while therefore knows on waking that it no longer leads, and if it
//! does not, the ledger refuses its plan. What the process believes in no more it gives back: all
//! terms in one statement, and any lease in its name that it does not know of, as after a bid
//! whose answer came too late.
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
//!          zone data too old: stays here,                ┌─────────┐
//!          says so, bids for what it may lead            │ stopped │
//!                                                        └─────────┘
//! ```
//!
//! **Stepping down** is immediate and may come from either side: the leadership loop, or the
//! planner whose statement answered `term_ok = false`. It costs nothing but time: what was
//! planned is in the ledger, what was not is still behind the cursors, and the next leader
//! computes the same fires with the same ids.
//!
//! # Partitions
//!
//! A schedule belongs to one partition; there is one by default, and one leader. With more, a
//! process may hold several terms, renews them in one statement, and plans each partition under its
//! own: a lost term stops its partition and no other.
//!
//! **Shares.** Each process says once in a while in the table `ticker` that it is there and that it
//! can lead. With `k` of them each bids for no more than a `k`-th of the partitions, rounded up, and
//! gives up what it has above that, or above a `k`-th rounded down while another has less: it stops
//! believing in the term, lets its statements under way end, and resigns. Who is alone leads all. A
//! share is a courtesy and decides nothing; the leases do.
//!
//! **Another number of partitions.** [`grow_partitions`] takes the map and all leases `FOR UPDATE`,
//! divides the schedules anew, raises the map's version and ends all terms, in one transaction. A
//! plan or a renewal that names the old map writes nothing; its process looks at the map at once and
//! goes on by the new one, or ends if it is configured for another number.
//!
//! [`grow_partitions`]: bellwether_store::partitions::Partitions::grow_partitions
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
//! Each loop leaves a stamp; a term is renewed only while all are fresh, and [`Handle::ready`] says
//! which one is not. A loop that panics or ends, or that has not come round for
//! [`Options::stall_max`], ends the role with an [`Error`]: the process restarts, and loses nothing.

mod behind;
mod bids;
mod calls;
mod clock;
mod error;
mod gauges;
mod handle;
mod holds;
mod leadership;
mod loops;
mod options;
mod planner;
mod planning;
mod progress;
mod sharing;
mod sweeps;
mod terms;
mod ticker;
mod view;
mod waker;
mod watch;
mod watchdog;

pub use clock::{BootClock, BootTime, SystemBootClock};
pub use error::Error;
pub use handle::{Handle, NotReady, Standing, Stats};
pub use options::Options;
pub use ticker::Ticker;
pub use view::{Judgement, Look, View};
pub use waker::{NoWaker, Waker};
