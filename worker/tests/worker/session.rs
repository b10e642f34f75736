//! Fences and sessions: what a worker may still say when others have taken over.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bellwether_client::{Enqueued, NewExecution, Payload};
use bellwether_schemas::state::{OnLost, SessionState, State};
use bellwether_worker::{Context, Job, Lease};
use uuid::Uuid;

use crate::cluster::{Cluster, SOON, Seen, run};
use crate::commit_in::{Books, End};

on_both_stores!(
    r19_a_late_commit_is_fenced_and_counted,
    a_lost_session_cancels_its_handlers_and_another_takes_its_place,
    what_a_handler_of_a_lost_session_has_stopped_stays_not_unknown,
    a_handler_that_runs_on_after_its_session_is_never_told_as_stopped,
    what_a_given_up_handler_has_done_counts_while_the_row_is_its_own,
    what_a_lost_session_had_not_started_is_given_back,
    p65_a_blocked_runtime_keeps_its_work_and_a_lost_session_its_results_out,
    a_runtime_that_is_stuck_for_the_chosen_time_holds_its_work_no_longer,
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

/// It must not be repeated blindly; its handler obeyed, so that it can be.
async fn what_a_handler_of_a_lost_session_has_stopped_stays_not_unknown(cluster: Cluster) {
    cluster.declare_no_losses().await;
    let job = Job::new("careful", async |ctx: Context| {
        if ctx.generation() == 1 {
            ctx.cancelled().await;
            return Err("stopped before any effect");
        }
        Ok(())
    })
    .on_lost(OnLost::Unknown);
    let worker = run(cluster.worker().register(job).lease(watchful()));
    let mut new = NewExecution::new("careful", Payload::json("null"));
    new.policy.on_lost = OnLost::Unknown;
    let id = cluster.client.enqueue(&new).await.unwrap().execution_id();
    worker.until("it runs", |stats| stats.running == 1).await;
    let first = cluster.ledger.sessions(10).await.unwrap()[0].id;
    cluster.ledger.close_session(first).await.unwrap();
    let done = cluster.until_state(id, State::Succeeded).await;
    assert_eq!((done.generation, done.attempt), (2, 1), "not charged");
    worker.stop().await;
    cluster.audit().await;
}

async fn lose_the_session(cluster: &Cluster) {
    let session = cluster.ledger.sessions(1).await.unwrap()[0].id;
    cluster.ledger.close_session(session).await.unwrap();
}

/// Its own transaction was rolled back and it runs on: whoever said that it has stopped would have
/// its work done twice at a time.
async fn a_handler_that_runs_on_after_its_session_is_never_told_as_stopped(cluster: Cluster) {
    let books = Books::of(&cluster.database).await;
    let (go, wait) = tokio::sync::watch::channel(false);
    let (begun, ended) = (Seen::default(), Seen::default());
    let job = {
        let (begun, ended) = (begun.clone(), ended.clone());
        Job::new("pay", move |ctx: Context| {
            let (begun, ended) = (begun.clone(), ended.clone());
            let (books, mut wait) = (books.clone(), wait.clone());
            async move {
                begun.note((ctx.generation(), ended.all().len()));
                if ctx.generation() == 1 {
                    books.book(&ctx, End::RollBack).await.unwrap();
                    let _ = wait.wait_for(|go| *go).await;
                }
                ended.note(ctx.generation());
                Ok::<_, String>(())
            }
        })
        .on_lost(OnLost::Unknown)
    };
    let worker = run(cluster
        .worker()
        .register(job)
        .max_concurrent(4)
        .leaked_max(4)
        .lease(watchful())
        .cancel_grace(Duration::from_millis(500)));
    let mut new = NewExecution::new("pay", Payload::json("null"));
    new.policy.on_lost = OnLost::Unknown;
    let id = cluster.client.enqueue(&new).await.unwrap().execution_id();
    worker.until("it runs", |stats| stats.running == 1).await;
    lose_the_session(&cluster).await;
    worker
        .until("it is given up", |stats| stats.leaked == 1)
        .await;
    cluster.until_state(id, State::Unknown).await;
    assert_eq!(worker.stats().results, 0, "nothing was said of it");
    go.send(true).unwrap();
    let done = cluster.until_state(id, State::Succeeded).await;
    assert_eq!(done.generation, 2);
    assert_eq!(begun.all(), [(1, 0), (2, 1)], "one after the other");
    let stats = worker.stop().await;
    assert!(!stats.committed.contains_key("release"), "{stats:#?}");
    cluster.audit().await;
}

async fn what_a_given_up_handler_has_done_counts_while_the_row_is_its_own(cluster: Cluster) {
    cluster.declare_no_losses().await;
    let (go, wait) = tokio::sync::watch::channel(false);
    let job = Job::new("slow", move |ctx: Context| {
        let mut wait = wait.clone();
        async move {
            let _ = wait.wait_for(|go| *go).await;
            Ok::<_, String>(ctx.generation())
        }
    });
    let worker = run(cluster
        .worker()
        .register(job)
        .max_concurrent(4)
        .leaked_max(4)
        .lease(watchful())
        .cancel_grace(Duration::from_millis(100)));
    let id = cluster.enqueue("slow", 1).await[0];
    worker.until("it runs", |stats| stats.running == 1).await;
    lose_the_session(&cluster).await;
    worker
        .until("it is given up", |stats| stats.leaked == 1)
        .await;
    let row = cluster.execution(id).await;
    assert_eq!((row.state, row.generation), (State::Running, 1));
    go.send(true).unwrap();
    let done = cluster.until_state(id, State::Succeeded).await;
    assert_eq!((done.generation, done.attempt), (1, 1), "it was its own");
    worker
        .until("all is said", |stats| stats.uncommitted == 0)
        .await;
    let stats = worker.stop().await;
    assert_eq!(
        stats.results,
        stats.results_decided + stats.results_untold,
        "{stats:#?}"
    );
    cluster.audit().await;
}

/// Claimed ahead, and nothing was tried: neither `unknown` nor charged.
async fn what_a_lost_session_had_not_started_is_given_back(cluster: Cluster) {
    cluster.declare_no_losses().await;
    let started: Seen<Uuid> = Seen::default();
    let (go, wait) = tokio::sync::watch::channel(false);
    let job = {
        let started = started.clone();
        Job::new("moody", move |ctx: Context, slow: bool| {
            let (started, mut wait) = (started.clone(), wait.clone());
            async move {
                started.note(ctx.execution_id());
                if slow {
                    let _ = wait.wait_for(|go| *go).await;
                }
                Ok::<_, String>(())
            }
        })
        .on_lost(OnLost::Unknown)
    };
    let make = |slow: bool| {
        let mut new = NewExecution::new("moody", Payload::json(slow.to_string()));
        new.policy.on_lost = OnLost::Unknown;
        new
    };
    // Quick ones first: only then is anything claimed ahead. One call each: those of one call have
    // no order.
    let quick: Vec<_> = (0..200).map(|_| make(false)).collect();
    cluster.client.enqueue_all(&quick).await.unwrap();
    let slow: Vec<_> = (0..8).map(|_| make(true)).collect();
    let slow = cluster.client.enqueue_all(&slow).await.unwrap();
    let ids: Vec<_> = slow.into_iter().map(Enqueued::execution_id).collect();
    cluster.until_all_are_published().await;
    let worker = run(cluster
        .worker()
        .register(job)
        .max_concurrent(1)
        .prefetch(8)
        .lease(watchful()));
    let unstarted = Cell::new(None);
    let ahead = bellwether_sandbox::eventually("one is claimed ahead", SOON, async || {
        for &id in &ids {
            let running = cluster.execution(id).await.state == State::Running;
            if running && worker.stats().running == 1 && !started.all().contains(&id) {
                unstarted.set(Some(id));
            }
        }
        unstarted.get().is_some()
    });
    ahead.await.unwrap();
    let id = unstarted.get().unwrap();
    lose_the_session(&cluster).await;
    worker.until("lost", |stats| stats.sessions_lost == 1).await;
    go.send(true).unwrap();
    let done = cluster.until_state(id, State::Succeeded).await;
    assert_eq!(done.attempt, 1, "not charged: {done:#?}");
    cluster.audit().await;
}

/// As long as the worker was told to bear it, and not for the two minutes of the default.
async fn a_runtime_that_is_stuck_for_the_chosen_time_holds_its_work_no_longer(cluster: Cluster) {
    let hold = Arc::new(AtomicBool::new(true));
    let blocks = Arc::clone(&hold);
    let job = Job::new("blocking", move |ctx: Context| {
        let blocks = Arc::clone(&blocks);
        async move {
            while ctx.generation() == 1 && blocks.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok::<_, String>(())
        }
    });
    let lease = Lease {
        runtime_max: Duration::from_secs(2),
        ..Lease::of(Duration::from_secs(2))
    };
    let builder = cluster.worker().register(job).lease(lease);
    let worker = builder.max_concurrent(2).build().unwrap();
    let stop = bellwether_worker::CancellationToken::new();
    let stopped = stop.clone();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build();
        runtime.unwrap().block_on(worker.run_until(stopped))
    });
    let taken = cluster.enqueue("blocking", 2).await;
    for id in &taken {
        let over = bellwether_sandbox::eventually("taken away", SOON, async || {
            let row = cluster.execution(*id).await;
            row.attempt > 0 && row.state != State::Running
        });
        over.await.unwrap();
    }
    hold.store(false, Ordering::Relaxed);
    for id in taken {
        let done = cluster.until_state(id, State::Succeeded).await;
        assert_eq!((done.generation, done.attempt), (2, 2), "{done:#?}");
    }
    stop.cancel();
    thread.join().unwrap().unwrap();
}

