//! Dispatches that the broker lost one by one, and those that nobody ever claims.

use std::time::Duration;

use bellwether_schemas::ids;
use bellwether_schemas::state::{DeadReason, Priority, Reason, State, Trigger};
use bellwether_store::dead::{DeadFilter, Replayed};
use bellwether_store::executions::NewExecution;
use bellwether_store::outbox::{Overdue, Redispatched, Wait};
use bellwether_store::streams::Moved;
use uuid::Uuid;

use crate::fixture::Fixture;
use crate::raw::args;
use crate::vocabulary::{hours, new_session, one_shot, secs};

const STREAM: &str = "BW_WORK";
const WAIT: Wait = Wait {
    first: Duration::from_mins(1),
    cap: Duration::from_mins(15),
};
const AGAIN: Redispatched = Redispatched { again: 1, ended: 0 };
const NOTHING: Redispatched = Redispatched { again: 0, ended: 0 };

/// What a relay does with all that is in the outbox.
async fn publish_all(ledger: &Fixture) -> usize {
    let rows = ledger.claim_outbox(1_000, secs(30), &[]).await.unwrap();
    let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
    ledger.mark_published(&ids).await.unwrap();
    rows.len()
}

async fn dispatched_ago(ledger: &Fixture, id: Uuid, ago: Duration) {
    let past = ledger.ago(ago).await;
    let text = "UPDATE execution SET dispatched_at = $2 WHERE id = $1";
    ledger.sql(text, args![id, past]).await;
}

async fn overdue(ledger: &Fixture) -> Vec<Overdue> {
    let found = ledger.overdue_dispatches(STREAM, WAIT, 100).await;
    found.unwrap()
}

async fn redispatch(ledger: &Fixture, lost: &[Overdue]) -> Redispatched {
    ledger.redispatch_overdue(lost, 5).await.unwrap()
}

/// Its message is sent, lies there for an hour and is found lost.
async fn lose_one(ledger: &Fixture, id: Uuid) -> Vec<Overdue> {
    publish_all(ledger).await;
    dispatched_ago(ledger, id, hours(1)).await;
    let found = overdue(ledger).await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].execution_id, id);
    found
}

/// The two counters of an execution.
async fn counters(ledger: &Fixture, id: Uuid) -> (i64, i64) {
    let text = "SELECT lost_dispatches, unclaimed_dispatches FROM execution WHERE id = $1";
    let row = ledger.row(text, args![id]).await;
    (row.int(0), row.int(1))
}

/// A session with free slots for two hours.
async fn idle_session(ledger: &Fixture) -> Uuid {
    let id = ledger.session("idle").await;
    free_since(ledger, id, hours(2), hours(2)).await;
    id
}

async fn free_since(ledger: &Fixture, id: Uuid, opened: Duration, free: Duration) {
    let (opened, free) = (ledger.ago(opened).await, ledger.ago(free).await);
    let text = "UPDATE session SET opened_at = $2, free_since = $3 WHERE id = $1";
    ledger.sql(text, args![id, opened, free]).await;
}

pub(crate) async fn r47_five_dispatches_that_an_idle_fleet_left_are_a_dead_letter(
    ledger: &Fixture,
) {
    idle_session(ledger).await;
    let id = ledger.enqueue_one(&one_shot("book")).await;
    for sent in 1..=4_u32 {
        let lost = lose_one(ledger, id).await;
        assert_eq!(lost[0].dispatch_no, sent);
        assert_eq!(redispatch(ledger, &lost).await, AGAIN);
        assert_eq!(redispatch(ledger, &lost).await, NOTHING, "a repeat");
        let counted = i64::from(sent);
        assert_eq!(counters(ledger, id).await, (counted, counted));
    }
    let lost = lose_one(ledger, id).await;
    assert_eq!(lost[0].dispatch_no, 5, "exactly five were sent");
    let ended = redispatch(ledger, &lost).await;
    assert_eq!(ended, Redispatched { again: 0, ended: 1 });

    let view = ledger.view(id).await;
    assert_eq!(
        (view.state, view.reason, view.dispatch_no),
        (State::Failed, Some(Reason::Undeliverable), 5)
    );
    let letters = ledger
        .dead_letters(&DeadFilter {
            limit: 10,
            ..DeadFilter::default()
        })
        .await
        .unwrap();
    assert_eq!(letters.len(), 1);
    let letter = &letters[0];
    assert_eq!(letter.reason, DeadReason::Unclaimed);
    assert_eq!(letter.execution_id, Some(id));
    assert_eq!(letter.key, format!("~{id}.5"));
    assert_eq!(view.error.as_deref(), Some(letter.detail.as_str()));

    // Never again by itself, whatever looks at it.
    assert_eq!(redispatch(ledger, &lost).await, NOTHING);
    assert_eq!(overdue(ledger).await, []);
    assert_eq!(ledger.dispatch_due(100).await.unwrap(), 0);
    assert_eq!(ledger.redispatch_lost(STREAM, 100).await.unwrap(), 0);
    assert_eq!(publish_all(ledger).await, 0);

    let replayed = ledger
        .replay_dead_letter(letter.id, ids::fresh(), None)
        .await
        .unwrap();
    let Replayed::Replayed { execution_id } = replayed else {
        panic!("{replayed:?}");
    };
    let again = ledger.view(execution_id).await;
    assert_eq!(
        (again.state, again.trigger, again.dispatch_no),
        (State::Pending, Trigger::Retry, 1)
    );
    assert_eq!(counters(ledger, execution_id).await, (0, 0), "a new budget");
    ledger.assert_laws_hold().await;
}

