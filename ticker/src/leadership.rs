//! The leadership loop: bids, renews, gives up, steps down. Protocol: crate documentation.
//!
//! Two halves run side by side, so that a bid that waits for a planner delays no renewal: this one
//! renews, `bids` looks for the share of this process and bids for it.

use std::sync::Arc;
use std::time::Duration;

use bellwether_store::leadership::{Renewed, Term};
use bellwether_store::{Ledger, Store};
use bellwether_telemetry::{Trouble, metrics};
use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::bids::Bids;
use crate::calls::bounded;
use crate::clock::BootTime;
use crate::handle::Shared;
use crate::progress::Loop;
use crate::terms::{End, Held};

/// The leadership loop of one ticker.
pub(crate) struct Leadership {
    renewals: Renewals,
    bids: Bids,
    stop: CancellationToken,
}

/// What keeps and ends the terms of one ticker.
#[derive(Clone)]
pub(crate) struct Renewals {
    /// Connections of its own: renewals never queue behind plans and sweeps.
    store: Arc<dyn Store>,
    shared: Arc<Shared>,
}

/// Refuses a ledger whose number of partitions is not what this ticker is configured for.
pub(crate) fn check_partitions(stored: u32, configured: Option<u32>) -> Result<(), Error> {
    match configured {
        Some(configured) if configured != stored => {
            Err(Error::PartitionCount { configured, stored })
        }
        _ => Ok(()),
    }
}

// === impl Leadership ===

impl Leadership {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        shared: Arc<Shared>,
        ledger: &Ledger,
        stop: CancellationToken,
    ) -> Self {
        let renewals = Renewals {
            store: Arc::clone(&store),
            shared: Arc::clone(&shared),
        };
        Self {
            bids: Bids::new(store, shared, renewals.clone(), ledger, stop.clone()),
            renewals,
            stop,
        }
    }

    /// Runs until asked to stop, then gives back all terms and leaves the roster, so that nobody
    /// waits for this process.
    ///
    /// # Errors
    ///
    /// A partition map that this ticker is not configured for.
    pub(crate) async fn run(self) -> Result<(), Error> {
        let Self {
            renewals,
            bids,
            stop,
        } = self;
        let bidding = bids.run();
        tokio::pin!(bidding);
        let ended = tokio::select! {
            () = renewals.run(&stop) => bidding.await,
            ended = &mut bidding => ended,
        };
        renewals.resign_all(End::Stopped).await;
        renewals.check_out().await;
        ended
    }
}

// === impl Renewals ===

impl Renewals {
    async fn run(&self, stop: &CancellationToken) {
        let Shared {
            options,
            clock,
            progress,
            ..
        } = &*self.shared;
        let mut terms = self.shared.watch_terms();
        let mut renew_at = None;
        let mut trouble = Trouble::with("renew the term");
        while !stop.is_cancelled() {
            let now = clock.now();
            progress.turned(Loop::Leadership, now);
            let first_end = terms
                .borrow_and_update()
                .held()
                .map(|held| held.trusted_until)
                .min();
            let wake_at = if let Some(first_end) = first_end {
                first_end.min(*renew_at.get_or_insert(now + options.renew_every))
            } else {
                renew_at = None;
                now + options.standby_poll
            };
            tokio::select! {
                () = stop.cancelled() => return,
                // Won a term, perhaps. A closed channel cannot be: `shared` holds the sender.
                _ = terms.changed() => {}
                // The planner has seen first that time is over, as after a sleep of the host.
                () = self.shared.keep_now.notified() => {}
                () = tokio::time::sleep(wake_at.since(now)) => {}
            }
            let due = renew_at.is_some_and(|renew_at| clock.now() >= renew_at);
            if let Some(next) = self.keep(due, &mut trouble).await {
                renew_at = Some(next);
            }
        }
    }

    /// Ends what may not go on and renews the rest if that is due; when to renew next, if it did.
    async fn keep(&self, due: bool, trouble: &mut Trouble) -> Option<BootTime> {
        let sent = self.shared.clock.now();
        self.shared.progress.turned(Loop::Leadership, sent);
        let held = self.shared.held();
        let (over, held): (Vec<_>, Vec<_>) = held
            .into_iter()
            .partition(|held| sent >= held.trusted_until);
        // Neither waits for the other.
        let ((), next) = tokio::join!(
            self.give_back(&over, End::SelfFenced),
            self.keep_trusted(sent, &held, due, trouble)
        );
        next
    }

    async fn keep_trusted(
        &self,
        sent: BootTime,
        held: &[Held],
        due: bool,
        trouble: &mut Trouble,
    ) -> Option<BootTime> {
        let Shared {
            options, progress, ..
        } = &*self.shared;
        if held.is_empty() {
            return None;
        }
        if let Some(stalled) = progress.stalled(sent, options.progress_max) {
            // Give another ticker the chance to do better.
            self.shared.rest_until(sent + options.lease);
            self.give_back(held, End::Stalled(stalled)).await;
            return None;
        }
        if due {
            Some(self.renew(sent, held, trouble).await)
        } else {
            None
        }
    }

