//! The other half of the leadership loop: says that this process is there, takes its share of the
//! partitions, gives up what is another's, and follows a change of their number.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bellwether_store::leadership::{Acquired, Bid, Term};
use bellwether_store::partitions::{CheckIn, Lease, Roster};
use bellwether_store::{Ledger, Result, Store};
use bellwether_telemetry::Trouble;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::calls::{back_off, bounded};
use crate::handle::Shared;
use crate::leadership::{Renewals, check_partitions};
use crate::options::jittered;
use crate::progress::Loop;
use crate::sharing::{Share, share};
use crate::terms::{End, Obstacle};

/// What a lease that runs out is given, lest the bid come a moment too early.
const LEASE_SLACK: Duration = Duration::from_millis(20);

/// Bids that failed in a row, after which a round goes no further: what fails is then not one row.
const FAILED_BIDS_MAX: u32 = 3;

/// Rounds in a row without an answer to any bid, after which the others do not count on the ticker.
const UNANSWERED_ROUNDS_MAX: u32 = 3;

/// What bids for the terms of one ticker.
pub(crate) struct Bids {
    store: Arc<dyn Store>,
    shared: Arc<Shared>,
    renewals: Renewals,
    map_version: i64,
    partition_count: u32,
    /// Looks, or rounds of bids, that failed in a row.
    failures: u32,
    /// Rounds of bids in a row of which none was answered.
    unanswered: u32,
    /// Partitions of which the last bid failed; they come last, lest the others wait for them.
    failing: HashSet<i32>,
    look_trouble: Trouble,
    bid_trouble: Trouble,
    stop: CancellationToken,
}

/// How far one round of bids came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Round {
    /// To its end.
    Done,
    /// It took so long that another look comes first.
    Unfinished,
    /// Bids failed; that was logged.
    Failed {
        /// Whether others were answered.
        answered: bool,
    },
    /// The partition map is another one: nothing else makes sense before that is read.
    MapChanged,
}

// === impl Bids ===

