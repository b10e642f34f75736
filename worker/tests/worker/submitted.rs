//! Messages that any NATS client publishes to the submit subject.

use std::time::Duration;

use async_nats::HeaderMap;
use bellwether_client::{Submission, What};
use bellwether_sandbox::eventually;
use bellwether_schemas::header;
use bellwether_schemas::state::State;
use bellwether_worker::{Context, Job};

use crate::cluster::{Cluster, SOON, Seen, run};

on_both_stores!(
    the_same_message_id_is_one_execution,
    a_plain_message_runs_with_the_jobs_policy,
    run_at_waits_and_what_can_never_run_is_a_dead_letter,
    an_unknown_job_is_recorded_and_runs_when_somebody_knows_it,
);

fn greet(seen: &Seen<String>) -> Job {
    let seen = seen.clone();
    Job::new("greet", move |_ctx: Context, name: Option<String>| {
        let seen = seen.clone();
        async move {
            seen.note(name.clone().unwrap_or_default());
            Ok::<_, String>(name)
        }
    })
    .max_attempts(2)
}

/// Whether the broker had it.
async fn publish(
    cluster: &Cluster,
    job: &str,
    headers: &[(&str, &str)],
    body: &'static str,
) -> bool {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.insert(*name, *value);
    }
    let js = async_nats::jetstream::new(cluster.nats.clone());
    let subject = cluster.subjects.submit("default", job);
    let sent = js.publish_with_headers(subject, map, body.into()).await;
    sent.unwrap().await.unwrap().duplicate
}

async fn the_same_message_id_is_one_execution(cluster: Cluster) {
    let seen = Seen::default();
    let worker = run(cluster.worker().register(greet(&seen)));
    let id = [(header::MSG_ID, "order-7")];
    for _ in 0..5 {
        publish(&cluster, "greet", &id, "\"Ada\"").await;
    }
    for _ in 0..3 {
        eventually("the broker's own dedupe forgets", SOON, async || {
            !publish(&cluster, "greet", &id, "\"Ada\"").await
        })
        .await
        .unwrap();
    }
    let what = What::Key {
        job: "greet".to_owned(),
        key: "order-7".to_owned(),
    };
    assert!(cluster.client.wait(what, SOON).await.unwrap().succeeded());
    cluster.until_streams_are_empty().await;
    assert_eq!(
        cluster.counts().await.into_iter().collect::<Vec<_>>(),
        [(State::Succeeded, 1)]
    );
    assert_eq!(seen.all(), ["Ada"]);
    let stats = worker.stop().await;
    assert!(stats.refused["known_key"] >= 3, "{stats:#?}");
    cluster.audit().await;
}

async fn a_plain_message_runs_with_the_jobs_policy(cluster: Cluster) {
    let seen = Seen::default();
    let worker = run(cluster.worker().register(greet(&seen)));
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    publish(
        &cluster,
        "greet",
        &[(header::TRACEPARENT, trace), (header::TIMEOUT, "9")],
        "",
    )
    .await;
    cluster.until_count(State::Succeeded, 1).await;
    let filter = bellwether_store::inspect::ExecutionFilter {
        limit: 9,
        ..Default::default()
    };
    let view = cluster.ledger.executions(&filter).await.unwrap().remove(0);
    assert_eq!(view.max_attempts, 2, "the registered job's");
    assert_eq!(view.traceparent.as_deref(), Some(trace));
    assert!(view.key.is_some_and(|key| key.starts_with('~')));
    let allowed = (view.deadline_at.unwrap() - view.claimed_at.unwrap()).num_seconds();
    assert_eq!(allowed, 11, "2 s + Bw-Timeout");
    assert_eq!(seen.all(), [""], "an empty body is null");
    worker.stop().await;
}

async fn run_at_waits_and_what_can_never_run_is_a_dead_letter(cluster: Cluster) {
    let seen = Seen::default();
    let worker = run(cluster.worker().register(greet(&seen)));
    for (headers, body) in [
        ([(header::KEY, "~1.2")], "null"),
        ([(header::RUN_AT, "tomorrow")], "null"),
        ([(header::CONTENT_TYPE, "text/plain")], "hello"),
    ] {
        publish(&cluster, "greet", &headers, body).await;
    }
    worker
        .until("dead letters", |stats| stats.dead_letters == 3)
        .await;
    cluster.until_streams_are_empty().await;
    assert!(cluster.counts().await.is_empty());

    let due = cluster.ledger.ledger().await.unwrap().now + Duration::from_secs(3);
    let later = Submission::json("greet", &"Bob").unwrap().run_at(due);
    let submitted = cluster.client.submit(&later).await.unwrap();
    worker
        .until("recorded", |stats| {
            stats.refused.get("recorded") == Some(&1)
        })
        .await;
    let waited = cluster.client.wait(&submitted, SOON).await.unwrap();
    assert!(waited.succeeded());
    let done = cluster.execution(waited.shards[0].execution_id).await;
    assert!(done.claimed_at.unwrap() >= due, "before it was due");
    assert_eq!(seen.all(), ["Bob"]);
    worker.stop().await;
    cluster.audit().await;
}

async fn an_unknown_job_is_recorded_and_runs_when_somebody_knows_it(cluster: Cluster) {
    let other = run(cluster
        .worker()
        .register(Job::new("other", async || Ok::<_, String>(()))));
    let submitted = cluster
        .client
        .submit(&Submission::json("greet", &"Eve").unwrap())
        .await
        .unwrap();
    other
        .until("recorded", |stats| {
            stats.refused.get("recorded") == Some(&1)
        })
        .await;
    cluster.until_streams_are_empty().await;
    other.stop().await;
    let seen = Seen::default();
    let worker = run(cluster.worker().register(greet(&seen)));
    assert!(
        cluster
            .client
            .wait(&submitted, SOON)
            .await
            .unwrap()
            .succeeded()
    );
    assert_eq!(seen.all(), ["Eve"]);
    worker.stop().await;
}
