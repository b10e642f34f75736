//! Tickers that are killed and paused while they lead.

use std::time::{Duration, Instant};

use bellwether_sandbox::Signal;
use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgPool;
use uuid::Uuid;

use crate::support::{Cluster, Role, Work, until};

/// The bound of a takeover at the default leases: 9 s of lease, 1 s of polling, and some.
const TAKEOVER_MAX: Duration = Duration::from_millis(12_500);

/// The term in force: its epoch and the process id of its holder.
async fn leader(sql: &PgPool) -> Option<(i64, u32)> {
    let row: Option<(i64, String)> = sqlx::query_as(
        "SELECT epoch, holder FROM lease WHERE holder IS NOT NULL AND expires_at > clock_timestamp()",
    )
    .fetch_optional(sql)
    .await
    .unwrap();
    row.map(|(epoch, holder)| (epoch, holder.split('/').nth(1).unwrap().parse().unwrap()))
}

/// Waits for a leader: its epoch, and which of the two it is (0 or 1).
pub(crate) async fn leading(sql: &PgPool, tickers: [&Role; 2]) -> (i64, usize) {
    let mut found = None;
    until("a leader", async || {
        found = leader(sql).await;
        found.is_some()
    })
    .await;
    let (epoch, pid) = found.unwrap();
    let at = tickers.iter().position(|ticker| ticker.pid() == pid);
    (epoch, at.unwrap())
}

pub(crate) async fn count(sql: &PgPool, query: &'static str) -> i64 {
    sqlx::query_scalar(query).fetch_one(sql).await.unwrap()
}

async fn fires(sql: &PgPool) -> i64 {
    count(sql, "SELECT count(*) FROM fire").await
}

/// Fires planned in terms after `epoch`.
pub(crate) async fn fires_after(sql: &PgPool, epoch: i64) -> i64 {
    let query = "SELECT count(*) FROM fire WHERE epoch > $1";
    sqlx::query_scalar(query)
        .bind(epoch)
        .fetch_one(sql)
        .await
        .unwrap()
}

/// Fails unless each schedule fired at anchor + 1 s, + 2 s and so on up to its last fire, each
/// instant once, and none was skipped. Answers the number of fires.
pub(crate) async fn assert_no_instant_missing_or_doubled(sql: &PgPool, schedules: usize) -> usize {
    let rows: Vec<(Uuid, DateTime<Utc>, Vec<DateTime<Utc>>)> = sqlx::query_as(
        "SELECT s.id, s.anchor, array_agg(f.scheduled_at ORDER BY f.scheduled_at)
         FROM schedule s JOIN fire f ON f.schedule_id = s.id GROUP BY s.id, s.anchor",
    )
    .fetch_all(sql)
    .await
    .unwrap();
    assert_eq!(rows.len(), schedules, "schedules that fired");
    assert_eq!(
        count(sql, "SELECT count(*) FROM non_fire").await,
        0,
        "ranges without fires"
    );
    let mut total = 0;
    for (id, anchor, fired) in rows {
        let due: Vec<_> = (1_i64..)
            .map(|k| anchor + TimeDelta::seconds(k))
            .take(fired.len())
            .collect();
        assert_eq!(fired, due, "schedule {id}");
        total += fired.len();
    }
    total
}

