//! The leadership loop: bids, renews, steps down. Protocol: crate documentation.

use std::sync::Arc;
use std::time::Duration;

use bellwether_store::leadership::{Acquired, Bid, Renewed, Term};
use bellwether_store::{Ledger, Store};
use bellwether_telemetry::metrics;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::calls::{back_off, bounded, rest};
use crate::clock::BootTime;
use crate::handle::{Shared, Standing, leads};
use crate::options::jittered;
use crate::progress::Loop;

/// The one partition that this build plans.
const PARTITION: i32 = 0;

/// The leadership loop of one ticker.
pub(crate) struct Leadership {
    /// A connection of its own: renewals never queue behind plans and sweeps.
    store: Arc<dyn Store>,
    shared: Arc<Shared>,
    map_version: i64,
    failures: u32,
}

/// Why a term ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The process was asked to stop.
    Stopped,
    /// A renewal was refused.
    Lost,
    /// The planner found it over: its statement was refused, or came too late to be sent.
    Fenced,
    /// No renewal succeeded in time.
    SelfFenced,
    /// A loop made no progress.
    Stalled(Loop),
}

/// The count of the ledger, if it is what this ticker is configured and built for.
pub(crate) fn check_partitions(ledger: &Ledger, configured: Option<u32>) -> Result<(), Error> {
    let stored = ledger.partition_count;
    match configured {
        Some(configured) if configured != stored => {
            Err(Error::PartitionCount { configured, stored })
        }
        _ if stored != 1 => Err(Error::PartitionsUnsupported { stored }),
        _ => Ok(()),
    }
}

// === impl Leadership ===

impl Leadership {
    pub(crate) fn new(store: Arc<dyn Store>, shared: Arc<Shared>, ledger: &Ledger) -> Self {
        Self {
            store,
            shared,
            map_version: ledger.map_version,
            failures: 0,
        }
    }