impl Bids {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        shared: Arc<Shared>,
        renewals: Renewals,
        ledger: &Ledger,
        stop: CancellationToken,
    ) -> Self {
        Self {
            store,
            shared,
            renewals,
            map_version: ledger.map_version,
            partition_count: ledger.partition_count,
            failures: 0,
            unanswered: 0,
            failing: HashSet::new(),
            look_trouble: Trouble::with(Loop::Leadership.purpose()),
            bid_trouble: Trouble::with("bid for a term"),
            stop,
        }
    }

    /// Looks and bids until asked to stop.
    pub(crate) async fn run(mut self) -> Result<(), Error> {
        let stop = self.stop.clone();
        while !stop.is_cancelled() {
            let pause = self.turn().await?;
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.shared.look_again.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        Ok(())
    }

    /// One look, and what follows from it; how long to rest before the next one.
    async fn turn(&mut self) -> Result<Duration, Error> {
        let shared = Arc::clone(&self.shared);
        let (options, clock) = (&shared.options, &shared.clock);
        let now = clock.now();
        let stalled = shared.progress.stalled(now, options.progress_max);
        if let Some(stalled) = stalled {
            let why = format!("the {} loop makes no progress", stalled.as_str());
            self.bid_trouble.note(&why);
        }
        let fit = stalled.is_none() && shared.has_rested(now);
        let mut roster = match self.check_in(fit).await {
            Ok(roster) => roster,
            Err(error) => {
                shared.counters.lease_errors.add(1);
                self.look_trouble.note(&error);
                return Ok(self.failed());
            }
        };
        shared.progress.succeeded(Loop::Leadership, clock.now());
        self.look_trouble.over();
        self.resign_strays(&mut roster).await;
        if roster.map_version != self.map_version {
            self.follow(&roster).await?;
        }
        if !fit {
            self.failures = 0;
            return Ok(jittered(options.standby_poll));
        }
        let share = share(&roster, &shared.holder, shared.held().len());
        self.give(share.give).await;
        let round = self.bid(&roster, share.take).await;
        self.unanswered = match round {
            Round::Failed { answered: false } => self.unanswered.saturating_add(1),
            _ => 0,
        };
        Ok(match round {
            Round::Failed { .. } => self.failed(),
            Round::MapChanged => jittered(options.standby_poll),
            Round::Unfinished => Duration::ZERO,
            Round::Done => {
                self.failures = 0;
                self.bid_trouble.over();
                self.rest(&roster, share)
            }
        })
    }

    async fn check_in(&self, fit: bool) -> Result<Roster> {
        let options = &self.shared.options;
        let check_in = CheckIn {
            id: self.shared.id,
            holder: &self.shared.holder,
            host: &options.host,
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION"),
            map_version: self.map_version,
            bids: fit && self.may_lead(),
        };
        let call = self.store.check_in(&check_in, options.lease);
        bounded("check in", options.bid_timeout(), call).await
    }

    /// Whether the others may leave it a share. One bid that fails, or a row that is missing, says
    /// nothing about the rest: if each took it for a reason, nobody would share with anybody.
    fn may_lead(&self) -> bool {
        let able = self.unanswered < UNANSWERED_ROUNDS_MAX || self.shared.holds_any();
        able && !self.shared.is_outdated()
    }

    fn failed(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        back_off(self.failures, self.shared.options.standby_poll)
    }

    /// Gives back the leases of this process that it does not believe in: a bid or a renewal whose
    /// answer was not waited for has succeeded all the same. Those that are given back at this very
    /// moment are given back twice, which changes nothing.
    async fn resign_strays(&self, roster: &mut Roster) {
        let held = self.shared.held();
        let held: HashSet<_> = held.iter().map(|held| held.term.term_id).collect();
        let holder = Some(self.shared.holder.as_str());
        let stray = |lease: &Lease| {
            let own = lease.remaining.is_some() && lease.holder.as_deref() == holder;
            let term_id = lease
                .term_id
                .filter(|term_id| own && !held.contains(term_id))?;
            Some(Term {
                partition: lease.partition,
                epoch: lease.epoch,
                term_id,
                map_version: lease.map_version,
            })
        };
        let strays: Vec<_> = roster.leases.iter().filter_map(stray).collect();
        if !self.renewals.resign(&strays).await {
            return;
        }
        for lease in &mut roster.leases {
            if stray(lease).is_some() {
                lease.remaining = None;
            }
        }
    }

    /// Goes on by another map: the terms of the old one are over.
    async fn follow(&mut self, roster: &Roster) -> Result<(), Error> {
        let configured = self.shared.options.partition_count;
        check_partitions(roster.partition_count, configured)?;
        self.renewals.resign_all(End::MapChanged).await;
        tracing::info!(
            from = self.map_version,
            to = roster.map_version,
            partitions_from = self.partition_count,
            partitions_to = roster.partition_count,
            "the partition map has changed"
        );
        self.map_version = roster.map_version;
        self.partition_count = roster.partition_count;
        Ok(())
    }

    /// Gives up terms, those of the last partitions first.
    async fn give(&self, count: usize) {
        let held = self.shared.held();
        let last = held.len().saturating_sub(count);
        self.renewals.give_back(&held[last..], End::GivenUp).await;
    }

    /// Bids for up to `count` partitions that are free, in no order: others bid, too. One that
    /// cannot be had stops no other.
    async fn bid(&mut self, roster: &Roster, count: usize) -> Round {
        self.shared.obstruct(self.obstacle(roster));
        let mut in_force = roster
            .leases
            .iter()
            .filter(|lease| lease.remaining.is_some());
        let leader = in_force.find_map(|lease| lease.holder.clone());
        self.shared.stand_by(leader);
        let own = bellwether_time::zone_data_version();
        let mut free: Vec<_> = roster
            .leases
            .iter()
            .filter(|lease| lease.remaining.is_none() && lease.zone_version.as_str() <= own)
            .map(|lease| lease.partition)
            .collect();
        fastrand::shuffle(&mut free);
        free.sort_by_key(|partition| self.failing.contains(partition));
        self.bid_for(free, count).await
    }

    async fn bid_for(&mut self, free: Vec<i32>, count: usize) -> Round {
        let shared = Arc::clone(&self.shared);
        let look_at = shared.clock.now() + shared.options.renew_every;
        let (mut left, mut answered) = (count, 0_u32);
        let (mut failed, mut in_a_row) = (0_u32, 0);
        let mut late = false;
        for partition in free {
            late = shared.clock.now() >= look_at;
            if left == 0 || late || in_a_row == FAILED_BIDS_MAX || self.stop.is_cancelled() {
                break;
            }
            let acquired = match self.acquire(partition).await {
                Ok(acquired) => acquired,
                Err(error) => {
                    (failed, in_a_row) = (failed + 1, in_a_row + 1);
                    self.failing.insert(partition);
                    shared.counters.lease_errors.add(1);
                    self.bid_trouble.note(&error);
                    continue;
                }
            };
            (answered, in_a_row) = (answered + 1, 0);
            self.failing.remove(&partition);
            match acquired {
                Acquired::Won(_) => left -= 1,
                Acquired::Held { holder, .. } => shared.stand_by(Some(holder)),
                Acquired::MapChanged => return Round::MapChanged,
                // The next look says so.
                Acquired::LeaseMissing | Acquired::ZoneDataOlder { .. } => {}
            }
        }
        match (failed, late && left > 0) {
            (0, false) => Round::Done,
            (0, true) => Round::Unfinished,
            _ => Round::Failed {
                answered: answered > 0,
            },
        }
    }

    /// What keeps this process, or all of them, from a lease; said at every look. A term without a
    /// row is over.
    fn obstacle(&self, roster: &Roster) -> Option<Obstacle> {
        let own = bellwether_time::zone_data_version();
        let rows = usize::try_from(roster.partition_count).unwrap_or(usize::MAX);
        if roster.leases.len() < rows {
            let there = |partition| {
                roster
                    .leases
                    .iter()
                    .any(|lease| lease.partition == partition)
            };
            for held in self.shared.held() {
                if !there(held.term.partition) {
                    self.shared.end(&held.term, End::Lost);
                }
            }
            tracing::error!(
                partitions = rows,
                leases = roster.leases.len(),
                "a lease row is missing: nobody may plan its partition; restore the row in table \
                 lease"
            );
            return Some(Obstacle::LeaseMissing);
        }
        // Versions of the zone data (`2026a`) order like their text.
        let required = roster
            .leases
            .iter()
            .map(|lease| &lease.zone_version)
            .max()?;
        if required.as_str() <= own {
            return None;
        }
        tracing::error!(
            required,
            own,
            "the last term planned with newer time zone data; use a newer build"
        );
        Some(Obstacle::ZoneDataOlder {
            required: required.clone(),
        })
    }

    async fn acquire(&self, partition: i32) -> Result<Acquired> {
        let Shared { options, clock, .. } = &*self.shared;
        let bid = Bid {
            partition,
            map_version: self.map_version,
            holder: &self.shared.holder,
            lease: options.lease,
            zone_version: bellwether_time::zone_data_version(),
        };
        let sent = clock.now();
        let call = self.store.acquire_term(&bid);
        let acquired = bounded("bid for a term", options.bid_timeout(), call).await?;
        if let Acquired::Won(term) = &acquired {
            self.shared.counters.terms_won.add(1);
            tracing::info!(
                epoch = term.epoch,
                partition,
                holder = self.shared.holder,
                "term won"
            );
            self.shared.win(term.clone(), sent + options.self_fence);
        }
        Ok(acquired)
    }

    /// Who has its share looks as often as it renews; who waits for a lease is there when it ends,
    /// with room for the clocks' resolution.
    fn rest(&self, roster: &Roster, share: Share) -> Duration {
        let options = &self.shared.options;
        if !share.wants && share.give == 0 {
            return jittered(options.renew_every);
        }
        let of_others = roster
            .leases
            .iter()
            .filter(|lease| lease.holder.as_deref() != Some(&self.shared.holder));
        let first_end = of_others.filter_map(|lease| lease.remaining).min();
        let poll = jittered(options.standby_poll);
        first_end.map_or(poll, |end| poll.min(end + jittered(LEASE_SLACK)))
    }
}
