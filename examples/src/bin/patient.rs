//! `patient`: a job that takes its time, writes down what it does, and stops when it is told to.
//!
//! `bellwether submit default patient '{"ms": [3000], "journal": "/tmp/journal"}' --wait 60`
//!
//! The end-to-end tests kill, pause and stop workers like this one and read the journal.

use std::path::PathBuf;
use std::time::Duration;
use std::{env, fs::File, io::Write};

use bellwether_telemetry::Format;
use bellwether_worker::store::Options;
use bellwether_worker::{
    Builder, Context, Lease, Outcome, Persist, ProbeContext, Probed, Worker, job,
};
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
    /// A file without which no first attempt ends.
    gate: Option<PathBuf>,
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

/// Takes its time, unless it is told to stop and hears it.
async fn take(time: Duration, work: &Work, ctx: &Context) -> anyhow::Result<()> {
    tokio::select! {
        () = tokio::time::sleep(time) => Ok(()),
        () = ctx.cancelled(), if !work.deaf => {
            work.note("cancelled", ctx)?;
            anyhow::bail!("stopped before its end");
        }
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
        take(time, &work, &ctx).await?;
        if work.steps > 0 {
            ctx.checkpoint((step + 1).to_string()).await?;
            work.note(&format!("step-{}", step + 1), &ctx)?;
        }
    }
    if let Some(gate) = work.gate.as_ref().filter(|_| ctx.generation() == 1) {
        while !gate.exists() {
            take(Duration::from_millis(20), &work, &ctx).await?;
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
    let worker = set_up(Worker::builder().from_env())?.build()?;
    let ended = match env::var("PATIENT_ALSO") {
        Ok(namespace) => beside(worker, namespace).await,
        Err(_unset) => Ok(worker.run().await?),
    };
    telemetry.shutdown().await;
    ended
}

/// Runs a second worker in this process, on a ledger and in a namespace of its own; both end with
/// the first signal.
async fn beside(first: Worker, namespace: String) -> anyhow::Result<()> {
    let mut ledger = Options::new(env::var("PATIENT_ALSO_DATABASE_URL")?);
    ledger.schema.clone_from(&namespace);
    let second = Worker::builder().from_env().namespace(namespace);
    let second = second.database(ledger).name("beside");
    let second = second.register(patient::job()).build()?;
    let (first, second) = tokio::join!(first.run(), second.run());
    first?;
    Ok(second?)
}

/// What the `PATIENT_…` variables say.
fn set_up(builder: Builder) -> anyhow::Result<Builder> {
    let mut worker = builder.register(patient::job()).register(careful::job());
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
        worker = worker.lease(Lease::of(ttl));
    }
    let mut persist = Persist::default();
    if let Ok(results) = env::var("PATIENT_HIGH_WATER") {
        persist.high_water = results.parse()?;
        persist.low_water = persist.high_water / 2;
    }
    if let Ok(tries) = env::var("PATIENT_TRIES") {
        persist.tries = tries.parse()?;
    }
    if let Ok(ms) = env::var("PATIENT_RETRY_MS") {
        persist.retry_every = Duration::from_millis(ms.parse()?);
    }
    Ok(worker.persist(persist))
}
