//! Sweeps: what must happen later is a condition that any ticker sees at any time.

use std::time::Duration;

use bellwether_schemas::ids;
use bellwether_schemas::state::{Reason, State};
use bellwether_store::executions::{Deferral, NewExecution, Refusal};
use futures_util::future::try_join_all;
use uuid::Uuid;

use crate::fixture::Fixture;
use crate::raw::args;
use crate::vocabulary::{complete, error_after, hours, one_shot, refused, secs};

pub(crate) async fn unknown_is_escalated_once_after_its_time(ledger: &Fixture) {
    let old = ledger.unknown("book").await.execution_id;
    let young = ledger.unknown("book").await.execution_id;
    let past = ledger.ago(secs(16 * 60)).await;
    ledger
        .sql(
            "UPDATE execution SET attempt_ended_at = $2 WHERE id = $1",
            args![old, past],
        )
        .await;
    assert_eq!(ledger.escalate_unknown(secs(15 * 60), 10).await.unwrap(), 1);
    assert_eq!(
        ledger.escalate_unknown(secs(15 * 60), 10).await.unwrap(),
        0,
        "once"
    );
    let escalated = ledger
        .rows(
            "SELECT id FROM execution WHERE escalated_at IS NOT NULL",
            args![],
        )
        .await;
    assert_eq!((escalated.len(), escalated[0].id(0)), (1, old));
    for id in [old, young] {
        assert_eq!(
            ledger.view(id).await.state,
            State::Unknown,
            "it is an operator's to decide"
        );
    }
    assert_eq!(
        ledger.escalate_unknown(Duration::ZERO, 10).await.unwrap(),
        1
    );

    // One that came back, ran again and was lost again is a new question.
    let claimed = ledger.unknown("book").await;
    assert_eq!(
        ledger.escalate_unknown(Duration::ZERO, 10).await.unwrap(),
        1
    );
    ledger
        .commit_one(&claimed, error_after(Duration::ZERO))
        .await;
    let session = ledger.session("again").await;
    ledger.claim_one(session, claimed.execution_id).await;
    let row = ledger
        .row(
            "SELECT escalated_at FROM execution WHERE id = $1",
            args![claimed.execution_id],
        )
        .await;
    assert!(row.is_null(0), "what runs is nobody's question");
    ledger.take_over(session).await;
    assert_eq!(
        ledger.view(claimed.execution_id).await.state,
        State::Unknown
    );
    assert_eq!(
        ledger.escalate_unknown(Duration::ZERO, 10).await.unwrap(),
        1
    );
}

/// No worker ever comes: every waiting row has an end.
pub(crate) async fn r43_dispatching_is_never_permanent(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let waiting = |job: &str| NewExecution { ..one_shot(job) };
    let plain = ledger.enqueue_one(&waiting("book")).await;
    let strange = ledger.enqueue_one(&waiting("strange")).await;
    ledger
        .defer(&[Deferral {
            execution_id: strange,
            dispatch_no: 1,
        }])
        .await
        .unwrap();
    let retried = ledger.running(session, &waiting("book")).await;
    ledger.commit_one(&retried, error_after(hours(1))).await;
    let used_up = ledger.enqueue_one(&waiting("book")).await;
    ledger
        .sql(
            "UPDATE execution SET attempt = max_attempts WHERE id = $1",
            args![used_up],
        )
        .await;
    let young = ledger.enqueue_one(&waiting("book")).await;
    let running = ledger.running(session, &waiting("book")).await.execution_id;
    let past = ledger.ago(secs(1)).await;
    for id in [plain, strange, retried.execution_id, running] {
        ledger
            .sql(
                "UPDATE execution SET start_deadline_at = $2 WHERE id = $1",
                args![id, past],
            )
            .await;
    }
    assert_eq!(
        ledger.expire_starts(2).await.unwrap().len(),
        2,
        "at most the limit"
    );
    assert_eq!(ledger.expire_starts(10).await.unwrap().len(), 2);
    assert_eq!(ledger.expire_starts(10).await.unwrap().len(), 0);

    let ended = async |id| {
        let view = ledger.view(id).await;
        assert_eq!(
            view.ended_at.is_some(),
            view.state.is_terminal(),
            "{view:?}"
        );
        (view.state, view.reason, view.attempts_exhausted)
    };
    assert_eq!(ended(plain).await, (State::Expired, None, false));
    assert_eq!(
        ended(strange).await,
        (State::Failed, Some(Reason::NoHandler), false)
    );
    assert_eq!(ended(retried.execution_id).await.0, State::Expired);
    let (state, _, exhausted) = ended(used_up).await;
    assert_eq!((state, exhausted), (State::Failed, true));
    assert_eq!(ended(young).await.0, State::Pending);
    assert_eq!(ended(running).await.0, State::Running, "it was started");

    let late = ledger.try_claim(session, plain).await;
    assert_eq!(refused(&late), Refusal::Terminal(State::Expired));
    let sent = ledger.claim_outbox(10, secs(30), &[]).await.unwrap();
    let sent: Vec<Uuid> = sent.iter().map(|row| row.dispatch.execution_id).collect();
    assert!(
        !sent.contains(&plain) && !sent.contains(&strange),
        "nothing is sent for what ended"
    );
    assert!(sent.contains(&young));
    ledger.assert_laws_hold().await;
}

