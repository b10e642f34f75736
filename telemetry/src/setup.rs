//! Setting all of it up at a program's start, and ending it at its end.

use std::env;
use std::io::IsTerminal;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::error::OTelSdkError;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::filter::{EnvFilter, LevelFilter, Targets};
use tracing_subscriber::fmt::format::JsonFields;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;
use tracing_subscriber::util::SubscriberInitExt;

use crate::export::Exports;
use crate::logs::FlatJson;
use crate::names;

/// Longest time that the last export may take: an endpoint that is away must not keep a
/// stopped process.
pub const SHUTDOWN_MAX: Duration = Duration::from_secs(4);

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Compact on a terminal, JSON elsewhere.
    #[default]
    Auto,
    /// One line for people.
    Compact,
    /// One JSON object a line.
    Json,
}

/// Logs could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The filter does not parse.
    #[error(
        "failed to read the log filter {filter:?}: {source}; write for example `info,bellwether_worker=debug`"
    )]
    Filter {
        /// As given.
        filter: String,
        /// What was wrong with it.
        source: tracing_subscriber::filter::ParseError,
    },
    /// A subscriber is set already.
    #[error("failed to install the log subscriber: {0}")]
    AlreadySet(#[from] tracing_subscriber::util::TryInitError),
}

/// What [`init`] set up. Shut it down last; dropping it does the same, but holds up the thread
/// that drops it for up to [`SHUTDOWN_MAX`].
#[derive(Debug)]
#[must_use = "dropping it ends the export of traces and metrics"]
pub struct Telemetry {
    spans: Option<SdkTracerProvider>,
    metrics: Option<SdkMeterProvider>,
}

/// Installs the process's log subscriber and, if the `OTEL_…` variables name an endpoint, the
/// export of traces and metrics. Logs go to stderr; data never does.
///
/// `service` is the name of the service unless the variables give one; `filter` is an
/// `EnvFilter` directive list for log lines, for example `info`.
///
/// What is wrong with the `OTEL_…` variables is logged and is no error.
///
/// # Errors
///
/// The filter does not parse, or the program has a subscriber already; then nothing of the
/// process was changed.
pub fn init(service: &str, filter: &str, format: Format) -> Result<Telemetry, Error> {
    init_to(service, filter, format, None)
}

/// [`init`] with an OTLP endpoint that wins over the variables, for example
/// `http://127.0.0.1:4318`.
pub fn init_to(
    service: &str,
    filter: &str,
    format: Format,
    endpoint: Option<&str>,
) -> Result<Telemetry, Error> {
    let env_filter = log_filter(filter)?;
    let exports = Exports::from_env(service, endpoint);
    let mut layers = vec![lines(format).with_filter(env_filter).boxed()];
    if let Some(provider) = &exports.spans {
        layers.push(spans(provider));
    }
    if let Err(error) = tracing_subscriber::registry().with(layers).try_init() {
        say(end(exports.spans, exports.metrics, SHUTDOWN_MAX));
        return Err(error.into());
    }
    exports.install();
    for complaint in exports.complaints {
        tracing::error!("wrong OpenTelemetry settings: {complaint}");
    }
    Ok(Telemetry {
        spans: exports.spans,
        metrics: exports.metrics,
    })
}

/// Refuses what [`init`] would refuse as a filter.
///
/// # Errors
///
/// The filter does not parse.
pub fn check_filter(filter: &str) -> Result<(), Error> {
    log_filter(filter).map(drop)
}

/// The NATS client has a line for each try to connect, as long as an outage lasts; the roles say
/// in lines of their own what becomes of their connection. Whoever names it has it all.
const NATS_CLIENT: &str = "async_nats";

fn log_filter(filter: &str) -> Result<EnvFilter, Error> {
    let parse = |text: &str| {
        EnvFilter::try_new(text).map_err(|source| Error::Filter {
            filter: filter.to_owned(),
            source,
        })
    };
    let parsed = parse(filter)?;
    let is_talkative = parsed
        .max_level_hint()
        .is_none_or(|level| level >= LevelFilter::INFO);
    if is_talkative && !filter.contains(NATS_CLIENT) {
        return parse(&format!("{filter},{NATS_CLIENT}=warn"));
    }
    Ok(parsed)
}

/// [`init`] with the filter of `BELLWETHER_LOG`, else of `RUST_LOG`, else `info`.
pub fn init_from_env(service: &str) -> Result<Telemetry, Error> {
    let filter = ["BELLWETHER_LOG", "RUST_LOG"]
        .into_iter()
        .find_map(|name| env::var(name).ok().filter(|filter| !filter.is_empty()));
    init(service, filter.as_deref().unwrap_or("info"), Format::Auto)
}

/// Shows on stderr what the crate `name` warns of, for a command that keeps no log: in plain
/// lines, and nothing is exported. A program that has a subscriber already keeps that.
pub fn show_warnings_of(name: &'static str) {
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .without_time()
        .with_target(false)
        .with_ansi(false)
        .with_filter(Targets::new().with_target(name, LevelFilter::WARN));
    // Somebody else's subscriber shows them.
    drop(tracing_subscriber::registry().with(lines).try_init());
}

fn lines(format: Format) -> Box<dyn Layer<Registry> + Send + Sync> {
    let terminal = std::io::stderr().is_terminal();
    let json = match format {
        Format::Auto => !terminal,
        Format::Compact => false,
        Format::Json => true,
    };
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    if json {
        layer
            .fmt_fields(JsonFields::new())
            .event_format(FlatJson)
            .boxed()
    } else {
        layer.compact().with_ansi(terminal).boxed()
    }
}

