//! From the outbox to the stream.

use std::time::Duration;

use bellwether_outbox_relay::{NatsWaker, Options, StreamLimits};
use bellwether_sandbox::eventually;
use bellwether_schemas::state::Priority;
use futures_util::StreamExt;

use crate::support::{Broker, Ledger, NEVER, Running, SOON, each, has_all, shared, shared_with};

#[tokio::test]
async fn dispatches_reach_their_lane_with_headers_and_body_and_the_outbox_drains() {
    let (broker, ledger) = shared().await;
    let high = ledger.enqueue("a", Priority::High, 1).await;
    let low = ledger.enqueue("b", Priority::Low, 1).await;
    let relay = Running::start(&broker, &ledger, Options::default()).await;
    relay.until_published(2).await;
    ledger.until_outbox_is_empty().await;

    let ledger_id = ledger.store.ledger().await.unwrap().id;
    let ns = broker.subjects.namespace();
    for (id, subject) in [
        (high[0], format!("{ns}.v1.work.a.high")),
        (low[0], format!("{ns}.v1.work.b.low")),
    ] {
        let all = broker.dispatches().await;
        let stored = all
            .iter()
            .find(|stored| stored.dispatch.execution_id == id)
            .unwrap();
        assert_eq!(stored.subject, subject);
        for (name, value) in [
            ("Nats-Msg-Id", format!("{id}.1")),
            ("Nats-Expected-Stream", broker.subjects.work_stream()),
            ("Bw-Execution-Id", id.to_string()),
            ("Bw-Ledger-Id", ledger_id.to_string()),
            ("Bw-Dispatch-No", "1".to_owned()),
            (
                "traceparent",
                stored.dispatch.trace.as_ref().unwrap().traceparent.clone(),
            ),
        ] {
            assert_eq!(stored.headers.get(name).unwrap().as_str(), value, "{name}");
        }
        let dispatch = &stored.dispatch;
        assert_eq!(
            (dispatch.v, dispatch.dispatch_no, dispatch.ledger_id),
            (1, 1, ledger_id)
        );
        assert_eq!(
            (&*dispatch.job, dispatch.shard_index, dispatch.shard_total),
            ("job", 0, 1)
        );
        assert!(dispatch.start_deadline_ms > dispatch.scheduled_at_ms);
    }
    let stats = relay.handle.stats();
    assert_eq!((stats.published, stats.duplicates, stats.errors), (2, 0, 0));
    assert!(stats.connected);
    let mark = ledger
        .store
        .stream_mark(&broker.subjects.work_stream())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(mark.last_seq, 2, "the highest PubAck is remembered");
    relay.stop();
    relay.end().await.unwrap();
}

#[tokio::test]
async fn many_relays_share_an_outbox_and_each_dispatch_is_stored_once() {
    let (broker, ledger) = shared().await;
    let executions = ledger.enqueue("q", Priority::Normal, 2_000).await;
    let options = || Options {
        batch: 50,
        window: 100,
        ..Options::default()
    };
    let mut relays = Vec::new();
    for _ in 0..3 {
        relays.push(Running::start(&broker, &ledger, options()).await);
    }
    ledger.until_outbox_is_empty().await;
    assert_eq!(broker.numbers().await, each(&executions, 1));
    let published: u64 = relays
        .iter()
        .map(|relay| relay.handle.stats().published)
        .sum();
    assert_eq!(published, 2_000);
}

#[tokio::test]
async fn rows_of_a_killed_relay_are_published_when_its_lease_is_over() {
    let (broker, ledger) = shared().await;
    let executions = ledger.enqueue("q", Priority::Normal, 10).await;
    let lease = Duration::from_secs(1);
    // What a killed relay leaves behind: leased rows.
    assert_eq!(
        ledger
            .store
            .claim_outbox(100, lease, &[])
            .await
            .unwrap()
            .len(),
        10
    );
    let _relay = Running::start(&broker, &ledger, Options::default()).await;
    ledger.until_outbox_is_empty().await;
    assert_eq!(broker.numbers().await, each(&executions, 1));
}

