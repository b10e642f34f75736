//! One place that sets up logs and names the metrics.
//!
//! Roles call [`init`] once at their start. Library crates only use `tracing` macros and
//! [`metrics`]; without a meter provider (the exporter is set up by the binary) counting
//! costs next to nothing.

pub mod metrics;

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

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

/// Installs the process's log subscriber. Logs go to stderr; data never does.
///
/// `filter` is an `EnvFilter` directive list, for example `info`.
pub fn init(filter: &str, format: Format) -> Result<(), Error> {
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::util::SubscriberInitExt;

    let env_filter = EnvFilter::try_new(filter).map_err(|source| Error::Filter {
        filter: filter.to_owned(),
        source,
    })?;
    let terminal = std::io::stderr().is_terminal();
    let json = match format {
        Format::Auto => !terminal,
        Format::Compact => false,
        Format::Json => true,
    };
    let registry = tracing_subscriber::registry().with(env_filter);
    if json {
        let layer = tracing_subscriber::fmt::layer()
            .json()
            .with_writer(std::io::stderr);
        registry.with(layer).try_init()?;
    } else {
        let layer = tracing_subscriber::fmt::layer()
            .compact()
            .with_ansi(terminal)
            .with_writer(std::io::stderr);
        registry.with(layer).try_init()?;
    }
    Ok(())
}
