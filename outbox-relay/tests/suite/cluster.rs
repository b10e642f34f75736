//! Three nats-servers: a leader that is killed or steps down, no quorum, and what only a cluster
//! takes without a word.

use std::sync::{Arc, Mutex};

use bellwether_outbox_relay::{Mode, Options, StreamLimits, declare, migrate};
use bellwether_sandbox::{NatsCluster, eventually};
use bellwether_schemas::state::Priority;
use futures_util::{FutureExt as _, StreamExt as _};
use tracing::subscriber::DefaultGuard;
use uuid::Uuid;

use crate::support::{Broker, Ledger, Running, SOON, each, has_all, migrated_with};

/// Elections of a cluster on one busy machine take their time.
const ELECTIONS: std::time::Duration = std::time::Duration::from_mins(2);

fn three_copies() -> StreamLimits {
    StreamLimits {
        replicas: 3,
        ..StreamLimits::default()
    }
}

async fn start() -> (NatsCluster, Broker, Ledger) {
    let cluster = NatsCluster::start(3).await.unwrap();
    let (broker, ledger) = migrated_with(&cluster.url(), &three_copies()).await;
    (cluster, broker, ledger)
}

async fn relay(broker: &Broker, ledger: &Ledger) -> Running {
    let options = Options {
        streams: three_copies(),
        batch: 50,
        window: 200,
        ..Options::default()
    };
    Running::start(broker, ledger, options).await
}

async fn leader(broker: &Broker) -> String {
    let info = broker.work().await;
    info.cluster.unwrap().leader.unwrap()
}

async fn until_drained(ledger: &Ledger, relay: &Running) {
    let drained = eventually("an empty outbox", ELECTIONS, async || {
        ledger.outbox().await == 0
    })
    .await;
    let (stats, ready) = (relay.handle.stats(), relay.handle.ready());
    assert!(drained.is_ok(), "{drained:?}: {ready:?}, {stats:?}");
}

/// Dispatches that the relay has given up.
fn given_up(relay: &Running) -> u64 {
    let stats = relay.handle.stats();
    stats.unsendable + stats.unclaimed
}

/// Every execution has a message. Some may have two: those are refused claims.
async fn assert_nothing_lost(broker: &Broker, executions: &[Uuid], relay: &Running) {
    eventually("all dispatches", ELECTIONS, async || {
        let found = broker.numbers().await;
        executions
            .iter()
            .all(|id| found.binary_search_by_key(id, |one| one.0).is_ok())
    })
    .await
    .unwrap();
    assert_eq!(given_up(relay), 0, "nothing was given up");
}

