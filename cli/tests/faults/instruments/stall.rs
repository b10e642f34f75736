//! A database that answers nobody for half a minute, and one beside it that does.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bellwether_sandbox::usage;
use bellwether_schemas::state::SessionState;
use futures_util::future::try_join_all;
use sqlx::{Connection, PgConnection};

use super::Said;
use crate::database::export_to;
use crate::support::{Cluster, Collector, Journal, until};
use crate::tickers::count;

const STALL: Duration = Duration::from_secs(30);
const CONNECTIONS: usize = 1_000;
const RESULTS: usize = 1_000;

/// The worker's other ledger while the first one stands still: it is renewed every three seconds as
/// ever, and what is asked of it is done. Answers how much that was.
async fn served_all_the_while(neighbour: &Cluster, journal: &Journal) -> usize {
    let begun = Instant::now();
    let (mut renewals, mut done) = (BTreeSet::new(), 0);
    let own = neighbour.sessions().await[0].id;
    while begun.elapsed() < STALL {
        neighbour.enqueue(1, &journal.work(&[0])).await;
        done += 1;
        neighbour.until_all_succeeded(done).await;
        let sessions = neighbour.sessions().await;
        assert_eq!(sessions.len(), 1, "{sessions:#?}");
        assert_eq!(
            (sessions[0].id, sessions[0].state),
            (own, SessionState::Live)
        );
        renewals.insert(sessions[0].renewed_at);
        // What stalls is the other one: this is no load test.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    println!("meanwhile {done} done, {} renewals", renewals.len());
    // One that could not renew for a lease would have been declared lost.
    assert!(renewals.len() >= 3, "{renewals:?}");
    done
}

/// A thousand connections and a thousand results wait for a Postgres of which every process stands
/// still. The very process that holds the results goes on with its other ledger; nothing is given
/// up, nothing is done twice, and the series say how much waits.
#[tokio::test(flavor = "multi_thread")]
async fn r11_a_database_that_stands_still_for_thirty_seconds_costs_no_result_and_no_neighbour() {
    const QUEUED: &str = "bellwether.persist.queued";
    const ACCEPTED: &str = "bellwether.persist.accepted";
    const MIB: u64 = 1024 * 1024;
    let Some(mut cluster) = Cluster::with_few_connections(1_100).await else {
        return;
    };
    let neighbour = cluster.beside().await;
    let collector = Collector::start().await;
    export_to(&mut cluster, &collector);
    let said = Said::by_workers(&collector);
    let ticker = Said::by_tickers(&collector);
    let sql = cluster.sql().await;
    let (journal, other) = (cluster.journal(), neighbour.journal());
    let _roles = [cluster.ticker(&[]), cluster.relay()];
    let _beside = [neighbour.ticker(&[]), neighbour.relay()];
    let settings = [
        ("PATIENT_MAX_CONCURRENT", "1000"),
        ("PATIENT_ALSO", neighbour.subjects.namespace()),
        ("PATIENT_ALSO_DATABASE_URL", neighbour.database_url()),
    ];
    let worker = cluster.worker("worker", &settings).await;
    until("the session beside it", async || {
        neighbour.session_of(&worker).await.is_some()
    })
    .await;
    let mut waiting = Vec::new();
    while waiting.len() < CONNECTIONS {
        let some = (0..50).map(|_| PgConnection::connect(cluster.database_url()));
        waiting.extend(try_join_all(some).await.unwrap());
    }
    let (work, gate) = journal.gated("gate");
    cluster.enqueue(RESULTS, &work).await;
    until("all started", async || journal.starts() == RESULTS).await;
    let before = usage(worker.pid()).unwrap().peak_rss;

    let frozen = cluster.own_postgres.as_mut().unwrap().freeze().await;
    let frozen = frozen.unwrap();
    assert!(frozen.count() > CONNECTIONS, "{}", frozen.count());
    gate.open();
    let meanwhile = served_all_the_while(&neighbour, &other).await;
    let results = u32::try_from(RESULTS).unwrap();
    said.until(QUEUED, &[], results).await;
    said.until(ACCEPTED, &[], u32::try_from(meanwhile).unwrap())
        .await;
    said.until_least("bellwether.persist.retries", &[], 1).await;
    said.until_least("bellwether.db.errors", &[("reason", "timeout")], 1)
        .await;
    ticker.until("bellwether.ready", &[], 0).await;
    let grown = usage(worker.pid()).unwrap().peak_rss.saturating_sub(before) / MIB;
    println!("{grown} MiB more for {RESULTS} results");
    assert!(grown < 32, "{grown} MiB");

    frozen.thaw();
    let back = Instant::now();
    cluster.until_all_succeeded(RESULTS).await;
    println!("all are in {:.1?} after its return", back.elapsed());
    said.until(QUEUED, &[], 0).await;
    let all = u32::try_from(RESULTS + meanwhile).unwrap();
    said.until(ACCEPTED, &[], all).await;
    for name in ["bellwether.persist.rejected", "bellwether.persist.untold"] {
        assert!(said.is(name, 0), "{name}");
    }
    let peak = collector.peak("patient", QUEUED);
    assert!(peak < f64::from(results) + 2.0, "{peak} at once");
    ticker.until("bellwether.ready", &[], 1).await;
    assert!(ticker.is("bellwether.sessions.lost", 0));
    journal.assert_each_ended_once(RESULTS);
    let once = "SELECT count(*) FROM execution WHERE (generation, attempt) = (1, 1)";
    assert_eq!(count(&sql, once).await, i64::from(results));
    for connection in &mut waiting[..10] {
        connection.ping().await.unwrap();
    }
    cluster.audit_clean(&[5, 6, 7, 8]).await;
}
