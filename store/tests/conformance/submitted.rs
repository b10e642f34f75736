//! Messages that clients publish: recorded and claimed under their key.

use bellwether_schemas::ids;
use bellwether_schemas::limits::{KEY_MAX, PAYLOAD_MAX};
use bellwether_schemas::state::{DeadReason, OnLost, State, Trigger};
use bellwether_schemas::trace::TraceContext;
use bellwether_store::dead::DeadLetter;
use bellwether_store::executions::{
    ClaimAnswer, Committed, Enqueued, NewExecution, PolicyPinned, Refusal, SubmitAsk,
};
use bellwether_store::schedules::Policy;
use bellwether_store::{ErrorKind, Payload};
use futures_util::future::try_join_all;

use crate::fixture::{Fixture, whole_ms};
use crate::raw::args;
use crate::vocabulary::{claimed, complete, hours, message, one_shot, refused, secs};

async fn submit(ledger: &Fixture, session: uuid::Uuid, ask: &SubmitAsk) -> ClaimAnswer {
    ledger
        .claim_submitted(session, std::slice::from_ref(ask))
        .await
        .unwrap()
        .remove(0)
}

pub(crate) async fn a_new_key_is_recorded_and_claimed_in_one(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let now = ledger.now().await;
    let mut ask = message("book", "k1", now);
    ask.queue = "entries".into();
    ask.policy.timeout = secs(33);
    ask.policy.retry.cap = secs(44);
    ask.trace = TraceContext::parse(
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        None,
    );
    let got = claimed(submit(ledger, session, &ask).await);
    let id = ids::execution(ask.fire_id, 0);
    assert_eq!(
        (got.execution_id, got.fire_id, got.operation_id),
        (id, ask.fire_id, id)
    );
    assert_eq!(
        (got.claim_id, got.generation, got.attempt),
        (ask.claim_id, 1, 1)
    );
    assert_eq!((got.job.as_str(), got.queue.as_str()), ("book", "entries"));
    assert_eq!((got.trigger, got.timeout), (Trigger::Submit, secs(33)));
    assert_eq!((&got.payload, &got.trace), (&ask.payload, &ask.trace));
    assert_eq!(got.retry, ask.policy.retry);
    let view = ledger.view(id).await;
    assert_eq!(
        (view.state, view.key.as_deref()),
        (State::Running, Some("k1"))
    );
    assert_eq!((view.dispatch_no, view.session_id), (0, Some(session)));
    assert!(
        ledger.outbox_of(id).await.is_empty(),
        "the message itself was the dispatch"
    );
    assert_eq!(
        ledger.execution_of_key("book", "k1").await.unwrap(),
        Some(id)
    );
    assert_eq!(ledger.running_of(session).await.unwrap().len(), 1);
    assert!(
        ledger
            .queues()
            .await
            .unwrap()
            .contains(&"entries".to_owned())
    );

    let answer = ledger.commit_one(&got, complete()).await;
    assert_eq!(answer, Committed::Accepted(State::Succeeded));
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_known_key_is_not_run_again(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let now = ledger.now().await;
    let ask = message("book", "k1", now);
    let first = claimed(submit(ledger, session, &ask).await);
    let before = ledger.snapshot(first.execution_id).await;
    let again = message("book", "k1", now);
    assert_eq!(
        refused(&submit(ledger, session, &again).await),
        Refusal::KnownKey
    );
    assert_eq!(ledger.snapshot(first.execution_id).await, before);
    ledger.commit_one(&first, complete()).await;
    assert_eq!(
        refused(&submit(ledger, session, &again).await),
        Refusal::KnownKey,
        "ended too"
    );

    claimed(submit(ledger, session, &message("other", "k1", now)).await);
    claimed(submit(ledger, session, &message("book", "k2", now)).await);
    let enqueued = NewExecution {
        key: Some("k3".to_owned()),
        ..one_shot("book")
    };
    ledger.enqueue_one(&enqueued).await;
    let taken = submit(ledger, session, &message("book", "k3", now)).await;
    assert_eq!(
        refused(&taken),
        Refusal::KnownKey,
        "both paths share the keys"
    );
    let reverse = NewExecution {
        key: Some("k1".to_owned()),
        ..one_shot("book")
    };
    let answer = ledger.enqueue(&[reverse]).await.unwrap();
    assert_eq!(
        answer,
        [Enqueued::Exists {
            execution_id: first.execution_id
        }]
    );
    assert_eq!(
        ledger
            .count("SELECT count(*) FROM execution", args![])
            .await,
        4
    );
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_repeated_submit_is_not_charged_twice(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let ask = message("book", "k1", ledger.now().await);
    let first = claimed(submit(ledger, session, &ask).await);
    let before = ledger.snapshot(first.execution_id).await;
    let second = ledger.second().await;
    let answers = second
        .claim_submitted(session, &[ask.clone(), ask.clone()])
        .await
        .unwrap();
    for answer in answers {
        let again = claimed(answer);
        assert_eq!(
            (again.execution_id, again.claim_id),
            (first.execution_id, first.claim_id)
        );
        assert_eq!((again.generation, again.attempt), (1, 1));
    }
    second.close().await;
    assert_eq!(ledger.snapshot(first.execution_id).await, before);
}

pub(crate) async fn two_messages_of_one_key_in_a_batch_are_one_execution(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let now = ledger.now().await;
    let asks = [
        message("book", "k", now),
        message("book", "k", now),
        message("book", "l", now),
    ];
    let answers = ledger.claim_submitted(session, &asks).await.unwrap();
    let runs = answers[..2]
        .iter()
        .filter(|it| matches!(it, ClaimAnswer::Claimed(_)))
        .count();
    assert_eq!(runs, 1, "{answers:?}");
    assert!(
        answers[..2].iter().any(|answer| {
            matches!(
                answer,
                ClaimAnswer::Busy | ClaimAnswer::Refused(Refusal::KnownKey)
            )
        }),
        "{answers:?}"
    );
    assert!(matches!(answers[2], ClaimAnswer::Claimed(_)), "{answers:?}");
    assert_eq!(
        ledger
            .count("SELECT count(*) FROM execution", args![])
            .await,
        2
    );
    assert!(
        ledger
            .claim_submitted(session, &[])
            .await
            .unwrap()
            .is_empty()
    );
}

pub(crate) async fn a_key_submitted_twenty_times_at_once_is_one_execution(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let now = ledger.now().await;
    let second = ledger.second().await;
    let tasks = (0..20).map(|n| {
        let store = if n % 2 == 0 {
            ledger.first()
        } else {
            second.clone()
        };
        tokio::spawn(async move {
            let ask = message("book", "same", now);
            store
                .claim_submitted(session, &[ask])
                .await
                .unwrap()
                .remove(0)
        })
    });
    let answers = try_join_all(tasks).await.unwrap();
    let mut winners = 0;
    for answer in &answers {
        match answer {
            ClaimAnswer::Claimed(_) => winners += 1,
            ClaimAnswer::Busy | ClaimAnswer::Refused(Refusal::KnownKey) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(winners, 1, "{answers:?}");
    assert_eq!(
        ledger
            .count("SELECT count(*) FROM execution", args![])
            .await,
        1
    );
    assert_eq!(
        ledger
            .count("SELECT count(*) FROM submission_key", args![])
            .await,
        1
    );
    assert_eq!(ledger.running_of(session).await.unwrap().len(), 1);
    let late = submit(ledger, session, &message("book", "same", now)).await;
    assert_eq!(refused(&late), Refusal::KnownKey);
    second.close().await;
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_later_run_at_is_recorded_and_dispatched_when_due(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let run_at = whole_ms(ledger.now().await + hours(1));
    let mut ask = message("book", "k", ledger.now().await);
    ask.run_at = Some(run_at);
    assert_eq!(
        refused(&submit(ledger, session, &ask).await),
        Refusal::Recorded
    );
    let id = ledger
        .execution_of_key("book", "k")
        .await
        .unwrap()
        .expect("recorded");
    let view = ledger.view(id).await;
    assert_eq!(
        (view.state, view.attempt, view.generation),
        (State::Pending, 0, 0)
    );
    assert_eq!((view.scheduled_at, view.available_at), (run_at, run_at));
    assert_eq!(
        (view.trigger, view.start_deadline_at),
        (Trigger::Submit, run_at + hours(24))
    );
    assert_eq!(
        refused(&submit(ledger, session, &ask).await),
        Refusal::Recorded,
        "a redelivery"
    );
    let other = message("book", "k", ledger.now().await);
    assert_eq!(
        refused(&submit(ledger, session, &other).await),
        Refusal::KnownKey
    );
    assert_eq!(ledger.dispatch_due(10).await.unwrap(), 0);
    assert!(ledger.outbox_of(id).await.is_empty());

    ledger.make_due(id).await;
    assert_eq!(ledger.dispatch_due(10).await.unwrap(), 1);
    assert_eq!(ledger.outbox_of(id).await, [1]);
    let got = ledger.claim_one(session, id).await;
    assert_eq!((&got.payload, got.attempt), (&ask.payload, 1));

    let mut past = message("book", "past", ledger.now().await);
    past.run_at = Some(ledger.ago(secs(60)).await);
    claimed(submit(ledger, session, &past).await);
}

pub(crate) async fn without_a_handler_it_is_recorded_and_deferred(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let mut ask = message("strange", "k", ledger.now().await);
    ask.has_handler = false;
    assert_eq!(
        refused(&submit(ledger, session, &ask).await),
        Refusal::Recorded
    );
    let id = ledger
        .execution_of_key("strange", "k")
        .await
        .unwrap()
        .expect("recorded");
    let view = ledger.view(id).await;
    assert_eq!(
        (view.state, view.attempt, view.generation),
        (State::Pending, 0, 0)
    );
    assert_eq!(view.last_refusal.as_deref(), Some("no_handler"));
    assert!(
        view.available_at > view.created_at,
        "due again a little later"
    );
    assert_eq!(view.dispatched_at, None);

    ledger.make_due(id).await;
    assert_eq!(ledger.dispatch_due(10).await.unwrap(), 1);
    let other = ledger.session("one that knows it").await;
    assert_eq!(ledger.claim_one(other, id).await.payload, ask.payload);
    ledger.assert_laws_hold().await;
}

/// Who records a message without its job knows nothing of the job's policy: whoever has the job
/// pins it before the handler may start.
pub(crate) async fn a_policy_that_is_not_known_is_pinned_under_the_claim(ledger: &Fixture) {
    let other = ledger.session("one that does not know it").await;
    let policy = Policy {
        timeout: secs(77),
        max_attempts: 2,
        start_deadline: hours(1),
        on_lost: OnLost::Unknown,
        ..Policy::default()
    };
    let known = ledger.session("one that knows it").await;
    for (key, own_timeout) in [("job's", false), ("own", true)] {
        let mut ask = message("pay", key, ledger.now().await);
        ask.has_handler = false;
        ask.own_timeout = own_timeout;
        ask.policy.timeout = secs(33);
        assert_eq!(
            refused(&submit(ledger, other, &ask).await),
            Refusal::Recorded
        );
        let id = ids::execution(ask.fire_id, 0);
        ledger.make_due(id).await;
        assert_eq!(ledger.dispatch_due(10).await.unwrap(), 1);
        let got = ledger.claim_one(known, id).await;
        assert!(!got.policy_known, "recorded by another");
        let before = ledger.snapshot(id).await;
        let fenced = ledger.pin_policy(id, ids::token(), got.generation, &policy);
        assert_eq!(fenced.await.unwrap(), PolicyPinned::Fenced);
        let fenced = ledger.pin_policy(id, got.claim_id, got.generation + 1, &policy);
        assert_eq!(fenced.await.unwrap(), PolicyPinned::Fenced);
        assert_eq!(ledger.snapshot(id).await, before, "nothing was written");

        let wanted = if own_timeout { secs(33) } else { secs(77) };
        for _repeat in 0..2 {
            let pinned = ledger.pin_policy(id, got.claim_id, got.generation, &policy);
            let PolicyPinned::Pinned {
                deadline_at,
                timeout,
                max_attempts,
            } = pinned.await.unwrap()
            else {
                panic!("fenced");
            };
            assert_eq!((timeout, max_attempts), (wanted, 2));
            let view = ledger.view(id).await;
            assert_eq!(view.deadline_at, Some(deadline_at));
            assert!(deadline_at >= view.claimed_at.unwrap() + wanted + secs(2));
            assert_eq!(view.start_deadline_at, view.scheduled_at + hours(1));
        }
    }
    // The lost worker may have done it: the job's word counts from the pin on.
    let mut lost = message("pay", "lost", ledger.now().await);
    lost.has_handler = false;
    submit(ledger, other, &lost).await;
    let id = ids::execution(lost.fire_id, 0);
    ledger.make_due(id).await;
    ledger.dispatch_due(10).await.unwrap();
    let first = ledger.claim_one(known, id).await;
    ledger.take_over(known).await;
    let view = ledger.view(id).await;
    assert_eq!(
        view.state,
        State::Retrying,
        "lost before the pin: nothing had begun"
    );
    ledger.make_due(id).await;
    let known = ledger.session("another that knows it").await;
    let again = ledger.claim_one(known, id).await;
    assert!(!again.policy_known && again.generation > first.generation);
    let once = Policy {
        max_attempts: 1,
        ..policy
    };
    let pinned = ledger.pin_policy(id, again.claim_id, again.generation, &once);
    assert!(
        matches!(
            pinned.await.unwrap(),
            PolicyPinned::Pinned {
                max_attempts: 2,
                ..
            }
        ),
        "not fewer than were charged"
    );
    ledger.take_over(known).await;
    assert_eq!(ledger.view(id).await.state, State::Unknown);
    ledger.assert_laws_hold().await;
}

/// A key older than the keys are kept could be a repeat of something forgotten.
pub(crate) async fn a_stale_message_is_a_dead_letter(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let stale = message("book", "old", ledger.now().await - hours(24 * 6 + 1));
    let young = message("book", "young", ledger.now().await - hours(24 * 5));
    for _delivery in 0..2 {
        assert_eq!(
            refused(&submit(ledger, session, &stale).await),
            Refusal::Stale
        );
    }
    claimed(submit(ledger, session, &young).await);
    assert_eq!(ledger.execution_of_key("book", "old").await.unwrap(), None);
    let letter = ledger
        .row(
            "SELECT job, key, queue, reason, payload FROM dead_letter",
            args![],
        )
        .await;
    assert_eq!((letter.text(0), letter.text(1)), ("book", "old"));
    assert_eq!((letter.text(2), letter.text(3)), ("default", "stale"));
    assert_eq!(letter.bytes(4), stale.payload.bytes.as_slice());
    assert_eq!(
        ledger
            .count("SELECT count(*) FROM execution", args![])
            .await,
        1
    );
}

/// A key that is forgotten while its old message is looked at must not become free for it.
pub(crate) async fn an_old_message_takes_no_key(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let first = message("book", "k", ledger.now().await);
    let ran = claimed(submit(ledger, session, &first).await);
    ledger.commit_one(&ran, complete()).await;
    let mut old = message("book", "k", ledger.now().await - hours(24 * 6 + 1));
    // The key's own transaction is still open: a message that wants the key waits for it.
    let forgetting = ledger.raw().forget_keys().await;
    let answer = tokio::time::timeout(secs(2), submit(ledger, session, &old)).await;
    assert_eq!(
        refused(&answer.expect("it waits for no key")),
        Refusal::KnownKey
    );
    forgetting.commit().await;
    ledger.sql("DELETE FROM submission_key", args![]).await;
    assert_eq!(
        refused(&submit(ledger, session, &old).await),
        Refusal::Stale
    );
    old.stored_at = first.stored_at;
    claimed(submit(ledger, session, &old).await);
}

/// Whatever retention a ticker has, also a shorter one than the last: what may have had a key that is
/// forgotten is stale before the key is, and stays so under a longer retention.
pub(crate) async fn a_message_is_stale_before_its_key_is_forgotten(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let mut first = message("book", "k", ledger.now().await);
    let ran = claimed(submit(ledger, session, &first).await);
    ledger.commit_one(&ran, complete()).await;
    first.stored_at = ledger.ago(hours(24 * 3 + 1)).await;
    let ended = ledger.ago(hours(24 * 3)).await;
    ledger
        .sql(
            "UPDATE execution SET ended_at = $1, attempt_ended_at = $1",
            args![ended],
        )
        .await;
    ledger
        .sql("UPDATE submission_key SET created_at = $1", args![ended])
        .await;
    let fresh = message("book", "another", first.stored_at);
    let young = message("book", "young", ledger.ago(hours(20)).await);

    // The mark of this ledger's first minute is seven days old: nothing was announced since.
    let short = hours(24 * 2);
    for _sweep in 0..3 {
        assert_eq!(ledger.forget_keys(short, 10).await.unwrap().keys, 0);
    }
    let known = submit(ledger, session, &first).await;
    assert_eq!(refused(&known), Refusal::KnownKey);

    a_minute_passes(ledger).await;
    for _sweep in 0..3 {
        assert_eq!(
            ledger.forget_keys(short, 10).await.unwrap().keys,
            0,
            "announced"
        );
    }
    let known = submit(ledger, session, &first).await;
    assert_eq!(refused(&known), Refusal::KnownKey, "the key is still there");
    let stale = submit(ledger, session, &fresh).await;
    assert_eq!(refused(&stale), Refusal::Stale);
    claimed(submit(ledger, session, &young).await);

    a_minute_passes(ledger).await;
    let long = hours(24 * 30);
    assert_eq!(ledger.forget_keys(short, 10).await.unwrap().keys, 0);
    assert_eq!(
        ledger.forget_keys(long, 10).await.unwrap().keys,
        0,
        "its own"
    );
    assert_eq!(ledger.forget_keys(short, 10).await.unwrap().keys, 1);
    for retention in [short, long] {
        a_minute_passes(ledger).await;
        ledger.forget_keys(retention, 10).await.unwrap();
        let stale = submit(ledger, session, &first).await;
        assert_eq!(refused(&stale), Refusal::Stale, "{retention:?}");
    }
    assert_eq!(
        ledger
            .count("SELECT count(*) FROM execution", args![])
            .await,
        2
    );
}

/// The database's clock was a year ahead while keys were swept: what is fresh is claimed all the same,
/// and the next sweep sets the mark right.
pub(crate) async fn a_mark_of_a_wrong_clock_makes_no_fresh_message_stale(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let year = ledger.now().await + hours(24 * 365);
    ledger
        .sql(
            "UPDATE ledger
             SET keys_marked_to = $1, keys_forgotten_to = $1, keys_marked_at = $1",
            args![year],
        )
        .await;
    let fresh = message("book", "fresh", ledger.ago(hours(22)).await);
    claimed(submit(ledger, session, &fresh).await);
    // Its key may be forgotten: nobody knows what that sweep has taken.
    let older = message("book", "older", ledger.ago(hours(26)).await);
    let answer = submit(ledger, session, &older).await;
    assert_eq!(refused(&answer), Refusal::Stale);

    let retention = hours(24 * 7);
    assert_eq!(ledger.forget_keys(retention, 10).await.unwrap().keys, 0);
    let kept = ledger.execution_of_key("book", "fresh").await.unwrap();
    assert_eq!(kept, Some(ids::execution(fresh.fire_id, 0)), "it is young");
    // One more turn, for what is read of the mark is a minute old.
    a_minute_passes(ledger).await;
    assert_eq!(ledger.forget_keys(retention, 10).await.unwrap().keys, 0);
    let now = ledger.now().await;
    let right = ledger
        .count(
            "SELECT count(*) FROM ledger
             WHERE keys_marked_to <= $1 AND keys_forgotten_to <= $1 AND keys_marked_at <= $2",
            args![now - hours(47), now],
        )
        .await;
    assert_eq!(right, 1, "all of it is of this clock");
}

/// For the mark of forgotten keys.
async fn a_minute_passes(ledger: &Fixture) {
    let before = ledger.ago(secs(61)).await;
    ledger
        .sql("UPDATE ledger SET keys_marked_at = $1", args![before])
        .await;
}

pub(crate) async fn a_lost_session_submits_nothing(ledger: &Fixture) {
    let lost = ledger.session("lost").await;
    ledger.lose(lost).await;
    let now = ledger.now().await;
    for session in [lost, ids::fresh()] {
        let asks = [message("book", "a", now), message("book", "b", now)];
        let answers = ledger.claim_submitted(session, &asks).await.unwrap();
        assert_eq!(answers.len(), 2);
        assert!(
            answers
                .iter()
                .all(|it| matches!(it, ClaimAnswer::SessionLost)),
            "{answers:?}"
        );
    }
    assert_eq!(
        ledger
            .count("SELECT count(*) FROM execution", args![])
            .await,
        0
    );
    assert_eq!(
        ledger
            .count("SELECT count(*) FROM submission_key", args![])
            .await,
        0
    );
    let live = ledger.session("live").await;
    claimed(submit(ledger, live, &message("book", "a", now)).await);
}

pub(crate) async fn a_dead_letter_is_recorded_once(ledger: &Fixture) {
    let letter = DeadLetter {
        job: "book".to_owned(),
        queue: "default".to_owned(),
        key: "~12.1700000000".to_owned(),
        reason: DeadReason::BadHeader,
        detail: "Bw-Run-At: \0 is no instant".to_owned(),
        payload: Payload {
            bytes: vec![0, 159, 146, 150],
            content_type: "text/\0plain".to_owned(),
        },
    };
    ledger.record_dead_letter(&letter).await.unwrap();
    let first = ledger.row("SELECT * FROM dead_letter", args![]).await;
    let again = DeadLetter {
        reason: DeadReason::TooLarge,
        payload: Payload::json("1"),
        ..letter.clone()
    };
    ledger.record_dead_letter(&again).await.unwrap();
    assert_eq!(
        ledger.row("SELECT * FROM dead_letter", args![]).await,
        first
    );
    let row = ledger
        .row("SELECT reason, detail, payload FROM dead_letter", args![])
        .await;
    assert_eq!(
        (row.text(0), row.bytes(2)),
        ("bad_header", letter.payload.bytes.as_slice())
    );
    assert!(row.text(1).starts_with("Bw-Run-At") && !row.text(1).contains('\0'));
    let other = DeadLetter {
        key: "k".repeat(2 * KEY_MAX),
        job: "j".repeat(2 * KEY_MAX),
        ..letter
    };
    ledger.record_dead_letter(&other).await.unwrap();
    let cut = ledger
        .row(
            "SELECT length(job), length(key) FROM dead_letter WHERE job <> 'book'",
            args![],
        )
        .await;
    let longest = i64::try_from(KEY_MAX).unwrap() + 1;
    assert!(cut.int(0) <= longest && cut.int(1) <= longest, "{cut:?}");
    assert_eq!(
        ledger
            .count("SELECT count(*) FROM dead_letter", args![])
            .await,
        2
    );
}

/// The worker makes a dead letter of such a message; the ledger takes it from nobody.
pub(crate) async fn a_message_out_of_bounds_is_refused(ledger: &Fixture) {
    type Change = fn(&mut SubmitAsk);
    let session = ledger.session("worker").await;
    let now = ledger.now().await;
    let changes: [(&str, Change); 5] = [
        ("payload", |ask| {
            ask.payload.bytes = vec![b'1'; PAYLOAD_MAX + 1];
        }),
        ("key", |ask| ask.key = "k".repeat(KEY_MAX + 1)),
        ("key", |ask| ask.key.clear()),
        ("job", |ask| ask.job = "a.b".into()),
        ("queue", |ask| ask.queue = "*".into()),
    ];
    for (what, change) in changes {
        let mut bad = message("book", "bad", now);
        change(&mut bad);
        let asks = [message("book", "good", now), bad];
        let error = ledger
            .claim_submitted(session, &asks)
            .await
            .expect_err(what);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{what}: {error}");
        assert!(
            error.to_string().contains(what),
            "{what} is not named: {error}"
        );
    }
    assert_eq!(
        ledger
            .count("SELECT count(*) FROM execution", args![])
            .await,
        0
    );
    let mut own = message("book", "~12.1700000000", now);
    own.payload.bytes = vec![b'1'; PAYLOAD_MAX];
    claimed(submit(ledger, session, &own).await); // The key of a message without one.
}
