//! How long a message is held that nobody can claim.

use std::time::Duration;

use bellwether_client::{Payload, Submission};
use bellwether_outbox_relay::StreamLimits;
use bellwether_sandbox::shared;
use bellwether_schemas::state::State;
use bellwether_worker::{Intake, Job};
use chrono::TimeDelta;
use sqlx::{Connection as _, PgConnection};
use tokio::time::Instant;

use crate::cluster::{Cluster, Running, SOON, run};

/// Longer than the default `AckWait` of 10 s, and by far than what is waited for here.
const LONG: Duration = Duration::from_mins(5);

async fn cluster(ack_wait: Duration) -> Option<Cluster> {
    let limits = StreamLimits {
        ack_wait,
        ..StreamLimits::default()
    };
    Cluster::on_postgres_with(limits).await
}

/// A worker with two messages: one whose claim the database does not answer, because somebody holds
/// the table, and one that waits for that answer in the worker.
struct Stuck {
    worker: Running,
    holder: PgConnection,
}

impl Stuck {
    async fn on(cluster: &Cluster, intake: Intake) -> Self {
        cluster.enqueue("quick", 1).await;
        cluster.until_all_are_published().await;
        let mut holder = PgConnection::connect(&cluster.database.url).await.unwrap();
        let schema = &cluster.database.schema;
        let lock = format!("BEGIN; LOCK TABLE {schema}.execution IN SHARE MODE");
        sqlx::raw_sql(sqlx::AssertSqlSafe(lock))
            .execute(&mut holder)
            .await
            .unwrap();
        let mut database = cluster.database.clone();
        database.application_name = shared::fresh_namespace();
        let worker = run(cluster
            .worker()
            .database(database.clone())
            .register(Job::new("quick", async || Ok::<_, String>(())))
            .max_concurrent(2)
            .intake(intake));
        worker
            .until("a dispatch", |stats| stats.received == 1)
            .await;
        until_waiting(&mut holder, &database.application_name).await;
        let submission = Submission::new("quick", Payload::json("null"));
        cluster.client.submit(&submission).await.unwrap();
        worker.until("both", |stats| stats.received == 2).await;
        Self { worker, holder }
    }

    async fn let_go(&mut self) {
        sqlx::query("ROLLBACK")
            .execute(&mut self.holder)
            .await
            .unwrap();
    }
}

/// Waits until somebody of that name waits for what `holder` holds.
async fn until_waiting(holder: &mut PgConnection, name: &str) {
    let deadline = Instant::now() + SOON;
    loop {
        // Else a transaction sees what its first look has seen.
        sqlx::query("SELECT pg_stat_clear_snapshot()")
            .execute(&mut *holder)
            .await
            .unwrap();
        let waits: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = $1
                            AND pg_backend_pid() = ANY (pg_blocking_pids(pid)))",
        )
        .bind(name)
        .fetch_one(&mut *holder)
        .await
        .unwrap();
        if waits {
            return;
        }
        assert!(Instant::now() < deadline, "no claim waits");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The relay's number is in force in a worker that was never told it: with the default of 10 s the
/// message would have been given up, and come back five minutes later.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_message_is_held_as_the_ack_wait_of_its_consumer_allows() {
    let Some(cluster) = cluster(LONG).await else {
        return;
    };
    let mut stuck = Stuck::on(&cluster, Intake::default()).await;
    let later = cluster.now().await + TimeDelta::seconds(10);
    cluster.until_passed(later).await;
    assert_eq!(stuck.worker.stats().forgotten, 0);
    stuck.let_go().await;
    cluster.until_count(State::Succeeded, 2).await;
    let stats = stuck.worker.stop().await;
    assert_eq!((stats.redelivered, stats.forgotten), (0, 0), "{stats:#?}");
}

/// However long it may be held as the worker was told: the broker delivers it again sooner.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_message_is_given_up_before_its_consumer_delivers_it_again() {
    let Some(cluster) = cluster(Duration::from_secs(9)).await else {
        return;
    };
    let intake = Intake {
        unclaimed_max: Some(Duration::from_hours(1)),
        ..Intake::default()
    };
    let mut stuck = Stuck::on(&cluster, intake).await;
    stuck
        .worker
        .until("it is given up", |stats| stats.forgotten > 0)
        .await;
    stuck.let_go().await;
    cluster.until_count(State::Succeeded, 2).await;
    let stats = stuck.worker.stop().await;
    assert!(stats.redelivered > 0, "{stats:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_message_is_given_up_sooner_where_the_worker_was_told_so() {
    let Some(cluster) = cluster(LONG).await else {
        return;
    };
    let intake = Intake {
        unclaimed_max: Some(Duration::from_millis(300)),
        ..Intake::default()
    };
    let mut stuck = Stuck::on(&cluster, intake).await;
    stuck
        .worker
        .until("it is given up", |stats| stats.forgotten > 0)
        .await;
    stuck.let_go().await;
    cluster.until_count(State::Succeeded, 1).await;
    assert_eq!(stuck.worker.stop().await.redelivered, 0);
}
