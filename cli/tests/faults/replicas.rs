//! Several of everything, and restarts under names that others have.

use std::time::Duration;

use bellwether_client::{NewSchedule, Overlap, Timing, What};
use bellwether_sandbox::Signal;
use bellwether_schemas::state::{Reason, SessionState, State};
use chrono::Timelike;
use sqlx::PgPool;
use uuid::Uuid;

use crate::support::{Cluster, Role, SOON, until};
use crate::tickers::{assert_no_instant_missing_or_doubled, count};
use crate::{QUICK, QUICK_SESSIONS};

const ONE: (&str, &str) = ("PATIENT_MAX_CONCURRENT", "1");
const LONG: u64 = 600_000;

fn every(period_ms: i64) -> Timing {
    Timing::Every {
        period_ms,
        anchor: None,
    }
}

/// A schedule of every second whose fires all end dead at their first attempt.
fn dying(cluster: &Cluster, name: &str, overlap: Overlap) -> NewSchedule {
    let mut work = cluster.journal().work(&[0]);
    work.panics = 1_000;
    let mut new = NewSchedule::new(name, every(1_000));
    "patient".clone_into(&mut new.job);
    new.policy.max_attempts = 1;
    new.overlap = overlap;
    new.payload = work.payload();
    new
}

/// How many fires of a schedule have ended as failed.
async fn failed(sql: &PgPool, name: &str) -> i64 {
    sqlx::query_scalar(
        "SELECT count(*) FROM execution JOIN schedule ON schedule.id = execution.schedule_id
         WHERE schedule.name = $1 AND state = 'failed' AND attempts_exhausted",
    )
    .bind(name)
    .fetch_one(sql)
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn p06_five_of_everything_fire_once_per_tick_beside_one_that_always_dies() {
    const REPLICAS: usize = 5;
    const FIRES: i64 = 5;
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    let dying = dying(&cluster, "dying", Overlap::Allow);
    let journal = cluster.journal();
    let mut roles = Vec::new();
    for number in 0..REPLICAS {
        roles.extend([cluster.ticker(&[]), cluster.relay()]);
        roles.push(cluster.worker(&format!("worker-{number}"), &[]).await);
    }
    let mut names = cluster.every_second(4, &journal.work(&[5])).await;
    cluster.client.register(&dying).await.unwrap();
    names.push(dying.name);
    // What died first is behind all that follow.
    until("fires that died", async || {
        failed(&sql, "dying").await >= FIRES
    })
    .await;
    cluster.unregister(&names).await;
    cluster.until_all_ended().await;

    let planned = assert_no_instant_missing_or_doubled(&sql, 5).await;
    assert_eq!(cluster.planned().await, planned, "one execution for a fire");
    let counts = cluster.counts().await;
    let died = counts[&State::Failed];
    assert_eq!(i64::try_from(died).unwrap(), failed(&sql, "dying").await);
    assert_eq!(counts[&State::Succeeded] + died, planned as u64);
    assert_eq!(journal.starts(), planned, "each was started once");
    assert!(roles.iter_mut().all(Role::is_running));
    cluster.audit_clean(&[1, 2, 3, 4, 6, 8]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p06_a_dead_fire_blocks_no_later_one_of_a_schedule_without_overlaps() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    let _roles = [
        cluster.ticker(&[]),
        cluster.relay(),
        cluster.worker("worker", &[]).await,
    ];
    let policies = [
        ("skips", Overlap::Skip),
        ("queues-one", Overlap::QueueOne),
        ("replaces", Overlap::Replace),
    ];
    for (name, overlap) in policies {
        let new = dying(&cluster, name, overlap);
        cluster.client.register(&new).await.unwrap();
    }
    for (name, _) in policies {
        until(
            &format!("three that died of the one that {name}"),
            async || failed(&sql, name).await >= 3,
        )
        .await;
    }
    cluster
        .unregister(&policies.map(|(name, _)| name.to_owned()))
        .await;
    cluster.until_all_ended().await;
    cluster.audit_clean(&[1, 2, 3, 4, 8]).await;
}

/// A worker with one slot by the name that all have here.
async fn twin(cluster: &Cluster) -> Role {
    cluster.worker("twin", &[QUICK, ONE]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn p25_who_restarts_under_a_siblings_name_takes_nothing_from_it() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let journal = cluster.journal();
    let _ticker = cluster.ticker(QUICK_SESSIONS);
    let _relay = cluster.relay();
    let mut sibling = twin(&cluster).await;
    // Until all else is done: several leases long.
    let (work, gate) = journal.gated("gate");
    let [long] = cluster.enqueue(1, &work).await[..] else {
        unreachable!()
    };
    until("the start", async || journal.starts() == 1).await;
    let session = cluster.session_of(&sibling).await.unwrap().id;

    let mut restarted = twin(&cluster).await;
    let [own] = cluster.enqueue(1, &journal.work(&[LONG, 50])).await[..] else {
        unreachable!()
    };
    until("its own start", async || journal.starts() == 2).await;
    restarted.kill();
    restarted = twin(&cluster).await;
    until("its own work again", async || {
        cluster.execution(own).await.state == State::Succeeded
    })
    .await;
    assert_eq!(restarted.end(Signal::TERM).await.0, Some(0));
    let _restarted = twin(&cluster).await;

    assert_eq!(cluster.execution(long).await.state, State::Running, "yet");
    gate.open();
    until("the end of the sibling's", async || {
        cluster.execution(long).await.state == State::Succeeded
    })
    .await;
    let story = cluster.story(long).await;
    let e = &story.execution;
    assert_eq!((e.generation, e.attempt, e.dispatch_no), (1, 1, 1));
    assert_eq!(e.session_id, Some(session));
    assert_eq!((story.attempts.len(), story.fenced.len()), (0, 0));
    let story = cluster.story(own).await;
    assert_eq!(story.execution.generation, 2);
    assert_eq!(story.attempts[0].reason, Some(Reason::WorkerLost));
    journal.assert_each_ended_once(2);
    assert!(sibling.is_running());
    let sessions = cluster.sessions().await;
    assert!(sessions.iter().all(|session| session.name == "twin"));
    let states = |wanted| sessions.iter().filter(|s| s.state == wanted).count();
    assert_eq!(
        (states(SessionState::Lost), states(SessionState::Closed)),
        (1, 1),
        "the one that was killed, the one that stopped: {sessions:#?}"
    );
    cluster.audit_clean(&[5, 6, 7, 8]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p44_the_two_shards_of_a_dead_holder_are_taken_over_and_the_third_is_not() {
    const TAKEOVER_MAX: Duration = Duration::from_secs(15);
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let journal = cluster.journal();
    let _ticker = cluster.ticker(QUICK_SESSIONS);
    let _relay = cluster.relay();
    let two = ("PATIENT_MAX_CONCURRENT", "2");
    let mut holder = cluster.worker("holder", &[QUICK, two]).await;
    let mut new = NewSchedule::new("sharded", every(3_600_000));
    "patient".clone_into(&mut new.job);
    new.shard_total = 3;
    new.payload = journal.work(&[LONG, 50]).payload();
    cluster.client.register(&new).await.unwrap();
    cluster.client.trigger("sharded").await.unwrap();
    until("two shards", async || journal.starts() == 2).await;
    let third = cluster.worker("third", &[QUICK, ONE]).await;
    until("the third shard", async || journal.starts() == 3).await;
    let starts = journal.all("start");
    let (held, others): (Vec<_>, Vec<_>) = starts
        .into_iter()
        .partition(|note| note.pid == holder.pid());
    assert_eq!((held.len(), others.len()), (2, 1));
    assert_eq!(others[0].pid, third.pid());
    let spare = cluster.worker("spare", &[QUICK, two]).await;

    let killed = holder.kill();
    until("the end of both", async || {
        let ends = journal.all("end");
        held.iter()
            .all(|note| ends.iter().any(|end| end.shard == note.shard))
    })
    .await;
    let takeover = killed.elapsed();
    println!("both were taken over and done after {takeover:.2?}");
    assert!(takeover < TAKEOVER_MAX, "{takeover:?}");
    for note in &held {
        let e = cluster.execution(note.execution).await;
        assert_eq!((e.generation, e.attempt), (2, 2));
        let last = journal.all("end");
        let last = last.iter().find(|end| end.shard == note.shard).unwrap();
        assert_eq!(last.pid, spare.pid());
    }
    let e = cluster.execution(others[0].execution).await;
    assert_eq!((e.state, e.generation), (State::Running, 1));
    assert_eq!(journal.starts(), 5);
    cluster.audit_clean(&[3, 4, 6, 7, 8]).await;
}

/// A worker whose code defines a schedule of every day.
async fn daily(cluster: &Cluster, cron: &str) -> Role {
    let env = [("DEFINITION_CRON", cron)];
    cluster.example("definition", "definition", &env).await
}

async fn trigger_and_wait(cluster: &Cluster) -> Uuid {
    let fire = cluster.client.trigger("definition").await.unwrap();
    let waited = cluster.client.wait(What::Fire(fire), SOON).await.unwrap();
    assert!(waited.succeeded());
    fire
}

#[tokio::test(flavor = "multi_thread")]
async fn p44_restarts_after_a_daily_job_was_done_run_nothing() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    let _ticker = cluster.ticker(&[]);
    let _relay = cluster.relay();
    // Half a day from now.
    let hour = (cluster.store.ledger().await.unwrap().now.hour() + 12) % 24;
    let cron = format!("0 {hour} * * *");
    let mut worker = daily(&cluster, &cron).await;
    until("its schedule", async || {
        let all = cluster.store.schedules().await.unwrap();
        !all.is_empty()
    })
    .await;
    trigger_and_wait(&cluster).await;
    let rows = "SELECT row_to_json(execution)::text FROM execution ORDER BY id";
    let before: Vec<String> = sqlx::query_scalar(rows).fetch_all(&sql).await.unwrap();
    assert_eq!(before.len(), 1);

    for killed in [true, false, true] {
        if killed {
            worker.kill();
            // Its lease is over.
            sqlx::query("UPDATE session SET expires_at = clock_timestamp() WHERE state = 'live'")
                .execute(&sql)
                .await
                .unwrap();
            until("its session is lost", async || {
                let live = "SELECT count(*) FROM session WHERE state = 'live'";
                count(&sql, live).await == 0
            })
            .await;
        } else {
            assert_eq!(worker.end(Signal::TERM).await.0, Some(0));
        }
        worker = daily(&cluster, &cron).await;
    }
    // What is asked for now would have to wait behind whatever the restarts had called for.
    trigger_and_wait(&cluster).await;
    let after: Vec<String> = sqlx::query_scalar(rows).fetch_all(&sql).await.unwrap();
    assert_eq!(after.len(), 2, "the first one and the one asked for");
    assert!(after.contains(&before[0]), "{before:#?}, {after:#?}");
    assert!(worker.is_running());
    cluster.audit_clean(&[3, 4, 6]).await;
}
