//! The roles: each a process of its own that may be killed at any line.

mod health;
pub(crate) mod migrate;
pub(crate) mod relay;
pub(crate) mod ticker;
pub(crate) mod worker;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bellwether_store::{self as store, Store};
use bellwether_telemetry::{Format, Telemetry};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::config::{Config, key};
use crate::exit::{Failure, INTERRUPTED, Result, TERMINATED};

/// The file that a role touches while its runtime answers; `dev` sets it.
pub(crate) const HEARTBEAT_ENV: &str = "BELLWETHER_HEARTBEAT_FILE";

const HEARTBEAT_EVERY: Duration = Duration::from_secs(2);

/// Runs a role, with its logs and traces around it. `service` is its name in them.
pub(crate) async fn run(
    service: &str,
    config: &Config,
    role: impl Future<Output = Result<()>>,
) -> Result<()> {
    let telemetry = start(service, config)?;
    let ended = Box::pin(role).await;
    telemetry.shutdown().await;
    ended
}

/// What every role does first: logs, the tie to a parent that started it, the heartbeat.
fn start(service: &str, config: &Config) -> Result<Telemetry> {
    let filter = config.text(key::LOG).unwrap_or_default();
    let telemetry = bellwether_telemetry::init(service, filter, Format::Auto)
        .map_err(|error| Failure::usage(error.to_string()))?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    tokio::spawn(async {
        bellwether_sandbox::parent_gone().await;
        tracing::error!("the process that started this one is gone: ending at once");
        std::process::exit(1);
    });
    if let Some(path) = std::env::var_os(HEARTBEAT_ENV) {
        tokio::spawn(beat(PathBuf::from(path)));
    }
    Ok(telemetry)
}

/// Shows that the runtime still answers.
async fn beat(path: PathBuf) {
    let mut count: u64 = 0;
    loop {
        count += 1;
        if let Err(error) = tokio::fs::write(&path, count.to_string()).await {
            tracing::warn!(%error, path = %path.display(), "the heartbeat was not written");
        }
        tokio::time::sleep(HEARTBEAT_EVERY).await;
    }
}

/// Why a role is not ready that has not reached its ledger.
const AWAITS_LEDGER: &str = "waits for its database";

/// Longest wait between two tries to reach the ledger at the start.
const LEDGER_RETRY_MAX: Duration = Duration::from_secs(5);

/// A ledger that stays away is told of again after so long.
const SAY_EVERY: Duration = Duration::from_secs(5);

/// Opens the ledger. One that is away, or has no connection to spare because a whole fleet starts
/// at once, is waited for: a process that ended instead would only be started again, together with
/// all others. None = asked to stop meanwhile.
pub(crate) async fn store(
    options: &store::Options,
    config: &Config,
    shutdown: &CancellationToken,
) -> Result<Option<Arc<dyn Store>>> {
    let mut tries = 0;
    let mut said: Option<tokio::time::Instant> = None;
    while !shutdown.is_cancelled() {
        match store::connect(options).await {
            Ok(store) => return Ok(Some(store)),
            Err(error) if error.is_transient() => {
                if said.is_none_or(|said| said.elapsed() >= SAY_EVERY) {
                    said = Some(tokio::time::Instant::now());
                    let failure = config.no_database(error);
                    tracing::warn!(error = %failure.message, tries, "the ledger is not there yet; trying again");
                }
                tries += 1;
            }
            Err(error) => return Err(config.no_database(error)),
        }
        let cap = Duration::from_millis(200 << tries.min(5)).min(LEDGER_RETRY_MAX);
        // Full jitter: those that came together do not come back together.
        let wait = cap.mul_f64(fastrand::f64()).max(Duration::from_millis(50));
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
    Ok(None)
}

/// Cancelled by the first SIGTERM or SIGINT; the second ends the process at once.
pub(crate) fn shutdown() -> Result<CancellationToken> {
    let token = CancellationToken::new();
    let mut term = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let cancel = token.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping; a second signal ends at once");
        cancel.cancel();
        let code = tokio::select! {
            _ = term.recv() => TERMINATED,
            _ = interrupt.recv() => INTERRUPTED,
        };
        std::process::exit(code.into());
    });
    Ok(token)
}
