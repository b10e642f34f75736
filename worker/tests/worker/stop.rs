//! Stopping in order.

use std::time::Duration;

use bellwether_client::{NewExecution, Payload};
use bellwether_schemas::state::{OnLost, Reason, SessionState, State};
use bellwether_worker::{Context, Job};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::cluster::{Cluster, Seen, run};

on_both_stores!(
    a_stop_with_20_running_commits_or_releases_all_without_a_charge,
    a_handler_that_does_not_stop_is_taken_over,
    r98_long_work_saves_a_checkpoint_and_goes_on_elsewhere,
    a_given_up_handlers_late_result_is_waited_for_within_the_drain_limit,
);

/// Executions with an even key finish when they are let go, the others when they are told to stop.
fn mixed(go: &watch::Receiver<bool>) -> Job {
    let go = go.clone();
    Job::new("mixed", move |ctx: Context, number: u32| {
        let mut go = go.clone();
        async move {
            if number.is_multiple_of(2) {
                let _ = go.wait_for(|go| *go).await;
                return Ok(());
            }
            ctx.cancelled().await;
            Err("interrupted")
        }
    })
}

async fn a_stop_with_20_running_commits_or_releases_all_without_a_charge(cluster: Cluster) {
    // Its handlers are cancelled after four fifths of that.
    let limit = Duration::from_secs(5);
    let (go, wait) = watch::channel(false);
    let worker = run(cluster
        .worker()
        .register(mixed(&wait))
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
    go.send(true).unwrap();
    let stats = worker.stop().await;
    // Six times the limit, for a machine with much else to do: without one it would never end.
    assert!(begun.elapsed() <= limit * 6, "{:?}", begun.elapsed());
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
    // Whose handler never returns.
    first.stop().await;
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

/// Counts to a hundred and begins where the attempt before has stopped; the first one is told to
/// at its fiftieth step.
fn counting(begun_at: &Seen<u32>, saved: &Seen<u32>) -> Job {
    let (begun_at, saved) = (begun_at.clone(), saved.clone());
    Job::new("counting", move |ctx: Context| {
        let (begun_at, saved) = (begun_at.clone(), saved.clone());
        async move {
            let begin = match ctx.last_checkpoint() {
                Some(bytes) => std::str::from_utf8(bytes).unwrap().parse().unwrap(),
                None => 0,
            };
            begun_at.note(begin);
            for step in begin..100_u32 {
                if let Err(error) = ctx.checkpoint((step + 1).to_string()).await {
                    return Err(error.to_string());
                }
                saved.note(step + 1);
                if ctx.generation() == 1 && step + 1 == 50 {
                    ctx.cancelled().await;
                }
                if ctx.is_cancelled() {
                    return Err("stopped at a step's end".to_owned());
                }
            }
            Ok(())
        }
    })
}

async fn r98_long_work_saves_a_checkpoint_and_goes_on_elsewhere(cluster: Cluster) {
    let (begun_at, saved) = (Seen::default(), Seen::default());
    let (go, wait) = watch::channel(false);
    let short = Job::new("short", move || {
        let mut wait = wait.clone();
        async move {
            let _ = wait.wait_for(|go| *go).await;
            Ok::<_, String>(())
        }
    });
    let first = run(cluster
        .worker()
        .register(counting(&begun_at, &saved))
        .register(short)
        .drain(Duration::from_secs(2)));
    let long = cluster.enqueue("counting", 1).await[0];
    first
        .until("half of it is saved", |_| saved.all().len() == 50)
        .await;
    let short = cluster.enqueue("short", 1).await[0];
    first.until("both run", |stats| stats.running == 2).await;
    let claimed = first.stats().claimed;
    first.stop.cancel();
    let late = cluster.enqueue("short", 1).await[0];
    go.send(true).unwrap();
    let stats = first.stop().await;
    assert_eq!(stats.claimed, claimed, "nothing new was claimed");
    assert_eq!(cluster.execution(short).await.state, State::Succeeded);
    assert_eq!(cluster.execution(late).await.generation, 0);
    let row = cluster.execution(long).await;
    assert_eq!(
        (row.state, row.reason, row.attempt),
        (State::Retrying, Some(Reason::Release), 0)
    );
    assert!(row.checkpoint_at.is_some() && row.checkpoint_size > Some(0));

    let second = run(cluster.worker().register(counting(&begun_at, &saved)));
    let done = cluster.until_state(long, State::Succeeded).await;
    assert_eq!((done.attempt, done.generation), (1, 2));
    assert_eq!(done.checkpoint_at, None, "success needs it no more");
    assert_eq!(begun_at.all(), [0, 50]);
    assert_eq!(saved.all(), (1..=100).collect::<Vec<_>>(), "each step once");
    second.stop().await;
    cluster.audit().await;
}

/// Past its deadline and given up, it still has the time of the stop to say what it did.
async fn a_given_up_handlers_late_result_is_waited_for_within_the_drain_limit(cluster: Cluster) {
    let (go, wait) = watch::channel(false);
    let job = Job::new("late", move || {
        let mut wait = wait.clone();
        async move {
            let _ = wait.wait_for(|go| *go).await;
            sleep(Duration::from_secs(1)).await;
            Ok::<_, String>("at last")
        }
    });
    let worker = run(cluster
        .worker()
        .register(job)
        .max_concurrent(2)
        .leaked_max(2)
        .drain(Duration::from_secs(10)));
    let mut new = NewExecution::new("late", Payload::json("null"));
    new.policy.timeout = Duration::from_secs(1);
    new.policy.on_lost = OnLost::Unknown;
    let id = cluster.client.enqueue(&new).await.unwrap().execution_id();
    worker
        .until("it is given up", |stats| stats.leaked == 1)
        .await;
    cluster.until_state(id, State::Unknown).await;
    worker.stop.cancel();
    go.send(true).unwrap();
    let stats = worker.stop().await;
    assert_eq!((stats.leaked, stats.results_rejected), (0, 0), "{stats:#?}");
    let done = cluster.story(id).await;
    assert_eq!(done.execution.state, State::Succeeded);
    assert_eq!(done.output.unwrap().bytes, br#""at last""#);
    cluster.audit().await;
}
