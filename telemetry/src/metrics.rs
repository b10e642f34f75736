//! Every instrument, by its OpenTelemetry name, with the labels it carries.
//!
//! [`counters`] only rise, [`histograms`] take durations in seconds, [`gauges`] say what is now.
//! Each kind is made at its first use, which must come after the meter provider is set; without
//! one an instrument costs a call that does nothing. Library crates reach the instruments here
//! and nowhere else, so that the list in `docs/metrics.md` can be whole.
//!
//! # Labels
//!
//! `outcome` and `reason` take the words of `bellwether_schemas::state` wherever a state, a
//! reason or a refusal is meant. Counters may carry the job; histograms carry at most the queue
//! and the outcome; nothing ever carries an id.

mod counters;
mod gauges;
mod histograms;
mod labels;
mod role;

pub use counters::{Counters, counters};
pub use gauges::{Gauges, gauges};
pub use histograms::{DELAYS, DURATIONS, Histograms, PROCESS, histograms};
pub use labels::{
    MANY_QUEUES, consumer, error_type, job, kind, outcome, process, queue, queues, reason, role,
    trigger,
};
pub use opentelemetry::KeyValue as Label;
pub use role::{Role, announce, count_loop_failure};

/// Name of the meter.
pub const METER: &str = "bellwether";

/// The meter behind all of it.
fn meter() -> opentelemetry::metrics::Meter {
    let scope = opentelemetry::InstrumentationScope::builder(METER)
        .with_version(env!("CARGO_PKG_VERSION"))
        .with_schema_url(crate::names::SCHEMA_URL);
    opentelemetry::global::meter_with_scope(scope.build())
}
