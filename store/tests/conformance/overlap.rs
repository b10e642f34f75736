//! Overlap policies: what becomes of an instant while a fire of its schedule is unfinished.

use bellwether_schemas::ids;
use bellwether_schemas::state::{Overlap, State};
use bellwether_store::ErrorKind;
use bellwether_store::edit::{self, Edited};
use bellwether_store::executions::{Committed, Refusal};
use bellwether_store::inspect::FireView;
use bellwether_store::leadership::Term;
use bellwether_store::planning::{MissedRange, PlanStep, Planned};
use bellwether_store::schedules::{Author, Changed, NewSchedule, Schedule, ScheduleChange, Timing};
use bellwether_store::sweeps::FiresSwept;
use bellwether_time::{Misfire, MisfirePolicy};
use futures_util::future::try_join_all;
use uuid::Uuid;

use crate::fixture::Fixture;
use crate::planning::plan_one;
use crate::raw::args;
use crate::vocabulary::{complete, hours, nothing_planned, refused, secs, step};

/// An every-second schedule with this policy, an hour of instants due.
pub(crate) async fn scheduled(
    ledger: &Fixture,
    name: &str,
    overlap: Overlap,
    shards: u32,
) -> Schedule {
    let mut new = NewSchedule::new(
        name,
        Timing::Every {
            period_ms: 1000,
            anchor: None,
        },
    );
    new.overlap = overlap;
    new.shard_total = shards;
    ledger.schedule_of(&new, hours(1)).await
}

/// The step of the schedule's next instant, as it is read now.
pub(crate) async fn next_step(ledger: &Fixture, schedule: &Schedule) -> PlanStep {
    let read = ledger.schedule_row(schedule.id).await;
    step(&read, &[read.cursor + secs(1)])
}

/// What became of one instant: fires that go, fires held, instants passed.
pub(crate) type Became = (u64, u64, usize);

pub(crate) const FIRES: Became = (1, 0, 0);
pub(crate) const HELD: Became = (0, 1, 0);
pub(crate) const PASSED: Became = (0, 0, 1);

pub(crate) fn became(planned: &Planned) -> Became {
    let goes = planned.fires - planned.held;
    (goes, planned.held, planned.overlapped.len())
}

/// Plans the next instant; what became of it, and its executions if it is a fire.
pub(crate) async fn plan(
    ledger: &Fixture,
    term: &Term,
    schedule: &Schedule,
) -> (Became, Vec<Uuid>) {
    let step = next_step(ledger, schedule).await;
    let planned = plan_one(&**ledger, term, &step).await;
    assert_eq!((planned.term_ok, planned.moved.len()), (true, 1));
    assert_eq!(
        planned.executions,
        planned.fires * u64::from(schedule.shard_total)
    );
    let shards = (0..schedule.shard_total).map(|shard| ids::execution(step.fires[0].id, shard));
    let shards = if planned.fires == 1 {
        shards.collect()
    } else {
        Vec::new()
    };
    (became(&planned), shards)
}

pub(crate) async fn fires(ledger: &Fixture, schedule: &Schedule) -> Vec<FireView> {
    let mut fires = ledger.fires(schedule.id, 100).await.unwrap();
    fires.reverse();
    fires
}

pub(crate) async fn release(ledger: &Fixture) -> FiresSwept {
    ledger.release_held(100).await.unwrap()
}

pub(crate) const fn swept(fires: u64, executions: u64) -> FiresSwept {
    cancelled(fires, executions, 0)
}

/// The same, of which so many ended.
pub(crate) const fn cancelled(fires: u64, executions: u64, ended: u64) -> FiresSwept {
    FiresSwept {
        fires,
        executions,
        ended,
    }
}

pub(crate) async fn finish(ledger: &Fixture, session: Uuid, id: Uuid) {
    let claimed = ledger.claim_one(session, id).await;
    let committed = ledger.commit_one(&claimed, complete()).await;
    assert_eq!(committed, Committed::Accepted(State::Succeeded));
}

pub(crate) async fn lengths(ledger: &Fixture) -> Vec<(String, i64)> {
    ledger.ranges().await
}

pub(crate) fn range(reason: &str, count: i64) -> (String, i64) {
    (reason.to_owned(), count)
}