pub(crate) async fn r47_a_fleet_that_is_busy_away_or_another_counts_nothing(ledger: &Fixture) {
    // The row is always dispatched an hour ago.
    let busy = ledger.session("busy").await;
    let now_and_then = ledger.session("freed since").await;
    free_since(ledger, now_and_then, hours(2), secs(60)).await;
    let young = ledger.session("opened since").await;
    free_since(ledger, young, secs(60), hours(2)).await;
    let lost = idle_session(ledger).await;
    ledger.lose(lost).await;
    let silent = idle_session(ledger).await;
    ledger.expire_session(silent).await;
    for (queues, jobs) in [("other", "book"), ("default", "bookkeeping")] {
        let mut session = new_session(ids::fresh(), "elsewhere");
        session.queues = vec![queues.to_owned()];
        session.jobs = vec![jobs.to_owned()];
        ledger.open_session(&session).await.unwrap();
        free_since(ledger, session.id, hours(2), hours(2)).await;
    }
    let id = ledger.enqueue_one(&one_shot("book")).await;
    for round in 1..=8 {
        let lost = lose_one(ledger, id).await;
        assert_eq!(redispatch(ledger, &lost).await, AGAIN);
        assert_eq!(counters(ledger, id).await, (round, 0));
    }
    publish_all(ledger).await;
    let view = ledger.view(id).await;
    assert_eq!((view.state, view.dispatch_no), (State::Pending, 9));

    // Four that counted, and a claim: what follows begins anew.
    idle_session(ledger).await;
    for _ in 0..4 {
        let lost = lose_one(ledger, id).await;
        assert_eq!(redispatch(ledger, &lost).await, AGAIN);
    }
    assert_eq!(counters(ledger, id).await, (12, 4));
    ledger.claim_one(busy, id).await;
    assert_eq!(counters(ledger, id).await, (0, 0));
}

pub(crate) async fn a_lost_dispatch_waits_twice_as_long_after_each_loss(ledger: &Fixture) {
    let id = ledger.enqueue_one(&one_shot("book")).await;
    for (losses, minutes) in [(0, 1), (1, 2), (2, 4), (3, 8), (4, 15), (5, 15), (60, 15)] {
        publish_all(ledger).await;
        let text = "UPDATE execution SET lost_dispatches = $2 WHERE id = $1";
        ledger.sql(text, args![id, i64::from(losses)]).await;
        let wait = secs(60 * minutes);
        dispatched_ago(ledger, id, wait.saturating_sub(secs(20))).await;
        assert_eq!(overdue(ledger).await, [], "{losses} losses: too young");
        dispatched_ago(ledger, id, wait + secs(1)).await;
        let found = overdue(ledger).await;
        assert_eq!(found.len(), 1, "{losses} losses: old enough");
        assert_eq!(found[0].lost_dispatches, losses);
        assert_eq!(WAIT.after(losses), wait, "the relay counts alike");
    }
}

