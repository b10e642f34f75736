//! Consumers that somebody removes, and what one of them that cannot be made costs the others.

use std::time::Duration;

use async_nats::jetstream::consumer::pull;
use bellwether_outbox_relay::{NotReady, Options, StreamLimits, migrate};
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
    // It says so for as long as it lasts, and what a new queue needs is made meanwhile.
    let names_it = |why: &NotReady| matches!(why, NotReady::Consumer { name, stream, .. } if name == "bad-high" && *stream == work);
    eventually("the name of the consumer", SOON, async || {
        relay.handle.ready().is_err_and(|why| names_it(&why))
    })
    .await
    .unwrap();
    ledger.store.ensure_queue("new").await.unwrap();
    let new = consumers(&broker, "new");
    eventually("the consumers of a new queue", SOON, async || {
        are_there(&broker, &new).await
    })
    .await
    .unwrap();
    assert!(relay.handle.ready().is_err_and(|why| names_it(&why)));

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

/// One without an answer, as one of a cluster that has no leader.
#[tokio::test]
async fn a_consumer_without_an_answer_keeps_no_other_from_being_made() {
    let denied = r#"publish: { deny: "$JS.API.CONSUMER.CREATE.*.bad-high.>" }"#;
    let server = server_with_few_rights(denied).await;
    let (broker, ledger) = migrated(&server.url()).await;
    for queue in ["bad", "good"] {
        ledger.store.ensure_queue(queue).await.unwrap();
    }
    let url = url_of_few(&server);
    let relay = Running::start_as(&url, &broker, &ledger, inattentive()).await;
    let all = [consumers(&broker, "bad"), consumers(&broker, "good")].concat();
    let (silent, others) = all.split_first().unwrap();
    eventually("the other consumers", SOON, async || {
        are_there(&broker, others).await
    })
    .await
    .unwrap();
    eventually("its name", SOON, async || {
        matches!(relay.handle.ready(), Err(NotReady::Consumer { name, .. }) if name == silent.1)
    })
    .await
    .unwrap();
    assert!(!are_there(&broker, &all).await);
    let executions = ledger.enqueue("good", Priority::Normal, 3).await;
    relay.until_published(3).await;
    assert_eq!(broker.numbers().await, each(&executions, 1));
}

/// What an installation changes while its relays run: `migrate` first, then each relay.
#[tokio::test]
async fn a_relay_at_work_goes_on_with_another_ack_wait_and_refuses_to_start_with_it() {
    let (broker, ledger) = shared().await;
    ledger.store.ensure_queue("q").await.unwrap();
    let options = || Options {
        check_every: Duration::from_millis(50),
        ..inattentive()
    };
    let relay = Running::start(&broker, &ledger, options()).await;
    let q = consumers(&broker, "q");
    eventually("the first declaration", SOON, async || {
        are_there(&broker, &q).await && relay.handle.ready().is_ok()
    })
    .await
    .unwrap();
    let limits = StreamLimits {
        ack_wait: Duration::from_secs(30),
        ..StreamLimits::default()
    };
    let migrated = migrate(&*ledger.store, &broker.js, &broker.subjects, &limits).await;
    migrated.unwrap();
    // Two looks: whoever declares a queue has seen the consumers of the others.
    for queue in ["one", "two"] {
        ledger.store.ensure_queue(queue).await.unwrap();
        let its = consumers(&broker, queue);
        eventually("the consumers of a new queue", SOON, async || {
            are_there(&broker, &its).await
        })
        .await
        .unwrap();
    }
    let executions = ledger.enqueue("q", Priority::Normal, 3).await;
    relay.until_published(3).await;
    assert_eq!(broker.numbers().await, each(&executions, 1));
    assert_eq!(relay.handle.ready(), Ok(()));
    for (stream, name) in &q {
        let consumer = broker.consumer(stream, name).await.unwrap();
        let ack_wait = consumer.cached_info().config.ack_wait;
        assert_eq!(ack_wait, limits.ack_wait, "it changes nothing back");
    }

    let another = Running::start(&broker, &ledger, options()).await;
    let refused = another.end().await.unwrap_err();
    let said = refused.to_string();
    assert!(
        refused.is_final() && said.contains("ack_wait is 30s"),
        "{said}"
    );
    assert!(said.contains("the same `nats_…` settings"), "{said}");
    // Likewise at work, where anything else differs.
    let stream = broker.js.get_stream(broker.subjects.work_stream()).await;
    let stream = stream.unwrap();
    let mut config = stream.consumer_info("q-low").await.unwrap().config;
    config.max_ack_pending = 5;
    stream.update_consumer(config).await.unwrap();
    let said = relay.end().await.unwrap_err().to_string();
    assert!(said.contains("max_ack_pending is 5"), "{said}");
}

/// The consumers of 90 queues are two pages of a list. Who may not ask for one, nor make one, has
/// them all from there.
#[tokio::test]
async fn more_consumers_than_a_page_holds_are_known_from_the_list() {
    const QUEUES: usize = 90;
    let denied = r#"publish: { deny: ["$JS.API.CONSUMER.INFO.>", "$JS.API.CONSUMER.CREATE.>"] }"#;
    let server = server_with_few_rights(denied).await;
    let (broker, ledger) = migrated(&server.url()).await;
    for queue in 0..QUEUES {
        // They look idle, so that the look for stuck consumers asks for all, too.
        ledger.idle_worker(&format!("q-{queue}"), "job").await;
    }
    let limits = StreamLimits::default();
    let declared = migrate(&*ledger.store, &broker.js, &broker.subjects, &limits).await;
    declared.unwrap();
    assert_eq!(broker.work().await.state.consumer_count, QUEUES * 3);
    let options = Options {
        lost_every: Duration::from_millis(50),
        ..inattentive()
    };
    let relay = Running::start_as(&url_of_few(&server), &broker, &ledger, options).await;
    eventually("readiness", SOON, async || relay.handle.ready().is_ok())
        .await
        .unwrap();
    relay.until_looked(2).await;
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
