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

mod configuration;
mod dead;
mod every;
mod executions;
mod help;
mod ledger;
mod offline;
mod schedules;
mod submit;
