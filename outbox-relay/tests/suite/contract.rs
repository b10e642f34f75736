//! What nats-server does and the design leans on. Each fact is checked against the real one.

use std::time::Duration;

use crate::support::Broker;
use async_nats::HeaderMap;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{CreateStreamErrorKind, PublishError};
use async_nats::jetstream::stream::Config;
use bellwether_outbox_relay::declare::SUBMIT_DUPLICATE_WINDOW;
use bellwether_outbox_relay::{Mode, StreamLimits, declare};
use bellwether_schemas::ids;
use bellwether_schemas::limits::{DISPATCH_MAX, PAYLOAD_MAX};
use bellwether_schemas::state::Priority;
use futures_util::StreamExt;
use serde_json::json;

async fn declared() -> Broker {
    let broker = Broker::shared().await;
    let queues = ["q".to_owned()];
    let limits = StreamLimits::default();
    declare(
        &broker.js,
        ids::fresh(),
        &broker.subjects,
        &queues,
        Mode::Create,
        &limits,
    )
    .await
    .unwrap();
    broker
}

fn server_code(error: &PublishError) -> Option<ErrorCode> {
    let source = std::error::Error::source(error)?;
    source
        .downcast_ref::<async_nats::jetstream::Error>()
        .map(async_nats::jetstream::Error::error_code)
}

#[tokio::test]
async fn the_smallest_duplicate_window_is_100_ms() {
    let broker = Broker::shared().await;
    let config = |window: Duration| Config {
        name: format!("{}_WINDOW", broker.subjects.namespace()),
        subjects: vec![format!("{}.window", broker.subjects.namespace())],
        duplicate_window: window,
        ..Config::default()
    };
    let below = SUBMIT_DUPLICATE_WINDOW
        .checked_sub(Duration::from_millis(1))
        .unwrap();
    let refused = broker.js.create_stream(config(below)).await.unwrap_err();
    let CreateStreamErrorKind::JetStream(error) = refused.kind() else {
        panic!("not refused by the server: {refused}");
    };
    assert_eq!(error.error_code(), ErrorCode::STREAM_INVALID_CONFIG);
    assert_eq!(error.error_code().0, 10_052);
    broker
        .js
        .create_stream(config(SUBMIT_DUPLICATE_WINDOW))
        .await
        .unwrap();
}

#[tokio::test]
async fn the_ack_subject_carries_stream_sequence_and_store_time() {
    let broker = declared().await;
    let subject = broker.subjects.submit("q", "job");
    let ack = broker
        .js
        .publish(subject, "{}".into())
        .await
        .unwrap()
        .await
        .unwrap();
    let stream = broker.subjects.submit_stream();
    let consumer = broker.consumer(&stream, "q").await.unwrap();
    let mut messages = consumer.fetch().max_messages(1).messages().await.unwrap();
    let message = messages.next().await.unwrap().unwrap();
    let reply = message.reply.as_ref().unwrap().to_string();
    // $JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time ns>.<pending>
    let tokens: Vec<_> = reply.split('.').collect();
    assert_eq!(tokens.len(), 9, "{reply}");
    assert_eq!(tokens[..5], ["$JS", "ACK", &stream, "q", "1"]);
    assert_eq!(tokens[5], ack.sequence.to_string());
    let stored = broker.js.get_stream(&stream).await.unwrap();
    let raw = stored.get_raw_message(ack.sequence).await.unwrap();
    assert_eq!(tokens[7], raw.time.unix_timestamp_nanos().to_string());
}

#[tokio::test]
async fn msg_get_returns_the_first_message_of_a_subject_from_a_sequence_on() {
    let broker = declared().await;
    let ns = broker.subjects.namespace();
    let (high, low) = (
        format!("{ns}.v1.work.q.high"),
        format!("{ns}.v1.work.q.low"),
    );
    for subject in [&high, &low, &high, &low] {
        let sent = broker
            .js
            .publish(subject.clone(), "x".into())
            .await
            .unwrap();
        sent.await.unwrap();
    }
    let get = async |sequence: u64, subject: &str| -> Option<u64> {
        let api = format!("STREAM.MSG.GET.{}", broker.subjects.work_stream());
        let request = json!({ "seq": sequence, "next_by_subj": subject });
        let answer: serde_json::Value = broker.js.request(api, &request).await.unwrap();
        answer["message"]["seq"].as_u64()
    };
    assert_eq!(get(1, &high).await, Some(1));
    assert_eq!(get(2, &high).await, Some(3));
    assert_eq!(get(1, &low).await, Some(2));
    assert_eq!(get(4, &high).await, None);
}

