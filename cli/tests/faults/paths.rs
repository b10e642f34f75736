//! Each way in, on many processes, without any harm done.

use std::collections::BTreeSet;
use std::time::Duration;

use bellwether_client::{Enqueued, NewExecution, NewSchedule, Timing, What};
use bellwether_schemas::state::{Reason, State};

use crate::support::{Cluster, Role, SOON, until};

#[tokio::test(flavor = "multi_thread")]
async fn r42_worker_started_late_still_gets_it() {
    const LATE: Duration = Duration::from_secs(3);
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let journal = cluster.journal();
    let _ticker = cluster.ticker(&[]);
    let _relay = cluster.relay();
    let [id] = cluster.enqueue(1, &journal.work(&[0])).await[..] else {
        unreachable!()
    };
    until("its dispatch", async || {
        let backlog = cluster.store.outbox_backlog().await.unwrap();
        backlog.rows == 0 && cluster.execution(id).await.dispatched_at.is_some()
    })
    .await;
    tokio::time::sleep(LATE).await;
    let waiting = cluster.execution(id).await;
    assert_eq!(
        (waiting.state, waiting.dispatch_no),
        (State::Pending, 1),
        "it waits, sent once"
    );
    let _worker = cluster.worker("late", &[]).await;
    cluster.until_all_succeeded(1).await;
    assert_eq!(journal.starts(), 1);
    assert_eq!(cluster.execution(id).await.generation, 1);
    cluster.audit_clean(&[6]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r43_no_worker_ever_ends_by_the_start_deadline() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let journal = cluster.journal();
    let _ticker = cluster.ticker(&[]);
    let _relay = cluster.relay();
    let _worker = cluster.worker("worker", &[]).await;
    // The worker is at work: what it cannot run it sees at once.
    cluster.enqueue(1, &journal.work(&[0])).await;
    cluster.until_all_succeeded(1).await;
    let impatient = |job: &str, queue: &str| {
        let mut new = NewExecution::new(job, journal.work(&[0]).payload());
        queue.clone_into(&mut new.queue);
        new.policy.start_deadline = Duration::from_secs(3);
        new
    };
    let new = [
        impatient("patient", "nobody"),
        impatient("unheard-of", "default"),
    ];
    let answers = cluster.client.enqueue_all(&new).await.unwrap();
    let ids: Vec<_> = answers.into_iter().map(Enqueued::execution_id).collect();
    cluster.until_all_ended().await;
    let nobody = cluster.execution(ids[0]).await;
    assert_eq!((nobody.state, nobody.reason), (State::Expired, None));
    let unknown = cluster.execution(ids[1]).await;
    assert_eq!(
        (unknown.state, unknown.reason),
        (State::Failed, Some(Reason::NoHandler))
    );
    for ended in [nobody, unknown] {
        assert_eq!(
            (ended.attempt, ended.generation),
            (0, 0),
            "nothing was tried"
        );
        let late = ended.ended_at.unwrap() - ended.start_deadline_at;
        println!(
            "ended {} ms after its start deadline",
            late.num_milliseconds()
        );
        assert!((0..3_000).contains(&late.num_milliseconds()), "{late}");
    }
    cluster.audit_clean(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r65_five_workers_run_each_entry_once() {
    const ENTRIES: usize = 2_000;
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let journal = cluster.journal();
    let _ticker = cluster.ticker(&[]);
    let _relay = cluster.relay();
    let mut workers = Vec::new();
    for number in 0..5 {
        let name = format!("worker-{number}");
        workers.push(
            cluster
                .worker(&name, &[("PATIENT_MAX_CONCURRENT", "4")])
                .await,
        );
    }
    let begin = std::time::Instant::now();
    for _ in 0..4 {
        cluster.enqueue(ENTRIES / 4, &journal.work(&[1])).await;
    }
    // And cron out of the box, on the same workers.
    let every = Timing::Cron {
        expr: "* * * * * *".to_owned(),
        zone: "UTC".to_owned(),
    };
    let mut cron = NewSchedule::new("cron", every);
    "patient".clone_into(&mut cron.job);
    cron.payload = journal.work(&[1]).payload();
    let schedule = cluster.client.register(&cron).await.unwrap();
    until("two fires", async || {
        cluster.store.fires(schedule, 10).await.unwrap().len() >= 2
    })
    .await;
    cluster.client.unregister("cron").await.unwrap();
    let all = ENTRIES + cluster.store.fires(schedule, 1_000).await.unwrap().len();

    cluster.until_all_succeeded(all).await;
    println!("{all} entries in {:.2} s", begin.elapsed().as_secs_f64());
    journal.assert_each_ended_once(all);
    assert_eq!(journal.starts(), all);
    let used: BTreeSet<_> = journal
        .all("start")
        .into_iter()
        .map(|note| note.pid)
        .collect();
    assert_eq!(
        used,
        workers.iter().map(Role::pid).collect(),
        "every worker took its part"
    );
    cluster.audit_clean(&[2, 5, 6, 7]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r69_one_shot_survives_the_submitter() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let journal = cluster.journal();
    let _ticker = cluster.ticker(&[]);
    let _relay = cluster.relay();
    let mut payload = journal.work(&[0]);
    payload.panics = 1;
    let payload = String::from_utf8(payload.payload().bytes).unwrap();
    // It waits for the end and is killed while it does.
    let submit = [
        "default",
        "patient",
        &payload,
        "--key",
        "left-alone",
        "--wait",
        "60",
    ];
    let mut submitter = cluster.role("submit", &submit);
    let context = async_nats::jetstream::new(cluster.nats.clone());
    let stream = context
        .get_stream_no_info(cluster.subjects.submit_stream())
        .await
        .unwrap();
    until("the message", async || {
        stream
            .get_info()
            .await
            .is_ok_and(|info| info.state.messages == 1)
    })
    .await;
    submitter.kill();
    let _worker = cluster.worker("worker", &[]).await;
    let what = What::Key {
        job: "patient".to_owned(),
        key: "left-alone".to_owned(),
    };
    let waited = cluster.client.wait(what, SOON).await.unwrap();
    assert!(waited.succeeded(), "{waited:?}");
    let id = waited.shards[0].execution_id;
    assert_eq!(cluster.execution(id).await.attempt, 2, "and is retried");
    journal.assert_each_ended_once(1);
    cluster.audit_clean(&[6]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r70_four_shards_on_three_workers() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let journal = cluster.journal();
    let _ticker = cluster.ticker(&[]);
    let _relay = cluster.relay();
    let mut workers = Vec::new();
    for name in ["one", "two", "three"] {
        workers.push(
            cluster
                .worker(name, &[("PATIENT_MAX_CONCURRENT", "2")])
                .await,
        );
    }
    let once_a_year = Timing::Cron {
        expr: "0 0 0 1 1 *".to_owned(),
        zone: "UTC".to_owned(),
    };
    let mut sharded = NewSchedule::new("sharded", once_a_year);
    "patient".clone_into(&mut sharded.job);
    sharded.shard_total = 4;
    sharded.payload = journal.work(&[1_500]).payload();
    cluster.client.register(&sharded).await.unwrap();
    let fire = cluster.client.trigger("sharded").await.unwrap();

    let waited = cluster.client.wait(What::Fire(fire), SOON).await.unwrap();
    let outputs: Vec<serde_json::Value> = waited.outputs().unwrap();
    let shards: Vec<_> = outputs
        .iter()
        .map(|output| output[1].as_u64().unwrap())
        .collect();
    assert_eq!(shards, [0, 1, 2, 3]);
    journal.assert_each_ended_once(4);
    let nodes: BTreeSet<_> = journal
        .all("start")
        .into_iter()
        .map(|note| note.pid)
        .collect();
    assert!(
        nodes.len() >= 2,
        "four shards of 1.5 s, two slots a worker: {nodes:?}"
    );
    cluster.audit_clean(&[3, 4, 6]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r31_another_partition_count_refuses_to_start() {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let answer = cluster
        .bellwether(&["ticker", "--partition-count", "64"])
        .await
        .expect(2);
    for word in ["64", "1", "partition"] {
        assert!(
            answer.stderr.contains(word),
            "no {word:?} in {}",
            answer.stderr
        );
    }
    let sql = cluster.sql().await;
    let terms: i64 = sqlx::query_scalar("SELECT count(*) FROM term")
        .fetch_one(&sql)
        .await
        .unwrap();
    assert_eq!(terms, 0, "it never led");
}
