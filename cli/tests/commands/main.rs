//! The binary as its users and their scripts see it: what it prints, where, and with which exit
//! code.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "tests"
)]

#[path = "../support/mod.rs"]
#[expect(dead_code, unused_imports, reason = "shared with the tests of faults")]
mod support;

mod bounds;
mod configuration;
mod counts;
mod dead;
mod every;
mod executions;
mod help;
mod instruments;
mod interrupt;
mod ledger;
mod offline;
mod policies;
mod resolve;
mod schedules;
mod submit;
mod worker;

/// Runs the binary without any configuration but `args`.
pub(crate) async fn bellwether(args: &[&str]) -> support::Answer {
    let folder = tempfile::tempdir().unwrap();
    support::bellwether_in(folder.path(), &[], args).await
}
