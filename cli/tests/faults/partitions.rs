//! Tickers that share partitions, and a change of their number under everybody's feet.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bellwether_schemas::ids;
use bellwether_store::leadership::{Acquired, Bid};
use bellwether_store::partitions::CheckIn;
use serde_json::Value;
use sqlx::{AssertSqlSafe, PgPool};

use super::tickers::{assert_no_instant_missing_or_doubled, count};
use crate::support::{Answer, Cluster, Role, until};

/// A third of the default lease; all other times of a ticker keep their ratio to it.
const LEASE: Duration = Duration::from_secs(3);
const QUICK_TERMS: &[&str] = &["--lease", "3s"];

/// Partition, epoch and process id of each leader.
async fn led(sql: &PgPool) -> BTreeMap<i32, (i64, u32)> {
    let rows: Vec<(i32, i64, String)> = sqlx::query_as(
        "SELECT partition, epoch, holder FROM lease
         WHERE holder IS NOT NULL AND expires_at > clock_timestamp()",
    )
    .fetch_all(sql)
    .await
    .unwrap();
    rows.into_iter()
        .map(|(partition, epoch, holder)| {
            let pid = holder.split('/').nth(1).unwrap().parse().unwrap();
            (partition, (epoch, pid))
        })
        .collect()
}

/// How many partitions each of these processes leads.
async fn shares(sql: &PgPool, tickers: &[&Role]) -> Vec<usize> {
    let led = led(sql).await;
    tickers
        .iter()
        .map(|ticker| led.values().filter(|(_, pid)| *pid == ticker.pid()).count())
        .collect()
}

/// Waits until each of `tickers` leads from `least` to `most` of `total` partitions.
async fn until_shared(sql: &PgPool, tickers: &[&Role], total: usize, least: usize, most: usize) {
    until(&format!("a fair share of {total} for each"), async || {
        let shares = shares(sql, tickers).await;
        shares.iter().sum::<usize>() == total
            && shares.iter().all(|share| (least..=most).contains(share))
    })
    .await;
}

async fn grow(cluster: &Cluster, to: u32) -> Answer {
    let to = to.to_string();
    let args = ["partitions", "grow", &to, "-o", "json"];
    cluster.bellwether(&args).await
}

async fn show(cluster: &Cluster) -> Value {
    let args = ["partitions", "show", "-o", "json"];
    cluster.bellwether(&args).await.expect(0).json()
}