pub(crate) async fn only_what_was_sent_and_waits_is_overdue(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let running = ledger.running(session, &one_shot("book")).await;
    let unknown = ledger.unknown("book").await.execution_id;
    let later = NewExecution {
        run_at: Some(ledger.now().await + hours(1)),
        ..one_shot("book")
    };
    let later = ledger.enqueue_one(&later).await;
    let other_lane = NewExecution {
        priority: Priority::High,
        ..one_shot("book")
    };
    let other_lane = ledger.enqueue_one(&other_lane).await;
    let sent = ledger.enqueue_one(&one_shot("book")).await;
    publish_all(ledger).await;
    for id in [running.execution_id, unknown, sent, other_lane] {
        dispatched_ago(ledger, id, hours(1)).await;
    }
    let found = |overdue: Vec<Overdue>| {
        let mut ids: Vec<_> = overdue.into_iter().map(|one| one.execution_id).collect();
        ids.sort_unstable();
        ids
    };
    let mut wanted = vec![unknown, sent, other_lane];
    wanted.sort_unstable();
    assert_eq!(found(overdue(ledger).await), wanted);
    assert!(!wanted.contains(&later));

    // Its lane is behind: what it holds goes first.
    let behind = ledger.enqueue_one(&one_shot("book")).await;
    let text = "UPDATE outbox SET created_at = $2 WHERE execution_id = $1";
    let past = ledger.ago(secs(61)).await;
    ledger.sql(text, args![behind, past]).await;
    assert_eq!(found(overdue(ledger).await), [other_lane]);
    let fresh = ledger.ago(secs(1)).await;
    ledger.sql(text, args![behind, fresh]).await;
    assert_eq!(found(overdue(ledger).await), wanted);

    // A lost stream dispatches them again by itself, and counts nothing against them.
    let created = ledger.ago(hours(2)).await;
    let moved = ledger.move_stream(STREAM, None, created, 0).await.unwrap();
    assert_eq!(moved, Moved::Moved);
    assert_eq!(overdue(ledger).await, []);
    assert_eq!(ledger.redispatch_lost(STREAM, 100).await.unwrap(), 3);
    assert_eq!(counters(ledger, sent).await, (0, 0));
    assert_eq!(
        ledger.view(unknown).await.state,
        State::Unknown,
        "its probe is dispatched, no more"
    );
    let rows = ledger.claim_outbox(100, secs(30), &[]).await.unwrap();
    let claimed: Vec<_> = rows.iter().map(|row| row.dispatch.execution_id).collect();
    assert!(claimed.contains(&unknown), "and sent");
}

pub(crate) async fn overdue_dispatches_are_taken_lane_by_lane(ledger: &Fixture) {
    let mut oldest = Vec::new();
    for (queue, count) in [("deep", 30_u64), ("shallow", 2)] {
        for n in 0..count {
            let mut new = one_shot("book");
            queue.clone_into(&mut new.queue);
            let id = ledger.enqueue_one(&new).await;
            publish_all(ledger).await;
            dispatched_ago(ledger, id, hours(2).saturating_sub(secs(n))).await;
            if n < 2 {
                oldest.push(id);
            }
        }
    }
    let found = ledger.overdue_dispatches(STREAM, WAIT, 2).await.unwrap();
    let mut found: Vec<_> = found.into_iter().map(|one| one.execution_id).collect();
    found.sort_unstable();
    oldest.sort_unstable();
    assert_eq!(found, oldest, "the oldest two of each");
}

pub(crate) async fn of_two_relays_that_find_a_loss_one_sends_again(ledger: &Fixture) {
    let id = ledger.enqueue_one(&one_shot("book")).await;
    let lost = lose_one(ledger, id).await;
    let second = ledger.second().await;
    let relays = [ledger.first(), second.clone()].map(|store| {
        let lost = lost.clone();
        tokio::spawn(async move { store.redispatch_overdue(&lost, 5).await.unwrap() })
    });
    let done = futures_util::future::try_join_all(relays).await.unwrap();
    assert_eq!(done.iter().map(|done| done.again).sum::<u64>(), 1);
    assert_eq!(ledger.outbox_of(id).await, [2]);
    assert_eq!(counters(ledger, id).await, (1, 0));
    second.close().await;
}

pub(crate) async fn queues_are_idle_while_a_live_worker_has_had_free_slots(ledger: &Fixture) {
    let idle = async |time| {
        let mut queues = ledger.idle_queues(time).await.unwrap();
        queues.sort();
        queues
    };
    let mut session = new_session(ids::fresh(), "two queues");
    session.queues = vec!["b".to_owned(), "a".to_owned()];
    ledger.open_session(&session).await.unwrap();
    assert_eq!(
        idle(secs(0)).await,
        [] as [&str; 0],
        "nothing is known of it"
    );
    free_since(ledger, session.id, hours(2), hours(1)).await;
    assert_eq!(idle(secs(60)).await, ["a", "b"]);
    assert_eq!(idle(hours(2)).await, [] as [&str; 0], "not so long");
    ledger.lose(session.id).await;
    assert_eq!(idle(secs(60)).await, [] as [&str; 0], "lost");
}
