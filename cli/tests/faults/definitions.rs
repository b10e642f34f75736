//! Builds that say different things about one schedule, and an operator who says a third.

use std::time::Duration;

use bellwether_client::{Timing, What};
use bellwether_sandbox::Signal;
use bellwether_schemas::state::{Reason, State};
use bellwether_store::edit::{self, Edited, Synced};
use bellwether_store::schedules::{NewSchedule, Origin, Schedule};
use bellwether_store::{Options, connect};
use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgPool;
use uuid::Uuid;

use crate::support::{Cluster, Role, SOON, until};
use crate::{QUICK, QUICK_SESSIONS};

/// A schedule that fires every second in any zone: whatever stands, the instants are the same.
const NAME: &str = "definition";

/// What a build says: its zone and its shards tell it from the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Says {
    zone: &'static str,
    shards: &'static str,
}

const OLDER: Says = Says {
    zone: "UTC",
    shards: "1",
};
const NEWER: Says = Says {
    zone: "Asia/Shanghai",
    shards: "2",
};

impl Says {
    async fn start(self, cluster: &Cluster) -> Role {
        let env = [
            ("DEFINITION_NAME", self.zone),
            ("DEFINITION_TZ", self.zone),
            ("DEFINITION_SHARDS", self.shards),
        ];
        cluster.example("definition", "definition", &env).await
    }

    fn is_said_by(self, schedule: &Schedule) -> bool {
        let zone = matches!(&schedule.timing, Timing::Cron { zone, .. } if zone == self.zone);
        zone && schedule.shard_total.to_string() == self.shards
    }
}

async fn the_schedule(cluster: &Cluster) -> Schedule {
    let mut all = cluster.store.schedules().await.unwrap();
    assert_eq!(all.len(), 1, "{all:#?}");
    all.remove(0)
}

/// Fails unless `says` stands in the one row, at `version`.
async fn assert_stands(cluster: &Cluster, says: Says, version: i64) {
    let schedule = the_schedule(cluster).await;
    assert!(says.is_said_by(&schedule), "not {says:?}: {schedule:#?}");
    assert_eq!(schedule.version, version, "writes that changed nothing");
}

/// Two builds that take turns, one of them always there.
struct Fleet<'a> {
    cluster: &'a Cluster,
    builds: [(Says, Option<Role>); 2],
    restarts: usize,
}

impl Fleet<'_> {
    /// Restarts the builds in turn; every other time one is killed instead of asked.
    async fn restart(&mut self, times: usize) {
        for _ in 0..times {
            let (says, role) = &mut self.builds[self.restarts % 2];
            if let Some(mut role) = role.take() {
                if self.restarts % 4 < 2 {
                    assert_eq!(role.end(Signal::TERM).await.0, Some(0), "{}", role.log());
                } else {
                    role.kill();
                }
            }
            *role = Some(says.start(self.cluster).await);
            self.restarts += 1;
            // Somewhere between two ticks, each time elsewhere.
            let anywhere = Duration::from_millis(fastrand::u64(..500));
            tokio::time::sleep(anywhere).await;
        }
    }
}

/// What an operator wants instead: `shards` in `zone`.
async fn operator_edits(cluster: &Cluster, says: Says) {
    let edited = edit::edit(&*cluster.store, NAME, |schedule| {
        schedule.shard_total = says.shards.parse().unwrap();
        let Timing::Cron { zone, .. } = &mut schedule.timing else {
            panic!("no cron: {schedule:#?}");
        };
        says.zone.clone_into(zone);
        Ok(())
    });
    let edited = edited.await.unwrap();
    assert!(matches!(edited, Edited::Done(_)), "{edited:?}");
}

/// As if the last worker of `hash` had been gone for two minutes.
async fn two_minutes_pass(sql: &PgPool, hash: &str) {
    let sessions = "UPDATE session SET ended_at = ended_at - interval '2 min'
                    FROM session_definition r WHERE r.session_id = session.id AND r.hash = $1";
    let notes = "UPDATE definition SET noted_at = noted_at - interval '2 min' WHERE hash = $1";
    for query in [sessions, notes] {
        sqlx::query(query).bind(hash).execute(sql).await.unwrap();
    }
}

