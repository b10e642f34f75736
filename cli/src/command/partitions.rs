//! `bellwether partitions`: how the schedules are divided among tickers, and more parts of them.

use std::collections::BTreeMap;
use std::time::Duration;

use bellwether_store::Store;
use bellwether_store::partitions::{FORGET_AFTER, Grown, Lease, PARTITIONS_MAX, TickerView};
use chrono::{DateTime, Utc};
use clap::Subcommand;
use serde::Serialize;

use crate::config::Config;
use crate::exit::{Failure, REFUSED, Result, UNREACHABLE};
use crate::output::{self, Format, or_dash};

/// A ticker that was not seen for so long has ended or hangs, by the default lease.
const SEEN_WITHIN: Duration = Duration::from_secs(9);

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Shows who leads each partition, and the ticker processes seen lately
    #[command(visible_alias = "list")]
    Show,
    /// Raises the number of partitions while everything runs; fewer is refused
    Grow {
        /// The new number, 1 to 1024: a few for each ticker process
        #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(PARTITIONS_MAX)))]
        count: u32,
    },
}

impl Command {
    pub(crate) const fn changes_something(&self) -> bool {
        matches!(self, Self::Grow { .. })
    }
}

/// The answer of `show`.
#[derive(Serialize)]
struct Shown {
    partition_count: u32,
    map_version: i64,
    partitions: Vec<PartitionRow>,
    tickers: Vec<Ticker>,
}

#[derive(Serialize)]
struct PartitionRow {
    partition: i32,
    /// Identity of the process that leads it: host, process id and a random part.
    leader: Option<String>,
    host: Option<String>,
    pid: Option<i64>,
    epoch: i64,
    /// Until the lease runs out; null = nobody leads.
    lease_remaining_ms: Option<u64>,
    map_version: i64,
    schedules: u64,
}

#[derive(Serialize)]
struct Ticker {
    holder: String,
    host: String,
    pid: i64,
    version: String,
    map_version: i64,
    /// Whether it said that it can lead when it was last seen, and was seen lately.
    bids: bool,
    leads: usize,
    started_at: DateTime<Utc>,
    seen_ago_ms: u64,
}

/// The answer of `grow`.
#[derive(Serialize)]
struct NewMap {
    from: u32,
    to: u32,
    map_version: i64,
    schedules_moved: u64,
    changed: bool,
}

pub(crate) async fn run(config: &Config, command: &Command, format: Format) -> Result<()> {
    let format = format.without_ids()?;
    let store = config.store("bellwether partitions").await?;
    let done = match command {
        Command::Show => show(&*store, format).await,
        Command::Grow { count } => grow(&*store, *count, format).await,
    };
    store.close().await;
    done
}

async fn show(store: &dyn Store, format: Format) -> Result<()> {
    let roster = store.roster(FORGET_AFTER).await?;
    let schedules: BTreeMap<_, _> = store.schedules_by_partition().await?.into_iter().collect();
    let leads = |holder: &str| {
        let in_force = roster.leases.iter().filter(|one| one.remaining.is_some());
        in_force
            .filter(|one| one.holder.as_deref() == Some(holder))
            .count()
    };
    let shown = Shown {
        partition_count: roster.partition_count,
        map_version: roster.map_version,
        partitions: roster
            .leases
            .iter()
            .map(|lease| partition(lease, &roster.tickers, &schedules))
            .collect(),
        tickers: roster
            .tickers
            .iter()
            .map(|one| ticker(one, leads(&one.holder)))
            .collect(),
    };
    output::one(format, &shown, "", print)?;
    note(&shown);
    Ok(())
}

fn partition(
    lease: &Lease,
    tickers: &[TickerView],
    schedules: &BTreeMap<i32, u64>,
) -> PartitionRow {
    let leader = lease.holder.clone().filter(|_| lease.remaining.is_some());
    let process = tickers
        .iter()
        .find(|one| Some(&one.holder) == leader.as_ref());
    PartitionRow {
        partition: lease.partition,
        host: process.map(|one| one.host.clone()),
        pid: process.map(|one| one.pid),
        leader,
        epoch: lease.epoch,
        lease_remaining_ms: lease.remaining.map(millis),
        map_version: lease.map_version,
        schedules: schedules.get(&lease.partition).copied().unwrap_or(0),
    }
}