pub(crate) async fn due_rows_are_dispatched_once(ledger: &Fixture) {
    let mut all = Vec::new();
    for n in 0..6 {
        let mut new = one_shot("book");
        new.run_at = Some(ledger.now().await + hours(1 + n));
        all.push(ledger.enqueue_one(&new).await);
    }
    for id in &all[..5] {
        ledger.make_due(*id).await;
    }
    assert_eq!(
        ledger.dispatch_due(2).await.unwrap(),
        2,
        "at most the limit"
    );
    let second = ledger.second().await;
    let sweeps = [ledger.first(), second.clone()]
        .map(|store| tokio::spawn(async move { store.dispatch_due(10).await.unwrap() }));
    let done: u64 = try_join_all(sweeps).await.unwrap().iter().sum();
    assert_eq!(done + ledger.dispatch_due(10).await.unwrap(), 3);
    second.close().await;
    for id in &all[..5] {
        let view = ledger.view(*id).await;
        assert_eq!((view.dispatch_no, view.state), (1, State::Pending));
        assert!(view.dispatched_at.is_some());
        assert_eq!(ledger.outbox_of(*id).await, [1]);
    }
    assert_eq!(ledger.view(all[5]).await.dispatched_at, None);
    assert!(ledger.outbox_of(all[5]).await.is_empty());
    let cancelled = all[5];
    ledger.make_due(cancelled).await;
    ledger.request_cancel(cancelled).await;
    let session = ledger.session("worker").await;
    assert_eq!(
        refused(&ledger.try_claim(session, cancelled).await),
        Refusal::CancelRequested
    );
    ledger.assert_laws_hold().await;
}

/// A worker that does not know a job puts it off, however often; it is never thrown away.
pub(crate) async fn p11_unknown_kind_is_never_discarded(ledger: &Fixture) {
    let id = ledger.enqueue_one(&one_shot("strange")).await;
    let wrong = Deferral {
        execution_id: id,
        dispatch_no: 9,
    };
    let nobody = Deferral {
        execution_id: ids::fresh(),
        dispatch_no: 1,
    };
    let before = ledger.snapshot(id).await;
    ledger.defer(&[wrong, nobody]).await.unwrap();
    assert_eq!(
        ledger.snapshot(id).await,
        before,
        "another dispatch is not touched"
    );

    for expected in [1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60, 60] {
        let dispatch_no = ledger.view(id).await.dispatch_no;
        let asked = ledger.now().await;
        let deferral = Deferral {
            execution_id: id,
            dispatch_no,
        };
        ledger.defer(std::slice::from_ref(&deferral)).await.unwrap();
        let deferred = ledger.snapshot(id).await;
        ledger.defer(&[deferral]).await.unwrap();
        assert_eq!(
            ledger.snapshot(id).await,
            deferred,
            "a redelivery counts nothing"
        );
        let view = ledger.view(id).await;
        let wait = (view.available_at - asked).num_milliseconds();
        let range = expected * 1000 - 2..=expected * 1000 + 5_000;
        assert!(range.contains(&wait), "{wait} ms instead of {expected} s");
        assert_eq!(
            (view.state, view.attempt, view.generation),
            (State::Pending, 0, 0)
        );
        assert_eq!(view.last_refusal.as_deref(), Some("no_handler"));
        assert_eq!(view.dispatched_at, None);
        ledger.make_due(id).await;
        assert_eq!(ledger.dispatch_due(10).await.unwrap(), 1);
    }
    assert_eq!(ledger.expire_starts(10).await.unwrap().len(), 0);
    let session = ledger.session("one that knows it").await;
    let claimed = ledger.claim_one(session, id).await;
    assert_eq!((claimed.attempt, claimed.job.as_str()), (1, "strange"));
    let held = ledger.snapshot(id).await;
    let dispatch_no = ledger.view(id).await.dispatch_no;
    ledger
        .defer(&[Deferral {
            execution_id: id,
            dispatch_no,
        }])
        .await
        .unwrap();
    assert_eq!(ledger.snapshot(id).await, held, "what runs is not put off");
    ledger.assert_laws_hold().await;
}

