//! A fleet that changes in the moment of a dispatch.

use std::collections::BTreeMap;

use bellwether_client::{NewSchedule, Timing};
use bellwether_sandbox::Signal;
use bellwether_schemas::state::State;

use crate::support::{Cluster, until};
use crate::{QUICK, QUICK_SESSIONS};

#[tokio::test(flavor = "multi_thread")]
async fn r91_a_changing_fleet_runs_each_shard_of_a_fire_once() {
    const SHARDS: u32 = 40;
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let _roles = [cluster.ticker(&[]), cluster.relay()];
    let slots = ("PATIENT_MAX_CONCURRENT", "2");
    let mut fleet = Vec::new();
    for name in ["one", "two", "three"] {
        fleet.push(cluster.worker(name, &[slots]).await);
    }
    let journal = cluster.journal();
    let mut new = NewSchedule::new(
        "sharded",
        Timing::Every {
            period_ms: 3_600_000,
            anchor: None,
        },
    );
    "patient".clone_into(&mut new.job);
    new.shard_total = SHARDS;
    new.payload = journal.work(&[300]).payload();
    cluster.client.register(&new).await.unwrap();
    cluster.client.trigger("sharded").await.unwrap();

    until("a few shards", async || journal.all("end").len() >= 4).await;
    fleet.push(cluster.worker("four", &[slots]).await);
    until("more shards", async || journal.all("end").len() >= 12).await;
    for mut worker in fleet.drain(..2) {
        assert_eq!(worker.end(Signal::TERM).await.0, Some(0));
    }
    let shards = usize::try_from(SHARDS).unwrap();
    cluster.until_all_succeeded(shards).await;
    journal.assert_each_ended_once(shards);
    // The total was pinned when the fire was made: nobody counted workers.
    let counts = cluster.counts().await;
    assert_eq!(
        counts,
        BTreeMap::from([(State::Succeeded, u64::from(SHARDS))])
    );
    cluster.audit_clean(&[3, 4, 6]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r92_a_worker_that_comes_or_goes_during_a_dispatch_loses_no_fire() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let _roles = [cluster.ticker(QUICK_SESSIONS), cluster.relay()];
    let journal = cluster.journal();
    let names = cluster.every_second(5, &journal.work(&[20])).await;
    // One comes, one goes without a word, over and over: whatever the broker was just handing to
    // it is handed to the next.
    for round in 0..6 {
        let mut worker = cluster.worker(&format!("w{round}"), &[QUICK]).await;
        let before = journal.starts();
        until("work", async || journal.starts() > before).await;
        if round % 2 == 0 {
            worker.kill();
        } else {
            assert_eq!(worker.end(Signal::TERM).await.0, Some(0));
        }
    }
    let _last = cluster.worker("last", &[QUICK]).await;
    cluster.unregister(&names).await;
    let planned = cluster.planned().await;
    cluster.until_all_succeeded(planned).await;
    cluster.audit_clean(&[1, 2, 3, 6, 7]).await;
}
