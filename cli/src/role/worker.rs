//! `bellwether worker`: the demo's worker. A worker of one's own is a program of one's own.

use std::time::Duration;

use bellwether_worker::{Lease, Worker};
use clap::Args;

use crate::config::Settings;
use crate::demo;
use crate::duration;
use crate::exit::{FAILED, Failure, Result, USAGE};

const NO_HANDLERS: &str = "this binary has no handlers of yours. Build a worker of your own: \
     depend on the crate bellwether-worker, mark an async fn with #[job(name = \"…\")], register it and \
     run it (README: \"A worker\"). `bellwether worker --demo` runs the demo's jobs";

#[derive(Debug, Args)]
pub(crate) struct Command {
    /// Runs the demo's jobs: nightly-report and book-entry
    #[arg(long)]
    demo: bool,
    /// Label of this worker [default: the host name]
    #[arg(long)]
    name: Option<String>,
    /// Handlers that may run at once [default: the number of CPUs, at least 2]
    #[arg(long, value_name = "N")]
    max_concurrent: Option<usize>,
    /// Lease of the session; renewed after a third of it
    #[arg(long, default_value = "9s", value_parser = duration::parse, value_name = "DURATION")]
    lease: Duration,
    /// Time running handlers get after SIGTERM before they are cancelled
    #[arg(long, default_value = "30s", value_parser = duration::parse, value_name = "DURATION")]
    drain: Duration,
}

impl Command {
    /// All times of a session keep their ratio to its lease.
    fn lease(&self) -> Lease {
        Lease {
            ttl: self.lease,
            renew_every: self.lease / 3,
            fence_after: self.lease * 7 / 9,
            cancel_after: self.lease * 2,
        }
    }
}

pub(crate) async fn run(settings: Settings, command: &Command) -> Result<()> {
    if !command.demo {
        return Err(Failure::new(USAGE, NO_HANDLERS));
    }
    let config = settings.resolve()?;
    let shutdown = super::shutdown()?;
    let mut builder = Worker::builder()
        .database(config.database("bellwether worker")?)
        .nats(config.nats_url.clone())
        .namespace(config.subjects.namespace())
        .lease(command.lease())
        .drain(command.drain)
        .register(demo::report::nightly_report::job())
        .register(demo::book::book_entry::job());
    if let Some(name) = &command.name {
        builder = builder.name(name.clone());
    }
    if let Some(n) = command.max_concurrent {
        builder = builder.max_concurrent(n);
    }
    let worker = builder
        .build()
        .map_err(|error| Failure::new(USAGE, error.to_string()))?;
    worker
        .run_until(shutdown)
        .await
        .map_err(|error| Failure::new(FAILED, error.to_string()))
}
