//! How many partitions a ticker takes and gives up. Pure.
//!
//! With `k` tickers that can lead, each may hold a `k`-th of the partitions, rounded up, and is
//! left one rounded down. A ticker that is there alone holds them all. Nobody decides for others:
//! each sees the same roster and draws the same conclusion about its own part, and where two see
//! it differently for a moment, the leases decide.

use std::collections::BTreeMap;

use bellwether_store::partitions::Roster;

/// What a ticker does about its part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    /// Terms to give up.
    pub(crate) give: usize,
    /// Free partitions to bid for.
    pub(crate) take: usize,
    /// Whether it may hold more than it does once a lease runs out.
    pub(crate) wants: bool,
}

/// The share of `me`, which holds `held` terms and can lead.
pub(crate) fn share(roster: &Roster, me: &str, held: usize) -> Share {
    // A partition without its row is nobody's.
    let partitions = roster.leases.len();
    // Of those that can lead. A lease that ran on without its process is nobody's.
    let mut holds: BTreeMap<&str, usize> = roster
        .tickers
        .iter()
        .filter(|ticker| ticker.bids)
        .map(|ticker| (ticker.holder.as_str(), 0))
        .collect();
    holds.insert(me, held);
    let mut free = 0_usize;
    for lease in &roster.leases {
        match (&lease.remaining, &lease.holder) {
            (None, _) => free += 1,
            (Some(_), Some(holder)) if holder != me => {
                if let Some(count) = holds.get_mut(holder.as_str()) {
                    *count += 1;
                }
            }
            _ => {}
        }
    }
    let least = partitions / holds.len();
    let most = partitions.div_ceil(holds.len());
    let total = |part: fn(usize, usize) -> usize, bound: usize| -> usize {
        holds.values().map(|count| part(*count, bound)).sum()
    };
    let below = |count: usize, bound: usize| bound.saturating_sub(count);
    let above = |count: usize, bound: usize| count.saturating_sub(bound);

    let missing = total(below, least);
    let own_missing = below(held, least);
    // What is free beyond what others need to come to their least is anybody's.
    let spare = free.saturating_sub(missing);
    let take = below(held, most).min(own_missing + spare).min(free);

    // What nobody gives up by holding too much comes from those that hold one more than the least,
    // one each, in the order of their names.
    let wanted = missing.saturating_sub(free + total(above, most));
    let gives_one = holds
        .iter()
        .filter(|(_, count)| **count > least && **count <= most)
        .take(wanted)
        .any(|(holder, _)| *holder == me);
    Share {
        give: above(held, most) + usize::from(gives_one),
        take,
        wants: held < most,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bellwether_store::partitions::{Lease, TickerView};
    use chrono::DateTime;

    use super::*;

    /// Tickers with what each holds; the rest of the partitions is free.
    fn roster(partition_count: u32, tickers: &[(&str, usize)]) -> Roster {
        let mut holders = tickers
            .iter()
            .flat_map(|(holder, count)| std::iter::repeat_n(*holder, *count));
        let leases = (0..i32::try_from(partition_count).unwrap()).map(|partition| {
            let holder = holders.next();
            Lease {
                partition,
                map_version: 1,
                epoch: 1,
                term_id: None,
                zone_version: String::new(),
                holder: holder.map(str::to_owned),
                remaining: holder.map(|_| Duration::from_secs(5)),
            }
        });
        Roster {
            partition_count,
            map_version: 1,
            leases: leases.collect(),
            tickers: tickers.iter().map(|(holder, _)| ticker(holder)).collect(),
        }
    }

    fn ticker(holder: &str) -> TickerView {
        TickerView {
            holder: holder.to_owned(),
            host: "host".to_owned(),
            pid: 1,
            version: "0".to_owned(),
            map_version: 1,
            bids: true,
            started_at: DateTime::UNIX_EPOCH,
            seen_ago: Duration::ZERO,
        }
    }

    fn of(partitions: u32, tickers: &[(&str, usize)], me: &str) -> (usize, usize) {
        let held = tickers.iter().find(|(holder, _)| *holder == me).unwrap().1;
        let share = share(&roster(partitions, tickers), me, held);
        (share.give, share.take)
    }

    #[test]
    fn a_single_partition_is_anybodys_and_nobody_gives_it_up() {
        assert_eq!(of(1, &[("a", 0)], "a"), (0, 1));
        assert_eq!(of(1, &[("a", 0), ("b", 0)], "b"), (0, 1));
        assert_eq!(of(1, &[("a", 1), ("b", 0)], "a"), (0, 0));
        assert_eq!(of(1, &[("a", 1), ("b", 0)], "b"), (0, 0));
        let waits = share(&roster(1, &[("a", 1), ("b", 0)]), "b", 0);
        assert!(waits.wants, "it is there when the lease runs out");
    }

    #[test]
    fn who_is_alone_takes_all_and_gives_up_what_another_needs() {
        assert_eq!(of(8, &[("a", 0)], "a"), (0, 8));
        assert_eq!(of(8, &[("a", 8)], "a"), (0, 0));
        assert_eq!(of(8, &[("a", 8), ("b", 0), ("c", 0)], "a"), (5, 0));
        assert_eq!(of(8, &[("a", 3), ("b", 0), ("c", 0)], "b"), (0, 3));
    }

    #[test]
    fn a_ticker_that_cannot_lead_has_no_share() {
        let mut two = roster(8, &[("a", 8), ("b", 0)]);
        two.tickers[1].bids = false;
        let share = share(&two, "a", 8);
        assert_eq!((share.give, share.take), (0, 0));
    }

    #[test]
    fn what_runs_on_without_its_process_is_nobodys() {
        let mut two = roster(4, &[("a", 2), ("gone", 2)]);
        two.tickers.pop();
        let share = share(&two, "a", 2);
        assert_eq!((share.give, share.take, share.wants), (0, 0, true));
    }

    /// Each in turn does what its share says, until nobody does anything: always soon, always fair,
    /// whatever the order and however it began.
    #[test]
    fn any_division_settles_and_is_fair() {
        const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..500 {
            let partitions = random.usize(1..20);
            let count = random.usize(1..=NAMES.len());
            let mut tickers: Vec<_> = NAMES[..count].iter().map(|name| (*name, 0)).collect();
            for _ in 0..random.usize(0..=partitions) {
                tickers[random.usize(0..count)].1 += 1;
            }
            let mut quiet = 0;
            for _ in 0..200 {
                let me = random.usize(0..count);
                let count = u32::try_from(partitions).unwrap();
                let (give, take) = of(count, &tickers, tickers[me].0);
                assert!(give == 0 || take == 0, "{tickers:?}");
                tickers[me].1 = tickers[me].1 - give + take;
                quiet = if give + take == 0 { quiet + 1 } else { 0 };
            }
            assert!(quiet > 50, "{tickers:?} of {partitions} has not settled");
            let (least, most) = (partitions / count, partitions.div_ceil(count));
            let total: usize = tickers.iter().map(|one| one.1).sum();
            assert_eq!(total, partitions, "{tickers:?}");
            for (_, held) in &tickers {
                assert!((least..=most).contains(held), "{tickers:?} of {partitions}");
            }
        }
    }
}
