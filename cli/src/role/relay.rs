//! `bellwether relay`.

use std::sync::Arc;

use bellwether_outbox_relay::{Error, Options, Relay};
use clap::Args;

use crate::config::Config;
use crate::exit::{FAILED, Failure, Result, USAGE};

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
    )
    .map_err(failure)?;
    let ended = relay.run(shutdown).await.map_err(failure);
    store.close().await;
    ended
}

fn failure(error: Error) -> Failure {
    let code = if error.is_final() { USAGE } else { FAILED };
    Failure::new(code, error.to_string())
}
