//! What a worker may hold at most, whatever comes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bellwether_client::{NewExecution, Payload};
use bellwether_schemas::state::{Reason, State};
use bellwether_worker::{CancellationToken, Context, Intake, Job};
use futures_util::future::join_all;
use sqlx::{Connection, PgConnection};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::cluster::{Cluster, SOON, run};

on_both_stores!(
    nothing_is_accepted_ahead_where_none_is_wanted,
    r37_what_is_accepted_and_what_runs_stay_within_their_limits,
    r38_the_limits_hold_on_a_runtime_of_the_application,
    r39_what_finds_no_slot_in_time_is_given_back_and_says_so,
    r48_overload_exhaustion_and_timeout_end_differently,
);

/// Waits until `probe` answers true; it may note what it saw.
async fn eventually(
    what: &'static str,
    within: Duration,
    mut probe: impl AsyncFnMut() -> bool,
) -> Result<(), &'static str> {
    let deadline = Instant::now() + within;
    loop {
        let last = Instant::now() >= deadline;
        if probe().await {
            return Ok(());
        }
        if last {
            return Err(what);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

const CONCURRENT: usize = 4;
const PREFETCH: usize = 6;

/// How many run now, and at most ever did.
#[derive(Debug, Clone, Default)]
struct Gauge(Arc<(AtomicUsize, AtomicUsize)>);

impl Gauge {
    fn enter(&self) {
        let now = self.0.0.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.1.fetch_max(now, Ordering::SeqCst);
    }

    fn leave(&self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }

    fn most(&self) -> usize {
        self.0.1.load(Ordering::SeqCst)
    }
}

fn counted(gauge: &Gauge) -> Job {
    let gauge = gauge.clone();
    Job::new("counted", move || {
        let gauge = gauge.clone();
        async move {
            gauge.enter();
            tokio::time::sleep(Duration::from_millis(2)).await;
            gauge.leave();
            Ok::<_, String>(())
        }
    })
}

/// Publishes so many messages as any client may.
async fn flood(cluster: &Cluster, job: &str, messages: usize) {
    let js = async_nats::jetstream::new(cluster.nats.clone());
    let subject = cluster.subjects.submit("default", job);
    let numbers: Vec<usize> = (0..messages).collect();
    for chunk in numbers.chunks(1_000) {
        let acks = chunk.iter().map(async |number| {
            let mut headers = async_nats::HeaderMap::new();
            headers.insert(bellwether_schemas::header::KEY, number.to_string());
            let ack = js.publish_with_headers(subject.clone(), headers, "null".into());
            ack.await.unwrap().await.unwrap();
        });
        join_all(acks).await;
    }
}

/// Runs a flood on `runtime`; the most that ever ran, and was ever accepted.
async fn most_of_a_flood(
    cluster: &Cluster,
    runtime: tokio::runtime::Handle,
    intake: Intake,
) -> (usize, usize) {
    const MESSAGES: usize = 1_000;
    let gauge = Gauge::default();
    let builder = cluster
        .worker()
        .register(counted(&gauge))
        .max_concurrent(CONCURRENT)
        .prefetch(PREFETCH)
        .intake(intake);
    let worker = builder.build().unwrap();
    let (handle, stop) = (worker.handle(), CancellationToken::new());
    flood(cluster, "counted", MESSAGES).await;
    let running = runtime.spawn(worker.run_until(stop.clone()));
    let mut accepted = 0;
    eventually("the flood is over", SOON * 2, async || {
        // Everything between two looks counts in the gauge; this is a look.
        for _ in 0..20 {
            let stats = handle.stats();
            accepted = accepted.max(stats.running + stats.waiting + stats.asked);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        handle.stats().committed.get("complete") == Some(&(MESSAGES as u64))
    })
    .await
    .unwrap();
    stop.cancel();
    running.await.unwrap().unwrap();
    cluster.audit().await;
    (gauge.most(), accepted)
}

async fn r37_what_is_accepted_and_what_runs_stay_within_their_limits(cluster: Cluster) {
    let here = tokio::runtime::Handle::current();
    let (running, accepted) = most_of_a_flood(&cluster, here, Intake::default()).await;
    assert!(running <= CONCURRENT, "{running}");
    assert!(accepted <= CONCURRENT + PREFETCH, "{accepted}");
    assert!(running == CONCURRENT && accepted > CONCURRENT, "no flood");
}

async fn nothing_is_accepted_ahead_where_none_is_wanted(cluster: Cluster) {
    let here = tokio::runtime::Handle::current();
    let none = Intake {
        ahead_max: Duration::ZERO,
        ..Intake::default()
    };
    let (running, accepted) = most_of_a_flood(&cluster, here, none).await;
    assert_eq!((running, accepted), (CONCURRENT, CONCURRENT));
}

async fn r38_the_limits_hold_on_a_runtime_of_the_application(cluster: Cluster) {
    let (told, telling) = std::sync::mpsc::channel();
    let (end, ending) = tokio::sync::oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(32)
            .enable_all()
            .build()
            .unwrap();
        told.send(runtime.handle().clone()).unwrap();
        runtime.block_on(ending).unwrap();
        runtime.shutdown_background();
    });
    let runtime = telling.recv().unwrap();
    let (running, accepted) = most_of_a_flood(&cluster, runtime.clone(), Intake::default()).await;
    assert!(running <= CONCURRENT, "{running}");
    assert!(accepted <= CONCURRENT + PREFETCH, "{accepted}");
    // It is the application's: it still runs.
    assert_eq!(runtime.spawn(async { 7 }).await.unwrap(), 7);
    end.send(()).unwrap();
    thread.join().unwrap();
}

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<usize>().unwrap() * 1024
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r36_a_burst_of_100_000_messages_becomes_no_tasks_and_no_memory() {
    const MESSAGES: usize = 100_000;
    const RUN: u64 = 1_500;
    let cluster = Cluster::on_sqlite().await;
    let gauge = Gauge::default();
    let worker = run(cluster
        .worker()
        .register(counted(&gauge))
        .register(Job::new("warm", async || Ok::<_, String>(())))
        .max_concurrent(CONCURRENT)
        .prefetch(PREFETCH));
    cluster.enqueue("warm", 200).await;
    cluster.until_count(State::Succeeded, 200).await;
    let metrics = tokio::runtime::Handle::current().metrics();
    let before = (metrics.num_alive_tasks(), resident());

    // The publisher is in this process, too: what it holds is a chunk of 1,000 messages.
    flood(&cluster, "counted", MESSAGES).await;
    let mut most = (0, 0);
    eventually("a part of it has run", SOON * 2, async || {
        most.0 = most.0.max(metrics.num_alive_tasks());
        most.1 = most.1.max(resident());
        worker.stats().committed.get("complete") >= Some(&(200 + RUN))
    })
    .await
    .unwrap();
    // A task for each attempt and one for its handler, and what the parts do now and then.
    assert!(
        most.0 <= before.0 + 2 * (CONCURRENT + PREFETCH) + 32,
        "{most:?}"
    );
    assert!(most.1 <= before.1 + 64 * 1024 * 1024, "{before:?} {most:?}");
    assert!(gauge.most() <= CONCURRENT);
    worker.stop().await;
}

/// Quick until it is told otherwise: then it holds its slot.
fn moody(go: &watch::Receiver<bool>) -> Job {
    let go = go.clone();
    Job::new("moody", move |ctx: Context, slow: bool| {
        let mut go = go.clone();
        async move {
            if slow && ctx.generation() == 1 {
                let _ = go.wait_for(|go| *go).await;
            }
            Ok::<_, String>(())
        }
    })
}

/// What makes one slot busy while more is claimed ahead for it, by a worker that starts when all
/// of it lies in the stream: so no pause of whoever sends it makes the worker careful in between.
async fn overload(cluster: &Cluster, new: impl Fn(bool) -> NewExecution) {
    // By the quick ones, which come first, the worker thinks that what it claims ahead starts at
    // once. One call each: those of one call have no order.
    for (count, slow) in [(30, false), (5, true)] {
        let these: Vec<_> = (0..count).map(|_| new(slow)).collect();
        cluster.client.enqueue_all(&these).await.unwrap();
    }
    cluster.until_all_are_published().await;
}

async fn r39_what_finds_no_slot_in_time_is_given_back_and_says_so(cluster: Cluster) {
    let (go, wait) = watch::channel(false);
    overload(&cluster, |slow| {
        NewExecution::new("moody", Payload::json(slow.to_string()))
    })
    .await;
    let worker = run(cluster
        .worker()
        .register(moody(&wait))
        .max_concurrent(1)
        .prefetch(8));
    worker
        .until("one is given back", |stats| stats.overloaded > 0)
        .await;
    let refused = async || {
        let filter = bellwether_store::inspect::ExecutionFilter {
            limit: 100,
            ..Default::default()
        };
        let all = cluster.ledger.executions(&filter).await.unwrap();
        all.into_iter()
            .find(|view| view.last_refusal.as_deref() == Some("executor_overloaded"))
    };
    let mut found = None;
    eventually("the row says so", SOON, async || {
        found = refused().await;
        found.is_some()
    })
    .await
    .unwrap();
    let row = found.unwrap();
    assert_eq!(
        (row.state, row.reason, row.attempt),
        (State::Retrying, Some(Reason::Release), 0)
    );
    worker
        .until("each is told", |stats| {
            stats.committed.get("overloaded") == Some(&stats.overloaded)
        })
        .await;
    assert_eq!(worker.stats().running, 1);
    go.send(true).unwrap();
    cluster.until_count(State::Succeeded, 35).await;
    worker.stop().await;
    cluster.audit().await;
}

async fn r48_overload_exhaustion_and_timeout_end_differently(cluster: Cluster) {
    let (go, wait) = watch::channel(false);
    let failing = Job::new("failing", async || Err::<(), _>("no disk"));
    let endless = Job::new("endless", async |ctx: Context| {
        ctx.cancelled().await;
        Err::<(), _>("told to stop")
    });
    let others = run(cluster
        .worker()
        .register(failing.queue("others"))
        .register(endless.queue("others"))
        .max_concurrent(2));
    overload(&cluster, |slow| {
        let mut new = NewExecution::new("moody", Payload::json(slow.to_string()));
        new.policy.start_deadline = Duration::from_secs(8);
        new
    })
    .await;
    let overloaded = run(cluster
        .worker()
        .register(moody(&wait))
        .max_concurrent(1)
        .prefetch(8));
    let enqueue = async |job: &str, attempts, timeout| {
        let mut new = NewExecution::new(job, Payload::json("null"));
        "others".clone_into(&mut new.queue);
        new.policy.max_attempts = attempts;
        new.policy.timeout = timeout;
        cluster.client.enqueue(&new).await.unwrap().execution_id()
    };
    let failing = enqueue("failing", 2, Duration::from_mins(1)).await;
    let endless = enqueue("endless", 1, Duration::from_secs(1)).await;

    let exhausted = cluster.until_state(failing, State::Failed).await;
    assert_eq!(exhausted.reason, Some(Reason::Error));
    assert!(exhausted.attempts_exhausted);
    assert_eq!(exhausted.attempt, 2);
    let timed_out = cluster.until_state(endless, State::Failed).await;
    assert_eq!(timed_out.reason, Some(Reason::Timeout));

    let expired = async || {
        let filter = bellwether_store::inspect::ExecutionFilter {
            state: Some(State::Expired),
            limit: 100,
            ..Default::default()
        };
        cluster.ledger.executions(&filter).await.unwrap()
    };
    let mut found = Vec::new();
    eventually("what found no slot has expired", SOON, async || {
        found = expired().await;
        found
            .iter()
            .any(|view| view.last_refusal.as_deref() == Some("executor_overloaded"))
    })
    .await
    .unwrap();
    assert!(found.iter().all(|view| view.reason.is_none()), "{found:#?}");
    assert!(found.iter().all(|view| !view.attempts_exhausted));
    go.send(true).unwrap();
    overloaded.stop().await;
    others.stop().await;
    cluster.audit().await;
}

/// The worker's own connections end with it; the client that it was given lives on.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r41_what_was_supplied_stays_open_and_what_is_its_own_is_closed() {
    let Some(cluster) = Cluster::on_postgres().await else {
        return;
    };
    let mut database = cluster.database.clone();
    database.application_name = format!("r41-{}", std::process::id());
    let mut look = PgConnection::connect(&database.url).await.unwrap();
    let name = database.application_name.clone();
    let mut connections = async || -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM pg_stat_activity WHERE application_name = $1")
            .bind(&name)
            .fetch_one(&mut look)
            .await
            .unwrap()
    };
    let client = cluster.nats.clone();
    let worker = run(cluster
        .worker()
        .nats(client.clone())
        .database(database)
        .register(Job::new("quick", async || Ok::<_, String>(()))));
    cluster.enqueue("quick", 5).await;
    cluster.until_count(State::Succeeded, 5).await;
    assert!(connections().await >= 2, "its pool and its session's own");
    worker.stop().await;
    eventually("its connections are closed", SOON, async || {
        connections().await == 0
    })
    .await
    .unwrap();
    assert_eq!(
        client.connection_state(),
        async_nats::connection::State::Connected
    );
    let mut heard = client.subscribe("r41").await.unwrap();
    client.publish("r41", "still here".into()).await.unwrap();
    let message = futures_util::StreamExt::next(&mut heard).await.unwrap();
    assert_eq!(&message.payload[..], b"still here");
}
