//! Streams and consumers are declared through one function, strictly compared.

use std::time::Duration;

use crate::support::Broker;
use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy};
use bellwether_outbox_relay::declare::LEDGER_KEY;
use bellwether_outbox_relay::{Declared, Mode, StreamLimits, declare};
use bellwether_schemas::ids;
use futures_util::future::join_all;
use uuid::Uuid;

async fn run(
    broker: &Broker,
    ledger: Uuid,
    queues: &[&str],
    mode: Mode,
) -> Result<Declared, declare::Error> {
    let queues: Vec<_> = queues.iter().map(ToString::to_string).collect();
    let limits = StreamLimits::default();
    declare(&broker.js, ledger, &broker.subjects, &queues, mode, &limits).await
}

#[tokio::test]
async fn streams_and_consumers_have_the_settings_of_the_design() {
    let (broker, ledger) = (Broker::shared().await, ids::fresh());
    let declared = run(&broker, ledger, &["q"], Mode::Create).await.unwrap();
    let (work_name, submit_name) = (
        broker.subjects.work_stream(),
        broker.subjects.submit_stream(),
    );
    assert_eq!(
        (&declared.work.name, &declared.submit.name),
        (&work_name, &submit_name)
    );

    let work = broker.work().await.config;
    let submit = broker.stream(&submit_name).await.config;
    for config in [&work, &submit] {
        assert_eq!(config.retention, RetentionPolicy::WorkQueue);
        assert_eq!(config.discard, DiscardPolicy::New);
        assert!(config.discard_new_per_subject && config.allow_direct);
        assert_eq!(config.max_messages_per_subject, 1_000_000);
        assert_eq!((config.max_bytes, config.num_replicas), (1 << 30, 1));
        assert_eq!(config.metadata[LEDGER_KEY], ledger.to_string());
        assert!(!config.allow_rollup && !config.allow_message_ttl);
        assert!(!config.allow_message_schedules && !config.allow_message_counter);
    }
    assert_eq!(work.subjects, [broker.subjects.work_all()]);
    assert_eq!(work.duplicate_window, Duration::from_mins(2));
    assert_eq!(work.max_message_size, 16 * 1024);
    assert_eq!(submit.subjects, [broker.subjects.submit_all()]);
    assert_eq!(submit.duplicate_window, Duration::from_millis(100));
    assert_eq!(submit.max_message_size, (256 + 16) * 1024);

    let ns = broker.subjects.namespace();
    for (stream, name, filter) in [
        (&work_name, "q-high", format!("{ns}.v1.work.q.high")),
        (&work_name, "q-normal", format!("{ns}.v1.work.q.normal")),
        (&work_name, "q-low", format!("{ns}.v1.work.q.low")),
        (&submit_name, "q", format!("{ns}.v1.submit.q.*")),
    ] {
        let consumer = broker.consumer(stream, name).await.unwrap();
        let config = &consumer.cached_info().config;
        assert_eq!(config.filter_subject, filter);
        assert_eq!(config.ack_wait, Duration::from_secs(10));
        assert_eq!(config.max_deliver, -1);
        assert_eq!(
            (config.max_ack_pending, config.max_waiting),
            (20_000, 20_000)
        );
        assert_eq!(
            (config.max_batch, config.max_expires),
            (256, Duration::from_mins(1))
        );
    }
}

#[tokio::test]
async fn a_repeat_changes_nothing_and_many_may_do_it_at_once() {
    let (broker, ledger) = (Broker::shared().await, ids::fresh());
    let together = (0..8).map(|_| run(&broker, ledger, &["a", "b"], Mode::Create));
    let first: Vec<_> = join_all(together)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert!(first.iter().all(|one| *one == first[0]), "{first:?}");
    for mode in [Mode::Create, Mode::Apply] {
        assert_eq!(
            run(&broker, ledger, &["a", "b"], mode).await.unwrap(),
            first[0]
        );
    }
    assert_eq!(broker.work().await.state.consumer_count, 6);
}

#[tokio::test]
async fn a_difference_is_refused_with_a_diff_and_applied_by_migrate() {
    let (broker, ledger) = (Broker::shared().await, ids::fresh());
    run(&broker, ledger, &["q"], Mode::Create).await.unwrap();
    let name = broker.subjects.work_stream();
    let changed = Config {
        max_bytes: 1 << 20,
        allow_rollup: true,
        ..broker.work().await.config
    };
    broker.js.update_stream(changed).await.unwrap();

    let refused = run(&broker, ledger, &["q"], Mode::Create)
        .await
        .unwrap_err();
    assert!(refused.is_config());
    assert_eq!(
        refused.to_string(),
        format!(
            "stream {name} differs: allow_rollup_hdrs is true, declared is unset; \
             max_bytes is 1048576, declared is 1073741824; run `bellwether migrate`, or give this \
             process the same `nats_…` settings as the last `migrate`"
        )
    );
    assert_eq!(
        broker.work().await.config.max_bytes,
        1 << 20,
        "a refusal changes nothing"
    );

    run(&broker, ledger, &["q"], Mode::Apply).await.unwrap();
    run(&broker, ledger, &["q"], Mode::Create).await.unwrap();
    assert!(!broker.work().await.config.allow_rollup);
}

