//! R89: six stations on the way of a fire. At each the record is written before the act that it is
//! for; a process dies before or after that write, a successor goes on, and the write of the dead
//! one, arriving late, changes nothing.

use std::time::Duration;

use bellwether_schemas::ids;
use bellwether_schemas::state::{Reason, State};
use bellwether_store::executions::{ClaimAnswer, Committed, Refusal};
use bellwether_store::leadership::Term;
use bellwether_store::planning::PlanStep;
use bellwether_store::schedules::{NewSchedule, Registered, Schedule, Timing};
use uuid::Uuid;

use crate::fixture::Fixture;
use crate::raw::args;
use crate::vocabulary::{
    ask, complete, error_after, new_session, nothing_planned, refused, result, secs, step,
};

/// When the process dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Crash {
    BeforeTheWrite,
    AfterTheWrite,
}

const CRASHES: [Crash; 2] = [Crash::BeforeTheWrite, Crash::AfterTheWrite];

pub(crate) async fn r89_a_crash_at_any_of_six_stations_loses_and_doubles_nothing(ledger: &Fixture) {
    for crash in CRASHES {
        register_the_job(ledger, crash).await;
        register_the_worker(ledger, crash).await;
        choose_the_route(ledger, crash).await;
        dispatch(ledger, crash).await;
        commit(ledger, crash).await;
        report_and_reschedule(ledger, crash).await;
        ledger.assert_laws_hold().await;
    }
}

fn definition(name: &str) -> NewSchedule {
    let every = Timing::Every {
        period_ms: 1000,
        anchor: None,
    };
    NewSchedule::new(name, every)
}

/// A leader, and a schedule of a name of its own that is due.
async fn due(ledger: &Fixture, station: &str, crash: Crash) -> (Term, Schedule, PlanStep) {
    ledger.expire_lease().await;
    let term = ledger.lead().await;
    let name = format!("{station}-{crash:?}");
    let schedule = ledger.schedule_of(&definition(&name), secs(10)).await;
    let step = step(&schedule, &[schedule.cursor + secs(1)]);
    (term, schedule, step)
}

/// A planned execution.
async fn planned(ledger: &Fixture, station: &str, crash: Crash) -> Uuid {
    let (term, _, step) = due(ledger, station, crash).await;
    let planned = ledger.plan(&term, std::slice::from_ref(&step)).await;
    assert_eq!(planned.unwrap().executions, 1);
    ids::execution(step.fires[0].id, 0)
}

/// One fire, one execution of it, one accepted result of the last claim.
async fn ends_once(ledger: &Fixture, id: Uuid, generation: i64) {
    let row = ledger
        .row(
            "SELECT state, generation, result_generation,
                 (SELECT count(*) FROM execution other WHERE other.fire_id = execution.fire_id),
                 (SELECT count(*) FROM attempt WHERE attempt.execution_id = execution.id)
             FROM execution WHERE id = $1",
            args![id],
        )
        .await;
    let numbers: Vec<i64> = (1..5).map(|column| row.int(column)).collect();
    assert_eq!(row.text(0), "succeeded");
    assert_eq!(numbers, [generation, generation, 1, generation - 1]);
}

/// A successor claims what waits and completes it.
async fn a_successor_completes(ledger: &Fixture, id: Uuid, generation: i64) {
    let session = ledger.session("successor").await;
    let claimed = ledger.claim_one(session, id).await;
    let done = ledger.commit_one(&claimed, complete()).await;
    assert_eq!(done, Committed::Accepted(State::Succeeded));
    ends_once(ledger, id, generation).await;
}

/// The row says what is run, of which version, by whom, until when, and what may come next.
async fn is_on_record(ledger: &Fixture, id: Uuid, session: Uuid) {
    let row = ledger
        .row(
            "SELECT state, fire_id, schedule_version, session_id, claim_id, generation,
                 deadline_at, claimed_at
             FROM execution WHERE id = $1",
            args![id],
        )
        .await;
    assert_eq!((row.text(0), row.id(3)), ("running", session));
    assert!([1, 2, 4].iter().all(|&column| !row.is_null(column)));
    assert_eq!(row.int(5), 1);
    assert!(row.at(6) > row.at(7));
}

