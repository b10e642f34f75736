//! From the outbox to the result.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::HeaderMap;
use bellwether_client::{NewSchedule, Timing, What};
use bellwether_sandbox::eventually;
use bellwether_schemas::header;
use bellwether_schemas::state::{Priority, State};
use bellwether_schemas::wire::{self, Dispatch, KIND_DISPATCH};
use bellwether_store::Payload;
use bellwether_store::executions::NewExecution;
use bellwether_worker::{Context, Error, Job};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::cluster::{Cluster, Running, SOON, Seen, run};

on_both_stores!(
    r65_500_one_shots_run_once_each_on_two_workers,
    r70_shards_spread_over_workers,
    r72_an_unsharded_job_sees_0_of_1,
    r84_witness_before_business_and_ack_after_the_claim,
    r42_a_late_worker_gets_what_waited,
    r85_the_four_times_are_told_apart,
    r108_an_idle_worker_takes_at_once_what_busy_ones_leave,
    r111_the_first_to_finish_takes_what_is_left,
    bursts_on_all_lanes_lose_no_wake_up,
    never_more_is_pulled_than_there_are_slots,
    one_slot_serves_all_lanes,
    a_dispatch_that_is_over_is_refused_and_acked,
    r09_an_unknown_kind_or_version_is_deferred_in_the_ledger_and_acked,
);

async fn r65_500_one_shots_run_once_each_on_two_workers(cluster: Cluster) {
    let seen = Seen::default();
    let workers: Vec<_> = (0..2)
        .map(|_| {
            let seen = seen.clone();
            let job = Job::new("count", move |ctx: Context| {
                let seen = seen.clone();
                async move {
                    seen.note(ctx.operation_id());
                    sleep(Duration::from_millis(5)).await;
                    Ok::<_, String>(())
                }
            });
            run(cluster.worker().register(job).max_concurrent(8))
        })
        .collect();
    for worker in &workers {
        worker.until("ready", |stats| stats.asked > 0).await;
    }
    let ids: BTreeSet<_> = cluster.enqueue("count", 500).await.into_iter().collect();
    cluster.until_count(State::Succeeded, 500).await;
    let ran = seen.all();
    assert_eq!(ran.len(), 500, "each once");
    assert_eq!(
        ran.into_iter().collect::<BTreeSet<_>>(),
        ids,
        "operation = first execution"
    );
    cluster.until_streams_are_empty().await;
    let stats: Vec<_> = {
        let mut stats = Vec::new();
        for worker in workers {
            stats.push(worker.stop().await);
        }
        stats
    };
    assert!(
        stats.iter().all(|stats| stats.claimed > 0),
        "both work: {stats:#?}"
    );
    assert_eq!(
        stats
            .iter()
            .map(|stats| stats.committed["complete"])
            .sum::<u64>(),
        500
    );
    cluster.audit().await;
}

async fn r70_shards_spread_over_workers(cluster: Cluster) {
    let seen = Seen::default();
    let workers: Vec<_> = (0..3)
        .map(|worker| {
            let seen = seen.clone();
            let job = Job::new("sharded", move |ctx: Context| {
                let seen = seen.clone();
                async move {
                    seen.note((worker, ctx.shard_index(), ctx.shard_total()));
                    // All four at once: more than any one has slots for.
                    while seen.all().len() < 4 {
                        sleep(Duration::from_millis(5)).await;
                    }
                    Ok::<_, String>(ctx.shard_index())
                }
            });
            run(cluster.worker().register(job).max_concurrent(2))
        })
        .collect();
    let mut schedule = NewSchedule::new("sharded", far_away());
    schedule.shard_total = 4;
    cluster.client.register(&schedule).await.unwrap();
    for worker in &workers {
        worker.until("ready", |stats| stats.asked > 0).await;
    }
    let fire = cluster.client.trigger("sharded").await.unwrap();
    let waited = cluster.client.wait(What::Fire(fire), SOON).await.unwrap();
    assert!(waited.succeeded());
    assert_eq!(waited.outputs::<u32>().unwrap(), [0, 1, 2, 3]);
    let ran = seen.all();
    assert_eq!(ran.len(), 4);
    assert!(ran.iter().all(|(_, _, total)| *total == 4));
    let on: BTreeSet<_> = ran.iter().map(|(worker, ..)| worker).collect();
    assert!(on.len() >= 2, "{ran:?}");
    for worker in workers {
        worker.stop().await;
    }
    cluster.audit().await;
}

/// An instant that no test reaches.
fn far_away() -> Timing {
    Timing::Cron {
        expr: "0 0 1 1 *".to_owned(),
        zone: "UTC".to_owned(),
    }
}

