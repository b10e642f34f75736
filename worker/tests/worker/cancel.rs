//! Requests to cancel: what the worker hears of them, and what the ledger makes of its answer.

use std::time::Duration;

use bellwether_client::{NewExecution, Payload};
use bellwether_sandbox::eventually;
use bellwether_schemas::ids;
use bellwether_schemas::state::{Capability, OnLost, Reason, SessionState, State};
use bellwether_store::executions::{
    CancelRequested, ClaimAnswer, ClaimAsk, Commit, Outcome as Sent,
};
use bellwether_store::sessions::NewSession;
use bellwether_worker::{Context, Job, Outcome};
use tokio::sync::watch;
use uuid::Uuid;

use crate::cluster::{Cluster, SOON, Seen, run};

on_both_stores!(
    p53_a_cancel_stops_its_attempt_and_no_other,
    p53_a_cancel_of_one_that_waits_ends_only_that,
    a_definite_outcome_stands_after_a_request_to_cancel,
    p53_a_deaf_handler_shows_the_request_until_its_deadline,
    p53_a_deaf_handler_is_given_up_after_the_grace,
    p53_a_worker_with_half_its_slots_leaked_drains_and_ends,
    what_a_deaf_handler_does_is_unknown_until_it_returns_where_it_must_not_be_repeated,
    r09_no_cancel_is_asked_of_a_worker_without_the_capability,
);

/// Waits for its cancellation or for `go`.
fn patient(seen: &Seen<(Uuid, bool)>, go: &watch::Receiver<bool>) -> Job {
    let (seen, go) = (seen.clone(), go.clone());
    Job::new("patient", move |ctx: Context| {
        let (seen, mut go) = (seen.clone(), go.clone());
        async move {
            tokio::select! {
                () = ctx.cancelled() => {
                    seen.note((ctx.execution_id(), ctx.is_cancel_requested()));
                    Err("stopped half way")
                }
                _ = go.wait_for(|go| *go) => Ok(()),
            }
        }
    })
}

async fn request(cluster: &Cluster, id: Uuid) -> CancelRequested {
    cluster.ledger.request_cancel(&[id]).await.unwrap()[0]
}

const TOLD: CancelRequested = CancelRequested::Requested {
    state: State::Running,
    told: true,
};

async fn p53_a_cancel_stops_its_attempt_and_no_other(cluster: Cluster) {
    let seen = Seen::default();
    let (go, wait) = watch::channel(false);
    let worker = run(cluster
        .worker()
        .register(patient(&seen, &wait))
        .max_concurrent(2));
    let ids = cluster.enqueue("patient", 2).await;
    worker.until("both run", |stats| stats.running == 2).await;

    assert_eq!(request(&cluster, ids[0]).await, TOLD);
    let stopped = cluster.until_state(ids[0], State::Cancelled).await;
    assert_eq!(stopped.reason, Some(Reason::Cancelled));
    assert_eq!(
        stopped.error.as_deref(),
        Some("stopped half way"),
        "what it said when it stopped is kept"
    );
    assert!(stopped.cancel_requested_at.is_some() && !stopped.cancel_lost);
    assert_eq!(seen.all(), [(ids[0], true)]);

    // Its slot is free again, and the other one never noticed.
    worker
        .until("one slot is free", |stats| stats.running == 1)
        .await;
    let third = cluster.enqueue("patient", 1).await[0];
    worker
        .until("both slots work", |stats| stats.running == 2)
        .await;
    go.send(true).unwrap();
    for id in [ids[1], third] {
        let done = cluster.until_state(id, State::Succeeded).await;
        assert_eq!((done.attempt, done.cancel_requested_at), (1, None));
    }
    assert_eq!(
        request(&cluster, ids[0]).await,
        CancelRequested::Ended(State::Cancelled)
    );
    worker.stop().await;
    cluster.audit().await;
}