/// The limit of a stream covers headers and body together: SUBMIT has room for both.
#[tokio::test]
async fn the_server_counts_headers_into_the_size_of_a_message() {
    let broker = declared().await;
    let subject = broker.subjects.submit("q", "job");
    let publish = async |body: usize, header: usize| {
        let mut headers = HeaderMap::new();
        headers.insert("Bw-Key", "k".repeat(header));
        let body = vec![b' '; body].into();
        let sent = broker
            .js
            .publish_with_headers(subject.clone(), headers, body)
            .await;
        sent.unwrap().await
    };
    assert!(publish(PAYLOAD_MAX, 15 * 1024).await.is_ok());
    let refused = publish(PAYLOAD_MAX, 17 * 1024).await.unwrap_err();
    assert_eq!(
        server_code(&refused),
        Some(ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM)
    );

    let work = broker.subjects.work_all().replace("*.*", "q.high");
    let sent = broker
        .js
        .publish(work, vec![0; DISPATCH_MAX + 1].into())
        .await
        .unwrap();
    let refused = sent.await.unwrap_err();
    assert_eq!(
        server_code(&refused),
        Some(ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM)
    );
}

#[tokio::test]
async fn a_message_for_another_stream_is_refused() {
    let broker = declared().await;
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Expected-Stream", "OTHER");
    let subject = broker.subjects.submit("q", "job");
    let sent = broker
        .js
        .publish_with_headers(subject, headers, "x".into())
        .await
        .unwrap();
    let refused = sent.await.unwrap_err();
    assert_eq!(server_code(&refused), Some(ErrorCode::STREAM_NOT_MATCH));
}

#[tokio::test]
async fn a_full_subject_refuses_while_others_go_on() {
    let broker = Broker::shared().await;
    let limits = StreamLimits {
        subject_messages_max: 2,
        ..StreamLimits::default()
    };
    declare(
        &broker.js,
        ids::fresh(),
        &broker.subjects,
        &[],
        Mode::Create,
        &limits,
    )
    .await
    .unwrap();
    let ns = broker.subjects.namespace();
    let publish = async |lane: &str| {
        let subject = format!("{ns}.v1.work.q.{lane}");
        broker.js.publish(subject, "x".into()).await.unwrap().await
    };
    assert!(publish("high").await.is_ok() && publish("high").await.is_ok());
    let refused = publish("high").await.unwrap_err();
    assert_eq!(server_code(&refused), Some(ErrorCode::STREAM_STORE_FAILED));
    assert!(publish("low").await.is_ok(), "another lane goes on");
}

/// A canary: the day it fails, async-nats tells a lost ack from a confirmed one, and the ban on
/// `double_ack` in workers may be thought over.
#[tokio::test]
async fn double_ack_still_says_ok_when_nobody_takes_the_ack() {
    let broker = declared().await;
    let subject = broker.subjects.work("q", Priority::Normal);
    let sent = broker.js.publish(subject, "x".into()).await.unwrap();
    sent.await.unwrap();
    let work = broker.subjects.work_stream();
    let consumer = broker.consumer(&work, "q-normal").await.unwrap();
    let mut messages = consumer.fetch().max_messages(1).messages().await.unwrap();
    let message = messages.next().await.unwrap().unwrap();
    broker
        .js
        .delete_consumer_from_stream("q-normal", &work)
        .await
        .unwrap();
    assert!(message.double_ack().await.is_ok(), "nobody has acked it");
    let subject = message.reply.clone().unwrap();
    let asked = broker.client.request(subject, "+ACK".into()).await;
    asked.unwrap_err();
    assert_eq!(broker.work().await.state.messages, 1);
}

/// A canary: the day it fails, a batch with a heartbeat hears of a message that comes after one,
/// and workers need no pull loop of their own for that.
#[tokio::test]
async fn a_batch_with_a_heartbeat_still_loses_the_wake_up() {
    let broker = declared().await;
    let work = broker.subjects.work_stream();
    let consumer = broker.consumer(&work, "q-normal").await.unwrap();
    let batch = consumer
        .batch()
        .max_messages(1)
        .expires(Duration::from_secs(15))
        .heartbeat(Duration::from_millis(500));
    let mut messages = batch.messages().await.unwrap();
    let (js, subject) = (
        broker.js.clone(),
        broker.subjects.work("q", Priority::Normal),
    );
    let publish = tokio::spawn(async move {
        // After a heartbeat: that is the condition, not a wait for something.
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        let sent = js.publish(subject, "x".into()).await.unwrap();
        sent.await.unwrap();
    });
    let heard = messages.next().await;
    assert!(
        !matches!(heard, Some(Ok(_))),
        "the message came although a heartbeat came before it"
    );
    publish.await.unwrap();
    let info = consumer.clone().info().await.unwrap().clone();
    assert_eq!(info.num_ack_pending, 1, "the server has delivered it");
}
