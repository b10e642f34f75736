//! The clocks of an attempt, the second attempt after a lost one, and the ledger's pulse.

use std::time::Duration;

use bellwether_schemas::state::{DeadReason, OnLost, Reason, State};
use bellwether_store::dead::DeadLetter;
use bellwether_store::executions::Committed;
use bellwether_store::pulse::COUNT_MAX;
use bellwether_store::schedules::{NewSchedule, Policy, Timing};
use bellwether_store::{Backend, Payload, migrate};
use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::fixture::Fixture;
use crate::raw::{Raw, args};
use crate::vocabulary::{claim_with, complete, hours, new_session, one_shot, secs};

/// The deadline is a fact of the attempt: neither an edit nor the end of its schedule moves it.
pub(crate) async fn r44_the_deadline_is_pinned_at_the_claim(ledger: &Fixture) {
    assert_eq!(Policy::default().timeout, Duration::from_mins(5));
    let term = ledger.lead().await;
    let mut new = NewSchedule::new(
        "pinned",
        Timing::Every {
            period_ms: 1000,
            anchor: None,
        },
    );
    new.policy.timeout = secs(70);
    let schedule = ledger.schedule_of(&new, secs(3)).await;
    let ids = ledger.plan_next(&term, &schedule).await;
    let session = ledger.session("worker").await;
    let claimed = ledger.claim_one(session, ids[0]).await;
    let view = ledger.view(ids[0]).await;
    let deadline = view.deadline_at.expect("a deadline");
    let left = deadline - view.claimed_at.expect("a claim");
    assert_eq!(left.num_seconds(), 72, "claim + 2 s + timeout");
    assert_eq!(claimed.deadline_at, deadline);

    ledger
        .sql(
            "UPDATE schedule SET timeout_ms = 1, version = version + 1 WHERE id = $1",
            args![schedule.id],
        )
        .await;
    assert_eq!(ledger.view(ids[0]).await.deadline_at, Some(deadline));
    ledger.remove_schedule("pinned").await.unwrap();
    assert_eq!(ledger.view(ids[0]).await.deadline_at, Some(deadline));
    assert!(ledger.recover_lost(secs(5), 10).await.unwrap().is_empty());
}

/// A row that an older build left running without a deadline times out after the upgrade.
pub(crate) async fn r49_an_upgrade_gives_running_rows_their_deadline(ledger: &Fixture) {
    const POSTGRES: &str = "
        ALTER TABLE execution DROP CONSTRAINT execution_check1;
        INSERT INTO session VALUES ('00000000-0000-0000-0000-0000000000aa', 'w', 'h', 1, '0', '[]',
            '[]', 1, 'live', now(), now(), now() + interval '1 hour', NULL);
        INSERT INTO execution (id, fire_id, shard_index, shard_total, operation_id, trigger, job,
            queue, priority, payload, content_type, timeout_ms, max_attempts, on_lost, scheduled_at,
            start_deadline_at, created_at, state, available_at, dispatch_no, dispatched_at, attempt,
            generation, claim_id, session_id, claimed_at)
        SELECT '00000000-0000-0000-0000-000000000001', '00000000-0000-0000-0000-000000000002', 0, 1,
            '00000000-0000-0000-0000-000000000001', 'once', 'book', 'default', 'normal', '\\x7b7d',
            'application/json', 60000, 3, 'retry', at, at + interval '1 day', at, 'running', at, 1,
            at, 1, 1, gen_random_uuid(), '00000000-0000-0000-0000-0000000000aa', at
        FROM (SELECT now() - interval '1 hour' AS at) AS past";
    const SQLITE: &str = "
        PRAGMA ignore_check_constraints = ON;
        INSERT INTO session
        SELECT x'000000000000000000000000000000aa', 'w', 'h', 1, '0', '[]', '[]', 1, 'live', at, at,
            at + 7200000, NULL, '[]'
        FROM (SELECT unixepoch() * 1000 AS at);
        INSERT INTO execution (id, fire_id, shard_index, shard_total, operation_id, trigger, job,
            queue, priority, payload, content_type, timeout_ms, max_attempts, on_lost, scheduled_at,
            start_deadline_at, created_at, state, available_at, dispatch_no, dispatched_at, attempt,
            generation, claim_id, session_id, claimed_at)
        SELECT x'00000000000000000000000000000001', x'00000000000000000000000000000002', 0, 1,
            x'00000000000000000000000000000001', 'once', 'book', 'default', 'normal', x'7b7d',
            'application/json', 60000, 3, 'retry', at, at + 86400000, at, 'running', at, 1, at, 1, 1,
            randomblob(16), x'000000000000000000000000000000aa', at
        FROM (SELECT unixepoch() * 1000 - 3600000 AS at)";
    let (options, raw) = crate::migrate::beside(ledger, "older").await;
    crate::migrate::migrate(&options, &crate::migrate::real(ledger.backend())[..2])
        .await
        .unwrap();
    let raw = match raw {
        Some(raw) => raw,
        None => Raw::open(&options).await,
    };
    raw.script(match ledger.backend() {
        Backend::Postgres => POSTGRES,
        Backend::Sqlite => SQLITE,
    })
    .await;
    migrate(&options).await.unwrap();

    let store = bellwether_store::connect(&options).await.unwrap();
    let id = Uuid::from_u128(1);
    let view = store.execution(id).await.unwrap().unwrap().execution;
    let given = view.deadline_at.unwrap() - view.claimed_at.unwrap();
    assert_eq!(given.num_seconds(), 62, "claim + 2 s + timeout");
    let recovered = store.recover_lost(secs(5), 10).await.unwrap();
    let found: Vec<_> = recovered
        .iter()
        .map(|one| (one.state, one.reason))
        .collect();
    assert_eq!(found, [(State::Retrying, Reason::Timeout)]);
    store.close().await;
    raw.drop_schema(&options.schema).await;
    raw.close().await;
}

