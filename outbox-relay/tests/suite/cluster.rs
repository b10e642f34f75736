//! Three nats-servers: a leader that is killed or steps down, and no quorum.

use bellwether_outbox_relay::{Options, StreamLimits};
use bellwether_sandbox::{NatsCluster, eventually};
use bellwether_schemas::state::Priority;
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

async fn until_drained(ledger: &Ledger) {
    eventually("an empty outbox", ELECTIONS, async || {
        ledger.outbox().await == 0
    })
    .await
    .unwrap();
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
    let relay = relay(&broker, &ledger).await;
    relay.until_published(500).await;
    let killed = leader(&broker).await;
    cluster.named(&killed).unwrap().kill().unwrap();
    assert!(ledger.outbox().await > 0, "it was in the middle of it");
    executions.extend(ledger.enqueue("q", Priority::High, 200).await);
    until_drained(&ledger).await;
    // The others are two: a quorum.
    assert_nothing_lost(&broker, &executions, &relay).await;

    cluster.restart_all().await.unwrap();
    executions.extend(ledger.enqueue("q", Priority::Low, 200).await);
    until_drained(&ledger).await;
    assert_nothing_lost(&broker, &executions, &relay).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p32_without_a_quorum_the_outbox_keeps_everything() {
    let (mut cluster, broker, ledger) = start().await;
    let mut executions = ledger.enqueue("q", Priority::Normal, 300).await;
    let relay = relay(&broker, &ledger).await;
    until_drained(&ledger).await;
    for member in &mut cluster.members()[..2] {
        member.kill().unwrap();
    }
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
    executions.extend(&without);
    cluster.restart_all().await.unwrap();
    until_drained(&ledger).await;
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
    until_drained(&ledger).await;
    let wanted = each(&executions, 1);
    eventually("all dispatches", SOON, async || {
        has_all(&broker.numbers().await, &wanted)
    })
    .await
    .unwrap();
    assert_eq!(relay.handle.stats().work_losses, 0);
}
