//! What people and clients look at.

use bellwether_schemas::ids;
use bellwether_schemas::state::{NonFireReason, Overlap, Reason, SessionState, State};
use bellwether_store::executions::{NewExecution, Outcome};
use bellwether_store::inspect::{ExecutionFilter, NonFireView};
use bellwether_store::planning::{MissedRange, PlanStep};
use bellwether_store::schedules::{NewSchedule, Timing};
use uuid::Uuid;

use crate::fixture::Fixture;
use crate::planning::plan_one;
use crate::raw::args;
use crate::vocabulary::{complete, error_after, hours, new_session, one_shot, secs, step};

pub(crate) async fn executions_are_listed_by_every_filter(ledger: &Fixture) {
    let session = ledger.session("worker").await;
    let mut all = Vec::new();
    for (job, queue) in [("a", "q1"), ("b", "q1"), ("a", "q2"), ("b", "q2")] {
        let mut new = one_shot(job);
        new.queue = queue.to_owned();
        all.push(ledger.enqueue_one(&new).await);
    }
    let claimed = ledger.claim_one(session, all[0]).await;
    ledger.commit_one(&claimed, complete()).await;
    ledger.claim_one(session, all[1]).await;

    let list = async |filter: ExecutionFilter| {
        let views = ledger.executions(&filter).await.unwrap();
        let ids: Vec<Uuid> = views.iter().map(|view| view.id).collect();
        let mut newest_first = ids.clone();
        newest_first.sort_by(|one, other| other.cmp(one));
        assert_eq!(ids, newest_first, "newest id first");
        let mut places: Vec<usize> = ids
            .iter()
            .map(|id| all.iter().position(|one| one == id).unwrap())
            .collect();
        places.sort_unstable();
        places
    };
    let filter = || ExecutionFilter {
        limit: 10,
        ..ExecutionFilter::default()
    };
    assert_eq!(list(filter()).await, [0, 1, 2, 3]);
    assert_eq!(
        list(ExecutionFilter {
            job: Some("a".into()),
            ..filter()
        })
        .await,
        [0, 2]
    );
    assert_eq!(
        list(ExecutionFilter {
            queue: Some("q2".into()),
            ..filter()
        })
        .await,
        [2, 3]
    );
    assert_eq!(
        list(ExecutionFilter {
            state: Some(State::Pending),
            ..filter()
        })
        .await,
        [2, 3]
    );
    let fire_id = Some(claimed.fire_id);
    assert_eq!(
        list(ExecutionFilter {
            fire_id,
            ..filter()
        })
        .await,
        [0]
    );
    let both = ExecutionFilter {
        job: Some("b".into()),
        state: Some(State::Running),
        queue: Some("q1".into()),
        ..filter()
    };
    assert_eq!(list(both).await, [1]);
    let none = ExecutionFilter {
        job: Some("c".into()),
        ..filter()
    };
    assert_eq!(list(none).await, [0_usize; 0]);
    let two = ledger
        .executions(&ExecutionFilter {
            limit: 2,
            ..filter()
        })
        .await
        .unwrap();
    let mut newest = all.clone();
    newest.sort_by(|one, other| other.cmp(one));
    assert_eq!(
        two.iter().map(|view| view.id).collect::<Vec<_>>(),
        newest[..2]
    );

    let mut counts = ledger.state_counts().await.unwrap();
    counts.sort();
    assert_eq!(
        counts,
        [
            (State::Pending, 2),
            (State::Running, 1),
            (State::Succeeded, 1)
        ]
    );
}

pub(crate) async fn a_fires_results_stand_by_shard(ledger: &Fixture) {
    let schedule = ledger.schedule("slices", 3, secs(10)).await;
    let term = ledger.lead().await;
    let shards = ledger.plan_next(&term, &schedule).await;
    let session = ledger.session("worker").await;
    let fire_id = ledger.view(shards[0]).await.fire_id;
    let third = ledger.claim_one(session, shards[2]).await;
    ledger.commit_one(&third, complete()).await;
    let first = ledger.claim_one(session, shards[0]).await;
    ledger
        .commit_one(&first, Outcome::Fail("bad".to_owned()))
        .await;

    let results = ledger.fire_results(fire_id).await.unwrap();
    let seen: Vec<_> = results
        .iter()
        .map(|it| (it.shard_index, it.shard_total, it.state))
        .collect();
    assert_eq!(
        seen,
        [
            (0, 3, State::Failed),
            (1, 3, State::Pending),
            (2, 3, State::Succeeded)
        ]
    );
    assert_eq!(
        (results[0].reason, results[0].error.as_deref()),
        (Some(Reason::Rejected), Some("bad"))
    );
    assert_eq!((&results[0].output, &results[1].output), (&None, &None));
    let output = results[2].output.as_ref().expect("an output");
    assert_eq!(
        (output.bytes.as_slice(), output.content_type.as_str()),
        (&b"\"done\""[..], "application/json")
    );
    assert_eq!(results[2].execution_id, shards[2]);

    let one = ledger
        .execution_result(shards[2])
        .await
        .unwrap()
        .expect("a result");
    assert_eq!(
        (one.state, &one.output),
        (State::Succeeded, &results[2].output)
    );
    assert_eq!(one.job, ledger.view(shards[2]).await.job);
    assert!(ledger.fire_results(ids::fresh()).await.unwrap().is_empty());
    assert!(
        ledger
            .execution_result(ids::fresh())
            .await
            .unwrap()
            .is_none()
    );
    assert!(ledger.execution(ids::fresh()).await.unwrap().is_none());

    let single = ledger.running(session, &one_shot("book")).await;
    ledger.commit_one(&single, complete()).await;
    let results = ledger.fire_results(single.fire_id).await.unwrap();
    assert_eq!(results.len(), 1, "a one-shot is a fire of one shard");
    assert_eq!(results[0].execution_id, single.execution_id);
}

