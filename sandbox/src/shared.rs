//! The one nats-server and the one Postgres that the tests of a run share.
//!
//! `make test` starts both once, with `bellwether-sandbox run -- …`, and names them in
//! [`NATS_URL_ENV`] and [`POSTGRES_URL_ENV`]. Where these are not set, as under a plain
//! `cargo test`, the first test of each process starts the server that it asks for, and all tests
//! of the process share it; it ends with the process. That is slower (under nextest each test is a
//! process) and otherwise the same.
//!
//! Tests keep out of each other's way by a namespace of their own: see [`fresh_namespace`]. A test
//! that kills, pauses or restarts a server starts its own.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::OnceCell;

use crate::{Error, NatsOptions, NatsServer, Postgres, PostgresOptions, ports};

/// Names the address of the shared nats-server, for example `nats://127.0.0.1:14222`.
pub const NATS_URL_ENV: &str = "BELLWETHER_TEST_NATS_URL";

/// Names the address of the shared Postgres; its user may create schemas.
pub const POSTGRES_URL_ENV: &str = "BELLWETHER_TEST_PG_URL";

/// Set to `skip`, tests that need Postgres are skipped, which is printed.
pub const POSTGRES_ENV: &str = "BELLWETHER_TEST_PG";

/// The address of the shared nats-server, started now if need be.
///
/// # Errors
///
/// Why it could not be started.
pub async fn nats_url() -> Result<String, Error> {
    static SERVER: OnceCell<NatsServer> = OnceCell::const_new();
    if let Some(url) = variable(NATS_URL_ENV) {
        return Ok(url);
    }
    let start = async || NatsServer::start(&NatsOptions::default()).await;
    Ok(SERVER.get_or_try_init(start).await?.url())
}

/// The address of the shared Postgres, started now if need be; `None` if [`POSTGRES_ENV`] is
/// `skip`, and then only: a missing Postgres is an error.
///
/// # Errors
///
/// Why it could not be started.
pub async fn postgres_url() -> Result<Option<String>, Error> {
    static SERVER: OnceCell<Postgres> = OnceCell::const_new();
    if postgres_is_skipped() {
        say_skipped();
        return Ok(None);
    }
    if let Some(url) = variable(POSTGRES_URL_ENV) {
        return Ok(Some(url));
    }
    let start = async || Postgres::start(&PostgresOptions::default()).await;
    Ok(Some(SERVER.get_or_try_init(start).await?.url()))
}

/// Is [`POSTGRES_ENV`] set to `skip`?
pub fn postgres_is_skipped() -> bool {
    variable(POSTGRES_ENV).is_some_and(|value| value == "skip")
}

/// A name that no other test uses, neither of this run nor of another on the same servers: a
/// namespace for NATS and a schema for Postgres. Lower case, letters, digits and `_`, begins with
/// a letter, at most 40 characters.
pub fn fresh_namespace() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    // At most 2 + 10 + 1 + 10 + 1 + 8 = 32 characters.
    format!(
        "t_{}_{count}_{:08x}",
        std::process::id(),
        ports::random() & 0xffff_ffff
    )
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

#[expect(
    clippy::print_stderr,
    reason = "a skipped test must say so; this is only used by tests"
)]
fn say_skipped() {
    static SAID: Once = Once::new();
    SAID.call_once(|| eprintln!("SKIPPED on Postgres: {POSTGRES_ENV}=skip"));
}