async fn r72_an_unsharded_job_sees_0_of_1(cluster: Cluster) {
    let job = Job::new("context", async |ctx: Context, region: String| {
        let facts = format!(
            "{} {} {}/{}",
            ctx.job(),
            region,
            ctx.shard_index(),
            ctx.shard_total()
        );
        Ok::<_, String>((
            facts,
            ctx.fire_id(),
            ctx.execution_id(),
            ctx.attempt(),
            ctx.generation(),
        ))
    });
    let worker = run(cluster.worker().register(job));
    let id = cluster.enqueue_once("context", "\"eu\"").await;
    cluster.until_state(id, State::Succeeded).await;
    let story = cluster.story(id).await;
    let output: (String, Uuid, Uuid, u32, i64) =
        serde_json::from_slice(&story.output.unwrap().bytes).unwrap();
    let fire_id = story.execution.fire_id;
    assert_eq!(output, ("context eu 0/1".to_owned(), fire_id, id, 1, 1));
    worker.stop().await;
}

async fn r84_witness_before_business_and_ack_after_the_claim(cluster: Cluster) {
    let (ledger, witness) = (cluster.ledger.clone(), Seen::default());
    let (go, wait) = tokio::sync::watch::channel(false);
    let job = {
        let witness = witness.clone();
        Job::new("witness", move |ctx: Context| {
            let witness = witness.clone();
            let ledger = ledger.clone();
            let mut wait = wait.clone();
            async move {
                witness.note(
                    ledger
                        .execution(ctx.execution_id())
                        .await
                        .unwrap()
                        .unwrap()
                        .execution,
                );
                let _ = wait.wait_for(|go| *go).await;
                Ok::<_, String>(())
            }
        })
    };
    let worker = run(cluster.worker().register(job));
    let id = cluster.enqueue("witness", 1).await[0];
    worker.until("it runs", |stats| stats.running == 1).await;
    // The message is gone although the handler has not returned: the ledger owns recovery.
    cluster.until_streams_are_empty().await;
    assert_eq!(cluster.execution(id).await.state, State::Running);
    go.send(true).unwrap();
    let done = cluster.until_state(id, State::Succeeded).await;
    let seen = witness.all().pop().unwrap();
    assert_eq!(
        seen.state,
        State::Running,
        "written before any user code runs"
    );
    assert!(seen.claimed_at.is_some() && seen.session_id.is_some());
    assert!(done.claimed_at <= done.started_at && done.started_at <= done.ended_at);
    worker.stop().await;
}

async fn r42_a_late_worker_gets_what_waited(cluster: Cluster) {
    let id = cluster.enqueue("late", 1).await[0];
    cluster.until_all_are_published().await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(cluster.execution(id).await.state, State::Pending);
    let worker = run(cluster
        .worker()
        .register(Job::new("late", async || Ok::<_, String>(()))));
    let done = cluster.until_state(id, State::Succeeded).await;
    assert_eq!(done.generation, 1);
    worker.stop().await;
}

async fn r85_the_four_times_are_told_apart(cluster: Cluster) {
    let id = cluster.enqueue("timed", 1).await[0];
    let due = cluster.execution(id).await.scheduled_at;
    cluster.until_passed(due + Duration::from_secs(1)).await;
    let (go, wait) = tokio::sync::watch::channel(false);
    let job = Job::new("timed", move || {
        let mut wait = wait.clone();
        async move {
            let _ = wait.wait_for(|go| *go).await;
            Ok::<_, String>(())
        }
    });
    let late = cluster.now().await;
    let worker = run(cluster.worker().register(job));
    worker.until("it runs", |stats| stats.running == 1).await;
    // A while, so that the time of a commit on its way is none beside it.
    let slow = cluster.now().await + Duration::from_secs(2);
    cluster.until_passed(slow).await;
    go.send(true).unwrap();
    let done = cluster.until_state(id, State::Succeeded).await;
    assert_eq!(done.scheduled_at, due);
    let (claimed, started) = (done.claimed_at.unwrap(), done.started_at.unwrap());
    assert!(late < claimed, "a late worker: {done:#?}");
    assert!(claimed <= started && started < slow, "at once: {done:#?}");
    assert!(slow <= done.ended_at.unwrap(), "a slow one: {done:#?}");
    worker.stop().await;
}

