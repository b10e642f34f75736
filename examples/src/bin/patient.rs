//! `patient`: a job that takes its time, writes down what it does, and stops when it is told to.
//!
//! `bellwether submit default patient '{"ms": [3000], "journal": "/tmp/journal"}' --wait 60`
//!
//! The end-to-end tests kill, pause and stop workers like this one and read the journal.

use std::path::PathBuf;
use std::time::Duration;
use std::{env, fs::File, io::Write};

use bellwether_telemetry::Format;
use bellwether_worker::{Context, Lease, Outcome, ProbeContext, Probed, Worker, job};
use serde::Deserialize;

/// What to do.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Work {
    /// How long each attempt takes, in milliseconds; the last one counts for all later ones.
    ms: Vec<u64>,
    /// So many first attempts panic.
    panics: u32,
    /// Does not stop when it is told to, as many jobs do not.
    deaf: bool,
    /// Blocks its thread for its time, as a future must not.
    blocks: bool,
    /// Ends as failed, once and for all.
    refuses: bool,
    /// Does the time of an attempt in so many steps, with a checkpoint after each, and begins
    /// after the last one that an attempt before has saved.
    steps: u32,
    /// A file that gets a line for each start and end.
    journal: Option<PathBuf>,
}

impl Work {
    /// One write with `O_APPEND`: the lines of several workers stay whole.
    fn note(&self, what: &str, ctx: &Context) -> std::io::Result<()> {
        let Some(path) = &self.journal else {
            return Ok(());
        };
        let (id, generation, shard) = (ctx.execution_id(), ctx.generation(), ctx.shard_index());
        let line = format!("{what} {id} {generation} {shard} {}\n", std::process::id());
        let mut file = File::options().create(true).append(true).open(path)?;
        file.write_all(line.as_bytes())
    }
}

#[job(name = "patient")]
async fn patient(ctx: Context, work: Work) -> anyhow::Result<Outcome> {
    work.note("start", &ctx)?;
    tracing::info!("works");
    assert!(
        ctx.attempt() > work.panics,
        "attempt {} panics as told",
        ctx.attempt()
    );
    if work.refuses {
        return Ok(Outcome::fail("refused as told"));
    }
    let before = usize::try_from(ctx.generation() - 1)?;
    let ms = work.ms.get(before).or(work.ms.last()).copied();
    let steps = work.steps.max(1);
    let time = Duration::from_millis(ms.unwrap_or(0)) / steps;
    if work.blocks {
        std::thread::sleep(time);
    }
    for step in begin(&ctx)?..steps {
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = ctx.cancelled(), if !work.deaf => {
                work.note("cancelled", &ctx)?;
                anyhow::bail!("stopped before its end");
            }
        }
        if work.steps > 0 {
            ctx.checkpoint((step + 1).to_string()).await?;
            work.note(&format!("step-{}", step + 1), &ctx)?;
        }
    }
    work.note("end", &ctx)?;
    Ok(Outcome::complete((ctx.generation(), ctx.shard_index()))?)
}

/// The same, of which the start must not be repeated: its line in the journal is the effect.
#[job(name = "careful", on_lost = "unknown", probe = has_started)]
async fn careful(ctx: Context, work: Work) -> anyhow::Result<Outcome> {
    patient(ctx, work).await
}

/// Whether a lost attempt of `careful` has had its effect.
async fn has_started(ctx: ProbeContext) -> anyhow::Result<Probed> {
    let work: Work = ctx.payload()?;
    let Some(path) = work.journal else {
        return Ok(Probed::cannot_tell("it has no journal"));
    };
    let start = format!("start {} ", ctx.execution_id());
    let journal = std::fs::read_to_string(path)?;
    let started = journal.lines().any(|line| line.starts_with(&start));
    Ok(if started {
        Probed::Done
    } else {
        Probed::NotDone
    })
}

/// The step after the last one that is saved.
fn begin(ctx: &Context) -> anyhow::Result<u32> {
    match ctx.last_checkpoint() {
        Some(step) => Ok(std::str::from_utf8(step)?.parse()?),
        None => Ok(0),
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let telemetry = bellwether_telemetry::init("patient", "info", Format::Auto)?;
    let mut worker = Worker::builder()
        .from_env()
        .register(patient::job())
        .register(careful::job());
    if let Ok(name) = env::var("PATIENT_NAME") {
        worker = worker.name(name);
    }
    if let Ok(handlers) = env::var("PATIENT_MAX_CONCURRENT") {
        worker = worker.max_concurrent(handlers.parse()?);
    }
    if let Ok(ms) = env::var("PATIENT_DRAIN_MS") {
        worker = worker.drain(Duration::from_millis(ms.parse()?));
    }
    if let Ok(ms) = env::var("PATIENT_CANCEL_GRACE_MS") {
        worker = worker.cancel_grace(Duration::from_millis(ms.parse()?));
    }
    if let Ok(ms) = env::var("PATIENT_KILL_AFTER_MS") {
        worker = worker.kill_after(Duration::from_millis(ms.parse()?));
    }
    if let Ok(ms) = env::var("PATIENT_LEASE_MS") {
        let ttl = Duration::from_millis(ms.parse()?);
        worker = worker.lease(Lease {
            ttl,
            renew_every: ttl / 3,
            fence_after: ttl * 7 / 9,
            cancel_after: ttl * 2,
        });
    }
    let ended = worker.run().await;
    telemetry.shutdown().await;
    Ok(ended?)
}