/// Station 1: a version of the job is registered before anything fires of it.
async fn register_the_job(ledger: &Fixture, crash: Crash) {
    let new = definition(&format!("job-{crash:?}"));
    if crash == Crash::AfterTheWrite {
        let first = ledger.register_schedule(&new).await.unwrap();
        assert!(matches!(first, Registered::Inserted(_)));
    }
    // The successor finds it, or makes it; the write that comes late finds the successor's.
    let found = ledger.register_schedule(&new).await.unwrap();
    let expected = crash == Crash::AfterTheWrite;
    assert_eq!(matches!(found, Registered::Exists(_)), expected);
    let (Registered::Inserted(id) | Registered::Exists(id)) = found;
    let columns = "SELECT * FROM schedule WHERE id = $1";
    let before = ledger.row(columns, args![id]).await;
    let late = NewSchedule {
        shard_total: 7,
        ..new
    };
    let name = late.name.clone();
    let late = ledger.register_schedule(&late).await.unwrap();
    assert_eq!(late, Registered::Exists(id));
    assert_eq!(ledger.row(columns, args![id]).await, before);
    ledger.remove_schedule(&name).await.unwrap();
}

/// Station 2: a worker is on record before it claims.
async fn register_the_worker(ledger: &Fixture, crash: Crash) {
    let id = planned(ledger, "worker", crash).await;
    let dead = ids::fresh();
    if crash == Crash::AfterTheWrite {
        let session = new_session(dead, "dead");
        ledger.open_session(&session).await.unwrap();
        ledger.lose(dead).await;
        // Opened once more by a late write: it stays lost.
        ledger.open_session(&session).await.unwrap();
    }
    let late = ledger.claim(dead, &[ask(id, 1)]).await.unwrap().remove(0);
    assert!(matches!(late, ClaimAnswer::SessionLost), "{late:?}");
    a_successor_completes(ledger, id, 1).await;
}

/// Station 3: fire, execution, queue and lane are planned before anything is dispatched.
async fn choose_the_route(ledger: &Fixture, crash: Crash) {
    let (dead, schedule, step) = due(ledger, "route", crash).await;
    let step = std::slice::from_ref(&step);
    if crash == Crash::AfterTheWrite {
        assert_eq!(ledger.plan(&dead, step).await.unwrap().fires, 1);
    }
    ledger.expire_lease().await;
    let successor = ledger.lead().await;
    let again = ledger.plan(&successor, step).await.unwrap();
    assert!(again.term_ok);
    assert_eq!(again.fires, u64::from(crash == Crash::BeforeTheWrite));
    let late = ledger.plan(&dead, step).await.unwrap();
    assert!(!late.term_ok && nothing_planned(&late), "{late:?}");
    let id = ids::execution(step[0].fires[0].id, 0);
    let view = ledger.view(id).await;
    assert_eq!((view.queue, view.job), (schedule.queue, schedule.job));
    assert_eq!(ledger.outbox_of(id).await, [1]);
    a_successor_completes(ledger, id, 1).await;
}

