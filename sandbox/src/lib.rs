//! Throw-away servers and process control, for tests and for `bellwether dev`.
//!
//! | you want | take |
//! |---|---|
//! | a nats-server of your own that you may kill, pause or wipe | [`NatsServer`] |
//! | a Postgres of your own that you may kill or restart | [`Postgres`] |
//! | the one server of each kind that all tests of a run share | [`shared`] |
//! | a folder that keeps a whole system, for one process at a time | [`Folder`] |
//! | any other program as a child: roles under test, the parts of `dev` | [`Launch`], [`Process`] |
//! | CPU time and peak memory of a process | [`usage`] |
//! | to wait for something without guessing how long it takes | [`eventually`] |
//!
//! Whatever is started here is **tied** to the process that started it: it ends with it, also when
//! that process is killed by SIGKILL and runs no line of clean-up. How: see [`Tie`].
//!
//! Servers listen on loopback only, trust everybody who reaches them, and keep their data in a
//! temporary folder unless told otherwise. They are for one machine and one user. Linux only.

mod cluster;
mod error;
mod eventually;
mod find;
mod folder;
mod frozen;
mod launch;
mod log;
mod nats;
mod ports;
mod postgres;
mod process;
mod procfs;
mod proxy;
pub mod shared;
mod unprivileged;

pub use cluster::NatsCluster;
pub use error::Error;
pub use eventually::eventually;
pub use find::{MIN_NATS_VERSION, MIN_POSTGRES_VERSION, nats_server_binary, postgres_bin_dir};
pub use folder::Folder;
pub use frozen::Frozen;
pub use launch::{Launch, TIED_ENV, Tie, parent_gone};
pub use log::tail;
pub use nats::{Membership, NatsOptions, NatsServer};
pub use ports::free_port;
pub use postgres::{Postgres, PostgresOptions};
pub use process::Process;
pub use procfs::{Identity, Usage, usage};
pub use proxy::Proxy;
pub use rustix::process::Signal;
pub use unprivileged::User;