/// Fires of terms that were won under a map before the one in force.
async fn fires_of(sql: &PgPool, terms: &BTreeMap<i32, (i64, u32)>) -> i64 {
    let (partitions, epochs): (Vec<_>, Vec<_>) = terms
        .iter()
        .map(|(partition, (epoch, _))| (*partition, *epoch))
        .unzip();
    let query = "SELECT count(*) FROM fire
                 JOIN unnest($1::integer[], $2::bigint[]) AS term (partition, epoch)
                 USING (partition, epoch)";
    sqlx::query_scalar(query)
        .bind(partitions)
        .bind(epochs)
        .fetch_one(sql)
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn r28_four_become_sixteen_under_load_while_one_ticker_stands_still() {
    const SCHEDULES: usize = 200;
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    let journal = cluster.journal();
    let _relay = cluster.relay();
    let worker = [("PATIENT_MAX_CONCURRENT", "32")];
    let _workers = [
        cluster.worker("first", &worker).await,
        cluster.worker("second", &worker).await,
    ];
    grow(&cluster, 4).await.expect(0);
    let mut tickers = [(); 3].map(|()| cluster.ticker(QUICK_TERMS));
    until_shared(&sql, &tickers.each_ref(), 4, 1, 2).await;
    let names = cluster.every_second(SCHEDULES, &journal.work(&[50])).await;
    let fired = async || count(&sql, "SELECT count(*) FROM fire").await;
    until("600 fires", async || fired().await >= 600).await;

    tickers[0].pause().await;
    let before = led(&sql).await;
    assert!(before.values().any(|(_, pid)| *pid == tickers[0].pid()));
    // There is work of every kind while the map changes.
    until("running executions and outbox rows", async || {
        let running = "SELECT count(*) FROM execution WHERE state = 'running'";
        count(&sql, running).await > 0 && count(&sql, "SELECT count(*) FROM outbox").await > 0
    })
    .await;
    let grown = grow(&cluster, 16).await.expect(0).json();
    assert_eq!((&grown["from"], &grown["to"]), (&4.into(), &16.into()));
    let of_the_old_map = fires_of(&sql, &before).await;
    assert!(of_the_old_map > 0);
    until_shared(&sql, &[&tickers[1], &tickers[2]], 16, 8, 8).await;
    until("fires of each partition", async || {
        let partitions = "SELECT count(DISTINCT fire.partition) FROM fire
                          JOIN term USING (partition, epoch) WHERE ended_at IS NULL";
        count(&sql, partitions).await == 16
    })
    .await;

    tickers[0].resume();
    // It goes on by the new map, without a restart.
    until_shared(&sql, &tickers.each_ref(), 16, 5, 6).await;
    let log = tickers[0].log();
    assert!(log.contains("the term is over"), "{log}");
    assert!(log.contains("the partition map has changed"), "{log}");
    assert_eq!(
        fires_of(&sql, &before).await,
        of_the_old_map,
        "a statement of the old map wrote something"
    );

    let so_far = fired().await;
    until("a second more", async || fired().await >= so_far + 400).await;
    assert!(tickers.iter_mut().all(Role::is_running));
    cluster.unregister(&names).await;
    let planned = assert_no_instant_missing_or_doubled(&sql, SCHEDULES).await;
    assert!(planned > 1_000, "{planned}");
    cluster.until_all_succeeded(planned).await;
    journal.assert_each_ended_once(planned);
    cluster.audit_clean(&[1, 2, 3, 4, 6, 12]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_tickers_partitions_are_taken_over_and_no_other_term_ends() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    grow(&cluster, 8).await.expect(0);
    let mut tickers = [(); 3].map(|()| cluster.ticker(QUICK_TERMS));
    until_shared(&sql, &tickers.each_ref(), 8, 2, 3).await;

    let killed = tickers[2].kill();
    let before = led(&sql).await;
    let kept: BTreeMap<_, _> = before
        .iter()
        .filter(|(_, (_, pid))| *pid != tickers[2].pid())
        .collect();
    assert!((5..=6).contains(&kept.len()), "{before:?}");
    until_shared(&sql, &[&tickers[0], &tickers[1]], 8, 4, 4).await;
    let takeover = killed.elapsed();
    println!("killed: its partitions were taken after {takeover:?}");
    // A lease, a poll, and some turns of sharing: twice that on a busy machine.
    assert!(takeover <= LEASE * 4, "{takeover:?}");
    let after = led(&sql).await;
    for (partition, term) in kept {
        assert_eq!(after[partition], *term, "partition {partition}");
    }
    // Who stops in order leaves nothing to wait for, and is on no list any more.
    let (code, _) = tickers[1].end(bellwether_sandbox::Signal::TERM).await;
    assert_eq!(code, Some(0));
    let left = Instant::now();
    until_shared(&sql, &[&tickers[0]], 8, 8, 8).await;
    println!("stopped: the other leads all after {:?}", left.elapsed());
    let shown = show(&cluster).await;
    let pids = shown["tickers"].as_array().unwrap();
    assert!(
        pids.iter().all(|one| one["pid"] != tickers[1].pid()),
        "{shown}"
    );
    let leads: Vec<_> = shown["partitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            (
                one["pid"] == tickers[0].pid(),
                one["lease_remaining_ms"].is_u64(),
            )
        })
        .collect();
    assert_eq!(leads, [(true, true); 8], "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn r31_a_running_ticker_of_another_number_ends_when_the_map_changes() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    let mut configured = cluster.ticker(&["--lease", "3s", "--partition-count", "1"]);
    until("a leader", async || !led(&sql).await.is_empty()).await;
    grow(&cluster, 2).await.expect(0);
    let code = configured.ended(Duration::from_secs(20)).await;
    assert_eq!(code, Some(2), "{}", configured.log());
    let log = configured.log();
    assert!(
        log.contains("configured for 1") && log.contains("has 2"),
        "{log}"
    );
    assert_eq!(led(&sql).await.len(), 0, "it gave back what it had");

    let ticker = cluster.ticker(&["--lease", "3s", "--partition-count", "2"]);
    until_shared(&sql, &[&ticker], 2, 2, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r26_growing_is_refused_below_and_nothing_happens_at_the_stored_number() {
    let cluster = Cluster::sqlite().await;
    let first = grow(&cluster, 8).await.expect(0).json();
    assert_eq!(
        (&first["changed"], &first["map_version"]),
        (&true.into(), &2.into())
    );
    let again = grow(&cluster, 8).await.expect(0).json();
    assert_eq!(
        (&again["changed"], &again["map_version"]),
        (&false.into(), &2.into())
    );
    grow(&cluster, 4)
        .await
        .refused(4, &["8 partitions", "only grows"]);
    grow(&cluster, 1_025).await.refused(2, &["1025"]);
    let shown = show(&cluster).await;
    assert_eq!(shown["partition_count"], 8);
    assert_eq!(shown["partitions"].as_array().unwrap().len(), 8);
    let table = cluster.bellwether(&["partition", "show"]).await.expect(0);
    assert!(table.stderr.contains("nobody leads 8"), "{table:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn r27_a_ticker_that_cannot_follow_is_named_and_nothing_changes() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    let _worker = cluster.worker("worker", &[]).await;
    let _ticker = cluster.ticker(QUICK_TERMS);
    until("a leader", async || !led(&sql).await.is_empty()).await;
    // As if it were of a build that says nothing about its map.
    let old = "UPDATE lease SET holder = 'old-host/77/abc'";
    sqlx::query(old).execute(&sql).await.unwrap();
    grow(&cluster, 4)
        .await
        .refused(4, &["old-host/77/abc", "stop them"]);
    assert_eq!(show(&cluster).await["partition_count"], 1);
    // The worker is connected all the time and is no ticker: it is not asked.
    let live = "SELECT count(*) FROM session WHERE state = 'live'";
    assert_eq!(count(&sql, live).await, 1);
}

/// Where a grow that runs can be made to wait, and what it has done by then.
const HOLDS: [&str; 4] = [
    // Nothing.
    "SELECT FROM ledger FOR UPDATE",
    // Locked the map.
    "SELECT FROM lease FOR UPDATE",
    // Locked everything; moves the schedules.
    "SELECT FROM schedule FOR UPDATE",
    // Moved them; writes the new map.
    "SELECT FROM term WHERE ended_at IS NULL FOR UPDATE",
];

/// An open term of a ticker that can follow, so that a change of the map has one to end.
async fn lead_as_a_ticker_would(cluster: &Cluster) {
    let map_version = cluster.store.ledger().await.unwrap().map_version;
    let holder = format!("host/1/{}", ids::token().simple());
    let check_in = CheckIn {
        id: ids::token(),
        holder: &holder,
        host: "host",
        pid: 1,
        version: "0",
        map_version,
        bids: true,
    };
    cluster.store.check_in(&check_in, LEASE).await.unwrap();
    let bid = Bid {
        partition: 0,
        map_version,
        holder: &holder,
        lease: Duration::from_mins(5),
        // Older than any that a ticker has.
        zone_version: "2000a",
    };
    let acquired = cluster.store.acquire_term(&bid).await.unwrap();
    let known = matches!(acquired, Acquired::Won(_) | Acquired::Held { .. });
    assert!(known, "{acquired:?}");
}

/// The stored number, after a look that all is of one map.
async fn whole_map(sql: &PgPool) -> u32 {
    let (count, map): (i32, i64) =
        sqlx::query_as("SELECT partition_count, map_version FROM ledger")
            .fetch_one(sql)
            .await
            .unwrap();
    let leases: Vec<(i32, i64)> =
        sqlx::query_as("SELECT partition, map_version FROM lease ORDER BY partition")
            .fetch_all(sql)
            .await
            .unwrap();
    let expected: Vec<_> = (0..count).map(|partition| (partition, map)).collect();
    assert_eq!(leases, expected);
    let schedules: Vec<(uuid::Uuid, i32)> = sqlx::query_as("SELECT id, partition FROM schedule")
        .fetch_all(sql)
        .await
        .unwrap();
    let number = u128::from(count.unsigned_abs());
    for (id, partition) in schedules {
        let own = (id.as_u128() & 0xffff_ffff) % number;
        assert_eq!(u128::from(partition.unsigned_abs()), own, "{id} of {count}");
    }
    count.unsigned_abs()
}

/// Backends that wait for a lock of this one.
async fn waiting_for(sql: &PgPool, backend: i32) -> Vec<i32> {
    let query = "SELECT pid FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))";
    sqlx::query_scalar(query)
        .bind(backend)
        .fetch_all(sql)
        .await
        .unwrap()
}

async fn until_gone(sql: &PgPool, backends: &[i32]) {
    until("the end of the killed command's backend", async || {
        let query = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY ($1)";
        let left: i64 = sqlx::query_scalar(query)
            .bind(backends)
            .fetch_one(sql)
            .await
            .unwrap();
        left == 0
    })
    .await;
}

/// Kills a grow to `to` that waits at `hold`; the number that is stored then.
async fn kill_at(cluster: &Cluster, sql: &PgPool, to: u32, hold: &'static str) -> u32 {
    let mut blocker = sql.begin().await.unwrap();
    let locked = sqlx::query(AssertSqlSafe(hold)).execute(&mut *blocker);
    assert!(locked.await.unwrap().rows_affected() > 0, "{hold}");
    let backend: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
        .fetch_one(&mut *blocker)
        .await
        .unwrap();
    let mut command = cluster.role("partitions", &["grow", &to.to_string()]);
    until("a grow in the middle", async || {
        !waiting_for(sql, backend).await.is_empty()
    })
    .await;
    let waiting = waiting_for(sql, backend).await;
    command.kill();
    blocker.rollback().await.unwrap();
    until_gone(sql, &waiting).await;
    whole_map(sql).await
}

/// Kills a grow to `to` a moment after its connection is there; the number that is stored then.
async fn kill_after(cluster: &Cluster, sql: &PgPool, to: u32, moment: Duration) -> u32 {
    let query = "SELECT pid FROM pg_stat_activity WHERE application_name = 'bellwether partitions'";
    let mut command = cluster.role("partitions", &["grow", &to.to_string()]);
    let mut backends: Vec<i32> = Vec::new();
    until("its connection, or its end", async || {
        backends = sqlx::query_scalar(query).fetch_all(sql).await.unwrap();
        !backends.is_empty() || !command.is_running()
    })
    .await;
    tokio::time::sleep(moment).await;
    if command.is_running() {
        command.kill();
    }
    until_gone(sql, &backends).await;
    whole_map(sql).await
}

#[tokio::test(flavor = "multi_thread")]
async fn r29_a_grow_that_is_killed_twenty_times_is_all_old_or_all_new() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    cluster
        .every_second(40, &crate::support::Work::default())
        .await;
    let (mut stored, mut kills) = (whole_map(&sql).await, 0);
    for hold in HOLDS.repeat(3) {
        lead_as_a_ticker_would(&cluster).await;
        let left = kill_at(&cluster, &sql, stored + 5, hold).await;
        kills += 1;
        assert_eq!(left, stored, "killed at {hold}, before its commit");
    }
    let (mut old, mut new) = (0, 0);
    for kill in 0..8 {
        lead_as_a_ticker_would(&cluster).await;
        let left = kill_after(&cluster, &sql, stored + 5, Duration::from_millis(kill * 4)).await;
        kills += 1;
        match left {
            left if left == stored => old += 1,
            left => {
                assert_eq!(left, stored + 5);
                new += 1;
            }
        }
        stored = left;
    }
    println!("{kills} kills: all old 12 times in the middle, then {old} times old, {new} new");
    assert_eq!(kills, 20);

    // The stored number decides how to go on: the same command again.
    assert_eq!(show(&cluster).await["partition_count"], stored);
    let again = grow(&cluster, stored + 5).await.expect(0).json();
    assert_eq!(again["changed"], true);
    assert_eq!(whole_map(&sql).await, stored + 5);
    let tickers = [(); 2].map(|()| cluster.ticker(&[]));
    let total = usize::try_from(stored + 5).unwrap();
    until_shared(
        &sql,
        &tickers.each_ref(),
        total,
        total / 2,
        total.div_ceil(2),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r30_after_a_failure_the_stored_number_decides_and_a_repeat_succeeds() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    cluster
        .every_second(10, &crate::support::Work::default())
        .await;
    let mut held = sql.begin().await.unwrap();
    sqlx::query("SELECT FROM schedule FOR UPDATE")
        .execute(&mut *held)
        .await
        .unwrap();
    grow(&cluster, 16)
        .await
        .refused(6, &["nothing was changed", "try again"]);
    held.rollback().await.unwrap();
    assert_eq!(show(&cluster).await["partition_count"], 1);
    assert_eq!(whole_map(&sql).await, 1);
    grow(&cluster, 16).await.expect(0);
    assert_eq!(whole_map(&sql).await, 16);
}