/// Fails unless every second between the first and the last instant of the schedule is one fire
/// or inside one range that an edit left behind; answers fires and ranges.
async fn assert_every_second_once(sql: &PgPool, schedule: Uuid) -> (usize, usize) {
    let fires: Vec<DateTime<Utc>> =
        sqlx::query_scalar("SELECT scheduled_at FROM fire WHERE schedule_id = $1")
            .bind(schedule)
            .fetch_all(sql)
            .await
            .unwrap();
    let ranges: Vec<(String, DateTime<Utc>, DateTime<Utc>, i64)> = sqlx::query_as(
        "SELECT reason, from_at, until_at, count FROM non_fire WHERE schedule_id = $1",
    )
    .bind(schedule)
    .fetch_all(sql)
    .await
    .unwrap();
    let mut instants = fires.clone();
    for (reason, from, until, count) in &ranges {
        assert_eq!(
            reason, "edited",
            "a ticker was there all the time: {ranges:?}"
        );
        assert_eq!((*until - *from).num_seconds() + 1, *count, "{ranges:?}");
        instants.extend((0..*count).map(|second| *from + TimeDelta::seconds(second)));
    }
    instants.sort_unstable();
    let due: Vec<_> = (0_i64..)
        .map(|second| instants[0] + TimeDelta::seconds(second))
        .take(instants.len())
        .collect();
    assert_eq!(instants, due, "ranges: {ranges:?}");
    (fires.len(), ranges.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_builds_and_an_operator_restarted_twenty_times_miss_and_double_no_instant() {
    const EDIT: Says = Says {
        zone: "Europe/Berlin",
        shards: "3",
    };
    const EDITED_AGAIN: Says = Says {
        zone: "America/New_York",
        shards: "4",
    };
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    let _ticker = cluster.ticker(&[]);
    let _relay = cluster.relay();
    let mut fleet = Fleet {
        cluster: &cluster,
        builds: [(OLDER, None), (NEWER, None)],
        restarts: 0,
    };
    fleet.restart(1).await;
    assert_stands(&cluster, OLDER, 1).await;
    let id = the_schedule(&cluster).await.id;
    fleet.restart(1).await;
    assert_stands(&cluster, NEWER, 2).await;
    // The newer build has been seen within the minute, whoever starts.
    for _ in 0..6 {
        fleet.restart(1).await;
        assert_stands(&cluster, NEWER, 2).await;
    }

    // An operator's word stands above both, also while they restart.
    tokio::join!(operator_edits(&cluster, EDIT), fleet.restart(2));
    assert_stands(&cluster, EDIT, 3).await;
    tokio::join!(operator_edits(&cluster, EDITED_AGAIN), fleet.restart(2));
    assert_stands(&cluster, EDITED_AGAIN, 4).await;
    fleet.restart(1).await;
    assert_stands(&cluster, EDITED_AGAIN, 4).await;
    let reset = edit::reset(&*cluster.store, NAME).await.unwrap();
    assert_eq!(reset, Edited::Done(5));
    fleet.restart(1).await;
    assert_stands(&cluster, NEWER, 5).await;

    // A roll-back: the newer build is gone for long enough.
    let newer = the_schedule(&cluster).await.code_hash.unwrap();
    fleet.builds[1].1.take().unwrap().end(Signal::TERM).await;
    until("the loss of the sessions that were killed", async || {
        let known = cluster.store.definitions(&[NAME.to_owned()]).await.unwrap();
        !known.iter().any(|one| one.hash == newer && one.live)
    })
    .await;
    two_minutes_pass(&sql, &newer).await;
    fleet.restart(1).await;
    assert_stands(&cluster, OLDER, 6).await;
    // It comes back.
    fleet.restart(1).await;
    assert_stands(&cluster, NEWER, 7).await;
    for _ in 0..4 {
        fleet.restart(1).await;
        assert_stands(&cluster, NEWER, 7).await;
    }
    assert_eq!(fleet.restarts, 20);

    cluster.client.unregister(NAME).await.unwrap();
    let (fires, ranges) = assert_every_second_once(&sql, id).await;
    println!("{fires} fires, {ranges} ranges that an edit left behind");
    assert!(fires >= 10, "only {fires} fires");
    assert!(ranges <= 6, "{ranges} ranges, but six edits of the timing");
    cluster.until_all_ended().await;
    cluster.audit_clean(&[1, 2, 3, 4, 12]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p07_ten_that_register_one_schedule_all_the_time_miss_and_double_no_instant() {
    const FOR: Duration = Duration::from_secs(12);
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    let _ticker = cluster.ticker(&[]);
    let mut options = Options::new(cluster.database_url());
    cluster.subjects.namespace().clone_into(&mut options.schema);
    options.connections_max = 1;
    let mut registering = Vec::new();
    for number in 0..10 {
        let says = if number % 2 == 0 { OLDER } else { NEWER };
        let timing = Timing::Cron {
            expr: "* * * * * *".to_owned(),
            zone: says.zone.to_owned(),
        };
        let mut new = NewSchedule::new(NAME, timing);
        new.shard_total = says.shards.parse().unwrap();
        new.origin = Origin::Code;
        let options = options.clone();
        registering.push(tokio::spawn(async move {
            // Each a process of its own, as far as the ledger can tell.
            let store = connect(&options).await.unwrap();
            let mut written = 0;
            let end = tokio::time::Instant::now() + FOR;
            while tokio::time::Instant::now() < end {
                let synced = edit::sync(&*store, std::slice::from_ref(&new), true).await;
                let synced = synced.unwrap()[0];
                written += usize::from(matches!(synced, Synced::Inserted | Synced::Updated));
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            written
        }));
    }
    let mut written = 0;
    for one in registering {
        written += one.await.unwrap();
    }
    let schedule = the_schedule(&cluster).await;
    let known = cluster.store.definitions(&[NAME.to_owned()]).await.unwrap();
    let newest = known
        .iter()
        .max_by_key(|one| (one.first_seen_at, &one.hash));
    assert_eq!(schedule.code_hash.as_ref(), newest.map(|one| &one.hash));
    assert!(
        written <= 2 && schedule.version <= 2,
        "{written} writes: {schedule:#?}"
    );
    cluster.client.unregister(NAME).await.unwrap();
    let (fires, _) = assert_every_second_once(&sql, schedule.id).await;
    assert!(fires >= 8, "only {fires} fires");
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM schedule")
        .fetch_one(&sql)
        .await
        .unwrap();
    assert_eq!(rows, 1, "and none was removed and made again");
}

#[tokio::test(flavor = "multi_thread")]
async fn p46_a_redeploy_in_mid_run_starts_nothing_a_second_time() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let _ticker = cluster.ticker(&[]);
    let _relay = cluster.relay();
    let once_a_year = [("DEFINITION_CRON", "0 0 0 1 1 *")];
    let slow = [once_a_year[0], ("DEFINITION_WORK_MS", "5000")];
    let mut old = cluster.example("definition", "old", &slow).await;
    let fire = cluster.client.trigger(NAME).await.unwrap();
    until("the run", async || {
        cluster.counts().await.contains_key(&State::Running)
    })
    .await;

    let again = [
        ("DEFINITION_CRON", "0 0 0 2 1 *"),
        ("DEFINITION_SHARDS", "3"),
    ];
    let _new = cluster.example("definition", "new", &again).await;
    assert_eq!(the_schedule(&cluster).await.shard_total, 3);
    assert!(
        cluster.counts().await.contains_key(&State::Running),
        "in mid-run"
    );
    let (code, _) = old.end(Signal::TERM).await;
    assert_eq!(code, Some(0), "{}", old.log());
    cluster.until_all_succeeded(1).await;
    let waited = cluster.client.wait(What::Fire(fire), SOON).await.unwrap();
    assert_eq!(waited.shards.len(), 1, "pinned when it was planned");
    let ran = cluster.execution(waited.shards[0].execution_id).await;
    assert_eq!((ran.generation, ran.attempt), (1, 1), "{ran:#?}");

    let fire = cluster.client.trigger(NAME).await.unwrap();
    let waited = cluster.client.wait(What::Fire(fire), SOON).await.unwrap();
    assert!(waited.succeeded());
    assert_eq!(waited.outputs::<u32>().unwrap(), [0, 1, 2]);
    cluster.audit_clean(&[3, 4, 6, 7]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p11_work_of_a_lost_worker_waits_for_its_successor_whoever_else_serves_the_queue() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let journal = cluster.journal();
    let _ticker = cluster.ticker(QUICK_SESSIONS);
    let _relay = cluster.relay();
    let mut first = cluster.worker("first", &[QUICK]).await;
    let [id] = cluster.enqueue(1, &journal.work(&[600_000, 50])).await[..] else {
        unreachable!()
    };
    until("the start", async || journal.starts() == 1).await;
    // It serves the queue and knows another job.
    let nothing = [("DEFINITION_CRON", "")];
    let mut stranger = cluster.example("definition", "stranger", &nothing).await;
    first.kill();
    until("refusals by the stranger", async || {
        let waiting = cluster.execution(id).await;
        waiting.last_refusal.as_deref() == Some("no_handler") && waiting.dispatch_no >= 3
    })
    .await;
    let waiting = cluster.execution(id).await;
    assert_eq!((waiting.state, waiting.attempt), (State::Retrying, 1));

    let successor = cluster.worker("successor", &[QUICK]).await;
    // Which of the two a message reaches first is a matter of luck.
    stranger.end(Signal::TERM).await;
    cluster.until_all_succeeded(1).await;
    journal.assert_each_ended_once(1);
    assert_eq!(journal.all("end")[0].pid, successor.pid());
    let story = cluster.story(id).await;
    assert_eq!(
        (story.execution.attempt, story.execution.generation),
        (2, 2)
    );
    assert_eq!(story.attempts[0].reason, Some(Reason::WorkerLost));
    cluster.audit_clean(&[5, 6, 7, 8]).await;
}