pub(crate) async fn keys_are_forgotten_some_time_after_the_end(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let keyed = |key: &str| NewExecution {
        key: Some(key.to_owned()),
        ..one_shot("book")
    };
    let mut ended = Vec::new();
    for key in ["old", "young"] {
        let claimed = ledger.running(session, &keyed(key)).await;
        ledger.commit_one(&claimed, complete()).await;
        ended.push(claimed.execution_id);
    }
    let open = ledger.enqueue_one(&keyed("open")).await;
    let past = ledger.ago(hours(24 * 8)).await;
    ledger
        .sql(
            "UPDATE execution SET ended_at = $2, attempt_ended_at = $2 WHERE id = $1",
            args![ended[0], past],
        )
        .await;
    ledger
        .sql("UPDATE submission_key SET created_at = $1", args![past])
        .await;
    assert_eq!(ledger.forget_keys(hours(24 * 7), 10).await.unwrap().keys, 1);
    assert_eq!(ledger.forget_keys(hours(24 * 7), 10).await.unwrap().keys, 0);
    assert_eq!(ledger.execution_of_key("book", "old").await.unwrap(), None);
    assert_eq!(
        ledger.execution_of_key("book", "young").await.unwrap(),
        Some(ended[1])
    );
    assert_eq!(
        ledger.execution_of_key("book", "open").await.unwrap(),
        Some(open)
    );
    assert!(
        ledger.execution(ended[0]).await.unwrap().is_some(),
        "the execution stays"
    );
    let again = keyed("old");
    assert_eq!(
        ledger.enqueue_one(&again).await,
        again.execution_id(),
        "the key is free"
    );
}

pub(crate) async fn a_clock_anomaly_is_recorded(ledger: &Fixture) {
    let count = "SELECT count(*) FROM clock_anomaly";
    assert_eq!(ledger.count(count, args![]).await, 0);
    let before = ledger.ago(Duration::ZERO).await;
    ledger
        .record_clock_anomaly("ticker-1", "boot +3.2 s, ledger +63.2 s")
        .await
        .unwrap();
    let row = ledger
        .row("SELECT at, seen_by, detail FROM clock_anomaly", args![])
        .await;
    assert!(before <= row.at(0) && row.at(0) <= ledger.now().await);
    assert_eq!(
        (row.text(1), row.text(2)),
        ("ticker-1", "boot +3.2 s, ledger +63.2 s")
    );
}

/// No claim takes it any more, so the sweep ends it; whatever else would have ended it.
pub(crate) async fn what_waits_with_a_cancel_request_is_cancelled(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let pending = ledger.enqueue_one(&one_shot("book")).await;
    let retried = ledger.running(session, &one_shot("book")).await;
    ledger.commit_one(&retried, error_after(hours(1))).await;
    let late = ledger.enqueue_one(&one_shot("book")).await;
    let used_up = ledger.enqueue_one(&one_shot("book")).await;
    let running = ledger.running(session, &one_shot("book")).await;
    let other = ledger.enqueue_one(&one_shot("book")).await;
    let past = ledger.ago(secs(1)).await;
    ledger
        .sql(
            "UPDATE execution SET start_deadline_at = $2 WHERE id = $1",
            args![late, past],
        )
        .await;
    ledger
        .sql(
            "UPDATE execution SET attempt = max_attempts WHERE id = $1",
            args![used_up],
        )
        .await;
    let asked = [pending, retried.execution_id, late, used_up];
    for id in asked.into_iter().chain([running.execution_id]) {
        ledger.request_cancel(id).await;
    }
    assert_eq!(ledger.expire_starts(3).await.unwrap().len(), 3, "the limit");
    assert_eq!(ledger.expire_starts(10).await.unwrap().len(), 1);
    assert_eq!(ledger.expire_starts(10).await.unwrap().len(), 0);
    for id in asked {
        let view = ledger.view(id).await;
        assert_eq!(
            (view.state, view.reason, view.attempts_exhausted),
            (State::Cancelled, Some(Reason::Cancelled), false)
        );
        assert!(view.ended_at.is_some());
    }
    assert_eq!(
        ledger.view(running.execution_id).await.state,
        State::Running
    );
    assert_eq!(ledger.view(other).await.state, State::Pending);
    ledger.assert_laws_hold().await;
}
