//! Payloads and handlers that do harm: one recorded failure each, bounded by `max_attempts`, and
//! everything else goes on. `cli`'s fault tests have those that end their process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bellwether_client::{NewExecution, Payload};
use bellwether_schemas::header;
use bellwether_schemas::limits::ERROR_TEXT_MAX;
use bellwether_schemas::state::{Priority, Reason, State};
use bellwether_store::inspect::ExecutionView;
use bellwether_worker::{BoxError, Job, Lease};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::cluster::{Cluster, run};

on_both_stores!(
    p21_a_payload_that_does_not_decode_is_one_recorded_failure,
    p21_a_poison_message_is_bounded_and_the_others_run,
    p22_whatever_a_handler_panics_with_its_attempt_fails_and_the_worker_goes_on,
    an_error_of_five_megabytes_with_a_nul_is_told_in_short,
    forged_and_broken_messages_touch_no_row_that_they_name,
);

const DEEP: usize = 10_000;

fn json(bytes: impl Into<Vec<u8>>) -> Payload {
    Payload::json(bytes.into())
}

fn msgpack(bytes: impl Into<Vec<u8>>) -> Payload {
    Payload {
        bytes: bytes.into(),
        content_type: header::MSGPACK.to_owned(),
    }
}

/// Nested arrays, each the only element of the one around it.
fn deep_msgpack() -> Vec<u8> {
    let mut bytes = vec![0x91; DEEP];
    bytes.push(0xc0);
    bytes
}

