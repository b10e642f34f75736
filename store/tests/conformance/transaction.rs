//! Results committed in a transaction of the handler's own, and how their claims stand afterwards.

use std::time::Duration;

use bellwether_schemas::ids;
use bellwether_schemas::state::State;
use bellwether_store::executions::{Claimed, Commit, Committed, Outcome};
use bellwether_store::inspect::ClaimState;
use bellwether_store::{ErrorKind, Payload, Transaction};
use sqlx::{PgConnection, SqliteConnection};

use crate::fixture::Fixture;
use crate::raw::{Raw, args};
use crate::vocabulary::{complete, error_after, one_shot, result, secs};

/// What the handler writes beside its result.
const EFFECT: &str = "INSERT INTO effect (n) VALUES (1)";

async fn on_postgres(
    caller: &mut PgConnection,
    schema: &str,
    commits: &[Commit],
) -> Vec<Committed> {
    let mut answers = Vec::new();
    for commit in commits {
        let transaction = Transaction::Postgres {
            connection: &mut *caller,
            schema,
        };
        let answer = bellwether_store::commit_in(transaction, commit).await;
        answers.push(answer.unwrap());
    }
    sqlx::query(EFFECT).execute(caller).await.unwrap();
    answers
}

async fn on_sqlite(caller: &mut SqliteConnection, commits: &[Commit]) -> Vec<Committed> {
    let mut answers = Vec::new();
    for commit in commits {
        let transaction = Transaction::Sqlite {
            connection: &mut *caller,
        };
        let answer = bellwether_store::commit_in(transaction, commit).await;
        answers.push(answer.unwrap());
    }
    sqlx::query(EFFECT).execute(caller).await.unwrap();
    answers
}

/// Commits results and writes an effect in one transaction, which is then kept or not.
async fn in_transaction(ledger: &Fixture, commits: &[Commit], keep: bool) -> Vec<Committed> {
    let answers;
    match ledger.raw() {
        Raw::Postgres(pool) => {
            let mut caller = pool.begin().await.unwrap();
            answers = on_postgres(&mut caller, &ledger.options().schema, commits).await;
            if keep {
                caller.commit().await.unwrap();
            } else {
                caller.rollback().await.unwrap();
            }
        }
        Raw::Sqlite(pool) => {
            let mut caller = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
            answers = on_sqlite(&mut caller, commits).await;
            if keep {
                caller.commit().await.unwrap();
            } else {
                caller.rollback().await.unwrap();
            }
        }
    }
    answers
}

async fn effects(ledger: &Fixture) -> i64 {
    ledger.count("SELECT count(*) FROM effect", args![]).await
}

async fn make_effect(ledger: &Fixture) {
    let create = "CREATE TABLE effect (n integer)";
    ledger.ddl(create, create).await;
}

async fn stands(ledger: &Fixture, claimed: &Claimed) -> ClaimState {
    ledger
        .claim_state(claimed.execution_id, claimed.claim_id)
        .await
        .unwrap()
}

pub(crate) async fn commit_in_follows_the_callers_transaction(ledger: &Fixture) {
    make_effect(ledger).await;
    let session = ledger.session("worker").await;
    let claimed = ledger.running(session, &one_shot("book")).await;
    let id = claimed.execution_id;
    let before = ledger.snapshot(id).await;
    let commit = [result(&claimed, complete())];
    let accepted = [Committed::Accepted(State::Succeeded)];

    assert_eq!(in_transaction(ledger, &commit, false).await, accepted);
    assert_eq!(ledger.snapshot(id).await, before, "rolled back: it runs");
    assert_eq!(effects(ledger).await, 0);
    assert_eq!(stands(ledger, &claimed).await, ClaimState::Running);

    assert_eq!(in_transaction(ledger, &commit, true).await, accepted);
    let view = ledger.view(id).await;
    assert_eq!((view.state, effects(ledger).await), (State::Succeeded, 1));
    let output = ledger.story(id).await.output;
    assert_eq!(output, Some(Payload::json("\"done\"")));
    assert_eq!(
        stands(ledger, &claimed).await,
        ClaimState::Ended(State::Succeeded)
    );
    assert_eq!(
        in_transaction(ledger, &[commit[0].clone(), commit[0].clone()], true).await,
        [accepted[0]; 2],
        "a repeat"
    );
    assert_eq!(
        ledger.commit_one(&claimed, complete()).await,
        accepted[0],
        "also from outside"
    );
    ledger.assert_laws_hold().await;
}

