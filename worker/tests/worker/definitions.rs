//! Schedules that stand in code: what a start makes of them, and what it leaves alone.

use std::time::Duration;

use bellwether_client::{NewSchedule, Timing, What};
use bellwether_sandbox::eventually;
use bellwether_schemas::state::{SessionState, State};
use bellwether_store::edit::{self, Edited};
use bellwether_store::schedules::{Origin, Schedule};
use bellwether_worker::{Job, Lease};
use chrono::{SubsecRound, TimeDelta};

use crate::cluster::{Cluster, Running, SOON, run};

on_both_stores!(
    r68_a_restart_with_a_new_cron_changes_the_one_row,
    r68_an_unregistered_schedule_runs_what_was_planned_and_no_more,
    p08_a_new_cron_does_not_fire_at_once,
    an_older_build_leaves_a_newer_definition_alone,
    an_operators_edit_stands_until_it_is_reset,
    a_schedule_of_the_client_is_not_touched_and_its_job_is_served,
    p11_a_worker_does_not_keep_work_from_the_one_that_knows_it,
    what_was_removed_is_made_anew_by_a_start_and_not_by_a_new_session,
);

/// An instant that no test reaches.
const YEARLY: &str = "0 0 0 1 1 *";

/// The job `beat`, registered by the function that says when.
fn beat() -> Job {
    Job::new("beat", async || Ok::<_, String>(()))
}

impl Cluster {
    /// The one schedule.
    async fn schedule(&self) -> Schedule {
        let mut all = self.ledger.schedules().await.unwrap();
        assert_eq!(all.len(), 1, "{all:#?}");
        all.remove(0)
    }

    async fn fires(&self, schedule: &Schedule) -> usize {
        self.ledger.fires(schedule.id, 10_000).await.unwrap().len()
    }

    /// A worker that has started: its definitions are synced, its session reports them.
    async fn started(&self, job: Job) -> Running {
        let worker = run(self.worker().register(job));
        worker.until("ready", |stats| stats.asked > 0).await;
        worker
    }

    /// Starts a worker and stops it again.
    async fn restart(&self, job: Job) {
        self.started(job).await.stop().await;
    }
}

fn expr(schedule: &Schedule) -> &str {
    match &schedule.timing {
        Timing::Cron { expr, .. } => expr,
        other => panic!("no cron: {other:?}"),
    }
}

async fn r68_a_restart_with_a_new_cron_changes_the_one_row(cluster: Cluster) {
    let first = cluster.started(beat().every(Duration::from_secs(1))).await;
    cluster.until_at_least(State::Succeeded, 2).await;
    first.stop().await;
    let before = cluster.schedule().await;
    assert_eq!(
        (before.origin, before.version, before.code_hash.is_some()),
        (Origin::Code, 1, true)
    );

    let yearly = || beat().cron(YEARLY, "UTC").description("once a year");
    cluster.restart(yearly()).await;
    let after = cluster.schedule().await;
    assert_eq!((after.id, after.version), (before.id, 2), "one row");
    assert_eq!(
        (expr(&after), after.description.as_str()),
        (YEARLY, "once a year")
    );
    assert_ne!(after.code_hash, before.code_hash);

    // The same again writes nothing, and the old timing fires no more.
    let fires = cluster.fires(&after).await;
    cluster.restart(yearly()).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(cluster.schedule().await.version, 2);
    assert_eq!(cluster.fires(&after).await, fires);
    let worker = cluster.started(yearly()).await;
    cluster
        .until_count(State::Succeeded, u64::try_from(fires).unwrap())
        .await;
    worker.stop().await;
    cluster.audit().await;
}

async fn r68_an_unregistered_schedule_runs_what_was_planned_and_no_more(cluster: Cluster) {
    cluster.restart(beat().every(Duration::from_secs(1))).await;
    let schedule = cluster.schedule().await;
    eventually("fires that wait", SOON, async || {
        cluster.fires(&schedule).await >= 2
    })
    .await
    .unwrap();
    cluster.client.unregister("beat").await.unwrap();
    let planned = cluster.fires(&schedule).await;
    let worker = cluster.started(beat()).await;
    cluster
        .until_count(State::Succeeded, u64::try_from(planned).unwrap())
        .await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(cluster.fires(&schedule).await, planned);
    assert!(cluster.ledger.schedules().await.unwrap().is_empty());
    worker.stop().await;
    cluster.audit().await;
}

/// The new expression has an instant between the last look at the old one and now.
async fn p08_a_new_cron_does_not_fire_at_once(cluster: Cluster) {
    cluster.restart(beat().cron(YEARLY, "UTC")).await;
    let before = cluster.schedule().await;
    let passed = before.created_at.trunc_subsecs(0) + TimeDelta::seconds(1);
    assert!(passed > before.cursor, "the old cursor lies before it");
    eventually("a while", SOON, async || {
        let now = cluster.ledger.due_schedules(&[0], 1).await.unwrap().now;
        now > passed + TimeDelta::seconds(1)
    })
    .await
    .unwrap();

    let once = passed.format("%-S %-M %-H %-d %-m *").to_string();
    cluster.restart(beat().cron(once.as_str(), "UTC")).await;
    assert_eq!(expr(&cluster.schedule().await), once);
    eventually("the ticker's next instant", SOON, async || {
        cluster.schedule().await.next_at.is_some()
    })
    .await
    .unwrap();
    let next_at = cluster.schedule().await.next_at.unwrap();
    assert!(next_at > passed + TimeDelta::days(300), "{next_at}");
    assert_eq!(cluster.fires(&before).await, 0, "nothing fires at once");
    cluster.audit().await;
}

