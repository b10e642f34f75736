//! A Postgres that answers nothing, is away, or has no connection to spare.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bellwether_sandbox::Proxy;

use crate::instruments::Said;
use crate::support::{Cluster, Collector, Role, until};
use crate::{QUICK, QUICK_LEASE, QUICK_SESSIONS};

/// A ticker that says whether it is ready.
fn ticker(cluster: &Cluster, health: &Path) -> Role {
    cluster.ticker(&["--health-file", health.to_str().unwrap()])
}

fn relay(cluster: &Cluster, health: &Path) -> Role {
    cluster.role("relay", &["--health-file", health.to_str().unwrap()])
}

fn said(health: &Path) -> String {
    std::fs::read_to_string(health).unwrap_or_default()
}

async fn until_ready(health: &[PathBuf]) {
    for file in health {
        let what = format!("{} ready", file.display());
        until(&what, async || said(file) == "ready\n").await;
    }
}

async fn until_not_ready(health: &[PathBuf]) {
    for file in health {
        let what = format!("{} not ready", file.display());
        until(&what, async || said(file).starts_with("not ready: ")).await;
    }
}

/// A cluster whose roles reach the shared Postgres through a proxy; the test itself does not.
pub(crate) async fn behind_a_proxy() -> Option<(Cluster, Proxy)> {
    let mut cluster = Cluster::postgres().await?;
    let proxy = through_a_proxy(&mut cluster).await;
    Some((cluster, proxy))
}

/// Lets the roles that are started from now on reach their Postgres through a proxy.
pub(crate) async fn through_a_proxy(cluster: &mut Cluster) -> Proxy {
    let proxy = Proxy::start(port(cluster)).await.unwrap();
    by_way_of(cluster, proxy.port());
    proxy
}

/// Where the cluster's Postgres listens.
pub(crate) fn port(cluster: &Cluster) -> u16 {
    let (_, after) = cluster.database_url().rsplit_once(':').unwrap();
    after.split(['/', '?']).next().unwrap().parse().unwrap()
}

/// Lets the roles that are started from now on look for it at another port.
pub(crate) fn by_way_of(cluster: &mut Cluster, other: u16) {
    let own = format!(":{}", port(cluster));
    let url = cluster.database_url().replace(&own, &format!(":{other}"));
    cluster.variables.push(("BELLWETHER_DATABASE_URL", url));
}

pub(crate) fn export_to(cluster: &mut Cluster, collector: &Collector) {
    let url = collector.url.clone();
    cluster.variables.push(("OTEL_EXPORTER_OTLP_ENDPOINT", url));
    let every = "500".to_owned();
    cluster
        .variables
        .push(("OTEL_METRIC_EXPORT_INTERVAL", every));
}