pub(crate) async fn an_executions_story_is_told_in_order(ledger: &Fixture) {
    let first = ledger.session("first").await;
    let stale = ledger.running(first, &one_shot("book")).await;
    let id = stale.execution_id;
    ledger.take_over(first).await;
    let second = ledger.session("second").await;
    let failed = ledger.claim_one(second, id).await;
    ledger.commit_one(&stale, complete()).await;
    ledger.commit_one(&failed, error_after(secs(1))).await;
    ledger.make_due(id).await;
    ledger.dispatch_due(10).await.unwrap();
    let third = ledger.claim_one(second, id).await;
    ledger.commit_one(&third, complete()).await;

    let story = ledger.story(id).await;
    assert_eq!(
        (story.execution.state, story.execution.generation),
        (State::Succeeded, 3)
    );
    assert_eq!(
        (story.execution.attempt, story.execution.session_id),
        (3, Some(second))
    );
    let told: Vec<_> = story
        .attempts
        .iter()
        .map(|it| (it.generation, it.attempt, it.session_id, it.reason))
        .collect();
    let expected = [
        (1, 1, first, Some(Reason::WorkerLost)),
        (2, 2, second, Some(Reason::Error)),
    ];
    assert_eq!(told, expected);
    assert!(story.attempts[0].ended_at <= story.attempts[1].claimed_at);
    assert!(Some(story.attempts[1].ended_at) <= story.execution.claimed_at);
    assert_eq!(story.fenced.len(), 1);
    assert_eq!(
        (story.fenced[0].generation, story.fenced[0].outcome.as_str()),
        (1, "complete")
    );
    assert_eq!(story.output.expect("an output").bytes, b"\"done\"");
    ledger.assert_laws_hold().await;
}

pub(crate) async fn fires_and_sessions_are_listed_newest_first(ledger: &Fixture) {
    let schedule = ledger.schedule("tick", 1, secs(60)).await;
    let other = ledger.schedule("other", 1, secs(60)).await;
    let term = ledger.lead().await;
    for _ in 0..5 {
        ledger.plan_next(&term, &schedule).await;
    }
    ledger.plan_next(&term, &other).await;
    let fires = ledger.fires(schedule.id, 3).await.unwrap();
    let instants: Vec<_> = fires.iter().map(|fire| fire.scheduled_at).collect();
    let expected = [5, 4, 3].map(|n| schedule.cursor + secs(n));
    assert_eq!(instants, expected);
    assert_eq!(ledger.fires(schedule.id, 100).await.unwrap().len(), 5);

    let mut sessions = Vec::new();
    for n in 0..4 {
        sessions.push(ledger.session(&format!("w{n}")).await);
    }
    ledger.close_session(sessions[2]).await.unwrap();
    ledger.close_session(sessions[3]).await.unwrap();
    ledger.running(sessions[1], &one_shot("book")).await;
    let listed = ledger.sessions(1).await.unwrap();
    let live = listed
        .iter()
        .filter(|view| view.state == SessionState::Live)
        .count();
    let closed: Vec<_> = listed
        .iter()
        .filter(|view| view.state == SessionState::Closed)
        .collect();
    assert_eq!(
        (live, closed.len()),
        (2, 1),
        "all live ones, the newest ended ones"
    );
    assert_eq!(closed[0].id, sessions[3]);
    let busy = listed
        .iter()
        .find(|view| view.id == sessions[1])
        .expect("a live one");
    assert_eq!(busy.running, 1);
    let all = ledger.sessions(10).await.unwrap();
    let order: Vec<Uuid> = all.iter().map(|view| view.id).collect();
    sessions.reverse();
    assert_eq!(order, sessions, "newest first");
}

