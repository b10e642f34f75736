//! A broker that is away costs time, never a dispatch.

use std::time::Duration;

use bellwether_outbox_relay::Options;
use bellwether_sandbox::{NatsOptions, NatsServer, eventually};
use bellwether_schemas::state::Priority;

use crate::support::{Ledger, NEVER, Running, SOON, each, migrated};

#[tokio::test]
async fn nothing_is_lost_while_the_broker_is_away_and_the_backlog_is_not_sent_again() {
    let mut server = NatsServer::start(&NatsOptions::default()).await.unwrap();
    let (broker, ledger) = migrated(&server.url()).await;
    let mut executions = ledger.enqueue("q", Priority::Normal, 200).await;
    let relay = Running::start(&broker, &ledger, Options::default()).await;
    ledger.until_outbox_is_empty().await;

    server.kill().unwrap();
    eventually("the loss of the connection", SOON, async || {
        !relay.handle.stats().connected
    })
    .await
    .unwrap();
    executions.extend(ledger.enqueue("q", Priority::Normal, 200).await);
    executions.sort_unstable();
    assert_eq!(ledger.outbox().await, 200);
    server.restart().await.unwrap();
    ledger.until_outbox_is_empty().await;

    assert_eq!(
        broker.numbers().await,
        each(&executions, 1),
        "each once, none again"
    );
    let stats = relay.handle.stats();
    assert_eq!((stats.work_losses, stats.submit_losses), (0, 0));
    let work = broker.subjects.work_stream();
    assert_eq!(ledger.store.redispatch_lost(&work, 500).await.unwrap(), 0);
}

#[tokio::test]
async fn a_broker_that_stands_still_under_load_loses_nothing() {
    let mut server = NatsServer::start(&NatsOptions::default()).await.unwrap();
    let (broker, ledger) = migrated(&server.url()).await;
    let options = Options {
        puback_timeout: Duration::from_millis(500),
        batch: 20,
        ..Options::default()
    };
    let relay = Running::start(&broker, &ledger, options).await;
    ledger.enqueue("q", Priority::Normal, 1).await;
    relay.until_published(1).await;

    server.pause().await.unwrap();
    let executions = ledger.enqueue("q", Priority::Normal, 300).await;
    eventually("unanswered publishes", SOON, async || {
        relay.handle.stats().errors > 0
    })
    .await
    .unwrap();
    server.resume().unwrap();
    ledger.until_outbox_is_empty().await;
    // What timed out was stored all the same; its repeat has the same id.
    let numbers = broker.numbers().await;
    let ours: Vec<_> = numbers
        .into_iter()
        .filter(|(id, _)| executions.contains(id))
        .collect();
    assert_eq!(ours, each(&executions, 1));
    assert_eq!(relay.handle.stats().work_losses, 0);
}

#[tokio::test]
async fn a_relay_that_stops_gives_back_what_was_not_confirmed() {
    let mut server = NatsServer::start(&NatsOptions::default()).await.unwrap();
    let (broker, ledger) = migrated(&server.url()).await;
    let options = Options {
        lease: Duration::from_hours(1),
        puback_timeout: Duration::from_secs(1),
        // Long enough to keep a returned row from being claimed again.
        backoff_max: Duration::from_mins(10),
        ..Options::default()
    };
    let relay = Running::start(&broker, &ledger, options).await;
    ledger.enqueue("q", Priority::Normal, 1).await;
    relay.until_published(1).await;
    ledger.until_outbox_is_empty().await;

    server.pause().await.unwrap();
    ledger.enqueue("q", Priority::Normal, 5).await;
    eventually("leased rows", SOON, async || {
        // Claims nothing itself: every lane is left out.
        relay.handle.stats().errors >= 5
    })
    .await
    .unwrap();
    relay.stop();
    relay.end().await.unwrap();
    let free = ledger
        .store
        .claim_outbox(10, Duration::from_secs(1), &[])
        .await
        .unwrap();
    assert_eq!(free.len(), 5, "no lease is left behind");
    server.resume().unwrap();
}

/// Waits until a relay has leased so many rows, which are on their way then.
async fn until_on_their_way(ledger: &Ledger, rows: i64) {
    eventually("leased rows", SOON, async || {
        let leased = "SELECT count(*) FROM outbox WHERE leased_until IS NOT NULL";
        ledger.number(leased).await == rows
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_relay_that_stops_waits_for_the_answers_on_their_way() {
    let mut server = NatsServer::start(&NatsOptions::default()).await.unwrap();
    let (broker, ledger) = migrated(&server.url()).await;
    let options = Options {
        lease: NEVER,
        puback_timeout: NEVER,
        ..Options::default()
    };
    let relay = Running::start(&broker, &ledger, options).await;
    let mut all = ledger.enqueue("q", Priority::Normal, 1).await;
    relay.until_published(1).await;
    ledger.until_outbox_is_empty().await;

    server.pause().await.unwrap();
    all.extend(ledger.enqueue("q", Priority::Normal, 5).await);
    all.sort_unstable();
    until_on_their_way(&ledger, 5).await;
    relay.stop();
    server.resume().unwrap();
    relay.end().await.unwrap();
    assert_eq!(ledger.outbox().await, 0, "what was answered is deleted");
    assert_eq!(broker.numbers().await, each(&all, 1));
}

/// Killed while it waits for the answers of a broker that stands still.
#[tokio::test]
async fn a_stop_that_is_interrupted_leaves_its_rows_to_another_relay() {
    let mut server = NatsServer::start(&NatsOptions::default()).await.unwrap();
    let (broker, ledger) = migrated(&server.url()).await;
    let options = Options {
        lease: Duration::from_secs(1),
        puback_timeout: NEVER,
        ..Options::default()
    };
    let relay = Running::start(&broker, &ledger, options).await;
    let mut all = ledger.enqueue("q", Priority::Normal, 1).await;
    relay.until_published(1).await;
    ledger.until_outbox_is_empty().await;

    server.pause().await.unwrap();
    all.extend(ledger.enqueue("q", Priority::Normal, 5).await);
    all.sort_unstable();
    until_on_their_way(&ledger, 5).await;
    relay.stop();
    // It does not answer for what it still waits for.
    tokio::task::yield_now().await;
    drop(relay);
    assert_eq!(ledger.outbox().await, 5);
    server.resume().unwrap();
    let _next = Running::start(&broker, &ledger, Options::default()).await;
    ledger.until_outbox_is_empty().await;
    assert_eq!(broker.numbers().await, each(&all, 1), "each is stored once");
}
