//! Results that the ledger does not take at once: held, tried again, rejected, never in the way.

use std::str::FromStr;
use std::time::Duration;

use bellwether_client::{NewExecution, Payload};
use bellwether_sandbox::{Postgres as Server, PostgresOptions, eventually, shared};
use bellwether_schemas::state::{Reason, SessionState, State};
use bellwether_store as store;
use bellwether_worker::{Job, Lease, Persist, Stats, StopBudget};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Postgres, Transaction};
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use crate::cluster::{Cluster, Running, SOON, run};

/// Three leases pass within a few seconds.
const TTL: Duration = Duration::from_secs(2);

const DRAIN: Duration = Duration::from_secs(3);

fn lease() -> Lease {
    Lease {
        ttl: TTL,
        renew_every: TTL / 4,
        fence_after: TTL * 7 / 9,
        cancel_after: TTL * 10,
        ..Lease::default()
    }
}

fn persist() -> Persist {
    Persist {
        retry_every: Duration::from_millis(200),
        high_water: 4,
        low_water: 2,
        ..Persist::default()
    }
}

/// Completes when it is let go.
fn gate(go: &watch::Receiver<bool>) -> Job {
    let go = go.clone();
    Job::new("gate", move || {
        let mut go = go.clone();
        async move {
            let _ = go.wait_for(|go| *go).await;
            Ok::<_, String>(())
        }
    })
}

fn quick() -> Job {
    Job::new("quick", async || Ok::<_, String>(()))
}

/// Rows that somebody else holds, as a forgotten `psql` does: the ledger answers, and no result
/// for these gets in.
struct Held(Transaction<'static, Postgres>);

impl Held {
    async fn rows(cluster: &Cluster, ids: &[Uuid]) -> Self {
        let options = PgConnectOptions::from_str(&cluster.database.url).unwrap();
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .connect_with(options.options([("search_path", &cluster.database.schema)]));
        let mut tx = pool.await.unwrap().begin().await.unwrap();
        let held = sqlx::query("SELECT id FROM execution WHERE id = ANY($1) FOR UPDATE")
            .bind(ids)
            .fetch_all(&mut *tx)
            .await
            .unwrap();
        assert_eq!(held.len(), ids.len());
        Self(tx)
    }

    /// Waits until no statement waits for the rows any more: one whose caller is gone still would
    /// do its work when they are let go.
    async fn until_nobody_waits(&mut self) {
        let deadline = Instant::now() + SOON;
        loop {
            let waiting: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM pg_stat_activity
                 WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))",
            )
            .fetch_one(&mut *self.0)
            .await
            .unwrap();
            if waiting == 0 {
                return;
            }
            assert!(Instant::now() < deadline, "{waiting} still wait");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn let_go(self) {
        self.0.rollback().await.unwrap();
    }
}

/// A worker with so many results that cannot be committed.
async fn stalled(
    cluster: &Cluster,
    results: usize,
    persist: Persist,
) -> (Running, Vec<Uuid>, Held) {
    let (go, wait) = watch::channel(false);
    let worker = run(cluster
        .worker()
        .register(gate(&wait))
        .register(quick())
        .max_concurrent(results)
        .prefetch(0)
        .lease(lease())
        .drain(DRAIN)
        .persist(persist));
    let ids = cluster.enqueue("gate", results).await;
    worker
        .until("all run", |stats| stats.running == results)
        .await;
    let held = Held::rows(cluster, &ids).await;
    go.send(true).unwrap();
    worker
        .until("all have returned", |stats| {
            stats.running == 0 && stats.results == results as u64
        })
        .await;
    (worker, ids, held)
}