pub(crate) async fn queues_are_listed_with_what_waits_in_them(ledger: &Fixture) {
    ledger.ensure_queue("b").await.unwrap();
    let session = ledger.session("worker").await;
    let mut both = new_session(ids::fresh(), "of both");
    both.queues = ["a", "default", "a"].map(str::to_owned).to_vec();
    ledger.open_session(&both).await.unwrap();
    let ended = ledger.session("ended").await;
    ledger.close_session(ended).await.unwrap();

    let in_a = || NewExecution {
        queue: "a".to_owned(),
        ..one_shot("book")
    };
    let oldest = ledger.enqueue_one(&in_a()).await;
    let past = ledger.ago(secs(40)).await;
    ledger
        .sql(
            "UPDATE execution SET scheduled_at = $2, last_refusal = 'no_handler' WHERE id = $1",
            args![oldest, past],
        )
        .await;
    ledger.enqueue_one(&in_a()).await;
    let later = NewExecution {
        run_at: Some(ledger.now().await + hours(1)),
        ..one_shot("book")
    };
    ledger.enqueue_one(&later).await;
    for outcome in [complete(), error_after(hours(1)), error_after(secs(0))] {
        let claimed = ledger.running(session, &one_shot("book")).await;
        ledger.commit_one(&claimed, outcome).await;
    }
    ledger.running(session, &one_shot("book")).await;

    let views = ledger.queue_views().await.unwrap();
    let told: Vec<_> = views
        .iter()
        .map(|it| {
            let waiting = (it.pending, it.retrying, it.running);
            (&*it.name, waiting, it.outbox, it.workers)
        })
        .collect();
    let expected = [
        ("a", (2, 0, 0), 2, 1),
        ("b", (0, 0, 0), 0, 0),
        // Its outbox holds the first dispatches, and those of the executions that wait again.
        ("default", (1, 2, 1), views[2].outbox, 2),
    ];
    assert_eq!(told, expected);
    let outbox = ledger.count("SELECT count(*) FROM outbox", args![]).await;
    let counted: u64 = views.iter().map(|view| view.outbox).sum();
    assert_eq!(i64::try_from(counted).unwrap(), outbox);
    assert!(counted >= 5, "{views:?}");
    let now = ledger.now().await;
    assert!(views.iter().all(|view| view.created_at <= now));
    assert_eq!(views[0].oldest_due_at, Some(past));
    let unhandled: Vec<_> = views.iter().map(|view| view.without_handler).collect();
    assert_eq!(unhandled, [1, 0, 0]);
    assert_eq!(views[1].oldest_due_at, None);
    let retry = views[2].oldest_due_at.expect("a retry is due");
    assert!(retry > past && retry <= now, "what is to come is not due");
}

pub(crate) async fn what_did_not_fire_is_counted_by_reason_and_the_held_fire_is_named(
    ledger: &Fixture,
) {
    let mut new = NewSchedule::new(
        "tick",
        Timing::Every {
            period_ms: 1_000,
            anchor: None,
        },
    );
    new.overlap = Overlap::QueueOne;
    let schedule = ledger.schedule_of(&new, hours(1)).await;
    let term = ledger.lead().await;
    let begin = schedule.cursor;
    assert!(
        ledger
            .non_fires(schedule.id, begin)
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(ledger.held_fire(schedule.id).await.unwrap(), None);

    // 9 are missed, one fires, one is held, two are coalesced.
    let missed = MissedRange {
        from: begin + secs(1),
        until: begin + secs(9),
        count: 9,
    };
    let first = PlanStep {
        missed: Some(missed.clone()),
        ..step(&schedule, &[begin + secs(10)])
    };
    plan_one(&**ledger, &term, &first).await;
    for second in 11..=13 {
        let read = ledger.schedule_row(schedule.id).await;
        let next = step(&read, &[begin + secs(second)]);
        plan_one(&**ledger, &term, &next).await;
    }
    let counted = |reason, instants, until_at| NonFireView {
        reason,
        instants,
        ranges: 1,
        until_at,
    };
    let coalesced = counted(NonFireReason::Coalesced, 2, begin + secs(13));
    let misfired = counted(NonFireReason::Misfired, 9, missed.until);
    for (since, expected) in [
        (begin, vec![coalesced.clone(), misfired.clone()]),
        // A range that reaches into the time asked for counts as a whole.
        (missed.until, vec![coalesced.clone(), misfired]),
        (begin + secs(10), vec![coalesced.clone()]),
        (begin + secs(13), vec![coalesced]),
        (begin + secs(14), vec![]),
    ] {
        let found = ledger.non_fires(schedule.id, since).await.unwrap();
        assert_eq!(found, expected, "{since}");
    }
    let fires = ledger.fires(schedule.id, 10).await.unwrap();
    let held = ledger.held_fire(schedule.id).await.unwrap().unwrap();
    assert_eq!((held.id, held.held_behind), (fires[0].id, fires[1].id));
    assert_eq!(held.scheduled_at, begin + secs(11));
    assert_eq!(held.planned_at, fires[0].planned_at);
    ledger.assert_laws_hold().await;
}