fn ticker(view: &TickerView, leads: usize) -> Ticker {
    Ticker {
        holder: view.holder.clone(),
        host: view.host.clone(),
        pid: view.pid,
        version: view.version.clone(),
        map_version: view.map_version,
        bids: view.bids && view.seen_ago <= SEEN_WITHIN,
        leads,
        started_at: view.started_at,
        seen_ago_ms: millis(view.seen_ago),
    }
}

fn print(shown: &Shown) -> std::io::Result<()> {
    let head = ["partition", "leader", "epoch", "lease", "schedules", "map"];
    let rows = shown.partitions.iter().map(|one| {
        vec![
            one.partition.to_string(),
            or_dash(one.leader.as_ref()),
            one.epoch.to_string(),
            or_dash(one.lease_remaining_ms.map(seconds)),
            one.schedules.to_string(),
            one.map_version.to_string(),
        ]
    });
    output::table(&head, rows.collect())?;
    if shown.tickers.is_empty() {
        return Ok(());
    }
    output::line("")?;
    let head = ["ticker", "version", "leads", "can lead", "map", "seen"];
    let rows = shown.tickers.iter().map(|one| {
        vec![
            one.holder.clone(),
            one.version.clone(),
            one.leads.to_string(),
            can_lead(one),
            one.map_version.to_string(),
            format!("{} ago", seconds(one.seen_ago_ms)),
        ]
    });
    output::table(&head, rows.collect())
}

/// Whether the process can lead, as far as it was heard of lately.
fn can_lead(one: &Ticker) -> String {
    if is_silent(one) {
        return format!("no, not seen for {}", seconds(one.seen_ago_ms));
    }
    if one.bids { "yes" } else { "no" }.to_owned()
}

fn is_silent(one: &Ticker) -> bool {
    one.seen_ago_ms > millis(SEEN_WITHIN)
}

/// What an operator should know.
fn note(shown: &Shown) {
    let rows = u32::try_from(shown.partitions.len()).unwrap_or(u32::MAX);
    if rows < shown.partition_count {
        output::note(&format!(
            "{} missing: nobody plans what belongs to it; restore it in table lease",
            match shown.partition_count - rows {
                1 => "a lease row is".to_owned(),
                many => format!("{many} lease rows are"),
            }
        ));
    }
    let free = shown.partitions.iter().filter(|one| one.leader.is_none());
    let free = free.count();
    if free > 0 {
        output::note(&match (free, shown.partition_count) {
            (1, 1) => "nobody leads the partition now: nothing is planned".to_owned(),
            (1, _) => "nobody leads one of the partitions now".to_owned(),
            _ => format!("nobody leads {free} of the partitions now"),
        });
    }
    for one in shown.tickers.iter().filter(|one| is_silent(one)) {
        output::note(&format!(
            "{} has not been seen for {}: it has ended or hangs",
            one.holder,
            seconds(one.seen_ago_ms)
        ));
    }
}

async fn grow(store: &dyn Store, count: u32, format: Format) -> Result<()> {
    let map = match store.grow_partitions(count).await? {
        Grown::Grown {
            from,
            to,
            map_version,
            moved,
        } => NewMap {
            from,
            to,
            map_version,
            schedules_moved: moved,
            changed: true,
        },
        Grown::Unchanged => NewMap {
            from: count,
            to: count,
            map_version: store.ledger().await?.map_version,
            schedules_moved: 0,
            changed: false,
        },
        Grown::WouldShrink { stored } => {
            return Err(Failure::new(
                REFUSED,
                format!(
                    "the ledger has {stored} partitions, and their number only grows: {count} \
                     would be fewer"
                ),
            ));
        }
        Grown::OldTickers { holders } => {
            return Err(Failure::new(
                REFUSED,
                format!(
                    "these tickers lead and cannot follow a change of the partitions: {}; stop \
                     them, start the current build, and try again",
                    holders.join(", ")
                ),
            ));
        }
        Grown::Busy => {
            return Err(Failure::new(
                UNREACHABLE,
                "others held the leases for too long; nothing was changed, try again",
            ));
        }
    };
    Ok(output::one(format, &map, "", |map| {
        let NewMap { from, to, .. } = map;
        output::line(&if map.changed {
            format!(
                "{to} partitions instead of {from}, {} moved; the tickers follow by themselves",
                match map.schedules_moved {
                    1 => "1 schedule".to_owned(),
                    many => format!("{many} schedules"),
                }
            )
        } else {
            match to {
                1 => "there is 1 partition already".to_owned(),
                many => format!("there are {many} partitions already"),
            }
        })
    })?)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn seconds(millis: u64) -> String {
    format!("{}.{} s", millis / 1_000, millis % 1_000 / 100)
}