async fn p53_a_cancel_of_one_that_waits_ends_only_that(cluster: Cluster) {
    let (go, wait) = watch::channel(false);
    let seen = Seen::default();
    let worker = run(cluster
        .worker()
        .register(patient(&seen, &wait))
        .max_concurrent(1));
    let first = cluster.enqueue("patient", 1).await[0];
    worker.until("it runs", |stats| stats.running == 1).await;
    let queued = cluster.enqueue("patient", 3).await;
    assert_eq!(
        request(&cluster, queued[1]).await,
        CancelRequested::Cancelled
    );
    go.send(true).unwrap();
    for id in [first, queued[0], queued[2]] {
        cluster.until_state(id, State::Succeeded).await;
    }
    let cancelled = cluster.execution(queued[1]).await;
    assert_eq!(
        (cancelled.state, cancelled.generation),
        (State::Cancelled, 0)
    );
    assert!(seen.all().is_empty());
    // Its message is answered like any other.
    cluster.until_streams_are_empty().await;
    worker.stop().await;
    cluster.audit().await;
}

async fn a_definite_outcome_stands_after_a_request_to_cancel(cluster: Cluster) {
    let job = Job::new("definite", async |ctx: Context, says: String| {
        ctx.cancelled().await;
        match says.as_str() {
            "complete" => Ok(Outcome::done()),
            "fail" => Ok(Outcome::fail("no such region")),
            "snooze" => Ok(Outcome::snooze(Duration::from_secs(1))),
            "panic" => panic!("interrupted"),
            other => Err(format!("{other} is not known")),
        }
    });
    let worker = run(cluster.worker().register(job).max_concurrent(4));
    let expected = [
        ("complete", State::Succeeded, None),
        ("fail", State::Failed, Some(Reason::Rejected)),
        ("snooze", State::Cancelled, Some(Reason::Cancelled)),
        ("panic", State::Cancelled, Some(Reason::Cancelled)),
    ];
    let mut ids = Vec::new();
    for (says, ..) in expected {
        let new = NewExecution::new("definite", Payload::json(format!("{says:?}")));
        ids.push(cluster.client.enqueue(&new).await.unwrap().execution_id());
    }
    worker.until("all run", |stats| stats.running == 4).await;
    let answers = cluster.ledger.request_cancel(&ids).await.unwrap();
    assert_eq!(answers, [TOLD; 4]);
    for (id, (says, state, reason)) in ids.into_iter().zip(expected) {
        let ended = cluster.until_state(id, state).await;
        assert_eq!(ended.reason, reason, "{says}");
        assert_eq!(ended.cancel_lost, state == State::Succeeded, "{says}");
        assert_eq!(ended.generation, 1, "{says}");
    }
    worker.stop().await;
    cluster.audit().await;
}

async fn p53_a_deaf_handler_shows_the_request_until_its_deadline(cluster: Cluster) {
    let (go, wait) = watch::channel(false);
    let seen = Seen::default();
    let job = {
        let seen = seen.clone();
        Job::new("deaf", move |ctx: Context| {
            let (seen, mut wait) = (seen.clone(), wait.clone());
            async move {
                ctx.cancelled().await;
                seen.note(ctx.is_cancel_requested());
                let _ = wait.wait_for(|go| *go).await;
                Ok::<_, String>("late")
            }
        })
    };
    let worker = run(cluster
        .worker()
        .register(job)
        .max_concurrent(2)
        .leaked_max(2));
    let mut new = NewExecution::new("deaf", Payload::json("null"));
    new.policy.timeout = Duration::from_secs(4);
    let id = cluster.client.enqueue(&new).await.unwrap().execution_id();
    worker.until("it runs", |stats| stats.running == 1).await;
    assert_eq!(request(&cluster, id).await, TOLD);
    eventually("it hears", SOON, async || seen.all() == [true])
        .await
        .unwrap();
    let shown = cluster.execution(id).await;
    assert_eq!(shown.state, State::Running, "not stopped: {shown:#?}");
    assert!(shown.cancel_requested_at.is_some());
    assert_eq!(worker.stats().running, 1, "its slot is taken");

    // At its deadline it is given up; the slot is taken until it returns.
    let ended = cluster.until_state(id, State::Cancelled).await;
    assert_eq!((ended.generation, ended.attempt), (1, 1));
    let stats = worker.stats();
    assert_eq!((stats.running, stats.leaked), (1, 1), "{stats:#?}");
    go.send(true).unwrap();
    worker
        .until("it returned", |stats| stats.running == 0)
        .await;
    assert_eq!(cluster.execution(id).await.state, State::Cancelled);
    worker.stop().await;
    cluster.audit().await;
}

