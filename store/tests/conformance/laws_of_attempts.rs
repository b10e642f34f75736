//! The laws of claims, attempts and what is unknown: as in `laws`, a row planted by plain SQL breaks each.

use std::time::Duration;

use bellwether_schemas::ids;
use bellwether_schemas::state::State;
use bellwether_store::executions::Claimed;
use bellwether_store::sessions::NewSession;
use uuid::Uuid;

use crate::fixture::Fixture;
use crate::laws::assert_broken;
use crate::raw::args;
use crate::vocabulary::{complete, hours, new_session, one_shot, secs};

/// An execution whose first attempt was lost and whose second one runs.
async fn second_attempt(ledger: &Fixture) -> Claimed {
    let session = ledger.session("lost").await;
    let first = ledger.running(session, &one_shot("book")).await;
    ledger.take_over(session).await;
    let session = ledger.session("worker").await;
    let claimed = ledger.claim_one(session, first.execution_id).await;
    ledger.assert_laws_hold().await;
    claimed
}

pub(crate) async fn law_05_nothing_is_claimed_after_the_end(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let claimed = ledger.running(session, &one_shot("book")).await;
    ledger.commit_one(&claimed, complete()).await;
    let later = ledger.now().await + secs(60);
    ledger
        .sql(
            "UPDATE execution SET claimed_at = $2, attempt_ended_at = $2 WHERE id = $1",
            args![claimed.execution_id, later],
        )
        .await;
    assert_broken(ledger, 5, claimed.execution_id).await;
}

pub(crate) async fn law_06_generations_have_no_gap(ledger: &Fixture) {
    let claimed = second_attempt(ledger).await;
    ledger.sql("DELETE FROM attempt", args![]).await;
    assert_broken(ledger, 6, claimed.execution_id).await;
}

pub(crate) async fn law_06_the_accepted_result_is_of_the_last_claim(ledger: &Fixture) {
    let claimed = second_attempt(ledger).await;
    ledger.commit_one(&claimed, complete()).await;
    ledger.assert_laws_hold().await;
    ledger
        .sql("UPDATE execution SET result_generation = 1", args![])
        .await;
    assert_broken(ledger, 6, claimed.execution_id).await;
}

pub(crate) async fn law_07_claims_do_not_overlap(ledger: &Fixture) {
    let claimed = second_attempt(ledger).await;
    let later = ledger.now().await + secs(60);
    ledger
        .sql("UPDATE attempt SET ended_at = $1", args![later])
        .await;
    assert_broken(ledger, 7, claimed.execution_id).await;
}

pub(crate) async fn law_07_claims_end_after_they_began(ledger: &Fixture) {
    let claimed = second_attempt(ledger).await;
    let past = ledger.ago(hours(1)).await;
    ledger
        .sql("UPDATE attempt SET ended_at = $1", args![past])
        .await;
    assert_broken(ledger, 7, claimed.execution_id).await;
}

pub(crate) async fn law_08_charges_stay_in_the_budget(ledger: &Fixture) {
    let claimed = second_attempt(ledger).await;
    ledger
        .sql("UPDATE execution SET max_attempts = 1", args![])
        .await;
    assert_broken(ledger, 8, claimed.execution_id).await;
}

pub(crate) async fn law_08_what_history_charged_is_counted(ledger: &Fixture) {
    let claimed = second_attempt(ledger).await;
    ledger
        .sql("UPDATE execution SET attempt = 0", args![])
        .await;
    assert_broken(ledger, 8, claimed.execution_id).await;
    ledger
        .sql("UPDATE attempt SET reason = 'release'", args![])
        .await;
    ledger.assert_laws_hold().await;
}

pub(crate) async fn law_09_lost_work_does_not_stay_running(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let claimed = ledger.running(session, &one_shot("book")).await;
    let past = ledger.ago(hours(1)).await;
    ledger
        .sql(
            "UPDATE session SET state = 'lost', opened_at = $1, renewed_at = $1, expires_at = $1,
                 ended_at = $1",
            args![past],
        )
        .await;
    ledger
        .sql("UPDATE execution SET claimed_at = $1", args![past])
        .await;
    assert_broken(ledger, 9, claimed.execution_id).await;
}

pub(crate) async fn law_09_overdue_work_does_not_stay_running(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let claimed = ledger.running(session, &one_shot("book")).await;
    let past = ledger.ago(hours(1)).await;
    ledger
        .sql(
            "UPDATE execution SET deadline_at = $1, claimed_at = $1",
            args![past],
        )
        .await;
    assert_broken(ledger, 9, claimed.execution_id).await;
}

