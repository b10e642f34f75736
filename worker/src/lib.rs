//! The SDK that worker programs link.
//!
//! ```no_run
//! use bellwether_worker::{Context, Outcome, Worker, job};
//!
//! #[derive(serde::Deserialize)]
//! struct Report {
//!     region: String,
//! }
//!
//! /// Fires at 02:00 in Shanghai; four shards share the work.
//! #[job(name = "nightly-report", cron = "0 0 2 * * *", tz = "Asia/Shanghai", shards = 4,
//!       payload = r#"{"region":"eu"}"#, timeout = "10m", max_attempts = 3)]
//! async fn nightly_report(ctx: Context, report: Report) -> Result<Outcome, std::io::Error> {
//!     let lines = count_lines(&report.region, ctx.shard_index(), ctx.shard_total()).await?;
//!     Ok(Outcome::Complete(lines.into()))
//! }
//! # async fn count_lines(_: &str, _: u32, _: u32) -> Result<u64, std::io::Error> { Ok(1) }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), bellwether_worker::Error> {
//!     Worker::builder().from_env().register(nightly_report::job()).run().await
//! }
//! ```
//!
//! # Logs and traces
//!
//! Every attempt runs in a `tracing` span that carries its trace id, job, execution, attempt,
//! generation, queue and worker; spans of your own nest in it. A program without a subscriber of
//! its own gets log lines, and OTLP export when `OTEL_EXPORTER_OTLP_ENDPOINT` is set, by
//! [`telemetry::init_from_env`]; keep what it returns, and call
//! [`shutdown`](telemetry::Telemetry::shutdown) after the worker has ended. A program that has a
//! `tracing-opentelemetry` layer and a global tracer provider needs neither: see [`telemetry`].
//!
//! # What a worker does with a message
//!
//! A message is only a wake-up; the row in SQL is the truth.
//!
//! 1. `pull`, `lane`: asks the broker for as many messages as there is room for (`capacity`).
//! 2. `delivery`, `submit`: reads what the ledger is to be asked.
//! 3. `feed`, `claim`: claims in the ledger, and acks only what was answered definitely.
//! 4. `run`: calls the handler with a [`Context`]; deadline, cancellation, panics.
//! 5. `commit`, `teller`: sends the results, fenced by the claim.
//!
//! A message of an `unknown` execution asks for a probe instead: `prober` calls the job's.
//!
//! Beside that, `ack_wait` reads how long the broker lets a message wait, `session` keeps the
//! worker's lease from a thread of its own, and `reconcile` gives back what the ledger holds for
//! this worker and it does not know; `cancel` passes requests to cancel on. `worker` starts and
//! stops it all.
//!
//! # How to add an outcome
//!
//! A variant of [`Outcome`] here and of `Outcome` in `bellwether-store`, which says what the
//! ledger makes of it; `run::Verdict` translates; `stats` has its word.

mod ack_wait;
mod broker;
mod budget;
mod builder;
mod call;
mod cancel;
mod capacity;
mod checkpoint;
mod claim;
mod claims;
mod clock;
mod commit;
mod committer;
mod context;
mod declared;
mod definitions;
mod delivery;
mod drain;
mod end;
mod env;
mod error;
mod feed;
mod handler;
mod intake;
mod job;
mod lane;
mod leaks;
mod lease;
mod measure;
mod outcome;
mod panic;
mod parts;
mod persist;
mod pin;
mod probe;
mod prober;
mod pull;
mod reconcile;
mod retry;
mod run;
mod session;
mod settings;
mod start;
mod stats;
mod submit;
mod teller;
mod trace;
mod transaction;
mod watch;
mod worker;

pub use bellwether_schemas::state::{OnLost, Overlap, Priority, Reason, Trigger};
pub use bellwether_schemas::trace::TraceContext;
pub use bellwether_store as store;
pub use bellwether_store::schedules::RetryPolicy;
pub use bellwether_telemetry as telemetry;
pub use bellwether_time::MisfirePolicy;
pub use bellwether_worker_macros::job;
pub use tokio_util::sync::CancellationToken;

pub use budget::StopBudget;
pub use builder::{Builder, Nats};
pub use checkpoint::CheckpointError;
pub use context::Context;
pub use declared::JobError;
pub use error::Error;
pub use handler::{Argument, Handler, HandlerFuture};
pub use intake::Intake;
pub use job::Job;
pub use lease::Lease;
pub use measure::NotReady;
pub use outcome::{BoxError, Completion, Failure, HandlerResult, Outcome, OutputError, SNOOZE_MIN};
pub use persist::Persist;
pub use probe::{BadPayload, ProbeContext, ProbeOutcome, Probed};
pub use settings::{Setting, Settings};
pub use stats::Stats;
pub use transaction::CommitInError;
pub use worker::{Handle, Worker};