#[tokio::test]
async fn a_consumer_that_differs_is_refused_and_what_cannot_change_says_what_to_do() {
    let (broker, ledger) = (Broker::shared().await, ids::fresh());
    run(&broker, ledger, &[], Mode::Create).await.unwrap();
    let (stream, filter) = (broker.subjects.work_stream(), broker.subjects.work_all());
    let filter = filter.replace("*.*", "q.high");
    let stray = pull::Config {
        durable_name: Some("q-high".to_owned()),
        filter_subject: filter,
        max_waiting: 512,
        ..pull::Config::default()
    };
    broker
        .js
        .create_consumer_on_stream(stray, &stream)
        .await
        .unwrap();

    let refused = run(&broker, ledger, &["q"], Mode::Create)
        .await
        .unwrap_err()
        .to_string();
    for part in [
        &format!("consumer q-high on {stream} differs: "),
        "ack_wait is 30s, declared is 10s",
        "max_waiting is 512, declared is 20000",
        "run `bellwether migrate`",
    ] {
        assert!(refused.contains(part), "{part} is not in: {refused}");
    }
    let refused = run(&broker, ledger, &["q"], Mode::Apply).await.unwrap_err();
    let remedy = format!("nats consumer rm {stream} q-high");
    assert!(refused.to_string().contains(&remedy), "{refused}");

    broker
        .js
        .delete_consumer_from_stream("q-high", &stream)
        .await
        .unwrap();
    run(&broker, ledger, &["q"], Mode::Apply).await.unwrap();
}

/// What an installation chooses is declared, compared like everything else, and can be changed.
#[tokio::test]
async fn another_ack_wait_is_declared_compared_and_changed() {
    let (broker, ledger) = (Broker::shared().await, ids::fresh());
    let (queues, submit) = (["q".to_owned()], broker.subjects.submit_stream());
    let chosen = async |ack_wait, mode| {
        let limits = StreamLimits {
            ack_wait: Duration::from_secs(ack_wait),
            ..StreamLimits::default()
        };
        declare(&broker.js, ledger, &broker.subjects, &queues, mode, &limits).await
    };
    let found = async || {
        let consumer = broker.consumer(&submit, "q").await.unwrap();
        consumer.cached_info().config.ack_wait.as_secs()
    };
    chosen(15, Mode::Create).await.unwrap();
    assert_eq!(found().await, 15);
    let refused = chosen(10, Mode::Create).await.unwrap_err().to_string();
    assert!(
        refused.contains("ack_wait is 15s, declared is 10s"),
        "{refused}"
    );
    chosen(10, Mode::Apply).await.unwrap();
    assert_eq!(found().await, 10);
}

#[tokio::test]
async fn a_stream_of_another_ledger_is_refused_in_every_mode() {
    let (broker, ours, theirs) = (Broker::shared().await, ids::fresh(), ids::fresh());
    run(&broker, theirs, &["q"], Mode::Create).await.unwrap();
    for mode in [Mode::Create, Mode::Apply] {
        let refused = run(&broker, ours, &["q"], mode).await.unwrap_err();
        let declare::Error::OtherLedger { found, ledger, .. } = &refused else {
            panic!("not refused as another ledger's: {refused}");
        };
        assert_eq!((found, *ledger), (&theirs.to_string(), ours));
    }
    assert_eq!(
        broker.work().await.config.metadata[LEDGER_KEY],
        theirs.to_string()
    );
}

#[tokio::test]
async fn an_identity_moves_with_the_stream() {
    let (broker, ledger) = (Broker::shared().await, ids::fresh());
    let first = run(&broker, ledger, &[], Mode::Create).await.unwrap();
    assert_eq!(first.work.last_seq, 0);
    let subject = broker.subjects.work_all().replace("*.*", "q.low");
    broker
        .js
        .publish(subject, "x".into())
        .await
        .unwrap()
        .await
        .unwrap();
    let later = run(&broker, ledger, &[], Mode::Create).await.unwrap();
    assert_eq!(
        (later.work.created, later.work.last_seq),
        (first.work.created, 1)
    );
    broker.js.delete_stream(&first.work.name).await.unwrap();
    let again = run(&broker, ledger, &[], Mode::Create).await.unwrap();
    assert!(again.work.created > first.work.created);
    assert_eq!((again.work.last_seq, &again.submit), (0, &first.submit));
}
