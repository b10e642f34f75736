//! Results that come twice, too late, or beside another word about the same attempt.

use std::time::Duration;

use bellwether_schemas::state::{OnLost, State};
use bellwether_store::executions::{Claimed, Committed, Outcome};
use bellwether_store::inspect::ClaimState;

use crate::commit::running;
use crate::fixture::Fixture;
use crate::raw::args;
use crate::vocabulary::{complete, error_after, hours, hung, one_shot, result, secs};

pub(crate) async fn a_repeated_commit_answers_as_the_first_did(ledger: &Fixture) {
    let outcomes = [
        complete(),
        Outcome::Fail("no".to_owned()),
        Outcome::Cancel("no".to_owned()),
        error_after(hours(1)),
        Outcome::Snooze(hours(1)),
        Outcome::Release,
    ];
    let second = ledger.second().await;
    for outcome in outcomes {
        let claimed = running(ledger, 2).await;
        let first = ledger.commit_one(&claimed, outcome.clone()).await;
        let before = ledger.snapshot(claimed.execution_id).await;
        let commits = [
            result(&claimed, outcome.clone()),
            result(&claimed, outcome.clone()),
        ];
        let again = second.commit(&commits).await.unwrap();
        assert_eq!(again, [first, first], "{outcome:?}");
        assert_eq!(
            ledger.snapshot(claimed.execution_id).await,
            before,
            "{outcome:?}"
        );
        assert!(ledger.story(claimed.execution_id).await.fenced.is_empty());
    }
    second.close().await;
    ledger.assert_laws_hold().await;
}

pub(crate) async fn duplicates_in_one_batch_are_one_result(ledger: &Fixture) {
    let claimed = running(ledger, 5).await;
    let other = running(ledger, 5).await;
    let commits = [
        result(&claimed, complete()),
        result(&other, error_after(secs(60))),
        result(&claimed, complete()),
    ];
    let answers = ledger.commit(&commits).await.unwrap();
    let expected = [State::Succeeded, State::Retrying, State::Succeeded].map(Committed::Accepted);
    assert_eq!(answers, expected);
    assert!(ledger.story(claimed.execution_id).await.fenced.is_empty());
    assert_eq!(
        ledger
            .count("SELECT count(*) FROM fenced_result", args![])
            .await,
        0
    );
    assert!(ledger.commit(&[]).await.unwrap().is_empty());
    ledger.assert_laws_hold().await;
}

/// Nothing of `unknown` is decided but by who holds the claim.
pub(crate) async fn a_late_commit_settles_an_unknown_execution(ledger: &Fixture) {
    let cases = [
        (complete(), State::Succeeded),
        (error_after(secs(60)), State::Retrying),
        (Outcome::Fail("no".to_owned()), State::Failed),
        (Outcome::Cancel("no".to_owned()), State::Cancelled),
    ];
    for (outcome, state) in cases {
        let claimed = ledger.unknown("book").await;
        let id = claimed.execution_id;
        let before = ledger.snapshot(id).await;
        let stranger = Claimed {
            claim_id: bellwether_schemas::ids::token(),
            ..claimed.clone()
        };
        let answer = ledger.commit_one(&stranger, outcome.clone()).await;
        assert_eq!(
            answer,
            Committed::Fenced {
                state: State::Unknown,
                generation: 1
            }
        );
        assert_eq!(ledger.snapshot(id).await, before);

        let answer = ledger.commit_one(&claimed, outcome.clone()).await;
        assert_eq!(answer, Committed::Late(state), "{outcome:?}");
        let again = ledger.commit_one(&claimed, outcome.clone()).await;
        assert_eq!(again, Committed::Late(state), "{outcome:?}");
        let view = ledger.view(id).await;
        assert_eq!((view.state, view.generation, view.attempt), (state, 1, 1));
    }
    let session = ledger.session("worker").await;
    let mut new = one_shot("book");
    new.policy.on_lost = OnLost::Unknown;
    let known = ledger.running(session, &new).await;
    ledger.commit_one(&known, complete()).await;
    assert_eq!(
        ledger.view(known.execution_id).await.state,
        State::Succeeded,
        "not lost at all"
    );
    ledger.assert_laws_hold().await;
}