/// `tracing` spans, those of user code among them, as OpenTelemetry spans.
fn spans(provider: &SdkTracerProvider) -> Box<dyn Layer<Registry> + Send + Sync> {
    // What an export does must not make spans that are exported.
    let of_the_export = [
        "h2",
        "hyper",
        "hyper_util",
        "opentelemetry",
        "opentelemetry_sdk",
        "opentelemetry_otlp",
        "reqwest",
        "rustls",
        "tower",
    ];
    let filter = Targets::new()
        .with_default(LevelFilter::INFO)
        .with_targets(of_the_export.map(|target| (target, LevelFilter::OFF)));
    tracing_opentelemetry::layer()
        .with_tracer(provider.tracer(names::SCOPE))
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        // A line at the level `error` is the user's; whether the attempt failed is ours to say.
        .with_error_events_to_status(false)
        .with_filter(filter)
        .boxed()
}

impl Telemetry {
    /// Exports what is left, for at most [`SHUTDOWN_MAX`]. Call it last: spans that end later
    /// are lost. Must be called inside a tokio runtime.
    pub async fn shutdown(mut self) {
        let providers = (self.spans.take(), self.metrics.take());
        say(end_aside(providers.0, providers.1, SHUTDOWN_MAX).await);
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        say(end(self.spans.take(), self.metrics.take(), SHUTDOWN_MAX));
    }
}

/// The metrics of a command that keeps no log and is over in a moment: [`init_metrics`] set them up.
#[derive(Debug)]
#[must_use = "what is counted leaves the process by `export`"]
pub struct CommandMetrics {
    metrics: Option<SdkMeterProvider>,
    within: Duration,
    /// What is wrong with the `OTEL_…` variables, a line each; none of it is in force.
    pub complaints: Vec<String>,
}

/// Sets up the export of metrics alone, if the `OTEL_…` variables name an endpoint: for a command
/// that counts what it does, keeps no log and is over in a moment. To be called before anything is
/// counted. Rows that the command makes are sampled as the variables say.
///
/// `service` is the name of the service unless the variables give one. `within` is the longest that
/// the export may take unless `OTEL_EXPORTER_OTLP_TIMEOUT` says otherwise.
pub fn init_metrics(service: &str, within: Duration) -> CommandMetrics {
    let exports = Exports::metrics_from_env(service, within);
    exports.install();
    CommandMetrics {
        metrics: exports.metrics,
        within: exports.within.min(SHUTDOWN_MAX),
        complaints: exports.complaints,
    }
}

impl CommandMetrics {
    /// Exports what was counted, if anything was, for at most the time it was given, and never
    /// longer than [`SHUTDOWN_MAX`]. Must be called inside a tokio runtime.
    ///
    /// # Errors
    ///
    /// The endpoint was not there, did not answer in time or refused: the counts are lost.
    pub async fn export(self) -> Result<(), NotExported> {
        end_aside(None, self.metrics, self.within).await
    }
}

/// The last export of a process was lost.
#[derive(Debug, thiserror::Error)]
pub enum NotExported {
    /// The exporter says why.
    #[error("the last export failed: {0}")]
    Failed(#[from] OTelSdkError),
    /// It was given up.
    #[error("the last export took longer than {0:?} and is given up")]
    Late(Duration),
    /// The thread of it is gone.
    #[error("the last export did not end in order: {0}")]
    Broken(#[from] tokio::task::JoinError),
}

fn say(ended: Result<(), NotExported>) {
    if let Err(error) = ended {
        tracing::warn!("{error}");
    }
}

/// [`end`], which holds up its thread, on one that may be held up.
async fn end_aside(
    spans: Option<SdkTracerProvider>,
    metrics: Option<SdkMeterProvider>,
    within: Duration,
) -> Result<(), NotExported> {
    tokio::task::spawn_blocking(move || end(spans, metrics, within)).await?
}

/// Ends both at once, on threads of their own: neither keeps to a time limit by itself.
fn end(
    spans: Option<SdkTracerProvider>,
    metrics: Option<SdkMeterProvider>,
    within: Duration,
) -> Result<(), NotExported> {
    let deadline = Instant::now() + within;
    let (ended, ends) = mpsc::channel();
    let mut expected = 0;
    if let Some(spans) = spans {
        expected += 1;
        let ended = ended.clone();
        std::thread::spawn(move || ended.send(spans.shutdown_with_timeout(within)));
    }
    if let Some(metrics) = metrics {
        expected += 1;
        std::thread::spawn(move || ended.send(metrics.shutdown_with_timeout(within)));
    }
    let mut failed = None;
    for _ in 0..expected {
        let left = deadline.saturating_duration_since(Instant::now());
        match ends.recv_timeout(left) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => failed = Some(error),
            Err(_) => return Err(NotExported::Late(within)),
        }
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nats_clients_own_lines_are_left_out_unless_it_is_named() {
        for (filter, directives) in [
            ("info", "async_nats=warn,info"),
            ("debug", "async_nats=warn,debug"),
            ("warn", "warn"),
            ("info,async_nats=debug", "async_nats=debug,info"),
        ] {
            assert_eq!(log_filter(filter).unwrap().to_string(), directives);
        }
        let wrong = log_filter("a=b=c").unwrap_err().to_string();
        assert!(wrong.contains("\"a=b=c\""), "{wrong}");
    }
}
