//! One-shots through the outbox path, and manual triggers.

use std::collections::HashSet;
use std::time::Duration;

use bellwether_schemas::ids;
use bellwether_schemas::limits::{KEY_MAX, PAYLOAD_MAX};
use bellwether_schemas::state::{OnLost, Priority, State, Trigger};
use bellwether_schemas::trace::TraceContext;
use bellwether_store::executions::{Enqueued, NewExecution, Triggered};
use bellwether_store::schedules::{NewSchedule, Policy, RetryPolicy, Timing};
use bellwether_store::{ErrorKind, Payload};
use futures_util::future::try_join_all;
use sqlx::AssertSqlSafe;

use crate::fixture::{Fixture, whole_ms};
use crate::raw::{Raw, args};
use crate::vocabulary::{hours, one_shot, secs};

/// Enqueues inside the caller's own transaction, whose session lives in `zone`; then commits it
/// or rolls it back.
pub(crate) async fn in_transaction(
    ledger: &Fixture,
    zone: Option<&str>,
    new: &NewExecution,
    commit: bool,
) -> Enqueued {
    let answer;
    match ledger.raw() {
        Raw::Postgres(pool) => {
            let mut caller = pool.begin().await.unwrap();
            if let Some(zone) = zone {
                let set = AssertSqlSafe(format!("SET LOCAL TIME ZONE '{zone}'"));
                sqlx::query(set).execute(&mut *caller).await.unwrap();
            }
            let schema = &ledger.options().schema;
            answer = bellwether_store::postgres::enqueue_in(&mut caller, schema, new)
                .await
                .unwrap();
            if commit {
                caller.commit().await
            } else {
                caller.rollback().await
            }
            .unwrap();
        }
        Raw::Sqlite(pool) => {
            let mut caller = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
            answer = bellwether_store::sqlite::enqueue_in(&mut caller, new)
                .await
                .unwrap();
            if commit {
                caller.commit().await
            } else {
                caller.rollback().await
            }
            .unwrap();
        }
    }
    answer
}

