//! What the broker holds of work that is not to be done yet, and what it forgets of work that is.

use std::time::Duration;

use async_nats::jetstream::{self, consumer, stream::Stream};
use bellwether_client::{NewExecution, Submission};
use bellwether_schemas::state::{Reason, State};
use chrono::TimeDelta;
use futures_util::StreamExt as _;
use sqlx::PgPool;
use uuid::Uuid;

use crate::support::{Cluster, until};
use crate::{QUICK, QUICK_SESSIONS};

/// The broker's ack deadline in these tests; its default is 10 s.
const ACK_WAIT: Duration = Duration::from_millis(200);

async fn stream(cluster: &Cluster, name: &str) -> Stream {
    let context = jetstream::new(cluster.nats.clone());
    context.get_stream(name).await.unwrap()
}

/// The messages that lie in a stream.
async fn messages(cluster: &Cluster, name: &str) -> u64 {
    stream(cluster, name).await.cached_info().state.messages
}

/// Stream and consumer of the default queue's dispatches and of what is submitted to it.
fn consumers(cluster: &Cluster) -> [(String, &'static str); 2] {
    [
        (cluster.subjects.work_stream(), "default-normal"),
        (cluster.subjects.submit_stream(), "default"),
    ]
}

async fn info(cluster: &Cluster, of: &(String, &'static str)) -> consumer::Info {
    let stream = stream(cluster, &of.0).await;
    stream.consumer_info(of.1).await.unwrap()
}

/// Waits until nothing that was delivered waits for its ack.
async fn until_all_is_acked(cluster: &Cluster) {
    until("all acks", async || {
        let [work, submit] = &consumers(cluster);
        let (work, submit) = (info(cluster, work).await, info(cluster, submit).await);
        work.num_ack_pending + submit.num_ack_pending == 0
    })
    .await;
}

/// From now on the broker is impatient. Not sooner: a machine that stands still for a moment must
/// not take an ack for late.
async fn shorten_ack_wait(cluster: &Cluster) {
    for of in consumers(cluster) {
        let mut config = info(cluster, &of).await.config;
        config.ack_wait = ACK_WAIT;
        let stream = stream(cluster, &of.0).await;
        let changed = stream.update_consumer(config).await.unwrap();
        assert_eq!(changed.cached_info().config.ack_wait, ACK_WAIT);
    }
}

/// Waits until the handler of an execution has run for so many ack deadlines.
async fn until_run_for(cluster: &Cluster, id: Uuid, ack_waits: u32) {
    let since = cluster.now().await;
    until("many ack deadlines", async || {
        let ran = cluster.now().await - since;
        ran.to_std().is_ok_and(|ran| ran >= ACK_WAIT * ack_waits)
    })
    .await;
    assert_eq!(cluster.execution(id).await.state, State::Running);
}

/// Fails unless everything was delivered once and nothing is held: so many messages of WORK and of
/// SUBMIT.
async fn assert_delivered_once(cluster: &Cluster, delivered: [u64; 2]) {
    for (of, wanted) in consumers(cluster).iter().zip(delivered) {
        let info = info(cluster, of).await;
        assert_eq!(info.delivered.consumer_sequence, wanted, "{info:#?}");
        assert_eq!((info.num_ack_pending, info.num_redelivered), (0, 0));
        assert_eq!(messages(cluster, &of.0).await, 0);
    }
}

/// Celery #5935: what is due later than the broker's patience is delivered again and again.
#[tokio::test(flavor = "multi_thread")]
async fn p16_work_for_later_is_no_message_held_and_long_work_is_one_execution() {
    let Some((cluster, journal, _roles)) = Cluster::staffed(&[]).await else {
        return;
    };
    let _worker = cluster.worker("worker", &[]).await;
    let at = cluster.store.ledger().await.unwrap().now + TimeDelta::hours(2);
    let mut new = NewExecution::new("patient", journal.work(&[0]).payload());
    new.run_at = Some(at);
    cluster.client.enqueue(&new).await.unwrap();
    let submission = Submission::new("patient", journal.work(&[0]).payload()).run_at(at);
    cluster.client.submit(&submission).await.unwrap();
    let (work, gate) = journal.gated("gate");
    let [long] = cluster.enqueue(1, &work).await[..] else {
        unreachable!()
    };
    let submitted = cluster.subjects.submit_stream();
    until("the start and the record", async || {
        journal.starts() == 1 && messages(&cluster, &submitted).await == 0
    })
    .await;
    until_all_is_acked(&cluster).await;
    shorten_ack_wait(&cluster).await;
    until_run_for(&cluster, long, 20).await;
    gate.open();

    until("the end of the long one", async || {
        cluster.execution(long).await.state == State::Succeeded
    })
    .await;
    let e = cluster.execution(long).await;
    assert_eq!((e.generation, e.attempt, e.dispatch_no), (1, 1, 1));
    assert_eq!(journal.starts(), 1);
    assert_delivered_once(&cluster, [1, 1]).await;
    let sql = cluster.sql().await;
    let later: Vec<(String, i32, bool)> = sqlx::query_as(
        "SELECT state, dispatch_no, dispatched_at IS NULL FROM execution
         WHERE available_at > clock_timestamp() + interval '1 hour'",
    )
    .fetch_all(&sql)
    .await
    .unwrap();
    let undispatched = ("pending".to_owned(), 0, true);
    assert_eq!(later, [undispatched.clone(), undispatched]);
    assert_eq!(outbox(&sql).await, 0);
}

/// taskiq-nats #16: a task that takes longer than the ack deadline begins again and again.
#[tokio::test(flavor = "multi_thread")]
async fn p17_a_handler_of_thirty_ack_waits_is_one_delivery_and_one_plain_ack() {
    let Some((cluster, journal, _roles)) = Cluster::staffed(&[]).await else {
        return;
    };
    let _worker = cluster.worker("worker", &[]).await;
    let acks = format!("$JS.ACK.{}.>", cluster.subjects.work_stream());
    let mut acks = cluster.nats.subscribe(acks).await.unwrap();
    cluster.nats.flush().await.unwrap();
    let (work, gate) = journal.gated("gate");
    let [id] = cluster.enqueue(1, &work).await[..] else {
        unreachable!()
    };
    until("the start", async || journal.starts() == 1).await;
    until_all_is_acked(&cluster).await;
    shorten_ack_wait(&cluster).await;
    until_run_for(&cluster, id, 30).await;
    gate.open();
    cluster.until_all_succeeded(1).await;

    assert_eq!(cluster.execution(id).await.generation, 1);
    assert_eq!(journal.starts(), 1);
    assert_delivered_once(&cluster, [1, 0]).await;
    acks.unsubscribe().await.unwrap();
    let said: Vec<String> = acks
        .map(|ack| String::from_utf8(ack.payload.to_vec()).unwrap())
        .collect()
        .await;
    assert_eq!(said.len(), 1, "no word while it runs: {said:?}");
    assert!(["", "+ACK"].contains(&said[0].as_str()), "{said:?}");
}

/// What the broker does to a queue's dispatches.
#[derive(Debug, Clone, Copy)]
enum Harm {
    Purged,
    WithoutConsumers,
    WithoutStream,
}

async fn harm(cluster: &Cluster, harm: Harm) {
    let name = cluster.subjects.work_stream();
    let stream = stream(cluster, &name).await;
    match harm {
        Harm::Purged => {
            stream.purge().await.unwrap();
        }
        Harm::WithoutConsumers => {
            for lane in ["high", "normal", "low"] {
                let consumer = format!("default-{lane}");
                stream.delete_consumer(&consumer).await.unwrap();
            }
        }
        Harm::WithoutStream => {
            let context = jetstream::new(cluster.nats.clone());
            context.delete_stream(&name).await.unwrap();
        }
    }
}

async fn outbox(sql: &PgPool) -> i64 {
    let query = "SELECT count(*) FROM outbox";
    sqlx::query_scalar(query).fetch_one(sql).await.unwrap()
}

/// The bound of a delay that is drawn at random: nearly all are far beyond six hours.
const NINE_YEARS: Duration = Duration::from_hours(24 * 365 * 9);

/// The delay of a retry is over.
async fn make_due(sql: &PgPool, id: Uuid) {
    let now = "UPDATE execution SET available_at = clock_timestamp() WHERE id = $1";
    sqlx::query(now).bind(id).execute(sql).await.unwrap();
}

/// asynq #1051: two structures say what is in work; when one is lost, so is what it alone knew.
#[tokio::test(flavor = "multi_thread")]
async fn p12_what_runs_waits_or_retries_when_the_broker_forgets_is_reconciled() {
    const WAITING: usize = 12;
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    let journal = cluster.journal();
    let _ticker = cluster.ticker(QUICK_SESSIONS);
    let quick = "--check-every 1s --lost-every 1s --lost-after 11s";
    let mut relay = cluster.role("relay", &quick.split(' ').collect::<Vec<_>>());
    let two = ("PATIENT_MAX_CONCURRENT", "2");
    let mut worker = cluster.worker("worker", &[QUICK, two]).await;
    let mut total = 0;
    for round in [Harm::Purged, Harm::WithoutConsumers, Harm::WithoutStream] {
        let mut fails = journal.work(&[0]);
        fails.panics = 1;
        let mut new = NewExecution::new("patient", fails.payload());
        (new.policy.retry.first, new.policy.retry.cap) = (NINE_YEARS, NINE_YEARS);
        let retried = cluster.client.enqueue(&new).await.unwrap().execution_id();
        until("one to be tried again", async || {
            cluster.execution(retried).await.state == State::Retrying
        })
        .await;
        let starts = journal.starts();
        let (work, gate) = journal.gated(&format!("{round:?}"));
        let running = cluster.enqueue(2, &work).await;
        until("two that run", async || journal.starts() >= starts + 2).await;
        cluster.enqueue(WAITING, &journal.work(&[10])).await;
        until("all dispatched", async || outbox(&sql).await == 0).await;
        total += WAITING + 3;

        let held = messages(&cluster, &cluster.subjects.work_stream()).await;
        println!("{round:?} with {held} messages");
        assert!(held > 0);
        harm(&cluster, round).await;
        gate.open();
        make_due(&sql, retried).await;
        cluster.until_all_succeeded(total).await;
        for id in running {
            let story = cluster.story(id).await;
            assert_eq!(story.execution.generation, 1, "it needs no broker");
        }
    }
    journal.assert_each_ended_once(total);
    assert!(relay.is_running() && worker.is_running());
    cluster.audit_clean(&[5, 6, 7, 8]).await;
}

/// Celery #2599: a retry beyond the broker's patience is delivered every hour.
#[tokio::test(flavor = "multi_thread")]
async fn p66_a_retry_in_hours_is_a_row_and_no_message_until_it_is_due() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let sql = cluster.sql().await;
    let journal = cluster.journal();
    let mut roles = [
        cluster.ticker(&[]),
        cluster.relay(),
        cluster.worker("worker", &[]).await,
    ];
    let mut fails = journal.work(&[0]);
    fails.panics = 1;
    let mut new = NewExecution::new("patient", fails.payload());
    (new.policy.retry.first, new.policy.retry.cap) = (NINE_YEARS, NINE_YEARS);
    let id = cluster.client.enqueue(&new).await.unwrap().execution_id();
    until("its first attempt", async || {
        cluster.execution(id).await.state == State::Retrying
    })
    .await;
    let e = cluster.execution(id).await;
    let wait = e.available_at - cluster.store.ledger().await.unwrap().now;
    assert!(wait > TimeDelta::hours(6), "{wait}");

    // Others are swept, dispatched, published and run meanwhile, by others in the end.
    for round in 1..=3 {
        let mut soon = NewExecution::new("patient", fails.payload());
        soon.policy.retry.first = Duration::from_millis(1);
        cluster.client.enqueue(&soon).await.unwrap();
        until("another that was tried again", async || {
            cluster.counts().await.get(&State::Succeeded) == Some(&round)
        })
        .await;
        assert_waits_as_a_row(&cluster, &sql, id).await;
        roles[1].kill();
        roles[1] = cluster.relay();
        roles[0].kill();
        roles[0] = cluster.ticker(&[]);
    }

    make_due(&sql, id).await;
    cluster.until_all_succeeded(4).await;
    let e = cluster.execution(id).await;
    assert_eq!((e.dispatch_no, e.generation, e.attempt), (2, 2, 2));
    journal.assert_each_ended_once(4);
    assert_eq!(journal.starts(), 8);
    cluster.audit_clean(&[6, 8]).await;
}

/// One row, and nothing of it anywhere else.
async fn assert_waits_as_a_row(cluster: &Cluster, sql: &PgPool, id: Uuid) {
    let e = cluster.execution(id).await;
    assert_eq!(
        (e.state, e.reason, e.dispatch_no, e.dispatched_at),
        (State::Retrying, Some(Reason::Panic), 1, None)
    );
    let dispatches = "SELECT count(*) FROM outbox WHERE execution_id = $1";
    let query = sqlx::query_scalar(dispatches).bind(id);
    let dispatches: i64 = query.fetch_one(sql).await.unwrap();
    let held = messages(cluster, &cluster.subjects.work_stream()).await;
    assert_eq!((dispatches, held), (0, 0));
}
