//! What the retries of an execution keep and what they change.

use std::time::Duration;

use bellwether_schemas::ids;
use bellwether_schemas::state::{OnLost, Priority, State, Trigger};
use bellwether_schemas::trace::TraceContext;
use bellwether_store::executions::{
    CancelRequested, Commit, Enqueued, NewExecution, Outcome, Retried,
};
use bellwether_store::inspect::ExecutionFilter;
use bellwether_store::schedules::{NewSchedule, Policy, RetryPolicy, Timing};
use bellwether_store::{ErrorKind, Payload};
use uuid::Uuid;

use crate::fixture::Fixture;
use crate::raw::args;
use crate::vocabulary::{complete, error_after, hours, one_shot, result, secs};

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

/// An operator's retry that was made.
async fn retried(ledger: &Fixture, id: Uuid) -> Uuid {
    let fire_id = ids::fresh();
    let answer = ledger.retry_execution(id, fire_id, None).await.unwrap();
    let Retried::Retried { execution_id } = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(ledger.view(execution_id).await.fire_id, fire_id);
    execution_id
}

/// One execution per `(job, key)` stays one; the retry is the same operation without the key.
pub(crate) async fn p26_retrying_a_unique_job_has_a_defined_result(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let mut new = one_shot("book");
    new.key = Some("invoice-7".to_owned());
    let claimed = ledger.running(session, &new).await;
    let id = claimed.execution_id;
    ledger
        .commit_one(&claimed, Outcome::Fail("no".to_owned()))
        .await;
    let before = ledger.snapshot(id).await;

    let unrepeated = async || {
        let filter = ExecutionFilter {
            unrepeated: true,
            limit: 10,
            ..ExecutionFilter::default()
        };
        let found = ledger.executions(&filter).await.unwrap();
        found.iter().map(|view| view.id).collect::<Vec<_>>()
    };
    assert_eq!(unrepeated().await, [id]);
    let second = retried(ledger, id).await;
    assert!(unrepeated().await.is_empty());
    let retried_as = async |id| ledger.execution(id).await.unwrap().unwrap().retried_as;
    assert_eq!(retried_as(id).await, Some(second));
    assert_eq!(retried_as(second).await, None);
    assert_eq!(ledger.snapshot(id).await, before, "what ended stays ended");
    let view = ledger.view(second).await;
    assert_eq!((view.trigger, view.key), (Trigger::Retry, None));
    assert_eq!((view.operation_id, view.retry_of), (id, Some(id)));
    let already = |state| Retried::AlreadyRetried {
        execution_id: second,
        state,
    };
    let again = async |id| {
        ledger
            .retry_execution(id, ids::fresh(), None)
            .await
            .unwrap()
    };
    assert_eq!(again(id).await, already(State::Pending));
    let repeat = NewExecution {
        fire_id: ids::fresh(),
        ..new.clone()
    };
    let answer = ledger.enqueue(&[repeat]).await.unwrap();
    assert_eq!(
        answer,
        [Enqueued::Exists { execution_id: id }],
        "the key still names the first"
    );

    let claimed = ledger.claim_one(session, second).await;
    assert_eq!((claimed.operation_id, claimed.attempt), (id, 1));
    assert_eq!(again(id).await, already(State::Running));
    ledger
        .commit_one(&claimed, Outcome::Fail("no".to_owned()))
        .await;
    let third = retried(ledger, second).await;
    assert_eq!(
        again(id).await,
        Retried::AlreadyRetried {
            execution_id: third,
            state: State::Pending
        },
        "an operation never runs twice at once"
    );
    let claimed = ledger.claim_one(session, third).await;
    ledger.commit_one(&claimed, complete()).await;
    let done = Retried::AlreadyRetried {
        execution_id: third,
        state: State::Succeeded,
    };
    assert_eq!((again(id).await, again(second).await), (done, done));
    assert_eq!(again(third).await, Retried::Refused(State::Succeeded));
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_retry_repeats_the_shard_with_a_whole_budget(ledger: &Fixture) {
    let mut new = NewSchedule::new(
        "slices",
        Timing::Every {
            period_ms: 1000,
            anchor: None,
        },
    );
    new.shard_total = 3;
    new.queue = "q".into();
    new.priority = Priority::High;
    new.payload = Payload::json("{\"all\":3}");
    new.policy = Policy {
        timeout: secs(7),
        max_attempts: 2,
        start_deadline: hours(5),
        on_lost: OnLost::Unknown,
        retry: RetryPolicy {
            first: secs(3),
            cap: secs(9),
        },
    };
    let schedule = ledger.schedule_of(&new, secs(10)).await;
    let term = ledger.lead().await;
    let shards = ledger.plan_next(&term, &schedule).await;
    let session = ledger.session("worker").await;
    let first = ledger.claim_one(session, shards[1]).await;
    assert_eq!(first.retry, new.policy.retry, "pinned when it was planned");
    ledger.commit_one(&first, error_after(Duration::ZERO)).await;
    let second = ledger.claim_one(session, shards[1]).await;
    ledger
        .commit_one(&second, error_after(Duration::ZERO))
        .await;
    let old = ledger.view(shards[1]).await;
    assert_eq!((old.state, old.attempts_exhausted), (State::Failed, true));

    let trace = TraceContext::parse(
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        Some("vendor=1"),
    );
    let fire_id = ids::fresh();
    let execution_id = ids::execution(fire_id, 1);
    let answer = Retried::Retried { execution_id };
    for _ in 0..2 {
        // A repeat changes nothing and answers the same.
        let retry = ledger.retry_execution(old.id, fire_id, trace.as_ref());
        assert_eq!(retry.await.unwrap(), answer);
    }
    let view = ledger.view(execution_id).await;
    assert_eq!(
        (view.fire_id, view.shard_index, view.shard_total),
        (fire_id, 1, 3)
    );
    assert_eq!(
        (view.schedule_id, view.schedule_version),
        (Some(schedule.id), Some(schedule.version))
    );
    assert_eq!(
        (view.job, view.queue, view.priority),
        (old.job, old.queue, Priority::High)
    );
    assert_eq!(
        (view.attempt, view.generation, view.max_attempts),
        (0, 0, 2)
    );
    assert!(view.scheduled_at > old.scheduled_at, "due now");
    assert_eq!(
        view.start_deadline_at - view.scheduled_at,
        old.start_deadline_at - old.scheduled_at
    );
    assert_eq!(ledger.outbox_of(execution_id).await, [1], "dispatched");
    let claimed = ledger.claim_one(session, execution_id).await;
    assert_eq!(claimed.payload, new.payload, "the fire's");
    assert_eq!((claimed.timeout, claimed.trace), (secs(7), trace));
    assert_eq!(claimed.retry, new.policy.retry, "the old row's");
    let on_lost = ledger
        .row(
            "SELECT on_lost FROM execution WHERE id = $1",
            args![execution_id],
        )
        .await;
    assert_eq!(on_lost.text(0), "unknown");
    let results = ledger.fire_results(old.fire_id).await.unwrap();
    assert_eq!(results.len(), 3, "the old fire is as it was");
    ledger.assert_laws_hold().await;
}

pub(crate) async fn only_what_ended_without_success_is_retried(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let pending = ledger.enqueue_one(&one_shot("book")).await;
    let running = ledger.running(session, &one_shot("book")).await;
    let unknown = ledger.unknown("book").await.execution_id;
    let retry = async |id| {
        ledger
            .retry_execution(id, ids::fresh(), None)
            .await
            .unwrap()
    };
    assert_eq!(retry(pending).await, Retried::Refused(State::Pending));
    assert_eq!(
        retry(running.execution_id).await,
        Retried::Refused(State::Running)
    );
    assert_eq!(retry(unknown).await, Retried::Refused(State::Unknown));
    ledger.commit_one(&running, error_after(secs(60))).await;
    assert_eq!(
        retry(running.execution_id).await,
        Retried::Refused(State::Retrying)
    );
    assert_eq!(retry(ids::fresh()).await, Retried::NotFound);

    let answer = (**ledger).request_cancel(&[running.execution_id]).await;
    assert_eq!(answer.unwrap(), [CancelRequested::Cancelled]);
    let again = retried(ledger, running.execution_id).await;
    let view = ledger.view(again).await;
    assert_eq!(
        (view.cancel_requested_at, view.error),
        (None, None),
        "a new life"
    );
    ledger.claim_one(session, again).await;

    let past = ledger.ago(secs(1)).await;
    ledger
        .sql(
            "UPDATE execution SET start_deadline_at = $2 WHERE id = $1",
            args![pending, past],
        )
        .await;
    assert_eq!(ledger.expire_starts(10).await.unwrap().len(), 1);
    assert_eq!(ledger.view(pending).await.state, State::Expired);
    // Its budget of time was negative by hand; a whole one is what the row says.
    ledger
        .sql(
            "UPDATE execution SET scheduled_at = $2 WHERE id = $1",
            args![pending, past - hours(1)],
        )
        .await;
    let again = retried(ledger, pending).await;
    ledger.claim_one(session, again).await;

    let failed = ledger.running(session, &one_shot("book")).await;
    ledger
        .commit_one(&failed, Outcome::Fail("no".to_owned()))
        .await;
    let taken = ledger.view(pending).await.fire_id;
    let error = ledger
        .retry_execution(failed.execution_id, taken, None)
        .await
        .expect_err("that id belongs to another fire");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("taken"), "{error}");
    ledger.assert_laws_hold().await;
}

