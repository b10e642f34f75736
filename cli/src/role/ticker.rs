//! `bellwether ticker`.

use std::sync::Arc;
use std::time::Duration;

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
        view_gap: view_gap(session_lease, &defaults),
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

/// Sessions of a view with a gap as long as their lease had no chance to renew: a shorter lease makes for a
/// shorter gap. Not below two rounds of the sweeps, whose looks they are.
fn view_gap(session_lease: Duration, defaults: &Options) -> Duration {
    let renewals = session_lease.saturating_mul(2) / 3;
    renewals.clamp(defaults.sweep_every * 2, defaults.view_gap)
}

#[cfg(test)]
mod tests {
    use bellwether_ticker::{BootTime, Judgement, Look, View};
    use chrono::DateTime;

    use super::*;

    const fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// The options of a ticker that was told this lease of sessions.
    fn of(session_lease: Duration) -> Options {
        let defaults = Options::default();
        Options {
            session_lease,
            view_gap: view_gap(session_lease, &defaults),
            ..defaults
        }
    }

    #[test]
    fn a_short_session_lease_shortens_the_gap_that_breaks_the_view() {
        for (lease, gap) in [
            (600_000, 3_000),
            (9_000, 3_000),
            (4_500, 3_000),
            (4_200, 2_800),
            (3_000, 2_000),
            (1_000, 2_000),
        ] {
            let options = of(millis(lease));
            options.validate().unwrap();
            assert_eq!(options.view_gap, millis(gap), "{lease} ms");
        }
    }

    /// A worker with a lease of 3 s renews every second; in a pause of 2.5 s it may have lost two of
    /// three renewals and is not to blame.
    #[test]
    fn a_pause_that_a_long_lease_bears_is_a_gap_for_a_short_one() {
        let pause = millis(2_500);
        let look = |since: Duration| {
            let at = BootTime::from_boot(millis(100_000) + since);
            Look {
                sent: at,
                received: at,
                ledger_now: DateTime::UNIX_EPOCH + since,
            }
        };
        for (lease, judged) in [
            (millis(9_000), Judgement::Unbroken),
            (millis(3_000), Judgement::Gap(pause)),
        ] {
            let mut view = View::new(&of(lease));
            view.look(look(Duration::ZERO));
            assert_eq!(view.look(look(pause)), judged, "{lease:?}");
        }
    }
}
