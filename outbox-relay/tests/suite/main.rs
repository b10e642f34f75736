//! The relay on a real nats-server and a real ledger.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod amnesia;
mod cluster;
mod connection;
mod consumers;
mod contract;
mod dead;
mod declare;
mod lost;
mod outage;
mod publish;
mod strays;
mod support;
