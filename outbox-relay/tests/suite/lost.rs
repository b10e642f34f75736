//! Messages lost one by one, dispatches that nobody ever claims, consumers that deliver nothing.

use std::time::Duration;

use bellwether_outbox_relay::{NotReady, Options};
use bellwether_sandbox::eventually;
use bellwether_schemas::state::{DeadReason, Priority, Reason, State};
use bellwether_store::dead::DeadFilter;
use futures_util::StreamExt;
use tokio::time::Instant;
use uuid::Uuid;

use crate::support::{
    Broker, Ledger, NEVER, Running, SOON, each, migrated, server_with_few_rights, shared,
    url_of_few,
};

/// Looks all the time, for what has waited a little.
fn attentive() -> Options {
    Options {
        lost_after: Duration::from_millis(300),
        lost_after_max: Duration::from_millis(300),
        lost_every: Duration::from_millis(50),
        stuck_after: NEVER,
        check_every: NEVER,
        ..Options::default()
    }
}

/// The broker forgets the stored message of one execution.
async fn forget(broker: &Broker, execution: Uuid) {
    let stream = broker.js.get_stream(broker.subjects.work_stream()).await;
    let stream = stream.unwrap();
    let state = stream.cached_info().state.clone();
    for sequence in state.first_sequence..=state.last_sequence {
        let message = stream.get_raw_message(sequence).await.unwrap();
        let id = message.headers.get("Bw-Execution-Id").unwrap().to_string();
        if id == execution.to_string() {
            assert!(stream.delete_message(sequence).await.unwrap());
            return;
        }
    }
    panic!("no message of {execution}");
}

async fn purge(broker: &Broker) {
    let stream = broker.js.get_stream(broker.subjects.work_stream()).await;
    stream.unwrap().purge().await.unwrap();
}

/// How many messages the work stream was ever sent.
async fn sent(broker: &Broker) -> u64 {
    broker.work().await.state.last_sequence
}

#[tokio::test]
async fn one_lost_message_is_sent_again_once_and_its_lanes_backlog_never() {
    let (broker, ledger) = shared().await;
    let options = || Options {
        lost_after: Duration::from_secs(1),
        lost_after_max: NEVER,
        ..attentive()
    };
    let relays = [
        Running::start(&broker, &ledger, options()).await,
        Running::start(&broker, &ledger, options()).await,
    ];
    let lost = ledger.enqueue("q", Priority::Normal, 1).await;
    ledger.until_outbox_is_empty().await;
    // The stream is as old as time: nothing of it is known to be lost as a whole.
    ledger.sql("UPDATE stream SET seen_at = 0").await;
    // Far older than what follows, as the ledger has it; what follows says its own time.
    ledger
        .sql("UPDATE execution SET dispatched_at = dispatched_at - 3600000")
        .await;
    let backlog = ledger.enqueue("q", Priority::Normal, 50).await;
    let other_lane = ledger.enqueue("q", Priority::Low, 1).await;
    ledger.until_outbox_is_empty().await;
    forget(&broker, lost[0]).await;

    eventually("the second dispatch", SOON, async || {
        broker.numbers().await.contains(&(lost[0], 2))
    })
    .await
    .unwrap();
    // All of it is older than `lost_after` by now, and it all still lies there.
    for relay in &relays {
        relay.until_looked(20).await;
    }
    let mut wanted = [each(&lost, 2), each(&backlog, 1), each(&other_lane, 1)].concat();
    wanted.sort_unstable();
    assert_eq!(broker.numbers().await, wanted);
    assert_eq!(ledger.outbox().await, 0);
    let all = relays.iter().map(|relay| relay.handle.stats());
    assert_eq!(all.map(|stats| stats.lost_singly).sum::<u64>(), 1);
}

#[tokio::test]
async fn a_backlog_of_20_000_is_not_answered_with_a_single_message_more() {
    const BACKLOG: usize = 20_000;
    let (broker, ledger) = shared().await;
    // Workers that serve them are there, so that nothing but the backlog's own order protects it.
    ledger.idle_worker("q", "job").await;
    ledger.enqueue("q", Priority::Normal, BACKLOG).await;
    let options = Options {
        lost_after: Duration::from_millis(10),
        lost_after_max: Duration::from_millis(10),
        lost_every: Duration::from_millis(20),
        check_every: Duration::from_millis(100),
        ..attentive()
    };
    let relays = [
        Running::start(&broker, &ledger, options.clone()).await,
        Running::start(&broker, &ledger, options).await,
    ];
    ledger.until_outbox_is_empty().await;
    for relay in &relays {
        relay.until_looked(20).await;
    }
    assert_eq!(sent(&broker).await, BACKLOG as u64);
    assert_eq!(ledger.outbox().await, 0);
    for relay in &relays {
        let stats = relay.handle.stats();
        assert_eq!((stats.lost_singly, stats.redispatched), (0, 0));
        assert_eq!((stats.unclaimed, stats.consumers_rebuilt), (0, 0));
    }
}

