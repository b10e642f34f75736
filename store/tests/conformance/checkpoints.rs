//! Checkpoints: saved under the fence, given out by the next claim, cleared by success.

use std::time::Duration;

use bellwether_schemas::limits::CHECKPOINT_MAX;
use bellwether_schemas::state::{Reason, State};
use bellwether_store::ErrorKind;
use bellwether_store::checkpoints::{Checkpoint, CheckpointSaved};
use bellwether_store::executions::{Claimed, Committed, Outcome};

use crate::fixture::Fixture;
use crate::raw::args;
use crate::vocabulary::{complete, error_after, one_shot};

fn checkpoint(claimed: &Claimed, bytes: &[u8]) -> Checkpoint {
    Checkpoint {
        execution_id: claimed.execution_id,
        claim_id: claimed.claim_id,
        generation: claimed.generation,
        bytes: bytes.to_vec(),
    }
}

pub(crate) async fn a_checkpoint_goes_from_attempt_to_attempt_until_success(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let first = ledger.running(session, &one_shot("book")).await;
    let id = first.execution_id;
    assert_eq!(first.checkpoint, None);
    for bytes in [&b"page 3"[..], b"page 7"] {
        let saved = ledger.save_checkpoint(&checkpoint(&first, bytes)).await;
        assert_eq!(saved.unwrap(), CheckpointSaved::Saved);
    }
    let view = ledger.view(id).await;
    assert_eq!(view.checkpoint_size, Some(6));
    assert!(view.checkpoint_at >= view.claimed_at, "{view:#?}");

    ledger.commit_one(&first, Outcome::Release).await;
    let second = ledger.claim_one(session, id).await;
    assert_eq!(second.checkpoint.as_deref(), Some(&b"page 7"[..]));
    // A claim whose answer was lost is told the same again.
    ledger
        .commit_one(&second, error_after(Duration::ZERO))
        .await;
    let third = ledger.claim_one(session, id).await;
    assert_eq!(third.checkpoint.as_deref(), Some(&b"page 7"[..]));
    ledger.commit_one(&third, complete()).await;
    let view = ledger.view(id).await;
    assert_eq!((view.checkpoint_at, view.checkpoint_size), (None, None));
}

pub(crate) async fn a_checkpoint_of_another_claim_changes_no_row(ledger: &Fixture) {
    let session = ledger.session("first").await;
    let stale = ledger.running(session, &one_shot("book")).await;
    let id = stale.execution_id;
    ledger.take_over(session).await;
    let saved = async |of: &Claimed| {
        let before = ledger.snapshot(id).await;
        let saved = ledger.save_checkpoint(&checkpoint(of, b"late")).await;
        assert_eq!(ledger.snapshot(id).await, before);
        saved.unwrap()
    };
    assert_eq!(
        saved(&stale).await,
        CheckpointSaved::Fenced(State::Retrying)
    );
    let second = ledger.session("second").await;
    let current = ledger.claim_one(second, id).await;
    assert_eq!(saved(&stale).await, CheckpointSaved::Fenced(State::Running));
    let mut older = current.clone();
    older.generation -= 1;
    assert_eq!(saved(&older).await, CheckpointSaved::Fenced(State::Running));
    ledger.commit_one(&current, complete()).await;
    assert_eq!(
        saved(&current).await,
        CheckpointSaved::Fenced(State::Succeeded)
    );
    ledger
        .sql("DELETE FROM execution WHERE id = $1", args![id])
        .await;
    let gone = ledger.save_checkpoint(&checkpoint(&current, b"x")).await;
    assert_eq!(gone.unwrap(), CheckpointSaved::Gone);
}

pub(crate) async fn a_checkpoint_is_bounded(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let claimed = ledger.running(session, &one_shot("book")).await;
    let largest = vec![7; CHECKPOINT_MAX];
    let saved = ledger
        .save_checkpoint(&checkpoint(&claimed, &largest))
        .await;
    assert_eq!(saved.unwrap(), CheckpointSaved::Saved);
    let larger = vec![7; CHECKPOINT_MAX + 1];
    let refused = ledger.save_checkpoint(&checkpoint(&claimed, &larger)).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
    let view = ledger.view(claimed.execution_id).await;
    assert_eq!(
        view.checkpoint_size.map(|size| size as usize),
        Some(CHECKPOINT_MAX)
    );
}

pub(crate) async fn r39_what_found_no_slot_goes_back_without_a_charge_and_says_so(
    ledger: &Fixture,
) {
    let session = ledger.session("worker").await;
    let claimed = ledger.running(session, &one_shot("book")).await;
    let id = claimed.execution_id;
    let committed = ledger.commit_one(&claimed, Outcome::Overloaded).await;
    assert_eq!(committed, Committed::Accepted(State::Retrying));
    let view = ledger.view(id).await;
    assert_eq!((view.reason, view.attempt), (Some(Reason::Release), 0));
    assert_eq!(view.last_refusal.as_deref(), Some("executor_overloaded"));
    assert_eq!(ledger.outbox_of(id).await.len(), 2, "dispatched again");
    // A claim that finds a slot is no refusal any more.
    let again = ledger.claim_one(session, id).await;
    assert_eq!(again.attempt, 1);
    assert_eq!(ledger.view(id).await.last_refusal, None);
}

pub(crate) async fn a_release_of_its_own_claim_ends_unknown(ledger: &Fixture) {
    let claimed = ledger.unknown("book").await;
    let committed = ledger.commit_one(&claimed, Outcome::Release).await;
    assert_eq!(committed, Committed::Late(State::Retrying));
    let view = ledger.view(claimed.execution_id).await;
    assert_eq!((view.reason, view.attempt), (Some(Reason::Release), 0));
}