/// Every outcome goes the way of an ordinary commit, with its dispatch in the same transaction.
pub(crate) async fn commit_in_takes_every_outcome(ledger: &Fixture) {
    make_effect(ledger).await;
    let session = ledger.session("worker").await;
    for (outcome, state, dispatches) in [
        (complete(), State::Succeeded, vec![1]),
        (Outcome::Fail("no".to_owned()), State::Failed, vec![1]),
        (Outcome::Cancel("no".to_owned()), State::Cancelled, vec![1]),
        (error_after(Duration::ZERO), State::Retrying, vec![1, 2]),
        (Outcome::Release, State::Retrying, vec![1, 2]),
        (Outcome::Snooze(secs(9)), State::Retrying, vec![1]),
    ] {
        let claimed = ledger.running(session, &one_shot("book")).await;
        let commit = [result(&claimed, outcome)];
        let answers = in_transaction(ledger, &commit, true).await;
        assert_eq!(answers, [Committed::Accepted(state)]);
        let view = ledger.view(claimed.execution_id).await;
        assert_eq!(view.state, state);
        assert_eq!(ledger.outbox_of(view.id).await, dispatches, "{state}");
        assert_eq!(stands(ledger, &claimed).await, ClaimState::Ended(state));
    }
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_stale_commit_in_changes_nothing(ledger: &Fixture) {
    make_effect(ledger).await;
    let lost = ledger.session("lost").await;
    let stale = ledger.running(lost, &one_shot("book")).await;
    let id = stale.execution_id;
    ledger.take_over(lost).await;
    assert_eq!(
        stands(ledger, &stale).await,
        ClaimState::Fenced(State::Retrying),
        "taken by the sweep"
    );
    let session = ledger.session("worker").await;
    let current = ledger.claim_one(session, id).await;
    let before = ledger.snapshot(id).await;
    let orphan = Claimed {
        execution_id: ids::fresh(),
        ..stale.clone()
    };
    let commits = [&stale, &orphan].map(|claimed| result(claimed, complete()));
    let answers = in_transaction(ledger, &commits, true).await;
    let fenced = Committed::Fenced {
        state: State::Running,
        generation: 2,
    };
    assert_eq!(answers, [fenced, Committed::Gone]);
    assert_eq!(ledger.snapshot(id).await, before);
    assert_eq!(
        ledger
            .count("SELECT count(*) FROM fenced_result", args![])
            .await,
        0,
        "and nothing is kept of it"
    );
    assert_eq!(
        stands(ledger, &stale).await,
        ClaimState::Fenced(State::Running)
    );
    assert_eq!(stands(ledger, &orphan).await, ClaimState::Gone);
    assert_eq!(stands(ledger, &current).await, ClaimState::Running);

    ledger
        .commit_one(&current, error_after(Duration::ZERO))
        .await;
    let third = ledger.claim_one(session, id).await;
    assert_eq!(
        stands(ledger, &current).await,
        ClaimState::Ended(State::Retrying),
        "accepted, then claimed again"
    );
    let again = [result(&current, error_after(Duration::ZERO))];
    assert_eq!(
        in_transaction(ledger, &again, true).await,
        [Committed::Accepted(State::Retrying)]
    );
    assert_eq!(stands(ledger, &third).await, ClaimState::Running);

    let unknown = ledger.unknown("book").await;
    assert_eq!(
        stands(ledger, &unknown).await,
        ClaimState::Fenced(State::Unknown)
    );
    let late = [result(&unknown, complete())];
    assert_eq!(
        in_transaction(ledger, &late, true).await,
        [Committed::Late(State::Succeeded)],
        "its own late result still decides"
    );
    assert_eq!(
        stands(ledger, &unknown).await,
        ClaimState::EndedLate(State::Succeeded)
    );
    ledger.assert_laws_hold().await;
}

/// A result out of bounds is refused before anything is written; the caller may go on.
pub(crate) async fn a_refused_commit_in_leaves_the_callers_transaction_usable(ledger: &Fixture) {
    make_effect(ledger).await;
    let session = ledger.session("worker").await;
    let claimed = ledger.running(session, &one_shot("poison")).await;
    crate::commit::poison(ledger).await;
    let commit = result(&claimed, complete());
    match ledger.raw() {
        Raw::Postgres(pool) => {
            let mut caller = pool.begin().await.unwrap();
            let schema = &ledger.options().schema;
            let refused = bellwether_store::postgres::commit_in(&mut caller, schema, &commit).await;
            let error = refused.expect_err("poisoned");
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            let path: String = sqlx::query_scalar("SHOW search_path")
                .fetch_one(&mut *caller)
                .await
                .unwrap();
            assert_eq!(&path, schema, "the caller's own");
            sqlx::query(EFFECT).execute(&mut *caller).await.unwrap();
            caller.commit().await.unwrap();
        }
        Raw::Sqlite(pool) => {
            let mut caller = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
            let refused = bellwether_store::sqlite::commit_in(&mut caller, &commit).await;
            let error = refused.expect_err("poisoned");
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            sqlx::query(EFFECT).execute(&mut *caller).await.unwrap();
            caller.commit().await.unwrap();
        }
    }
    crate::commit::unpoison(ledger).await;
    assert_eq!(effects(ledger).await, 1);
    assert_eq!(stands(ledger, &claimed).await, ClaimState::Running);
    ledger.assert_laws_hold().await;
}
