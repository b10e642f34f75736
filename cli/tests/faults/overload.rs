//! More work at once than there are hands for it, for a moment or all the time.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use bellwether_client::{NewSchedule, Overlap, Timing};
use bellwether_schemas::state::State;
use chrono::TimeDelta;
use sqlx::PgPool;

use crate::database::behind_a_proxy;
use crate::support::{Cluster, Role, until};
use crate::tickers::count;

/// A schedule of the job `patient` that fires once, so much later than now.
async fn once(cluster: &Cluster, name: &str, later: TimeDelta) -> NewSchedule {
    let at = cluster.store.ledger().await.unwrap().now + later;
    let mut new = NewSchedule::new(name, Timing::At { at });
    "patient".clone_into(&mut new.job);
    new
}

/// Every statement takes far longer than usual, and a second ticker looks at the same due rows all
/// the time: each fires once, in one term.
#[tokio::test(flavor = "multi_thread")]
async fn p35_five_thousand_due_at_once_on_a_slow_way_fire_once_each() {
    const DUE: i64 = 5_000;
    const COPIES: &str = "
        WITH copy AS (
            INSERT INTO schedule
            SELECT (jsonb_populate_record(one, jsonb_build_object(
                       'id', gen_random_uuid(), 'name', 'due-' || n))).*
            FROM schedule one, generate_series(2, 5000) n WHERE one.name = 'due-1'
            RETURNING *
        )
        INSERT INTO schedule_timing (schedule_id, version, valid_from, kind, at)
        SELECT id, version, cursor, kind, at FROM copy";
    let Some((cluster, proxy)) = behind_a_proxy().await else {
        return;
    };
    let sql = cluster.sql().await;
    let new = once(&cluster, "due-1", TimeDelta::seconds(2)).await;
    cluster.client.register(&new).await.unwrap();
    sqlx::query(COPIES).execute(&sql).await.unwrap();
    proxy.delay(Duration::from_millis(20));
    let mut tickers = [cluster.ticker(&[]), cluster.ticker(&[])];

    let unsettled = "SELECT count(*) FROM schedule WHERE NOT ended";
    until("the end of all schedules", async || {
        count(&sql, unsettled).await == 0
    })
    .await;
    for (what, counted) in [
        ("fires", "SELECT count(*) FROM fire"),
        ("fired", "SELECT count(DISTINCT schedule_id) FROM fire"),
        ("executions", "SELECT count(*) FROM execution"),
        ("dispatches", "SELECT count(*) FROM outbox"),
    ] {
        assert_eq!(count(&sql, counted).await, DUE, "{what}");
    }
    assert_eq!(count(&sql, "SELECT count(*) FROM non_fire").await, 0);
    let planned = "SELECT count(DISTINCT planned_at) FROM fire";
    println!("planned by {} statements", count(&sql, planned).await);
    let terms = count(&sql, "SELECT count(*) FROM term").await;
    assert_eq!(terms, 1, "a slow way is no reason to change the leader");
    assert!(tickers.iter_mut().all(Role::is_running));
    cluster.audit_clean(&[1, 2, 3, 4, 12]).await;
}

/// A crowd in one second before a few slow workers: what finds no slot waits in the ledger, where
/// it is counted, and runs in its turn.
#[tokio::test(flavor = "multi_thread")]
async fn p39_a_crowd_of_one_second_before_four_slow_workers_all_ends() {
    const SCHEDULES: usize = 10;
    const SHARDS: u32 = 100;
    const SLOTS: i64 = 4;
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    let journal = cluster.journal();
    let _roles = [cluster.ticker(&[]), cluster.relay()];
    let mut workers = Vec::new();
    for name in ["one", "two", "three", "four"] {
        let slots = ("PATIENT_MAX_CONCURRENT", "4");
        workers.push(cluster.worker(name, &[slots]).await);
    }
    let mut new = once(&cluster, "", TimeDelta::seconds(2)).await;
    new.shard_total = SHARDS;
    new.payload = journal.work(&[40]).payload();
    for number in 0..SCHEDULES {
        new.name = format!("crowd-{number}");
        cluster.client.register(&new).await.unwrap();
    }
    let crowd = SCHEDULES * usize::try_from(SHARDS).unwrap();

    let mut waited = 0;
    until("the end of all", async || {
        let counts = cluster.counts().await;
        let of = |state| counts.get(&state).copied().unwrap_or(0);
        waited = waited.max(of(State::Pending));
        of(State::Succeeded) == crowd as u64
    })
    .await;
    // Handlers at once in each process, by what they wrote themselves.
    let (mut now, mut most) = (BTreeMap::new(), 0_i64);
    for note in journal.notes() {
        let running: &mut i64 = now.entry(note.pid).or_default();
        *running += if note.what == "start" { 1 } else { -1 };
        most = most.max(*running);
    }
    println!("at most {waited} waited, and {most} ran in one process");
    assert!(waited > 600, "only {waited} waited: no crowd");
    assert_eq!((now.len(), most), (4, SLOTS), "full, and not over-full");
    cluster.until_all_succeeded(crowd).await;
    journal.assert_each_ended_once(crowd);
    assert_eq!(count(&sql, "SELECT count(*) FROM non_fire").await, 0);
    let instants = "SELECT count(DISTINCT scheduled_at) FROM execution";
    assert_eq!(count(&sql, instants).await, 1);
    assert!(workers.iter_mut().all(Role::is_running));
    cluster.audit_clean(&[1, 3, 4, 6, 7, 8]).await;
}

