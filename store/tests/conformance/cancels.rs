//! Requests to cancel: what waits ends at once, what runs is told, what has ended stays so.

use std::time::Duration;

use bellwether_schemas::ids;
use bellwether_schemas::state::{Capability, OnLost, Reason, State};
use bellwether_store::executions::{
    CancelRequested, ClaimAnswer, Claimed, Committed, Outcome, Refusal, Retried,
};
use bellwether_store::sessions::NewSession;
use uuid::Uuid;

use crate::fixture::Fixture;
use crate::raw::{Raw, args};
use crate::vocabulary::{
    ask, complete, error_after, hours, hung, new_session, one_shot, refused, result, secs,
};

/// A worker that looks for requests to cancel.
async fn attentive(ledger: &Fixture) -> Uuid {
    let id = ids::fresh();
    let session = NewSession {
        capabilities: vec![Capability::Cancel],
        ..new_session(id, "attentive")
    };
    ledger.open_session(&session).await.unwrap();
    id
}

/// Past the fixture's verb of that name, which marks a row by hand.
async fn cancel_all(ledger: &Fixture, ids: &[Uuid]) -> Vec<CancelRequested> {
    (**ledger).request_cancel(ids).await.unwrap()
}

async fn cancel(ledger: &Fixture, id: Uuid) -> CancelRequested {
    cancel_all(ledger, &[id]).await.remove(0)
}

/// A one-shot whose attempt ended with `outcome`.
async fn left(ledger: &Fixture, session: Uuid, outcome: Outcome) -> Uuid {
    let claimed = ledger.running(session, &one_shot("book")).await;
    ledger.commit_one(&claimed, outcome).await;
    claimed.execution_id
}

/// A one-shot that nobody started in time.
async fn expired(ledger: &Fixture) -> Uuid {
    let id = ledger.enqueue_one(&one_shot("book")).await;
    let past = ledger.ago(secs(1)).await;
    ledger
        .sql(
            "UPDATE execution SET start_deadline_at = $2 WHERE id = $1",
            args![id, past],
        )
        .await;
    assert_eq!(ledger.expire_starts(10).await.unwrap().len(), 1);
    id
}

pub(crate) async fn a_cancel_in_every_state_has_one_answer(ledger: &Fixture) {
    let worker = attentive(ledger).await;
    let expired = expired(ledger).await;
    let unknown = ledger.unknown("book").await.execution_id;
    let pending = ledger.enqueue_one(&one_shot("book")).await;
    let retrying = left(ledger, worker, error_after(hours(1))).await;
    let running = ledger.running(worker, &one_shot("book")).await.execution_id;
    let succeeded = left(ledger, worker, complete()).await;
    let failed = left(ledger, worker, Outcome::Fail("no".to_owned())).await;
    let cancelled = left(ledger, worker, Outcome::Cancel("no".to_owned())).await;
    let ended = [succeeded, failed, cancelled, expired];
    let mut before = Vec::new();
    for id in ended {
        before.push(ledger.snapshot(id).await);
    }

    let requested = |state, told| CancelRequested::Requested { state, told };
    let batch = [
        pending,
        retrying,
        running,
        unknown,
        succeeded,
        failed,
        cancelled,
        expired,
        ids::fresh(),
        pending, // stands twice
    ];
    let answers = cancel_all(ledger, &batch).await;
    assert_eq!(
        answers,
        [
            CancelRequested::Cancelled,
            CancelRequested::Cancelled,
            requested(State::Running, true),
            CancelRequested::Cancelled,
            CancelRequested::Ended(State::Succeeded),
            CancelRequested::Ended(State::Failed),
            CancelRequested::Ended(State::Cancelled),
            CancelRequested::Ended(State::Expired),
            CancelRequested::NotFound,
            CancelRequested::Ended(State::Cancelled),
        ]
    );
    for id in [pending, retrying, unknown] {
        let view = ledger.view(id).await;
        assert_eq!(
            (view.state, view.reason),
            (State::Cancelled, Some(Reason::Cancelled))
        );
        assert!(view.cancel_requested_at.is_some() && view.ended_at.is_some());
    }
    let error = ledger.view(retrying).await.error;
    assert_eq!(error.as_deref(), Some("no luck"), "what it died of is kept");
    let view = ledger.view(running).await;
    assert_eq!((view.state, view.ended_at), (State::Running, None));
    assert!(view.cancel_requested_at.is_some(), "recorded");
    for (id, before) in ended.into_iter().zip(before) {
        assert_eq!(
            ledger.snapshot(id).await,
            before,
            "what ended is not touched"
        );
    }

    let asked_at = ledger.view(running).await.cancel_requested_at;
    assert_eq!(
        cancel(ledger, running).await,
        requested(State::Running, true)
    );
    assert_eq!(
        ledger.view(running).await.cancel_requested_at,
        asked_at,
        "the first request stands"
    );
    assert_eq!(
        cancel(ledger, retrying).await,
        CancelRequested::Ended(State::Cancelled)
    );
    assert!(cancel_all(ledger, &[]).await.is_empty());
    ledger.assert_laws_hold().await;
}

