//! `bellwether worker`: the demo's worker. A worker of one's own is a program of one's own.

use bellwether_worker::{Intake, Lease, Setting, Worker};
use clap::Args;
use serde::Serialize;

use super::health;
use crate::config::{Config, Flags, Section, key};
use crate::demo;
use crate::exit::{Failure, Result, USAGE};
use crate::output::{self, Format};

const NO_HANDLERS: &str = "this binary has no handlers of yours. Build a worker of your own: \
     depend on the crate bellwether-worker, mark an async fn with #[job(name = \"…\")], register it and \
     run it (README: \"Write a worker\"). `bellwether worker --demo` runs the demo's jobs";

#[derive(Debug, Args)]
pub(crate) struct Command {
    /// Runs the demo's jobs: nightly-report and book-entry
    #[arg(long)]
    demo: bool,
    /// Prints what would be in force, with every default filled in, and ends
    #[arg(long)]
    pub(crate) print_config: bool,
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

pub(crate) async fn run(config: &Config) -> Result<()> {
    let worker = build(config)?;
    let handle = worker.handle();
    let health = health::begin(config, "the worker has not started yet")?;
    health.show(move || handle.ready());
    // With its own signals and its own end: no handler can keep the process.
    let ended = worker.run().await;
    drop(health);
    Ok(ended?)
}

/// One setting as it is shown.
#[derive(Serialize)]
struct Shown {
    setting: &'static str,
    value: Setting,
}

/// Shows the settings in force; reaches no server.
pub(crate) fn print_config(config: &Config, format: Format) -> Result<()> {
    let rows = build(config)?.settings().rows();
    let rows: Vec<_> = rows
        .into_iter()
        .map(|(setting, value)| Shown { setting, value })
        .collect();
    Ok(output::list(
        format,
        &rows,
        |row| row.setting.to_owned(),
        &["setting", "value"],
        |row| vec![row.setting.to_owned(), row.value.to_string()],
    )?)
}

fn build(config: &Config) -> Result<Worker> {
    let lease = Lease {
        runtime_max: config.duration(key::WORKER_RUNTIME_MAX)?,
        ..Lease::of(config.duration(key::WORKER_LEASE)?)
    };
    let intake = Intake {
        unclaimed_max: config.said_duration(key::WORKER_UNCLAIMED_MAX)?,
        ..Intake::default()
    };
    let mut builder = Worker::builder()
        .database(config.database("bellwether worker")?)
        .nats(config.nats_url.clone())
        .namespace(config.subjects.namespace())
        .lease(lease)
        .intake(intake)
        .probe_timeout(config.duration(key::WORKER_PROBE_TIMEOUT)?)
        .drain(config.duration(key::WORKER_DRAIN)?)
        .kill_after(config.duration(key::WORKER_KILL_AFTER)?)
        .cancel_grace(config.duration(key::WORKER_CANCEL_GRACE)?)
        .register(demo::report::nightly_report::job())
        .register(demo::book::book_entry::job());
    if let Some(name) = config.text(key::WORKER_NAME) {
        builder = builder.name(name);
    }
    if let Some(n) = config.count(key::WORKER_MAX_CONCURRENT)? {
        builder = builder.max_concurrent(usize::try_from(n).unwrap_or(usize::MAX));
    }
    if let Some(n) = config.count(key::WORKER_PREFETCH)? {
        builder = builder.prefetch(usize::try_from(n).unwrap_or(usize::MAX));
    }
    if let Some(n) = config.count(key::WORKER_LEAKED_MAX)? {
        builder = builder.leaked_max(usize::try_from(n).unwrap_or(usize::MAX));
    }
    let built = builder.build();
    built.map_err(|error| config.naming::<Ours>(error.into()))
}
