//! Commits: every transition out of `running`, with its charge.

use std::time::Duration;

use bellwether_schemas::limits::{ERROR_TEXT_MAX, OUTPUT_MAX};
use bellwether_schemas::state::{OnLost, Reason, State};
use bellwether_store::executions::{Claimed, Committed, Outcome};
use bellwether_store::inspect::ClaimState;
use bellwether_store::{ErrorKind, Payload};

use crate::fixture::Fixture;
use crate::raw::args;
use crate::vocabulary::{claim_with, complete, error_after, hours, hung, one_shot, result, secs};

/// Makes every update of an execution of job `poison` fail.
pub(crate) async fn poison(ledger: &Fixture) {
    ledger
        .ddl(
            "CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql
                 AS $$ BEGIN RAISE EXCEPTION 'poisoned row'; END $$;
             CREATE TRIGGER poison BEFORE UPDATE ON execution FOR EACH ROW
                 WHEN (OLD.job = 'poison') EXECUTE FUNCTION poison()",
            "CREATE TRIGGER poison BEFORE UPDATE ON execution WHEN OLD.job = 'poison'
                 BEGIN SELECT RAISE(ABORT, 'poisoned row'); END",
        )
        .await;
}

/// Ends what [`poison`] began.
pub(crate) async fn unpoison(ledger: &Fixture) {
    ledger
        .ddl("DROP TRIGGER poison ON execution", "DROP TRIGGER poison")
        .await;
}

pub(crate) async fn running(ledger: &Fixture, max_attempts: u32) -> Claimed {
    let session = ledger.session("worker").await;
    let mut new = one_shot("book");
    new.policy.max_attempts = max_attempts;
    ledger.running(session, &new).await
}

pub(crate) async fn complete_ends_it_with_its_output(ledger: &Fixture) {
    let claimed = running(ledger, 5).await;
    let output = Payload {
        bytes: vec![b'x'; OUTPUT_MAX],
        content_type: "application/msgpack".to_owned(),
    };
    let answer = ledger
        .commit_one(&claimed, Outcome::Complete(output.clone()))
        .await;
    assert_eq!(answer, Committed::Accepted(State::Succeeded));
    let story = ledger.story(claimed.execution_id).await;
    assert_eq!(story.output, Some(output));
    let view = story.execution;
    assert_eq!(
        (view.state, view.reason, view.error),
        (State::Succeeded, None, None)
    );
    assert_eq!(
        (view.attempt, view.generation, view.attempts_exhausted),
        (1, 1, false)
    );
    assert!(view.ended_at.is_some() && view.ended_at == view.attempt_ended_at);
    assert!(view.started_at.is_some());
    assert!(
        story.attempts.is_empty(),
        "the current attempt stands in the row"
    );
    let large = running(ledger, 5).await;
    let output = Payload::json(vec![b'1'; OUTPUT_MAX + 1]);
    let commits = [result(&large, Outcome::Complete(output))];
    let error = ledger.commit(&commits).await.expect_err("too large");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(ledger.view(large.execution_id).await.state, State::Running);
    let accepted = ledger
        .count(
            "SELECT result_generation FROM execution WHERE state = 'succeeded'",
            args![],
        )
        .await;
    assert_eq!(accepted, 1);
    assert!(
        ledger
            .running_of(view.session_id.expect("a session"))
            .await
            .unwrap()
            .is_empty()
    );
    ledger.assert_laws_hold().await;
}

pub(crate) async fn an_error_is_tried_again_after_its_delay(ledger: &Fixture) {
    let claimed = running(ledger, 3).await;
    let id = claimed.execution_id;
    let before = ledger.ago(Duration::ZERO).await;
    let answer = ledger.commit_one(&claimed, error_after(secs(90))).await;
    assert_eq!(answer, Committed::Accepted(State::Retrying));
    let after = ledger.now().await;
    let view = ledger.view(id).await;
    assert_eq!(
        (view.reason, view.error.as_deref()),
        (Some(Reason::Error), Some("no luck"))
    );
    assert_eq!(
        (view.attempt, view.dispatched_at, view.ended_at),
        (1, None, None)
    );
    let due = view.available_at - secs(90);
    assert!(
        before <= due && due <= after,
        "due after the delay, by the ledger's clock"
    );
    assert_eq!(ledger.dispatch_due(10).await.unwrap(), 0);

    ledger.make_due(id).await;
    assert_eq!(ledger.dispatch_due(10).await.unwrap(), 1);
    let session = ledger.session("worker").await;
    let second = ledger.claim_one(session, id).await;
    assert_eq!((second.attempt, second.generation), (2, 2));
    assert_eq!(second.operation_id, claimed.operation_id);
    let history = ledger.story(id).await.attempts;
    assert_eq!(history.len(), 1);
    assert_eq!((history[0].generation, history[0].attempt), (1, 1));
    assert_eq!(
        (history[0].reason, history[0].error.as_deref()),
        (Some(Reason::Error), Some("no luck"))
    );
    assert_eq!(Some(history[0].ended_at), view.attempt_ended_at);
    assert_eq!(
        (Some(history[0].claimed_at), history[0].started_at),
        (view.claimed_at, view.started_at)
    );
    assert_eq!(Some(history[0].session_id), view.session_id);
    ledger.assert_laws_hold().await;
}

