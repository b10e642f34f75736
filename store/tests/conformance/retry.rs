//! What the retries of an execution keep and what they change.

use std::time::Duration;

use bellwether_schemas::state::State;
use bellwether_store::executions::{Commit, Outcome};

use crate::fixture::Fixture;
use crate::raw::args;
use crate::vocabulary::{complete, error_after, one_shot, result, secs};

pub(crate) async fn r71_only_the_failed_shard_retries(ledger: &Fixture) {
    let schedule = ledger.schedule("slices", 3, secs(10)).await;
    let term = ledger.lead().await;
    let shards = ledger.plan_next(&term, &schedule).await;
    let session = ledger.session("worker").await;
    for (shard, id) in shards.iter().enumerate() {
        let claimed = ledger.claim_one(session, *id).await;
        let outcome = if shard == 1 {
            error_after(Duration::ZERO)
        } else {
            complete()
        };
        ledger.commit_one(&claimed, outcome).await;
    }
    let ended = [
        ledger.snapshot(shards[0]).await,
        ledger.snapshot(shards[2]).await,
    ];
    for attempt in 2..=3 {
        assert_eq!(
            ledger.view(shards[1]).await.dispatch_no,
            attempt,
            "dispatched again"
        );
        let claimed = ledger.claim_one(session, shards[1]).await;
        assert_eq!((claimed.shard_index, claimed.attempt), (1, attempt));
        let outcome = if attempt == 2 {
            error_after(Duration::ZERO)
        } else {
            complete()
        };
        ledger.commit_one(&claimed, outcome).await;
    }
    assert_eq!(ledger.dispatch_due(10).await.unwrap(), 0);
    let results = ledger
        .fire_results(ledger.view(shards[0]).await.fire_id)
        .await
        .unwrap();
    assert!(
        results.iter().all(|shard| shard.state == State::Succeeded),
        "{results:?}"
    );
    assert_eq!(
        [
            ledger.snapshot(shards[0]).await,
            ledger.snapshot(shards[2]).await
        ],
        ended
    );
    assert_eq!(ledger.view(shards[1]).await.generation, 3);
    ledger.assert_laws_hold().await;
}

pub(crate) async fn r82_four_identities_are_distinct(ledger: &Fixture) {
    let schedule = ledger.schedule("tick", 2, secs(10)).await;
    let term = ledger.lead().await;
    let shards = ledger.plan_next(&term, &schedule).await;
    let session = ledger.session("worker").await;
    let first = ledger.claim_one(session, shards[1]).await;
    ledger.commit_one(&first, error_after(Duration::ZERO)).await;
    let second = ledger.claim_one(session, shards[1]).await;

    let identities = [
        schedule.id,
        first.fire_id,
        first.claim_id,
        first.operation_id,
    ];
    for (n, id) in identities.iter().enumerate() {
        assert!(!identities[n + 1..].contains(id), "{identities:?}");
    }
    assert_eq!(second.job, first.job);
    assert_eq!(
        (second.fire_id, second.operation_id),
        (first.fire_id, first.operation_id)
    );
    assert_ne!(second.claim_id, first.claim_id);
    assert_ne!(
        (second.generation, second.attempt),
        (first.generation, first.attempt)
    );
    let sibling = ledger.claim_one(session, shards[0]).await;
    assert_eq!(sibling.fire_id, first.fire_id);
    assert_ne!(sibling.operation_id, first.operation_id);
    let next = ledger.plan_next(&term, &schedule).await;
    let later = ledger.view(next[1]).await;
    assert_ne!(later.fire_id, first.fire_id);
    assert_ne!(later.operation_id, first.operation_id);
}

/// Due, acknowledged (claimed), started and committed: each stage is delayed alone.
pub(crate) async fn r85_four_times_move_apart(ledger: &Fixture) {
    let schedule = ledger.schedule("tick", 1, secs(3600)).await;
    let term = ledger.lead().await;
    let id = ledger.plan_next(&term, &schedule).await[0];
    let due = schedule.cursor + secs(1);
    let session = ledger.session("worker").await;
    let claimed = ledger.claim_one(session, id).await;
    let first = ledger.view(id).await;
    assert_eq!(
        (first.scheduled_at, first.started_at, first.ended_at),
        (due, None, None)
    );
    let waited = first.claimed_at.expect("claimed") - due;
    assert!(
        waited.num_seconds() >= 3590,
        "claimed an hour late: {waited}"
    );

    let claimed_at = ledger.ago(secs(100)).await;
    ledger
        .sql(
            "UPDATE execution SET claimed_at = $2 WHERE id = $1",
            args![id, claimed_at],
        )
        .await;
    let before = ledger.now().await;
    let commit = Commit {
        started_ago: Some(secs(30)),
        ..result(&claimed, complete())
    };
    ledger.commit(&[commit]).await.unwrap();
    let after = ledger.now().await;
    let view = ledger.view(id).await;
    let (started, ended) = (
        view.started_at.expect("started"),
        view.ended_at.expect("ended"),
    );
    assert_eq!(
        (view.scheduled_at, view.claimed_at),
        (due, Some(claimed_at)),
        "kept"
    );
    assert!(before - secs(1) <= ended && ended <= after);
    let ran = (ended - started).num_milliseconds();
    assert!(
        (29_990..=30_010).contains(&ran),
        "started 30 s before the commit, not {ran} ms"
    );
    assert!(due < claimed_at && claimed_at < started && started < ended);

    let never = ledger.running(session, &one_shot("book")).await;
    let commit = Commit {
        started_ago: None,
        ..result(&never, Outcome::Release)
    };
    ledger.commit(&[commit]).await.unwrap();
    assert_eq!(ledger.view(never.execution_id).await.started_at, None);
}
