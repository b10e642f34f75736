//! Lost work: who notices, who takes it over, and how often.

use std::time::Duration;

use bellwether_schemas::state::{OnLost, Reason, State};
use bellwether_store::executions::{Claimed, Committed};
use futures_util::future::try_join_all;
use uuid::Uuid;

use crate::fixture::Fixture;
use crate::raw::args;
use crate::vocabulary::{complete, one_shot, result, secs};

/// The grace after a deadline.
const GRACE: Duration = Duration::from_secs(5);

pub(crate) async fn r107_needs_failover_is_durable(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let claimed = ledger.running(session, &one_shot("book")).await;
    ledger.expire_session(session).await;
    let watcher = ledger.second().await;
    assert_eq!(watcher.lose_sessions(10).await.unwrap().len(), 1);
    watcher.close().await; // killed right after it has noticed
    drop(watcher);

    let needs = "SELECT count(*) FROM execution e JOIN session s ON s.id = e.session_id
                 WHERE e.state = 'running' AND s.state = 'lost'";
    assert_eq!(
        ledger.count(needs, args![]).await,
        1,
        "it stands in the ledger"
    );
    let other = ledger.second().await;
    let taken = other.recover_lost(GRACE, 10).await.unwrap();
    other.close().await;
    assert_eq!(taken.len(), 1);
    assert_eq!(
        (taken[0].execution_id, taken[0].state),
        (claimed.execution_id, State::Retrying)
    );
    let view = ledger.view(claimed.execution_id).await;
    assert_eq!((view.reason, view.attempt), (Some(Reason::WorkerLost), 1));
    assert_eq!(view.dispatch_no, 2, "dispatched by the same statement");
    assert!(ledger.outbox_of(view.id).await.contains(&2));
    assert!(view.dispatched_at.is_some() && view.available_at <= ledger.now().await);
    ledger.assert_laws_hold().await;
}

pub(crate) async fn r109_exactly_one_grabber(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let mut claims = Vec::new();
    for _ in 0..5 {
        claims.push(ledger.running(session, &one_shot("book")).await);
    }
    ledger.lose(session).await;
    let mut handles = vec![ledger.first()];
    for _ in 1..10 {
        handles.push(ledger.second().await);
    }
    let sweeps = handles
        .iter()
        .cloned()
        .map(|store| tokio::spawn(async move { store.recover_lost(GRACE, 100).await.unwrap() }));
    let mut taken: Vec<Uuid> = try_join_all(sweeps)
        .await
        .unwrap()
        .into_iter()
        .flatten()
        .map(|recovered| recovered.execution_id)
        .collect();
    taken.extend(
        ledger
            .recover_lost(GRACE, 100)
            .await
            .unwrap()
            .iter()
            .map(|recovered| recovered.execution_id),
    );
    taken.sort();
    let mut all: Vec<Uuid> = claims.iter().map(|claimed| claimed.execution_id).collect();
    all.sort();
    assert_eq!(taken, all, "each once");
    for id in all {
        let view = ledger.view(id).await;
        assert_eq!((view.dispatch_no, view.generation, view.attempt), (2, 1, 1));
        let again = ledger
            .outbox_of(id)
            .await
            .into_iter()
            .filter(|no| *no == 2)
            .count();
        assert_eq!(again, 1, "one re-dispatch");
    }
    for store in handles.split_off(1) {
        store.close().await;
    }
    ledger.assert_laws_hold().await;
}

