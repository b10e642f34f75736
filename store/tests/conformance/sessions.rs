//! Worker sessions: one way from live to lost or closed.

use std::time::Duration;

use bellwether_schemas::ids;
use bellwether_schemas::state::{Capability, SessionState};
use bellwether_store::ErrorKind;
use bellwether_store::sessions::{SessionClosed, SessionRenewed, SessionReport};

use crate::fixture::{Fixture, whole_ms};
use crate::raw::args;
use crate::vocabulary::{LEASE, complete, new_session, one_shot, secs};

/// Of a worker without a free slot.
const BUSY: SessionReport = SessionReport {
    free_for: None,
    leaked: 0,
    draining: false,
};

pub(crate) async fn a_renewal_says_what_is_free_leaked_and_draining(ledger: &Fixture) {
    let id = ledger.session("worker").await;
    let view = async || ledger.sessions(10).await.unwrap().remove(0);
    let fresh = view().await;
    assert_eq!((fresh.free_since, fresh.leaked), (None, 0));
    assert_eq!(fresh.draining_since, None);
    let renew = async |report| ledger.renew_session(id, LEASE, report).await.unwrap();
    let before = ledger.now().await;
    renew(SessionReport {
        free_for: Some(secs(5)),
        leaked: 2,
        draining: false,
    })
    .await;
    let free = view().await;
    assert_eq!(free.leaked, 2);
    let since = free.free_since.unwrap();
    assert!(since >= whole_ms(before) - secs(5) && since <= ledger.now().await - secs(5));
    let draining = SessionReport {
        draining: true,
        ..BUSY
    };
    renew(draining).await;
    let first = view().await;
    assert_eq!((first.free_since, first.leaked), (None, 0));
    assert!(first.draining_since.is_some());
    renew(draining).await;
    assert_eq!(view().await.draining_since, first.draining_since);
}

pub(crate) async fn a_session_opens_once(ledger: &Fixture) {
    let mut new = new_session(ids::fresh(), "w1");
    new.queues = vec!["a".to_owned(), "b".to_owned()];
    let before = whole_ms(ledger.now().await);
    ledger.open_session(&new).await.unwrap();
    let first = ledger.row("SELECT * FROM session", args![]).await;
    new.name = "another".into();
    ledger.open_session(&new).await.unwrap();
    assert_eq!(
        ledger.row("SELECT * FROM session", args![]).await,
        first,
        "a repeat"
    );

    let sessions = ledger.sessions(10).await.unwrap();
    assert_eq!(sessions.len(), 1);
    let view = &sessions[0];
    assert_eq!(
        (view.id, view.name.as_str(), view.state),
        (new.id, "w1", SessionState::Live)
    );
    assert_eq!(
        (view.host.as_str(), view.pid, view.version.as_str()),
        ("host-1", 4242, "0.1.0")
    );
    assert_eq!((&view.queues, &view.jobs), (&new.queues, &new.jobs));
    assert_eq!(
        (view.max_concurrent, view.running, view.ended_at),
        (4, 0, None)
    );
    assert!(before <= view.opened_at && view.opened_at <= view.renewed_at);
    let lease = (view.expires_at - view.renewed_at).num_milliseconds();
    assert!((8_999..=9_001).contains(&lease), "{lease} ms");
    let queues = ledger.queues().await.unwrap();
    assert!(
        queues.contains(&"a".to_owned()) && queues.contains(&"b".to_owned()),
        "{queues:?}"
    );
}

pub(crate) async fn a_renewal_extends_a_live_session_even_past_its_expiry(ledger: &Fixture) {
    let id = ledger.session("worker").await;
    let expires = async || {
        ledger
            .row("SELECT expires_at FROM session WHERE id = $1", args![id])
            .await
            .at(0)
    };
    let opened = expires().await;
    assert_eq!(
        ledger.renew_session(id, secs(60), BUSY).await.unwrap(),
        SessionRenewed::Live
    );
    assert!(expires().await > opened + secs(40));
    ledger.expire_session(id).await;
    let renewed = ledger.renew_session(id, LEASE, BUSY).await.unwrap();
    assert_eq!(renewed, SessionRenewed::Live, "no sweep was first");
    assert!(expires().await > ledger.now().await);
    assert!(ledger.lose_sessions(10).await.unwrap().is_empty());

    ledger.lose(id).await;
    let before = ledger.row("SELECT * FROM session", args![]).await;
    assert_eq!(
        ledger.renew_session(id, LEASE, BUSY).await.unwrap(),
        SessionRenewed::Lost
    );
    assert_eq!(
        ledger
            .renew_session(ids::fresh(), LEASE, BUSY)
            .await
            .unwrap(),
        SessionRenewed::Lost
    );
    assert_eq!(
        ledger.row("SELECT * FROM session", args![]).await,
        before,
        "it never comes back"
    );
}