    /// One statement for all terms; when to send the next one.
    async fn renew(&self, sent: BootTime, held: &[Held], trouble: &mut Trouble) -> BootTime {
        let Shared {
            options,
            clock,
            progress,
            counters,
            ..
        } = &*self.shared;
        let terms: Vec<_> = held.iter().map(|held| held.term.clone()).collect();
        let first_end = held.iter().map(|held| held.trusted_until).min();
        let left = first_end.map_or(Duration::ZERO, |first_end| first_end.since(sent));
        let within = options.renew_timeout.min(left);
        let call = self.store.renew_terms(&terms, options.lease);
        let answers = match bounded("renew the term", within, call).await {
            Ok(answers) => answers,
            Err(error) => {
                count_renewals("error", terms.len());
                counters.lease_errors.add(1);
                trouble.note(&error);
                return clock.now() + options.renew_every / 10;
            }
        };
        trouble.over();
        let (renewed, lost): (Vec<_>, Vec<_>) = terms
            .iter()
            .zip(answers)
            .partition(|(_, answer)| *answer == Renewed::Renewed);
        count_renewals("renewed", renewed.len());
        count_renewals("lost", lost.len());
        for (term, _) in &renewed {
            self.shared.trust(term, sent + options.self_fence);
        }
        for (term, _) in lost {
            self.shared.end(term, End::Lost);
            self.shared.look_again.notify_one();
        }
        if !renewed.is_empty() {
            progress.succeeded(Loop::Leadership, clock.now());
        }
        sent + options.renew_every
    }

    /// Stops believing in all terms and gives them back.
    pub(crate) async fn resign_all(&self, why: End) {
        self.give_back(&self.shared.held(), why).await;
    }

    /// Stops believing in all of `these` at once, waits for their statements under way and gives
    /// the leases back, in this order: nothing is cut off, and the next term begins after the last
    /// fire of this one. Takes twice [`Options::renew_timeout`](crate::Options::renew_timeout) at
    /// most, however many there are.
    pub(crate) async fn give_back(&self, these: &[Held], why: End) {
        let end = |held: &Held| self.shared.end(&held.term, why);
        let ended: Vec<_> = these.iter().filter_map(end).collect();
        if ended.is_empty() {
            return;
        }
        let patience = self.shared.options.renew_timeout;
        let planned = async |held: &Held| {
            let planned = tokio::time::timeout(patience, held.plans.write()).await;
            planned.is_ok()
        };
        let planned = join_all(ended.iter().map(planned)).await;
        self.turned();
        let (idle, busy): (Vec<_>, Vec<_>) = std::iter::zip(ended, planned).partition(|one| one.1);
        let terms = |these: Vec<(Held, bool)>| -> Vec<_> {
            these.into_iter().map(|(held, _)| held.term).collect()
        };
        // The ledger waits for the plans under way, too, and refuses those that come later. The
        // others' leases do not wait for them.
        let (idle, busy) = (terms(idle), terms(busy));
        tokio::join!(self.resign(&idle), self.resign(&busy));
        self.turned();
        if why.is_loss() {
            self.shared.look_again.notify_one();
        }
    }

    /// Gives leases back in one statement; whether the ledger has said so.
    pub(crate) async fn resign(&self, terms: &[Term]) -> bool {
        let Some(first) = terms.first() else {
            return true;
        };
        let within = self.shared.options.renew_timeout;
        let call = self.store.resign_terms(terms);
        let Err(error) = bounded("resign terms", within, call).await else {
            return true;
        };
        // Costs the next leader the rest of the lease, nothing else.
        let (epoch, terms) = (first.epoch, terms.len());
        tracing::warn!(%error, epoch, terms, "leases were not given back, they run out");
        false
    }

    async fn check_out(&self) {
        let call = self.store.check_out(self.shared.id);
        let gone = bounded("check out", self.shared.options.renew_timeout, call).await;
        if let Err(error) = gone {
            // Costs the others a lease until they take over the share, nothing else.
            tracing::warn!(%error, "the ticker is still on the roster");
        }
    }

    fn turned(&self) {
        let now = self.shared.clock.now();
        self.shared.progress.turned(Loop::Leadership, now);
    }
}

fn count_renewals(outcome: &'static str, count: usize) {
    let count = u64::try_from(count).unwrap_or(u64::MAX);
    let outcome = [metrics::outcome(outcome)];
    metrics::counters().lease_renewals.add(count, &outcome);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r31_only_the_stored_partition_count_is_accepted() {
        assert!(check_partitions(1, None).is_ok());
        assert!(check_partitions(16, Some(16)).is_ok());
        let differs = check_partitions(32, Some(64));
        assert!(matches!(
            differs,
            Err(Error::PartitionCount {
                configured: 64,
                stored: 32
            })
        ));
    }
}