pub(crate) async fn r110_a_dead_grabber_returns_the_item(ledger: &Fixture) {
    let first = ledger.session("first").await;
    let id = ledger.running(first, &one_shot("book")).await.execution_id;
    ledger.take_over(first).await;
    let second = ledger.session("second").await;
    let grabbed = ledger.claim_one(second, id).await;
    assert!(
        ledger.recover_lost(GRACE, 10).await.unwrap().is_empty(),
        "it is off the list"
    );
    ledger.take_over(second).await;
    let third = ledger.session("third").await;
    let last = ledger.claim_one(third, id).await;
    assert_eq!((last.generation, last.attempt), (3, 3));
    assert_eq!(last.operation_id, grabbed.operation_id);
    ledger.commit_one(&last, complete()).await;
    assert_eq!(ledger.view(id).await.state, State::Succeeded);
    let history = ledger.story(id).await.attempts;
    let owners: Vec<Uuid> = history.iter().map(|attempt| attempt.session_id).collect();
    assert_eq!(owners, [first, second]);
    assert!(
        history
            .iter()
            .all(|attempt| attempt.reason == Some(Reason::WorkerLost))
    );
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_missing_session_counts_as_lost(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let claimed = ledger.running(session, &one_shot("book")).await;
    assert!(
        ledger.recover_lost(GRACE, 10).await.unwrap().is_empty(),
        "it is live"
    );
    ledger.sql("DELETE FROM session", args![]).await;
    let taken = ledger.recover_lost(GRACE, 10).await.unwrap();
    assert_eq!(taken.len(), 1);
    let view = ledger.view(claimed.execution_id).await;
    assert_eq!(
        (view.state, view.reason),
        (State::Retrying, Some(Reason::WorkerLost))
    );
    let left_by = ledger.row("SELECT left_by FROM execution", args![]).await;
    assert_eq!(left_by.text(0), "sweep");
}

pub(crate) async fn a_passed_deadline_is_a_timeout(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let over = ledger
        .running(session, &one_shot("book"))
        .await
        .execution_id;
    let in_grace = ledger
        .running(session, &one_shot("book"))
        .await
        .execution_id;
    let mut last = one_shot("book");
    last.policy.max_attempts = 1;
    let last = ledger.running(session, &last).await.execution_id;
    let fine = ledger
        .running(session, &one_shot("book"))
        .await
        .execution_id;
    for (id, ago) in [(over, 6), (in_grace, 2), (last, 60)] {
        let deadline = ledger.ago(secs(ago)).await;
        ledger
            .sql(
                "UPDATE execution SET deadline_at = $2 WHERE id = $1",
                args![id, deadline],
            )
            .await;
    }
    let mut taken: Vec<_> = ledger.recover_lost(GRACE, 10).await.unwrap();
    taken.sort_by_key(|recovered| recovered.state);
    let got: Vec<_> = taken.iter().map(|it| (it.execution_id, it.state)).collect();
    assert_eq!(got, [(over, State::Retrying), (last, State::Failed)]);
    let view = ledger.view(over).await;
    assert_eq!(
        (view.reason, view.attempt, view.dispatch_no),
        (Some(Reason::Timeout), 1, 2)
    );
    let view = ledger.view(last).await;
    assert_eq!(
        (view.reason, view.attempts_exhausted),
        (Some(Reason::Timeout), true)
    );
    assert!(view.ended_at.is_some());
    for id in [in_grace, fine] {
        assert_eq!(ledger.view(id).await.state, State::Running);
    }
}

pub(crate) async fn a_lost_last_attempt_fails_and_an_unrepeatable_one_is_unknown(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let new = |max_attempts: u32, on_lost| {
        let mut new = one_shot("book");
        (new.policy.max_attempts, new.policy.on_lost) = (max_attempts, on_lost);
        new
    };
    let last = ledger
        .running(session, &new(1, OnLost::Retry))
        .await
        .execution_id;
    let unknown = ledger
        .running(session, &new(5, OnLost::Unknown))
        .await
        .execution_id;
    let retry = ledger
        .running(session, &new(2, OnLost::Retry))
        .await
        .execution_id;
    ledger.lose(session).await;
    assert_eq!(
        ledger.recover_lost(GRACE, 2).await.unwrap().len(),
        2,
        "at most the limit"
    );
    assert_eq!(ledger.recover_lost(GRACE, 2).await.unwrap().len(), 1);
    assert_eq!(ledger.recover_lost(GRACE, 2).await.unwrap(), []);

    let view = ledger.view(last).await;
    assert_eq!(
        (view.state, view.reason),
        (State::Failed, Some(Reason::WorkerLost))
    );
    assert!(view.attempts_exhausted && view.ended_at.is_some());
    let view = ledger.view(unknown).await;
    assert_eq!(
        (view.state, view.reason),
        (State::Unknown, Some(Reason::WorkerLost))
    );
    assert!(view.attempt_ended_at.is_some() && view.ended_at.is_none());
    assert_eq!(
        (view.dispatch_no, view.attempts_exhausted),
        (1, false),
        "not run again by itself"
    );
    let view = ledger.view(retry).await;
    assert_eq!((view.state, view.dispatch_no), (State::Retrying, 2));
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_requested_cancel_ends_what_was_lost(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let mut claims: Vec<Claimed> = Vec::new();
    for on_lost in [OnLost::Retry, OnLost::Unknown] {
        let mut new = one_shot("book");
        new.policy.on_lost = on_lost;
        let claimed = ledger.running(session, &new).await;
        ledger.request_cancel(claimed.execution_id).await;
        claims.push(claimed);
    }
    ledger.take_over(session).await;
    let view = ledger.view(claims[0].execution_id).await;
    assert_eq!(
        view.state,
        State::Cancelled,
        "it may be repeated, so nothing is at stake"
    );
    assert!(view.ended_at.is_some());
    let view = ledger.view(claims[1].execution_id).await;
    assert_eq!(
        (view.state, view.ended_at),
        (State::Unknown, None),
        "nobody saw it stop"
    );
    assert_eq!(ledger.dispatch_due(10).await.unwrap(), 0);
    assert_eq!(view.dispatch_no, 1);
    ledger.assert_laws_hold().await;
}

/// The worker answers at the very moment it is given up: one of the two decides, not both.
pub(crate) async fn a_result_and_a_takeover_race_for_the_row(ledger: &Fixture) {
    let second = ledger.second().await;
    for round in 0..12 {
        let session = ledger.session("worker").await;
        let claimed = ledger.running(session, &one_shot("book")).await;
        ledger.lose(session).await;
        let (worker, ticker) = (ledger.first(), second.clone());
        let commit = result(&claimed, complete());
        let (committed, taken) = tokio::join!(
            tokio::spawn(async move { worker.commit(&[commit]).await.unwrap().remove(0) }),
            tokio::spawn(async move { ticker.recover_lost(GRACE, 10).await.unwrap() }),
        );
        let (committed, taken) = (committed.unwrap(), taken.unwrap().len());
        let view = ledger.view(claimed.execution_id).await;
        match committed {
            Committed::Accepted(state) => {
                assert_eq!(
                    (state, view.state, taken),
                    (State::Succeeded, state, 0),
                    "{round}"
                );
            }
            Committed::Fenced { state, .. } => {
                assert_eq!(
                    (state, view.state, taken),
                    (State::Retrying, state, 1),
                    "{round}"
                );
                assert_eq!((view.dispatch_no, view.attempt), (2, 1));
            }
            other @ (Committed::Late(_) | Committed::Gone) => panic!("it ran: {other:?}"),
        }
    }
    second.close().await;
    ledger.assert_laws_hold().await;
}