/// Workers with one slot each, by number; a job with a number other than 0 takes until so many are
/// let go.
fn single_slots(
    cluster: &Cluster,
    seen: &Seen<(usize, usize)>,
    go: &watch::Receiver<usize>,
    workers: usize,
) -> Vec<Running> {
    (0..workers)
        .map(|worker| {
            let (seen, go) = (seen.clone(), go.clone());
            let job = Job::new("work", move |until: usize| {
                let (seen, mut go) = (seen.clone(), go.clone());
                async move {
                    seen.note((worker, until));
                    let _ = go.wait_for(|go| *go >= until).await;
                    Ok::<_, String>(())
                }
            });
            run(cluster.worker().register(job).max_concurrent(1))
        })
        .collect()
}

async fn r108_an_idle_worker_takes_at_once_what_busy_ones_leave(cluster: Cluster) {
    let (go, wait) = watch::channel(0);
    let seen = Seen::default();
    let workers = single_slots(&cluster, &seen, &wait, 3);
    for worker in &workers {
        worker.until("ready", |stats| stats.asked > 0).await;
    }
    cluster.enqueue_once("work", "1").await;
    cluster.enqueue_once("work", "1").await;
    eventually("two are busy", SOON, async || seen.all().len() == 2)
        .await
        .unwrap();
    let id = cluster.enqueue_once("work", "0").await;
    cluster.until_state(id, State::Succeeded).await;
    // The broker would deliver again what a busy one held without claiming it.
    for worker in &workers {
        let stats = worker.stats();
        assert_eq!((stats.redelivered, stats.forgotten), (0, 0), "{stats:?}");
    }
    go.send(1).unwrap();
    let ran = seen.all();
    assert_eq!(
        ran.iter()
            .map(|(worker, _)| worker)
            .collect::<BTreeSet<_>>()
            .len(),
        3,
        "{ran:?}"
    );
    for worker in workers {
        worker.stop().await;
    }
}

async fn r111_the_first_to_finish_takes_what_is_left(cluster: Cluster) {
    let (go, wait) = watch::channel(0);
    let seen = Seen::default();
    let workers = single_slots(&cluster, &seen, &wait, 2);
    cluster.enqueue_once("work", "1").await;
    cluster.enqueue_once("work", "2").await;
    eventually("all are busy", SOON, async || seen.all().len() == 2)
        .await
        .unwrap();
    let mut left = Vec::new();
    for _ in 0..3 {
        left.push(cluster.enqueue_once("work", "0").await);
    }
    go.send(1).unwrap();
    cluster.until_count(State::Succeeded, 4).await;
    let ran = seen.all();
    let first = ran.iter().find(|(_, until)| *until == 1).unwrap().0;
    let took = |(worker, until): &(usize, usize)| *until != 0 || *worker == first;
    assert!(ran.iter().all(took), "the other one is busy yet: {ran:?}");
    go.send(2).unwrap();
    cluster.until_count(State::Succeeded, 5).await;
    for id in left {
        assert_eq!(
            cluster.execution(id).await.generation,
            1,
            "claimed once, when there was a slot"
        );
    }
    for worker in workers {
        assert_eq!(worker.stop().await.forgotten, 0);
    }
    cluster.audit().await;
}

/// Parked pulls are taken back and lanes change roles all the time; a message lost on the way
/// would come back only after the broker's 10 s.
async fn bursts_on_all_lanes_lose_no_wake_up(cluster: Cluster) {
    let job = Job::new("burst", async || {
        sleep(Duration::from_millis(fastrand::u64(0..20))).await;
        Ok::<_, String>(())
    });
    let worker = run(cluster.worker().register(job).max_concurrent(3));
    worker.until("ready", |stats| stats.asked > 0).await;
    let mut total = 0;
    for _ in 0..40 {
        let count = fastrand::usize(1..12);
        let new: Vec<_> = (0..count)
            .map(|_| {
                let mut one = NewExecution::new("burst", Payload::json("null"));
                one.priority = Priority::ALL[fastrand::usize(0..3)];
                one
            })
            .collect();
        total += count as u64;
        let begun = Instant::now();
        cluster.client.enqueue_all(&new).await.unwrap();
        cluster.until_count(State::Succeeded, total).await;
        assert!(
            begun.elapsed() < Duration::from_secs(8),
            "{:?}",
            begun.elapsed()
        );
    }
    let stats = worker.stop().await;
    assert_eq!((stats.received, stats.forgotten), (total, 0), "{stats:#?}");
    cluster.audit().await;
}