/// All threads of the runtime are blocked for longer than the lease: nobody takes the work over.
/// Where the session is lost all the same, what the handler says afterwards is refused.
async fn p65_a_blocked_runtime_keeps_its_work_and_a_lost_session_its_results_out(cluster: Cluster) {
    const TTL: Duration = Duration::from_secs(2);
    let judged = cluster.expired_session().await;
    let hold = Arc::new(AtomicBool::new(true));
    let blocks = Arc::clone(&hold);
    let job = Job::new("blocking", move |ctx: Context| {
        let blocks = Arc::clone(&blocks);
        async move {
            while ctx.generation() == 1 && blocks.load(Ordering::Relaxed) {
                std::thread::sleep(TTL / 100);
            }
            Ok::<_, String>(ctx.generation())
        }
    });
    let lease = Lease {
        renew_every: Duration::from_millis(300),
        fence_after: Duration::from_secs(1),
        ttl: TTL,
        cancel_after: TTL * 2,
        ..Lease::default()
    };
    let builder = cluster.worker().register(job).lease(lease);
    let worker = builder.max_concurrent(2).build().unwrap();
    let (handle, stop) = (worker.handle(), bellwether_worker::CancellationToken::new());
    let stopped = stop.clone();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build();
        runtime.unwrap().block_on(worker.run_until(stopped))
    });
    let kept = cluster.enqueue("blocking", 2).await;
    let last = cluster.until_state(kept[1], State::Running).await;
    cluster
        .until_passed(last.claimed_at.unwrap() + TTL * 3)
        .await;
    cluster.until_lost(judged).await;
    hold.store(false, Ordering::Relaxed);
    for id in kept {
        let done = cluster.until_state(id, State::Succeeded).await;
        assert_eq!((done.generation, done.attempt), (1, 1), "{done:#?}");
    }
    assert_eq!(handle.stats().sessions_lost, 0);

    hold.store(true, Ordering::Relaxed);
    let taken = cluster.enqueue("blocking", 1).await[0];
    cluster.until_state(taken, State::Running).await;
    let session = cluster.ledger.sessions(1).await.unwrap()[0].id;
    cluster.ledger.close_session(session).await.unwrap();
    let over = bellwether_sandbox::eventually("taken away", SOON, async || {
        let row = cluster.execution(taken).await;
        row.state != State::Running || row.generation > 1
    });
    over.await.unwrap();
    hold.store(false, Ordering::Relaxed);
    let done = cluster.until_state(taken, State::Succeeded).await;
    let refused =
        bellwether_sandbox::eventually("refused", SOON, async || handle.stats().fenced == 1);
    refused.await.unwrap();
    assert_eq!(done.generation, 2);
    assert_eq!(cluster.story(taken).await.output.unwrap().bytes, b"2");
    stop.cancel();
    thread.join().unwrap().unwrap();
    cluster.audit().await;
}

async fn r20_what_the_ledger_holds_and_the_worker_does_not_know_is_released(cluster: Cluster) {
    let worker = run(cluster
        .worker()
        .register(Job::new("orphan", async || Ok::<_, String>(()))));
    worker.until("ready", |stats| stats.asked > 0).await;
    let session = cluster.ledger.sessions(10).await.unwrap()[0].id;
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
