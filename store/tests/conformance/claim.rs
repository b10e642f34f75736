//! Claims: who runs it, and every definite "no".

use bellwether_sandbox::eventually;
use bellwether_schemas::ids;
use bellwether_schemas::state::{OnLost, State, Trigger};
use bellwether_store::executions::{ClaimAnswer, ClaimAsk, Outcome, Refusal};
use futures_util::future::try_join_all;

use crate::fixture::{Fixture, whole_ms};
use crate::raw::args;
use crate::vocabulary::{
    ask, claimed, complete, error_after, hours, one_shot, refused, result, secs,
};

pub(crate) async fn a_claim_returns_all_that_a_handler_needs(ledger: &Fixture) {
    let mut new = one_shot("book");
    new.policy.timeout = secs(60);
    new.policy.max_attempts = 3;
    let id = ledger.enqueue_one(&new).await;
    let session = ledger.session("worker").await;
    let ask = ask(id, 1);
    let claimed = claimed(
        ledger
            .claim(session, std::slice::from_ref(&ask))
            .await
            .unwrap()
            .remove(0),
    );
    assert_eq!((claimed.execution_id, claimed.fire_id), (id, new.fire_id));
    assert_eq!((claimed.operation_id, claimed.claim_id), (id, ask.claim_id));
    assert_eq!(
        (claimed.job.as_str(), claimed.queue.as_str()),
        ("book", "default")
    );
    assert_eq!(
        (claimed.generation, claimed.attempt, claimed.max_attempts),
        (1, 1, 3)
    );
    assert_eq!((claimed.shard_index, claimed.shard_total), (0, 1));
    assert_eq!(
        (claimed.trigger, claimed.schedule_version),
        (Trigger::Once, None)
    );
    assert_eq!(
        (claimed.timeout, &claimed.payload),
        (secs(60), &new.payload)
    );
    let view = ledger.view(id).await;
    assert_eq!(claimed.scheduled_at, view.scheduled_at);
    assert_eq!(Some(claimed.deadline_at), view.deadline_at);
    let answers = ledger.claim(session, &[]).await.unwrap();
    assert!(answers.is_empty());
    let running = ledger.running_of(session).await.unwrap();
    assert_eq!(running.len(), 1);
    assert_eq!(
        (running[0].execution_id, running[0].claim_id),
        (id, ask.claim_id)
    );
    assert_eq!(running[0].generation, 1);
    assert!(running[0].claimed_ago < secs(60));
    ledger.assert_laws_hold().await;
}

/// All stamps of a claim and all verdicts on it are the database's, whatever a host's clock says.
pub(crate) async fn r16_expiry_is_judged_by_database_time(ledger: &Fixture) {
    for skew in [0, 600_000, -600_000] {
        // On SQLite the ledger's clock is a stored anchor: moving it apart from the host's wall
        // clock is a node whose clock is off. Postgres is asked for its clock directly.
        if let Some(pool) = ledger.raw().sqlite() {
            sqlx::query("UPDATE clock_anchor SET wall_ms = wall_ms + $1")
                .bind(skew)
                .execute(pool)
                .await
                .unwrap();
        }
        let store = ledger.second().await;
        let session = ledger.session("worker").await;
        let mut new = one_shot("book");
        new.policy.timeout = secs(60);
        let id = store.enqueue(std::slice::from_ref(&new)).await.unwrap()[0].execution_id();

        let before = whole_ms(store.ledger().await.unwrap().now);
        let got = claimed(store.claim(session, &[ask(id, 1)]).await.unwrap().remove(0));
        let after = store.ledger().await.unwrap().now;
        let view = ledger.view(id).await;
        let claimed_at = view.claimed_at.expect("a claim");
        assert!(
            before <= claimed_at && claimed_at <= after,
            "claimed at {claimed_at}, skew {skew}"
        );
        let left = (got.deadline_at - claimed_at).num_milliseconds();
        assert!(
            (61_999..=62_001).contains(&left),
            "claim + 2 s + timeout, not {left} ms"
        );
        let lease = ledger
            .row(
                "SELECT expires_at, renewed_at FROM session WHERE id = $1",
                args![session],
            )
            .await;
        let lease = (lease.at(0) - lease.at(1)).num_milliseconds();
        assert!((8_999..=9_001).contains(&lease), "{lease} ms");

        assert!(
            store.lose_sessions(10).await.unwrap().is_empty(),
            "skew {skew}"
        );
        assert!(
            store.recover_lost(secs(5), 10).await.unwrap().is_empty(),
            "skew {skew}"
        );
        ledger.expire_session(session).await;
        assert_eq!(
            store.lose_sessions(10).await.unwrap().len(),
            1,
            "skew {skew}"
        );
        assert_eq!(
            store.recover_lost(secs(5), 10).await.unwrap().len(),
            1,
            "skew {skew}"
        );
        store.close().await;
    }
}

