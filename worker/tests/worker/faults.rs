//! Servers that go away: each test has its own.

use std::time::Duration;

use bellwether_sandbox::{NatsOptions, NatsServer, Postgres, PostgresOptions, eventually, shared};
use bellwether_schemas::state::State;
use bellwether_store as store;
use bellwether_worker::{BoxError, Context, Job, Lease};
use tokio::time::sleep;

use crate::cluster::{Cluster, SOON, Seen, run};
use crate::commit_in::{Books, End};

fn counting(seen: &Seen<uuid::Uuid>) -> Job {
    let seen = seen.clone();
    Job::new("count", move |ctx: Context| {
        let seen = seen.clone();
        async move {
            seen.note(ctx.execution_id());
            sleep(Duration::from_millis(20)).await;
            Ok::<_, String>(())
        }
    })
}

/// P31: alive, and consuming again after the broker is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn p31_the_worker_goes_on_after_a_broker_restart() {
    let mut server = NatsServer::start(&NatsOptions::default()).await.unwrap();
    let home = tempfile::tempdir().unwrap();
    let database = store::Options::new(format!("sqlite:{}", home.path().join("l.db").display()));
    let cluster = Cluster::start(database, server.url(), Some(home)).await;
    let seen = Seen::default();
    let worker = run(cluster.worker().register(counting(&seen)).max_concurrent(4));
    cluster.enqueue("count", 100).await;
    worker.until("some ran", |stats| stats.claimed >= 20).await;
    server.kill().unwrap();
    sleep(Duration::from_secs(2)).await;
    cluster.enqueue("count", 20).await;
    server.restart().await.unwrap();
    cluster.until_count(State::Succeeded, 120).await;
    assert_eq!(seen.all().len(), 120, "each once");
    worker.stop().await;
    cluster.audit().await;
}

/// Without any answer for long a worker's handlers stop, for others may have their work; when
/// the ledger is back the work goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn handlers_are_cancelled_when_the_ledger_is_silent_for_long() {
    if shared::postgres_is_skipped() {
        return;
    }
    let mut server = Postgres::start(&PostgresOptions::default()).await.unwrap();
    let database = store::Options::new(server.url());
    let cluster = Cluster::start(database, shared::nats_url().await.unwrap(), None).await;
    let cancelled = Seen::default();
    let job = {
        let cancelled = cancelled.clone();
        Job::new("watchful", move |ctx: Context| {
            let cancelled = cancelled.clone();
            async move {
                if ctx.generation() > 1 {
                    return Ok(());
                }
                ctx.cancelled().await;
                cancelled.note(ctx.execution_id());
                Err("interrupted")
            }
        })
    };
    let lease = Lease {
        renew_every: Duration::from_millis(400),
        fence_after: Duration::from_secs(1),
        ttl: Duration::from_millis(1_500),
        cancel_after: Duration::from_millis(2_500),
        ..Lease::default()
    };
    let worker = run(cluster.worker().register(job).lease(lease));
    let id = cluster.enqueue("watchful", 1).await[0];
    worker.until("it runs", |stats| stats.running == 1).await;
    server.kill().unwrap();
    eventually("cancelled", SOON, async || cancelled.all() == [id])
        .await
        .unwrap();
    server.restart().await.unwrap();
    let done = cluster.until_state(id, State::Succeeded).await;
    assert_eq!(done.generation, 2, "{done:#?}");
    worker.stop().await;
    cluster.audit().await;
}

/// The ledger is away in mid-run: claims and results are sent again until they are decided.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn p38_the_worker_goes_on_after_a_database_restart() {
    if shared::postgres_is_skipped() {
        return;
    }
    let mut server = Postgres::start(&PostgresOptions::default()).await.unwrap();
    let database = store::Options::new(server.url());
    let cluster = Cluster::start(database, shared::nats_url().await.unwrap(), None).await;
    let seen = Seen::default();
    let worker = run(cluster.worker().register(counting(&seen)).max_concurrent(4));
    cluster.enqueue("count", 200).await;
    worker.until("some ran", |stats| stats.claimed >= 20).await;
    server.kill().unwrap();
    sleep(Duration::from_secs(3)).await;
    server.restart().await.unwrap();
    cluster.until_count(State::Succeeded, 200).await;
    let mut ran = seen.all();
    ran.sort_unstable();
    ran.dedup();
    assert_eq!(ran.len(), 200);
    let stats = worker.stop().await;
    assert_eq!(stats.uncommitted, 0, "{stats:#?}");
    cluster.audit().await;
}

/// The handler has committed its own transaction and the ledger is away: what became of it is
/// asked again until there is an answer. The claim stays known meanwhile, and nothing is repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_own_commit_whose_end_cannot_be_read_is_waited_for() {
    if shared::postgres_is_skipped() {
        return;
    }
    let mut server = Postgres::start(&PostgresOptions::default()).await.unwrap();
    let database = store::Options::new(server.url());
    let cluster = Cluster::start(database, shared::nats_url().await.unwrap(), None).await;
    let books = Books::of(&cluster.database).await;
    let (go, wait) = tokio::sync::watch::channel(false);
    let committed = Seen::default();
    let job = {
        let (books, committed) = (books.clone(), committed.clone());
        Job::new("book", move |ctx: Context| {
            let (books, committed, mut wait) = (books.clone(), committed.clone(), wait.clone());
            async move {
                books.book(&ctx, End::Commit).await?;
                committed.note(ctx.generation());
                let _ = wait.wait_for(|go| *go).await;
                Err::<(), _>(BoxError::from("the receipt was not printed"))
            }
        })
    };
    let worker = run(cluster.worker().register(job));
    let id = cluster.enqueue("book", 1).await[0];
    eventually("committed", SOON, async || committed.all() == [1])
        .await
        .unwrap();
    server.kill().unwrap();
    go.send(true).unwrap();
    worker
        .until("it returned", |stats| stats.running == 0)
        .await;
    // More than one question stays without an answer.
    sleep(Duration::from_secs(2)).await;
    let stats = worker.stats();
    assert_eq!(
        (stats.uncommitted, stats.contradicted),
        (1, 0),
        "{stats:#?}"
    );
    server.restart().await.unwrap();
    worker
        .until("it is known", |stats| stats.contradicted == 1)
        .await;
    let story = cluster.story(id).await;
    assert_eq!(story.execution.state, State::Succeeded);
    assert_eq!(story.execution.generation, 1, "nothing was repeated");
    assert_eq!(committed.all(), [1]);
    let stats = worker.stop().await;
    assert_eq!(stats.uncommitted, 0, "{stats:#?}");
    cluster.audit().await;
}
