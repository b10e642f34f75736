//! Consumers that somebody removes, and what one of them that cannot be made costs the others.

use std::time::Duration;

use async_nats::jetstream::consumer::pull;
use bellwether_outbox_relay::{NotReady, Options};
use bellwether_sandbox::eventually;
use bellwether_schemas::state::Priority;

use crate::support::{
    Broker, Ledger, NEVER, Running, SOON, each, migrated, server_with_few_rights, shared,
    url_of_few,
};

/// Looks for nothing by itself: neither once a minute for what has changed, nor for what is lost.
fn inattentive() -> Options {
    Options {
        check_every: NEVER,
        lost_every: NEVER,
        // What may not be asked has no answer.
        puback_timeout: Duration::from_millis(300),
        ..Options::default()
    }
}

/// Every consumer of a queue, by its stream.
fn consumers(broker: &Broker, queue: &str) -> [(String, String); 4] {
    let (work, submit) = (
        broker.subjects.work_stream(),
        broker.subjects.submit_stream(),
    );
    let lane = |priority| (work.clone(), format!("{queue}-{priority}"));
    [
        lane(Priority::High),
        lane(Priority::Normal),
        lane(Priority::Low),
        (submit, queue.to_owned()),
    ]
}

async fn are_there(broker: &Broker, consumers: &[(String, String)]) -> bool {
    for (stream, name) in consumers {
        if broker.consumer(stream, name).await.is_none() {
            return false;
        }
    }
    true
}

/// Removes all consumers of the queue, again and again; each time they come back.
async fn remove_and_wait(broker: &Broker, ledger: &Ledger, relay: &Running) {
    let executions = ledger.enqueue("q", Priority::Normal, 5).await;
    ledger.until_outbox_is_empty().await;
    let consumers = consumers(broker, "q");
    eventually("the first declaration", SOON, async || {
        are_there(broker, &consumers).await
    })
    .await
    .unwrap();
    for _ in 0..3 {
        for (stream, name) in &consumers {
            let removed = broker.js.delete_consumer_from_stream(name, stream);
            removed.await.unwrap();
        }
        eventually("all consumers", SOON, async || {
            are_there(broker, &consumers).await
        })
        .await
        .unwrap();
    }
    assert_eq!(
        broker.numbers().await,
        each(&executions, 1),
        "nothing is sent again"
    );
    let stats = relay.handle.stats();
    assert_eq!((stats.work_losses, stats.submit_losses), (0, 0));
}

#[tokio::test]
async fn p31_the_word_that_a_consumer_was_removed_brings_it_back() {
    let server = server_with_few_rights(r#"publish: { deny: "$JS.API.CONSUMER.LIST.>" }"#).await;
    let (broker, ledger) = migrated(&server.url()).await;
    let url = url_of_few(&server);
    let relay = Running::start_as(&url, &broker, &ledger, inattentive()).await;
    remove_and_wait(&broker, &ledger, &relay).await;
}

#[tokio::test]
async fn p31_a_removed_consumer_comes_back_though_the_word_of_it_is_lost() {
    let server = server_with_few_rights(r#"subscribe: { deny: "$JS.EVENT.ADVISORY.>" }"#).await;
    let (broker, ledger) = migrated(&server.url()).await;
    let url = url_of_few(&server);
    let relay = Running::start_as(&url, &broker, &ledger, inattentive()).await;
    remove_and_wait(&broker, &ledger, &relay).await;
}

#[tokio::test]
async fn p69_the_word_that_a_stream_was_removed_brings_it_and_its_messages_back() {
    let (broker, ledger) = shared().await;
    let waiting = ledger.enqueue("q", Priority::Normal, 20).await;
    let relay = Running::start(&broker, &ledger, inattentive()).await;
    ledger.until_outbox_is_empty().await;
    let work = broker.subjects.work_stream();
    broker.js.delete_stream(&work).await.unwrap();
    // Nothing is published meanwhile that could meet its absence.
    eventually("all dispatches under new numbers", SOON, async || {
        broker.numbers().await == each(&waiting, 2)
    })
    .await
    .unwrap();
    assert_eq!(relay.handle.stats().work_losses, 1);
    assert!(are_there(&broker, &consumers(&broker, "q")).await);
}

/// A consumer that cannot be made, here because another one has its messages, is one queue's
/// trouble: whoever restarts or reconnects meanwhile publishes for all.
#[tokio::test]
async fn a_consumer_that_cannot_be_made_stops_no_publish_and_no_other_queue() {
    let (broker, ledger) = shared().await;
    let work = broker.subjects.work_stream();
    let tap = pull::Config {
        durable_name: Some("tap".to_owned()),
        filter_subject: broker.subjects.work("bad", Priority::High),
        ..pull::Config::default()
    };
    broker
        .js
        .create_consumer_on_stream(tap, &work)
        .await
        .unwrap();
    for queue in ["bad", "good"] {
        ledger.store.ensure_queue(queue).await.unwrap();
    }
    let executions = ledger.enqueue("good", Priority::Normal, 3).await;
    let relay = Running::start(&broker, &ledger, inattentive()).await;
    relay.until_published(3).await;
    assert_eq!(broker.numbers().await, each(&executions, 1));
    let good = consumers(&broker, "good");
    eventually("the consumers of the other queue", SOON, async || {
        are_there(&broker, &good).await
    })
    .await
    .unwrap();
    // It says so for as long as it lasts.
    assert_eq!(relay.handle.ready(), Err(NotReady::Starting));

    broker
        .js
        .delete_consumer_from_stream("tap", &work)
        .await
        .unwrap();
    eventually("readiness", SOON, async || relay.handle.ready().is_ok())
        .await
        .unwrap();
    assert!(are_there(&broker, &consumers(&broker, "bad")).await);
}

/// A row that somebody wrote by hand, whose filter would reach into other queues' lanes.
#[tokio::test]
async fn p19_a_row_that_can_be_no_queue_is_left_out_and_stops_no_other() {
    let (broker, ledger) = shared().await;
    ledger
        .sql("INSERT INTO queue (name, created_at) VALUES ('*', 0), ('a.b', 0), ('', 0)")
        .await;
    let executions = ledger.enqueue("q", Priority::Normal, 3).await;
    let relay = Running::start(&broker, &ledger, inattentive()).await;
    relay.until_published(3).await;
    assert_eq!(broker.numbers().await, each(&executions, 1));
    eventually("readiness", SOON, async || relay.handle.ready().is_ok())
        .await
        .unwrap();
    assert!(are_there(&broker, &consumers(&broker, "q")).await);
    assert_eq!(broker.work().await.state.consumer_count, 3);
}