#[tokio::test(flavor = "multi_thread")]
async fn p10_a_frozen_database_times_every_call_out_and_all_loops_resume() {
    let Some((mut cluster, proxy)) = behind_a_proxy().await else {
        return;
    };
    let collector = Collector::start().await;
    export_to(&mut cluster, &collector);
    let health = ["ticker", "relay"].map(|name| cluster.folder().join(name));
    let mut roles = [
        ticker(&cluster, &health[0]),
        relay(&cluster, &health[1]),
        cluster.worker("worker", &[]).await,
    ];
    let journal = cluster.journal();
    let names = cluster.every_second(2, &journal.work(&[20])).await;
    until_ready(&health).await;
    until("work", async || journal.all("end").len() > 2).await;
    let failed = |service: &str, reason: &str| {
        collector.sum_of(service, "bellwether.db.errors", &[("reason", reason)])
    };

    proxy.freeze();
    let frozen = Instant::now();
    until_not_ready(&health).await;
    // First what was asked on the connections that were open; they are closed, and then there is
    // none to ask on.
    for (service, reason) in [
        ("bellwether-ticker", "timeout"),
        ("bellwether-relay", "timeout"),
        ("bellwether-ticker", "pool"),
        ("bellwether-relay", "pool"),
        ("patient", "pool"),
    ] {
        until(&format!("{reason} of the {service}"), async || {
            failed(service, reason) > 0.0
        })
        .await;
    }
    for service in ["bellwether-ticker", "bellwether-relay"] {
        until(&format!("{service} unready"), async || {
            collector.newest(service, "bellwether.ready") == Some(0.0)
        })
        .await;
    }
    println!("frozen for {:.1} s", frozen.elapsed().as_secs_f64());
    proxy.thaw();
    until_ready(&health).await;
    let before = journal.all("end").len();
    until("new work", async || journal.all("end").len() > before + 2).await;
    assert!(roles.iter_mut().all(Role::is_running), "nobody ended");
    cluster.unregister(&names).await;
    cluster.until_all_ended().await;
    cluster.audit_clean(&[1, 2, 6]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p38_ticks_resume_after_the_database_was_away_and_readiness_tells_meanwhile() {
    let Some(mut cluster) = Cluster::with_own_postgres().await else {
        return;
    };
    let collector = Collector::start().await;
    export_to(&mut cluster, &collector);
    let health = ["ticker", "relay"].map(|name| cluster.folder().join(name));
    let mut roles = [ticker(&cluster, &health[0]), relay(&cluster, &health[1])];
    let names = cluster
        .every_second(1, &cluster.journal().work(&[20]))
        .await;
    until_ready(&health).await;
    until("fires", async || cluster.planned().await > 2).await;
    let age =
        |collector: &Collector| collector.newest("bellwether-ticker", "bellwether.planning.age");
    until("an age", async || age(&collector).is_some()).await;
    assert!(age(&collector).unwrap() < 5.0);

    cluster.own_postgres.as_mut().unwrap().stop().await.unwrap();
    until_not_ready(&health).await;
    for said in [Said::by_tickers(&collector), Said::by_relays(&collector)] {
        let away = [("reason", "unavailable")];
        said.until_least("bellwether.db.errors", &away, 1).await;
    }
    until("a growing age", async || age(&collector) > Some(10.0)).await;
    cluster
        .own_postgres
        .as_mut()
        .unwrap()
        .restart()
        .await
        .unwrap();
    let back = Instant::now();
    let planned = cluster.planned().await;
    until("new fires", async || cluster.planned().await > planned).await;
    let resumed = back.elapsed();
    assert!(resumed < Duration::from_secs(10), "ticks after {resumed:?}");
    until_ready(&health).await;
    assert!(roles.iter_mut().all(Role::is_running), "nobody ended");
    cluster.unregister(&names).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p59_all_sides_lose_the_database_for_two_leases_and_no_work_is_done_twice_at_once() {
    let Some((cluster, proxy)) = behind_a_proxy().await else {
        return;
    };
    let _tickers = [
        cluster.ticker(QUICK_SESSIONS),
        cluster.ticker(QUICK_SESSIONS),
    ];
    let _relay = cluster.relay();
    let _workers = [
        cluster.worker("one", &[QUICK]).await,
        cluster.worker("two", &[QUICK]).await,
    ];
    let journal = cluster.journal();
    cluster.enqueue(60, &journal.work(&[400])).await;
    until("work", async || journal.all("end").len() > 4).await;

    proxy.freeze();
    let two_leases = i64::try_from(2 * QUICK_LEASE.as_millis()).unwrap();
    until("two leases without a renewal", async || {
        let now = cluster.now().await;
        let sessions = cluster.sessions().await;
        sessions
            .iter()
            .all(|session| (now - session.renewed_at).num_milliseconds() > two_leases)
    })
    .await;
    proxy.thaw();
    cluster.until_all_succeeded(60).await;
    // Each is accepted once; what ran twice ran one after the other, and was charged.
    cluster.audit_clean(&[6, 7]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p29_more_processes_than_connections_start_at_once_and_none_gives_up() {
    const EACH: usize = 10;
    let Some(cluster) = Cluster::with_few_connections(20).await else {
        return;
    };
    let mut roles: Vec<Role> = (0..EACH)
        .flat_map(|_| [cluster.ticker(&[]), cluster.relay()])
        .collect();
    let journal = cluster.journal();
    let names = cluster.every_second(3, &journal.work(&[10])).await;
    until("fires", async || cluster.planned().await > 15).await;
    let dispatched = async || {
        let backlog = cluster.store.outbox_backlog().await;
        backlog.is_ok_and(|backlog| backlog.rows < 10)
    };
    until("dispatches", dispatched).await;
    let ended = roles.iter_mut().filter_map(|role| {
        let ended = !role.is_running();
        ended.then(|| role.log())
    });
    assert_eq!(ended.collect::<Vec<_>>(), Vec::<String>::new());
    cluster.unregister(&names).await;
}

/// A standby that somebody took for the primary: no readiness, and a log that says it once.
#[tokio::test(flavor = "multi_thread")]
async fn a_ticker_on_a_read_only_database_is_never_ready_and_says_why_once() {
    let Some(mut cluster) = Cluster::postgres().await else {
        return;
    };
    let collector = Collector::start().await;
    export_to(&mut cluster, &collector);
    let url = cluster.database_url();
    let joint = if url.contains('?') { '&' } else { '?' };
    let standby = format!("{url}{joint}options[default_transaction_read_only]=on");
    let add = ["schedules", "add", "x", "--every", "1h", "--database-url"];
    let remedy = ["read-only (a standby?)", "at the primary", "25006"];
    let add = [&add[..], &[standby.as_str()]].concat();
    cluster.bellwether(&add).await.refused(6, &remedy);

    let health = cluster.folder().join("standby");
    let args = ["--health-file", health.to_str().unwrap(), "--database-url"];
    let ticker = cluster.ticker(&[&args[..], &[standby.as_str()]].concat());
    // Fifteen seconds without a success: some fifteen failures of each sweep.
    until("a stalled loop", async || {
        let said = said(&health);
        assert!(!said.starts_with("ready"), "{said}");
        said.contains("has not succeeded for")
    })
    .await;
    Said::by_tickers(&collector)
        .until_least("bellwether.db.errors", &[("reason", "read_only")], 5)
        .await;
    let log = ticker.log();
    let of_standby = log.lines().filter(|line| line.contains("25006"));
    let of_standby: Vec<_> = of_standby.collect();
    assert!(of_standby.len() >= 5, "{log}");
    for line in &of_standby {
        assert!(line.contains("point database_url at the primary"), "{line}");
        let what = line.split("failed to").nth(1).unwrap();
        let what = what.split(['"', ',']).next().unwrap();
        let again = of_standby.iter().filter(|other| other.contains(what));
        assert!(again.count() <= 2, "{what} again and again:\n{log}");
    }
    assert!(of_standby.len() < 20, "{log}");
}