pub(crate) async fn only_expired_sessions_are_lost(ledger: &Fixture) {
    let live = ledger.session("live").await;
    let dead = [
        ledger.session("dead-1").await,
        ledger.session("dead-2").await,
    ];
    for id in dead {
        ledger.expire_session(id).await;
    }
    let (first, second) = (ledger.first(), ledger.second().await);
    let sweep = |store: std::sync::Arc<dyn bellwether_store::Store>| {
        tokio::spawn(async move { store.lose_sessions(10).await.unwrap() })
    };
    let (one, other) = tokio::join!(sweep(first), sweep(second.clone()));
    second.close().await;
    let mut lost: Vec<_> = one.unwrap().into_iter().chain(other.unwrap()).collect();
    // A sweep skips what another one has locked; the next one sees it.
    lost.extend(ledger.lose_sessions(10).await.unwrap());
    lost.sort_by_key(|lost| lost.name.clone());
    let found: Vec<_> = lost
        .iter()
        .map(|lost| (lost.id, lost.name.as_str()))
        .collect();
    assert_eq!(
        found,
        [(dead[0], "dead-1"), (dead[1], "dead-2")],
        "each once"
    );
    let states = ledger.sessions(10).await.unwrap();
    for view in states {
        let expected = if view.id == live {
            SessionState::Live
        } else {
            SessionState::Lost
        };
        assert_eq!(
            (view.state, view.ended_at.is_some()),
            (expected, view.id != live)
        );
    }
    for n in 0..3 {
        ledger
            .expire_session(ledger.session(&format!("more-{n}")).await)
            .await;
    }
    assert_eq!(
        ledger.lose_sessions(2).await.unwrap().len(),
        2,
        "at most the limit"
    );
    assert_eq!(ledger.lose_sessions(2).await.unwrap().len(), 1);
}

pub(crate) async fn a_session_closes_with_nothing_running_or_is_lost(ledger: &Fixture) {
    let idle = ledger.session("idle").await;
    assert_eq!(
        ledger.close_session(idle).await.unwrap(),
        SessionClosed::Closed
    );
    assert_eq!(
        ledger.close_session(idle).await.unwrap(),
        SessionClosed::AlreadyEnded
    );
    assert_eq!(
        ledger.renew_session(idle, LEASE, BUSY).await.unwrap(),
        SessionRenewed::Lost
    );
    assert_eq!(
        ledger.close_session(ids::fresh()).await.unwrap(),
        SessionClosed::AlreadyEnded
    );

    let busy = ledger.session("busy").await;
    let claimed = ledger.running(busy, &one_shot("book")).await;
    assert_eq!(
        ledger.close_session(busy).await.unwrap(),
        SessionClosed::Lost
    );
    assert_eq!(
        ledger.close_session(busy).await.unwrap(),
        SessionClosed::AlreadyEnded
    );
    let taken = ledger.recover_lost(secs(5), 10).await.unwrap();
    assert_eq!(
        taken.len(),
        1,
        "its work is taken over without waiting for the lease"
    );
    assert_eq!(taken[0].execution_id, claimed.execution_id);
    let states = ledger
        .rows(
            "SELECT state, ended_at FROM session ORDER BY opened_at",
            args![],
        )
        .await;
    assert_eq!((states[0].text(0), states[1].text(0)), ("closed", "lost"));
    ledger.assert_laws_hold().await;
}