async fn never_more_is_pulled_than_there_are_slots(cluster: Cluster) {
    let (go, wait) = tokio::sync::watch::channel(false);
    let job = Job::new("slow", move || {
        let mut wait = wait.clone();
        async move {
            let _ = wait.wait_for(|go| *go).await;
            Ok::<_, String>(())
        }
    });
    let worker = run(cluster
        .worker()
        .register(job)
        .max_concurrent(3)
        .prefetch(100));
    cluster.enqueue("slow", 40).await;
    worker
        .until("all slots are used", |stats| stats.running == 3)
        .await;
    sleep(Duration::from_secs(1)).await;
    let stats = worker.stats();
    assert_eq!((stats.received, stats.claimed, stats.waiting), (3, 3, 0));
    go.send(true).unwrap();
    cluster.until_count(State::Succeeded, 40).await;
    let stats = worker.stop().await;
    assert_eq!(stats.forgotten, 0, "{stats:#?}");
    cluster.audit().await;
}

async fn one_slot_serves_all_lanes(cluster: Cluster) {
    let job = |name: &str, queue: &str| Job::new(name, async || Ok::<_, String>(())).queue(queue);
    let worker = run(cluster
        .worker()
        .register(job("a", "one"))
        .register(job("b", "two"))
        .max_concurrent(1));
    worker.until("ready", |stats| stats.asked > 0).await;
    let mut new = Vec::new();
    for queue in ["one", "two"] {
        for priority in Priority::ALL {
            let mut one = NewExecution::new(
                if queue == "one" { "a" } else { "b" },
                Payload::json("null"),
            );
            queue.clone_into(&mut one.queue);
            one.priority = *priority;
            new.push(one);
        }
    }
    for round in 1..=3 {
        for one in &mut new {
            one.fire_id = bellwether_schemas::ids::fresh();
        }
        cluster.client.enqueue_all(&new).await.unwrap();
        cluster.until_count(State::Succeeded, 6 * round).await;
    }
    let stats = worker.stop().await;
    assert_eq!((stats.claimed, stats.forgotten), (18, 0), "{stats:#?}");
}

async fn a_dispatch_that_is_over_is_refused_and_acked(cluster: Cluster) {
    let worker = run(cluster
        .worker()
        .register(Job::new("once", async || Ok::<_, String>(()))));
    let id = cluster.enqueue("once", 1).await[0];
    cluster.until_state(id, State::Succeeded).await;
    let ledger_id = cluster.ledger.ledger().await.unwrap().id;
    publish_dispatch(&cluster, &dispatch(ledger_id, id, "once"), ledger_id).await;
    worker
        .until("refused", |stats| stats.refused.get("terminal") == Some(&1))
        .await;
    let orphan = Uuid::from_u128(7);
    publish_dispatch(&cluster, &dispatch(ledger_id, orphan, "once"), ledger_id).await;
    worker
        .until("refused", |stats| {
            stats.refused.get("no_such_execution") == Some(&1)
        })
        .await;
    cluster.until_streams_are_empty().await;
    // Another ledger's message is never acked.
    publish_dispatch(&cluster, &dispatch(orphan, id, "once"), orphan).await;
    worker.until("foreign", |stats| stats.foreign >= 1).await;
    assert_eq!(cluster.messages().await.0, 1);
    assert_eq!(cluster.execution(id).await.generation, 1);
    worker.stop().await;
}

fn dispatch(ledger_id: Uuid, execution_id: Uuid, job: &str) -> Dispatch {
    Dispatch {
        v: bellwether_schemas::subject::WIRE_VERSION,
        kind: KIND_DISPATCH.to_owned(),
        ledger_id,
        job: job.to_owned(),
        fire_id: execution_id,
        execution_id,
        dispatch_no: 1,
        shard_index: 0,
        shard_total: 1,
        schedule_version: None,
        scheduled_at_ms: 0,
        start_deadline_ms: 0,
        timeout_ms: 1_000,
        trace: None,
    }
}

async fn publish_dispatch(cluster: &Cluster, dispatch: &Dispatch, ledger_id: Uuid) {
    let mut headers = HeaderMap::new();
    headers.insert(header::LEDGER_ID, ledger_id.to_string());
    headers.insert(header::EXECUTION_ID, dispatch.execution_id.to_string());
    headers.insert(header::DISPATCH_NO, dispatch.dispatch_no.to_string());
    let subject = cluster.subjects.work("default", Priority::Normal);
    let body = wire::encode(dispatch).unwrap();
    let js = async_nats::jetstream::new(cluster.nats.clone());
    js.publish_with_headers(subject, headers, body.into())
        .await
        .unwrap()
        .await
        .unwrap();
}