    /// Runs until asked to stop, then resigns.
    ///
    /// # Errors
    ///
    /// A partition map that this ticker cannot work by.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<(), Error> {
        while !stop.is_cancelled() {
            let pause = self.turn(&stop).await?;
            rest(&stop, pause).await;
        }
        Ok(())
    }

    /// One bid, and the term if it was won; how long to rest before the next one.
    async fn turn(&mut self, stop: &CancellationToken) -> Result<Duration, Error> {
        let shared = Arc::clone(&self.shared);
        let options = &shared.options;
        let sent = shared.clock.now();
        shared.progress.turned(Loop::Leadership, sent);
        if let Some(stalled) = shared.progress.stalled(sent, options.progress_max) {
            tracing::warn!(
                stalled = stalled.as_str(),
                "no bid for a term: a loop makes no progress"
            );
            return Ok(jittered(options.standby_poll));
        }
        let bid = Bid {
            partition: PARTITION,
            map_version: self.map_version,
            holder: &shared.holder,
            lease: options.lease,
            zone_version: bellwether_time::zone_data_version(),
        };
        let call = self.store.acquire_term(&bid);
        let acquired = match bounded("bid for a term", options.call_timeout, call).await {
            Ok(acquired) => acquired,
            Err(error) => {
                self.failures += 1;
                shared.counters.lease_errors.add(1);
                tracing::warn!(%error, failures = self.failures, "a bid for a term failed");
                return Ok(back_off(self.failures, options.standby_poll));
            }
        };
        self.failures = 0;
        shared
            .progress
            .succeeded(Loop::Leadership, shared.clock.now());
        match acquired {
            Acquired::Won(term) => Ok(self.serve(&term, sent, stop).await),
            Acquired::MapChanged => {
                self.read_map().await?;
                Ok(jittered(options.standby_poll))
            }
            other => Ok(self.stand_by(other)),
        }
    }

    /// Shows why this process does not lead; how long to rest before the next bid.
    fn stand_by(&self, acquired: Acquired) -> Duration {
        let poll = jittered(self.shared.options.standby_poll);
        match acquired {
            Acquired::Held { holder, remaining } => {
                self.shared.stand(Standing::Standby {
                    leader: Some(holder),
                });
                // Be there when the lease ends, with room for the clocks' resolution.
                poll.min(remaining + jittered(Duration::from_millis(20)))
            }
            Acquired::LeaseMissing => {
                tracing::error!(
                    partition = PARTITION,
                    "the lease row is missing: nobody may plan; restore the row in table lease"
                );
                self.shared.stand(Standing::LeaseMissing);
                poll
            }
            Acquired::ZoneDataOlder { required } => {
                tracing::error!(
                    required,
                    own = bellwether_time::zone_data_version(),
                    "the last term planned with newer time zone data; use a newer build"
                );
                self.shared.stand(Standing::ZoneDataOlder { required });
                poll
            }
            Acquired::Won(_) | Acquired::MapChanged => poll,
        }
    }

    async fn read_map(&mut self) -> Result<(), Error> {
        let call = self.store.ledger();
        match bounded(
            "read the partition map",
            self.shared.options.call_timeout,
            call,
        )
        .await
        {
            Ok(ledger) => {
                check_partitions(&ledger, self.shared.options.partition_count)?;
                tracing::info!(
                    from = self.map_version,
                    to = ledger.map_version,
                    "the partition map has changed"
                );
                self.map_version = ledger.map_version;
            }
            Err(error) => {
                self.shared.counters.lease_errors.add(1);
                tracing::warn!(%error, "the partition map has changed and cannot be read yet");
            }
        }
        Ok(())
    }

    /// Leads until the term ends; how long to rest before the next bid.
    async fn serve(&self, term: &Term, sent: BootTime, stop: &CancellationToken) -> Duration {
        let options = &self.shared.options;
        self.shared.counters.terms_won.add(1);
        tracing::info!(epoch = term.epoch, holder = self.shared.holder, "term won");
        let end = self.hold(term, sent, stop).await;
        // Stop believing before the lease is given back.
        self.shared.step_down(term.term_id);
        if end == End::Stopped {
            tracing::info!(epoch = term.epoch, "resigning");
        } else {
            self.shared.counters.terms_lost.add(1);
            tracing::warn!(epoch = term.epoch, why = %end, "the term is over");
        }
        if matches!(end, End::Stopped | End::SelfFenced | End::Stalled(_)) {
            self.resign(term).await;
        }
        match end {
            // Give another ticker the chance to do better.
            End::Stalled(_) => jittered(options.lease),
            _ => jittered(options.standby_poll),
        }
    }

    async fn hold(&self, term: &Term, sent: BootTime, stop: &CancellationToken) -> End {
        let Shared {
            options,
            clock,
            progress,
            counters,
            ..
        } = &*self.shared;
        let mut standing = self.shared.watch_standing();
        let mut trusted_until = sent + options.self_fence;
        let mut renew_at = sent + options.renew_every;
        self.shared.stand(Standing::Leading {
            term: term.clone(),
            trusted_until,
        });
        loop {
            let pause = renew_at.min(trusted_until).since(clock.now());
            tokio::select! {
                () = stop.cancelled() => return End::Stopped,
                _ = standing.wait_for(|now| !leads(now, term.term_id)) => return End::Fenced,
                () = tokio::time::sleep(pause) => {}
            }
            let sent = clock.now();
            progress.turned(Loop::Leadership, sent);
            if sent >= trusted_until {
                return End::SelfFenced;
            }
            if let Some(stalled) = progress.stalled(sent, options.progress_max) {
                return End::Stalled(stalled);
            }
            let within = options.renew_timeout.min(trusted_until.since(sent));
            let call = self.store.renew_term(term, options.lease);
            let renewed = bounded("renew the term", within, call).await;
            let outcome = match &renewed {
                Ok(Renewed::Renewed) => "renewed",
                Ok(Renewed::Lost) => "lost",
                Err(_) => "error",
            };
            metrics::counters()
                .lease_renewals
                .add(1, &[metrics::outcome(outcome)]);
            match renewed {
                Ok(Renewed::Renewed) => {
                    trusted_until = sent + options.self_fence;
                    renew_at = sent + options.renew_every;
                    self.shared.trust(term.term_id, trusted_until);
                    progress.succeeded(Loop::Leadership, clock.now());
                }
                Ok(Renewed::Lost) => return End::Lost,
                Err(error) => {
                    counters.lease_errors.add(1);
                    tracing::warn!(%error, epoch = term.epoch, "a renewal failed and is repeated");
                    renew_at = clock.now() + options.renew_every / 10;
                }
            }
        }
    }

    async fn resign(&self, term: &Term) {
        let call = self.store.resign_term(term);
        let resigned = bounded("resign the term", self.shared.options.renew_timeout, call).await;
        if let Err(error) = resigned {
            // Costs the next leader the rest of the lease, nothing else.
            tracing::warn!(%error, epoch = term.epoch, "the lease was not given back, it runs out");
        }
    }
}

// === impl End ===

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stopped => f.write_str("asked to stop"),
            Self::Lost => f.write_str("a renewal was refused"),
            Self::Fenced => f.write_str("the planner found it over"),
            Self::SelfFenced => f.write_str("no renewal succeeded in time"),
            Self::Stalled(stalled) => write!(f, "the {} loop makes no progress", stalled.as_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use bellwether_schemas::ids;
    use chrono::DateTime;

    use super::*;

    fn ledger(partition_count: u32) -> Ledger {
        Ledger {
            id: ids::token(),
            partition_count,
            map_version: 1,
            now: DateTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn r31_only_the_stored_partition_count_is_accepted() {
        assert!(check_partitions(&ledger(1), None).is_ok());
        assert!(check_partitions(&ledger(1), Some(1)).is_ok());
        let differs = check_partitions(&ledger(32), Some(64));
        assert!(matches!(
            differs,
            Err(Error::PartitionCount {
                configured: 64,
                stored: 32
            })
        ));
        let too_new = check_partitions(&ledger(2), Some(2));
        assert!(matches!(
            too_new,
            Err(Error::PartitionsUnsupported { stored: 2 })
        ));
    }
}