pub(crate) async fn skip_passes_what_comes_before_the_end_as_one_range(ledger: &Fixture) {
    let schedule = scheduled(ledger, "tick", Overlap::Skip, 3).await;
    let term = ledger.lead().await;
    let session = ledger.session("worker").await;
    let (first, shards) = plan(ledger, &term, &schedule).await;
    assert_eq!(first, FIRES);
    for _ in 0..3 {
        assert_eq!(plan(ledger, &term, &schedule).await.0, PASSED);
    }
    assert_eq!(lengths(ledger).await, [range("skipped", 3)], "one row");
    for &id in &shards[..2] {
        finish(ledger, session, id).await;
    }
    assert_eq!(
        plan(ledger, &term, &schedule).await.0,
        PASSED,
        "a shard runs"
    );
    finish(ledger, session, shards[2]).await;
    assert_eq!(plan(ledger, &term, &schedule).await.0, FIRES);
    assert_eq!(plan(ledger, &term, &schedule).await.0, PASSED);
    let expected = [range("skipped", 4), range("skipped", 1)];
    assert_eq!(lengths(ledger).await, expected, "a fire lies between");
    let edited = edit::edit(&**ledger, "tick", |new| {
        "in other words".clone_into(&mut new.description);
        Ok(())
    });
    assert_eq!(edited.await.unwrap(), Edited::Done(2));
    assert_eq!(plan(ledger, &term, &schedule).await.0, PASSED);
    let versions = ledger
        .rows(
            "SELECT schedule_version FROM non_fire ORDER BY from_at",
            args![],
        )
        .await;
    let versions: Vec<i64> = versions.iter().map(|row| row.int(0)).collect();
    assert_eq!(versions, [1, 1, 2], "each by the definition of its time");
    assert_eq!(release(ledger).await, swept(0, 0));
    ledger.assert_laws_hold().await;
}

pub(crate) async fn queue_one_holds_one_fire_and_coalesces_the_rest(ledger: &Fixture) {
    let schedule = scheduled(ledger, "tick", Overlap::QueueOne, 2).await;
    let term = ledger.lead().await;
    let session = ledger.session("worker").await;
    let (became, first) = plan(ledger, &term, &schedule).await;
    assert_eq!(became, FIRES);
    let (became, second) = plan(ledger, &term, &schedule).await;
    assert_eq!(became, HELD);
    for _ in 0..2 {
        assert_eq!(plan(ledger, &term, &schedule).await.0, PASSED);
    }
    assert_eq!(lengths(ledger).await, [range("coalesced", 2)]);

    let views = fires(ledger, &schedule).await;
    assert_eq!(views.len(), 2);
    assert_eq!((views[0].held_behind, views[0].released_at), (None, None));
    assert_eq!(views[1].held_behind, Some(views[0].id));
    assert_eq!(
        (views[1].released_at, views[0].cancel_requested_at),
        (None, None)
    );
    for &id in &second {
        let view = ledger.view(id).await;
        assert_eq!((view.state, view.dispatch_no), (State::Pending, 0));
        assert_eq!(view.dispatched_at, None);
        assert!(view.held);
        let story = ledger.story(id).await;
        assert_eq!(
            (story.held_behind, story.released_at),
            (Some(views[0].id), None)
        );
        assert_eq!(story.replaced_by, None);
        // A build that knows nothing of holding would dispatch and claim what is due.
        assert_eq!(view.available_at, view.start_deadline_at);
        assert!(ledger.outbox_of(id).await.is_empty());
        assert_eq!(
            refused(&ledger.try_claim(session, id).await),
            Refusal::NotDue
        );
    }
    assert_eq!(ledger.dispatch_due(100).await.unwrap(), 0);
    finish(ledger, session, first[0]).await;
    assert_eq!(release(ledger).await, swept(0, 0), "a shard has not ended");
    ledger.assert_laws_hold().await;

    finish(ledger, session, first[1]).await;
    assert_eq!(
        plan(ledger, &term, &schedule).await.0,
        PASSED,
        "not let go yet"
    );
    let before = ledger.now().await;
    assert_eq!(release(ledger).await, swept(1, 2));
    assert_eq!(release(ledger).await, swept(0, 0));
    for &id in &second {
        let view = ledger.view(id).await;
        assert_eq!((view.dispatch_no, ledger.outbox_of(id).await), (1, vec![1]));
        assert!(view.available_at.timestamp_millis() >= before.timestamp_millis());
        assert!(view.available_at < view.start_deadline_at);
    }
    let views = fires(ledger, &schedule).await;
    assert!(views[1].released_at.is_some());
    let (became, _) = plan(ledger, &term, &schedule).await;
    assert_eq!(became, HELD, "behind the one that was let go");
    let views = fires(ledger, &schedule).await;
    assert_eq!(views[2].held_behind, Some(views[1].id));
    for id in second {
        finish(ledger, session, id).await;
    }
    assert_eq!(release(ledger).await, swept(1, 2));
    ledger.assert_laws_hold().await;
}