/// A worker that has stopped in good order leaves nothing to take over.
pub(crate) async fn r106_a_clean_stop_causes_no_takeover(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let claimed = ledger.running(session, &one_shot("book")).await;
    ledger.commit_one(&claimed, complete()).await;
    assert_eq!(
        ledger.close_session(session).await.unwrap(),
        SessionClosed::Closed
    );
    ledger
        .sql("UPDATE session SET expires_at = opened_at", args![])
        .await;
    assert!(ledger.lose_sessions(10).await.unwrap().is_empty());
    assert!(
        ledger
            .recover_lost(Duration::ZERO, 10)
            .await
            .unwrap()
            .is_empty()
    );

    // Failover off: what its worker left is not run again by itself.
    let unknown = ledger.unknown("book").await;
    assert!(
        ledger
            .recover_lost(Duration::ZERO, 10)
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(ledger.dispatch_due(10).await.unwrap(), 0);
    let view = ledger.view(unknown.execution_id).await;
    assert_eq!(
        (view.dispatch_no, view.generation),
        (1, 1),
        "its first dispatch, no more"
    );
}

pub(crate) async fn the_running_rows_are_those_of_the_session(ledger: &Fixture) {
    let (mine, other) = (ledger.session("mine").await, ledger.session("other").await);
    let kept = ledger.running(mine, &one_shot("book")).await;
    let ended = ledger.running(mine, &one_shot("book")).await;
    ledger.commit_one(&ended, complete()).await;
    ledger.running(other, &one_shot("book")).await;
    let past = ledger.ago(secs(40)).await;
    ledger
        .sql(
            "UPDATE execution SET claimed_at = $2 WHERE id = $1",
            args![kept.execution_id, past],
        )
        .await;
    let rows = ledger.running_of(mine).await.unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!(
        (rows[0].execution_id, rows[0].claim_id),
        (kept.execution_id, kept.claim_id)
    );
    assert_eq!(rows[0].generation, kept.generation);
    assert!(
        rows[0].claimed_ago >= secs(39) && rows[0].claimed_ago < secs(100),
        "{rows:?}"
    );
    assert!(ledger.running_of(ids::fresh()).await.unwrap().is_empty());
    let running: u32 = ledger
        .sessions(10)
        .await
        .unwrap()
        .iter()
        .map(|session| session.running)
        .sum();
    assert_eq!(running, 2);
}

pub(crate) async fn a_closed_store_says_so_and_the_ledger_lives_on(ledger: &Fixture) {
    let other = ledger.second().await;
    let id = ledger.enqueue_one(&one_shot("book")).await;
    other.close().await;
    other.close().await;
    let error = other.execution(id).await.expect_err("it is closed");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let error = other.ensure_queue("late").await.expect_err("it is closed");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let session = ledger.session("worker").await;
    assert_eq!(ledger.claim_one(session, id).await.attempt, 1);
}

pub(crate) async fn a_session_reports_its_definitions_once(ledger: &Fixture) {
    let mut new = new_session(ids::fresh(), "w1");
    let report = |name: &str| (name.to_owned(), format!("hash of {name}"));
    new.definitions = ["nightly", "hourly", "hourly"].map(report).to_vec();
    new.capabilities = vec![Capability::Cancel];
    ledger.open_session(&new).await.unwrap();
    new.definitions = vec![report("another")];
    new.capabilities.clear();
    ledger.open_session(&new).await.unwrap();
    let reported = ledger
        .rows(
            "SELECT name, hash FROM session_definition WHERE session_id = $1 ORDER BY name",
            args![new.id],
        )
        .await;
    let reported: Vec<_> = reported
        .iter()
        .map(|row| (row.text(0), row.text(1)))
        .collect();
    let first = [("hourly", "hash of hourly"), ("nightly", "hash of nightly")];
    assert_eq!(reported, first, "a repeat changes nothing");
    let row = ledger
        .row("SELECT capabilities FROM session", args![])
        .await;
    assert_eq!(row.text(0), "[\"cancel\"]");

    let bare = ledger.session("bare").await;
    let row = ledger
        .row(
            "SELECT capabilities FROM session WHERE id = $1",
            args![bare],
        )
        .await;
    assert_eq!(row.text(0), "[]");
    for bad in ["a.b", ""] {
        let mut refused = new_session(ids::fresh(), "w2");
        refused.definitions = vec![report(bad)];
        let error = ledger.open_session(&refused).await.expect_err(bad);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
}

pub(crate) async fn requests_to_cancel_are_told_to_the_session_that_runs_them(ledger: &Fixture) {
    let (mine, other) = (ledger.session("mine").await, ledger.session("other").await);
    let mut told = Vec::new();
    for (session, cancel) in [(mine, true), (mine, false), (mine, true), (other, true)] {
        let claimed = ledger.running(session, &one_shot("book")).await;
        if cancel {
            ledger.request_cancel(claimed.execution_id).await;
        }
        if cancel && session == mine {
            told.push(claimed);
        }
    }
    let hints = async || {
        let hints = ledger.cancel_hints(mine).await.unwrap();
        assert!(hints.iter().all(|hint| hint.ago < secs(60)), "{hints:?}");
        let claims = hints.into_iter().map(|hint| hint.claim_id);
        claims.collect::<Vec<_>>()
    };
    let claims: Vec<_> = told.iter().map(|claimed| claimed.claim_id).collect();
    assert_eq!(hints().await, claims);
    ledger.commit_one(&told[0], complete()).await;
    assert_eq!(hints().await, claims[1..], "what has ended is not told");
    assert!(ledger.cancel_hints(ids::fresh()).await.unwrap().is_empty());
}