pub(crate) async fn what_was_cancelled_while_it_waited_is_neither_sent_nor_claimed(
    ledger: &Fixture,
) {
    let session = ledger.session("worker").await;
    let sent = ledger.enqueue_one(&one_shot("book")).await;
    let rows = ledger.claim_outbox(10, secs(30), &[]).await.unwrap();
    assert_eq!(rows.len(), 1, "with the relay already");
    let waiting = ledger.enqueue_one(&one_shot("book")).await;
    let mut later = one_shot("book");
    later.run_at = Some(ledger.now().await + hours(1));
    let later = ledger.enqueue_one(&later).await;

    let answers = cancel_all(ledger, &[sent, waiting, later]).await;
    assert_eq!(answers, [CancelRequested::Cancelled; 3]);
    assert!(
        ledger
            .claim_outbox(10, secs(30), &[])
            .await
            .unwrap()
            .is_empty(),
        "overtaken rows are dropped, not sent"
    );
    assert_eq!(ledger.outbox_of(waiting).await, [] as [i64; 0]);
    let claim = ledger.claim(session, &[ask(sent, 1)]).await.unwrap();
    assert_eq!(refused(&claim[0]), Refusal::Terminal(State::Cancelled));
    ledger.make_due(later).await;
    assert_eq!(ledger.dispatch_due(10).await.unwrap(), 0);
    ledger.assert_laws_hold().await;
}

/// A peer that does not announce it is not promised for.
pub(crate) async fn r09_only_a_worker_that_looks_for_it_is_said_to_be_told(ledger: &Fixture) {
    let (old, new) = (ledger.session("old").await, attentive(ledger).await);
    let of_old = ledger.running(old, &one_shot("book")).await;
    let of_new = ledger.running(new, &one_shot("book")).await;
    let of_lost = ledger.running(new, &one_shot("book")).await;
    let told = async |claimed: &Claimed| match cancel(ledger, claimed.execution_id).await {
        CancelRequested::Requested {
            state: State::Running,
            told,
        } => told,
        other => panic!("{other:?}"),
    };
    assert!(!told(&of_old).await);
    assert!(told(&of_new).await);
    ledger.lose(new).await;
    assert!(!told(&of_lost).await, "nobody is there any more");
}

/// Whatever the order, one row decides: it was cancelled, or it succeeded and the request lost.
pub(crate) async fn a_cancel_racing_a_result_is_decided_by_the_row(ledger: &Fixture) {
    let other = ledger.second().await;
    let session = attentive(ledger).await;
    for round in 0..12 {
        let claimed = ledger.running(session, &one_shot("book")).await;
        let id = claimed.execution_id;
        let outcome = if round % 2 == 0 {
            complete()
        } else {
            error_after(Duration::ZERO)
        };
        let commit = [result(&claimed, outcome)];
        let (one, two) = (ledger.first(), other.clone());
        let (answer, committed) = tokio::join!(
            tokio::spawn(async move { one.request_cancel(&[id]).await.unwrap().remove(0) }),
            tokio::spawn(async move { two.commit(&commit).await.unwrap().remove(0) }),
        );
        let (answer, committed) = (answer.unwrap(), committed.unwrap());
        let view = ledger.view(id).await;
        assert!(view.state.is_terminal(), "round {round}: {view:?}");
        let first = matches!(answer, CancelRequested::Requested { told: true, .. });
        if round % 2 == 0 {
            assert_eq!(committed, Committed::Accepted(State::Succeeded));
            assert_eq!(view.state, State::Succeeded);
            assert_eq!(view.cancel_lost, first, "{answer:?}");
            assert!(first || answer == CancelRequested::Ended(State::Succeeded));
        } else {
            assert_eq!(view.state, State::Cancelled, "it never runs again");
            let accepted = if first {
                State::Cancelled
            } else {
                State::Retrying
            };
            assert_eq!(committed, Committed::Accepted(accepted));
            assert!(first || answer == CancelRequested::Cancelled, "{answer:?}");
        }
    }
    other.close().await;
    ledger.assert_laws_hold().await;
}

/// Law 14: nothing is claimed after the request.
pub(crate) async fn a_cancel_racing_a_claim_is_decided_by_the_row(ledger: &Fixture) {
    let other = ledger.second().await;
    let session = attentive(ledger).await;
    for round in 0..12 {
        let id = ledger.enqueue_one(&one_shot("book")).await;
        let (one, two) = (ledger.first(), other.clone());
        let (answer, claim) = tokio::join!(
            tokio::spawn(async move { one.request_cancel(&[id]).await.unwrap().remove(0) }),
            tokio::spawn(async move { two.claim(session, &[ask(id, 1)]).await.unwrap().remove(0) }),
        );
        match (answer.unwrap(), claim.unwrap()) {
            (CancelRequested::Cancelled, ClaimAnswer::Refused(_) | ClaimAnswer::Busy) => {
                assert_eq!(ledger.view(id).await.generation, 0, "round {round}");
            }
            (CancelRequested::Requested { state, .. }, ClaimAnswer::Claimed(claimed)) => {
                assert_eq!(state, State::Running);
                let hints = ledger.cancel_hints(session).await.unwrap();
                let told = hints.iter().any(|hint| hint.claim_id == claimed.claim_id);
                assert!(told, "its worker is told");
            }
            both => panic!("round {round}: {both:?}"),
        }
    }
    other.close().await;
    ledger.assert_laws_hold().await;
}