/// Its worker is cut off, its definition changes in the middle, another takes the work over: at no
/// moment does a second fire start, and of two workers one commits.
pub(crate) async fn p46_skip_starts_no_second_fire_before_the_first_has_ended(ledger: &Fixture) {
    let schedule = scheduled(ledger, "tick", Overlap::Skip, 1).await;
    let term = ledger.lead().await;
    let (became, shards) = plan(ledger, &term, &schedule).await;
    assert_eq!(became, FIRES);
    let cut_off = ledger.session("cut off").await;
    let first = ledger.claim_one(cut_off, shards[0]).await;
    assert_eq!(plan(ledger, &term, &schedule).await.0, PASSED);
    ledger.expire_session(cut_off).await;
    assert_eq!(
        plan(ledger, &term, &schedule).await.0,
        PASSED,
        "not judged yet"
    );
    ledger.take_over(cut_off).await;
    assert_eq!(ledger.view(shards[0]).await.state, State::Retrying);
    assert_eq!(
        plan(ledger, &term, &schedule).await.0,
        PASSED,
        "it is tried again"
    );
    let edited = edit::edit(&**ledger, "tick", |new| {
        "in other words".clone_into(&mut new.description);
        Ok(())
    });
    assert_eq!(edited.await.unwrap(), Edited::Done(2));
    assert_eq!(plan(ledger, &term, &schedule).await.0, PASSED, "redeployed");
    let other = ledger.session("other").await;
    let second = ledger.claim_one(other, shards[0]).await;
    assert_eq!(plan(ledger, &term, &schedule).await.0, PASSED);
    assert!(matches!(
        ledger.commit_one(&first, complete()).await,
        Committed::Fenced { .. }
    ));
    assert_eq!(plan(ledger, &term, &schedule).await.0, PASSED);
    let accepted = ledger.commit_one(&second, complete()).await;
    assert_eq!(accepted, Committed::Accepted(State::Succeeded));
    assert_eq!(plan(ledger, &term, &schedule).await.0, FIRES);
    assert_eq!(
        lengths(ledger).await,
        [range("skipped", 3), range("skipped", 3)]
    );
    ledger.assert_laws_hold().await;
}

pub(crate) async fn p64_a_new_leader_skips_while_a_shard_lives(ledger: &Fixture) {
    let schedule = scheduled(ledger, "tick", Overlap::Skip, 2).await;
    let old = ledger.lead().await;
    let (became, shards) = plan(ledger, &old, &schedule).await;
    assert_eq!(became, FIRES);
    let session = ledger.session("worker").await;
    finish(ledger, session, shards[0]).await;
    let running = ledger.claim_one(session, shards[1]).await;

    ledger.expire_lease().await;
    let new = ledger.lead().await;
    assert!(new.epoch > old.epoch);
    assert_eq!(plan(ledger, &new, &schedule).await.0, PASSED);
    let stale = next_step(ledger, &schedule).await;
    assert!(!plan_one(&**ledger, &old, &stale).await.term_ok);
    assert_eq!(lengths(ledger).await, [range("skipped", 1)]);
    assert_eq!(fires(ledger, &schedule).await.len(), 1);
    ledger.commit_one(&running, complete()).await;
    assert_eq!(plan(ledger, &new, &schedule).await.0, FIRES);
    ledger.assert_laws_hold().await;
}

/// The second planner names the cursor that the first is about to write: it finds that cursor with
/// the fire that came with it, or nothing.
pub(crate) async fn of_two_planners_at_once_one_starts_a_fire(ledger: &Fixture) {
    let schedule = scheduled(ledger, "tick", Overlap::Skip, 1).await;
    let term = ledger.lead().await;
    let session = ledger.session("worker").await;
    let second = ledger.second().await;
    let unfinished = "SELECT count(*) FROM execution
                      WHERE state IN ('pending', 'running', 'retrying', 'unknown')";
    for round in 0..20 {
        let read = ledger.schedule_row(schedule.id).await;
        let one = step(&read, &[read.cursor + secs(1)]);
        let mut guess = read.clone();
        guess.cursor = one.new_cursor;
        let two = step(&guess, &[guess.cursor + secs(1)]);
        let plans = [(ledger.first(), one.clone()), (second.clone(), two)].map(|(store, step)| {
            let term = term.clone();
            tokio::spawn(async move { plan_one(&*store, &term, &step).await })
        });
        let plans = try_join_all(plans).await.unwrap();
        assert_eq!(became(&plans[0]), FIRES, "round {round}");
        let guessed = if plans[1].moved.is_empty() {
            (0, 0, 0)
        } else {
            PASSED
        };
        assert_eq!(became(&plans[1]), guessed, "round {round}");
        assert_eq!(ledger.count(unfinished, args![]).await, 1);
        finish(ledger, session, ids::execution(one.fires[0].id, 0)).await;
    }
    second.close().await;
    ledger.assert_laws_hold().await;
}