fn poison() -> Vec<(&'static str, Payload)> {
    vec![
        ("no JSON", json("not json")),
        ("empty", json("")),
        ("truncated", json(r#"{"kind":"x","args":"#)),
        ("another type", json(r#"{"kind":"x","args":"no text"}"#)),
        ("no UTF-8", json([b'"', 0xff, 0xfe, b'"'])),
        ("a NUL", json([b'"', 0, b'"'])),
        ("deep", json("[".repeat(DEEP))),
        (
            "deep and whole",
            json(["[".repeat(DEEP), "]".repeat(DEEP)].concat()),
        ),
        ("empty", msgpack("")),
        ("a reserved byte", msgpack([0xc1])),
        ("truncated", msgpack([0xdb, 0xff, 0xff, 0xff, 0xff])),
        ("a huge array", msgpack([0xdd, 0xff, 0xff, 0xff, 0xff])),
        ("deep", msgpack(deep_msgpack())),
        ("no UTF-8", msgpack([0xa2, 0xff, 0xfe])),
    ]
}

/// Ends a job that must not be reached.
fn text_only() -> Job {
    Job::new("text", async |text: String| Ok::<_, String>(text))
}

async fn enqueue(cluster: &Cluster, job: &str, payload: Payload, max_attempts: u32) -> Uuid {
    let mut new = NewExecution::new(job, payload);
    new.policy.max_attempts = max_attempts;
    cluster.client.enqueue(&new).await.unwrap().execution_id()
}

async fn p21_a_payload_that_does_not_decode_is_one_recorded_failure(cluster: Cluster) {
    // One that takes anything: what must be stopped is the decoding itself.
    let any = Job::new("any", async |value: Value| Ok::<_, String>(value));
    let worker = run(cluster.worker().register(text_only()).register(any));
    let mut ids = Vec::new();
    for (what, payload) in poison() {
        let kind = payload.content_type.clone();
        let id = enqueue(&cluster, "text", payload.clone(), 1).await;
        ids.push((id, format!("{what} as {kind} for a text")));
        if what.starts_with("deep") {
            let id = enqueue(&cluster, "any", payload, 1).await;
            ids.push((id, format!("{what} as {kind} for any value")));
        }
    }
    for (id, what) in &ids {
        let ended = cluster.until_state(*id, State::Failed).await;
        assert_eq!(ended.reason, Some(Reason::BadPayload), "{what}: {ended:#?}");
        assert_eq!((ended.attempt, ended.generation), (1, 1), "{what}");
        assert!(!ended.error.unwrap_or_default().is_empty(), "{what}");
    }
    let sound = enqueue(&cluster, "text", json(r#""sound""#), 1).await;
    cluster.until_state(sound, State::Succeeded).await;
    cluster.until_streams_are_empty().await;
    let stats = worker.stop().await;
    assert_eq!(stats.committed["retry"], ids.len() as u64, "{stats:#?}");
    cluster.audit().await;
}

/// As a client would publish it, with attempts left: charged each time, and over after the last.
async fn p21_a_poison_message_is_bounded_and_the_others_run(cluster: Cluster) {
    let worker = run(cluster
        .worker()
        .register(text_only().max_attempts(2))
        .max_concurrent(1));
    let publish = async |key: &'static str, body: Vec<u8>| {
        let mut headers = async_nats::HeaderMap::new();
        headers.insert(header::KEY, key);
        let subject = cluster.subjects.submit("default", "text");
        let js = async_nats::jetstream::new(cluster.nats.clone());
        let publish = js.publish_with_headers(subject, headers, body.into());
        publish.await.unwrap().await.unwrap();
    };
    publish("poison", b"[[[[".to_vec()).await;
    publish("sound", br#""sound""#.to_vec()).await;
    cluster.until_count(State::Succeeded, 1).await;
    cluster.until_count(State::Failed, 1).await;
    let id = cluster.ledger.execution_of_key("text", "poison").await;
    let story = cluster.story(id.unwrap().unwrap()).await;
    assert_eq!(story.execution.reason, Some(Reason::BadPayload));
    assert!(story.execution.attempts_exhausted);
    assert_eq!(
        (story.execution.attempt, story.execution.generation),
        (2, 2)
    );
    assert_eq!(story.attempts.len(), 1);
    cluster.until_streams_are_empty().await;
    worker.stop().await;
    cluster.audit().await;
}

/// Panics when it is dropped, unless that would end the process.
#[derive(Default, Serialize, Deserialize)]
struct Bomb {
    armed: bool,
}

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(
            !self.armed || std::thread::panicking(),
            "a drop that panics"
        );
    }
}

fn panicking() -> Vec<(Job, &'static str)> {
    vec![
        (
            Job::new("literal", async || -> Result<(), String> {
                panic!("plain")
            }),
            "plain",
        ),
        (
            Job::new("formatted", async || -> Result<(), String> {
                panic!("number {} with a \0 in it", 7)
            }),
            "number 7 with a ␀ in it",
        ),
        (
            Job::new("no-text", async || -> Result<(), String> {
                std::panic::panic_any(7)
            }),
            "a value that is no text",
        ),
        (
            Job::new("bomb", async || -> Result<(), String> {
                std::panic::panic_any(Bomb { armed: true })
            }),
            "a value that is no text",
        ),
        (
            Job::new("unwrap", async || {
                let number = "x".parse::<u8>();
                Ok::<_, String>(number.unwrap())
            }),
            "called `Result::unwrap()` on an `Err` value: ParseIntError",
        ),
        (
            Job::new("payload-drop", async |bomb: Bomb| {
                Ok::<_, String>(bomb.armed)
            }),
            "a drop that panics",
        ),
        (
            Job::new("result-drop", async || {
                Ok::<_, String>(Bomb { armed: true })
            }),
            "a drop that panics",
        ),
        (
            Job::new("blocking-unwrap", async || {
                let blocking = tokio::task::spawn_blocking(|| panic!("in a pool"));
                let number: u8 = blocking.await.unwrap();
                Ok::<_, String>(number)
            }),
            "in a pool",
        ),
    ]
}

async fn p22_whatever_a_handler_panics_with_its_attempt_fails_and_the_worker_goes_on(
    cluster: Cluster,
) {
    let resumed = Job::new("blocking-resume", async || -> Result<(), String> {
        let blocking = tokio::task::spawn_blocking(|| panic!("in a pool")).await;
        std::panic::resume_unwind(blocking.unwrap_err().into_panic())
    });
    let told = Job::new("blocking-error", async || {
        tokio::task::spawn_blocking(|| panic!("in a pool")).await?;
        Ok::<_, BoxError>(())
    });
    let mut worker = cluster
        .worker()
        .register(resumed)
        .register(told)
        .register(text_only())
        .max_concurrent(1);
    for (job, _) in panicking() {
        worker = worker.register(job);
    }
    let worker = run(worker);
    let failed = async |job: &str| -> ExecutionView {
        let id = cluster.enqueue_once(job, r#"{"armed":true}"#).await;
        cluster.until_state(id, State::Failed).await
    };
    for (job, said) in panicking() {
        let ended = failed(job.name()).await;
        assert_eq!(ended.reason, Some(Reason::Panic), "{ended:#?}");
        let error = ended.error.unwrap();
        assert!(error.contains(said), "{}: {error}", job.name());
        assert!(error.contains("hostile.rs:"), "{}: {error}", job.name());
    }
    // The place was left on another thread: the message is told without one.
    let ended = failed("blocking-resume").await;
    assert_eq!(ended.reason, Some(Reason::Panic));
    assert_eq!(ended.error.as_deref(), Some("in a pool"));
    let ended = failed("blocking-error").await;
    assert_eq!(ended.reason, Some(Reason::Error));
    assert!(ended.error.unwrap().contains("in a pool"));

    let sound = cluster.enqueue_once("text", r#""sound""#).await;
    cluster.until_state(sound, State::Succeeded).await;
    let stats = worker.stop().await;
    assert_eq!((stats.running, stats.leaked), (0, 0));
    cluster.audit().await;
}

async fn an_error_of_five_megabytes_with_a_nul_is_told_in_short(cluster: Cluster) {
    fn long() -> String {
        format!("disk\0full {}", "ä".repeat(5_000_000))
    }
    let jobs = [
        Job::new("error", async || Err::<(), _>(long())),
        Job::new("fail", async || {
            Ok::<_, String>(bellwether_worker::Outcome::fail(long()))
        }),
        Job::new("panic", async || -> Result<(), String> {
            panic!("{}", long())
        }),
    ];
    let names: Vec<_> = jobs.iter().map(|job| job.name().to_owned()).collect();
    let worker = run(jobs
        .into_iter()
        .fold(cluster.worker(), bellwether_worker::Builder::register));
    for name in names {
        let id = cluster.enqueue_once(&name, "null").await;
        let ended = cluster.until_state(id, State::Failed).await;
        let said = ended.error.unwrap();
        assert!(said.starts_with("disk␀full ää"), "{name}");
        assert_eq!(said.chars().count(), ERROR_TEXT_MAX, "{name}");
    }
    let stats = worker.stop().await;
    assert_eq!(stats.unstorable, 0, "{stats:#?}");
    cluster.audit().await;
}

/// A handler that blocks the only thread of the user's runtime for three leases: the session is
/// renewed from a thread of its own, so that nobody takes the work over.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn p15_a_handler_that_blocks_its_thread_for_three_leases_keeps_its_work() {
    const TTL: Duration = Duration::from_secs(2);
    let cluster = Cluster::on_sqlite().await;
    let judged = cluster.expired_session().await;
    let hold = Arc::new(AtomicBool::new(true));
    let blocks = Arc::clone(&hold);
    let job = Job::new("blocking", move || {
        let blocks = Arc::clone(&blocks);
        async move {
            while blocks.load(Ordering::Relaxed) {
                std::thread::sleep(TTL / 100);
            }
            Ok::<_, String>(())
        }
    });
    let builder = cluster.worker().register(job).lease(Lease {
        renew_every: Duration::from_millis(300),
        fence_after: Duration::from_secs(1),
        ttl: TTL,
        cancel_after: TTL * 2,
        ..Lease::default()
    });
    let worker = builder.max_concurrent(2).build().unwrap();
    let (handle, stop) = (worker.handle(), bellwether_worker::CancellationToken::new());
    let stopped = stop.clone();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(worker.run_until(stopped))
    });
    let id = cluster.enqueue("blocking", 1).await[0];
    let runs = cluster.until_state(id, State::Running).await;
    cluster
        .until_passed(runs.claimed_at.unwrap() + TTL * 3)
        .await;
    cluster.until_lost(judged).await;
    hold.store(false, Ordering::Relaxed);
    let done = cluster.until_state(id, State::Succeeded).await;
    assert_eq!((done.generation, done.dispatch_no), (1, 1), "{done:#?}");
    let stats = handle.stats();
    assert_eq!((stats.sessions_lost, stats.fenced), (0, 0), "{stats:#?}");
    stop.cancel();
    thread.join().unwrap().unwrap();
    cluster.audit().await;
}

/// A client that may publish anything, anywhere: what it says about an execution is not believed,
/// and what else waits is run.
async fn forged_and_broken_messages_touch_no_row_that_they_name(cluster: Cluster) {
    let ledger = cluster.ledger.ledger().await.unwrap().id.to_string();
    // Nobody serves its queue: only a forged message could make it run.
    let mut named = NewExecution::new("text", json(r#""named""#));
    "elsewhere".clone_into(&mut named.queue);
    let named = cluster.client.enqueue(&named).await.unwrap().execution_id();
    let id = named.to_string();
    let worker = run(cluster.worker().register(text_only().max_attempts(1)));

    let js = async_nats::jetstream::new(cluster.nats.clone());
    let publish = async |subject: String, headers: &[(&'static str, &str)], body: &'static [u8]| {
        let mut map = async_nats::HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, *value);
        }
        let publish = js.publish_with_headers(subject, map, body.into());
        publish.await.unwrap().await.unwrap();
    };
    let (of_ledger, of_id) = ((header::LEDGER_ID, &*ledger), (header::EXECUTION_ID, &*id));
    let work = || cluster.subjects.work("default", Priority::Normal);
    publish(work(), &[], b"").await;
    publish(work(), &[], b"\xc1garbage").await;
    publish(work(), &[(header::LEDGER_ID, "no id"), of_id], b"{}").await;
    publish(work(), &[of_ledger], b"{}").await;
    publish(work(), &[of_ledger, (header::EXECUTION_ID, "no id")], b"{}").await;
    let no_number = (header::DISPATCH_NO, "-1");
    publish(work(), &[of_ledger, of_id, no_number], b"{}").await;
    let other_number = (header::DISPATCH_NO, "77");
    publish(
        work(),
        &[of_ledger, of_id, other_number],
        b"\xdd\xff\xff\xff\xff",
    )
    .await;
    // A dispatch on the submit subject is a message like any other.
    let forged = [of_ledger, of_id, other_number, (header::KEY, "forged")];
    let submit = cluster.subjects.submit("default", "text");
    publish(submit, &forged, br#""forged""#).await;

    cluster.until_count(State::Succeeded, 1).await;
    let forged = cluster.ledger.execution_of_key("text", "forged").await;
    assert_ne!(forged.unwrap().unwrap(), named);
    let sound = enqueue(&cluster, "text", json(r#""sound""#), 1).await;
    cluster.until_state(sound, State::Succeeded).await;
    worker
        .until("what names no ledger is left alone", |stats| {
            stats.foreign >= 3
        })
        .await;
    let row = cluster.execution(named).await;
    assert_eq!(
        (row.state, row.generation, row.attempt),
        (State::Pending, 0, 0),
        "{row:#?}"
    );
    let counts: Vec<_> = cluster.counts().await.into_iter().collect();
    assert_eq!(counts, [(State::Pending, 1), (State::Succeeded, 2)]);
    worker.stop().await;
    cluster.audit().await;
}
