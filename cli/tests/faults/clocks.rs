//! Hosts whose wall clocks are wrong: real roles, each under a wall clock of its own.
//!
//! A library of some lines of C, loaded before all others, stands between a role and the host's
//! wall clock. That it is in force is seen in what the role says of itself: the tickers warn, and
//! their metric tells how far they are off; the workers' logs say it by their times.

use std::path::{Path, PathBuf};
use std::process::Command;

use bellwether_client::NewExecution;
use bellwether_schemas::state::SessionState;
use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgPool;
use uuid::Uuid;

use crate::support::{Cluster, Collector, Journal, Role, until};
use crate::tickers::{assert_no_instant_missing_or_doubled, count, fires_after, leading};
use crate::{QUICK, QUICK_SESSIONS};

/// The host's wall clock, `SKEW_S` seconds off. The boot-time clock stays as it is.
const SKEW: &str = r#"
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long skew(void) {
    const char *text = getenv("SKEW_S");
    return text ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int answer = (int)syscall(SYS_clock_gettime, clock, at);
    if (answer == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        at->tv_sec += skew();
    return answer;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    int answer = (int)syscall(SYS_gettimeofday, at, zone);
    if (answer == 0 && at)
        at->tv_sec += skew();
    return answer;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}
"#;

/// Makes hosts with wrong clocks.
struct Hosts(PathBuf);

impl Hosts {
    fn new(folder: &Path) -> Self {
        let (source, library) = (folder.join("skew.c"), folder.join("skew.so"));
        std::fs::write(&source, SKEW).unwrap();
        // Without it no test could have been linked.
        let made = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&library, &source])
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        Self(library)
    }

    /// Runs a role on a host whose clock is so many seconds ahead.
    fn role(&self, cluster: &Cluster, ahead_s: i64, args: &[&str]) -> Role {
        let ahead = ahead_s.to_string();
        let library = self.0.to_str().unwrap();
        cluster.program(
            "bellwether",
            args,
            &[("LD_PRELOAD", library), ("SKEW_S", &ahead)],
        )
    }

    /// A worker there.
    async fn worker(&self, cluster: &Cluster, ahead_s: i64, name: &str) -> Role {
        let ahead = ahead_s.to_string();
        let library = self.0.to_str().unwrap();
        let clock = [("LD_PRELOAD", library), ("SKEW_S", &ahead)];
        let eight = ("PATIENT_MAX_CONCURRENT", "8");
        let worker = cluster
            .worker(name, &[QUICK, eight, clock[0], clock[1]])
            .await;
        let said = worker.log();
        let line: serde_json::Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
        let says: DateTime<Utc> = line["timestamp"].as_str().unwrap().parse().unwrap();
        let made: DateTime<Utc> = std::fs::metadata(&self.0)
            .unwrap()
            .modified()
            .unwrap()
            .into();
        let off = (says - made).num_seconds() - ahead_s;
        assert!((0..30).contains(&off), "{name} says {says} at {made}");
        worker
    }
}

/// Waits until a ticker has seen how wrong its clock is.
async fn until_it_says_so(ticker: &Role) {
    until("a warning of the wrong clock", async || {
        ticker
            .log()
            .contains("wall clock differs from the ledger's")
    })
    .await;
}

/// Fires that were planned before they were due.
async fn early(sql: &PgPool) -> i64 {
    count(
        sql,
        "SELECT count(*) FROM fire WHERE planned_at < scheduled_at",
    )
    .await
}

/// Fires that were planned much later than they were due: less than any clock here is off.
async fn late(sql: &PgPool) -> i64 {
    let query = "SELECT count(*) FROM fire WHERE planned_at > scheduled_at + interval '20 s'";
    count(sql, query).await
}

async fn assert_no_session_lost(cluster: &Cluster) {
    let sessions = cluster.sessions().await;
    let lost = sessions.iter().filter(|s| s.state == SessionState::Lost);
    assert_eq!(lost.count(), 0, "{sessions:#?}");
}

/// One-shots that are due in two seconds, some of which fail at first.
async fn enqueue_for_later(cluster: &Cluster, journal: &Journal, count: usize) -> Vec<Uuid> {
    let due = cluster.store.ledger().await.unwrap().now + TimeDelta::seconds(2);
    let mut ids = Vec::new();
    for number in 0..count {
        let mut work = journal.work(&[50]);
        work.panics = u32::from(number % 2 == 0);
        let mut new = NewExecution::new("patient", work.payload());
        new.run_at = Some(due);
        ids.push(cluster.client.enqueue(&new).await.unwrap().execution_id());
    }
    ids
}