pub(crate) async fn an_edit_of_the_policy_counts_from_the_next_plan_on(ledger: &Fixture) {
    let schedule = scheduled(ledger, "tick", Overlap::QueueOne, 1).await;
    let term = ledger.lead().await;
    let session = ledger.session("worker").await;
    let (_, first) = plan(ledger, &term, &schedule).await;
    let (became, second) = plan(ledger, &term, &schedule).await;
    assert_eq!(became, HELD);
    // As an edit of a schedule of which nothing is due.
    let becomes = async |overlap: Overlap| {
        let found = ledger.found("tick").await;
        let mut definition = edit::definition(&found);
        definition.overlap = overlap;
        let change = ScheduleChange {
            id: found.schedule.id,
            version: found.schedule.version,
            cursor: found.schedule.cursor,
            definition,
            enabled: true,
            author: Some(Author::Operator),
            settled: None,
            timing_changed: false,
        };
        let changed = ledger.change_schedule(&change).await.unwrap();
        assert!(matches!(changed, Changed::Done(_)));
    };

    let late = next_step(ledger, &schedule).await;
    becomes(Overlap::Allow).await;
    assert!(nothing_planned(&plan_one(&**ledger, &term, &late).await));
    let mut liar = next_step(ledger, &schedule).await;
    liar.overlap = Overlap::Skip;
    assert!(nothing_planned(&plan_one(&**ledger, &term, &liar).await));
    let (became, third) = plan(ledger, &term, &schedule).await;
    assert_eq!(became, FIRES, "although one is held");
    assert_eq!(release(ledger).await, swept(1, 1), "nothing holds it now");

    becomes(Overlap::Skip).await;
    assert_eq!(plan(ledger, &term, &schedule).await.0, PASSED);
    becomes(Overlap::QueueOne).await;
    let (became, fourth) = plan(ledger, &term, &schedule).await;
    assert_eq!(became, HELD);
    becomes(Overlap::Skip).await;
    assert_eq!(plan(ledger, &term, &schedule).await.0, PASSED);
    for id in [first[0], second[0], third[0]] {
        assert_eq!(release(ledger).await, swept(0, 0));
        finish(ledger, session, id).await;
    }
    assert_eq!(release(ledger).await, swept(1, 1), "what was promised runs");
    finish(ledger, session, fourth[0]).await;
    assert_eq!(plan(ledger, &term, &schedule).await.0, FIRES);
    ledger.assert_laws_hold().await;
}

pub(crate) async fn a_step_of_several_instants_is_refused_unless_they_may_overlap(
    ledger: &Fixture,
) {
    let term = ledger.lead().await;
    for (overlap, fine) in [
        (Overlap::Allow, true),
        (Overlap::Skip, false),
        (Overlap::QueueOne, false),
        (Overlap::Replace, false),
    ] {
        let schedule = scheduled(ledger, overlap.as_str(), overlap, 1).await;
        let two = step(&schedule, &[1, 2].map(|n| schedule.cursor + secs(n)));
        let planned = ledger.plan(&term, std::slice::from_ref(&two)).await;
        match planned {
            Ok(planned) => assert!(fine && planned.fires == 2, "{overlap}: {planned:?}"),
            Err(error) => assert!(
                !fine && error.kind() == ErrorKind::Invalid,
                "{overlap}: {error}"
            ),
        }
    }
    ledger.assert_laws_hold().await;
}

/// The tickers were down for hours while a fire was unfinished: what was missed is one range, and
/// what is skipped after it another, however many instants there are.
pub(crate) async fn downtime_of_a_skipping_schedule_is_two_ranges(ledger: &Fixture) {
    let schedule = scheduled(ledger, "tick", Overlap::Skip, 1).await;
    let term = ledger.lead().await;
    let (became_first, first) = plan(ledger, &term, &schedule).await;
    assert_eq!(became_first, FIRES);
    let misfire = Misfire {
        grace: secs(60),
        policy: MisfirePolicy::FireOnce,
    };
    let read = ledger.schedule_row(schedule.id).await;
    let timing = read.timing.evaluate().unwrap();
    let back = ledger.now().await - secs(10);
    let due = bellwether_time::step(&timing, read.cursor, back, &misfire, 1);
    let missed = due.misfired.unwrap();
    let mut late = step(&read, &due.fires);
    late.missed = Some(MissedRange {
        from: missed.from,
        until: missed.until,
        count: missed.count,
    });
    assert_eq!(became(&plan_one(&**ledger, &term, &late).await), PASSED);
    for _ in 0..5 {
        assert_eq!(plan(ledger, &term, &schedule).await.0, PASSED);
    }
    let count = i64::try_from(missed.count).unwrap();
    assert!((3_500..3_600).contains(&count), "{count}");
    let expected = [range("misfired", count), range("skipped", 6)];
    assert_eq!(lengths(ledger).await, expected);
    let session = ledger.session("worker").await;
    finish(ledger, session, first[0]).await;
    assert_eq!(plan(ledger, &term, &schedule).await.0, FIRES);
    ledger.assert_laws_hold().await;
}
