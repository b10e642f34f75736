//! What others have reported of JetStream, where it takes the real roles to see that it costs
//! nothing here. The table of all of them is in `docs/faults.md`.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use async_nats::jetstream::{self, consumer, stream};
use bellwether_client::{NewExecution, Submission};
use bellwether_sandbox::{NatsOptions, NatsServer, Signal};
use bellwether_schemas::state::{Reason, State};
use chrono::TimeDelta;
use stream::{DiscardPolicy, RetentionPolicy};

use crate::support::{Cluster, Role, SOON, until};

const EIGHT: (&str, &str) = ("PATIENT_MAX_CONCURRENT", "8");

/// The user `mute` may not ack.
fn with_a_mute_user() -> NatsOptions {
    let more_config = "authorization { users: [\n\
        { user: all, password: all }\n\
        { user: mute, password: mute, permissions: { publish: { deny: \"$JS.ACK.>\" } } }\n\
        ] }\n\
        no_auth_user: all\n";
    NatsOptions {
        more_config: more_config.to_owned(),
        ..NatsOptions::default()
    }
}

async fn work(cluster: &Cluster) -> stream::Stream {
    let context = jetstream::new(cluster.nats.clone());
    let name = cluster.subjects.work_stream();
    context.get_stream(name).await.unwrap()
}

/// The consumer of the default queue's lane `normal`.
async fn lane(cluster: &Cluster) -> consumer::Info {
    let work = work(cluster).await;
    work.consumer_info("default-normal").await.unwrap()
}

async fn until_no_message_is_left(cluster: &Cluster) {
    let context = jetstream::new(cluster.nats.clone());
    for name in [
        cluster.subjects.work_stream(),
        cluster.subjects.submit_stream(),
    ] {
        until("an empty stream", async || {
            let stream = context.get_stream(&name).await;
            stream.is_ok_and(|stream| stream.cached_info().state.messages == 0)
        })
        .await;
    }
}

/// numaflow #3429, devtron #4713: the ack deadline passes while the handler runs, on a worker with
/// free slots, and the second copy runs, too; or it is dropped without an ack, again and again.
#[tokio::test(flavor = "multi_thread")]
async fn p17_a_message_that_comes_again_while_its_handler_runs_and_afterwards_runs_once() {
    let Some(cluster) = Cluster::with_nats_of(&with_a_mute_user()).await else {
        return;
    };
    let journal = cluster.journal();
    let _relay = cluster.relay();
    let port = cluster.own_nats.as_ref().unwrap().port();
    let mute = format!("nats://mute:mute@127.0.0.1:{port}");
    let mute = [EIGHT, ("BELLWETHER_NATS_URL", mute.as_str())];
    let mut worker = cluster.worker("mute", &mute).await;
    until("the consumer", async || {
        let work = work(&cluster).await;
        work.consumer_info("default-normal").await.is_ok()
    })
    .await;
    let mut config = lane(&cluster).await.config;
    config.ack_wait = Duration::from_millis(200);
    let changed = work(&cluster).await.update_consumer(config).await;
    changed.unwrap();

    let [id] = cluster.enqueue(1, &journal.work(&[4_000])).await[..] else {
        unreachable!()
    };
    until("its start", async || journal.starts() == 1).await;
    until("five more deliveries", async || {
        lane(&cluster).await.delivered.consumer_sequence > 5
    })
    .await;
    let running = cluster.execution(id).await;
    assert_eq!((running.state, running.generation), (State::Running, 1));
    cluster.until_all_succeeded(1).await;
    let then = lane(&cluster).await.delivered.consumer_sequence;
    until("five more after its end", async || {
        lane(&cluster).await.delivered.consumer_sequence > then + 5
    })
    .await;
    assert!(worker.is_running());
    // Whoever may ack it, does so, at its first sight.
    worker.end(Signal::TERM).await;
    let _other = cluster.worker("other", &[]).await;
    until_no_message_is_left(&cluster).await;

    let e = cluster.execution(id).await;
    assert_eq!((e.generation, e.attempt, e.dispatch_no), (1, 1, 1));
    assert_eq!(journal.starts(), 1);
    cluster.audit_clean(&[5, 6, 8]).await;
}

/// What somebody has changed on the broker, and how the relay shows it.
struct Drift {
    shown: &'static [&'static str],
    change: fn(&mut stream::Config),
}

const DRIFTS: &[Drift] = &[
    Drift {
        shown: &["discard is \"old\", declared is \"new\""],
        change: |config| {
            config.discard = DiscardPolicy::Old;
            config.discard_new_per_subject = false;
        },
    },
    Drift {
        shown: &["max_age is 3600s, declared is unset"],
        change: |config| config.max_age = Duration::from_hours(1),
    },
    Drift {
        shown: &["max_msgs is 5, declared is -1", "max_bytes is 1048576"],
        change: |config| (config.max_messages, config.max_bytes) = (5, 1 << 20),
    },
];