/// Resident memory of a process, in KiB.
fn resident(role: &Role) -> u64 {
    let path = format!("/proc/{}/status", role.pid());
    let status = std::fs::read_to_string(path).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB"));
    kib.unwrap().trim().parse().unwrap()
}

/// Instants of the schedules whose names begin with `policy` that were recorded as passed over.
async fn passed_over(sql: &PgPool, policy: &str) -> i64 {
    let text = "SELECT coalesce(sum(count), 0)::bigint FROM non_fire
                JOIN schedule ON schedule.id = schedule_id
                WHERE name LIKE $1 || '-%'";
    let asked = sqlx::query_scalar(text).bind(policy);
    asked.fetch_one(sql).await.unwrap()
}

async fn state_of(sql: &PgPool, policy: &str) -> BTreeMap<String, i64> {
    let text = "SELECT execution.state, count(*) FROM execution
                JOIN schedule ON schedule.id = schedule_id
                WHERE name LIKE $1 || '-%' GROUP BY execution.state";
    let rows: Vec<(String, i64)> = sqlx::query_as(text)
        .bind(policy)
        .fetch_all(sql)
        .await
        .unwrap();
    rows.into_iter().collect()
}

/// Jobs that take five times their period, under each policy: what is too much is passed over,
/// replaced, or waits in the ledger, as was declared, is counted, and costs no process memory.
#[tokio::test(flavor = "multi_thread")]
async fn p51_jobs_slower_than_their_period_cost_no_memory_and_the_surplus_is_counted() {
    const EACH: usize = 10;
    const MORE_MAX: u64 = 8 * 1024;
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    let journal = cluster.journal();
    let slots = ("PATIENT_MAX_CONCURRENT", "20");
    let mut roles = [
        cluster.ticker(&[]),
        cluster.relay(),
        cluster.worker("worker", &[slots]).await,
    ];
    let mut names = Vec::new();
    for overlap in [
        Overlap::Allow,
        Overlap::Skip,
        Overlap::QueueOne,
        Overlap::Replace,
    ] {
        for number in 0..EACH {
            let timing = Timing::Every {
                period_ms: 1_000,
                anchor: None,
            };
            let name = format!("{}-{number}", overlap.as_str());
            let mut new = NewSchedule::new(&name, timing);
            "patient".clone_into(&mut new.job);
            new.overlap = overlap;
            new.payload = journal.work(&[5_000]).payload();
            cluster.client.register(&new).await.unwrap();
            names.push(name);
        }
    }
    let planned = async |more: usize| {
        let so_far = cluster.planned().await;
        until("more fires", async || {
            cluster.planned().await >= so_far + more
        })
        .await;
    };
    // One that overlaps and one that replaces are fired each second.
    planned(6 * 2 * EACH).await;
    let before = roles.each_ref().map(resident);
    planned(6 * 2 * EACH).await;
    let after = roles.each_ref().map(resident);
    println!("KiB of ticker, relay and worker: {before:?}, then {after:?}");
    for (before, after) in before.iter().zip(after) {
        assert!(after < before + MORE_MAX, "{before} KiB, then {after}");
    }
    assert!(roles.iter_mut().all(Role::is_running));

    let each = i64::try_from(EACH).unwrap();
    assert_eq!(passed_over(&sql, "allow").await, 0);
    assert!(state_of(&sql, "allow").await["pending"] > 2 * each);
    for policy in ["skip", "queue_one"] {
        let passed = passed_over(&sql, policy).await;
        assert!(passed >= 4 * each, "{policy}: {passed} passed over");
        // One of a schedule that waits for a slot, and one that is held behind it.
        let states = state_of(&sql, policy).await;
        let waiting = states.get("pending").copied().unwrap_or(0);
        assert!(waiting <= 2 * each, "{policy}: {states:?}");
    }
    let replaced = state_of(&sql, "replace").await;
    assert!(replaced["cancelled"] >= 4 * each, "{replaced:?}");
    cluster.unregister(&names).await;
    cluster.audit_clean(&[1, 2, 3, 6, 12]).await;
}

/// Files below a folder.
fn files(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).unwrap();
    let counted = entries.map(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() { files(&path) } else { 1 }
    });
    counted.sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn p50_hundreds_of_runs_leave_no_file_behind() {
    const RUNS: usize = 300;
    let Some(cluster) = Cluster::with_own_nats().await else {
        return;
    };
    let journal = cluster.journal();
    let _roles = [cluster.ticker(&[]), cluster.relay()];
    let slots = ("PATIENT_MAX_CONCURRENT", "16");
    let _worker = cluster.worker("worker", &[slots]).await;
    let looked_at = async |runs| {
        cluster.enqueue(RUNS, &journal.work(&[0])).await;
        cluster.until_all_succeeded(runs).await;
        let broker = cluster.own_nats.as_ref().unwrap().store_dir();
        (files(cluster.folder()), files(broker))
    };
    let first = looked_at(RUNS).await;
    let second = looked_at(2 * RUNS).await;
    println!("files of the roles and of the broker: {first:?}, then {second:?}");
    assert_eq!(second.0, first.0, "files of the roles");
    assert!(second.1 <= first.1 + 3, "{} files of the broker", second.1);
}
