//! What the broker has forgotten is noticed, and what waits is dispatched again: once.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bellwether_outbox_relay::{Mode, Options, StreamLimits, declare};
use bellwether_sandbox::{NatsOptions, NatsServer, eventually};
use bellwether_schemas::state::Priority;

use crate::support::{NEVER, Running, SOON, each, has_all, migrated, shared};

/// Looks at the marks only where something gives it a reason to.
fn without_periodic_look() -> Options {
    Options {
        check_every: NEVER,
        ..Options::default()
    }
}

#[tokio::test]
async fn p69_p12_a_wiped_broker_gets_every_waiting_execution_under_a_new_number() {
    let mut server = NatsServer::start(&NatsOptions::default()).await.unwrap();
    let (broker, ledger) = migrated(&server.url()).await;
    let executions = ledger.enqueue("q", Priority::Normal, 700).await;
    let relay = Running::start(&broker, &ledger, without_periodic_look()).await;
    ledger.until_outbox_is_empty().await;

    server.kill().unwrap();
    server.wipe_store().unwrap();
    // In the outbox all the while. The ledger cannot tell that from sent, so a second number
    // may follow; the first is sent in any case.
    let later = ledger.enqueue("q", Priority::Normal, 10).await;
    server.restart().await.unwrap();
    let wanted = [each(&executions, 2), each(&later, 1)].concat();
    eventually("all dispatches in the new stream", SOON, async || {
        ledger.outbox().await == 0 && has_all(&broker.numbers().await, &wanted)
    })
    .await
    .unwrap();

    let numbers = broker.numbers().await;
    let once = executions
        .iter()
        .all(|id| numbers.iter().filter(|one| one.0 == *id).count() == 1);
    assert!(once, "each lost dispatch is repeated once");
    let stats = relay.handle.stats();
    assert_eq!((stats.work_losses, stats.submit_losses), (1, 1));
    assert!((700..=710).contains(&stats.redispatched), "{stats:?}");
    let work = broker.subjects.work_stream();
    eventually("its consumer", SOON, async || {
        broker.consumer(&work, "q-normal").await.is_some()
    })
    .await
    .unwrap();
    eventually("the end of the condition", SOON, async || {
        ledger.store.redispatch_lost(&work, 500).await.unwrap() == 0
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn p69_a_removed_stream_is_declared_again_and_its_messages_dispatched_again() {
    let (broker, ledger) = shared().await;
    let waiting = ledger.enqueue("q", Priority::Normal, 20).await;
    let relay = Running::start(&broker, &ledger, without_periodic_look()).await;
    ledger.until_outbox_is_empty().await;

    broker
        .js
        .delete_stream(broker.subjects.work_stream())
        .await
        .unwrap();
    // The next publish meets no stream: that is reason enough to look.
    let next = ledger.enqueue("q", Priority::Normal, 1).await;
    let wanted = [each(&waiting, 2), each(&next, 1)].concat();
    eventually("the waiting dispatches", SOON, async || {
        has_all(&broker.numbers().await, &wanted)
    })
    .await
    .unwrap();
    assert_eq!(relay.handle.stats().work_losses, 1);
    assert_eq!(relay.handle.stats().submit_losses, 0);
}

#[tokio::test]
async fn a_stream_replaced_behind_the_relay_is_noticed_at_the_next_puback() {
    let (broker, ledger) = shared().await;
    let waiting = ledger.enqueue("q", Priority::Normal, 5).await;
    let relay = Running::start(&broker, &ledger, without_periodic_look()).await;
    ledger.until_outbox_is_empty().await;

    let ledger_id = ledger.store.ledger().await.unwrap().id;
    let queues = ledger.store.queues().await.unwrap();
    broker
        .js
        .delete_stream(broker.subjects.work_stream())
        .await
        .unwrap();
    let limits = StreamLimits::default();
    declare(
        &broker.js,
        ledger_id,
        &broker.subjects,
        &queues,
        Mode::Create,
        &limits,
    )
    .await
    .unwrap();

    // Stored in the new stream under sequence 1, which was confirmed before.
    let next = ledger.enqueue("q", Priority::Normal, 1).await;
    eventually("the waiting dispatches", SOON, async || {
        has_all(&broker.numbers().await, &each(&waiting, 2))
    })
    .await
    .unwrap();
    assert_eq!(relay.handle.stats().work_losses, 1);
    let numbers = broker.numbers().await;
    assert!(numbers.iter().any(|(id, _)| *id == next[0]));
}

#[tokio::test]
async fn a_store_put_back_to_an_older_copy_is_a_loss() {
    let mut server = NatsServer::start(&NatsOptions::default()).await.unwrap();
    let (broker, ledger) = migrated(&server.url()).await;
    let relay = Running::start(&broker, &ledger, without_periodic_look()).await;
    let kept = ledger.enqueue("q", Priority::Normal, 5).await;
    ledger.until_outbox_is_empty().await;
    server.stop().await.unwrap();
    let copy = tempfile::tempdir().unwrap();
    copy_dir(server.store_dir(), &copy.path().join("store"));

    server.restart().await.unwrap();
    let lost = ledger.enqueue("q", Priority::Normal, 5).await;
    ledger.until_outbox_is_empty().await;
    server.stop().await.unwrap();
    server.wipe_store().unwrap();
    copy_dir(&copy.path().join("store/."), server.store_dir());
    server.restart().await.unwrap();

    eventually("the lost dispatches", SOON, async || {
        has_all(&broker.numbers().await, &each(&lost, 2))
    })
    .await
    .unwrap();
    assert_eq!(relay.handle.stats().work_losses, 1);
    let numbers = broker.numbers().await;
    assert!(
        each(&kept, 1).iter().all(|one| numbers.contains(one)),
        "{numbers:?}"
    );
}

#[tokio::test]
async fn a_lost_submit_stream_is_reported_and_dispatches_nothing_again() {
    let (broker, ledger) = shared().await;
    let executions = ledger.enqueue("q", Priority::Normal, 3).await;
    let options = Options {
        check_every: Duration::from_millis(200),
        ..Options::default()
    };
    let relay = Running::start(&broker, &ledger, options).await;
    ledger.until_outbox_is_empty().await;

    broker
        .js
        .delete_stream(broker.subjects.submit_stream())
        .await
        .unwrap();
    eventually("the report", SOON, async || {
        relay.handle.stats().submit_losses == 1
    })
    .await
    .unwrap();
    let submit = broker.subjects.submit_stream();
    eventually("its consumer", SOON, async || {
        broker.consumer(&submit, "q").await.is_some()
    })
    .await
    .unwrap();
    let work = broker.subjects.work_stream();
    assert_eq!(ledger.store.redispatch_lost(&work, 500).await.unwrap(), 0);
    assert_eq!(relay.handle.stats().work_losses, 0);
    assert_eq!(broker.numbers().await, each(&executions, 1));
}

#[tokio::test]
async fn a_redispatch_that_fails_keeps_nothing_else_from_the_broker() {
    let (broker, ledger) = shared().await;
    let lost = ledger.enqueue("q", Priority::Normal, 3).await;
    let options = || Options {
        check_every: Duration::from_millis(200),
        ..Options::default()
    };
    let first = Running::start(&broker, &ledger, options()).await;
    ledger.until_outbox_is_empty().await;
    ledger
        .sql(
            "CREATE TRIGGER no_redispatch BEFORE UPDATE OF dispatch_no ON execution \
             WHEN OLD.dispatch_no > 0 \
             BEGIN SELECT RAISE(ABORT, 'the test says no'); END",
        )
        .await;
    let work = broker.subjects.work_stream();
    broker.js.delete_stream(&work).await.unwrap();
    eventually("the loss", SOON, async || {
        first.handle.stats().work_losses == 1
    })
    .await
    .unwrap();
    drop(first);
    ledger.store.redispatch_lost(&work, 500).await.unwrap_err();

    let later = ledger.enqueue("q", Priority::Normal, 3).await;
    let second = Running::start(&broker, &ledger, options()).await;
    second.until_published(3).await;
    assert_eq!(broker.numbers().await, each(&later, 1));
    assert_eq!(second.handle.stats().redispatched, 0);

    ledger.sql("DROP TRIGGER no_redispatch").await;
    eventually("the lost dispatches", SOON, async || {
        has_all(&broker.numbers().await, &each(&lost, 2))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn two_relays_record_one_loss_once() {
    let mut server = NatsServer::start(&NatsOptions::default()).await.unwrap();
    let (broker, ledger) = migrated(&server.url()).await;
    let executions = ledger.enqueue("q", Priority::Normal, 100).await;
    let relays = [
        Running::start(&broker, &ledger, without_periodic_look()).await,
        Running::start(&broker, &ledger, without_periodic_look()).await,
    ];
    ledger.until_outbox_is_empty().await;
    server.kill().unwrap();
    server.wipe_store().unwrap();
    server.restart().await.unwrap();
    let wanted = each(&executions, 2);
    eventually("the waiting dispatches", SOON, async || {
        ledger.outbox().await == 0 && broker.numbers().await == wanted
    })
    .await
    .unwrap();
    let losses: u64 = relays
        .iter()
        .map(|relay| relay.handle.stats().work_losses)
        .sum();
    assert_eq!(losses, 1);
}

fn copy_dir(from: &Path, to: &Path) {
    let status = Command::new("cp")
        .arg("-a")
        .arg(from)
        .arg(to)
        .status()
        .unwrap();
    assert!(status.success());
}
