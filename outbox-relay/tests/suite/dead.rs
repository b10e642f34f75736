//! What can never run becomes a dead letter, and everything else goes on.

use std::time::Duration;

use async_nats::HeaderMap;
use bellwether_outbox_relay::{Options, stray_queues};
use bellwether_sandbox::eventually;
use bellwether_schemas::header;
use bellwether_schemas::state::{DeadReason, Priority, Reason, State};
use bellwether_store::dead::{DeadFilter, DeadLetterView};

use crate::support::{Broker, Ledger, Running, SOON, shared};

async fn letters(ledger: &Ledger) -> Vec<DeadLetterView> {
    let filter = DeadFilter {
        limit: 100,
        ..DeadFilter::default()
    };
    ledger.store.dead_letters(&filter).await.unwrap()
}

async fn submit(broker: &Broker, queue: &str, job: &str, headers: &[(&str, &str)]) {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.insert(*name, *value);
    }
    let subject = broker.subjects.submit(queue, job);
    let publish = broker.js.publish_with_headers(subject, map, "{}".into());
    publish.await.unwrap().await.unwrap();
}

async fn submitted(broker: &Broker) -> u64 {
    let stream = broker.stream(&broker.subjects.submit_stream()).await;
    stream.state.messages
}

#[tokio::test]
async fn p19_a_hand_edited_row_that_no_lane_can_take_is_buried_and_others_go_on() {
    let (broker, ledger) = shared().await;
    let bad = ledger.enqueue("bad", Priority::Normal, 1).await[0];
    ledger
        .sql("UPDATE outbox SET queue = 'a.b > c' WHERE queue = 'bad'")
        .await;
    let relay = Running::start(&broker, &ledger, Options::default()).await;
    ledger.until_outbox_is_empty().await;
    ledger.enqueue("good", Priority::Normal, 3).await;
    relay.until_published(3).await;
    ledger.until_outbox_is_empty().await;

    let row = ledger
        .store
        .execution(bad)
        .await
        .unwrap()
        .unwrap()
        .execution;
    assert_eq!(
        (row.state, row.reason),
        (State::Failed, Some(Reason::Undeliverable))
    );
    let letters = letters(&ledger).await;
    assert_eq!(letters.len(), 1, "{letters:?}");
    assert_eq!(letters[0].reason, DeadReason::Undeliverable);
    assert_eq!(letters[0].execution_id, Some(bad));
    assert!(letters[0].detail.contains("a.b > c"), "{letters:?}");
    let stats = relay.handle.stats();
    assert_eq!((stats.unsendable, stats.published), (1, 3));
}

#[tokio::test]
async fn messages_of_an_unknown_queue_are_shown_and_become_dead_letters_when_old() {
    let (broker, ledger) = shared().await;
    ledger.store.ensure_queue("known").await.unwrap();
    submit(&broker, "known", "job", &[]).await;
    submit(&broker, "nobody", "job", &[(header::KEY, "k1")]).await;
    submit(&broker, "nobody", "job", &[]).await;
    let no_queue = "x".repeat(65);
    submit(&broker, &no_queue, "job", &[(header::KEY, "~1.2")]).await;

    let known = ledger.store.queues().await.unwrap();
    let strays = stray_queues(&broker.js, &broker.subjects, &known).await;
    let strays: Vec<_> = strays.unwrap().into_iter().collect();
    assert_eq!(strays, [("nobody".to_owned(), 2), (no_queue.clone(), 1)]);

    // Young ones are left for a fleet that is still to come.
    let often = Options {
        strays_every: Duration::from_millis(50),
        ..Options::default()
    };
    let patient = Running::start(&broker, &ledger, often.clone()).await;
    ledger.enqueue("known", Priority::Normal, 1).await;
    patient.until_published(1).await;
    assert_eq!(
        (submitted(&broker).await, letters(&ledger).await.len()),
        (4, 0)
    );
    patient.stop();
    patient.end().await.unwrap();

    let strict = Options {
        strays_after: Duration::ZERO,
        ..often
    };
    let relay = Running::start(&broker, &ledger, strict).await;
    eventually("dead letters", SOON, async || submitted(&broker).await == 1)
        .await
        .unwrap();
    let mut letters = letters(&ledger).await;
    letters.sort_by(|one, other| one.key.cmp(&other.key));
    let keys: Vec<_> = letters.iter().map(|letter| letter.key.as_str()).collect();
    assert_eq!((keys.len(), keys[0]), (3, "k1"), "{keys:?}");
    assert!(keys[1..].iter().all(|key| key.starts_with('~')), "{keys:?}");
    assert!(
        letters
            .iter()
            .all(|letter| letter.reason == DeadReason::UnknownQueue)
    );
    assert!(
        letters
            .iter()
            .any(|letter| letter.detail.contains("can be no queue"))
    );
    assert_eq!(relay.handle.stats().strays_buried, 3);
}

#[tokio::test]
async fn what_the_submit_stream_cannot_hold_is_refused_by_the_publish_and_disturbs_nothing() {
    let (broker, ledger) = shared().await;
    let relay = Running::start(&broker, &ledger, Options::default()).await;
    let subject = broker.subjects.submit("known", "job");
    let large = vec![b'x'; 900 * 1024];
    let publish = broker.js.publish(subject, large.into()).await.unwrap();
    let refused = publish.await.unwrap_err();
    assert!(format!("{refused:?}").contains("maximum"), "{refused:?}");
    assert_eq!(submitted(&broker).await, 0);
    ledger.enqueue("known", Priority::Normal, 1).await;
    relay.until_published(1).await;
}

#[tokio::test]
async fn a_subject_with_wildcards_in_it_costs_no_other_message() {
    let (broker, ledger) = shared().await;
    ledger.store.ensure_queue("known").await.unwrap();
    for n in 0..3 {
        let key = format!("k{n}");
        submit(&broker, "known", "job", &[(header::KEY, &key)]).await;
    }
    // The server takes them as they are.
    for queue in ["*", ">", "k*"] {
        let subject = broker.subjects.submit(queue, "job");
        broker.client.publish(subject, "{}".into()).await.unwrap();
    }
    broker.client.flush().await.unwrap();
    eventually("six messages", SOON, async || submitted(&broker).await == 6)
        .await
        .unwrap();
    let strict = Options {
        strays_every: Duration::from_millis(50),
        strays_after: Duration::ZERO,
        ..Options::default()
    };
    let relay = Running::start(&broker, &ledger, strict).await;
    eventually("dead letters", SOON, async || {
        relay.handle.stats().strays_buried == 3
    })
    .await
    .unwrap();
    let letters = letters(&ledger).await;
    let mut queues: Vec<_> = letters.iter().map(|letter| letter.queue.as_str()).collect();
    queues.sort_unstable();
    assert_eq!(queues, ["*", ">", "k*"]);
    eventually("the known queue's messages alone", SOON, async || {
        submitted(&broker).await == 3
    })
    .await
    .unwrap();
}
