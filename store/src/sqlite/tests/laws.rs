//! Every law finds what breaks it, and nothing in a healthy ledger.

use std::time::Duration;

use bellwether_schemas::ids;
use bellwether_schemas::state::State;
use bellwether_schemas::trace::TraceContext;
use chrono::TimeDelta;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};

use super::super::SqliteStore;
use super::{File, broken, claim, one_shot, open_session};
use crate::audit::Audit;
use crate::executions::{ClaimAnswer, Commit, Executions, Outcome};
use crate::inspect::{ExecutionFilter, Inspect};
use crate::leadership::{Acquired, Bid, Leadership, Term};
use crate::planning::{PlanStep, PlannedFire, Planning};
use crate::schedules::{NewSchedule, Registered, Schedules, Timing};
use crate::{Options, Payload, Store};

/// One schedule with one fire of two shards, one of them succeeded in its second attempt,
/// and a one-shot that runs: every law has something to look at or is made so by its break.
async fn populated(file: &File) -> SqliteStore {
    let store = file.store().await;
    let bid = Bid {
        partition: 0,
        map_version: 1,
        holder: "ticker",
        lease: Duration::from_mins(1),
        zone_version: "2026a",
    };
    for _ in 0..2 {
        let Acquired::Won(term) = store.acquire_term(&bid).await.unwrap() else {
            unreachable!()
        };
        plan_one(&store, &term).await;
        store.resign_terms(&[term]).await.unwrap();
    }
    let running = store.enqueue(&[one_shot()]).await.unwrap()[0].execution_id();
    let session = open_session(&store).await;
    claim(&store, session, &[(running, 1)]).await;
    let filter = ExecutionFilter {
        limit: 1,
        ..ExecutionFilter::default()
    };
    let filter = ExecutionFilter {
        state: Some(State::Pending),
        ..filter
    };
    let shard = store.executions(&filter).await.unwrap()[0].id;
    for outcome in [Outcome::Release, Outcome::Complete(Payload::json("1"))] {
        let answer = claim(&store, session, &[(shard, 1)]).await.remove(0);
        let ClaimAnswer::Claimed(claimed) = answer else {
            unreachable!()
        };
        let commit = Commit {
            execution_id: shard,
            claim_id: claimed.claim_id,
            generation: claimed.generation,
            started_ago: None,
            outcome,
        };
        store.commit(&[commit]).await.unwrap();
    }
    store
}

/// A schedule that is due the moment it is registered, and its first fire.
async fn plan_one(store: &SqliteStore, term: &Term) {
    let due = store.ledger().await.unwrap().now + TimeDelta::milliseconds(20);
    let mut new = NewSchedule::new(format!("s{}", term.epoch), Timing::At { at: due });
    new.shard_total = 2;
    let Registered::Inserted(id) = store.register_schedule(&new).await.unwrap() else {
        unreachable!()
    };
    let schedules = store.schedules().await.unwrap();
    let schedule = schedules.iter().find(|schedule| schedule.id == id).unwrap();
    let step = PlanStep {
        schedule_id: id,
        version: schedule.version,
        cursor: schedule.cursor,
        new_cursor: due,
        new_next_at: None,
        shard_total: 2,
        overlap: schedule.overlap,
        fires: vec![PlannedFire {
            id: ids::fire(id, due.timestamp_millis()),
            scheduled_at: due,
            nominal_local: "now".to_owned(),
            fold: "only".to_owned(),
            trace: TraceContext::root(id),
        }],
        missed: None,
        fault: None,
    };
    let planned = loop {
        // A cursor that lies ahead of the clock is not moved: the call itself waits for it.
        let planned = store.plan(term, std::slice::from_ref(&step)).await.unwrap();
        assert!(planned.term_ok);
        if !planned.moved.is_empty() {
            break planned;
        }
    };
    assert_eq!((planned.fires, planned.executions), (1, 2));
    let again = store.plan(term, std::slice::from_ref(&step)).await.unwrap();
    assert_eq!((again.term_ok, again.moved), (true, vec![]));
}

/// Law, and a statement that breaks it.
const BREAKS: &[(u8, &str)] = &[
    (
        1,
        "UPDATE fire SET schedule_id = (SELECT min(schedule_id) FROM fire), scheduled_at = 1",
    ),
    (2, "UPDATE fire SET scheduled_at = scheduled_at + 1"),
    (
        3,
        "UPDATE execution SET shard_index = 7 WHERE shard_index = 1",
    ),
    (4, "DELETE FROM execution WHERE shard_index = 1"),
    (
        5,
        "UPDATE execution SET claimed_at = ended_at + 1 WHERE ended_at IS NOT NULL",
    ),
    (6, "DELETE FROM attempt"),
    (
        6,
        "UPDATE execution SET result_generation = 1 WHERE state = 'succeeded'",
    ),
    (7, "UPDATE attempt SET ended_at = ended_at + 10000"),
    (
        8,
        "UPDATE execution SET attempt = max_attempts + 1 WHERE state = 'running'",
    ),
    (
        9,
        "UPDATE execution SET deadline_at = 1 WHERE state = 'running'",
    ),
    (
        9,
        "UPDATE session SET state = 'lost', ended_at = 1;
         UPDATE execution SET claimed_at = 1 WHERE state = 'running'",
    ),
    (
        10,
        "UPDATE execution SET dispatched_at = NULL, available_at = 1; DELETE FROM outbox",
    ),
    (
        10,
        "DELETE FROM outbox; UPDATE execution SET dispatched_at = 1, available_at = 1;
         INSERT INTO stream VALUES ('BW_WORK', 1, 1, 2)",
    ),
    (11, "UPDATE outbox SET created_at = 1"),
    (12, "UPDATE fire SET planned_at = 1"),
    (12, "UPDATE fire SET term_id = randomblob(16)"),
    (12, "UPDATE term SET ended_at = ended_at + 10000"),
    (
        13,
        "UPDATE execution SET state = 'unknown', attempt_ended_at = 1, left_by = 'sweep'
         WHERE state = 'running'",
    ),
    (
        14,
        "UPDATE execution SET cancel_requested_at = 1 WHERE state = 'running'",
    ),
];

#[tokio::test]
async fn every_law_finds_what_breaks_it() {
    let file = File::new().await;
    let store = populated(&file).await;
    let reports = store.audit().await.unwrap();
    assert!(broken(&reports).is_empty(), "{:?}", broken(&reports));
    let unexercised: Vec<_> = reports
        .iter()
        .filter(|report| report.looked_at == 0)
        .map(|report| report.law)
        .collect();
    assert_eq!(
        unexercised,
        [13, 14],
        "nothing is unknown or cancelled in a healthy ledger"
    );

    store.close().await;
    let intact = std::fs::read(file.folder.path().join("new/ledger.db")).unwrap();
    for (law, sql) in BREAKS {
        let copy = file.folder.path().join("broken.db");
        std::fs::write(&copy, &intact).unwrap();
        let options = SqliteConnectOptions::new().filename(&copy);
        let mut connection = options.connect().await.unwrap();
        sqlx::raw_sql(*sql).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        let url = format!("sqlite:{}", copy.display());
        let store = SqliteStore::connect(&Options::new(url)).await.unwrap();
        let reports = store.audit().await.unwrap();
        store.close().await;
        let report = reports.iter().find(|report| report.law == *law).unwrap();
        assert!(
            report.violations > 0 && !report.examples.is_empty(),
            "law {law}: {sql}"
        );
    }
}
