//! `bellwether worker`: the demo's worker. A worker of one's own is a program of one's own.

use std::time::Duration;

use bellwether_worker::{Lease, Worker};
use clap::Args;

use crate::config::{Config, Flags, Section, key};
use crate::demo;
use crate::exit::{Failure, Result, USAGE};

const NO_HANDLERS: &str = "this binary has no handlers of yours. Build a worker of your own: \
     depend on the crate bellwether-worker, mark an async fn with #[job(name = \"…\")], register it and \
     run it (README: \"Write a worker\"). `bellwether worker --demo` runs the demo's jobs";

#[derive(Debug, Args)]
pub(crate) struct Command {
    /// Runs the demo's jobs: nightly-report and book-entry
    #[arg(long)]
    demo: bool,
    #[command(flatten)]
    pub(crate) flags: Flags<Ours>,
}

/// The section `[worker]`.
#[derive(Debug)]
pub(crate) struct Ours;

impl Section for Ours {
    const NAME: &'static str = "worker";
}

impl Command {
    /// Refuses to run without `--demo`: there would be nothing to run.
    pub(crate) fn has_handlers(&self) -> Result<()> {
        if self.demo {
            Ok(())
        } else {
            Err(Failure::new(USAGE, NO_HANDLERS))
        }
    }
}

/// All times of a session keep their ratio to its lease, whose bounds the builder knows.
fn lease(ttl: Duration) -> Lease {
    Lease {
        ttl,
        renew_every: ttl / 3,
        fence_after: ttl.saturating_mul(7) / 9,
        cancel_after: ttl.saturating_mul(2),
    }
}

pub(crate) async fn run(config: &Config) -> Result<()> {
    let shutdown = super::shutdown()?;
    let mut builder = Worker::builder()
        .database(config.database("bellwether worker")?)
        .nats(config.nats_url.clone())
        .namespace(config.subjects.namespace())
        .lease(lease(config.duration(key::WORKER_LEASE)?))
        .drain(config.duration(key::WORKER_DRAIN)?)
        .register(demo::report::nightly_report::job())
        .register(demo::book::book_entry::job());
    if let Some(name) = config.text(key::WORKER_NAME) {
        builder = builder.name(name);
    }
    if let Some(n) = config.count(key::WORKER_MAX_CONCURRENT)? {
        builder = builder.max_concurrent(usize::try_from(n).unwrap_or(usize::MAX));
    }
    let worker = builder.build()?;
    Ok(worker.run_until(shutdown).await?)
}