/// So is an unknown job: whoever knows it takes it later.
async fn r09_an_unknown_kind_or_version_is_deferred_in_the_ledger_and_acked(cluster: Cluster) {
    let other = run(cluster
        .worker()
        .register(Job::new("known", async || Ok::<_, String>(()))));
    let id = cluster.enqueue("unknown", 1).await[0];
    other
        .until("handed back", |stats| stats.deferred >= 1)
        .await;
    cluster.until_streams_are_empty().await;
    let waiting = cluster.execution(id).await;
    assert_eq!(
        (waiting.attempt, waiting.generation),
        (0, 0),
        "not charged: {waiting:#?}"
    );
    assert_eq!(waiting.last_refusal.as_deref(), Some("no_handler"));
    other.stop().await;
    let able = run(cluster
        .worker()
        .register(Job::new("unknown", async || Ok::<_, String>(()))));
    let done = cluster.until_state(id, State::Succeeded).await;
    assert_eq!(done.attempt, 1);
    able.stop().await;

    // A version and a kind of tomorrow are handed back as well, by their plain headers: in the
    // ledger, uncharged and due again later; the message is acked.
    let ledger_id = cluster.ledger.ledger().await.unwrap().id;
    let (served, mut elsewhere) = (
        Job::new("later", async || Ok::<_, String>(())),
        NewExecution::new("later", Payload::json("null")),
    );
    // Nobody serves its queue, so that only the messages made here can wake it.
    "elsewhere".clone_into(&mut elsewhere.queue);
    let new = cluster.client.enqueue(&elsewhere).await.unwrap();
    let id = new.execution_id();
    eventually("it is dispatched", SOON, async || {
        cluster.execution(id).await.dispatched_at.is_some()
    })
    .await
    .unwrap();
    let worker = run(cluster.worker().register(served));
    for tomorrow in ["version", "kind"] {
        let before = cluster.execution(id).await;
        let mut message = dispatch(ledger_id, id, "later");
        message.dispatch_no = before.dispatch_no;
        match tomorrow {
            "version" => message.v = 99,
            _ => "cancel".clone_into(&mut message.kind),
        }
        let deferred = worker.stats().deferred;
        publish_dispatch(&cluster, &message, ledger_id).await;
        worker
            .until("handed back", |stats| stats.deferred == deferred + 1)
            .await;
        let after = cluster.execution(id).await;
        assert_eq!((after.state, after.attempt), (State::Pending, 0));
        assert_eq!(after.last_refusal.as_deref(), Some("no_handler"));
        assert!(after.available_at > before.available_at, "due again later");
        // The sweep dispatches it again then, under the next number.
        eventually("it is dispatched again", SOON, async || {
            cluster.execution(id).await.dispatch_no > before.dispatch_no
        })
        .await
        .unwrap();
    }
    assert_eq!(worker.stats().claimed, 0);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_another_ledger_are_refused() {
    let cluster = Cluster::on_sqlite().await;
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("other.db");
    let other = bellwether_store::Options::new(format!("sqlite:{}", file.display()));
    bellwether_store::migrate(&other).await.unwrap();
    let worker = run(cluster
        .worker()
        .database(other)
        .register(Job::new("a", async || Ok::<_, String>(()))));
    let error = worker.ended().await.unwrap_err();
    assert!(matches!(error, Error::OtherLedger { .. }), "{error}");
    assert!(
        error.to_string().contains("namespace of its own"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unmigrated_ledger_is_refused_with_the_remedy() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("empty.db");
    let worker = run(bellwether_worker::Worker::builder()
        .database(bellwether_store::Options::new(format!(
            "sqlite:{}",
            file.display()
        )))
        .nats("nats://127.0.0.1:1")
        .register(Job::new("a", async || Ok::<_, String>(()))));
    let error = worker.ended().await.unwrap_err().to_string();
    assert!(error.contains("bellwether migrate"), "{error}");
}

/// On one thread nothing that was started runs before the feeder has looked at all that is ready.
#[tokio::test]
async fn quick_handlers_with_a_prefetch_never_exceed_max_concurrent() {
    let cluster = Cluster::on_sqlite().await;
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let job = {
        let (now, most) = (Arc::clone(&now), Arc::clone(&most));
        Job::new("count", move || {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                sleep(Duration::from_millis(3)).await;
                now.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, String>(())
            }
        })
    };
    let worker = run(cluster.worker().register(job).max_concurrent(1).prefetch(8));
    cluster.enqueue("count", 200).await;
    cluster.until_count(State::Succeeded, 200).await;
    assert_eq!(most.load(Ordering::SeqCst), 1);
    worker.stop().await;
    cluster.audit().await;
}