/// A worker that dies after it accepted costs a second dispatch; what it says later is refused.
pub(crate) async fn r90_a_dispatch_after_acceptance_has_one_accepted_result(ledger: &Fixture) {
    let (first, second) = (ledger.session("dies").await, ledger.session("lives").await);
    let stale = ledger.running(first, &one_shot("book")).await;
    let id = stale.execution_id;
    ledger.take_over(first).await;
    let fresh = claim_with(&*ledger.first(), second, id).await;
    let late = ledger.commit_one(&stale, complete()).await;
    assert!(matches!(late, Committed::Fenced { .. }), "{late:?}");
    let accepted = ledger.commit_one(&fresh, complete()).await;
    assert_eq!(accepted, Committed::Accepted(State::Succeeded));
    // After the commit, too.
    let late = ledger.commit_one(&stale, complete()).await;
    assert!(matches!(late, Committed::Fenced { .. }), "{late:?}");

    let story = ledger.story(id).await;
    let dispatches = story.execution.dispatch_no;
    let (accepted, stale_rejected) = (i64::from(story.output.is_some()), story.fenced.len());
    assert_eq!((dispatches, accepted, stale_rejected), (2, 1, 1));
    assert_eq!((story.execution.attempt, story.attempts.len()), (2, 1));
    assert_eq!(story.attempts[0].reason, Some(Reason::WorkerLost));
    ledger.assert_laws_hold().await;
}

/// Failover acts on a loss only, and only where it is on.
pub(crate) async fn r106_failover_off_leaves_a_lost_execution_alone(ledger: &Fixture) {
    let crashed = ledger.session("crashed").await;
    let mut off = one_shot("book");
    off.policy.on_lost = OnLost::Unknown;
    let (on, off) = (
        ledger.running(crashed, &one_shot("book")).await,
        ledger.running(crashed, &off).await,
    );
    ledger.take_over(crashed).await;
    let state = async |id| ledger.view(id).await.state;
    assert_eq!(state(on.execution_id).await, State::Retrying);
    assert_eq!(state(off.execution_id).await, State::Unknown);
    let other = ledger.session("other").await;
    let again = claim_with(&*ledger.first(), other, on.execution_id).await;
    assert_eq!(again.generation, 2);
    assert_eq!(ledger.view(off.execution_id).await.generation, 1);
}

/// What the gauges show, of a ledger with one of each.
pub(crate) async fn a_pulse_counts_what_waits(ledger: &Fixture) {
    let empty = ledger.pulse().await.unwrap();
    let none = (empty.due, empty.outbox, empty.unknown, empty.dead_messages);
    assert_eq!(none, (0, 0, 0, 0));
    assert_eq!(
        (empty.overdue, empty.outbox_oldest),
        (Duration::ZERO, Duration::ZERO)
    );

    // Which instant is its next one nobody has worked out yet: it waits for a planner all the same.
    let schedule = ledger.schedule("late", 1, secs(100)).await;
    assert_eq!(schedule.next_at, None);
    let pulse = ledger.pulse().await.unwrap();
    assert_eq!((pulse.due, pulse.overdue), (1, Duration::ZERO));
    let set_next = async |next: DateTime<Utc>| {
        let set = "UPDATE schedule SET next_at = $2 WHERE id = $1";
        ledger.sql(set, args![schedule.id, next]).await;
    };
    set_next(ledger.now().await + hours(1)).await;
    assert_eq!(ledger.pulse().await.unwrap().due, 0);
    set_next(ledger.ago(secs(90)).await).await;
    ledger.unknown("book").await;
    ledger.enqueue_one(&one_shot("book")).await;
    let past = ledger.ago(secs(50)).await;
    ledger
        .sql("UPDATE outbox SET created_at = $1", args![past])
        .await;
    let letter = DeadLetter {
        job: "book".to_owned(),
        queue: "default".to_owned(),
        key: "k".to_owned(),
        reason: DeadReason::Stale,
        detail: "old".to_owned(),
        payload: Payload::json("{}"),
    };
    ledger.record_dead_letter(&letter).await.unwrap();
    let pulse = ledger.pulse().await.unwrap();
    assert_eq!((pulse.due, pulse.unknown), (1, 1), "{pulse:?}");
    assert_eq!((pulse.dead_messages, pulse.dead_executions), (1, 0));
    assert!(pulse.outbox >= 1, "{pulse:?}");
    for (age, least) in [(pulse.overdue, 89), (pulse.outbox_oldest, 49)] {
        assert!(age >= secs(least) && age < secs(least + 60), "{pulse:?}");
    }
}

/// However much waits, a poll counts so far and no further.
pub(crate) async fn p27_a_pulse_does_not_count_a_backlog(ledger: &Fixture) {
    let session = new_session(bellwether_schemas::ids::fresh(), "idle");
    ledger.open_session(&session).await.unwrap();
    ledger
        .ddl(
            "INSERT INTO outbox (execution_id, dispatch_no, queue, priority, created_at)
             SELECT gen_random_uuid(), 1, 'default', 'normal', now() - interval '1 hour'
             FROM generate_series(1, 25000)",
            "INSERT INTO outbox (execution_id, dispatch_no, queue, priority, created_at)
             WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 25000)
             SELECT randomblob(16), 1, 'default', 'normal', unixepoch() * 1000 - 3600000 FROM n",
        )
        .await;
    let pulse = ledger.pulse().await.unwrap();
    assert_eq!(pulse.outbox, u64::from(COUNT_MAX));
    assert!(pulse.outbox_oldest >= secs(3_590), "{pulse:?}");
}