#[tokio::test(flavor = "multi_thread")]
async fn p32_the_leader_killed_under_a_relay_at_speed_costs_no_dispatch() {
    let (mut cluster, broker, ledger) = start().await;
    let mut executions = ledger.enqueue("q", Priority::Normal, 4_000).await;
    let led = leader(&broker).await;
    let relay = relay(&broker, &ledger).await;
    relay.until_published(500).await;
    cluster.named(&led).unwrap().kill().unwrap();
    assert!(ledger.outbox().await > 0, "it was in the middle of it");
    executions.extend(ledger.enqueue("q", Priority::High, 200).await);
    until_drained(&ledger, &relay).await;
    // The others are two: a quorum.
    assert_nothing_lost(&broker, &executions, &relay).await;

    cluster.restart_all().await.unwrap();
    executions.extend(ledger.enqueue("q", Priority::Low, 200).await);
    until_drained(&ledger, &relay).await;
    assert_nothing_lost(&broker, &executions, &relay).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p32_without_a_quorum_the_outbox_keeps_everything() {
    let (mut cluster, broker, ledger) = start().await;
    let mut executions = ledger.enqueue("q", Priority::Normal, 300).await;
    let relay = relay(&broker, &ledger).await;
    until_drained(&ledger, &relay).await;
    for member in &mut cluster.members()[..2] {
        member.kill().unwrap();
    }
    let published = relay.handle.stats().published;
    let without = ledger.enqueue("q", Priority::Normal, 300).await;
    let errors = relay.handle.stats().errors;
    eventually(
        "unanswered publishes, or streams that cannot be looked at",
        ELECTIONS,
        async || relay.handle.stats().errors > errors || relay.handle.ready().is_err(),
    )
    .await
    .unwrap();
    assert_eq!(ledger.outbox().await, 300, "one of three confirms nothing");
    assert_eq!(relay.handle.stats().published, published);
    executions.extend(&without);
    cluster.restart_all().await.unwrap();
    until_drained(&ledger, &relay).await;
    assert_nothing_lost(&broker, &executions, &relay).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_steps_down_costs_nothing() {
    let (_cluster, broker, ledger) = start().await;
    let executions = ledger.enqueue("q", Priority::Normal, 3_000).await;
    let relay = relay(&broker, &ledger).await;
    for published in [300, 1_000, 1_700] {
        relay.until_published(published).await;
        let subject = format!("STREAM.LEADER.STEPDOWN.{}", broker.subjects.work_stream());
        let _answer: serde_json::Value = broker.js.request(subject, &()).await.unwrap();
    }
    until_drained(&ledger, &relay).await;
    let wanted = each(&executions, 1);
    eventually("all dispatches", SOON, async || {
        has_all(&broker.numbers().await, &wanted)
    })
    .await
    .unwrap();
    assert_eq!(relay.handle.stats().work_losses, 0);
}

/// nats-server #4653: a single server refuses an update that makes two consumers of a work queue
/// overlap, a cluster takes it, and both get the message.
#[tokio::test(flavor = "multi_thread")]
async fn filters_that_overlap_are_never_asked_for_and_put_right_where_somebody_made_them() {
    let (_cluster, broker, ledger) = start().await;
    for queue in ["a", "b"] {
        ledger.store.ensure_queue(queue).await.unwrap();
    }
    let id = ledger.store.ledger().await.unwrap().id;
    let declare_these = async |queues: &[&str], mode| {
        let queues: Vec<_> = queues.iter().map(ToString::to_string).collect();
        let (js, subjects) = (&broker.js, &broker.subjects);
        declare(js, id, subjects, &queues, mode, &three_copies()).await
    };
    declare_these(&["a", "b"], Mode::Create).await.unwrap();

    // Names that would reach into other queues' lanes: the server is asked for nothing.
    let mut asked = broker.client.subscribe("$JS.API.>").await.unwrap();
    broker.client.flush().await.unwrap();
    for bad in ["*", ">", "a.b", "a b", ""] {
        for mode in [Mode::Create, Mode::Apply] {
            let refused = declare_these(&["a", bad], mode).await.unwrap_err();
            let declare::Error::Queue { name } = &refused else {
                panic!("not refused as a queue's name: {refused}");
            };
            assert!(refused.is_config() && name == bad);
        }
    }
    broker.client.flush().await.unwrap();
    assert!(asked.next().now_or_never().is_none(), "nothing was asked");
    drop(asked);

    // What this guards against, as long as clusters take it.
    let work = broker.subjects.work_stream();
    let stream = broker.js.get_stream(&work).await.unwrap();
    let mut config = stream.consumer_info("a-high").await.unwrap().config;
    config.filter_subject = broker.subjects.work("b", Priority::High);
    stream.update_consumer(config).await.unwrap();
    let refused = declare_these(&["a", "b"], Mode::Create).await.unwrap_err();
    let shown = refused.to_string();
    assert!(refused.is_config() && shown.contains("a-high"), "{shown}");
    assert!(shown.contains("filter_subject is"), "{shown}");
    declare_these(&["a", "b"], Mode::Apply).await.unwrap();
    let found = stream.consumer_info("a-high").await.unwrap().config;
    let ours = broker.subjects.work("a", Priority::High);
    assert_eq!(found.filter_subject, ours);
}

/// nats-server #8350, #5451, #5609: each consumer of a cluster is a raft group, and servers that
/// have too many of them fall over.
#[tokio::test]
async fn migrate_and_relay_warn_of_more_consumers_than_a_cluster_should_carry() {
    let cluster = NatsCluster::start(3).await.unwrap();
    let limits = StreamLimits {
        replicated_consumers_max: 7,
        ..three_copies()
    };
    let (broker, ledger) = migrated_with(&cluster.url(), &limits).await;
    let (lines, _collecting) = lines();
    let options = Options {
        streams: limits.clone(),
        ..Options::default()
    };
    let relay = Running::start(&broker, &ledger, options).await;
    let until_there = async |queue: &str| {
        ledger.store.ensure_queue(queue).await.unwrap();
        let (work, name) = (broker.subjects.work_stream(), format!("{queue}-low"));
        eventually("the consumers of a queue", ELECTIONS, async || {
            broker.consumer(&work, &name).await.is_some() && relay.handle.ready().is_ok()
        })
        .await
        .unwrap();
    };
    let warnings = || {
        let said = lines.lock().unwrap().clone();
        let said = String::from_utf8(said).unwrap();
        said.matches("replicated consumers, more than 7").count()
    };
    until_there("one").await;
    assert_eq!(warnings(), 0, "four of seven");
    until_there("two").await;
    assert_eq!(warnings(), 1, "eight of seven, said once");
    migrate(&*ledger.store, &broker.js, &broker.subjects, &limits)
        .await
        .unwrap();
    assert_eq!(warnings(), 2, "and by migrate");
}

type Lines = Arc<Mutex<Vec<u8>>>;

/// What this thread logs from now on, until the guard is dropped.
fn lines() -> (Lines, DefaultGuard) {
    struct To(Lines);
    impl std::io::Write for To {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let lines = Lines::default();
    let to = Arc::clone(&lines);
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || To(Arc::clone(&to)))
        .finish();
    (lines, tracing::subscriber::set_default(subscriber))
}