/// A session whose lease is an hour, and what it runs; the session was lost `ago`.
async fn lost_with_a_long_lease(ledger: &Fixture, ago: Duration) -> (Uuid, Uuid) {
    let session = ids::fresh();
    let new = NewSession {
        lease: hours(1),
        ..new_session(session, "patient")
    };
    ledger.open_session(&new).await.unwrap();
    let claimed = ledger.running(session, &one_shot("book")).await;
    let (renewed, lost) = (ledger.ago(ago + hours(1)).await, ledger.ago(ago).await);
    ledger
        .sql(
            "UPDATE session SET state = 'lost', opened_at = $2, renewed_at = $2, expires_at = $3,
                 ended_at = $3
             WHERE id = $1",
            args![session, renewed, lost],
        )
        .await;
    ledger
        .sql(
            "UPDATE execution SET claimed_at = $2 WHERE id = $1",
            args![claimed.execution_id, renewed],
        )
        .await;
    (session, claimed.execution_id)
}

pub(crate) async fn law_09_counts_the_lease_that_the_session_had(ledger: &Fixture) {
    let (session, execution) = lost_with_a_long_lease(ledger, secs(1_800)).await;
    ledger.assert_laws_hold().await;
    let past = ledger.ago(secs(1_800)).await;
    ledger
        .sql("UPDATE execution SET deadline_at = $1", args![past])
        .await;
    ledger.assert_laws_hold().await;
    // With a lease of 9 s half an hour is too long.
    let renewed = past - secs(9);
    ledger
        .sql(
            "UPDATE session SET renewed_at = $2 WHERE id = $1",
            args![session, renewed],
        )
        .await;
    assert_broken(ledger, 9, execution).await;
}

pub(crate) async fn law_09_no_lease_lasts_for_ever(ledger: &Fixture) {
    let (_session, execution) = lost_with_a_long_lease(ledger, hours(2)).await;
    assert_broken(ledger, 9, execution).await;
}

/// A ticker knows the longest lease of the fleet, and waits for that after its view broke.
pub(crate) async fn law_09_counts_the_longest_lease_of_a_live_session(ledger: &Fixture) {
    let patient = ids::fresh();
    let new = NewSession {
        lease: hours(1),
        ..new_session(patient, "patient")
    };
    ledger.open_session(&new).await.unwrap();
    let session = ledger.session("worker").await;
    let lost = ledger.running(session, &one_shot("book")).await;
    let past = ledger.ago(secs(1_800)).await;
    ledger
        .sql(
            "UPDATE session SET state = 'lost', opened_at = $2, renewed_at = $2, expires_at = $2,
                 ended_at = $2
             WHERE id = $1",
            args![session, past],
        )
        .await;
    ledger
        .sql("UPDATE execution SET claimed_at = $1", args![past])
        .await;
    ledger.assert_laws_hold().await;
    ledger.close_session(patient).await.unwrap();
    assert_broken(ledger, 9, lost.execution_id).await;
}

pub(crate) async fn law_13_unknown_is_escalated(ledger: &Fixture) {
    let id = ledger.unknown("book").await.execution_id;
    let past = ledger.ago(hours(1)).await;
    ledger
        .sql(
            "UPDATE execution SET attempt_ended_at = $1, claimed_at = $1",
            args![past],
        )
        .await;
    assert_broken(ledger, 13, id).await;
    assert_eq!(ledger.escalate_unknown(secs(900), 10).await.unwrap(), 1);
    ledger.assert_laws_hold().await;
}

pub(crate) async fn law_13_gives_the_sweep_its_time(ledger: &Fixture) {
    ledger.unknown("book").await;
    let past = ledger.ago(secs(15 * 60)).await;
    ledger
        .sql(
            "UPDATE execution SET attempt_ended_at = $1, claimed_at = $1",
            args![past],
        )
        .await;
    ledger.assert_laws_hold().await;
}

pub(crate) async fn law_14_nothing_is_claimed_after_a_cancel_request(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let claimed = ledger.running(session, &one_shot("book")).await;
    ledger.request_cancel(claimed.execution_id).await;
    ledger.assert_laws_hold().await;
    let before = ledger
        .view(claimed.execution_id)
        .await
        .claimed_at
        .expect("claimed")
        - secs(1);
    ledger
        .sql(
            "UPDATE execution SET cancel_requested_at = $1",
            args![before],
        )
        .await;
    assert_broken(ledger, 14, claimed.execution_id).await;
    assert_eq!(
        ledger.view(claimed.execution_id).await.state,
        State::Running
    );
}
