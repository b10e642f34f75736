//! Fences and sessions: what a worker may still say when others have taken over.

use std::time::Duration;

use bellwether_schemas::state::{SessionState, State};
use bellwether_worker::{Context, Job, Lease};
use uuid::Uuid;

use crate::cluster::{Cluster, SOON, Seen, run};

on_both_stores!(
    r19_a_late_commit_is_fenced_and_counted,
    a_lost_session_cancels_its_handlers_and_another_takes_its_place,
    r20_what_the_ledger_holds_and_the_worker_does_not_know_is_released,
);

/// A lease that notices a loss soon.
fn watchful() -> Lease {
    Lease {
        renew_every: Duration::from_millis(200),
        ..Lease::default()
    }
}

async fn r19_a_late_commit_is_fenced_and_counted(cluster: Cluster) {
    let (go, wait) = tokio::sync::watch::channel(false);
    let job = Job::new("late", move |ctx: Context| {
        let mut wait = wait.clone();
        async move {
            if ctx.generation() == 1 {
                let _ = wait.wait_for(|go| *go).await;
            }
            Ok::<_, String>(ctx.generation())
        }
    });
    let worker = run(cluster.worker().register(job).lease(watchful()));
    let id = cluster.enqueue("late", 1).await[0];
    worker.until("it runs", |stats| stats.running == 1).await;
    // The session ends while the handler runs on: the sweep takes the work away.
    let first = cluster.ledger.sessions(10).await.unwrap()[0].id;
    cluster.ledger.close_session(first).await.unwrap();
    cluster.until_state(id, State::Succeeded).await;
    go.send(true).unwrap();
    worker.until("fenced", |stats| stats.fenced == 1).await;
    let story = cluster.story(id).await;
    assert_eq!(story.execution.generation, 2);
    assert_eq!(
        story.output.unwrap().bytes,
        b"2",
        "the accepted result stands"
    );
    assert_eq!(story.fenced.len(), 1, "the refused one is kept for audit");
    let stats = worker.stop().await;
    assert_eq!(stats.committed["complete"], 1);
    cluster.audit().await;
}

async fn a_lost_session_cancels_its_handlers_and_another_takes_its_place(cluster: Cluster) {
    let seen = Seen::default();
    let job = {
        let seen = seen.clone();
        Job::new("watchful", move |ctx: Context| {
            let seen = seen.clone();
            async move {
                if ctx.generation() == 1 {
                    ctx.cancelled().await;
                    seen.note(ctx.execution_id());
                    return Err("interrupted");
                }
                Ok(())
            }
        })
    };
    let worker = run(cluster.worker().register(job).lease(watchful()));
    let id = cluster.enqueue("watchful", 1).await[0];
    worker.until("it runs", |stats| stats.running == 1).await;
    let first = cluster.ledger.sessions(10).await.unwrap()[0].id;
    cluster.ledger.close_session(first).await.unwrap();
    worker.until("lost", |stats| stats.sessions_lost == 1).await;
    let done = cluster.until_state(id, State::Succeeded).await;
    assert_eq!(seen.all(), [id], "cancelled");
    assert_eq!(done.generation, 2);
    assert_ne!(
        done.session_id,
        Some(first),
        "another session does the work"
    );
    worker.stop().await;
    let sessions = cluster.ledger.sessions(10).await.unwrap();
    let states: Vec<_> = sessions.iter().map(|session| session.state).collect();
    assert_eq!(states, [SessionState::Closed, SessionState::Lost]);
    cluster.audit().await;
}

async fn r20_what_the_ledger_holds_and_the_worker_does_not_know_is_released(cluster: Cluster) {
    let worker = run(cluster
        .worker()
        .register(Job::new("orphan", async || Ok::<_, String>(()))));
    let session = loop {
        if let Some(session) = cluster.ledger.sessions(10).await.unwrap().first() {
            break session.id;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    // A claim whose reply was lost with the memory of who asked: it comes from this session,
    // and its token is unknown here. The queue is not the worker's, so no message wakes it.
    let mut new =
        bellwether_client::NewExecution::new("orphan", bellwether_client::Payload::json("null"));
    "elsewhere".clone_into(&mut new.queue);
    let id = cluster.client.enqueue(&new).await.unwrap().execution_id();
    let ask = bellwether_store::executions::ClaimAsk {
        execution_id: id,
        dispatch_no: 1,
        claim_id: Uuid::from_u128(99),
    };
    cluster.ledger.claim(session, &[ask]).await.unwrap();
    assert_eq!(cluster.execution(id).await.state, State::Running);
    let released = bellwether_sandbox::eventually("released", SOON, async || {
        cluster.execution(id).await.state == State::Retrying
    });
    released.await.unwrap();
    assert_eq!(cluster.execution(id).await.attempt, 0, "without a charge");
    worker.stop().await;
}
