//! Crashes of those that hold what others wait for, and of everybody at random.

use std::time::{Duration, Instant};

use bellwether_client::{NewExecution, NewSchedule, Overlap, Timing};
use bellwether_schemas::state::{Reason, SessionState, State};
use bellwether_store::edit::{self, Edited};
use sqlx::PgPool;

use crate::database::through_a_proxy;
use crate::support::{Cluster, Journal, Role, until};
use crate::tickers::count;
use crate::{QUICK, QUICK_LEASE, QUICK_SESSIONS};

const EIGHT: (&str, &str) = ("PATIENT_MAX_CONCURRENT", "8");

fn every(period_ms: i64) -> Timing {
    Timing::Every {
        period_ms,
        anchor: None,
    }
}

/// A schedule of the job `patient` without instants of its own for now, whose first attempt of a
/// fire does not end.
async fn register_endless(cluster: &Cluster, journal: &Journal, overlap: Overlap) {
    let mut new = NewSchedule::new("serial", every(3_600_000));
    "patient".clone_into(&mut new.job);
    new.overlap = overlap;
    new.payload = journal.work(&[600_000, 50]).payload();
    cluster.client.register(&new).await.unwrap();
}

/// From now on it fires every second, and each of those fires is short.
async fn quicken(cluster: &Cluster, journal: &Journal) {
    let payload = journal.work(&[50]).payload();
    let edited = edit::edit(&*cluster.store, "serial", |new| {
        new.timing = every(1_000);
        new.payload.clone_from(&payload);
        Ok(())
    });
    assert!(matches!(edited.await.unwrap(), Edited::Done(_)));
}

/// Pairs of executions that ran at the same time, from their first claim to their end.
async fn overlapping(sql: &PgPool) -> i64 {
    count(
        sql,
        "WITH ran AS (
             SELECT e.id, e.ended_at AS until,
                    least(e.claimed_at, (SELECT min(a.claimed_at) FROM attempt a
                                         WHERE a.execution_id = e.id)) AS since
             FROM execution e WHERE e.claimed_at IS NOT NULL
         )
         SELECT count(*) FROM ran a JOIN ran b ON a.id < b.id
         WHERE a.since < b.until AND b.since < a.until",
    )
    .await
}

