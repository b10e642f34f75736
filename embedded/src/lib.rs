//! Everything in one process: ticker, relay, worker and ledger live in the program that links
//! this crate. Nothing else is deployed but a nats-server, and that may be a child of the
//! process.
//!
//! ```no_run
//! use bellwether_embedded::Embedded;
//! use bellwether_worker::{Context, Worker, job};
//!
//! #[job(name = "tidy", every = "1m")]
//! async fn tidy(_ctx: Context) -> Result<(), std::io::Error> { Ok(()) }
//!
//! # async fn example() -> Result<(), bellwether_embedded::Error> {
//! let running = Embedded::builder()
//!     .folder("data/bellwether")                            // ledger, broker's store, logs
//!     .worker(Worker::builder().register(tidy::job()))
//!     .start()
//!     .await?;
//! // … the program's own work, with `running.client()` to ask for jobs …
//! running.shutdown().await
//! # }
//! ```
//!
//! # What is whose
//!
//! | part | default | or |
//! |---|---|---|
//! | ledger | SQLite: `ledger.db` in the folder, migrated at each start | [`Builder::database`]: Postgres, migrated only with [`Builder::migrate`] |
//! | broker | a child nats-server, its store in the folder, on a free loopback port | [`Builder::nats`]: one that runs elsewhere |
//!
//! The folder belongs to one process at a time; a second one is refused. It is laid out like
//! the one of `bellwether dev` and holds a `bellwether.toml`, so that
//! `bellwether --config <folder>/bellwether.toml executions list` works while the program runs,
//! and other processes of the host may open the same SQLite ledger as clients or workers.
//!
//! # What to know
//!
//! * The promises are those of the parts: the process may be killed at any line, and goes on
//!   at its next start with what the ledger holds. Nothing fires while it is not running; then
//!   each schedule's misfire policy decides.
//! * Ticker and relay share the program's runtime: a handler that blocks a thread for seconds
//!   delays them. Use `tokio::task::spawn_blocking`.
//! * The child nats-server is tied to the process: it ends with it, also when that is killed.
//! * No logger is installed: the parts speak through `tracing`.

mod builder;
mod child;
mod error;
mod parts;
mod running;

pub use builder::{Builder, ChildNats};
pub use error::Error;
pub use running::{Embedded, Running};
