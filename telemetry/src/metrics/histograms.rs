//! How long things take, in seconds. The SDK's own boundaries are made for milliseconds, so each
//! histogram brings its own.

use std::sync::OnceLock;

use opentelemetry::metrics::Histogram;

/// Boundaries of delays: 10 ms to a minute.
pub const DELAYS: &[f64] = &[
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];

/// Boundaries of what may take hours: 10 ms to four hours.
pub const DURATIONS: &[f64] = &[
    0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0,
];

/// Boundaries that the semantic conventions advise for messaging.
pub const PROCESS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
];

macro_rules! histograms {
    ($($(#[$meta:meta])* $field:ident = $name:literal, $boundaries:ident, $what:literal;)+) => {
        /// Every histogram of this process. All are in seconds.
        #[derive(Debug)]
        pub struct Histograms { $($(#[$meta])* pub $field: Histogram<f64>,)+ }

        /// The histograms of this process, made at the first call: after the meter provider is
        /// set.
        pub fn histograms() -> &'static Histograms {
            static HISTOGRAMS: OnceLock<Histograms> = OnceLock::new();
            HISTOGRAMS.get_or_init(|| {
                let meter = super::meter();
                Histograms {
                    $($field: meter
                        .f64_histogram($name)
                        .with_unit("s")
                        .with_boundaries($boundaries.to_vec())
                        .with_description($what)
                        .build(),)+
                }
            })
        }
    };
}

histograms! {
    /// `bellwether.schedule.delay`: from the due instant of a fire to the commit of the statement
    /// that planned it. Label: `queue`.
    schedule_delay = "bellwether.schedule.delay", DELAYS,
        "From the due instant of a fire until it was committed";
    /// `bellwether.outbox.claim.age`: from the commit of a dispatch to its `PubAck`. No label.
    outbox_claim_age = "bellwether.outbox.claim.age", DELAYS,
        "From the commit of a dispatch until the broker confirmed it";
    /// `bellwether.dispatch.delay`: from the hand-over to the broker to the handler's start.
    /// Label: `queue`.
    dispatch_delay = "bellwether.dispatch.delay", DELAYS,
        "From the dispatch of an execution until its handler started";
    /// `bellwether.execution.duration`: handler time. Labels: `queue`, `outcome` (the state that
    /// its result led to).
    execution_duration = "bellwether.execution.duration", DURATIONS, "Time in the handler";
    /// `messaging.process.duration`: from the receipt of a message to the end of its processing.
    /// Labels: [`process`](super::process), and [`error_type`](super::error_type) where it failed.
    process_duration = "messaging.process.duration", PROCESS, "Duration of processing a message";
    /// `bellwether.cancel.latency`: from the request to the end of the handler. Label: `queue`.
    cancel_latency = "bellwether.cancel.latency", DELAYS,
        "From the request to cancel an execution until its handler stopped";
}