/// Station 4: the dispatch is in the outbox before the broker sees it, and leaves it after.
async fn dispatch(ledger: &Fixture, crash: Crash) {
    let id = planned(ledger, "dispatch", crash).await;
    let lease = secs(60);
    let leased = ledger.claim_outbox(100, lease, &[]).await.unwrap();
    let row = leased
        .iter()
        .find(|row| row.dispatch.execution_id == id)
        .unwrap();
    if crash == Crash::AfterTheWrite {
        ledger.mark_published(&[row.id]).await.unwrap();
    }
    // The relay is dead: its lease runs out, and another one sends what is left.
    let past = ledger.ago(secs(1)).await;
    ledger
        .sql("UPDATE outbox SET leased_until = $1", args![past])
        .await;
    let again = ledger.claim_outbox(100, lease, &[]).await.unwrap();
    let again: Vec<_> = again
        .iter()
        .filter(|row| row.dispatch.execution_id == id)
        .collect();
    assert_eq!(again.len(), usize::from(crash == Crash::BeforeTheWrite));
    assert!(
        again
            .iter()
            .all(|again| again.dispatch.dispatch_no == row.dispatch.dispatch_no)
    );
    ledger.mark_published(&[row.id]).await.unwrap();
    a_successor_completes(ledger, id, 1).await;
    // Both messages of that one dispatch arrive after all.
    let session = ledger.session("late").await;
    let late = ledger
        .claim(session, &[ask(id, 1)])
        .await
        .unwrap()
        .remove(0);
    assert_eq!(refused(&late), Refusal::Terminal(State::Succeeded));
}

/// Station 5: the claim is on record before the handler runs, its result before anyone builds on it.
async fn commit(ledger: &Fixture, crash: Crash) {
    let id = planned(ledger, "commit", crash).await;
    let session = ledger.session("dead").await;
    let claimed = ledger.claim_one(session, id).await;
    is_on_record(ledger, id, session).await;
    let write = result(&claimed, complete());
    if crash == Crash::AfterTheWrite {
        let done = ledger.commit(std::slice::from_ref(&write)).await.unwrap();
        assert_eq!(done, [Committed::Accepted(State::Succeeded)]);
        ledger.lose(session).await;
        assert_eq!(ledger.recover_lost(Duration::ZERO, 10).await.unwrap(), []);
        // Its reply was lost: the same again.
        assert_eq!(ledger.commit(&[write]).await.unwrap(), done);
        ends_once(ledger, id, 1).await;
        return;
    }
    ledger.take_over(session).await;
    a_successor_completes(ledger, id, 2).await;
    let before = ledger.snapshot(id).await;
    let fenced = Committed::Fenced {
        state: State::Succeeded,
        generation: 2,
    };
    assert_eq!(ledger.commit(&[write]).await.unwrap(), [fenced]);
    assert_eq!(ledger.snapshot(id).await, before);
}

/// Station 6: a failure is reported and its next attempt dispatched, both by one statement.
async fn report_and_reschedule(ledger: &Fixture, crash: Crash) {
    let id = planned(ledger, "report", crash).await;
    let session = ledger.session("dead").await;
    let claimed = ledger.claim_one(session, id).await;
    let write = result(&claimed, error_after(Duration::ZERO));
    if crash == Crash::AfterTheWrite {
        let done = ledger.commit(std::slice::from_ref(&write)).await.unwrap();
        assert_eq!(done, [Committed::Accepted(State::Retrying)]);
        ledger.lose(session).await;
        assert_eq!(ledger.recover_lost(Duration::ZERO, 10).await.unwrap(), []);
        assert_eq!(ledger.commit(&[write]).await.unwrap(), done);
    } else {
        ledger.take_over(session).await;
        let before = ledger.snapshot(id).await;
        let late = ledger.commit(&[write]).await.unwrap();
        assert!(
            matches!(late[0], Committed::Fenced { generation: 1, .. }),
            "{late:?}"
        );
        assert_eq!(ledger.snapshot(id).await, before);
    }
    let view = ledger.view(id).await;
    let reason = match crash {
        Crash::BeforeTheWrite => Reason::WorkerLost,
        Crash::AfterTheWrite => Reason::Error,
    };
    assert_eq!((view.state, view.reason), (State::Retrying, Some(reason)));
    // The first dispatch was overtaken, and there is one more, not two.
    assert_eq!(
        (view.dispatch_no, ledger.outbox_of(id).await),
        (2, vec![1, 2])
    );
    a_successor_completes(ledger, id, 2).await;
}