pub(crate) async fn r17_one_claim_wins_the_race(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let expired = ledger.running(session, &one_shot("book")).await;
    let id = expired.execution_id;
    ledger.take_over(session).await;
    let (second, third) = (ledger.second().await, ledger.second().await);
    let bidder = ledger.session("bidder").await;
    let dispatch_no = ledger.view(id).await.dispatch_no;
    let tasks = (0..50).map(|n| {
        let store = [ledger.first(), second.clone(), third.clone()][n % 3].clone();
        tokio::spawn(async move {
            store
                .claim(bidder, &[ask(id, dispatch_no)])
                .await
                .unwrap()
                .remove(0)
        })
    });
    let answers = try_join_all(tasks).await.unwrap();
    let winners: Vec<_> = answers
        .iter()
        .filter_map(|answer| match answer {
            ClaimAnswer::Claimed(claimed) => Some(claimed.as_ref()),
            ClaimAnswer::Refused(Refusal::Held) | ClaimAnswer::Busy => None,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(winners.len(), 1);
    assert_eq!((winners[0].generation, winners[0].attempt), (2, 2));
    let row = ledger
        .row(
            "SELECT generation, attempt, claim_id FROM execution WHERE id = $1",
            args![id],
        )
        .await;
    assert_eq!(
        (row.int(0), row.int(1), row.id(2)),
        (2, 2, winners[0].claim_id)
    );
    assert_eq!(ledger.story(id).await.attempts.len(), 1);
    second.close().await;
    third.close().await;
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_repeated_claim_is_not_charged_twice(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let id = ledger.enqueue_one(&one_shot("book")).await;
    let ask = ask(id, 1);
    let first = claimed(
        ledger
            .claim(session, std::slice::from_ref(&ask))
            .await
            .unwrap()
            .remove(0),
    );
    let before = ledger.snapshot(id).await;
    let second = ledger.second().await;
    let again = claimed(
        second
            .claim(session, std::slice::from_ref(&ask))
            .await
            .unwrap()
            .remove(0),
    );
    second.close().await;
    assert_eq!(
        (
            again.generation,
            again.attempt,
            again.claim_id,
            again.deadline_at
        ),
        (
            first.generation,
            first.attempt,
            first.claim_id,
            first.deadline_at
        )
    );
    assert_eq!(again.payload, first.payload);
    assert_eq!(ledger.snapshot(id).await, before);

    // Once it has left `running`, the old token does not take it again.
    ledger.commit_one(&first, complete()).await;
    let late = ledger
        .claim(session, std::slice::from_ref(&ask))
        .await
        .unwrap()
        .remove(0);
    assert_eq!(refused(&late), Refusal::Terminal(State::Succeeded));
}

pub(crate) async fn every_refusal_is_definite_and_changes_nothing(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let ended = ledger.running(session, &one_shot("book")).await;
    ledger
        .commit_one(&ended, Outcome::Fail("no".to_owned()))
        .await;
    let held = ledger
        .running(session, &one_shot("book"))
        .await
        .execution_id;
    let unknown = ledger.unknown("book").await.execution_id;
    let cancelled = ledger.enqueue_one(&one_shot("book")).await;
    ledger.request_cancel(cancelled).await;
    let mut later = one_shot("book");
    later.run_at = Some(ledger.now().await + hours(1));
    let later = ledger.enqueue_one(&later).await;
    let retrying = ledger.running(session, &one_shot("book")).await;
    ledger.commit_one(&retrying, error_after(hours(1))).await;
    let past = ledger.ago(secs(1)).await;
    let too_late = ledger.enqueue_one(&one_shot("book")).await;
    ledger
        .sql(
            "UPDATE execution SET start_deadline_at = $2 WHERE id = $1",
            args![too_late, past],
        )
        .await;
    let used_up = ledger.enqueue_one(&one_shot("book")).await;
    ledger
        .sql(
            "UPDATE execution SET attempt = max_attempts WHERE id = $1",
            args![used_up],
        )
        .await;

    let cases = [
        (ended.execution_id, 1, Refusal::Terminal(State::Failed)),
        (held, 1, Refusal::Held),
        (unknown, 1, Refusal::Held),
        (ids::fresh(), 1, Refusal::NoSuchExecution),
        (cancelled, 1, Refusal::CancelRequested),
        (later, 0, Refusal::NotDue),
        (later, 1, Refusal::NotDue),
        (retrying.execution_id, 1, Refusal::NotDue),
        (too_late, 1, Refusal::PastStartDeadline),
        (used_up, 1, Refusal::BudgetUsedUp),
    ];
    let asks: Vec<ClaimAsk> = cases.iter().map(|(id, no, _)| ask(*id, *no)).collect();
    let answers = ledger.claim(session, &asks).await.unwrap();
    let got: Vec<Refusal> = answers.iter().map(refused).collect();
    let expected: Vec<Refusal> = cases.iter().map(|(_, _, refusal)| *refusal).collect();
    assert_eq!(got, expected);
    for (id, _, refusal) in cases {
        let Some(story) = ledger.execution(id).await.unwrap() else {
            continue;
        };
        let was_claimed = [held, unknown, ended.execution_id, retrying.execution_id].contains(&id);
        assert_eq!(
            story.execution.generation,
            i64::from(was_claimed),
            "{refusal:?}"
        );
        assert_eq!(
            story.execution.state == State::Running,
            id == held,
            "{refusal:?}"
        );
    }
}

/// The row's own dispatch says that it is due; a copy of an older one does not.
pub(crate) async fn own_dispatch_is_never_refused_as_not_due(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let id = ledger.enqueue_one(&one_shot("book")).await;
    let ahead = whole_ms(ledger.now().await + secs(60));
    ledger
        .sql(
            "UPDATE execution SET available_at = $2 WHERE id = $1",
            args![id, ahead],
        )
        .await;
    let other = ledger
        .claim(session, &[ask(id, 7)])
        .await
        .unwrap()
        .remove(0);
    assert_eq!(refused(&other), Refusal::NotDue);
    let first = claimed(
        ledger
            .claim(session, &[ask(id, 1)])
            .await
            .unwrap()
            .remove(0),
    );

    ledger.commit_one(&first, error_after(hours(1))).await;
    let redelivered = ledger
        .claim(session, &[ask(id, 1)])
        .await
        .unwrap()
        .remove(0);
    assert_eq!(
        refused(&redelivered),
        Refusal::NotDue,
        "the retry would run an hour early"
    );
    ledger.make_due(id).await;
    // Due, though not dispatched yet: any wake-up will do.
    let due = claimed(
        ledger
            .claim(session, &[ask(id, 1)])
            .await
            .unwrap()
            .remove(0),
    );
    assert_eq!((due.generation, due.attempt), (2, 2));
}

pub(crate) async fn a_lost_session_claims_nothing(ledger: &Fixture) {
    let live = ledger.session("live").await;
    let lost = ledger.session("lost").await;
    ledger.lose(lost).await;
    let closed = ledger.session("closed").await;
    ledger.close_session(closed).await.unwrap();
    let id = ledger.enqueue_one(&one_shot("book")).await;
    let before = ledger.snapshot(id).await;
    for session in [lost, closed, ids::fresh()] {
        let answers = ledger
            .claim(session, &[ask(id, 1), ask(ids::fresh(), 1)])
            .await
            .unwrap();
        assert_eq!(answers.len(), 2);
        for answer in answers {
            assert!(matches!(answer, ClaimAnswer::SessionLost), "{answer:?}");
        }
    }
    assert_eq!(ledger.snapshot(id).await, before);
    assert_eq!(ledger.claim_one(live, id).await.attempt, 1);
}

pub(crate) async fn answers_stand_in_the_order_of_the_asks(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let new: Vec<_> = (0..30).map(|_| one_shot("book")).collect();
    ledger.enqueue(&new).await.unwrap();
    let mut asks: Vec<_> = new.iter().map(|new| ask(new.execution_id(), 1)).collect();
    asks.insert(10, ask(ids::fresh(), 1));
    asks.reverse();
    let answers = ledger.claim(session, &asks).await.unwrap();
    assert_eq!(answers.len(), 31);
    for (ask, answer) in asks.iter().zip(&answers) {
        match answer {
            ClaimAnswer::Claimed(claimed) => {
                let pair = (claimed.execution_id, claimed.claim_id);
                assert_eq!(pair, (ask.execution_id, ask.claim_id));
            }
            other => assert_eq!(refused(other), Refusal::NoSuchExecution),
        }
    }
    let commits: Vec<_> = answers
        .into_iter()
        .filter_map(|answer| match answer {
            ClaimAnswer::Claimed(claimed) => Some(result(&claimed, complete())),
            _ => None,
        })
        .collect();
    assert_eq!(ledger.commit(&commits).await.unwrap().len(), 30);
    assert_eq!(
        ledger.state_counts().await.unwrap(),
        [(State::Succeeded, 30)]
    );
    ledger.assert_laws_hold().await;
}

pub(crate) async fn two_asks_for_one_execution_in_a_batch_yield_one_claim(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let id = ledger.enqueue_one(&one_shot("book")).await;
    let one = ask(id, 1);
    let asks = [one.clone(), one.clone(), ask(id, 1)];
    let answers = ledger.claim(session, &asks).await.unwrap();
    for answer in &answers[..2] {
        let ClaimAnswer::Claimed(claimed) = answer else {
            panic!("{answers:?}")
        };
        assert_eq!((claimed.claim_id, claimed.attempt), (one.claim_id, 1));
    }
    let other = matches!(
        answers[2],
        ClaimAnswer::Busy | ClaimAnswer::Refused(Refusal::Held)
    );
    assert!(other, "{answers:?}");
    let view = ledger.view(id).await;
    assert_eq!((view.generation, view.attempt), (1, 1));
}

pub(crate) async fn r84_running_witness_before_business(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let mut new = one_shot("book");
    new.policy.on_lost = OnLost::Retry;
    let id = ledger.enqueue_one(&new).await;
    let running = "SELECT count(*) FROM execution WHERE state = 'running'";
    let stranger = ledger
        .claim(ids::fresh(), &[ask(id, 1)])
        .await
        .unwrap()
        .remove(0);
    assert!(matches!(stranger, ClaimAnswer::SessionLost));
    ledger.request_cancel(id).await;
    let refusal = ledger
        .claim(session, &[ask(id, 1)])
        .await
        .unwrap()
        .remove(0);
    assert_eq!(refused(&refusal), Refusal::CancelRequested);
    assert_eq!(
        ledger.count(running, args![]).await,
        0,
        "a refusal leaves no witness"
    );

    // The handler has not begun; another connection sees who holds it, until when.
    ledger
        .sql("UPDATE execution SET cancel_requested_at = NULL", args![])
        .await;
    let got = ledger.claim_one(session, id).await;
    let witness = ledger
        .row(
            "SELECT state, session_id, claim_id, claimed_at, deadline_at, started_at
             FROM execution WHERE id = $1",
            args![id],
        )
        .await;
    assert_eq!((witness.text(0), witness.id(1)), ("running", session));
    assert_eq!(witness.id(2), got.claim_id);
    assert!(witness.at(3) < witness.at(4));
    assert!(witness.is_null(5), "business has not begun");

    // The worker dies here: the witness has a lease, so the row does not stay.
    ledger.take_over(session).await;
    assert_eq!(ledger.count(running, args![]).await, 0);
    assert_eq!(ledger.view(id).await.state, State::Retrying);
}

/// An execution that cannot be claimed (its row makes SQL fail) spoils neither the rest of its
/// batch nor the next claim.
pub(crate) async fn r113_error_in_the_middle_of_a_claim_batch_releases_it(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let new = [one_shot("book"), one_shot("poison"), one_shot("book")];
    ledger.enqueue(&new).await.unwrap();
    crate::commit::poison(ledger).await;
    let asks: Vec<_> = new.iter().map(|new| ask(new.execution_id(), 1)).collect();
    // The server may still be undoing the failed batch when its rows are asked for one by one:
    // then they are busy, and the redelivery asks again.
    eventually("the good rows are claimed", secs(20), || async {
        let answers = ledger.claim(session, &asks).await.unwrap();
        assert!(
            matches!(answers[1], ClaimAnswer::Busy),
            "never acked: {answers:?}"
        );
        answers
            .iter()
            .filter(|it| matches!(it, ClaimAnswer::Claimed(_)))
            .count()
            == 2
    })
    .await
    .unwrap();
    assert_eq!(ledger.view(new[1].execution_id()).await.generation, 0);
    for good in [&new[0], &new[2]] {
        let view = ledger.view(good.execution_id()).await;
        assert_eq!((view.generation, view.attempt), (1, 1), "charged once");
    }

    crate::commit::unpoison(ledger).await;
    eventually("no lock is left", secs(20), || async {
        let answers = ledger.claim(session, &asks[1..2]).await.unwrap();
        matches!(answers[0], ClaimAnswer::Claimed(_))
    })
    .await
    .unwrap();
    ledger.assert_laws_hold().await;
}
