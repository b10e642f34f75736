//! `bellwether relay`.

use std::sync::Arc;

use bellwether_outbox_relay::{Options, Relay};
use clap::Args;

use crate::config::Config;
use crate::exit::Result;

#[derive(Debug, Args)]
pub(crate) struct Command {}

pub(crate) async fn run(config: &Config, _command: &Command) -> Result<()> {
    let shutdown = super::shutdown()?;
    let store = config.store("bellwether relay").await?;
    let nats = config.nats("bellwether relay").await?;
    let relay = Relay::new(
        Arc::clone(&store),
        nats,
        config.subjects.clone(),
        Options::default(),
    )?;
    let ended = relay.run(shutdown).await;
    store.close().await;
    Ok(ended?)
}