/// The worker of a fire that no other may overlap is killed: the fire is taken over, and when that
/// is done the schedule goes on.
async fn killed_with_the_key(overlap: Overlap, passed_over: &'static str) {
    const REDISPATCH_MAX: Duration = Duration::from_secs(15);
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    let journal = cluster.journal();
    let _ticker = cluster.ticker(QUICK_SESSIONS);
    let _relay = cluster.relay();
    let mut holder = cluster.worker("holder", &[QUICK]).await;
    register_endless(&cluster, &journal, overlap).await;
    cluster.client.trigger("serial").await.unwrap();
    until("the start", async || journal.starts() == 1).await;
    let id = journal.all("start")[0].execution;
    quicken(&cluster, &journal).await;
    until("an instant that it keeps out", async || {
        count(&sql, passed_over).await > 0
    })
    .await;

    let killed = holder.kill();
    let _next = cluster.worker("next", &[QUICK]).await;
    let again = || journal.all("start").into_iter().find(|n| n.generation == 2);
    until("its second start", async || again().is_some()).await;
    let redispatch = killed.elapsed();
    println!("holder killed: its work began again after {redispatch:.2?}");
    assert!(redispatch < REDISPATCH_MAX, "{redispatch:?}");
    assert_eq!(again().unwrap().execution, id);
    // The key is free: those after it run, one by one.
    until("fires after it", async || journal.all("end").len() >= 4).await;
    cluster.unregister(&["serial".to_owned()]).await;
    cluster.until_all_succeeded(cluster.planned().await).await;
    let story = cluster.story(id).await;
    assert_eq!(
        (story.execution.generation, story.execution.attempt),
        (2, 2)
    );
    assert_eq!(story.attempts[0].reason, Some(Reason::WorkerLost));
    assert_eq!(overlapping(&sql).await, 0);
    journal.assert_each_ended_once(cluster.planned().await);
    cluster.audit_clean(&[1, 2, 3, 6, 7]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p13_a_killed_holder_frees_a_schedule_that_skips_overlaps() {
    let skipped = "SELECT count(*) FROM non_fire WHERE reason = 'skipped'";
    killed_with_the_key(Overlap::Skip, skipped).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p13_a_killed_holder_frees_the_one_that_is_queued_behind_it() {
    let held = "SELECT count(*) FROM execution WHERE held";
    killed_with_the_key(Overlap::QueueOne, held).await;
}

/// Starts one of the roles under test again.
fn start(cluster: &Cluster, which: usize) -> Role {
    match which {
        0 | 1 => cluster.ticker(&["--lease", "2s", "--session-lease", "2s"]),
        2 | 3 => cluster.relay(),
        _ => cluster.example_unwatched("patient", "worker", &[QUICK, EIGHT]),
    }
}

/// One schedule of every second for each way to treat overlaps.
async fn register_each_overlap(cluster: &Cluster, journal: &Journal) -> Vec<String> {
    let mut names = Vec::new();
    for overlap in [
        Overlap::Allow,
        Overlap::Skip,
        Overlap::QueueOne,
        Overlap::Replace,
    ] {
        let mut new = NewSchedule::new(overlap.as_str().replace('_', "-"), every(1_000));
        "patient".clone_into(&mut new.job);
        new.overlap = overlap;
        new.shard_total = 2;
        new.policy.max_attempts = 100;
        // Longer than its period at first, sometimes.
        new.payload = journal.work(&[1_200, 50]).payload();
        cluster.client.register(&new).await.unwrap();
        names.push(new.name);
    }
    names
}

async fn enqueue_some(cluster: &Cluster, journal: &Journal) {
    let new: Vec<_> = (0..20)
        .map(|_| {
            let mut new = NewExecution::new("patient", journal.work(&[40]).payload());
            // However often the same one is hit.
            new.policy.max_attempts = 100;
            new
        })
        .collect();
    cluster.client.enqueue_all(&new).await.unwrap();
}

/// Rows that nothing would ever move again: nobody works on them and no time is set for them.
async fn stuck(sql: &PgPool) -> i64 {
    count(
        sql,
        "SELECT
             (SELECT count(*) FROM execution e
              WHERE state = 'running' AND NOT EXISTS (
                  SELECT FROM session s WHERE s.id = e.session_id AND s.state = 'live'
                      AND s.expires_at > clock_timestamp()))
           + (SELECT count(*) FROM execution e
              WHERE state IN ('pending', 'retrying') AND NOT held
                AND (start_deadline_at <= clock_timestamp()
                     OR (dispatched_at IS NULL AND available_at <= clock_timestamp())))
           + (SELECT count(*) FROM session
              WHERE state = 'live' AND expires_at <= clock_timestamp())
           + (SELECT count(*) FROM schedule
              WHERE deleted_at IS NULL AND enabled AND (fault IS NOT NULL OR ended
                OR next_at IS NULL OR next_at < clock_timestamp() - interval '1 second'))
           + (SELECT count(*) FROM fire
              WHERE cancel_requested_at IS NOT NULL AND cancel_applied_at IS NULL)",
    )
    .await
}

/// `ElasticJob` #2429, Quartz #1516: markers without an owner, left by crashes, block one job for
/// months while all else is well.
#[tokio::test(flavor = "multi_thread")]
async fn p45_after_crashes_at_random_and_a_blackout_no_row_is_stuck() {
    const CRASHES: usize = 20;
    let Some(mut cluster) = Cluster::with_own_nats().await else {
        return;
    };
    let proxy = through_a_proxy(&mut cluster).await;
    let sql = cluster.sql().await;
    let journal = cluster.journal();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut roles: Vec<Role> = (0..8).map(|which| start(&cluster, which)).collect();
    let names = register_each_overlap(&cluster, &journal).await;
    enqueue_some(&cluster, &journal).await;
    until("work", async || journal.starts() > 8).await;
    let begun = Instant::now();
    for _ in 0..CRASHES {
        enqueue_some(&cluster, &journal).await;
        // Not a wait for anything: crashes fall at any moment of the work.
        tokio::time::sleep(Duration::from_millis(rng.u64(20..250))).await;
        let hit = rng.usize(..roles.len());
        roles[hit].kill();
        roles[hit] = start(&cluster, hit);
    }
    let lost = "SELECT count(*) FROM attempt WHERE reason = 'worker_lost'";
    until("work that was cut off", async || {
        count(&sql, lost).await > 0
    })
    .await;

    println!("{CRASHES} crashes within {:.2?}", begun.elapsed());
    // Neither the ledger nor the broker is there, for longer than any lease.
    proxy.freeze();
    cluster.own_nats.as_mut().unwrap().pause().await.unwrap();
    let two_leases = i64::try_from(2 * QUICK_LEASE.as_millis()).unwrap();
    until("two leases without a renewal", async || {
        let now = cluster.now().await;
        let sessions = cluster.sessions().await;
        let live = sessions.iter().filter(|s| s.state == SessionState::Live);
        live.map(|s| (now - s.renewed_at).num_milliseconds())
            .all(|ago| ago > two_leases)
    })
    .await;
    proxy.thaw();
    cluster.own_nats.as_mut().unwrap().resume().unwrap();

    let back = Instant::now();
    until("nothing is stuck", async || stuck(&sql).await == 0).await;
    println!("no row stuck {:.2?} after the blackout", back.elapsed());
    let planned = cluster.planned().await;
    until("fires", async || cluster.planned().await > planned + 8).await;
    cluster.unregister(&names).await;
    cluster.until_all_ended().await;
    let ended = cluster.counts().await;
    println!("all has ended {:.2?} after the blackout", back.elapsed());
    println!("{ended:?}, {} cut off", count(&sql, lost).await);
    let bad = [State::Failed, State::Expired];
    assert!(
        bad.iter().all(|state| !ended.contains_key(state)),
        "{ended:?}"
    );
    let held = "SELECT count(*) FROM fire WHERE held_behind IS NOT NULL AND released_at IS NULL";
    until("no fire is held", async || count(&sql, held).await == 0).await;
    assert_eq!(stuck(&sql).await, 0);
    assert!(roles.iter_mut().all(Role::is_running));
    cluster.audit_clean(&[1, 2, 3, 4, 5, 6, 7, 8, 12]).await;
}
