//! What handlers say, and what the ledger makes of it.

use std::time::Duration;

use bellwether_client::{NewExecution, Payload, RetryPolicy, Submission};
use bellwether_sandbox::eventually;
use bellwether_schemas::limits::OUTPUT_MAX;
use bellwether_schemas::state::{Reason, State};
use bellwether_worker::{Context, Job, Outcome};
use serde::{Deserialize, Serialize};

use crate::cluster::{Cluster, SOON, Seen, run};

on_both_stores!(
    every_outcome_reaches_its_state,
    r82_four_identities_are_told_apart,
    r113_a_panic_ends_its_attempt_and_nothing_else,
    r71_a_shard_that_fails_retries_alone,
    a_timeout_cancels_the_handler_and_is_charged,
    a_snooze_is_not_charged,
    messagepack_in_messagepack_out,
    the_delay_before_another_attempt_is_that_of_the_pinned_policy,
);

#[derive(Serialize, Deserialize)]
struct Order {
    number: u32,
}

fn jobs() -> Vec<Job> {
    vec![
        Job::new("complete", async || Outcome::complete("done")),
        Job::new("cancel", async || {
            Ok::<_, String>(Outcome::cancel("not needed"))
        }),
        Job::new("fail", async || {
            Ok::<_, String>(Outcome::fail("no such region"))
        }),
        Job::new("error", async || Err::<(), _>("disk full")),
        Job::new("panic", async || -> Result<(), String> {
            panic!("boom {}", 7)
        }),
        Job::new("typed", async |order: Order| Ok::<_, String>(order.number)),
        Job::new("large", async || Ok::<_, String>("x".repeat(OUTPUT_MAX))),
    ]
}