/// ragflow #19099: a work queue that was left on `discard: old` drops what has not run yet. So does
/// one with an age, and one with a limit that is not ours.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_would_drop_work_is_refused_with_the_difference_until_migrate_puts_it_right()
{
    const EXECUTIONS: usize = 10;
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let journal = cluster.journal();
    cluster.enqueue(EXECUTIONS, &journal.work(&[0])).await;
    let context = jetstream::new(cluster.nats.clone());
    for Drift { shown, change } in DRIFTS {
        for name in [
            cluster.subjects.work_stream(),
            cluster.subjects.submit_stream(),
        ] {
            let stream = context.get_stream(&name).await.unwrap();
            let mut config = stream.cached_info().config.clone();
            change(&mut config);
            context.update_stream(config).await.unwrap();
            assert_refuses(&cluster, &format!("stream {name} differs"), shown).await;
            cluster.bellwether(&["migrate"]).await.expect(0);
        }
    }
    assert_eq!(work(&cluster).await.cached_info().state.last_sequence, 0);

    let _relay = cluster.relay();
    let _worker = cluster.worker("worker", &[]).await;
    cluster.until_all_succeeded(EXECUTIONS).await;
    journal.assert_each_ended_once(EXECUTIONS);

    // A difference that comes while a relay runs, seen at its next look.
    let mut relay = cluster.role("relay", &["--check-every", "1s"]);
    let mut config = lane(&cluster).await.config;
    config.max_deliver = 3;
    let changed = work(&cluster).await.update_consumer(config).await;
    changed.unwrap();
    assert_eq!(relay.ended(SOON).await, Some(2), "{}", relay.log());
    assert!(relay.log().contains("max_deliver is 3, declared is -1"));
    cluster.bellwether(&["migrate"]).await.expect(0);
}

/// What the server lets nobody change says what to do instead.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_no_work_queue_is_refused_by_the_relay_and_by_migrate() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let journal = cluster.journal();
    cluster.enqueue(1, &journal.work(&[0])).await;
    let context = jetstream::new(cluster.nats.clone());
    let mut config = work(&cluster).await.cached_info().config.clone();
    context.delete_stream(&config.name).await.unwrap();
    config.retention = RetentionPolicy::Limits;
    context.create_stream(config.clone()).await.unwrap();
    let shown = "retention is \"limits\", declared is \"workqueue\"";
    assert_refuses(&cluster, "differs", &[shown]).await;
    let refused = cluster.bellwether(&["migrate"]).await.expect(2);
    assert!(refused.stderr.contains(shown), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("let its messages be worked off"),
        "{}",
        refused.stderr
    );

    context.delete_stream(&config.name).await.unwrap();
    cluster.bellwether(&["migrate"]).await.expect(0);
    let _relay = cluster.relay();
    let _worker = cluster.worker("worker", &[]).await;
    cluster.until_all_succeeded(1).await;
}

async fn assert_refuses(cluster: &Cluster, what: &str, differences: &[&str]) {
    let mut relay = cluster.relay();
    assert_eq!(relay.ended(SOON).await, Some(2), "{}", relay.log());
    for part in [&[what, "run `bellwether migrate`"], differences].concat() {
        assert!(relay.log().contains(part), "no {part}:\n{}", relay.log());
    }
}

/// Copies the store of a server that is stopped.
fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(status.unwrap().success());
}

/// Removes the folders of all consumers; how many there were.
fn without_consumers(store: &Path) -> usize {
    let mut removed = 0;
    let mut folders = vec![store.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && path.file_name().unwrap() == "obs" {
                removed += std::fs::read_dir(&path).unwrap().count();
                std::fs::remove_dir_all(path).unwrap();
            } else if path.is_dir() {
                folders.push(path);
            }
        }
    }
    removed
}

/// nats-server #7829: a backup that was restored has no consumers. What it holds was done long ago,
/// and what came after it is not in it.
#[tokio::test(flavor = "multi_thread")]
async fn p12_an_old_backup_without_consumers_runs_nothing_twice_and_loses_nothing() {
    const DISPATCHED: usize = 40;
    const SUBMITTED: usize = 10;
    const LATER: usize = 30;
    let Some(mut cluster) = Cluster::with_own_nats().await else {
        return;
    };
    let journal = cluster.journal();
    let mut relay = cluster.relay();
    cluster.enqueue(DISPATCHED, &journal.work(&[10])).await;
    for _ in 0..SUBMITTED {
        let one = Submission::new("patient", journal.work(&[10]).payload());
        cluster.client.submit(&one).await.unwrap();
    }
    let outbox = async |cluster: &Cluster| cluster.store.outbox_backlog().await.unwrap().rows;
    until("all dispatched", async || outbox(&cluster).await == 0).await;
    let home = tempfile::tempdir().unwrap();
    let backup = home.path().join("backup");
    let nats = cluster.own_nats.as_mut().unwrap();
    nats.stop().await.unwrap();
    copy(nats.store_dir(), &backup);
    nats.restart().await.unwrap();

    let mut worker = cluster.worker("first", &[EIGHT]).await;
    cluster.until_all_succeeded(DISPATCHED + SUBMITTED).await;
    until_no_message_is_left(&cluster).await;
    worker.end(Signal::TERM).await;
    cluster.enqueue(LATER, &journal.work(&[10])).await;
    until("all dispatched", async || outbox(&cluster).await == 0).await;

    // Both streams with one consumer for each lane of the one queue.
    assert_eq!(without_consumers(&backup), 4);
    restore(cluster.own_nats.as_mut().unwrap(), &backup).await;
    let back = Instant::now();
    let _worker = cluster.worker("second", &[EIGHT]).await;
    let all = DISPATCHED + SUBMITTED + LATER;
    cluster.until_all_succeeded(all).await;
    until_no_message_is_left(&cluster).await;
    println!("all was done {:.2?} after the restore", back.elapsed());
    journal.assert_each_ended_once(all);
    assert_eq!(
        journal.starts(),
        all,
        "what the backup held ran once, before"
    );
    assert!(relay.is_running());
    cluster.audit_clean(&[5, 6, 7, 8]).await;
}