/// Fails if one of them ran before it was due, or much later.
async fn assert_in_time(cluster: &Cluster, ids: &[Uuid]) {
    for id in ids {
        let story = cluster.story(*id).await;
        let due = story.execution.scheduled_at;
        let firsts = story.attempts.iter().map(|attempt| attempt.claimed_at);
        let first = firsts.min().or(story.execution.claimed_at).unwrap();
        let waited = (first - due).as_seconds_f64();
        assert!((0.0..20.0).contains(&waited), "{waited} s after it was due");
        let ended = (story.execution.ended_at.unwrap() - due).as_seconds_f64();
        assert!(ended < 20.0, "ended {ended} s after it was due");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p09_tickers_three_minutes_apart_fire_each_instant_once_and_in_time() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    let journal = cluster.journal();
    let hosts = Hosts::new(cluster.folder());
    let _relay = cluster.relay();
    let _worker = cluster.worker("worker", &[]).await;
    let lease = ["ticker", "--lease", "1.5s"];
    let names = cluster.every_second(3, &journal.work(&[5])).await;
    let mut tickers = [90, -90].map(|ahead| hosts.role(&cluster, ahead, &lease));
    for ticker in &tickers {
        until_it_says_so(ticker).await;
    }
    // Each of them leads in its turn.
    let (epoch, at) = leading(&sql, [&tickers[0], &tickers[1]]).await;
    until("fires of the one", async || {
        fires_after(&sql, epoch - 1).await >= 9
    })
    .await;
    tickers[at].kill();
    until("fires of the other", async || {
        fires_after(&sql, epoch).await >= 9
    })
    .await;
    assert_eq!(
        leading(&sql, [&tickers[0], &tickers[1]]).await,
        (epoch + 1, 1 - at)
    );
    cluster.unregister(&names).await;
    let planned = assert_no_instant_missing_or_doubled(&sql, 3).await;
    cluster.until_all_succeeded(planned).await;
    journal.assert_each_ended_once(planned);
    assert_eq!((early(&sql).await, late(&sql).await), (0, 0));
    cluster.audit_clean(&[1, 2, 3, 12]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p49_skewed_hosts_are_told_start_nothing_early_and_add_no_delay() {
    let Some(mut cluster) = Cluster::postgres().await else {
        return;
    };
    let collector = Collector::start().await;
    let url = collector.url.clone();
    cluster.variables.extend([
        ("OTEL_EXPORTER_OTLP_ENDPOINT", url),
        ("OTEL_METRIC_EXPORT_INTERVAL", "300".to_owned()),
    ]);
    let sql = cluster.sql().await;
    let journal = cluster.journal();
    let hosts = Hosts::new(cluster.folder());
    let ticker = hosts.role(&cluster, 30, &["ticker", "--session-lease", "2s"]);
    let _relay = hosts.role(&cluster, -30, &["relay"]);
    let _worker = hosts.worker(&cluster, -120, "worker").await;
    let names = cluster.every_second(2, &journal.work(&[5])).await;
    // Longer than its lease: whoever compared the two hosts' clocks would take it away.
    let held = cluster.enqueue(2, &journal.work(&[5_000])).await;
    let later = enqueue_for_later(&cluster, &journal, 6).await;

    until_it_says_so(&ticker).await;
    until("the metric", async || {
        let offset = collector.newest("bellwether-ticker", "bellwether.db.clock.offset");
        offset.is_some_and(|offset| (29.0..31.0).contains(&offset))
    })
    .await;
    until("the end of what is held", async || {
        let ends = journal.all("end");
        held.iter()
            .all(|id| ends.iter().any(|end| end.execution == *id))
    })
    .await;
    cluster.unregister(&names).await;
    cluster.until_all_ended().await;
    let planned = assert_no_instant_missing_or_doubled(&sql, 2).await;
    cluster
        .until_all_succeeded(planned + held.len() + later.len())
        .await;
    assert_in_time(&cluster, &later).await;
    assert_eq!((early(&sql).await, late(&sql).await), (0, 0));
    for id in held {
        assert_eq!(cluster.execution(id).await.generation, 1);
    }
    assert_no_session_lost(&cluster).await;
    cluster.audit_clean(&[1, 2, 5, 6, 7]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p67_hosts_an_hour_off_either_way_miss_and_double_nothing() {
    const HOUR: i64 = 3_600;
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    let journal = cluster.journal();
    let hosts = Hosts::new(cluster.folder());
    let ticker = ["ticker", QUICK_SESSIONS[0], QUICK_SESSIONS[1]];
    let tickers = [HOUR, -HOUR].map(|ahead| hosts.role(&cluster, ahead, &ticker));
    let _relays = [HOUR, -HOUR].map(|ahead| hosts.role(&cluster, ahead, &["relay"]));
    let _ahead = hosts.worker(&cluster, HOUR, "ahead").await;
    let _behind = hosts.worker(&cluster, -HOUR, "behind").await;
    for ticker in &tickers {
        until_it_says_so(ticker).await;
    }
    let names = cluster.every_second(3, &journal.work(&[5])).await;
    let later = enqueue_for_later(&cluster, &journal, 6).await;
    until("five seconds of fires", async || {
        fires_after(&sql, 0).await >= 15
    })
    .await;
    cluster.unregister(&names).await;
    cluster.until_all_ended().await;
    let planned = assert_no_instant_missing_or_doubled(&sql, 3).await;
    cluster.until_all_succeeded(planned + later.len()).await;
    journal.assert_each_ended_once(planned + later.len());
    assert_in_time(&cluster, &later).await;
    assert_eq!((early(&sql).await, late(&sql).await), (0, 0));
    assert_no_session_lost(&cluster).await;
    cluster.audit_clean(&[1, 2, 3, 6, 7]).await;
}