#[tokio::test]
async fn r47_messages_dropped_each_time_are_a_dead_letter_after_exactly_five_sends() {
    let (broker, ledger) = shared().await;
    ledger.idle_worker("q", "job").await;
    let id = ledger.enqueue("q", Priority::Normal, 1).await[0];
    let relay = Running::start(&broker, &ledger, attentive()).await;
    eventually("the dead letter", SOON, async || {
        purge(&broker).await;
        relay.handle.stats().unclaimed == 1
    })
    .await
    .unwrap();
    assert_eq!(sent(&broker).await, 5);
    let execution = ledger.store.execution(id).await.unwrap().unwrap().execution;
    assert_eq!(
        (execution.state, execution.reason),
        (State::Failed, Some(Reason::Undeliverable))
    );
    let filter = DeadFilter {
        limit: 10,
        ..DeadFilter::default()
    };
    let letters = ledger.store.dead_letters(&filter).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].reason, DeadReason::Unclaimed);
    assert_eq!(letters[0].execution_id, Some(id));
    relay.until_looked(40).await;
    assert_eq!(sent(&broker).await, 5, "never again by itself");
    assert_eq!(ledger.outbox().await, 0);
}

#[tokio::test]
async fn r47_messages_dropped_while_nobody_serves_the_queue_are_sent_again_without_end() {
    let (broker, ledger) = shared().await;
    ledger.idle_worker("q", "another_job").await;
    ledger.idle_worker("another", "job").await;
    let id = ledger.enqueue("q", Priority::Normal, 1).await[0];
    let relay = Running::start(&broker, &ledger, attentive()).await;
    eventually("the ninth dispatch", SOON, async || {
        purge(&broker).await;
        sent(&broker).await >= 9
    })
    .await
    .unwrap();
    let execution = ledger.store.execution(id).await.unwrap().unwrap().execution;
    assert_eq!(execution.state, State::Pending);
    assert_eq!(relay.handle.stats().unclaimed, 0);
}

#[tokio::test]
async fn p31_a_consumer_removed_at_run_time_is_declared_again() {
    let (broker, ledger) = shared().await;
    let ids = ledger.enqueue("q", Priority::Normal, 3).await;
    let relay = Running::start(&broker, &ledger, attentive()).await;
    ledger.until_outbox_is_empty().await;
    let work = broker.subjects.work_stream();
    let stream = broker.js.get_stream(&work).await.unwrap();
    stream.delete_consumer("q-normal").await.unwrap();
    eventually("the consumer", SOON, async || {
        broker.consumer(&work, "q-normal").await.is_some()
    })
    .await
    .unwrap();
    relay.until_looked(5).await;
    assert_eq!(
        broker.numbers().await,
        each(&ids, 1),
        "nothing is sent again"
    );
    let stats = relay.handle.stats();
    assert_eq!((stats.work_losses, stats.consumers_rebuilt), (0, 0));
}

/// Pulls one message and acks it, as a worker does.
async fn deliver_one(broker: &Broker) -> bool {
    let work = broker.subjects.work_stream();
    let Some(consumer) = broker.consumer(&work, "q-normal").await else {
        return false;
    };
    let mut messages = consumer.fetch().max_messages(1).messages().await.unwrap();
    match messages.next().await {
        Some(Ok(message)) => message.ack().await.is_ok(),
        _ => false,
    }
}

async fn made_at(broker: &Broker) -> i128 {
    let work = broker.subjects.work_stream();
    let consumer = broker.consumer(&work, "q-normal").await.unwrap();
    consumer.cached_info().created.unix_timestamp_nanos()
}

/// One that has messages and workers with free slots, and delivers nothing.
async fn with_backlog(count: usize) -> (Broker, Ledger) {
    let (broker, ledger) = shared().await;
    ledger.enqueue("q", Priority::Normal, count).await;
    (broker, ledger)
}

#[tokio::test]
async fn p70_a_consumer_that_delivers_nothing_to_idle_workers_is_made_anew() {
    let (broker, ledger) = with_backlog(3).await;
    ledger.idle_worker("q", "job").await;
    let options = Options {
        stuck_after: Duration::from_millis(500),
        lost_after: NEVER,
        lost_after_max: NEVER,
        ..attentive()
    };
    let relay = Running::start(&broker, &ledger, options).await;
    ledger.until_outbox_is_empty().await;
    let before = made_at(&broker).await;
    eventually("a new consumer", SOON, async || {
        relay.handle.stats().consumers_rebuilt > 0
    })
    .await
    .unwrap();
    eventually("its declaration", SOON, async || deliver_one(&broker).await)
        .await
        .unwrap();
    assert!(made_at(&broker).await > before);
    assert_eq!(sent(&broker).await, 3, "and nothing is sent again");
    assert_eq!(relay.handle.stats().work_losses, 0);
}