pub(crate) async fn r67_each_one_shot_is_answered_with_its_id(ledger: &Fixture) {
    let mut first = one_shot("book");
    first.queue = "entries".into();
    first.priority = Priority::High;
    first.policy = Policy {
        timeout: secs(11),
        max_attempts: 2,
        start_deadline: hours(3),
        on_lost: OnLost::Unknown,
        retry: RetryPolicy {
            first: secs(4),
            cap: secs(8),
        },
    };
    first.trace = TraceContext::parse(
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        Some("vendor=1"),
    );
    let second = one_shot("other");
    let before = whole_ms(ledger.now().await);
    let answers = ledger
        .enqueue(&[first.clone(), second.clone()])
        .await
        .unwrap();
    let after = ledger.now().await;
    let expected = [&first, &second].map(|new| Enqueued::Inserted {
        execution_id: new.execution_id(),
    });
    assert_eq!(answers, expected, "in the order asked");

    let view = ledger.view(first.execution_id()).await;
    assert_eq!((view.fire_id, view.operation_id), (first.fire_id, view.id));
    assert_eq!((view.state, view.trigger), (State::Pending, Trigger::Once));
    assert_eq!(
        (view.job.as_str(), view.queue.as_str()),
        ("book", "entries")
    );
    assert_eq!((view.priority, view.max_attempts), (Priority::High, 2));
    assert_eq!((view.shard_index, view.shard_total), (0, 1));
    assert_eq!(
        (view.schedule_id, view.schedule_version, view.key),
        (None, None, None)
    );
    assert!(before <= view.scheduled_at && view.scheduled_at <= after);
    assert_eq!(view.start_deadline_at, view.scheduled_at + hours(3));
    assert_eq!(view.dispatch_no, 1, "dispatched by the same statement");
    assert_eq!(ledger.outbox_of(view.id).await, [1]);
    assert!(
        ledger
            .queues()
            .await
            .unwrap()
            .contains(&"entries".to_owned())
    );

    let session = ledger.session("worker").await;
    let claimed = ledger.claim_one(session, view.id).await;
    assert_eq!(
        (claimed.timeout, claimed.payload),
        (secs(11), first.payload.clone())
    );
    assert_eq!(claimed.retry, first.policy.retry);
    assert_eq!(claimed.trace, first.trace, "the caller's trace");
    let made = ledger.claim_one(session, second.execution_id()).await;
    assert!(made.trace.is_some(), "without one, a new trace");

    let before = ledger.snapshot(view.id).await;
    let again = ledger.enqueue(std::slice::from_ref(&first)).await.unwrap();
    assert_eq!(
        again,
        [Enqueued::Exists {
            execution_id: first.execution_id()
        }]
    );
    assert_eq!(
        ledger.snapshot(view.id).await,
        before,
        "a repeat changes nothing"
    );
    assert_eq!(ledger.outbox_of(view.id).await, [1]);
    assert!(ledger.enqueue(&[]).await.unwrap().is_empty());
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_key_names_one_execution_of_a_job(ledger: &Fixture) {
    let keyed = |job: &str, key: &str| NewExecution {
        key: Some(key.to_owned()),
        ..one_shot(job)
    };
    let batch = [
        keyed("book", "k1"),
        keyed("book", "k1"),
        keyed("book", "k2"),
        keyed("other", "k1"),
    ];
    let answers = ledger.enqueue(&batch).await.unwrap();
    let inserted = |n: usize| Enqueued::Inserted {
        execution_id: batch[n].execution_id(),
    };
    let exists = |n: usize| Enqueued::Exists {
        execution_id: batch[n].execution_id(),
    };
    assert_eq!(answers, [inserted(0), exists(0), inserted(2), inserted(3)]);
    let again = ledger
        .enqueue(&[keyed("book", "k2"), one_shot("book")])
        .await
        .unwrap();
    assert_eq!(again[0], exists(2));
    assert!(matches!(again[1], Enqueued::Inserted { .. }));

    let found = ledger.execution_of_key("book", "k1").await.unwrap();
    assert_eq!(found, Some(batch[0].execution_id()));
    assert_eq!(ledger.execution_of_key("book", "k9").await.unwrap(), None);
    assert_eq!(
        ledger.view(batch[0].execution_id()).await.key.as_deref(),
        Some("k1")
    );
    assert_eq!(
        ledger
            .count("SELECT count(*) FROM execution", args![])
            .await,
        4
    );
    assert_eq!(
        ledger.count("SELECT count(*) FROM outbox", args![]).await,
        4
    );
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_key_enqueued_twenty_times_at_once_is_one_execution(ledger: &Fixture) {
    let second = ledger.second().await;
    let tasks = (0..20).map(|n| {
        let store = if n % 2 == 0 {
            ledger.first()
        } else {
            second.clone()
        };
        let new = NewExecution {
            key: Some("same".to_owned()),
            ..one_shot("book")
        };
        tokio::spawn(async move { store.enqueue(&[new]).await.unwrap().remove(0) })
    });
    let answers = try_join_all(tasks).await.unwrap();
    let inserted = answers
        .iter()
        .filter(|it| matches!(it, Enqueued::Inserted { .. }))
        .count();
    let ids: HashSet<_> = answers.iter().map(|answer| answer.execution_id()).collect();
    assert_eq!((inserted, ids.len()), (1, 1), "{answers:?}");
    assert_eq!(
        ledger
            .count("SELECT count(*) FROM execution", args![])
            .await,
        1
    );
    assert_eq!(
        ledger.count("SELECT count(*) FROM outbox", args![]).await,
        1
    );
    second.close().await;
}

/// The submitter dies before the one-shot is due; any other process dispatches it, once.
pub(crate) async fn r69_one_shot_is_durable(ledger: &Fixture) {
    let run_at = whole_ms(ledger.now().await + hours(1));
    let mut new = one_shot("book");
    new.run_at = Some(run_at);
    new.policy.max_attempts = 7;
    let submitter = ledger.second().await;
    let id = submitter.enqueue(std::slice::from_ref(&new)).await.unwrap()[0].execution_id();
    submitter.close().await;

    let view = ledger.view(id).await;
    assert_eq!(
        (view.state, view.dispatch_no, view.dispatched_at),
        (State::Pending, 0, None)
    );
    assert_eq!((view.scheduled_at, view.available_at), (run_at, run_at));
    assert_eq!(
        (view.start_deadline_at, view.max_attempts),
        (run_at + hours(24), 7)
    );
    assert_eq!(
        ledger.dispatch_due(10).await.unwrap(),
        0,
        "not before it is due"
    );
    assert_eq!(
        ledger.count("SELECT count(*) FROM outbox", args![]).await,
        0,
        "no message waits"
    );

    ledger.make_due(id).await;
    assert_eq!(ledger.dispatch_due(10).await.unwrap(), 1);
    assert_eq!(ledger.dispatch_due(10).await.unwrap(), 0, "once");
    assert_eq!(ledger.outbox_of(id).await, [1]);
    let rows = ledger.claim_outbox(10, secs(30), &[]).await.unwrap();
    assert_eq!(
        (
            rows[0].dispatch.execution_id,
            rows[0].dispatch.schedule_version
        ),
        (id, None)
    );
    let session = ledger.session("worker").await;
    assert_eq!(ledger.claim_one(session, id).await.payload, new.payload);
}

pub(crate) async fn enqueue_in_follows_the_callers_transaction(ledger: &Fixture) {
    let dropped = NewExecution {
        key: Some("k".to_owned()),
        queue: "q".into(),
        ..one_shot("book")
    };
    let answer = in_transaction(ledger, None, &dropped, false).await;
    assert_eq!(
        answer,
        Enqueued::Inserted {
            execution_id: dropped.execution_id()
        }
    );
    assert!(
        ledger
            .execution(dropped.execution_id())
            .await
            .unwrap()
            .is_none(),
        "rolled back"
    );
    assert_eq!(ledger.execution_of_key("book", "k").await.unwrap(), None);
    assert_eq!(
        ledger.count("SELECT count(*) FROM outbox", args![]).await,
        0
    );

    let kept = NewExecution {
        fire_id: ids::fresh(),
        ..dropped.clone()
    };
    let answer = in_transaction(ledger, None, &kept, true).await;
    assert_eq!(
        answer,
        Enqueued::Inserted {
            execution_id: kept.execution_id()
        }
    );
    assert_eq!(ledger.outbox_of(kept.execution_id()).await, [1]);
    assert_eq!(
        ledger.execution_of_key("book", "k").await.unwrap(),
        Some(kept.execution_id())
    );
    assert!(ledger.queues().await.unwrap().contains(&"q".to_owned()));

    let again = NewExecution {
        fire_id: ids::fresh(),
        ..kept.clone()
    };
    let answer = in_transaction(ledger, None, &again, true).await;
    assert_eq!(
        answer,
        Enqueued::Exists {
            execution_id: kept.execution_id()
        }
    );
    let session = ledger.session("worker").await;
    assert_eq!(
        ledger.claim_one(session, kept.execution_id()).await.payload,
        kept.payload
    );
    ledger.assert_laws_hold().await;
}

pub(crate) async fn what_is_out_of_bounds_is_refused_by_name(ledger: &Fixture) {
    type Change = fn(&mut NewExecution);
    let changes: [(&str, Change); 12] = [
        ("content type", |new| {
            new.payload.content_type = "text/html".into();
        }),
        ("timeout", |new| new.policy.timeout = Duration::ZERO),
        ("start deadline", |new| {
            new.policy.start_deadline = Duration::ZERO;
        }),
        ("attempts", |new| new.policy.max_attempts = 0),
        ("payload", |new| {
            new.payload = Payload::json(vec![b'1'; PAYLOAD_MAX + 1]);
        }),
        ("key", |new| new.key = Some("k".repeat(KEY_MAX + 1))),
        ("key", |new| new.key = Some(String::new())),
        ("key", |new| new.key = Some("~7.1".to_owned())),
        ("job", |new| new.job = "a.b".into()),
        ("job", |new| new.job = String::new()),
        ("queue", |new| new.queue = "a b".into()),
        ("queue", |new| new.queue = ">".into()),
    ];
    for (what, change) in changes {
        let mut bad = one_shot("book");
        change(&mut bad);
        let error = ledger
            .enqueue(&[one_shot("book"), bad])
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
        0,
        "all or nothing"
    );

    let mut largest = one_shot("book");
    largest.payload = Payload::json(vec![b'1'; PAYLOAD_MAX]);
    largest.key = Some("k".repeat(KEY_MAX));
    let id = ledger.enqueue_one(&largest).await;
    let session = ledger.session("worker").await;
    assert_eq!(
        ledger.claim_one(session, id).await.payload.bytes.len(),
        PAYLOAD_MAX
    );
}

pub(crate) async fn r67_a_trigger_fires_now_and_is_answered_with_its_fire(ledger: &Fixture) {
    let mut new = NewSchedule::new(
        "report",
        Timing::Every {
            period_ms: 1000,
            anchor: None,
        },
    );
    new.shard_total = 3;
    new.policy.retry.cap = secs(7);
    let schedule = ledger.schedule_of(&new, secs(1)).await;
    let fire_id = ids::fresh();
    let trace = TraceContext::parse(
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        None,
    );
    let answer = Triggered::Fired {
        fire_id,
        shard_total: 3,
    };
    assert_eq!(
        ledger
            .trigger("report", fire_id, trace.as_ref())
            .await
            .unwrap(),
        answer
    );
    assert_eq!(
        ledger.trigger("report", fire_id, None).await.unwrap(),
        answer,
        "a repeat"
    );
    assert_eq!(
        ledger.trigger("nobody", ids::fresh(), None).await.unwrap(),
        Triggered::NotFound
    );

    let fires = ledger.fires(schedule.id, 10).await.unwrap();
    assert_eq!(fires.len(), 1);
    assert_eq!(
        (fires[0].id, fires[0].trigger, fires[0].epoch),
        (fire_id, Trigger::Manual, None)
    );
    let session = ledger.session("worker").await;
    for shard in 0..3 {
        let id = ids::execution(fire_id, shard);
        assert_eq!(ledger.outbox_of(id).await, [1]);
        let claimed = ledger.claim_one(session, id).await;
        assert_eq!(
            (claimed.shard_index, claimed.trigger),
            (shard, Trigger::Manual)
        );
        assert_eq!(claimed.schedule_version, Some(schedule.version));
        assert_eq!(
            (claimed.trace, claimed.retry),
            (trace.clone(), new.policy.retry)
        );
    }
    let read = ledger.schedule_row(schedule.id).await;
    assert_eq!(
        (read.cursor, read.next_at),
        (schedule.cursor, None),
        "its instants are untouched"
    );
    ledger.assert_laws_hold().await;
}

pub(crate) async fn an_id_that_is_there_takes_no_other_key(ledger: &Fixture) {
    let keyed = |new: &NewExecution, key: &str| NewExecution {
        key: Some(key.to_owned()),
        ..new.clone()
    };
    let new = one_shot("book");
    let id = ledger.enqueue_one(&keyed(&new, "a")).await;
    let exists = Enqueued::Exists { execution_id: id };
    let answer = ledger.enqueue(&[keyed(&new, "b")]).await.unwrap();
    assert_eq!(answer, [exists]);
    assert_eq!(ledger.execution_of_key("book", "b").await.unwrap(), None);
    let fresh = one_shot("book");
    let other = fresh.execution_id();
    let answers = ledger
        .enqueue(&[keyed(&fresh, "b"), keyed(&fresh, "c"), keyed(&new, "b")])
        .await
        .unwrap();
    let expected = [
        Enqueued::Inserted {
            execution_id: other,
        },
        Enqueued::Exists {
            execution_id: other,
        },
        exists,
    ];
    assert_eq!(answers, expected);
    assert_eq!(
        ledger.execution_of_key("book", "b").await.unwrap(),
        Some(other)
    );
    assert_eq!(ledger.execution_of_key("book", "c").await.unwrap(), None);
}