#[tokio::test(flavor = "multi_thread")]
async fn p63_a_killed_leader_is_replaced_and_no_instant_is_missing_or_doubled() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    let journal = cluster.journal();
    let _relay = cluster.relay();
    let _worker = cluster
        .worker("worker", &[("PATIENT_MAX_CONCURRENT", "16")])
        .await;
    let names = cluster.every_second(100, &journal.work(&[0])).await;
    let mut tickers = [cluster.ticker(&[]), cluster.ticker(&[])];
    until("300 fires", async || fires(&sql).await >= 300).await;

    let (epoch, at) = leading(&sql, [&tickers[0], &tickers[1]]).await;
    let killed = tickers[at].kill();
    until("a fire of the next term", async || {
        fires_after(&sql, epoch).await > 0
    })
    .await;
    let takeover = killed.elapsed();
    println!(
        "leader killed: the next one planned after {:.2} s",
        takeover.as_secs_f64()
    );
    assert!(takeover <= TAKEOVER_MAX, "takeover took {takeover:?}");
    assert_eq!(
        leading(&sql, [&tickers[0], &tickers[1]]).await,
        (epoch + 1, 1 - at)
    );

    // Until it has caught up and goes on in time.
    until("a fire in time", async || {
        let query = "SELECT count(*) FROM fire WHERE epoch > $1
                     AND planned_at < scheduled_at + interval '500 ms'";
        let on_time: i64 = sqlx::query_scalar(query)
            .bind(epoch)
            .fetch_one(&sql)
            .await
            .unwrap();
        on_time >= 100
    })
    .await;
    cluster.unregister(&names).await;
    let planned = assert_no_instant_missing_or_doubled(&sql, 100).await;
    cluster.until_all_succeeded(planned).await;
    journal.assert_each_ended_once(planned);
    println!("{planned} fires planned, {planned} run once");
    cluster.audit_clean(&[1, 2, 3, 4, 6, 12]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_leader_steps_down_and_writes_nothing_as_a_stale_leader() {
    const PAUSE: Duration = Duration::from_secs(10);
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    let journal = cluster.journal();
    let _relay = cluster.relay();
    let _worker = cluster
        .worker("worker", &[("PATIENT_MAX_CONCURRENT", "8")])
        .await;
    let names = cluster.every_second(20, &journal.work(&[0])).await;
    // A pause of 10 s is to this lease what 30 s are to the default one.
    let lease = ["--lease", "3s"];
    let mut tickers = [cluster.ticker(&lease), cluster.ticker(&lease)];
    until("60 fires", async || fires(&sql).await >= 60).await;

    let (epoch, at) = leading(&sql, [&tickers[0], &tickers[1]]).await;
    let paused = Instant::now();
    tickers[at].pause().await;
    until("a fire of the next term", async || {
        fires_after(&sql, epoch).await > 0
    })
    .await;
    println!(
        "leader paused: the next one planned after {:.2} s",
        paused.elapsed().as_secs_f64()
    );
    tokio::time::sleep(PAUSE.saturating_sub(paused.elapsed())).await;
    let fired = fires(&sql).await;
    let stale = "SELECT count(*) FROM fire f JOIN term t USING (partition, epoch)
                 WHERE f.planned_at > t.ended_at";
    tickers[at].resume();
    // It comes back into a world where much is due, and leaves that to the other one.
    until("40 fires more", async || fires(&sql).await >= fired + 40).await;
    assert!(tickers[at].is_running());
    assert_eq!(
        count(&sql, stale).await,
        0,
        "fires written after their term"
    );
    assert_eq!(
        leading(&sql, [&tickers[0], &tickers[1]]).await,
        (epoch + 1, 1 - at)
    );

    // It stepped down and stands by: it can win again.
    tickers[1 - at].kill();
    until("a fire of the third term", async || {
        fires_after(&sql, epoch + 1).await > 0
    })
    .await;
    assert_eq!(
        leading(&sql, [&tickers[0], &tickers[1]]).await,
        (epoch + 2, at)
    );
    cluster.unregister(&names).await;
    let planned = assert_no_instant_missing_or_doubled(&sql, 20).await;
    cluster.until_all_succeeded(planned).await;
    journal.assert_each_ended_once(planned);
    cluster.audit_clean(&[1, 2, 3, 12]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p37_tickers_and_relays_killed_at_any_line_lose_nothing() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    let journal = cluster.journal();
    let _worker = cluster
        .worker("worker", &[("PATIENT_MAX_CONCURRENT", "16")])
        .await;
    let names = cluster.every_second(100, &journal.work(&[0])).await;
    let lease = ["--lease", "1.5s"];
    for _round in 0..3 {
        let before = fires(&sql).await;
        let mut ticker = cluster.ticker(&lease);
        let mut relay = cluster.relay();
        // Rows enter the outbox and leave it again at the moment of the kill.
        until("fires in this round", async || fires(&sql).await > before).await;
        relay.kill();
        ticker.kill();
    }
    let epoch = count(&sql, "SELECT max(epoch) FROM term").await;
    let _ticker = cluster.ticker(&lease);
    let _relay = cluster.relay();
    until("a fire of the last term", async || {
        fires_after(&sql, epoch).await > 0
    })
    .await;
    cluster.unregister(&names).await;
    let planned = assert_no_instant_missing_or_doubled(&sql, 100).await;
    cluster.until_all_succeeded(planned).await;
    journal.assert_each_ended_once(planned);
    println!("{planned} fires over {} terms", epoch + 1);
    cluster.audit_clean(&[1, 2, 3, 4, 12]).await;
}

/// A forgotten transaction holds the row of one schedule. That stops no other, and every round of planning
/// meets it again without a line of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_that_somebody_holds_is_told_in_few_lines_and_stops_no_other() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    cluster.every_second(2, &Work::default()).await;
    let fires_of = async |name: &str| -> i64 {
        let query = "SELECT count(*) FROM fire JOIN schedule ON schedule.id = fire.schedule_id
                     WHERE schedule.name = $1";
        let count = sqlx::query_scalar(query).bind(name).fetch_one(&sql);
        count.await.unwrap()
    };
    let mut ticker = cluster.ticker(&[]);
    until("fires of both", async || {
        fires_of("tick-0").await > 0 && fires_of("tick-1").await > 0
    })
    .await;

    let mut forgotten = sql.begin().await.unwrap();
    sqlx::query("SELECT FROM schedule WHERE name = 'tick-0' FOR UPDATE")
        .fetch_one(&mut *forgotten)
        .await
        .unwrap();
    let (held, free) = (fires_of("tick-0").await, fires_of("tick-1").await);
    let lines = |words: &str| {
        let log = ticker.log();
        log.lines().filter(|line| line.contains(words)).count()
    };
    until("a line about it", async || {
        lines("schedules are due and cannot be planned") > 0
    })
    .await;
    until("fires of the other", async || {
        fires_of("tick-1").await > free + 8
    })
    .await;
    assert_eq!(fires_of("tick-0").await, held);
    forgotten.rollback().await.unwrap();
    until("its fires", async || fires_of("tick-0").await > held).await;
    until("a line about the end", async || {
        lines("no other session holds rows of schedules") > 0
    })
    .await;
    for (words, count) in [
        ("schedules are due and cannot be planned", 1),
        ("no other session holds rows of schedules", 1),
        // No failure of the planner, whose readiness and term would depend on it.
        ("plan what is due", 0),
    ] {
        assert_eq!(lines(words), count, "{words}: {}", ticker.log());
    }
    let (code, _) = ticker.end(Signal::TERM).await;
    assert_eq!(code, Some(0));
    cluster.audit_clean(&[2]).await;
}
