//! What waits in the ledger, in the outbox and at the broker, and what becomes of it.

use std::str::FromStr;
use std::time::Duration;

use async_nats::jetstream;
use bellwether_client::{NewExecution, NewSchedule, Overlap, Timing};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};

use super::Said;
use crate::database::export_to;
use crate::support::{Cluster, Collector, SOON, until};
use crate::tickers::count;

/// A schedule of the job `patient`, due every second.
async fn every_second(cluster: &Cluster, name: &str, overlap: Overlap) {
    let timing = Timing::Every {
        period_ms: 1_000,
        anchor: None,
    };
    let mut new = NewSchedule::new(name, timing);
    "patient".clone_into(&mut new.job);
    new.overlap = overlap;
    new.grace = Duration::from_secs(1);
    cluster.client.register(&new).await.unwrap();
}

/// Nobody is there to claim, at first nobody to publish.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_outbox_and_the_broker_hold_repeat_refuse_and_lose_is_counted() {
    const WAITING: u32 = 4;
    let Some(mut cluster) = Cluster::postgres().await else {
        return;
    };
    let collector = Collector::start().await;
    export_to(&mut cluster, &collector);
    let ticker = Said::by_tickers(&collector);
    let relay = Said::by_relays(&collector);
    let sql = cluster.sql().await;
    let _ticker = cluster.ticker(&[]);
    let work = cluster.journal().work(&[0]);
    cluster.enqueue(WAITING as usize, &work).await;
    let mut nowhere = NewExecution::new("patient", work.payload());
    "nowhere".clone_into(&mut nowhere.queue);
    cluster.client.enqueue(&nowhere).await.unwrap();
    ticker
        .until("bellwether.outbox.pending", &[], WAITING + 1)
        .await;
    ticker
        .until_least("bellwether.outbox.oldest.age", &[], 1)
        .await;

    // A hand has spoilt one. What a crash brings back of the others is kept for later.
    for statement in [
        "UPDATE execution SET queue = 'a.b > c' WHERE queue = 'nowhere'",
        "UPDATE outbox SET queue = 'a.b > c' WHERE queue = 'nowhere'",
        "CREATE TABLE kept AS SELECT * FROM outbox WHERE queue = 'default'",
    ] {
        sqlx::query(statement).execute(&sql).await.unwrap();
    }
    let quick = "--check-every 1s --lost-every 1s --lost-after 11s";
    let _relay = cluster.role("relay", &quick.split(' ').collect::<Vec<_>>());
    let published = "bellwether.outbox.published";
    relay.until(published, &[("outcome", "ok")], WAITING).await;
    relay
        .until("bellwether.outbox.claim.age", &[], WAITING)
        .await;
    let waited = collector.seconds("bellwether-relay", "bellwether.outbox.claim.age");
    assert!(waited > f64::from(WAITING), "{waited} s in all");
    let undeliverable = [("reason", "undeliverable")];
    relay.until(published, &[("outcome", "error")], 1).await;
    for name in ["bellwether.outbox.exhausted", "bellwether.dead_letters"] {
        relay.until(name, &undeliverable, 1).await;
    }
    let lane = [("consumer", "default-normal")];
    relay
        .until("bellwether.consumer.pending", &lane, WAITING)
        .await;
    ticker.until("bellwether.outbox.pending", &[], 0).await;
    ticker
        .until("bellwether.dead", &[("kind", "execution")], 1)
        .await;

    // The deletion of what was published was lost.
    let again = "INSERT INTO outbox (execution_id, dispatch_no, queue, priority, created_at)
                 SELECT execution_id, dispatch_no, queue, priority, created_at FROM kept";
    sqlx::query(again).execute(&sql).await.unwrap();
    let duplicate = [("outcome", "duplicate")];
    relay.until(published, &duplicate, WAITING).await;
    // And the messages, too.
    let context = jetstream::new(cluster.nats.clone());
    let stream = context.get_stream(cluster.subjects.work_stream()).await;
    stream.unwrap().purge().await.unwrap();
    relay
        .until_least("bellwether.outbox.redispatched", &[], WAITING)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_schedules_fire_and_pass_and_who_leads_is_counted_by_why() {
    let Some(mut cluster) = Cluster::postgres().await else {
        return;
    };
    let collector = Collector::start().await;
    export_to(&mut cluster, &collector);
    let said = Said::by_tickers(&collector);
    let sql = cluster.sql().await;
    for (name, overlap) in [
        ("plain", Overlap::Allow),
        ("skips", Overlap::Skip),
        ("queues", Overlap::QueueOne),
        ("late", Overlap::Allow),
    ] {
        every_second(&cluster, name, overlap).await;
    }
    let _ticker = cluster.ticker(&["--lease", "3s"]);
    let planned = "SELECT count(*) FROM schedule WHERE next_at IS NOT NULL";
    until("a first plan of all", async || {
        count(&sql, planned).await == 4
    })
    .await;
    // Somebody holds a row for longer than its instants are on time.
    let mut held = sql.begin().await.unwrap();
    sqlx::query("SELECT id FROM schedule WHERE name = 'late' FOR UPDATE")
        .execute(&mut *held)
        .await
        .unwrap();
    let role = [("role", "ticker")];
    said.until("bellwether.leader", &role, 1).await;
    let renewals = "bellwether.lease.renewals";
    said.until_least(renewals, &[("outcome", "renewed")], 2)
        .await;
    said.until_least("bellwether.schedule.due", &[], 1).await;
    said.until_least("bellwether.schedule.overdue", &[], 3)
        .await;
    held.rollback().await.unwrap();
    let fires = "bellwether.fires";
    for outcome in ["fired", "skipped", "coalesced", "misfired"] {
        let labels = [
            ("outcome", outcome),
            ("job", "patient"),
            ("trigger", "every"),
        ];
        said.until_least(fires, &labels, 1).await;
    }
    said.until("bellwether.schedule.overdue", &[], 0).await;
    said.until_least("bellwether.schedule.delay", &[("queue", "default")], 2)
        .await;

    // As a restored backup does: fires that were planned are due once more, and on time however late
    // the planner looks.
    let back = "UPDATE schedule SET cursor = cursor - interval '2 s', grace_ms = 3600000,
                       next_at = next_at - interval '2 s'
                WHERE name = 'plain'";
    sqlx::query(back).execute(&sql).await.unwrap();
    said.until_least(fires, &[("outcome", "conflict")], 1).await;
    // Another one believes that it leads. With nothing to plan it is a renewal that finds it out.
    cluster
        .unregister(&["plain", "skips", "queues", "late"].map(str::to_owned))
        .await;
    let stolen =
        "UPDATE lease SET epoch = epoch + 1, term_id = gen_random_uuid(), holder = 'a thief',
                  expires_at = clock_timestamp() + interval '6 s'";
    sqlx::query(stolen).execute(&sql).await.unwrap();
    said.until(renewals, &[("outcome", "lost")], 1).await;
    said.until("bellwether.leader", &role, 0).await;
    said.until("bellwether.leader", &role, 1).await;
}

