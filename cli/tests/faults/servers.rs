//! The nats-server killed and wiped, the Postgres restarted, and a broker whose dedupe has ended.

use std::time::Instant;

use async_nats::HeaderMap;
use async_nats::jetstream::{self, stream::Stream};
use bellwether_client::What;
use bellwether_schemas::header;

use crate::support::{Cluster, Role, SOON, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_nats_server_killed_and_wiped_in_mid_run_loses_no_execution() {
    const ONE_SHOTS: usize = 500;
    let Some(mut cluster) = Cluster::with_own_nats().await else {
        return;
    };
    let journal = cluster.journal();
    let mut roles = [
        cluster.ticker(&[]),
        cluster.relay(),
        cluster
            .worker("worker", &[("PATIENT_MAX_CONCURRENT", "8")])
            .await,
    ];
    let names = cluster.every_second(20, &journal.work(&[20])).await;
    cluster.enqueue(ONE_SHOTS, &journal.work(&[50])).await;
    until("100 started", async || journal.starts() >= 100).await;

    let nats = cluster.own_nats.as_mut().unwrap();
    nats.kill().unwrap();
    nats.wipe_store().unwrap();
    let waiting = ONE_SHOTS.saturating_sub(journal.all("end").len());
    let back = Instant::now();
    nats.restart().await.unwrap();
    let before = journal.starts();
    until("new work", async || journal.starts() > before).await;
    println!(
        "wiped with some {waiting} waiting: work went on after {:.2} s",
        back.elapsed().as_secs_f64()
    );
    let fired = cluster.planned().await;
    until("new fires", async || cluster.planned().await > fired + 20).await;
    cluster.unregister(&names).await;
    let planned = cluster.planned().await;
    cluster.until_all_succeeded(planned).await;
    println!(
        "all {planned} executions ended {:.2} s after the restart",
        back.elapsed().as_secs_f64()
    );
    journal.assert_each_ended_once(planned);
    assert!(
        roles.iter_mut().all(Role::is_running),
        "each role is the same process"
    );
    cluster.audit_clean(&[1, 2, 3, 4, 6]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_restarted_in_mid_run_loses_nothing_and_all_roles_go_on() {
    const ONE_SHOTS: usize = 200;
    let Some(mut cluster) = Cluster::with_own_postgres().await else {
        return;
    };
    let journal = cluster.journal();
    let mut roles = [
        cluster.ticker(&[]),
        cluster.relay(),
        cluster
            .worker("worker", &[("PATIENT_MAX_CONCURRENT", "8")])
            .await,
    ];
    let names = cluster.every_second(20, &journal.work(&[20])).await;
    cluster.enqueue(ONE_SHOTS, &journal.work(&[300])).await;
    until("30 ended", async || journal.all("end").len() >= 30).await;

    let restarted = Instant::now();
    cluster
        .own_postgres
        .as_mut()
        .unwrap()
        .restart()
        .await
        .unwrap();
    let back = restarted.elapsed();
    let before = journal.starts();
    until("new work", async || journal.starts() > before).await;
    println!(
        "Postgres was back after {:.2} s, work went on after {:.2} s",
        back.as_secs_f64(),
        restarted.elapsed().as_secs_f64()
    );
    let fired = cluster.planned().await;
    until("new fires", async || cluster.planned().await > fired + 20).await;
    cluster.unregister(&names).await;
    let planned = cluster.planned().await;
    cluster.until_all_succeeded(planned).await;
    println!(
        "all {planned} executions ended {:.2} s after it",
        restarted.elapsed().as_secs_f64()
    );
    assert!(
        roles.iter_mut().all(Role::is_running),
        "each role is the same process"
    );
    journal.assert_each_ended_once(planned);
    cluster.audit_clean(&[1, 2, 3, 4, 6]).await;
}

/// Publishes with a bare `Nats-Msg-Id`, as any client would; whether the broker had it.
async fn publish(cluster: &Cluster, id: &str, body: Vec<u8>) -> bool {
    let mut headers = HeaderMap::new();
    headers.insert(header::MSG_ID, id);
    let subject = cluster.subjects.submit("default", "patient");
    let context = jetstream::new(cluster.nats.clone());
    let sent = context
        .publish_with_headers(subject, headers, body.into())
        .await
        .unwrap();
    sent.await.unwrap().duplicate
}

/// Publishes until the broker has forgotten that it had it.
async fn publish_anew(cluster: &Cluster, id: &str, body: &[u8]) {
    until("the end of the duplicate window", async || {
        !publish(cluster, id, body.to_vec()).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_message_id_is_one_execution_beyond_the_window_and_a_restart_of_the_broker() {
    const ID: &str = "order-17";
    let Some(mut cluster) = Cluster::with_own_nats().await else {
        return;
    };
    let journal = cluster.journal();
    let _relay = cluster.relay();
    let _workers = [
        cluster.worker("one", &[]).await,
        cluster.worker("two", &[]).await,
    ];
    let body = journal.work(&[100]).payload().bytes;
    let at_once = (0..5).map(|_| publish(&cluster, ID, body.clone()));
    let duplicates = futures_util::future::join_all(at_once).await;
    assert!(duplicates.iter().any(|duplicate| !duplicate));
    let what = What::Key {
        job: "patient".to_owned(),
        key: ID.to_owned(),
    };
    let waited = cluster.client.wait(what, SOON).await.unwrap();
    assert!(waited.succeeded());

    for _ in 0..3 {
        publish_anew(&cluster, ID, &body).await;
    }
    let nats = cluster.own_nats.as_mut().unwrap();
    nats.restart().await.unwrap();
    let context = jetstream::new(cluster.nats.clone());
    until("the broker", async || context.query_account().await.is_ok()).await;
    for _ in 0..3 {
        publish_anew(&cluster, ID, &body).await;
    }
    // One that was never seen, behind them all.
    publish(&cluster, "order-18", body.clone()).await;
    let name = cluster.subjects.submit_stream();
    let stream: Stream<()> = context.get_stream_no_info(&name).await.unwrap();
    until("all messages acknowledged", async || {
        stream
            .get_info()
            .await
            .is_ok_and(|info| info.state.messages == 0 && info.state.last_sequence >= 8)
    })
    .await;
    cluster.until_all_succeeded(2).await;
    journal.assert_each_ended_once(2);
    assert_eq!(journal.starts(), 2, "order-17 and order-18, each once");
    cluster.audit_clean(&[5, 6]).await;
}