#[tokio::test]
async fn a_wake_up_shortens_the_poll() {
    let (broker, ledger) = shared().await;
    ledger.enqueue("q", Priority::Normal, 1).await;
    let options = Options {
        poll_busy: NEVER,
        poll_idle: NEVER,
        ..Options::default()
    };
    let relay = Running::start(&broker, &ledger, options).await;
    relay.until_published(1).await;
    ledger.until_outbox_is_empty().await;

    ledger.enqueue("q", Priority::Normal, 1).await;
    let waker = NatsWaker::new(broker.client.clone(), &broker.subjects);
    eventually("the second dispatch", SOON, async || {
        waker.wake();
        relay.handle.stats().published == 2
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_burst_of_wake_ups_is_sent_as_few() {
    let broker = Broker::shared().await;
    let mut signals = broker
        .client
        .subscribe(broker.subjects.wake_relay())
        .await
        .unwrap();
    broker.client.flush().await.unwrap();
    let waker = NatsWaker::new(broker.client.clone(), &broker.subjects);
    for _ in 0..10_000 {
        waker.wake();
    }
    assert!(
        tokio::time::timeout(SOON, signals.next())
            .await
            .unwrap()
            .is_some()
    );
    let ends = signals.take_until(tokio::time::sleep(Duration::from_millis(50)));
    assert!(
        ends.count().await <= 2,
        "10,000 calls in one go are one or two signals"
    );
}

#[tokio::test]
async fn a_new_queue_gets_its_consumers_within_seconds() {
    let (broker, ledger) = shared().await;
    let relay = Running::start(&broker, &ledger, Options::default()).await;
    ledger.enqueue("first", Priority::Normal, 1).await;
    relay.until_published(1).await;
    ledger.store.ensure_queue("later").await.unwrap();
    let (work, submit) = (
        broker.subjects.work_stream(),
        broker.subjects.submit_stream(),
    );
    eventually(
        "the consumers of a new queue",
        // A second is promised; the periodic look that makes them otherwise comes after 60.
        Duration::from_secs(20),
        async || {
            for name in ["later-high", "later-normal", "later-low"] {
                if broker.consumer(&work, name).await.is_none() {
                    return false;
                }
            }
            broker.consumer(&submit, "later").await.is_some()
        },
    )
    .await
    .unwrap();
    assert_eq!(relay.handle.stats().work_losses, 0);
}

#[tokio::test]
async fn a_full_lane_waits_alone_and_goes_on_when_there_is_room() {
    let streams = StreamLimits {
        subject_messages_max: 2,
        ..StreamLimits::default()
    };
    let (broker, ledger) = shared_with(&streams).await;
    let options = Options {
        streams,
        ..Options::default()
    };
    let high = ledger.enqueue("q", Priority::High, 3).await;
    let relay = Running::start(&broker, &ledger, options).await;
    relay.until_published(2).await;
    let low = ledger.enqueue("q", Priority::Low, 1).await;
    relay.until_published(3).await;
    eventually("a refusal", SOON, async || relay.handle.stats().errors > 0)
        .await
        .unwrap();
    assert_eq!(
        ledger.outbox().await,
        1,
        "what was refused stays in the outbox"
    );
    assert!(broker.numbers().await.contains(&(low[0], 1)));

    let work = broker.subjects.work_stream();
    let consumer = broker.consumer(&work, "q-high").await.unwrap();
    let mut messages = consumer.fetch().max_messages(1).messages().await.unwrap();
    let taken = messages.next().await.unwrap().unwrap();
    taken.double_ack().await.unwrap();
    ledger.until_outbox_is_empty().await;
    let numbers = broker.numbers().await;
    assert_eq!(
        numbers.iter().filter(|(id, _)| high.contains(id)).count(),
        2
    );
}

/// Twelve tries: with the default of 30 s they would take more than a minute.
#[tokio::test]
async fn a_lane_that_is_refused_waits_no_longer_than_the_options_say() {
    let streams = StreamLimits {
        subject_messages_max: 1,
        ..StreamLimits::default()
    };
    let (broker, ledger) = shared_with(&streams).await;
    let options = Options {
        streams,
        backoff_max: Duration::from_secs(1),
        ..Options::default()
    };
    ledger.enqueue("q", Priority::High, 2).await;
    let relay = Running::start(&broker, &ledger, options).await;
    eventually("twelve refusals", SOON, async || {
        relay.handle.stats().errors >= 12
    })
    .await
    .unwrap();
    assert_eq!(
        (ledger.outbox().await, broker.numbers().await.len()),
        (1, 1)
    );
}

#[tokio::test]
async fn a_full_stream_refuses_and_nothing_is_lost_while_it_drains() {
    const EXECUTIONS: usize = 400;
    let streams = StreamLimits {
        work_bytes_max: 64 * 1024,
        ..StreamLimits::default()
    };
    let (broker, ledger) = shared_with(&streams).await;
    let options = Options {
        streams,
        backoff_max: Duration::from_secs(1),
        ..Options::default()
    };
    let executions = ledger.enqueue("q", Priority::Normal, EXECUTIONS).await;
    let relay = Running::start(&broker, &ledger, options).await;
    eventually("refusals", SOON, async || relay.handle.stats().errors > 0)
        .await
        .unwrap();
    assert!(ledger.outbox().await > 0, "the outbox keeps the rest");

    let work = broker.subjects.work_stream();
    let consumer = broker.consumer(&work, "q-normal").await.unwrap();
    let mut delivered = std::collections::BTreeMap::new();
    while delivered.len() < EXECUTIONS {
        let fetch = consumer.fetch().max_messages(50).messages().await;
        let mut messages = fetch.unwrap();
        while let Some(Ok(message)) = messages.next().await {
            let id = message.headers.as_ref().unwrap().get("Bw-Execution-Id");
            *delivered.entry(id.unwrap().to_string()).or_insert(0) += 1;
            message.double_ack().await.unwrap();
        }
    }
    let ids: Vec<_> = executions.iter().map(ToString::to_string).collect();
    assert!(delivered.keys().eq(ids.iter()));
    assert!(delivered.values().all(|times| *times == 1), "each once");
    ledger.until_outbox_is_empty().await;
    assert_eq!(relay.handle.stats().work_losses, 0);
}

/// A plain subscriber of the subject makes a publish without a stream look like a slow one.
#[tokio::test]
async fn a_core_subscriber_does_not_hide_that_the_stream_is_missing() {
    let (broker, ledger) = shared().await;
    let options = Options {
        check_every: NEVER,
        puback_timeout: Duration::from_millis(300),
        ..Options::default()
    };
    let relay = Running::start(&broker, &ledger, options).await;
    let before = ledger.enqueue("q", Priority::Normal, 1).await;
    relay.until_published(1).await;
    ledger.until_outbox_is_empty().await;
    let subject = broker.subjects.work_all();
    let _listener = broker.client.subscribe(subject).await.unwrap();
    broker.client.flush().await.unwrap();
    broker
        .js
        .delete_stream(broker.subjects.work_stream())
        .await
        .unwrap();
    let next = ledger.enqueue("q", Priority::Normal, 1).await;
    let mut wanted = [each(&before, 2), each(&next, 1)].concat();
    wanted.sort_unstable();
    eventually("both dispatches", SOON, async || {
        ledger.outbox().await == 0 && has_all(&broker.numbers().await, &wanted)
    })
    .await
    .unwrap();
    assert_eq!(relay.handle.stats().work_losses, 1);
}

/// Without `migrate` the relay declares by itself. It cannot know what an earlier one had sent,
/// so what was dispatched before it made the mark may be sent once more, under a new number.
#[tokio::test]
async fn a_relay_without_migrate_declares_by_itself_and_loses_nothing() {
    let (broker, ledger) = (Broker::shared().await, Ledger::new().await);
    let executions = ledger.enqueue("q", Priority::Normal, 3).await;
    let relay = Running::start(&broker, &ledger, Options::default()).await;
    relay.until_published(3).await;
    ledger.until_outbox_is_empty().await;
    let numbers = broker.numbers().await;
    assert!(
        each(&executions, 1).iter().all(|one| numbers.contains(one)),
        "{numbers:?}"
    );
    assert!(
        numbers.iter().all(|(_, number)| *number <= 2),
        "{numbers:?}"
    );
    assert_eq!(relay.handle.stats().work_losses, 0);
}

#[tokio::test]
async fn a_relay_refuses_what_only_an_operator_can_settle() {
    let ((broker, theirs), ours) = (shared().await, Ledger::new().await);
    theirs.enqueue("q", Priority::Normal, 1).await;
    let relay = Running::start(&broker, &theirs, Options::default()).await;
    relay.until_published(1).await;

    ours.enqueue("q", Priority::Normal, 1).await;
    let refused = Running::start(&broker, &ours, Options::default())
        .await
        .end()
        .await
        .unwrap_err();
    assert!(refused.is_final());
    let their_id = theirs.store.ledger().await.unwrap().id;
    assert!(
        refused
            .to_string()
            .contains(&format!("belongs to ledger {their_id}")),
        "{refused}"
    );

    let streams = StreamLimits {
        subject_messages_max: 5,
        ..StreamLimits::default()
    };
    let options = Options {
        streams,
        ..Options::default()
    };
    let refused = Running::start(&broker, &theirs, options)
        .await
        .end()
        .await
        .unwrap_err();
    let text = refused.to_string();
    assert!(
        text.contains("max_msgs_per_subject is 1000000, declared is 5"),
        "{text}"
    );
    assert!(text.contains("run `bellwether migrate`"), "{text}");
    assert_eq!(
        broker.numbers().await.len(),
        1,
        "a relay that refuses publishes nothing"
    );
}
