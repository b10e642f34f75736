//! Who was cut off, killed or started in a crowd, and who goes on in its place.

use std::collections::BTreeMap;

use bellwether_client::{NewSchedule, Timing};
use bellwether_sandbox::Signal;
use bellwether_schemas::state::{Reason, SessionState, State};
use futures_util::future::join_all;
use sqlx::PgPool;

use crate::database::behind_a_proxy;
use crate::support::{Cluster, Role, until};
use crate::tickers::{assert_no_instant_missing_or_doubled, count};
use crate::{QUICK, QUICK_SESSIONS};

/// Fires planned in terms up to `epoch`, and the newest epoch.
async fn fires_until(sql: &PgPool, epoch: i64) -> (i64, i64) {
    let text = "SELECT count(*) FILTER (WHERE epoch <= $1), coalesce(max(epoch), 0) FROM fire";
    let asked = sqlx::query_as(text).bind(epoch);
    asked.fetch_one(sql).await.unwrap()
}

/// What a leader has sent and what the network holds back arrives long after its term: it changes
/// no row, and it leads no more.
#[tokio::test(flavor = "multi_thread")]
async fn p36_what_a_cut_off_leader_sent_arrives_after_its_term_and_changes_nothing() {
    const SCHEDULES: usize = 20;
    let Some((mut cluster, proxy)) = behind_a_proxy().await else {
        return;
    };
    let sql = cluster.sql().await;
    let names = cluster
        .every_second(SCHEDULES, &cluster.journal().work(&[0]))
        .await;
    let lease = ["--lease", "3s"];
    let mut cut_off = cluster.ticker(&lease);
    until("fires", async || {
        count(&sql, "SELECT count(*) FROM fire").await > 40
    })
    .await;
    // The other one has a way of its own.
    cluster.variables.clear();
    let mut other = cluster.ticker(&lease);
    let epoch = count(&sql, "SELECT max(epoch) FROM term").await;
    proxy.freeze();
    until("fires of the next term", async || {
        fires_until(&sql, epoch).await.1 > epoch
    })
    .await;
    // Three terms in all.
    until("the time of two terms more", async || {
        let text = "SELECT count(*) FROM term WHERE ended_at IS NULL
                    AND started_at < clock_timestamp() - interval '6 seconds'";
        count(&sql, text).await == 1
    })
    .await;
    let before = fires_until(&sql, epoch).await.0;
    proxy.thaw();
    // It is back, and has a look every second.
    until("a word of the one that was cut off", async || {
        let seen = "SELECT count(*) FROM ticker WHERE seen_at > clock_timestamp() - interval '2 s'";
        count(&sql, seen).await == 2
    })
    .await;
    let log = cut_off.log();
    assert!(log.contains("the term is over"), "{log}");
    let so_far = count(&sql, "SELECT count(*) FROM fire").await;
    until("three seconds of fires more", async || {
        count(&sql, "SELECT count(*) FROM fire").await >= so_far + 60
    })
    .await;
    assert_eq!(fires_until(&sql, epoch).await.0, before, "of the old epoch");
    let late = "SELECT count(*) FROM fire JOIN term USING (partition, epoch)
                WHERE planned_at > ended_at";
    assert_eq!(count(&sql, late).await, 0);
    assert_eq!(count(&sql, "SELECT count(*) FROM term").await, epoch + 1);
    assert!(cut_off.is_running() && other.is_running());
    cluster.unregister(&names).await;
    assert_no_instant_missing_or_doubled(&sql, SCHEDULES).await;
    cluster.audit_clean(&[1, 2, 3, 4, 12]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p36_of_five_tickers_started_at_one_instant_one_leads_each_term() {
    const ROUNDS: usize = 5;
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    let names = cluster.every_second(5, &cluster.journal().work(&[0])).await;
    let mut won: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..ROUNDS {
        let epoch = fires_until(&sql, i64::MAX).await.1;
        let mut tickers = [(); 5].map(|()| cluster.ticker(&["--lease", "3s"]));
        until("fires of a new term", async || {
            fires_until(&sql, epoch).await.1 > epoch
        })
        .await;
        let ended = tickers.iter_mut().map(|ticker| ticker.end(Signal::TERM));
        for (code, _) in join_all(ended).await {
            assert_eq!(code, Some(0));
        }
        for line in tickers.iter().flat_map(|ticker| {
            let log = ticker.log();
            let lines = log.lines().filter(|line| line.contains("term won"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        }) {
            let epoch = line.split("epoch").nth(1).unwrap();
            let number = epoch.chars().skip_while(|c| !c.is_ascii_digit());
            let number: String = number.take_while(char::is_ascii_digit).collect();
            *won.entry(number).or_default() += 1;
        }
    }
    println!("terms won: {won:?}");
    let terms = count(&sql, "SELECT count(*) FROM term").await;
    assert_eq!(i64::try_from(won.len()).unwrap(), terms);
    assert!(won.len() >= ROUNDS && won.values().all(|winners| *winners == 1));
    cluster.unregister(&names).await;
    assert_no_instant_missing_or_doubled(&sql, 5).await;
    cluster.audit_clean(&[1, 2, 12]).await;
}

/// A fast restart hides a death from whoever looks for names: the lease of the session that died
/// is what counts.
#[tokio::test(flavor = "multi_thread")]
async fn p40_a_worker_back_at_once_under_its_name_does_not_keep_the_old_run_alive() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    let journal = cluster.journal();
    let _roles = [cluster.ticker(QUICK_SESSIONS), cluster.relay()];
    let mut first = cluster.worker("same", &[QUICK]).await;
    let old = cluster.session_of(&first).await.unwrap().id;
    let [id] = cluster.enqueue(1, &journal.work(&[600_000, 50])).await[..] else {
        unreachable!()
    };
    until("the start", async || journal.starts() == 1).await;
    first.kill();
    let second = cluster.worker("same", &[QUICK]).await;
    cluster.until_all_succeeded(1).await;

    let story = cluster.story(id).await;
    assert_eq!(
        (story.execution.generation, story.execution.attempt),
        (2, 2)
    );
    assert_eq!(story.attempts[0].reason, Some(Reason::WorkerLost));
    let new = cluster.session_of(&second).await.unwrap();
    assert_eq!(story.execution.session_id, Some(new.id));
    assert_eq!(new.name, "same");
    let lost = cluster.sessions().await.into_iter().find(|s| s.id == old);
    assert_eq!(lost.unwrap().state, SessionState::Lost);
    // Not before the lease had run out, either.
    let early = "SELECT count(*) FROM execution JOIN attempt ON execution_id = id
                 JOIN session ON session.id = attempt.session_id
                 WHERE execution.claimed_at < session.expires_at";
    assert_eq!(count(&sql, early).await, 0);
    journal.assert_each_ended_once(1);
    cluster.audit_clean(&[5, 6, 7]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p40_results_of_a_time_without_the_database_are_delivered_after_it() {
    const RUNS: usize = 5;
    let Some(mut cluster) = Cluster::with_own_postgres().await else {
        return;
    };
    let journal = cluster.journal();
    // Longer than the outage: the results are those of live claims.
    let lease = ["--session-lease", "40s"];
    let _roles = [cluster.ticker(&lease), cluster.relay()];
    let settings = [
        ("PATIENT_LEASE_MS", "40000"),
        ("PATIENT_MAX_CONCURRENT", "5"),
    ];
    let mut worker = cluster.worker("worker", &settings).await;
    let (work, gate) = journal.gated("gate");
    let ids = cluster.enqueue(RUNS, &work).await;
    until("all started", async || journal.starts() == RUNS).await;
    assert_eq!(
        cluster.counts().await,
        BTreeMap::from([(State::Running, 5)])
    );
    let postgres = cluster.own_postgres.as_mut().unwrap();
    postgres.stop().await.unwrap();
    gate.open();
    until("all ended", async || journal.all("end").len() == RUNS).await;
    let postgres = cluster.own_postgres.as_mut().unwrap();
    postgres.restart().await.unwrap();

    cluster.until_all_succeeded(RUNS).await;
    for id in ids {
        let e = cluster.execution(id).await;
        assert_eq!((e.generation, e.attempt), (1, 1), "nothing ran again");
    }
    assert_eq!(journal.starts(), RUNS);
    assert!(worker.is_running());
    cluster.audit_clean(&[5, 6, 7]).await;
}

/// The total of a fire is pinned: nobody counts workers, so nobody can count wrong.
#[tokio::test(flavor = "multi_thread")]
async fn p43_a_worker_killed_at_the_dispatch_leaves_no_shard_out_and_moves_no_index() {
    const SHARDS: u32 = 10;
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    let journal = cluster.journal();
    let _roles = [cluster.ticker(QUICK_SESSIONS), cluster.relay()];
    let slots = ("PATIENT_MAX_CONCURRENT", "5");
    let mut workers = [
        cluster.worker("one", &[QUICK, slots]).await,
        cluster.worker("two", &[QUICK, slots]).await,
    ];
    let timing = Timing::Every {
        period_ms: 3_600_000,
        anchor: None,
    };
    let mut new = NewSchedule::new("sharded", timing);
    "patient".clone_into(&mut new.job);
    new.shard_total = SHARDS;
    let (work, gate) = journal.gated("gate");
    new.payload = work.payload();
    cluster.client.register(&new).await.unwrap();
    cluster.client.trigger("sharded").await.unwrap();
    let victim = workers[0].pid();
    until("a shard on the one that dies", async || {
        journal.all("start").iter().any(|note| note.pid == victim)
    })
    .await;
    workers[0].kill();
    gate.open();

    let shards = usize::try_from(SHARDS).unwrap();
    cluster.until_all_succeeded(shards).await;
    journal.assert_each_ended_once(shards);
    let mut done: Vec<u32> = journal.all("end").iter().map(|note| note.shard).collect();
    done.sort_unstable();
    assert_eq!(done, (0..SHARDS).collect::<Vec<_>>(), "each index");
    let survivor = workers[1].pid();
    assert!(journal.all("end").iter().all(|note| note.pid == survivor));
    let totals: Vec<i32> = sqlx::query_scalar(
        "SELECT DISTINCT shard_total FROM execution UNION SELECT shard_total FROM fire",
    )
    .fetch_all(&sql)
    .await
    .unwrap();
    assert_eq!(totals, [10], "constant");
    let again = "SELECT count(*) FROM attempt WHERE reason = 'worker_lost'";
    assert!(count(&sql, again).await >= 1);
    assert!(workers.iter_mut().skip(1).all(Role::is_running));
    cluster.audit_clean(&[3, 4, 6, 7]).await;
}