async fn an_older_build_leaves_a_newer_definition_alone(cluster: Cluster) {
    let (older, newer) = (
        || beat().cron(YEARLY, "UTC"),
        || beat().cron(YEARLY, "Asia/Shanghai").shards(2),
    );
    cluster.restart(older()).await;
    let running = cluster.started(newer()).await;
    let stands = cluster.schedule().await;
    assert_eq!((stands.version, stands.shard_total), (2, 2));
    let known = cluster
        .ledger
        .definitions(&["beat".to_owned()])
        .await
        .unwrap();
    assert_eq!(known.len(), 2);
    for one in &known {
        let is_newer = Some(&one.hash) == stands.code_hash.as_ref();
        assert_eq!((one.live, one.recent), (is_newer, true), "{one:?}");
    }
    cluster.restart(older()).await;
    running.stop().await;
    // Gone, but not for long enough.
    cluster.restart(older()).await;
    let after = cluster.schedule().await;
    assert_eq!((after.version, after.code_hash), (2, stands.code_hash));
}

async fn an_operators_edit_stands_until_it_is_reset(cluster: Cluster) {
    cluster.restart(beat().cron(YEARLY, "UTC")).await;
    let ledger = cluster.ledger.as_ref();
    let edited = edit::edit(ledger, "beat", |schedule| {
        schedule.shard_total = 3;
        Ok(())
    });
    assert_eq!(edited.await.unwrap(), Edited::Done(2));
    cluster.restart(beat().cron(YEARLY, "UTC")).await;
    let newer = cluster.started(beat().cron(YEARLY, "UTC").shards(7)).await;
    let stands = cluster.schedule().await;
    assert_eq!((stands.version, stands.shard_total), (2, 3));
    assert!(stands.edited_at.is_some());
    assert_eq!(edit::reset(ledger, "beat").await.unwrap(), Edited::Done(3));
    let follows = cluster.schedule().await;
    assert_eq!((follows.shard_total, follows.edited_at), (7, None));
    newer.stop().await;
}

async fn a_schedule_of_the_client_is_not_touched_and_its_job_is_served(cluster: Cluster) {
    let timing = Timing::Cron {
        expr: YEARLY.to_owned(),
        zone: "UTC".to_owned(),
    };
    let mut new = NewSchedule::new("beat", timing);
    // Whatever the caller says, what a client registers is a client's.
    new.origin = Origin::Code;
    cluster.client.register(&new).await.unwrap();
    let worker = cluster.started(beat().every(Duration::from_secs(1))).await;
    let schedule = cluster.schedule().await;
    assert_eq!((schedule.origin, schedule.version), (Origin::Api, 1));
    assert_eq!((expr(&schedule), &schedule.code_hash), (YEARLY, &None));
    let fire = cluster.client.trigger("beat").await.unwrap();
    let waited = cluster.client.wait(What::Fire(fire), SOON).await.unwrap();
    assert!(waited.succeeded());
    worker.stop().await;
}

async fn what_was_removed_is_made_anew_by_a_start_and_not_by_a_new_session(cluster: Cluster) {
    let yearly = || beat().cron(YEARLY, "UTC");
    let lease = Lease {
        renew_every: Duration::from_millis(200),
        ..Lease::default()
    };
    let worker = run(cluster.worker().register(yearly()).lease(lease));
    worker.until("ready", |stats| stats.asked > 0).await;
    let first = cluster.client.unregister("beat").await.unwrap();

    let session = cluster.ledger.sessions(10).await.unwrap()[0].id;
    cluster.ledger.close_session(session).await.unwrap();
    eventually("a new session", SOON, async || {
        let newest = &cluster.ledger.sessions(10).await.unwrap()[0];
        newest.id != session && newest.state == SessionState::Live
    })
    .await
    .unwrap();
    // The step of the new session comes at once; it writes nothing that could be waited for.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(cluster.ledger.schedules().await.unwrap().is_empty());
    worker.stop().await;
    cluster.restart(yearly()).await;
    assert_ne!(cluster.schedule().await.id, first);
}

/// With fewer slots than lanes a worker waits on some lanes only; it must not wait on the one
/// whose messages it only hands back.
async fn p11_a_worker_does_not_keep_work_from_the_one_that_knows_it(cluster: Cluster) {
    let stranger = Job::new("other", async || Ok::<_, String>(()));
    let stranger = run(cluster.worker().register(stranger).max_concurrent(2));
    stranger.until("ready", |stats| stats.asked > 0).await;
    cluster.enqueue("beat", 1).await;
    stranger
        .until("handed back", |stats| stats.deferred > 0)
        .await;
    let knows = run(cluster.worker().register(beat()).max_concurrent(2));
    cluster.until_count(State::Succeeded, 1).await;
    for done in 2..=4 {
        cluster.enqueue("beat", 1).await;
        cluster.until_count(State::Succeeded, done).await;
    }
    knows.stop().await;
    stranger.stop().await;
    cluster.audit().await;
}
