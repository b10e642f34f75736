//! The fence: what a superseded owner says changes no row.

use bellwether_schemas::ids;
use bellwether_schemas::state::{Reason, State};
use bellwether_store::executions::{Claimed, Committed, Outcome, Refusal};

use crate::fixture::Fixture;
use crate::raw::args;
use crate::vocabulary::{claim_with, complete, error_after, one_shot, refused, result, secs};

/// A stale claim and the one that superseded it.
async fn taken_over(ledger: &Fixture) -> (Claimed, Claimed) {
    let first = ledger.session("first").await;
    let stale = ledger.running(first, &one_shot("book")).await;
    ledger.take_over(first).await;
    let second = ledger.session("second").await;
    let current = ledger.claim_one(second, stale.execution_id).await;
    (stale, current)
}

pub(crate) async fn r18_each_takeover_raises_the_generation(ledger: &Fixture) {
    let mut session = ledger.session("worker-1").await;
    let mut claims = vec![ledger.running(session, &one_shot("book")).await];
    let id = claims[0].execution_id;
    for n in 2..=3_i64 {
        ledger.take_over(session).await;
        let view = ledger.view(id).await;
        assert_eq!(
            (view.state, view.reason),
            (State::Retrying, Some(Reason::WorkerLost))
        );
        session = ledger.session("next").await;
        let claimed = ledger.claim_one(session, id).await;
        assert_eq!(
            (claimed.generation, i64::from(claimed.attempt)),
            (n, n),
            "the token carries it"
        );
        claims.push(claimed);
    }
    let row = ledger
        .row(
            "SELECT attempt, generation, claim_id FROM execution",
            args![],
        )
        .await;
    assert_eq!(
        (row.int(0), row.int(1), row.id(2)),
        (3, 3, claims[2].claim_id)
    );
    let history = ledger
        .rows(
            "SELECT generation, attempt, claim_id FROM attempt ORDER BY generation",
            args![],
        )
        .await;
    assert_eq!(history.len(), 2);
    for (row, claimed) in history.iter().zip(&claims) {
        assert_eq!(
            (row.int(0), row.int(1)),
            (claimed.generation, i64::from(claimed.attempt))
        );
        assert_eq!(row.id(2), claimed.claim_id);
    }
    assert!(
        claims
            .iter()
            .all(|claimed| claimed.operation_id == claims[0].operation_id)
    );
    ledger.assert_laws_hold().await;
}

pub(crate) async fn r19_stale_commit_changes_no_row(ledger: &Fixture) {
    let (stale, current) = taken_over(ledger).await;
    let id = stale.execution_id;
    let before = ledger.snapshot(id).await;
    let fenced = Committed::Fenced {
        state: State::Running,
        generation: 2,
    };
    assert_eq!(ledger.commit_one(&stale, complete()).await, fenced);
    assert_eq!(
        ledger.commit_one(&stale, complete()).await,
        fenced,
        "a repeat"
    );
    assert_eq!(ledger.snapshot(id).await, before);

    let kept = ledger
        .row(
            "SELECT claim_id, generation, outcome, found_state, found_generation, output
             FROM fenced_result",
            args![],
        )
        .await;
    assert_eq!(
        (kept.id(0), kept.int(1), kept.text(2)),
        (stale.claim_id, 1, "complete")
    );
    assert_eq!((kept.text(3), kept.int(4)), ("running", 2));
    assert_eq!(kept.bytes(5), b"\"done\"", "kept for audit");

    let answer = ledger
        .commit_one(&current, Outcome::Fail("really".to_owned()))
        .await;
    assert_eq!(answer, Committed::Accepted(State::Failed));
    let ended = ledger.snapshot(id).await;
    let late = ledger.commit_one(&stale, complete()).await;
    assert_eq!(
        late,
        Committed::Fenced {
            state: State::Failed,
            generation: 2
        }
    );
    assert_eq!(ledger.snapshot(id).await, ended, "the new result is intact");
    let story = ledger.story(id).await;
    assert_eq!((story.fenced.len(), story.fenced[0].generation), (1, 1));
    assert_eq!(story.output, None);
    ledger.assert_laws_hold().await;
}

/// The token is the proof, not the process, its memory or its connection.
pub(crate) async fn r20_ownership_is_proved_across_handles(ledger: &Fixture) {
    let other = ledger.second().await;
    let session = ledger.session("worker").await;
    let id = ledger.enqueue_one(&one_shot("book")).await;
    let claimed = claim_with(&*other, session, id).await;
    assert_eq!(refused(&ledger.try_claim(session, id).await), Refusal::Held);
    let guess = Claimed {
        claim_id: ids::token(),
        ..claimed.clone()
    };
    let next = Claimed {
        generation: 2,
        ..claimed.clone()
    };
    for stranger in [&guess, &next] {
        let answer = ledger.commit_one(stranger, complete()).await;
        assert_eq!(
            answer,
            Committed::Fenced {
                state: State::Running,
                generation: 1
            }
        );
    }
    other.close().await;
    drop(other);

    // The process that claimed is gone; whoever carries its token speaks for it.
    let third = ledger.second().await;
    let answer = third.commit(&[result(&claimed, complete())]).await.unwrap();
    assert_eq!(answer, [Committed::Accepted(State::Succeeded)]);
    assert_eq!(
        refused(&ledger.try_claim(session, id).await),
        Refusal::Terminal(State::Succeeded)
    );
    third.close().await;
    let session = ledger.session("worker").await;
    let running = ledger.running(session, &one_shot("book")).await;
    let (one, two) = (ledger.second().await, ledger.second().await);
    let mut owner = result(&running, complete());
    let thief = result(
        &Claimed {
            claim_id: ids::token(),
            ..running.clone()
        },
        complete(),
    );
    owner.outcome = Outcome::Fail("the owner's".to_owned());
    let (first, other) = tokio::join!(async { one.commit(&[owner]).await }, async {
        two.commit(&[thief]).await
    });
    assert_eq!(first.unwrap(), [Committed::Accepted(State::Failed)]);
    assert!(matches!(other.unwrap()[..], [Committed::Fenced { .. }]));
    one.close().await;
    two.close().await;
    ledger.assert_laws_hold().await;
}