/// The answer was lost, the row went on: what was accepted stays accepted.
pub(crate) async fn a_repeated_commit_is_accepted_after_the_next_claim(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    for outcome in [
        error_after(Duration::ZERO),
        Outcome::Release,
        Outcome::Snooze(Duration::ZERO),
    ] {
        let first = ledger.running(session, &one_shot("book")).await;
        let accepted = Committed::Accepted(State::Retrying);
        assert_eq!(ledger.commit_one(&first, outcome.clone()).await, accepted);
        let other = ledger.session("other").await;
        let second = ledger.claim_one(other, first.execution_id).await;
        let before = ledger.snapshot(first.execution_id).await;
        let repeat = ledger.commit_one(&first, outcome.clone()).await;
        assert_eq!(repeat, accepted, "{outcome:?}");
        assert_eq!(ledger.snapshot(first.execution_id).await, before);

        let stranger = Claimed {
            claim_id: bellwether_schemas::ids::token(),
            ..second.clone()
        };
        let answer = ledger.commit_one(&stranger, complete()).await;
        assert!(matches!(answer, Committed::Fenced { .. }), "{answer:?}");
        ledger.commit_one(&second, complete()).await;
        assert_eq!(ledger.commit_one(&first, outcome).await, accepted, "ended");
        let story = ledger.story(first.execution_id).await;
        assert_eq!(story.fenced.len(), 1, "the stranger's only");
    }
    ledger.assert_laws_hold().await;
}

/// Who counts attempts by these answers counts each once: the word that took it out of `running` is
/// `Accepted`, to a repeat too, and any other is `Late`.
pub(crate) async fn of_all_words_about_an_attempt_one_has_ended_it(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let mut new = one_shot("book");
    new.policy.on_lost = OnLost::Unknown;
    for (outcome, state) in [
        (complete(), State::Succeeded),
        (error_after(Duration::ZERO), State::Retrying),
        (Outcome::Release, State::Retrying),
    ] {
        // The worker gives it up first, then its handler returns.
        new.fire_id = bellwether_schemas::ids::fresh();
        let own = ledger.running(session, &new).await;
        for _ in 0..2 {
            let gave_up = ledger.commit_one(&own, hung(secs(1))).await;
            assert_eq!(gave_up, Committed::Accepted(State::Unknown));
        }
        // A sweep was first.
        let swept = ledger.unknown("book").await;
        for _ in 0..2 {
            let says_the_same = ledger.commit_one(&swept, hung(secs(1))).await;
            assert_eq!(says_the_same, Committed::Late(State::Unknown));
        }
        for claimed in [own, swept] {
            for _ in 0..2 {
                let late = ledger.commit_one(&claimed, outcome.clone()).await;
                assert_eq!(late, Committed::Late(state), "and its repeat");
            }
            let stands = ledger.claim_state(claimed.execution_id, claimed.claim_id);
            assert_eq!(stands.await.unwrap(), ClaimState::EndedLate(state));
            if state != State::Retrying {
                continue;
            }
            // The next attempt is one of its own, whatever the one before came to.
            let second = ledger.claim_one(session, claimed.execution_id).await;
            let repeat = ledger.commit_one(&claimed, outcome.clone()).await;
            assert_eq!(repeat, Committed::Late(state), "after the next claim, too");
            let stands = ledger.claim_state(claimed.execution_id, claimed.claim_id);
            assert_eq!(stands.await.unwrap(), ClaimState::EndedLate(state));
            let done = ledger.commit_one(&second, complete()).await;
            assert_eq!(done, Committed::Accepted(State::Succeeded));
        }
    }
    ledger.assert_laws_hold().await;
}