/// Nobody calls it over, and nothing runs beside it; what it says at last counts.
async fn what_a_deaf_handler_does_is_unknown_until_it_returns_where_it_must_not_be_repeated(
    cluster: Cluster,
) {
    let (go, wait) = watch::channel(false);
    let job = Job::new("deaf", move |fails: bool| {
        let mut wait = wait.clone();
        async move {
            let _ = wait.wait_for(|go| *go).await;
            if fails { Err("late") } else { Ok("late") }
        }
    });
    let worker = run(cluster
        .worker()
        .register(job)
        .max_concurrent(4)
        .leaked_max(4));
    let enqueue = async |fails: &str| {
        let mut new = NewExecution::new("deaf", Payload::json(fails));
        new.policy.timeout = Duration::from_secs(1);
        new.policy.max_attempts = 1;
        new.policy.on_lost = OnLost::Unknown;
        cluster.client.enqueue(&new).await.unwrap().execution_id()
    };
    let hung = enqueue("false").await;
    let cancelled = enqueue("true").await;
    let disobeyed = enqueue("false").await;
    worker.until("they run", |stats| stats.running == 3).await;
    for id in [cancelled, disobeyed] {
        assert_eq!(request(&cluster, id).await, TOLD);
    }
    for id in [hung, cancelled, disobeyed] {
        let shown = cluster.until_state(id, State::Unknown).await;
        assert_eq!(shown.reason, Some(Reason::Timeout), "{shown:#?}");
        assert!(shown.ended_at.is_none() && !shown.attempts_exhausted);
    }
    worker
        .until("all told by the worker", |stats| {
            stats.committed.get("retry") == Some(&3)
        })
        .await;
    assert_eq!(worker.stats().leaked, 3);

    go.send(true).unwrap();
    for (id, state) in [
        (hung, State::Succeeded),
        // Now its stop is confirmed.
        (cancelled, State::Cancelled),
        (disobeyed, State::Succeeded),
    ] {
        let ended = cluster.until_state(id, state).await;
        assert_eq!((ended.generation, ended.attempt), (1, 1));
        assert_eq!(ended.cancel_lost, id == disobeyed);
    }
    let stats = worker.stop().await;
    assert_eq!((stats.leaked, stats.contradicted), (0, 0), "{stats:#?}");
    assert_eq!(stats.committed["complete"], 2, "{stats:#?}");
    cluster.audit().await;
}

/// Told to stop, it runs on: after the grace it is given up, its slot counts as leaked, and
/// nothing that it writes later counts.
async fn p53_a_deaf_handler_is_given_up_after_the_grace(cluster: Cluster) {
    let (go, wait) = watch::channel(false);
    let late = Seen::default();
    let job = {
        let late = late.clone();
        Job::new("deaf", move |ctx: Context| {
            let (late, mut wait) = (late.clone(), wait.clone());
            async move {
                let _ = wait.wait_for(|go| *go).await;
                late.note(
                    ctx.checkpoint("late")
                        .await
                        .map_err(|error| error.to_string()),
                );
                Ok::<_, String>("late")
            }
        })
    };
    let worker = run(cluster
        .worker()
        .register(job)
        .max_concurrent(3)
        .cancel_grace(Duration::from_millis(500)));
    let enqueue = async |on_lost| {
        let mut new = NewExecution::new("deaf", Payload::json("null"));
        new.policy.on_lost = on_lost;
        cluster.client.enqueue(&new).await.unwrap().execution_id()
    };
    let id = enqueue(OnLost::Retry).await;
    worker.until("it runs", |stats| stats.running == 1).await;
    assert_eq!(request(&cluster, id).await, TOLD);
    let ended = cluster.until_state(id, State::Cancelled).await;
    assert_eq!((ended.generation, ended.attempt), (1, 1));
    assert!(!ended.cancel_lost);
    let stats = worker.stats();
    assert_eq!((stats.running, stats.leaked), (1, 1), "{stats:#?}");
    eventually("the ledger knows", SOON, async || {
        cluster.ledger.sessions(10).await.unwrap()[0].leaked == 1
    })
    .await
    .unwrap();
    go.send(true).unwrap();
    worker
        .until("it returned", |stats| {
            (stats.running, stats.leaked) == (0, 0)
        })
        .await;
    let said = late.all().remove(0).unwrap_err();
    assert!(said.contains("cancelled"), "{said}");
    let story = cluster.story(id).await;
    assert_eq!(story.execution.state, State::Cancelled);
    assert!(story.output.is_none() && story.execution.checkpoint_at.is_none());
    worker.stop().await;
    cluster.audit().await;
}

