//! `bellwether ticker`.

use std::sync::Arc;

use bellwether_outbox_relay::NatsWaker;
use bellwether_ticker::{Options, Ticker, Waker};
use clap::Args;

use super::health;
use crate::config::{Config, Flags, Section, key};
use crate::exit::Result;

#[derive(Debug, Args)]
pub(crate) struct Command {
    #[command(flatten)]
    pub(crate) flags: Flags<Ours>,
}

/// The section `[ticker]`.
#[derive(Debug)]
pub(crate) struct Ours;

impl Section for Ours {
    const NAME: &'static str = "ticker";
}

/// A wake-up over core NATS; the ticker itself knows no NATS.
struct Wake(NatsWaker);

impl Waker for Wake {
    fn wake(&self) {
        self.0.wake();
    }
}

pub(crate) async fn run(config: &Config) -> Result<()> {
    let options = options(config)?;
    let shutdown = super::shutdown()?;
    let health = health::begin(config, super::AWAITS_LEDGER)?;
    let database = config.database("bellwether ticker")?;
    let Some(store) = super::store(&database, config, &shutdown).await? else {
        return Ok(());
    };
    // One to renew with, one to look and bid with, which may wait for a planner, and one more while
    // a dead one is being closed: a renewal waits for none of them.
    let mut lease_database = config.database("bellwether ticker lease")?;
    lease_database.connections_max = 3;
    let Some(lease_store) = super::store(&lease_database, config, &shutdown).await? else {
        return Ok(());
    };
    // A wake-up is a courtesy: the ticker plans whether or not the broker is there.
    let nats = config.nats_later("bellwether ticker").await?;
    let waker = NatsWaker::new(nats, &config.subjects);
    let ticker = Ticker::new(
        Arc::clone(&store),
        Arc::clone(&lease_store),
        Arc::new(Wake(waker)),
        options,
    )?;
    let handle = ticker.handle();
    health.show(move || handle.ready());
    let ended = ticker.run(shutdown).await;
    drop(health);
    lease_store.close().await;
    store.close().await;
    Ok(ended?)
}

/// All times of a term keep their ratio to its lease.
fn options(config: &Config) -> Result<Options> {
    let lease = config.duration(key::TICKER_LEASE)?;
    let session_lease = config.duration(key::TICKER_SESSION_LEASE)?;
    let defaults = Options::default();
    let options = Options {
        partition_count: config.count(key::TICKER_PARTITION_COUNT)?,
        lease,
        renew_every: lease / 3,
        renew_timeout: lease.saturating_mul(2) / 9,
        self_fence: lease.saturating_mul(7) / 9,
        session_lease,
        // Sessions of a view with a gap as long as their lease had no chance to renew.
        view_gap: (session_lease.saturating_mul(2) / 3)
            .clamp(defaults.sweep_every * 2, defaults.view_gap),
        unknown_after: config.duration(key::TICKER_UNKNOWN_AFTER)?,
        probe_after: config.duration(key::TICKER_PROBE_AFTER)?,
        definition_gone_after: config.duration(key::TICKER_DEFINITION_GONE_AFTER)?,
        key_retention: config.duration(key::TICKER_KEY_RETENTION)?,
        history_retention: config.duration_or_off(key::TICKER_HISTORY_RETENTION)?,
        steady_for: config.duration(key::TICKER_STEADY_FOR)?,
        transaction_age_max: config.duration(key::TICKER_TRANSACTION_AGE_MAX)?,
        ..defaults
    };
    // Before anybody is asked.
    let valid = options.validate();
    valid.map_err(|error| config.naming::<Ours>(error.into()))?;
    Ok(options)
}