pub(crate) async fn of_two_retries_at_once_one_wins(ledger: &Fixture) {
    let other = ledger.second().await;
    let session = ledger.session("worker").await;
    for round in 0..8 {
        let claimed = ledger.running(session, &one_shot("book")).await;
        let id = claimed.execution_id;
        ledger
            .commit_one(&claimed, Outcome::Fail("no".to_owned()))
            .await;
        let (one, two) = (ledger.first(), other.clone());
        let (first, second) = tokio::join!(
            tokio::spawn(async move { one.retry_execution(id, ids::fresh(), None).await.unwrap() }),
            tokio::spawn(async move { two.retry_execution(id, ids::fresh(), None).await.unwrap() }),
        );
        let mut answers = [first.unwrap(), second.unwrap()];
        answers.sort_by_key(|answer| matches!(answer, Retried::AlreadyRetried { .. }));
        let [Retried::Retried { execution_id }, lost] = answers else {
            panic!("round {round}: {answers:?}");
        };
        assert_eq!(
            lost,
            Retried::AlreadyRetried {
                execution_id,
                state: State::Pending
            },
            "round {round}"
        );
        assert_eq!(ledger.outbox_of(execution_id).await, [1]);
    }
    other.close().await;
    ledger.assert_laws_hold().await;
}

/// A fire that made up for missed ones began when it was planned; its retry gets no lateness on top.
pub(crate) async fn a_retry_of_a_late_fire_has_the_time_that_was_set(ledger: &Fixture) {
    let every = Timing::Every {
        period_ms: 1000,
        anchor: None,
    };
    let mut new = NewSchedule::new("tick", every);
    new.policy.start_deadline = secs(90);
    let schedule = ledger.schedule_of(&new, hours(1)).await;
    let term = ledger.lead().await;
    let session = ledger.session("worker").await;
    let mut id = ledger.plan_next(&term, &schedule).await[0];
    for _ in 0..2 {
        let claimed = ledger.claim_one(session, id).await;
        ledger
            .commit_one(&claimed, Outcome::Fail("no".to_owned()))
            .await;
        let retried = ledger.retry_execution(id, ids::fresh(), None).await;
        let Retried::Retried { execution_id } = retried.unwrap() else {
            panic!("no retry");
        };
        id = execution_id;
        let view = ledger.view(id).await;
        let time = view.start_deadline_at - view.scheduled_at;
        assert_eq!(time.to_std().unwrap(), secs(90));
    }
    ledger.assert_laws_hold().await;
}