/// Half of its slots are leaked: it is no worker any more, stops in order and says why.
async fn p53_a_worker_with_half_its_slots_leaked_drains_and_ends(cluster: Cluster) {
    let deaf = Job::new("deaf", async |ctx: Context| {
        if ctx.generation() == 1 {
            std::future::pending::<()>().await;
        }
        Ok::<_, String>(())
    });
    let (go, wait) = watch::channel(false);
    let sound = Job::new("sound", move || {
        let mut wait = wait.clone();
        async move {
            let _ = wait.wait_for(|go| *go).await;
            Ok::<_, String>(())
        }
    });
    let worker = run(cluster
        .worker()
        .register(deaf)
        .register(sound)
        .max_concurrent(4)
        .drain(Duration::from_secs(8))
        .cancel_grace(Duration::from_millis(200)));
    let deaf = cluster.enqueue("deaf", 2).await;
    worker.until("they run", |stats| stats.running == 2).await;
    let sound = cluster.enqueue("sound", 2).await;
    worker.until("all run", |stats| stats.running == 4).await;
    for id in &deaf {
        assert_eq!(request(&cluster, *id).await, TOLD);
    }
    let draining = async || {
        let sessions = cluster.ledger.sessions(1).await.unwrap();
        sessions[0].draining_since.is_some()
    };
    eventually("it drains", SOON, draining).await.unwrap();
    go.send(true).unwrap();
    let ended = worker.ended().await.unwrap_err().to_string();
    assert!(ended.contains("2 of 4 slots"), "{ended}");
    for id in sound {
        let done = cluster.execution(id).await;
        assert_eq!((done.state, done.attempt), (State::Succeeded, 1));
    }
    for id in deaf {
        assert_eq!(cluster.execution(id).await.state, State::Cancelled);
    }
    let session = cluster.ledger.sessions(10).await.unwrap().remove(0);
    assert_eq!(session.state, SessionState::Closed, "{session:#?}");
    assert_eq!(session.leaked, 2);
    assert!(session.draining_since.is_some(), "{session:#?}");
    cluster.audit().await;
}

/// A worker of the first version never asks: the ledger says so to whoever requests, and the
/// request holds without it.
async fn r09_no_cancel_is_asked_of_a_worker_without_the_capability(cluster: Cluster) {
    let of = |capabilities: Vec<Capability>| NewSession {
        id: ids::fresh(),
        name: "old".into(),
        host: "test".into(),
        pid: 1,
        version: "0".into(),
        queues: vec!["default".into()],
        jobs: vec!["patient".into()],
        probes: Vec::new(),
        definitions: Vec::new(),
        capabilities,
        max_concurrent: 1,
        lease: Duration::from_mins(1),
    };
    for (capabilities, told) in [(vec![], false), (vec![Capability::Cancel], true)] {
        let session = of(capabilities);
        cluster.ledger.open_session(&session).await.unwrap();
        let execution_id = cluster.enqueue("patient", 1).await[0];
        let claim_id = ids::token();
        let ask = ClaimAsk {
            execution_id,
            dispatch_no: 1,
            claim_id,
        };
        let answers = cluster.ledger.claim(session.id, &[ask]).await.unwrap();
        let ClaimAnswer::Claimed(claimed) = &answers[0] else {
            panic!("{answers:?}");
        };
        assert_eq!(
            request(&cluster, execution_id).await,
            CancelRequested::Requested {
                state: State::Running,
                told
            }
        );
        let hints = cluster.ledger.cancel_hints(session.id).await.unwrap();
        let hints: Vec<_> = hints.into_iter().map(|hint| hint.claim_id).collect();
        assert!(!told || hints == [claim_id], "{hints:?}");
        // Not knowing of it, it asks for another attempt: there is none.
        let result = Commit {
            execution_id,
            claim_id,
            generation: claimed.generation,
            started_ago: Some(Duration::ZERO),
            outcome: Sent::Retry {
                reason: Reason::Error,
                error: "disk full".into(),
                delay: Duration::ZERO,
                stopped: true,
            },
        };
        cluster.ledger.commit(&[result]).await.unwrap();
        let ended = cluster.execution(execution_id).await;
        assert_eq!(ended.state, State::Cancelled, "{ended:#?}");
        cluster.ledger.close_session(session.id).await.unwrap();
    }
    cluster.audit().await;
}
