//! `bellwether relay`.

use std::sync::Arc;

use bellwether_outbox_relay::{Options, Relay};
use clap::Args;

use super::health;
use crate::config::{Config, Flags, Section, key};
use crate::exit::Result;

#[derive(Debug, Args)]
pub(crate) struct Command {
    #[command(flatten)]
    pub(crate) flags: Flags<Ours>,
}

/// The section `[relay]`.
#[derive(Debug)]
pub(crate) struct Ours;

impl Section for Ours {
    const NAME: &'static str = "relay";
}

pub(crate) async fn run(config: &Config) -> Result<()> {
    let options = options(config)?;
    let shutdown = super::shutdown()?;
    let health = health::begin(config, super::AWAITS_LEDGER)?;
    let database = config.database("bellwether relay")?;
    let Some(store) = super::store(&database, config, &shutdown).await? else {
        return Ok(());
    };
    health.show(|| Err::<(), _>("waits for the broker"));
    let nats = config.nats("bellwether relay").await?;
    let relay = Relay::new(Arc::clone(&store), nats, config.subjects.clone(), options)?;
    let handle = relay.handle();
    health.show(move || handle.ready());
    let ended = relay.run(shutdown).await;
    drop(health);
    store.close().await;
    Ok(ended?)
}

fn options(config: &Config) -> Result<Options> {
    let defaults = Options::default();
    let options = Options {
        lost_after: config.duration(key::RELAY_LOST_AFTER)?,
        lost_after_max: config.duration(key::RELAY_LOST_AFTER_MAX)?,
        lost_every: config.duration(key::RELAY_LOST_EVERY)?,
        unclaimed_max: config
            .count(key::RELAY_UNCLAIMED_MAX)?
            .unwrap_or(defaults.unclaimed_max),
        stuck_after: config.duration(key::RELAY_STUCK_AFTER)?,
        check_every: config.duration(key::RELAY_CHECK_EVERY)?,
        redispatch_batch: config
            .count(key::RELAY_REDISPATCH_RATE)?
            .unwrap_or(defaults.redispatch_batch),
        backoff_max: config.duration(key::RELAY_BACKOFF_MAX)?,
        strays_every: config.duration(key::RELAY_STRAYS_EVERY)?,
        strays_after: config.duration(key::RELAY_STRAYS_AFTER)?,
        streams: config.streams()?,
        ..defaults
    };
    // Before anybody is asked.
    let valid = options.validate();
    valid.map_err(|error| config.naming::<Ours>(error.into()))?;
    Ok(options)
}