/// A build that says another time than the one before, and a pause, while nobody plans: what they
/// pass over is counted by the process that edits, a worker or a command.
#[tokio::test(flavor = "multi_thread")]
async fn instants_that_an_edit_or_a_pause_passes_over_are_counted_where_it_is_made() {
    let Some(mut cluster) = Cluster::postgres().await else {
        return;
    };
    let collector = Collector::start().await;
    export_to(&mut cluster, &collector);
    let _relay = cluster.relay();
    let _old = cluster.example("definition", "old", &[]).await;
    let begun = cluster.now().await;
    until("three instants that nobody plans", async || {
        (cluster.now().await - begun).num_milliseconds() > 3_000
    })
    .await;
    let other = [("DEFINITION_CRON", "*/2 * * * * *")];
    let _new = cluster.example("definition", "new", &other).await;
    let service = "definition";
    let said = Said {
        service,
        collector: &collector,
    };
    let edited = [("outcome", "edited"), ("trigger", "cron")];
    said.until_least("bellwether.fires", &edited, 2).await;
    let sql = cluster.sql().await;
    let ranges = "SELECT sum(count)::bigint FROM non_fire WHERE reason = 'edited'";
    let recorded: i64 = sqlx::query_scalar(ranges).fetch_one(&sql).await.unwrap();
    let counted = u32::try_from(recorded).unwrap();
    said.until("bellwether.fires", &edited, counted).await;

    // A pause, by an operator's command: its instants are counted when it ends.
    for (act, pause) in [("pause", 4_500), ("resume", 0)] {
        let mut command = cluster.role("schedules", &[act, "definition"]);
        assert_eq!(command.ended(SOON).await, Some(0), "{}", command.log());
        let begun = cluster.now().await;
        until("the time of the pause", async || {
            (cluster.now().await - begun).num_milliseconds() >= pause
        })
        .await;
    }
    let service = "bellwether-cli";
    let said = Said { service, ..said };
    said.until_least("bellwether.fires", &[("outcome", "paused")], 2)
        .await;
}

/// SQLite: calls that another process keeps waiting are failed calls as they are on Postgres.
#[tokio::test(flavor = "multi_thread")]
async fn calls_to_a_file_that_another_holds_are_counted() {
    let mut cluster = Cluster::sqlite().await;
    let collector = Collector::start().await;
    export_to(&mut cluster, &collector);
    let said = Said::by_tickers(&collector);
    let _ticker = cluster.ticker(&[]);
    said.until("bellwether.leader", &[("role", "ticker")], 1)
        .await;
    assert!(said.is("bellwether.db.errors", 0));
    let file = SqliteConnectOptions::from_str(cluster.database_url()).unwrap();
    let file = SqlitePool::connect_with(file).await.unwrap();
    let held = file.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let late = [("reason", "timeout")];
    said.until_least("bellwether.db.errors", &late, 1).await;
    let renewals = "bellwether.lease.renewals";
    said.until_least(renewals, &[("outcome", "error")], 1).await;
    held.rollback().await.unwrap();
    let renewed = [("outcome", "renewed")];
    let before = said.of(renewals, &renewed);
    until("renewals again", async || {
        said.of(renewals, &renewed) > before
    })
    .await;
}
