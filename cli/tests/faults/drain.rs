//! Workers that are asked to stop: what is finished, what is given back, what goes on elsewhere.

use std::time::{Duration, Instant};

use bellwether_sandbox::Signal;
use bellwether_schemas::state::{Reason, SessionState, State};
use bellwether_store::inspect::ExecutionView;
use uuid::Uuid;

use crate::support::{Cluster, until};
use crate::{QUICK, QUICK_LEASE, QUICK_SESSIONS};

const FIFTY: (&str, &str) = ("PATIENT_MAX_CONCURRENT", "51");

/// Fails unless every execution of a session was claimed before it said that it drains.
async fn assert_nothing_claimed_while_draining(cluster: &Cluster, session: Uuid) {
    let sql = cluster.sql().await;
    let late: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM execution JOIN session ON session.id = execution.session_id
         WHERE session.id = $1 AND execution.claimed_at > session.draining_since",
    )
    .bind(session)
    .fetch_one(&sql)
    .await
    .unwrap();
    assert_eq!(late, 0, "claimed after the stop began");
}

#[tokio::test(flavor = "multi_thread")]
async fn p23_a_stop_leaves_every_one_of_fifty_ended_released_or_to_be_taken_over() {
    const EACH: usize = 17;
    let Some((cluster, journal, _roles)) = Cluster::staffed(QUICK_SESSIONS).await else {
        return;
    };
    let mut first = cluster
        .worker("first", &[QUICK, FIFTY, ("PATIENT_DRAIN_MS", "4000")])
        .await;
    let finish = cluster.enqueue(EACH, &journal.work(&[2_000])).await;
    let obey = cluster.enqueue(EACH, &journal.work(&[600_000, 50])).await;
    let mut deaf = journal.work(&[600_000, 50]);
    deaf.deaf = true;
    let ignore = cluster.enqueue(EACH, &deaf).await;
    until("all started", async || journal.starts() == 3 * EACH).await;
    let (code, took) = first.end(Signal::TERM).await;
    println!("SIGTERM with 51 running: ended after {took:?}");
    assert_eq!(code, Some(0), "{}", first.log());

    let states = async |ids: &[Uuid]| {
        let mut all: Vec<ExecutionView> = Vec::new();
        for id in ids {
            all.push(cluster.execution(*id).await);
        }
        all
    };
    for view in states(&finish).await {
        assert_eq!((view.state, view.attempt), (State::Succeeded, 1));
    }
    for view in states(&obey).await {
        assert_eq!(
            (view.state, view.reason, view.attempt),
            (State::Retrying, Some(Reason::Release), 0)
        );
    }
    assert_eq!(
        cluster.newest_session_of(&first).await.state,
        SessionState::Lost,
        "with rows still running"
    );

    let _second = cluster.worker("second", &[QUICK, FIFTY]).await;
    cluster.until_all_succeeded(3 * EACH).await;
    journal.assert_each_ended_once(3 * EACH);
    for view in states(&obey).await {
        assert_eq!((view.attempt, view.generation), (1, 2), "not charged");
    }
    for view in states(&ignore).await {
        assert_eq!((view.attempt, view.generation), (2, 2), "charged");
    }
    cluster.audit_clean(&[5, 6, 7, 8]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p41_a_stop_under_load_accepts_nothing_more_and_stores_all_fifty_results() {
    const RUNNING: usize = 50;
    let Some((cluster, journal, _roles)) = Cluster::staffed(QUICK_SESSIONS).await else {
        return;
    };
    let fifty = ("PATIENT_MAX_CONCURRENT", "50");
    let mut first = cluster
        .worker("first", &[fifty, ("PATIENT_DRAIN_MS", "10000")])
        .await;
    let held = cluster.enqueue(RUNNING, &journal.work(&[3_000])).await;
    until("50 started", async || journal.starts() == RUNNING).await;
    let mut second = cluster.worker("second", &[fifty]).await;
    let session = cluster.newest_session_of(&first).await.id;

    // The load goes on before, while and after it stops.
    let mut more = Vec::new();
    let stopping = first.end(Signal::TERM);
    let loading = async {
        for _ in 0..20 {
            more.extend(cluster.enqueue(5, &journal.work(&[20])).await);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let ((code, took), ()) = tokio::join!(stopping, loading);
    assert_eq!(code, Some(0), "{}", first.log());
    assert!(
        took < Duration::from_secs(10),
        "beyond its drain limit: {took:?}"
    );
    for id in &held {
        let e = cluster.execution(*id).await;
        assert_eq!((e.state, e.attempt, e.generation), (State::Succeeded, 1, 1));
    }
    cluster.until_all_succeeded(RUNNING + more.len()).await;
    assert_nothing_claimed_while_draining(&cluster, session).await;
    for id in &more {
        let e = cluster.execution(*id).await;
        assert_eq!(e.attempt, 1);
        assert_ne!(
            e.session_id,
            Some(session),
            "accepted by the one that stops"
        );
    }
    let ended = cluster.newest_session_of(&first).await;
    assert_eq!(ended.state, SessionState::Closed);
    assert!(ended.draining_since.is_some());
    journal.assert_each_ended_once(RUNNING + more.len());
    assert_eq!(journal.starts(), RUNNING + more.len(), "none was run again");
    assert!(second.is_running());
    cluster.audit_clean(&[5, 6, 7, 8]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p42_the_lease_is_renewed_to_the_last_handlers_end_and_a_stale_one_is_refused() {
    let Some((cluster, journal, _roles)) = Cluster::staffed(QUICK_SESSIONS).await else {
        return;
    };
    let mut first = cluster
        .worker("first", &[QUICK, ("PATIENT_DRAIN_MS", "40000")])
        .await;
    let (work, gate) = journal.gated("gate");
    let [long] = cluster.enqueue(1, &work).await[..] else {
        unreachable!()
    };
    until("the start", async || journal.starts() == 1).await;
    let mut second = cluster.worker("second", &[QUICK]).await;
    // Its work takes two leases more, all of them after the signal.
    let session = cluster.newest_session_of(&first).await.id;
    let holding = async {
        cluster.until_draining_for(session, QUICK_LEASE * 2).await;
        gate.open();
    };
    let ((code, _), ()) = tokio::join!(first.end(Signal::TERM), holding);
    assert_eq!(code, Some(0), "{}", first.log());
    let e = cluster.execution(long).await;
    assert_eq!((e.state, e.attempt, e.generation), (State::Succeeded, 1, 1));
    assert_eq!(journal.starts(), 1);

    // Frozen, taken over, and back: told to stop, and what it says changes nothing.
    let [id] = cluster.enqueue(1, &journal.work(&[600_000, 50])).await[..] else {
        unreachable!()
    };
    until("the second start", async || journal.starts() == 2).await;
    second.pause().await;
    let _third = cluster.worker("third", &[QUICK]).await;
    until("the end on another", async || {
        cluster.execution(id).await.state == State::Succeeded
    })
    .await;
    let before = cluster.story(id).await;
    second.resume();
    until("the frozen one is told", async || {
        let told = journal.all("cancelled");
        told.iter().any(|note| note.pid == second.pid())
    })
    .await;
    until("its new session", async || {
        cluster.session_of(&second).await.is_some()
    })
    .await;
    let after = cluster.story(id).await;
    assert_eq!(after.output, before.output);
    assert_eq!(after.execution.generation, 2);
    assert_eq!(journal.all("end").len(), 2, "one result each");
    cluster.audit_clean(&[5, 6, 7]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r98_short_work_drains_and_long_work_goes_on_elsewhere_from_its_checkpoint() {
    const STEPS: u32 = 100;
    let Some((cluster, journal, _roles)) = Cluster::staffed(QUICK_SESSIONS).await else {
        return;
    };
    let four = ("PATIENT_MAX_CONCURRENT", "4");
    let mut first = cluster
        .worker("first", &[four, ("PATIENT_DRAIN_MS", "3000")])
        .await;
    let mut work = journal.work(&[10_000]);
    work.steps = STEPS;
    let long = cluster.enqueue(2, &work).await;
    let short = cluster.enqueue(2, &journal.work(&[1_500])).await;
    until("all started", async || journal.starts() == 4).await;
    let session = cluster.newest_session_of(&first).await.id;
    let (code, _) = first.end(Signal::TERM).await;
    assert_eq!(code, Some(0), "{}", first.log());
    for id in &short {
        assert_eq!(cluster.execution(*id).await.state, State::Succeeded);
    }
    let mut saved = 0;
    for id in &long {
        let e = cluster.execution(*id).await;
        assert_eq!(
            (e.state, e.reason, e.attempt),
            (State::Retrying, Some(Reason::Release), 0)
        );
        assert!(
            e.checkpoint_at.is_some() && e.checkpoint_size > Some(0),
            "{e:#?}"
        );
        saved += 1;
    }
    assert_eq!(saved, 2);
    let shown = cluster
        .bellwether(&["executions", "show", &long[0].to_string()])
        .await;
    let shown = shown.expect(0).stdout;
    assert!(shown.contains("checkpoint"), "{shown}");

    let _second = cluster.worker("second", &[four]).await;
    cluster.until_all_succeeded(4).await;
    assert_nothing_claimed_while_draining(&cluster, session).await;
    journal.assert_each_ended_once(4);
    for id in &long {
        let steps: Vec<_> = journal
            .notes()
            .into_iter()
            .filter(|note| note.execution == *id && note.what.starts_with("step-"))
            .collect();
        // Each step once, over both attempts: the second began after the last one saved.
        let numbers: Vec<String> = steps.iter().map(|note| note.what.clone()).collect();
        let wanted: Vec<String> = (1..=STEPS).map(|step| format!("step-{step}")).collect();
        assert_eq!(numbers, wanted);
        assert!(steps.iter().any(|note| note.generation == 1));
        assert!(steps.iter().any(|note| note.generation == 2));
        let e = cluster.execution(*id).await;
        assert_eq!((e.attempt, e.checkpoint_at), (1, None));
    }
    cluster.audit_clean(&[5, 6, 7, 8]).await;
}

/// The computed budget is no wish: the worst stop of a worker stays within it.
#[tokio::test(flavor = "multi_thread")]
async fn r99_the_worst_stop_stays_within_the_computed_budget() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let journal = cluster.journal();
    let _relay = cluster.relay();
    // 2 s of drain and the 12 s of everything else.
    let settings = [
        ("PATIENT_DRAIN_MS", "2000"),
        ("PATIENT_KILL_AFTER_MS", "14000"),
    ];
    let mut worker = cluster.worker("worker", &settings).await;
    let mut deaf = journal.work(&[600_000]);
    deaf.deaf = true;
    cluster.enqueue(2, &deaf).await;
    until("all started", async || journal.starts() == 2).await;
    let (code, took) = worker.end(Signal::TERM).await;
    assert_eq!(code, Some(0), "{}", worker.log());
    println!("a stop with deaf handlers: {took:?} of 14 s");
    assert!(took <= Duration::from_secs(14), "{took:?}");

    // One second less and it does not start at all.
    let settings = [
        ("PATIENT_DRAIN_MS", "2000"),
        ("PATIENT_KILL_AFTER_MS", "13000"),
    ];
    let mut refused = cluster.example_unwatched("patient", "refused", &settings);
    assert_ne!(refused.ended(Duration::from_secs(30)).await, Some(0));
    for number in ["kill_after of 13s", "drain limit 2s", "= 14s"] {
        assert!(refused.log().contains(number), "{}", refused.log());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p53_a_worker_full_of_deaf_handlers_ends_itself_and_its_work_goes_on() {
    let Some((cluster, journal, _roles)) = Cluster::staffed(QUICK_SESSIONS).await else {
        return;
    };
    let mut leaking = cluster
        .worker(
            "leaking",
            &[
                QUICK,
                ("PATIENT_MAX_CONCURRENT", "4"),
                ("PATIENT_DRAIN_MS", "3000"),
                ("PATIENT_CANCEL_GRACE_MS", "500"),
            ],
        )
        .await;
    let mut deaf = journal.work(&[600_000]);
    deaf.deaf = true;
    let cancelled = cluster.enqueue(2, &deaf).await;
    let others = cluster.enqueue(2, &journal.work(&[600_000, 50])).await;
    until("all started", async || journal.starts() == 4).await;
    for id in &cancelled {
        let id = id.to_string();
        cluster
            .bellwether(&["executions", "cancel", &id])
            .await
            .expect(0);
    }
    until("the first is shown as leaked", async || {
        cluster.newest_session_of(&leaking).await.leaked > 0
    })
    .await;
    let code = leaking.ended(Duration::from_secs(30)).await;
    assert_eq!(code, Some(1), "{}", leaking.log());
    let log = leaking.log();
    assert!(log.contains("2 of 4 slots are held by handlers"), "{log}");
    for id in &cancelled {
        assert_eq!(cluster.execution(*id).await.state, State::Cancelled);
    }
    let session = cluster.newest_session_of(&leaking).await;
    assert_eq!((session.state, session.leaked), (SessionState::Closed, 2));
    let _next = cluster.worker("next", &[QUICK]).await;
    until("the others' end", async || {
        cluster.counts().await.get(&State::Succeeded) == Some(&2)
    })
    .await;
    for id in others {
        let e = cluster.execution(id).await;
        assert_eq!((e.attempt, e.generation), (1, 2), "released, not charged");
    }
    cluster.audit_clean(&[5, 6, 7, 14]).await;
}

/// One thread or all of them: a handler that blocks them keeps neither a signal from being heard
/// nor the process from ending.
#[tokio::test(flavor = "multi_thread")]
async fn p53_handlers_that_block_their_threads_cannot_keep_the_process() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let journal = cluster.journal();
    let _relay = cluster.relay();
    let mut blocks = journal.work(&[600_000]);
    blocks.blocks = true;
    // With four threads it ends in order; with two nothing else runs any more.
    for (at, (threads, code)) in [("4", Some(0)), ("2", Some(1))].into_iter().enumerate() {
        let settings = [
            ("TOKIO_WORKER_THREADS", threads),
            ("PATIENT_MAX_CONCURRENT", "2"),
            ("PATIENT_DRAIN_MS", "2000"),
            ("PATIENT_KILL_AFTER_MS", "14000"),
        ];
        let mut worker = cluster.worker("worker", &settings).await;
        let count = if threads == "4" { 1 } else { 2 };
        cluster.enqueue(count, &blocks).await;
        until("started", async || journal.starts() == at + count).await;
        let (ended, took) = worker.end(Signal::TERM).await;
        println!("{threads} threads, {count} blocked: {ended:?} after {took:?}");
        assert_eq!(ended, code, "{}", worker.log());
        assert!(took < Duration::from_secs(15), "{took:?}");
    }
}

/// Killed with results in its memory that it could not write: that memory is no queue. The
/// session's loss is the one way back, and it is taken once.
#[tokio::test(flavor = "multi_thread")]
async fn r14_a_kill_during_retries_is_recovered_by_the_ledger_alone() {
    const WORK: usize = 5;
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    let journal = cluster.journal();
    let _ticker = cluster.ticker(QUICK_SESSIONS);
    let _relay = cluster.relay();
    let eight = ("PATIENT_MAX_CONCURRENT", "8");
    let mut first = cluster.worker("first", &[QUICK, eight]).await;
    let ids = cluster.enqueue(WORK, &journal.work(&[1_500, 50])).await;
    until("all started", async || journal.starts() == WORK).await;
    let mut held = sql.begin().await.unwrap();
    sqlx::query("SELECT id FROM execution WHERE id = ANY($1) FOR UPDATE")
        .bind(&ids)
        .fetch_all(&mut *held)
        .await
        .unwrap();
    until("all have returned", async || {
        journal.all("end").len() == WORK
    })
    .await;
    first.kill();
    // A statement whose caller is dead still would do its work when the rows are let go.
    until("the end of its statements", async || {
        let waiting: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity
             WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))",
        )
        .fetch_one(&mut *held)
        .await
        .unwrap();
        waiting == 0
    })
    .await;
    held.rollback().await.unwrap();
    let begun = Instant::now();
    let _second = cluster.worker("second", &[QUICK, eight]).await;
    cluster.until_all_succeeded(WORK).await;
    println!("recovered after {:?}", begun.elapsed());
    for id in ids {
        let story = cluster.story(id).await;
        let e = &story.execution;
        assert_eq!((e.generation, e.attempt, e.dispatch_no), (2, 2, 2));
        assert_eq!(story.attempts[0].reason, Some(Reason::WorkerLost));
    }
    // At least once: the first ones had done their work. Never more than once for each claim.
    assert_eq!(journal.starts(), 2 * WORK);
    cluster.audit_clean(&[5, 6, 7, 8]).await;
}
