//! Stopping in order.

use std::time::Duration;

use bellwether_schemas::state::{Reason, SessionState, State};
use bellwether_worker::{Context, Job};
use tokio::time::{Instant, sleep};

use crate::cluster::{Cluster, run};

on_both_stores!(
    a_stop_with_20_running_commits_or_releases_all_without_a_charge,
    a_handler_that_does_not_stop_is_taken_over,
);

/// Executions with an even key finish by themselves, the others only when they are told to.
fn mixed() -> Job {
    Job::new("mixed", async |ctx: Context, number: u32| {
        if number.is_multiple_of(2) {
            sleep(Duration::from_secs(2)).await;
            return Ok(());
        }
        ctx.cancelled().await;
        Err("interrupted")
    })
}

async fn a_stop_with_20_running_commits_or_releases_all_without_a_charge(cluster: Cluster) {
    let limit = Duration::from_secs(8);
    let worker = run(cluster
        .worker()
        .register(mixed())
        .max_concurrent(20)
        .drain(limit));
    let mut ids = Vec::new();
    for number in 0..20 {
        ids.push(cluster.enqueue_once("mixed", &number.to_string()).await);
    }
    worker.until("20 run", |stats| stats.running == 20).await;
    let begun = Instant::now();
    worker.stop.cancel();
    let late = cluster.enqueue("mixed", 5).await;
    let stats = worker.stop().await;
    assert!(begun.elapsed() <= limit, "{:?}", begun.elapsed());
    assert_eq!(stats.claimed, 20, "nothing new was claimed");
    assert_eq!(
        (stats.committed["complete"], stats.committed["release"]),
        (10, 10)
    );
    assert_eq!((stats.running, stats.uncommitted, stats.fenced), (0, 0, 0));
    for (number, id) in ids.into_iter().enumerate() {
        let view = cluster.execution(id).await;
        if number.is_multiple_of(2) {
            assert_eq!(view.state, State::Succeeded);
        } else {
            assert_eq!(
                (view.state, view.reason),
                (State::Retrying, Some(Reason::Release))
            );
            assert_eq!(view.attempt, 0, "the charge is given back");
        }
    }
    for id in late {
        assert_eq!(cluster.execution(id).await.generation, 0);
    }
    let sessions = cluster.ledger.sessions(10).await.unwrap();
    assert_eq!(sessions[0].state, SessionState::Closed);
    cluster.audit().await;
}

async fn a_handler_that_does_not_stop_is_taken_over(cluster: Cluster) {
    let stubborn = Job::new("stubborn", async |ctx: Context| {
        if ctx.generation() == 1 {
            std::future::pending::<()>().await;
        }
        Ok::<_, String>(())
    });
    let first = run(cluster
        .worker()
        .register(stubborn.clone())
        .drain(Duration::from_secs(2)));
    let id = cluster.enqueue("stubborn", 1).await[0];
    first.until("it runs", |stats| stats.running == 1).await;
    let begun = Instant::now();
    first.stop().await;
    assert!(
        begun.elapsed() < Duration::from_secs(4),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(
        cluster.ledger.sessions(10).await.unwrap()[0].state,
        SessionState::Lost
    );
    let second = run(cluster.worker().register(stubborn));
    let done = cluster.until_state(id, State::Succeeded).await;
    assert_eq!((done.generation, done.attempt), (2, 2));
    second.stop().await;
    cluster.audit().await;
}