async fn restore(nats: &mut NatsServer, backup: &Path) {
    nats.stop().await.unwrap();
    nats.wipe_store().unwrap();
    copy(&backup.join("."), nats.store_dir());
    nats.restart().await.unwrap();
}

/// nestjs-jetstream #178, nats-server #8423: messages that were scheduled overwrite one another, or
/// are lost. Here each is a row.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_of_one_job_for_one_later_instant_are_a_thousand_runs() {
    const DELAYED: usize = 1_000;
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let journal = cluster.journal();
    let _roles = [
        cluster.ticker(&[]),
        cluster.relay(),
        cluster.worker("worker", &[EIGHT]).await,
    ];
    let at = cluster.store.ledger().await.unwrap().now + TimeDelta::seconds(4);
    let delayed = || NewExecution {
        run_at: Some(at),
        ..NewExecution::new("patient", journal.work(&[0]).payload())
    };
    let all: Vec<_> = (0..DELAYED).map(|_| delayed()).collect();
    let answers = cluster.client.enqueue_all(&all).await;
    let ids: Vec<_> = answers
        .unwrap()
        .into_iter()
        .map(bellwether_client::Enqueued::execution_id)
        .collect();
    cluster.until_all_succeeded(DELAYED).await;
    journal.assert_each_ended_once(DELAYED);
    for id in [ids[0], ids[DELAYED / 2], ids[DELAYED - 1]] {
        assert!(cluster.execution(id).await.claimed_at.unwrap() >= at);
    }
    cluster.audit_clean(&[4, 5, 6]).await;
}

/// nats-server #7817: of dead-lettered messages some vanished, on three servers. Here what failed
/// is a row with its payload, whichever server dies meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn p18_twenty_of_two_hundred_that_always_fail_are_twenty_rows_though_a_leader_dies() {
    const GOOD: usize = 180;
    const BAD: usize = 20;
    let Some(mut cluster) = Cluster::with_three_brokers().await else {
        return;
    };
    let journal = cluster.journal();
    let mut roles = [
        cluster.ticker(&[]),
        cluster.relay(),
        cluster.worker("worker", &[EIGHT]).await,
    ];
    let mut fails = journal.work(&[0]);
    fails.panics = u32::MAX;
    let bad = || {
        let mut bad = NewExecution::new("patient", fails.payload());
        bad.policy.max_attempts = 3;
        bad.policy.retry.first = Duration::from_millis(500);
        bad
    };
    let all: Vec<_> = (0..BAD).map(|_| bad()).collect();
    cluster.client.enqueue_all(&all).await.unwrap();
    cluster.enqueue(GOOD, &journal.work(&[50])).await;
    until("some work", async || journal.starts() >= BAD + 20).await;
    let info = work(&cluster).await.cached_info().clone();
    let leader = info.cluster.unwrap().leader.unwrap();
    let brokers = cluster.own_brokers.as_mut().unwrap();
    brokers.named(&leader).unwrap().kill().unwrap();
    cluster.until_all_ended().await;

    let counts = cluster.counts().await;
    assert_eq!(counts[&State::Succeeded], GOOD as u64, "{counts:?}");
    assert_eq!(counts[&State::Failed], BAD as u64, "{counts:?}");
    let sql = cluster.sql().await;
    let rows: Vec<(Option<String>, bool, bool, i32)> = sqlx::query_as(
        "SELECT reason, attempts_exhausted, length(payload) > 0, attempt FROM execution
         WHERE state = 'failed'",
    )
    .fetch_all(&sql)
    .await
    .unwrap();
    let panicked = Some(Reason::Panic.as_str().to_owned());
    assert_eq!(rows, vec![(panicked, true, true, 3); BAD]);
    assert!(roles.iter_mut().all(Role::is_running));
    cluster.audit_clean(&[5, 6, 8]).await;
}
