//! One place that sets up logs, traces and metrics, and that names them.
//!
//! Programs call [`init`] (or [`init_from_env`]) once at their start, and [`Telemetry::shutdown`]
//! last. Library crates only use `tracing` macros, [`spans`] and [`metrics`]; without an exporter
//! those cost next to nothing.
//!
//! Traces and metrics leave the process by OTLP over HTTP when `OTEL_EXPORTER_OTLP_ENDPOINT` (or
//! the variable of one signal) is set; the other `OTEL_…` variables mean what they mean
//! everywhere. `docs/tracing.md` has the spans, their attributes and the traps.
//!
//! # In a program of your own
//!
//! * Nothing set up yet: `let telemetry = init_from_env("my-worker")?`, and
//!   `telemetry.shutdown().await` after the worker has ended.
//! * A subscriber, a `tracing-opentelemetry` layer and a global tracer provider of its own: then
//!   do not call [`init`]; the spans go through what is there. Add [`LinkSampler`] around the
//!   sampler and [put it in force](LinkSampler::put_in_force), and [`Ids`] as the id generator
//!   if a ticker runs in the program.

pub mod metrics;
pub mod names;
pub mod spans;

mod context;
mod export;
mod health;
mod ids;
mod logs;
mod sampler;
mod setup;
mod trouble;

pub use context::current;
pub use health::Health;
pub use ids::Ids;
pub use sampler::{LinkSampler, root};
pub use setup::{
    CommandMetrics, Error, Format, NotExported, SHUTDOWN_MAX, Telemetry, check_filter, init,
    init_from_env, init_metrics, init_to, show_warnings_of,
};
pub use trouble::Trouble;
