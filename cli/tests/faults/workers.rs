//! Workers that are killed, paused and stopped with work in their hands.

use std::time::{Duration, Instant};

use async_nats::jetstream;
use bellwether_sandbox::Signal;
use bellwether_schemas::state::{Reason, SessionState, State};
use chrono::{DateTime, Utc};

use crate::instruments::{Said, measured};
use crate::support::{Cluster, until};
use crate::{QUICK, QUICK_SESSIONS};

const TWENTY: (&str, &str) = ("PATIENT_MAX_CONCURRENT", "20");

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_workers_twenty_all_end_once_on_the_other() {
    const REDISPATCH_MAX: f64 = 12.5;
    let Some((cluster, journal, _roles)) = Cluster::staffed(&[]).await else {
        return;
    };
    let sql = cluster.sql().await;
    let mut first = cluster.worker("first", &[TWENTY]).await;
    let ids = cluster.enqueue(20, &journal.work(&[600_000, 50])).await;
    until("20 started", async || journal.starts() == 20).await;
    let second = cluster.worker("second", &[TWENTY]).await;

    let killed: DateTime<Utc> = sqlx::query_scalar("SELECT clock_timestamp()")
        .fetch_one(&sql)
        .await
        .unwrap();
    first.kill();
    cluster.until_all_succeeded(20).await;
    let again: DateTime<Utc> =
        sqlx::query_scalar("SELECT min(dispatched_at) FROM execution WHERE dispatch_no = 2")
            .fetch_one(&sql)
            .await
            .unwrap();
    let redispatch = (again - killed).as_seconds_f64();
    println!("worker killed: its work was dispatched again after {redispatch:.2} s");
    assert!(
        redispatch <= REDISPATCH_MAX,
        "first re-dispatch after {redispatch} s"
    );

    journal.assert_each_ended_once(20);
    let ends = journal.all("end");
    assert!(
        ends.iter()
            .all(|end| end.pid == second.pid() && end.generation == 2),
        "{ends:?}"
    );
    for id in ids {
        let story = cluster.story(id).await;
        assert_eq!(
            (story.execution.attempt, story.execution.generation),
            (2, 2)
        );
        assert_eq!(story.attempts.len(), 1);
        assert_eq!(story.attempts[0].reason, Some(Reason::WorkerLost));
    }
    cluster.audit_clean(&[5, 6, 7, 8]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r19_stale_owner_after_sigstop_changes_no_row() {
    let Some((cluster, journal, _roles, collector)) = measured(QUICK_SESSIONS).await else {
        return;
    };
    // One slot: what is dispatched again is not sent to the one that cannot take it.
    let one = ("PATIENT_MAX_CONCURRENT", "1");
    let mut stale = cluster.worker("stale", &[QUICK, one]).await;
    // It is over when it goes on: then it commits, whatever it is told.
    let (mut work, gate) = journal.gated("gate");
    work.deaf = true;
    let [id] = cluster.enqueue(1, &work).await[..] else {
        unreachable!()
    };
    until("the start", async || journal.starts() == 1).await;
    stale.pause().await;
    let paused = Instant::now();
    let _owner = cluster.worker("owner", &[QUICK]).await;
    until("the end on the new owner", async || {
        cluster.execution(id).await.state == State::Succeeded
    })
    .await;
    println!(
        "worker paused: its work ended elsewhere after {:.2} s",
        paused.elapsed().as_secs_f64()
    );
    let before = cluster.story(id).await;
    assert_eq!((before.execution.generation, before.fenced.len()), (2, 0));

    gate.open();
    stale.resume();
    until("the refusal", async || {
        !cluster.story(id).await.fenced.is_empty()
    })
    .await;
    let after = cluster.story(id).await;
    assert_eq!(
        serde_json::to_value(&after.execution).unwrap(),
        serde_json::to_value(&before.execution).unwrap(),
        "the row that the stale owner found"
    );
    assert_eq!(after.output, before.output, "one result");
    assert_eq!(
        serde_json::from_slice::<serde_json::Value>(&after.output.unwrap().bytes).unwrap(),
        serde_json::json!([2, 0])
    );
    let refused: Vec<_> = after
        .fenced
        .iter()
        .map(|f| (f.generation, f.outcome.as_str()))
        .collect();
    assert_eq!(refused, [(1, "complete")]);
    let ended = [("reason", "ended")];
    let (said, ticker) = (Said::by_workers(&collector), Said::by_tickers(&collector));
    said.until("bellwether.commit.rejected", &ended, 1).await;
    ticker.until("bellwether.sessions.lost", &[], 1).await;
    let lost = [("reason", "worker_lost"), ("outcome", "retrying")];
    ticker
        .until("bellwether.executions.recovered", &lost, 1)
        .await;
    // A lost session never comes back: the process goes on under a new one.
    until("its new session", async || {
        cluster.session_of(&stale).await.is_some()
    })
    .await;
    let of_it = cluster
        .sessions()
        .await
        .into_iter()
        .filter(|s| s.pid == stale.pid());
    let mut states: Vec<_> = of_it.map(|s| s.state).collect();
    states.sort();
    assert_eq!(states, [SessionState::Live, SessionState::Lost]);
    cluster.audit_clean(&[5, 6, 7]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r20_two_processes_with_every_message_twice_run_each_once() {
    const EXECUTIONS: usize = 200;
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let journal = cluster.journal();
    let _relay = cluster.relay();
    // Slow enough that the second is there before the first could have done all.
    cluster.enqueue(EXECUTIONS, &journal.work(&[40])).await;
    let context = jetstream::new(cluster.nats.clone());
    let stream = context
        .get_stream_no_info(cluster.subjects.work_stream())
        .await
        .unwrap();
    let messages = async || {
        stream
            .get_info()
            .await
            .map_or(0, |info| info.state.messages)
    };
    until("all messages", async || {
        messages().await == EXECUTIONS as u64
    })
    .await;

    // Each message once more, as a publisher would whose PubAcks are lost beyond all windows.
    for sequence in 1..=EXECUTIONS as u64 {
        let message = stream.get_raw_message(sequence).await.unwrap();
        let mut headers = message.headers;
        headers.insert("Nats-Msg-Id", format!("again-{sequence}"));
        let publish = context.publish_with_headers(message.subject, headers, message.payload);
        publish.await.unwrap().await.unwrap();
    }
    assert_eq!(messages().await, 2 * EXECUTIONS as u64);
    // The same name on purpose: a name is only a label.
    let (one, two) = tokio::join!(
        cluster.worker("twin", &[("PATIENT_MAX_CONCURRENT", "4")]),
        cluster.worker("twin", &[("PATIENT_MAX_CONCURRENT", "4")]),
    );
    cluster.until_all_succeeded(EXECUTIONS).await;
    until("all messages acknowledged", async || messages().await == 0).await;
    journal.assert_each_ended_once(EXECUTIONS);
    assert_eq!(journal.starts(), EXECUTIONS);
    let on = |pid: u32| {
        journal
            .all("start")
            .iter()
            .filter(|note| note.pid == pid)
            .count()
    };
    println!(
        "{} ran on one process, {} on the other",
        on(one.pid()),
        on(two.pid())
    );
    assert!(on(one.pid()) > 0 && on(two.pid()) > 0);
    cluster.audit_clean(&[5, 6, 7]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r34_ownership_rests_on_the_ledger() {
    // A ticker that gives work out and takes none away: the worker itself has to obey.
    let Some((cluster, journal, _roles)) = Cluster::staffed(&["--session-lease", "1h"]).await
    else {
        return;
    };
    let sql = cluster.sql().await;
    let mut healthy = cluster.worker("healthy", &[QUICK]).await;
    let [id] = cluster.enqueue(1, &journal.work(&[600_000, 50])).await[..] else {
        unreachable!()
    };
    until("the start", async || journal.starts() == 1).await;

    // The process is well and thinks that it owns the work; the ledger says otherwise.
    let session = cluster.session_of(&healthy).await.unwrap();
    sqlx::query("UPDATE session SET state = 'lost', ended_at = clock_timestamp() WHERE id = $1")
        .bind(session.id)
        .execute(&sql)
        .await
        .unwrap();
    cluster.until_all_succeeded(1).await;
    until("the stop of the first attempt", async || {
        journal.all("cancelled").len() == 1
    })
    .await;
    let execution = cluster.execution(id).await;
    assert_eq!((execution.generation, execution.attempt), (2, 1));
    assert_ne!(execution.session_id, Some(session.id));
    assert!(healthy.is_running());
    journal.assert_each_ended_once(1);
    cluster.audit_clean(&[6, 7]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_with_twenty_running_commits_or_releases_all_within_the_drain_limit() {
    const DRAIN: Duration = Duration::from_secs(4);
    let Some((cluster, journal, _roles)) = Cluster::staffed(QUICK_SESSIONS).await else {
        return;
    };
    let mut first = cluster
        .worker("first", &[TWENTY, ("PATIENT_DRAIN_MS", "4000")])
        .await;
    let session = cluster.session_of(&first).await.unwrap().id;
    let long = cluster.enqueue(10, &journal.work(&[600_000, 50])).await;
    let (work, gate) = journal.gated("gate");
    let short = cluster.enqueue(10, &work).await;
    until("20 started", async || journal.starts() == 20).await;

    let letting_go = async {
        cluster.until_draining_for(session, Duration::ZERO).await;
        gate.open();
        // Half of its slots come free now.
        cluster.enqueue(20, &journal.work(&[50])).await
    };
    let ((code, took), later) = tokio::join!(first.end(Signal::TERM), letting_go);
    println!(
        "SIGTERM with 20 running: ended after {:.2} s",
        took.as_secs_f64()
    );
    assert_eq!(code, Some(0), "{}", first.log());
    assert!(took <= DRAIN + Duration::from_secs(2), "it took {took:?}");
    for id in &short {
        let e = cluster.execution(*id).await;
        assert_eq!((e.state, e.attempt, e.generation), (State::Succeeded, 1, 1));
    }
    for id in &long {
        let e = cluster.execution(*id).await;
        assert_eq!(
            (e.state, e.reason),
            (State::Retrying, Some(Reason::Release))
        );
        assert_eq!(
            (e.attempt, e.generation),
            (0, 1),
            "released without a charge"
        );
    }
    for id in &later {
        let e = cluster.execution(*id).await;
        assert_eq!(
            (e.state, e.generation),
            (State::Pending, 0),
            "claimed after SIGTERM"
        );
    }
    let ended = cluster.newest_session_of(&first).await;
    assert_eq!((ended.state, ended.running), (SessionState::Closed, 0));

    let _second = cluster.worker("second", &[TWENTY]).await;
    cluster.until_all_succeeded(40).await;
    journal.assert_each_ended_once(40);
    for id in &long {
        let e = cluster.execution(*id).await;
        assert_eq!((e.attempt, e.generation), (1, 2), "attempt 1 again");
    }
    cluster.audit_clean(&[5, 6, 7, 8]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r113_a_panic_releases_its_slot_and_the_next_claim_succeeds() {
    let Some((cluster, journal, _roles)) = Cluster::staffed(&[]).await else {
        return;
    };
    let mut worker = cluster
        .worker("worker", &[("PATIENT_MAX_CONCURRENT", "1")])
        .await;
    let mut fragile = journal.work(&[0]);
    fragile.panics = 1;
    let panicking = cluster.enqueue(3, &fragile).await;
    let sound = cluster.enqueue(3, &journal.work(&[0])).await;
    cluster.until_all_succeeded(6).await;
    assert!(worker.is_running());
    journal.assert_each_ended_once(6);
    for id in panicking {
        let story = cluster.story(id).await;
        assert_eq!(story.execution.attempt, 2);
        assert_eq!(story.attempts[0].reason, Some(Reason::Panic));
        let said = story.attempts[0].error.as_deref().unwrap();
        assert!(said.contains("attempt 1 panics as told"), "{said}");
    }
    for id in sound {
        assert_eq!(cluster.execution(id).await.attempt, 1);
    }
    cluster.audit_clean(&[6, 8]).await;
}

/// What holds for the roles holds for a worker that is a program of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_of_ones_own_takes_the_variables_and_shows_its_readiness() {
    let cluster = Cluster::sqlite().await;
    let health = cluster.folder().join("health");
    let env = [
        ("BELLWETHER_HEALTH_FILE", health.to_str().unwrap()),
        ("BELLWETHER_WORKER_MAX_CONCURRENT", "3"),
        ("BELLWETHER_WORKER_DRIAN", "1s"),
        ("DEFINITION_CRON", ""),
    ];
    let mut worker = cluster.example("definition", "own", &env).await;
    until("readiness", async || {
        std::fs::read_to_string(&health).is_ok_and(|said| said == "ready\n")
    })
    .await;
    let session = cluster.session_of(&worker).await.unwrap();
    assert_eq!(session.max_concurrent, 3);
    let log = worker.log();
    for words in ["ready", "BELLWETHER_WORKER_DRIAN"] {
        assert!(log.contains(words), "{words:?} in {log}");
    }
    worker.end(Signal::TERM).await;
    assert!(!health.exists(), "removed when it ends in order");
}
