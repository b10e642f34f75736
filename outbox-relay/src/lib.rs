//! From the outbox to JetStream.
//!
//! The ledger says what was dispatched; this crate carries it to the broker and notices when
//! the broker has forgotten it. It keeps nothing of its own: every row it holds is leased, so
//! a relay may be killed at any line and another one goes on. Any number of relays may run.
//!
//! ```text
//!   ledger                         relay                              broker
//!   outbox ── claim (lease) ──► publisher ── publish, pipelined ──► <NS>_WORK
//!     ▲                             │ ◄──────────── PubAck ───────────┘
//!     └── delete / return ──────────┘
//!   queues, stream marks ◄──► keeper ── declare, compare ────────► streams, consumers
//! ```
//!
//! | file | what it answers |
//! |---|---|
//! | [`mod@declare`] | which streams and consumers there are, and what if they differ |
//! | [`amnesia`] | has the broker forgotten what it confirmed? |
//! | [`migrate()`] | the broker's half of `bellwether migrate` |
//! | [`relay`] | options, start and end of the relay |
//! | `keeper` | declaration, stream marks, new queues, re-dispatch |
//! | `publisher` | claim, publish, PubAcks |
//! | `watch` | messages lost one by one, consumers that deliver nothing |
//! | `standing` | since when a consumer stands as it stands |
//! | `strays` | submitted messages of queues that nobody has named |
//! | `meter` | the consumers' standing, as gauges; one that is gone |
//! | `listen` | what others say, so that one looks sooner |
//! | `parts` | supervision and readiness |
//! | [`nats`] | a connection with our habits |
//! | [`wake`] | the signal that shortens the relay's poll |
//!
//! # Invariants
//!
//! * Nothing is published on a connection before the streams were declared and compared with
//!   their marks on that connection (`gate`).
//! * A row leaves the outbox only on a PubAck. An answer that did not come counts against no
//!   row: the same message id is sent again.
//! * Back-off is per lane and in memory; no row is rewritten for it.
//! * No decision reads a delivery count, and no lock is held across a network call.

pub mod amnesia;
mod backoff;
pub mod declare;
mod error;
mod flight;
mod gate;
mod keeper;
mod limiter;
mod listen;
mod message;
mod meter;
mod migrate;
pub mod nats;
mod parts;
mod publisher;
pub mod relay;
mod standing;
mod stats;
mod strays;
pub mod wake;
mod watch;

pub use declare::{Declared, Mode, StreamIdentity, StreamLimits, declare};
pub use error::Error;
pub use migrate::migrate;
pub use nats::{Error as NatsError, connect_nats};
pub use relay::{Handle, NotReady, Options, Relay};
pub use stats::Stats;
pub use strays::stray_queues;
pub use wake::NatsWaker;