async fn every_outcome_reaches_its_state(cluster: Cluster) {
    let worker = jobs()
        .into_iter()
        .fold(cluster.worker(), bellwether_worker::Builder::register);
    let worker = run(worker);
    let expected = [
        ("complete", "null", State::Succeeded, None, None),
        (
            "cancel",
            "null",
            State::Cancelled,
            Some(Reason::Cancelled),
            Some("not needed"),
        ),
        (
            "fail",
            "null",
            State::Failed,
            Some(Reason::Rejected),
            Some("no such region"),
        ),
        (
            "error",
            "null",
            State::Failed,
            Some(Reason::Error),
            Some("disk full"),
        ),
        (
            "panic",
            "null",
            State::Failed,
            Some(Reason::Panic),
            Some("boom 7"),
        ),
        ("typed", r#"{"number":7}"#, State::Succeeded, None, None),
        (
            "typed",
            r#"{"number":"x"}"#,
            State::Failed,
            Some(Reason::BadPayload),
            Some("invalid type"),
        ),
        (
            "typed",
            "{",
            State::Failed,
            Some(Reason::BadPayload),
            Some("EOF"),
        ),
        (
            "large",
            "null",
            State::Failed,
            Some(Reason::Error),
            Some("larger than 262144"),
        ),
    ];
    for (job, payload, state, reason, error) in expected {
        let id = cluster.enqueue_once(job, payload).await;
        let ended = cluster.until_state(id, state).await;
        assert_eq!(ended.reason, reason, "{job} {payload}");
        assert_eq!(ended.attempt, 1, "{job} {payload}");
        let said = ended.error.unwrap_or_default();
        assert!(
            said.contains(error.unwrap_or_default()),
            "{job} {payload}: {said}"
        );
    }
    let stats = worker.stop().await;
    assert_eq!(stats.committed["retry"], 5, "{stats:#?}");
    cluster.audit().await;
}

async fn r82_four_identities_are_told_apart(cluster: Cluster) {
    let seen = Seen::default();
    let job = {
        let seen = seen.clone();
        Job::new("twice", move |ctx: Context| {
            let seen = seen.clone();
            async move {
                seen.note(ctx.clone());
                if ctx.attempt() == 1 {
                    Err("once more")
                } else {
                    Ok(())
                }
            }
        })
    };
    let worker = run(cluster.worker().register(job));
    let id = cluster.enqueue("twice", 1).await[0];
    cluster.until_state(id, State::Succeeded).await;
    let seen = seen.all();
    let [first, second] = seen.as_slice() else {
        panic!("{seen:#?}")
    };
    assert_eq!(first.job(), second.job());
    assert_eq!(first.fire_id(), second.fire_id(), "one fire, many attempts");
    assert_eq!(
        first.operation_id(),
        second.operation_id(),
        "one business operation"
    );
    assert_eq!(
        (first.generation(), second.generation()),
        (1, 2),
        "two attempts"
    );
    worker.stop().await;
}

async fn r113_a_panic_ends_its_attempt_and_nothing_else(cluster: Cluster) {
    let job = Job::new("fragile", async |ctx: Context, panics: bool| {
        assert!(!(panics && ctx.attempt() == 1), "boom");
        Ok::<_, String>(())
    });
    let worker = run(cluster.worker().register(job).max_concurrent(1));
    let mut ids = Vec::new();
    for panics in ["true", "false", "true", "false"] {
        let new = NewExecution::new("fragile", Payload::json(panics));
        ids.push(cluster.client.enqueue(&new).await.unwrap().execution_id());
    }
    cluster.until_count(State::Succeeded, 4).await;
    let attempts: Vec<_> = {
        let mut attempts = Vec::new();
        for id in ids {
            attempts.push(cluster.execution(id).await.attempt);
        }
        attempts
    };
    assert_eq!(attempts, [2, 1, 2, 1]);
    worker.stop().await;
    cluster.audit().await;
}

async fn r71_a_shard_that_fails_retries_alone(cluster: Cluster) {
    let seen = Seen::default();
    let job = {
        let seen = seen.clone();
        Job::new("sharded", move |ctx: Context| {
            let seen = seen.clone();
            async move {
                seen.note((ctx.shard_index(), ctx.attempt()));
                if ctx.shard_index() == 2 && ctx.attempt() < 3 {
                    return Err("not yet");
                }
                Ok(ctx.operation_id())
            }
        })
        .cron("0 0 1 1 *", "UTC")
        .shards(3)
    };
    let worker = run(cluster.worker().register(job));
    bellwether_sandbox::eventually("the schedule", crate::cluster::SOON, async || {
        !cluster.ledger.schedules().await.unwrap().is_empty()
    })
    .await
    .unwrap();
    let fire = cluster.client.trigger("sharded").await.unwrap();
    let waited = cluster
        .client
        .wait(bellwether_client::What::Fire(fire), crate::cluster::SOON)
        .await
        .unwrap();
    assert!(waited.succeeded());
    let mut ran = seen.all();
    ran.sort_unstable();
    assert_eq!(ran, [(0, 1), (1, 1), (2, 1), (2, 2), (2, 3)]);
    let story = cluster.story(waited.shards[2].execution_id).await;
    assert_eq!(story.attempts.len(), 2, "superseded attempts are kept");
    worker.stop().await;
    cluster.audit().await;
}

async fn a_timeout_cancels_the_handler_and_is_charged(cluster: Cluster) {
    let seen = Seen::default();
    let job = {
        let seen = seen.clone();
        Job::new("slow", move |ctx: Context| {
            let seen = seen.clone();
            async move {
                ctx.cancelled().await;
                seen.note(ctx.remaining());
                Err::<(), _>("interrupted")
            }
        })
    };
    let worker = run(cluster.worker().register(job));
    let mut new = NewExecution::new("slow", Payload::json("null"));
    new.policy.timeout = Duration::from_secs(1);
    new.policy.max_attempts = 1;
    let id = cluster.client.enqueue(&new).await.unwrap().execution_id();
    let ended = cluster.until_state(id, State::Failed).await;
    assert_eq!(ended.reason, Some(Reason::Timeout), "{ended:#?}");
    assert!(ended.attempts_exhausted);
    assert_eq!(seen.all(), [Duration::ZERO]);
    let stats = worker.stop().await;
    assert_eq!(
        stats.committed["retry"], 1,
        "the worker said so, not the sweep"
    );
    cluster.audit().await;
}

async fn a_snooze_is_not_charged(cluster: Cluster) {
    let job = Job::new("snooze", async |ctx: Context| {
        let outcome = if ctx.generation() < 3 {
            Outcome::snooze(Duration::ZERO)
        } else {
            Outcome::done()
        };
        Ok::<_, String>(outcome)
    });
    let worker = run(cluster.worker().register(job));
    let id = cluster.enqueue_once("snooze", "null").await;
    let done = cluster.until_state(id, State::Succeeded).await;
    assert_eq!((done.attempt, done.generation), (1, 3));
    worker.stop().await;
    cluster.audit().await;
}

async fn messagepack_in_messagepack_out(cluster: Cluster) {
    let job = Job::new("packed", async |order: Order| {
        Ok::<_, String>(Order {
            number: order.number + 1,
        })
    });
    let worker = run(cluster.worker().register(job));
    let bytes = rmp_serde::to_vec_named(&Order { number: 41 }).unwrap();
    let content_type = bellwether_schemas::header::MSGPACK.to_owned();
    let new = NewExecution::new(
        "packed",
        Payload {
            bytes,
            content_type,
        },
    );
    let id = cluster.client.enqueue(&new).await.unwrap().execution_id();
    cluster.until_state(id, State::Succeeded).await;
    let output = cluster.story(id).await.output.unwrap();
    assert_eq!(output.content_type, bellwether_schemas::header::MSGPACK);
    assert_eq!(
        rmp_serde::from_slice::<Order>(&output.bytes)
            .unwrap()
            .number,
        42
    );
    worker.stop().await;
}

async fn the_delay_before_another_attempt_is_that_of_the_pinned_policy(cluster: Cluster) {
    let policy = |hours| RetryPolicy {
        first: Duration::from_hours(hours),
        cap: Duration::from_hours(hours),
    };
    let of_job = Job::new("moody", async || Err::<(), _>("not today")).retry(policy(3));
    let worker = run(cluster.worker().register(of_job).retry_seed(1));
    let mut new = NewExecution::new("moody", Payload::json("null"));
    new.policy.retry = policy(7);
    let enqueued = cluster.client.enqueue(&new).await.unwrap().execution_id();
    let submission = Submission::new("moody", Payload::json("null")).key("k");
    let client = cluster.client.clone().with_nats(cluster.nats.clone());
    let key = client.submit(&submission).await.unwrap().key;
    let recorded = async || {
        let found = cluster.ledger.execution_of_key("moody", &key).await;
        found.unwrap()
    };
    eventually("the submission is claimed", SOON, async || {
        recorded().await.is_some()
    })
    .await
    .unwrap();
    let submitted = recorded().await.unwrap();
    for (id, policy) in [(enqueued, policy(7)), (submitted, policy(3))] {
        let waits = cluster.until_state(id, State::Retrying).await;
        let delay = waits.available_at - waits.attempt_ended_at.unwrap();
        let expected = policy.delays(1).next().unwrap();
        assert!(expected > Duration::from_hours(1), "{expected:?}");
        let off = delay.to_std().unwrap().abs_diff(expected);
        assert!(off < Duration::from_secs(1), "{delay} is not {expected:?}");
    }
    worker.stop().await;
    cluster.audit().await;
}