/// Attempt 1 outlives its lease; attempt 2 finishes; then attempt 1 says each thing it could.
pub(crate) async fn p14_late_results_of_a_superseded_attempt(ledger: &Fixture) {
    let late = [
        complete(),
        error_after(secs(1)),
        Outcome::Snooze(secs(1)),
        Outcome::Release,
    ];
    for outcome in late.clone() {
        let (stale, current) = taken_over(ledger).await;
        let id = stale.execution_id;
        ledger
            .commit_one(&current, Outcome::Fail("no".to_owned()))
            .await;
        let before = ledger.snapshot(id).await;
        let answer = ledger.commit_one(&stale, outcome.clone()).await;
        assert_eq!(
            answer,
            Committed::Fenced {
                state: State::Failed,
                generation: 2
            },
            "{outcome:?}"
        );
        assert_eq!(
            ledger.snapshot(id).await,
            before,
            "{outcome:?} flipped it back"
        );
        let fenced = ledger.story(id).await.fenced;
        assert_eq!(
            (fenced.len(), fenced[0].outcome.as_str()),
            (1, outcome.as_str())
        );
    }
    for outcome in late {
        // Taken over by the sweep, not claimed again yet: the token is still in the row.
        let session = ledger.session("first").await;
        let stale = ledger.running(session, &one_shot("book")).await;
        ledger.take_over(session).await;
        let before = ledger.snapshot(stale.execution_id).await;
        let answer = ledger.commit_one(&stale, outcome.clone()).await;
        assert_eq!(
            answer,
            Committed::Fenced {
                state: State::Retrying,
                generation: 1
            },
            "{outcome:?}"
        );
        assert_eq!(ledger.snapshot(stale.execution_id).await, before);
    }
    let over = "SELECT count(*) FROM execution WHERE attempt > max_attempts";
    assert_eq!(ledger.count(over, args![]).await, 0);
    assert_eq!(
        ledger
            .count("SELECT count(*) FROM fenced_result", args![])
            .await,
        8
    );
    ledger.assert_laws_hold().await;
}

pub(crate) async fn the_last_attempts_late_result_does_not_reopen_it(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let mut new = one_shot("book");
    new.policy.max_attempts = 1;
    let claimed = ledger.running(session, &new).await;
    ledger.take_over(session).await;
    let before = ledger.snapshot(claimed.execution_id).await;
    for outcome in [complete(), error_after(secs(1))] {
        let answer = ledger.commit_one(&claimed, outcome).await;
        assert_eq!(
            answer,
            Committed::Fenced {
                state: State::Failed,
                generation: 1
            }
        );
    }
    assert_eq!(ledger.snapshot(claimed.execution_id).await, before);
    let next = ledger
        .try_claim(ledger.session("next").await, claimed.execution_id)
        .await;
    assert_eq!(refused(&next), Refusal::Terminal(State::Failed));
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_result_for_nothing_is_kept_too(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let claimed = ledger.running(session, &one_shot("book")).await;
    let orphan = Claimed {
        execution_id: ids::fresh(),
        ..claimed.clone()
    };
    let commits = [result(&orphan, complete()), result(&claimed, complete())];
    let answers = ledger.commit(&commits).await.unwrap();
    assert_eq!(
        answers,
        [Committed::Gone, Committed::Accepted(State::Succeeded)]
    );
    let row = ledger
        .row(
            "SELECT execution_id, found_state, found_generation FROM fenced_result",
            args![],
        )
        .await;
    assert_eq!(row.id(0), orphan.execution_id);
    assert!(row.is_null(1) && row.is_null(2), "there is no such row");
}

/// The stale owner and its successor commit at the same moment, many times over.
pub(crate) async fn racing_owners_leave_one_result(ledger: &Fixture) {
    let second = ledger.second().await;
    for round in 0..8 {
        let (stale, current) = taken_over(ledger).await;
        let old = result(&stale, Outcome::Fail("stale".to_owned()));
        let new = result(&current, complete());
        let (one, other) = (ledger.first(), second.clone());
        let (stale_answer, current_answer) = tokio::join!(
            tokio::spawn(async move { one.commit(&[old]).await.unwrap().remove(0) }),
            tokio::spawn(async move { other.commit(&[new]).await.unwrap().remove(0) }),
        );
        assert!(matches!(
            stale_answer.unwrap(),
            Committed::Fenced { generation: 2, .. }
        ));
        assert_eq!(
            current_answer.unwrap(),
            Committed::Accepted(State::Succeeded),
            "round {round}"
        );
        let view = ledger.view(stale.execution_id).await;
        assert_eq!((view.state, view.error), (State::Succeeded, None));
    }
    assert_eq!(
        ledger
            .count("SELECT count(*) FROM fenced_result", args![])
            .await,
        8
    );
    second.close().await;
    ledger.assert_laws_hold().await;
}