/// Requested while it ran: the request waits with it, and whichever result comes ends it for good.
pub(crate) async fn an_unknown_execution_ends_by_its_late_result(ledger: &Fixture) {
    for (outcome, state) in [
        (complete(), State::Succeeded),
        (error_after(Duration::ZERO), State::Cancelled),
        (Outcome::Cancel("asked to".to_owned()), State::Cancelled),
    ] {
        let claimed = ledger.unknown("book").await;
        ledger.request_cancel(claimed.execution_id).await;
        let committed = ledger.commit_one(&claimed, outcome).await;
        assert_eq!(committed, Committed::Late(state));
        let view = ledger.view(claimed.execution_id).await;
        assert_eq!(view.cancel_lost, state == State::Succeeded);
    }
    ledger.assert_laws_hold().await;
}

/// Lost, or left by a handler that has not stopped: a person ends it, and may have it run again.
pub(crate) async fn an_unknown_execution_is_ended_by_a_cancel(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let mut new = one_shot("book");
    new.policy.on_lost = OnLost::Unknown;
    let left = ledger.running(session, &new).await;
    let answer = ledger.commit_one(&left, hung(secs(1))).await;
    assert_eq!(answer, Committed::Accepted(State::Unknown));
    for claimed in [ledger.unknown("book").await, left] {
        let id = claimed.execution_id;
        assert_eq!(cancel(ledger, id).await, CancelRequested::Cancelled);
        let view = ledger.view(id).await;
        assert_eq!(
            (view.state, view.reason),
            (State::Cancelled, Some(Reason::Cancelled))
        );
        assert!(view.ended_at.is_some() && view.error.is_some(), "{view:?}");
        assert_eq!(view.generation, claimed.generation);
        let before = ledger.snapshot(id).await;
        assert_eq!(
            cancel(ledger, id).await,
            CancelRequested::Ended(State::Cancelled)
        );

        let late = Committed::Fenced {
            state: State::Cancelled,
            generation: claimed.generation,
        };
        for _ in 0..2 {
            assert_eq!(ledger.commit_one(&claimed, complete()).await, late);
        }
        assert_eq!(ledger.story(id).await.fenced.len(), 1, "kept for audit");
        assert_eq!(ledger.snapshot(id).await, before);

        // The retry that is unknown takes the place of any other until it is cancelled, too.
        let retry = async || {
            let answer = ledger
                .retry_execution(id, ids::fresh(), None)
                .await
                .unwrap();
            let Retried::Retried { execution_id } = answer else {
                panic!("{answer:?}")
            };
            execution_id
        };
        let again = retry().await;
        let lost = ledger.session("lost").await;
        ledger.claim_one(lost, again).await;
        ledger.take_over(lost).await;
        assert_eq!(ledger.view(again).await.state, State::Unknown);
        assert_eq!(cancel(ledger, again).await, CancelRequested::Cancelled);
        retry().await;
    }
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_locked_execution_keeps_no_other_from_its_request(ledger: &Fixture) {
    let Raw::Postgres(pool) = ledger.raw() else {
        return; // One writer: no single row is ever locked.
    };
    let mut options = ledger.options().clone();
    options.lock_timeout = Duration::from_millis(100);
    let store = bellwether_store::connect(&options).await.unwrap();
    let mut all = Vec::new();
    for _ in 0..3 {
        all.push(ledger.enqueue_one(&one_shot("book")).await);
    }
    let mut held = pool.begin().await.unwrap();
    sqlx::query("SELECT id FROM execution WHERE id = $1 FOR UPDATE")
        .bind(all[1])
        .fetch_one(&mut *held)
        .await
        .unwrap();
    assert_eq!(
        store.request_cancel(&all).await.unwrap(),
        [
            CancelRequested::Cancelled,
            CancelRequested::Locked,
            CancelRequested::Cancelled
        ]
    );
    let mut states = Vec::new();
    for &id in &all {
        states.push(ledger.view(id).await.state);
    }
    let done = State::Cancelled;
    assert_eq!(states, [done, State::Pending, done]);
    held.rollback().await.unwrap();
    let ended = CancelRequested::Ended(State::Cancelled);
    assert_eq!(
        store.request_cancel(&all).await.unwrap(),
        [ended, CancelRequested::Cancelled, ended]
    );
    store.close().await;
}