pub(crate) async fn the_last_attempt_ends_it(ledger: &Fixture) {
    let reasons = [
        Reason::Error,
        Reason::Timeout,
        Reason::Panic,
        Reason::BadPayload,
    ];
    for reason in reasons {
        let claimed = running(ledger, 1).await;
        let outcome = Outcome::Retry {
            reason,
            error: "no".to_owned(),
            delay: secs(1),
            stopped: true,
        };
        let answer = ledger.commit_one(&claimed, outcome).await;
        assert_eq!(answer, Committed::Accepted(State::Failed), "{reason}");
        let view = ledger.view(claimed.execution_id).await;
        assert_eq!((view.reason, view.attempts_exhausted), (Some(reason), true));
        assert_eq!((view.attempt, view.max_attempts), (1, 1));
        assert!(view.ended_at.is_some());
    }
    assert_eq!(ledger.dispatch_due(10).await.unwrap(), 0);
    ledger.assert_laws_hold().await;
}

pub(crate) async fn snooze_and_release_give_the_charge_back(ledger: &Fixture) {
    for (outcome, reason) in [
        (Outcome::Snooze(secs(120)), Reason::Snooze),
        (Outcome::Release, Reason::Release),
    ] {
        let claimed = running(ledger, 1).await;
        let id = claimed.execution_id;
        let answer = ledger.commit_one(&claimed, outcome.clone()).await;
        assert_eq!(answer, Committed::Accepted(State::Retrying), "{outcome:?}");
        let view = ledger.view(id).await;
        assert_eq!(
            (view.reason, view.attempt, view.generation),
            (Some(reason), 0, 1)
        );
        assert!(!view.attempts_exhausted);
        let released = reason == Reason::Release;
        assert_eq!(
            view.dispatched_at.is_some(),
            released,
            "a release is due, and dispatched, now"
        );
        assert_eq!(view.available_at <= ledger.now().await, released);
        assert_eq!(ledger.outbox_of(id).await.contains(&2), released);
        ledger.make_due(id).await;
        assert_eq!(ledger.dispatch_due(10).await.unwrap(), u64::from(!released));
        let again = ledger.claim_one(ledger.session("worker").await, id).await;
        assert_eq!(
            (again.attempt, again.generation),
            (1, 2),
            "it may still be tried"
        );
        let history = ledger.story(id).await.attempts;
        assert_eq!(
            (history[0].attempt, history[0].reason),
            (1, Some(reason)),
            "as it was called"
        );
        ledger.commit_one(&again, complete()).await;
        assert_eq!(ledger.view(id).await.state, State::Succeeded);
    }
    ledger.assert_laws_hold().await;
}

