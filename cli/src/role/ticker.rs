//! `bellwether ticker`.

use std::sync::Arc;
use std::time::Duration;

use bellwether_outbox_relay::NatsWaker;
use bellwether_ticker::{Options, Ticker, Waker};
use clap::Args;

use crate::config::Config;
use crate::duration;
use crate::exit::{Failure, Result};

#[derive(Debug, Args)]
pub(crate) struct Command {
    /// Lease of the leader's term; renewed after a third of it
    #[arg(long, default_value = "9s", value_parser = duration::parse, value_name = "DURATION")]
    lease: Duration,
    /// Longest lease of a worker session; after a gap in this ticker's view nothing is
    /// declared lost for that long
    #[arg(long, default_value = "9s", value_parser = duration::parse, value_name = "DURATION")]
    session_lease: Duration,
    /// Refuses to start unless the ledger has this many partitions [default: any]
    #[arg(long, value_name = "N")]
    partition_count: Option<u32>,
}

/// A wake-up over core NATS; the ticker itself knows no NATS.
struct Wake(NatsWaker);

impl Waker for Wake {
    fn wake(&self) {
        self.0.wake();
    }
}

pub(crate) async fn run(config: &Config, command: &Command) -> Result<()> {
    let shutdown = super::shutdown()?;
    let store = config.store("bellwether ticker").await?;
    let lease_store = config.store("bellwether ticker lease").await?;
    // A wake-up is a courtesy: the ticker plans whether or not the broker is there.
    let nats = async_nats::ConnectOptions::new()
        .name("bellwether ticker")
        .retry_on_initial_connect()
        .connect(&config.nats_url)
        .await
        .map_err(|error| Failure::usage(format!("failed to use {}: {error}", config.nats_url)))?;
    let waker = NatsWaker::new(nats, &config.subjects);
    let ticker = Ticker::new(
        Arc::clone(&store),
        Arc::clone(&lease_store),
        Arc::new(Wake(waker)),
        command.options(),
    )?;
    let ended = ticker.run(shutdown).await;
    lease_store.close().await;
    store.close().await;
    Ok(ended?)
}

impl Command {
    /// All times of a term keep their ratio to its lease.
    fn options(&self) -> Options {
        Options {
            partition_count: self.partition_count,
            lease: self.lease,
            renew_every: self.lease / 3,
            renew_timeout: self.lease * 2 / 9,
            self_fence: self.lease * 7 / 9,
            session_lease: self.session_lease,
            ..Options::default()
        }
    }
}
