//! What happens when processes are killed, stopped, paused and restarted: each test runs the real
//! roles as real processes on a real Postgres and a real nats-server, does its harm, and looks at
//! three witnesses: the journal that the jobs wrote themselves, the ledger's rows, and the laws.
//!
//! | module | harm to |
//! |---|---|
//! | `tickers` | the ticker that leads, and the relay |
//! | `workers` | a worker with work in its hands |
//! | `failover` | who takes the work of a dead worker over |
//! | `definitions` | nothing but the peace: builds that define one schedule differently |
//! | `hostile` | the process itself, by the handler |
//! | `servers` | the nats-server, the Postgres |
//! | `paths` | nothing: each way in, run on many processes |
//! | `enqueue_in` | a program that asks for work in a transaction of its own |
//! | `traces` | a worker, and the collector of traces |
//! | `dev` | `bellwether dev` |
//!
//! Tests of one binary run one at a time, since they measure times (`Cluster` sees to it).

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "tests"
)]

#[path = "../support/mod.rs"]
#[expect(
    dead_code,
    unused_imports,
    reason = "shared with the tests of the commands"
)]
mod support;

mod definitions;
mod dev;
mod enqueue_in;
mod failover;
mod hostile;
mod paths;
mod servers;
mod tickers;
mod traces;
mod workers;

/// Settings of a worker whose loss is noticed soon, so that a test takes seconds. The ratios are
/// those of the defaults.
const QUICK: (&str, &str) = ("PATIENT_LEASE_MS", "2000");

/// The ticker's arguments that go with it.
const QUICK_SESSIONS: &[&str] = &["--session-lease", "2s"];
