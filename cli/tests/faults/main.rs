//! What happens when processes are killed, stopped, paused and restarted: each test runs the real
//! roles as real processes on a real Postgres and a real nats-server, does its harm, and looks at
//! three witnesses: the journal that the jobs wrote themselves, the ledger's rows, and the laws.
//!
//! | module | harm to |
//! |---|---|
//! | `tickers` | the ticker that leads, and the relay |
//! | `workers` | a worker with work in its hands |
//! | `drain` | a worker that is asked to stop |
//! | `rolling` | every role in turn, as a deployment does |
//! | `unknown` | a worker whose work must not be repeated blindly |
//! | `failover` | who takes the work of a dead worker over |
//! | `fleet` | its size, while work is handed out |
//! | `definitions` | nothing but the peace: builds that define one schedule differently |
//! | `hostile` | the process itself, by the handler |
//! | `broker` | the nats-server, three of them, and their leader |
//! | `database` | the way to the Postgres: frozen, away, out of connections |
//! | `pooler` | nothing but the way to the Postgres: a pooler stands there |
//! | `instruments` | everything, once: what the metrics say of it |
//! | `pooled` | nothing: each transaction has another connection to the Postgres |
//! | `clocks` | the wall clocks of the hosts |
//! | `replicas` | one of several that have the same name or the same work |
//! | `deliveries` | what the broker keeps, and how soon it delivers again |
//! | `crashes` | all roles at random moments, then the ways to the ledger and to the broker |
//! | `servers` | the nats-server, the Postgres |
//! | `reports` | the nats-server, as others have reported of theirs |
//! | `overload` | the peace: more work at once than there are hands |
//! | `takeovers` | whoever is in charge: cut off, killed, started in a crowd |
//! | `quiet` | nothing: a fleet without work |
//! | `secrets` | nothing: what roles show, open and take for an order |
//! | `rights` | nothing but a worker: each role has a database user of its own |
//! | `partitions` | tickers that share partitions, the command that adds some |
//! | `paths` | nothing: each way in, run on many processes |
//! | `enqueue_in` | a program that asks for work in a transaction of its own |
//! | `traces` | a worker, and the collector of traces |
//! | `money` | workers that move money, at random |
//! | `dev` | `bellwether dev` |
//!
//! Tests of one binary run one at a time, since they measure times (`Cluster` sees to it).

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "tests"
)]

use std::time::Duration;

#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "shared with the tests of commands")]
mod support;

mod broker;
mod clocks;
mod crashes;
mod database;
mod definitions;
mod deliveries;
mod dev;
mod drain;
mod enqueue_in;
mod failover;
mod fleet;
mod hostile;
mod instruments;
mod money;
mod overload;
mod partitions;
mod paths;
mod pooled;
mod pooler;
mod quiet;
mod replicas;
mod reports;
mod rights;
mod rolling;
mod secrets;
mod servers;
mod takeovers;
mod tickers;
mod traces;
mod unknown;
mod workers;

/// A third of the default lease of a session, with the ratios of the defaults: its loss is noticed
/// soon, so that a test takes seconds, and a machine that stands still for a second loses none.
const QUICK_LEASE: Duration = Duration::from_secs(3);

/// The settings of a worker that has it.
const QUICK: (&str, &str) = ("PATIENT_LEASE_MS", "3000");

/// The ticker's arguments that go with it.
const QUICK_SESSIONS: &[&str] = &["--session-lease", "3s"];
