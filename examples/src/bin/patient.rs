//! `patient`: a job that takes its time, writes down what it does, and stops when it is told to.
//!
//! ```sh
//! BELLWETHER_DATABASE_URL=sqlite:.bellwether/ledger.db patient &
//! bellwether submit default patient '{"ms": [3000], "journal": "/tmp/journal"}' --wait 60
//! ```
//!
//! The end-to-end tests kill, pause and stop workers like this one and read the journal.

use std::env;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use bellwether_telemetry::Format;
use bellwether_worker::{Context, Lease, Outcome, Worker, job};
use serde::{Deserialize, Serialize};

/// What to do.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Work {
    /// How long each attempt takes, in milliseconds; the last one counts for all later ones.
    ms: Vec<u64>,
    /// So many first attempts panic.
    panics: u32,
    /// Ends as failed, once and for all.
    refuses: bool,
    /// A file that gets a line for each start and end.
    journal: Option<PathBuf>,
}

impl Work {
    /// One write with `O_APPEND`: lines of several workers stay whole.
    fn note(&self, what: &str, ctx: &Context) -> anyhow::Result<()> {
        let Some(path) = &self.journal else {
            return Ok(());
        };
        let (id, generation, shard) = (ctx.execution_id(), ctx.generation(), ctx.shard_index());
        let line = format!("{what} {id} {generation} {shard} {}\n", std::process::id());
        let file = File::options().create(true).append(true).open(path);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.with_context(|| format!("failed to write {}", path.display()))
    }
}

/// The output of an attempt that came to its end.
#[derive(Serialize)]
struct Done {
    generation: i64,
    shard: u32,
}

#[job(name = "patient")]
async fn patient(ctx: Context, work: Work) -> anyhow::Result<Outcome> {
    work.note("start", &ctx)?;
    assert!(
        ctx.attempt() > work.panics,
        "attempt {} panics as told",
        ctx.attempt()
    );
    if work.refuses {
        return Ok(Outcome::fail("refused as told"));
    }
    let attempt = usize::try_from(ctx.generation())?.min(work.ms.len());
    let takes = attempt.checked_sub(1).map_or(0, |at| work.ms[at]);
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(takes)) => {}
        () = ctx.cancelled() => {
            work.note("cancelled", &ctx)?;
            anyhow::bail!("stopped before its end");
        }
    }
    work.note("end", &ctx)?;
    Ok(Outcome::complete(Done {
        generation: ctx.generation(),
        shard: ctx.shard_index(),
    })?)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    bellwether_telemetry::init("info", Format::Auto)?;
    let mut worker = Worker::builder().from_env().register(patient::job());
    if let Ok(name) = env::var("PATIENT_NAME") {
        worker = worker.name(name);
    }
    if let Ok(slots) = env::var("PATIENT_MAX_CONCURRENT") {
        worker = worker.max_concurrent(slots.parse()?);
    }
    if let Ok(ms) = env::var("PATIENT_DRAIN_MS") {
        worker = worker.drain(Duration::from_millis(ms.parse()?));
    }
    if let Ok(ms) = env::var("PATIENT_LEASE_MS") {
        let ttl = Duration::from_millis(ms.parse()?);
        // The ratios of the defaults.
        worker = worker.lease(Lease {
            ttl,
            renew_every: ttl / 3,
            fence_after: ttl * 7 / 9,
            cancel_after: ttl * 2,
        });
    }
    Ok(worker.run().await?)
}
