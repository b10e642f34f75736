//! Who else decides what is unknown: a late result, an operator, a cancel, and the age of it.

use bellwether_schemas::ids;
use bellwether_schemas::state::{State, Verdict};
use bellwether_store::executions::{CancelRequested, Committed};
use bellwether_store::probes::{Decided, ProbeAnswer, Ruling};
use bellwether_store::{ErrorKind, Store};
use uuid::Uuid;

use crate::fixture::Fixture;
use crate::probes::{probe_ask, said};
use crate::raw::args;
use crate::vocabulary::{LEASE, complete, error_after, one_shot, secs};

fn ruling(execution_id: Uuid, verdict: Verdict) -> Ruling {
    Ruling {
        execution_id,
        token: ids::fresh(),
        verdict,
        reason: "I called the bank".to_owned(),
    }
}

pub(crate) async fn a_late_result_and_a_probe_are_decided_by_the_row(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    // The result first: the probe is fenced.
    let (claimed, probe) = ledger.probed(session, "book").await;
    let late = ledger.commit_one(&claimed, complete()).await;
    assert_eq!(late, Committed::Late(State::Succeeded));
    assert_eq!(ledger.probes_under_way().await, 0);
    for verdict in [Verdict::Done, Verdict::NotDone, Verdict::CannotTell] {
        let answer = ledger.commit_probe(&said(&probe, verdict)).await.unwrap();
        assert_eq!(answer, Decided::Fenced(State::Succeeded));
    }
    let story = ledger.story(claimed.execution_id).await;
    assert!(story.verdicts.is_empty() && story.output.is_some());

    // The probe first: the result is fenced, and kept.
    let decisions = [
        (Verdict::Done, State::Succeeded),
        (Verdict::NotDone, State::Retrying),
    ];
    for (verdict, state) in decisions {
        let (claimed, probe) = ledger.probed(session, "book").await;
        let answer = ledger.commit_probe(&said(&probe, verdict)).await.unwrap();
        assert_eq!(answer, Decided::Accepted(state));
        for outcome in [complete(), error_after(secs(1))] {
            let fenced = ledger.commit_one(&claimed, outcome).await;
            let generation = claimed.generation;
            assert_eq!(fenced, Committed::Fenced { state, generation });
        }
        let story = ledger.story(claimed.execution_id).await;
        assert_eq!((story.execution.state, story.fenced.len()), (state, 1));
        assert_eq!(story.fenced[0].outcome, "complete");
    }
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_late_result_racing_a_probe_has_one_winner(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let second = ledger.second().await;
    for _ in 0..20 {
        let (claimed, probe) = ledger.probed(session, "book").await;
        let (id, store) = (claimed.execution_id, second.clone());
        let result = crate::vocabulary::result(&claimed, complete());
        let commit = tokio::spawn(async move { store.commit(&[result]).await.unwrap().remove(0) });
        let (verdict, store) = (said(&probe, Verdict::NotDone), ledger.first());
        let decide = tokio::spawn(async move { store.commit_probe(&verdict).await.unwrap() });
        let (committed, decided) = (commit.await.unwrap(), decide.await.unwrap());
        let state = ledger.view(id).await.state;
        match (committed, decided) {
            (Committed::Late(State::Succeeded), Decided::Fenced(_)) => {
                assert_eq!(state, State::Succeeded);
            }
            (Committed::Fenced { .. }, Decided::Accepted(State::Retrying)) => {
                assert_eq!(state, State::Retrying);
            }
            both => panic!("two winners or none: {both:?}"),
        }
    }
    second.close().await;
    ledger.assert_laws_hold().await;
}

pub(crate) async fn an_escalation_ends_the_asking_and_not_the_answer(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let (_, probe) = ledger.probed(session, "book").await;
    let (_, other) = ledger.probed(session, "book").await;
    let waiting = ledger.unknown("book").await.execution_id;
    let old = ledger.ago(secs(901)).await;
    ledger
        .sql(
            "UPDATE execution SET claimed_at = $1, attempt_ended_at = $1 WHERE state = 'unknown'",
            args![old],
        )
        .await;
    assert_eq!(ledger.escalate_unknown(secs(900), 10).await.unwrap(), 3);
    assert_eq!(ledger.dispatch_probes(LEASE, 10).await.unwrap(), 0);
    let answer = ledger.commit_probe(&said(&probe, Verdict::Done)).await;
    assert_eq!(answer.unwrap(), Decided::Accepted(State::Succeeded));
    let answer = ledger
        .commit_probe(&said(&other, Verdict::InProgress))
        .await;
    assert_eq!(answer.unwrap(), Decided::Accepted(State::Unknown));
    ledger.make_due(other.execution_id).await;
    assert_eq!(ledger.dispatch_probes(LEASE, 10).await.unwrap(), 0);
    assert!(ledger.view(waiting).await.escalated_at.is_some());
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_cancel_ends_what_is_probed(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let (_, probe) = ledger.probed(session, "book").await;
    let dispatch_no = ledger.view(probe.execution_id).await.dispatch_no;
    let store: &dyn Store = &**ledger;
    let answer = store.request_cancel(&[probe.execution_id]).await.unwrap();
    assert_eq!(answer, [CancelRequested::Cancelled]);
    let answer = ledger.commit_probe(&said(&probe, Verdict::NotDone)).await;
    assert_eq!(answer.unwrap(), Decided::Fenced(State::Cancelled));
    // The reply to its claim was lost: nobody may begin it any more.
    let mut again = probe_ask(probe.execution_id, dispatch_no);
    again.probe_id = probe.probe_id;
    let answer = ledger.claim_probes(session, &[again]).await.unwrap();
    assert!(matches!(answer[..], [ProbeAnswer::Busy]), "{answer:?}");
    ledger.assert_laws_hold().await;
}

pub(crate) async fn an_operator_decides_at_any_time(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let rulings = [
        (Verdict::Done, State::Succeeded),
        (Verdict::NotDone, State::Retrying),
        (Verdict::Abandon, State::Failed),
    ];
    for (verdict, state) in rulings {
        let fresh = ledger.unknown("book").await;
        let (probed, probe) = ledger.probed(session, "book").await;
        let escalated = ledger.unknown("book").await;
        let now = ledger.now().await;
        ledger
            .sql(
                "UPDATE execution SET escalated_at = $2 WHERE id = $1",
                args![escalated.execution_id, now],
            )
            .await;
        for claimed in [fresh, probed, escalated] {
            let ruling = ruling(claimed.execution_id, verdict);
            for _ in 0..2 {
                let answer = ledger.resolve(&ruling).await.unwrap();
                assert_eq!(answer, Decided::Accepted(state), "also to a repeat");
            }
            let story = ledger.story(claimed.execution_id).await;
            let execution = &story.execution;
            assert_eq!(execution.state, state);
            assert_eq!(
                execution.reason.is_some(),
                state != State::Succeeded,
                "what did not succeed keeps the reason of its loss"
            );
            assert!(!execution.attempts_exhausted);
            assert_eq!(story.verdicts.len(), 1);
            let said = &story.verdicts[0];
            assert_eq!((said.said_by.as_str(), said.probe_no), ("operator", None));
            assert_eq!(said.note, "I called the bank");
            let late = ledger.commit_one(&claimed, complete()).await;
            let generation = claimed.generation;
            assert_eq!(late, Committed::Fenced { state, generation });
            let another = self::ruling(claimed.execution_id, Verdict::Abandon);
            let refused = ledger.resolve(&another).await.unwrap();
            assert_eq!(refused, Decided::Fenced(state), "it is unknown no more");
        }
        let late = ledger.commit_probe(&said(&probe, Verdict::NotDone)).await;
        assert_eq!(late.unwrap(), Decided::Fenced(state));
    }
    assert_eq!(ledger.probes_under_way().await, 0);
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_ruling_needs_a_reason_and_a_word_of_an_operator(ledger: &Fixture) {
    let id = ledger.unknown("book").await.execution_id;
    let session = ledger.session("worker").await;
    let before = ledger.snapshot(id).await;
    for verdict in [Verdict::InProgress, Verdict::CannotTell] {
        let refused = ledger.resolve(&ruling(id, verdict)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
    }
    let mut blank = ruling(id, Verdict::Done);
    " \n".clone_into(&mut blank.reason);
    let refused = ledger.resolve(&blank).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert_eq!(ledger.snapshot(id).await, before);

    let nothing = ruling(ids::fresh(), Verdict::Done);
    assert_eq!(ledger.resolve(&nothing).await.unwrap(), Decided::Gone);
    let running = ledger.running(session, &one_shot("book")).await;
    let refused = ledger
        .resolve(&ruling(running.execution_id, Verdict::Done))
        .await
        .unwrap();
    assert_eq!(refused, Decided::Fenced(State::Running));

    let mut long = ruling(id, Verdict::Abandon);
    long.reason = format!("a\0b{}", "x".repeat(5_000));
    ledger.resolve(&long).await.unwrap();
    let note = ledger.story(id).await.verdicts.remove(0).note;
    assert_eq!(note.chars().count(), 1_024);
    assert!(note.starts_with("a␀b") && note.ends_with('…'));

    let (_, probe) = ledger.probed(session, "book").await;
    let refused = ledger.commit_probe(&said(&probe, Verdict::Abandon)).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
    let mut unheard = said(&probe, Verdict::Done);
    unheard.execution_id = ids::fresh();
    let gone = ledger.commit_probe(&unheard).await.unwrap();
    assert_eq!(gone, Decided::Gone);
    assert_eq!(ledger.probes_under_way().await, 1);
}