pub(crate) async fn fail_and_cancel_end_it_for_good(ledger: &Fixture) {
    let cases = [
        (
            Outcome::Fail("bad account".to_owned()),
            State::Failed,
            Reason::Rejected,
        ),
        (
            Outcome::Cancel("holiday".to_owned()),
            State::Cancelled,
            Reason::Cancelled,
        ),
    ];
    for (outcome, state, reason) in cases {
        let claimed = running(ledger, 5).await;
        let said = match &outcome {
            Outcome::Fail(text) | Outcome::Cancel(text) => text.clone(),
            other => panic!("{other:?}"),
        };
        let answer = ledger.commit_one(&claimed, outcome).await;
        assert_eq!(answer, Committed::Accepted(state));
        let view = ledger.view(claimed.execution_id).await;
        assert_eq!((view.state, view.reason), (state, Some(reason)));
        assert_eq!((view.error, view.attempts_exhausted), (Some(said), false));
        assert_eq!((view.attempt, view.ended_at), (1, view.attempt_ended_at));
    }
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_requested_cancel_ends_what_would_run_again(ledger: &Fixture) {
    let again = [
        error_after(secs(1)),
        Outcome::Snooze(secs(1)),
        Outcome::Release,
    ];
    for outcome in again {
        let claimed = running(ledger, 5).await;
        ledger.request_cancel(claimed.execution_id).await;
        let answer = ledger.commit_one(&claimed, outcome.clone()).await;
        assert_eq!(answer, Committed::Accepted(State::Cancelled), "{outcome:?}");
        let view = ledger.view(claimed.execution_id).await;
        assert_eq!(
            (view.state, view.ended_at.is_some()),
            (State::Cancelled, true)
        );
    }
    let obeyed = running(ledger, 5).await;
    ledger.request_cancel(obeyed.execution_id).await;
    let answer = ledger
        .commit_one(&obeyed, Outcome::Cancel("asked to".to_owned()))
        .await;
    assert_eq!(answer, Committed::Accepted(State::Cancelled));
    let failed = running(ledger, 5).await;
    ledger.request_cancel(failed.execution_id).await;
    let answer = ledger
        .commit_one(&failed, Outcome::Fail("no".to_owned()))
        .await;
    assert_eq!(answer, Committed::Accepted(State::Failed));

    let sooner = running(ledger, 5).await;
    ledger.request_cancel(sooner.execution_id).await;
    let answer = ledger.commit_one(&sooner, complete()).await;
    assert_eq!(answer, Committed::Accepted(State::Succeeded));
    let lost = "SELECT count(*) FROM execution WHERE cancel_lost AND state = 'succeeded'";
    assert_eq!(
        ledger.count(lost, args![]).await,
        1,
        "flagged: the cancel came too late"
    );
    let flagged = "SELECT count(*) FROM execution WHERE cancel_lost";
    assert_eq!(ledger.count(flagged, args![]).await, 1);
    assert_eq!(ledger.dispatch_due(10).await.unwrap(), 0);
}

pub(crate) async fn text_of_handlers_is_made_fit_for_the_ledger(ledger: &Fixture) {
    let hostile = [
        format!("a\0b{}", "é".repeat(10_000)),
        format!("{}\0", "x".repeat(5_000_000)),
        // What is next to a surrogate, the last character, direction marks, quotes, escapes.
        "\0\u{d7ff}\u{e000}\u{fffd}\u{10ffff}\u{202e}\u{feff}'; DROP TABLE x; --\\x00\x1b[31m"
            .to_owned(),
        "\0".repeat(5_000),
        String::new(),
    ];
    for text in hostile {
        let outcomes = [
            Outcome::Retry {
                reason: Reason::Error,
                error: text.clone(),
                delay: secs(1),
                stopped: true,
            },
            Outcome::Fail(text.clone()),
            Outcome::Cancel(text.clone()),
        ];
        for outcome in outcomes {
            let claimed = running(ledger, 5).await;
            let stranger = Claimed {
                claim_id: bellwether_schemas::ids::token(),
                ..claimed.clone()
            };
            let fenced = ledger.commit_one(&stranger, outcome.clone()).await;
            assert!(matches!(fenced, Committed::Fenced { .. }), "{fenced:?}");
            let answer = ledger.commit_one(&claimed, outcome).await;
            assert!(matches!(answer, Committed::Accepted(_)), "{answer:?}");
            let error = ledger.view(claimed.execution_id).await.error;
            let error = error.expect("an error");
            assert!(!error.contains('\0'), "no NUL");
            assert!(error.chars().count() <= ERROR_TEXT_MAX);
            let cut = text.chars().count() > ERROR_TEXT_MAX;
            let kept = error.trim_end_matches('…').replace('\u{2400}', "\0");
            assert!(text.starts_with(&kept), "the start is kept");
            assert_eq!(error.ends_with('…'), cut, "a cut is marked");
            assert!(cut || kept == text, "what is short is whole");
            let audited = ledger
                .row(
                    "SELECT error FROM fenced_result WHERE claim_id = $1",
                    args![stranger.claim_id],
                )
                .await;
            assert_eq!(audited.text(0), error, "for audit too");
        }
    }
}

/// A result that the database refuses spoils neither its batch nor the next commit.
pub(crate) async fn r113_error_in_the_middle_of_a_commit_batch_releases_it(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let good = ledger.running(session, &one_shot("book")).await;
    let bad = ledger.running(session, &one_shot("poison")).await;
    let last = ledger.running(session, &one_shot("book")).await;
    poison(ledger).await;
    let commits = [&good, &bad, &last].map(|claimed| result(claimed, complete()));
    // A failed commit has no answer of its own, so the call fails; the others are in the ledger.
    let error = ledger.commit(&commits).await.expect_err("one row fails");
    assert!(error.to_string().contains("poisoned row"), "{error}");
    assert_eq!(ledger.view(good.execution_id).await.state, State::Succeeded);
    assert_eq!(ledger.view(bad.execution_id).await.state, State::Running);
    assert_eq!(ledger.view(last.execution_id).await.state, State::Succeeded);

    unpoison(ledger).await;
    let next = tokio::time::timeout(Duration::from_secs(20), ledger.commit(&commits));
    let expected = [Committed::Accepted(State::Succeeded); 3];
    assert_eq!(next.await.unwrap().unwrap(), expected, "no lock is left");
    let fresh = ledger.enqueue_one(&one_shot("book")).await;
    assert_eq!(claim_with(&**ledger, session, fresh).await.attempt, 1);
    ledger.assert_laws_hold().await;
}

/// Where the effect may be repeated, a handler that hangs is a timeout like any other.
pub(crate) async fn a_handler_that_has_not_stopped_is_a_timeout_where_it_may_be_repeated(
    ledger: &Fixture,
) {
    for (attempts, cancel, state, reason) in [
        (5, false, State::Retrying, Reason::Timeout),
        (1, false, State::Failed, Reason::Timeout),
        (5, true, State::Cancelled, Reason::Cancelled),
    ] {
        let claimed = running(ledger, attempts).await;
        if cancel {
            ledger.request_cancel(claimed.execution_id).await;
        }
        for _ in 0..2 {
            let answer = ledger.commit_one(&claimed, hung(hours(1))).await;
            assert_eq!(answer, Committed::Accepted(state));
        }
        let view = ledger.view(claimed.execution_id).await;
        assert_eq!((view.state, view.reason), (state, Some(reason)), "{view:?}");
        assert_eq!(view.attempts_exhausted, state == State::Failed);
    }
    ledger.assert_laws_hold().await;
}

/// Nothing may run beside a handler whose effect must not be repeated blindly, and nobody may
/// call it over.
pub(crate) async fn a_handler_that_has_not_stopped_leaves_an_unrepeatable_execution_unknown(
    ledger: &Fixture,
) {
    let session = ledger.session("worker").await;
    for (attempts, cancel) in [(5, false), (1, false), (5, true)] {
        let mut new = one_shot("book");
        new.policy.max_attempts = attempts;
        new.policy.on_lost = OnLost::Unknown;
        let claimed = ledger.running(session, &new).await;
        let id = claimed.execution_id;
        if cancel {
            ledger.request_cancel(id).await;
        }
        let unknown = Committed::Accepted(State::Unknown);
        let answer = ledger.commit_one(&claimed, hung(Duration::ZERO)).await;
        assert_eq!(answer, unknown);
        let story = ledger.story(id).await;
        let view = &story.execution;
        assert_eq!(
            (view.state, view.reason),
            (State::Unknown, Some(Reason::Timeout))
        );
        assert_eq!((view.attempt, view.attempts_exhausted), (1, false));
        assert!(view.ended_at.is_none() && view.attempt_ended_at.is_some());
        let rest = "SELECT count(*) FROM execution WHERE id = $1 AND left_by = 'commit'
                        AND escalated_at IS NULL AND result_generation IS NULL";
        assert_eq!(ledger.count(rest, args![id]).await, 1);
        assert_eq!(
            ledger.claim_state(id, claimed.claim_id).await.unwrap(),
            ClaimState::Ended(State::Unknown)
        );

        // The answer was lost.
        let before = ledger.snapshot(id).await;
        let repeat = ledger.commit_one(&claimed, hung(secs(9))).await;
        assert_eq!(repeat, unknown, "it was the first to say so");
        let stranger = Claimed {
            claim_id: bellwether_schemas::ids::token(),
            ..claimed.clone()
        };
        let refused = ledger.commit_one(&stranger, hung(secs(9))).await;
        assert!(matches!(refused, Committed::Fenced { .. }), "{refused:?}");
        assert_eq!(ledger.snapshot(id).await, before);

        // It returned at last.
        let answer = ledger.commit_one(&claimed, complete()).await;
        assert_eq!(answer, Committed::Late(State::Succeeded));
        let view = ledger.view(id).await;
        assert_eq!((view.state, view.reason), (State::Succeeded, None));
    }
    // One that has stopped is tried again: the effect is known not to go on.
    let mut new = one_shot("book");
    new.policy.on_lost = OnLost::Unknown;
    let stopped = ledger.running(session, &new).await;
    let answer = ledger.commit_one(&stopped, error_after(hours(1))).await;
    assert_eq!(answer, Committed::Accepted(State::Retrying));

    // A sweep was faster: there is no more to say.
    let swept = ledger.unknown("book").await;
    let before = ledger.snapshot(swept.execution_id).await;
    for claimed in [&swept, &swept] {
        let answer = ledger.commit_one(claimed, hung(secs(1))).await;
        assert_eq!(answer, Committed::Late(State::Unknown));
    }
    assert_eq!(ledger.snapshot(swept.execution_id).await, before);
    assert!(ledger.story(swept.execution_id).await.fenced.is_empty());
    ledger.assert_laws_hold().await;
}