/// Every result that was handed over is decided, rejected, or being retried.
fn assert_adds_up(stats: &Stats) {
    let ends = stats.results_decided
        + stats.results_untold
        + stats.results_rejected
        + stats.uncommitted as u64;
    assert_eq!(stats.results, ends, "{stats:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r11_results_that_cannot_be_written_stop_no_renewal_and_no_other_work() {
    let Some(cluster) = Cluster::on_postgres().await else {
        return;
    };
    let roomy = Persist {
        retry_every: Duration::from_millis(200),
        ..Persist::default()
    };
    let (worker, ids, held) = stalled(&cluster, 3, roomy).await;
    let begun = Instant::now();
    // On this very worker: its slots are free, for results wait elsewhere.
    cluster.enqueue("quick", 20).await;
    cluster.until_count(State::Succeeded, 20).await;
    while begun.elapsed() < TTL * 3 {
        let sessions = cluster.ledger.sessions(10).await.unwrap();
        assert_eq!(sessions.len(), 1, "{sessions:#?}");
        assert_eq!(sessions[0].state, SessionState::Live);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    worker
        .until("only those that are held are left", |stats| {
            stats.uncommitted == 3
        })
        .await;
    let stats = worker.stats();
    assert_eq!(stats.sessions_lost, 0, "{stats:#?}");
    assert!(!stats.paused && stats.results_retried > 0, "{stats:#?}");
    held.let_go().await;
    cluster.until_count(State::Succeeded, 23).await;
    for id in ids {
        let done = cluster.execution(id).await;
        assert_eq!((done.generation, done.attempt), (1, 1));
    }
    let stats = worker.stop().await;
    assert_eq!(
        (stats.results, stats.results_rejected),
        (23, 0),
        "{stats:#?}"
    );
    assert_adds_up(&stats);
    cluster.audit().await;
}

/// The whole database stands still for longer than a lease: the worker holds its results, its
/// runtime answers, and all is committed afterwards, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r11_a_database_that_stands_still_costs_no_result() {
    if shared::postgres_is_skipped() {
        return;
    }
    let mut server = Server::start(&PostgresOptions::default()).await.unwrap();
    let database = store::Options::new(server.url());
    let cluster = Cluster::start(database, shared::nats_url().await.unwrap(), None).await;
    let (go, wait) = watch::channel(false);
    let worker = run(cluster
        .worker()
        .register(gate(&wait))
        .max_concurrent(20)
        .persist(persist()));
    cluster.enqueue("gate", 20).await;
    worker.until("all run", |stats| stats.running == 20).await;
    server.kill().unwrap();
    go.send(true).unwrap();
    worker
        .until("all have returned and are retried", |stats| {
            (stats.running, stats.uncommitted) == (0, 20) && stats.results_retried >= 40
        })
        .await;
    assert!(worker.stats().paused);
    server.restart().await.unwrap();
    cluster.until_count(State::Succeeded, 20).await;
    worker.until("goes on", |stats| !stats.paused).await;
    let stats = worker.stop().await;
    assert_eq!((stats.results_decided, stats.results_rejected), (20, 0));
    cluster.audit().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r12_every_result_is_accepted_retrying_or_rejected() {
    let Some(cluster) = Cluster::on_postgres().await else {
        return;
    };
    let tries = Persist {
        tries: 2,
        ..persist()
    };
    let (worker, _ids, held) = stalled(&cluster, 3, tries).await;
    let first = worker.stats();
    assert_adds_up(&first);
    assert_eq!((first.results, first.results_decided), (3, 0), "{first:#?}");
    worker
        .until("all are rejected", |stats| stats.results_rejected == 3)
        .await;
    cluster.enqueue("quick", 5).await;
    cluster.until_count(State::Succeeded, 5).await;
    let last = worker.stop().await;
    assert_adds_up(&last);
    assert_eq!(
        (last.results, last.results_decided, last.results_rejected),
        (8, 5, 3),
        "{last:#?}"
    );
    assert_eq!(
        (last.results_retried, last.uncommitted),
        (3, 0),
        "{last:#?}"
    );
    held.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r13_work_pauses_while_results_pile_up_and_goes_on_afterwards() {
    let Some(cluster) = Cluster::on_postgres().await else {
        return;
    };
    let (worker, _ids, held) = stalled(&cluster, 6, persist()).await;
    worker.until("it pauses", |stats| stats.paused).await;
    let claimed = worker.stats().claimed;
    cluster.enqueue("quick", 10).await;
    let not_free = async || {
        let session = cluster.ledger.sessions(1).await.unwrap().remove(0);
        session.free_since.is_none() && session.running == 6
    };
    eventually("the ledger knows that it takes nothing", SOON, not_free)
        .await
        .unwrap();
    tokio::time::sleep(TTL).await;
    let stats = worker.stats();
    assert_eq!((stats.claimed, stats.running), (claimed, 0), "{stats:#?}");
    held.let_go().await;
    cluster.until_count(State::Succeeded, 16).await;
    worker.until("it goes on", |stats| !stats.paused).await;
    let stats = worker.stop().await;
    assert!(stats.pauses > 0, "{stats:#?}");
    assert_eq!(stats.results_rejected, 0, "{stats:#?}");
    cluster.audit().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r13_a_stop_during_the_pause_ends_in_time() {
    let Some(cluster) = Cluster::on_postgres().await else {
        return;
    };
    let (worker, ids, mut held) = stalled(&cluster, 6, persist()).await;
    worker.until("it pauses", |stats| stats.paused).await;
    let begun = Instant::now();
    let stats = worker.stop().await;
    // What a supervisor is told to allow.
    let allowed = StopBudget::new(DRAIN).total();
    assert!(begun.elapsed() < allowed, "{:?}", begun.elapsed());
    assert_eq!(
        (stats.results_rejected, stats.uncommitted),
        (6, 0),
        "{stats:#?}"
    );
    assert_adds_up(&stats);
    held.until_nobody_waits().await;
    held.let_go().await;

    // Nothing in memory is left to recover it: the ledger does, once.
    let (_go, wait) = watch::channel(true);
    let second = run(cluster.worker().register(gate(&wait)).lease(lease()));
    for id in ids {
        let done = cluster.until_state(id, State::Succeeded).await;
        assert_eq!((done.generation, done.attempt), (2, 2), "{done:#?}");
    }
    second.stop().await;
    cluster.audit().await;
}

/// A result that was given up while the worker lives on: nothing gives the execution back behind
/// its deadline's back, for its handler has done the work; the deadline's sweep decides, alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r14_a_rejected_result_is_recovered_by_the_deadline_alone() {
    const TIMEOUT: Duration = Duration::from_secs(10);
    let Some(cluster) = Cluster::on_postgres().await else {
        return;
    };
    let (go, wait) = watch::channel(false);
    let tries = Persist {
        tries: 1,
        ..persist()
    };
    let worker = run(cluster.worker().register(gate(&wait)).persist(tries));
    let mut new = NewExecution::new("gate", Payload::json("null"));
    // Its deadline and the grace of the sweep lie beyond the look that gives back what the worker
    // does not know: that comes every 10 s.
    new.policy.timeout = TIMEOUT;
    let id = cluster.client.enqueue(&new).await.unwrap().execution_id();
    worker.until("it runs", |stats| stats.running == 1).await;
    let claimed_at = cluster.execution(id).await.claimed_at.unwrap();
    let held = Held::rows(&cluster, &[id]).await;
    go.send(true).unwrap();
    worker
        .until("it is rejected", |stats| stats.results_rejected == 1)
        .await;
    held.let_go().await;
    let done = cluster.until_state(id, State::Succeeded).await;
    assert_eq!((done.generation, done.attempt), (2, 2), "{done:#?}");
    let story = cluster.story(id).await;
    assert_eq!(story.attempts.len(), 1);
    assert_eq!(story.attempts[0].reason, Some(Reason::Timeout));
    let held_for = (story.attempts[0].ended_at - claimed_at).to_std().unwrap();
    assert!(held_for >= TIMEOUT, "{held_for:?}");
    worker.stop().await;
    cluster.audit().await;
}

/// Many rows are held: what is behind them has its turn before anything is given up, and only what
/// was tried is counted as tried.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r11_many_held_rows_keep_no_other_result_from_being_written() {
    const HELD: usize = 12;
    const FREE: usize = 6;
    let Some(cluster) = Cluster::on_postgres().await else {
        return;
    };
    let (go, wait) = watch::channel(false);
    let persist = Persist {
        retry_every: Duration::from_millis(100),
        tries: 3,
        ..Persist::default()
    };
    let worker = run(cluster
        .worker()
        .register(gate(&wait))
        .max_concurrent(HELD + FREE)
        .prefetch(0)
        .persist(persist));
    let ids = cluster.enqueue("gate", HELD + FREE).await;
    worker
        .until("all run", |stats| stats.running == HELD + FREE)
        .await;
    let held = Held::rows(&cluster, &ids[..HELD]).await;
    go.send(true).unwrap();
    worker
        .until("all are decided or given up", |stats| {
            stats.results == (HELD + FREE) as u64 && stats.uncommitted == 0
        })
        .await;
    let stats = worker.stats();
    assert_eq!(
        (stats.results_decided, stats.results_rejected),
        (FREE as u64, HELD as u64),
        "{stats:#?}"
    );
    for id in &ids[HELD..] {
        assert_eq!(cluster.execution(*id).await.state, State::Succeeded);
    }
    held.let_go().await;
    worker.stop().await;
}