#[tokio::test]
async fn p70_a_consumer_that_delivers_or_that_nobody_is_free_for_is_left_alone() {
    let (broker, ledger) = with_backlog(200).await;
    let stuck_after = Duration::from_secs(2);
    let options = Options {
        stuck_after,
        ..attentive()
    };
    let relay = Running::start(&broker, &ledger, options).await;
    ledger.until_outbox_is_empty().await;
    let before = made_at(&broker).await;
    let begun = Instant::now();
    while begun.elapsed() < stuck_after * 3 / 2 {
        relay.until_looked(1).await;
    }
    assert_eq!(relay.handle.stats().consumers_rebuilt, 0, "nobody is there");

    // A fleet that is slower than its backlog, but not still.
    ledger.idle_worker("q", "job").await;
    let begun = Instant::now();
    while begun.elapsed() < stuck_after * 3 / 2 {
        assert!(deliver_one(&broker).await);
        relay.until_looked(1).await;
    }
    assert_eq!(relay.handle.stats().consumers_rebuilt, 0);
    assert_eq!(made_at(&broker).await, before);
}

/// Thirty idle queues are more than are asked for one by one.
#[tokio::test]
async fn of_many_queues_one_that_stands_still_and_one_lost_message_are_found() {
    let (broker, ledger) = shared().await;
    for queue in 0..30 {
        ledger.idle_worker(&format!("idle-{queue}"), "job").await;
    }
    ledger.idle_worker("q", "job").await;
    let options = Options {
        stuck_after: Duration::from_secs(1),
        ..attentive()
    };
    let relay = Running::start(&broker, &ledger, options).await;
    let stuck = ledger.enqueue("q", Priority::Normal, 1).await;
    let lost = ledger.enqueue("idle-7", Priority::Low, 1).await;
    ledger.until_outbox_is_empty().await;
    forget(&broker, lost[0]).await;
    eventually("both", SOON, async || {
        let stats = relay.handle.stats();
        stats.lost_singly >= 1 && stats.consumers_rebuilt >= 1
    })
    .await
    .unwrap();
    let numbers = broker.numbers().await;
    assert!(numbers.contains(&(stuck[0], 1)), "{numbers:?}");
    let again = numbers.iter().filter(|(id, _)| *id == stuck[0]).count();
    assert_eq!(again, 1, "what lies there is not sent again");
}

/// As one of a cluster that has no leader: its queue is the first of all.
#[tokio::test]
async fn a_consumer_without_an_answer_hides_no_lost_message_and_no_stuck_consumer() {
    let denied = r#"publish: { deny: "$JS.API.CONSUMER.INFO.*.a-high" }"#;
    let server = server_with_few_rights(denied).await;
    let (broker, ledger) = migrated(&server.url()).await;
    for queue in ["a", "q"] {
        ledger.idle_worker(queue, "job").await;
    }
    let options = Options {
        stuck_after: Duration::from_millis(500),
        puback_timeout: Duration::from_millis(300),
        ..attentive()
    };
    let url = url_of_few(&server);
    let relay = Running::start_as(&url, &broker, &ledger, options).await;
    let lost = ledger.enqueue("q", Priority::Low, 1).await;
    let stuck = ledger.enqueue("q", Priority::Normal, 1).await;
    ledger.until_outbox_is_empty().await;
    forget(&broker, lost[0]).await;
    eventually("both", SOON, async || {
        let stats = relay.handle.stats();
        stats.lost_singly >= 1 && stats.consumers_rebuilt >= 1
    })
    .await
    .unwrap();
    let numbers = broker.numbers().await;
    assert!(numbers.contains(&(stuck[0], 1)), "{numbers:?}");
    assert_eq!(relay.handle.stats().looks, 0, "no look has seen all");
    eventually("the word of it", SOON, async || {
        matches!(
            relay.handle.ready(),
            Err(NotReady::Stalled { name: "watch", .. })
        )
    })
    .await
    .unwrap();
}

/// What is missing hinders no publish: only the look for it is as long as the broker takes.
#[tokio::test]
async fn p31_a_missing_consumer_keeps_no_lost_message_of_another_lane_waiting() {
    let denied = r#"publish: { deny: "$JS.API.CONSUMER.CREATE.*.a-high.>" },
        subscribe: { deny: "$JS.EVENT.ADVISORY.>" }"#;
    let server = server_with_few_rights(denied).await;
    let (broker, ledger) = migrated(&server.url()).await;
    for queue in ["a", "q"] {
        ledger.idle_worker(queue, "job").await;
    }
    let options = Options {
        puback_timeout: Duration::from_millis(300),
        ..attentive()
    };
    let url = url_of_few(&server);
    let relay = Running::start_as(&url, &broker, &ledger, options).await;
    relay.until_looked(1).await;
    let work = broker.subjects.work_stream();
    assert!(broker.consumer(&work, "a-high").await.is_none());
    let lost = ledger.enqueue("q", Priority::Low, 1).await;
    ledger.until_outbox_is_empty().await;
    forget(&broker, lost[0]).await;
    eventually("its second dispatch", SOON, async || {
        relay.handle.stats().lost_singly >= 1
    })
    .await
    .unwrap();
}
