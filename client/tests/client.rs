//! The client against a real ledger on both databases and a real broker.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::time::Duration;

use bellwether_client::{
    CancelRequested, Client, Enqueued, Error, NewExecution, NewSchedule, Payload, Policy,
    Submission, Timing, Transaction, What, enqueue_in,
};
use bellwether_outbox_relay::{Mode, StreamLimits, connect_nats, declare};
use bellwether_sandbox::shared;
use bellwether_schemas::state::State;
use bellwether_schemas::{header, subject::Subjects};
use bellwether_store::executions::{ClaimAnswer, ClaimAsk, Commit, Outcome, SubmitAsk};
use bellwether_store::sessions::NewSession;
use bellwether_store::{Options, Store, connect, migrate};
use sqlx::{Connection, PgConnection, SqliteConnection};
use std::sync::Arc;
use tokio::time::Instant;
use uuid::Uuid;

struct Ledger {
    options: Options,
    store: Arc<dyn Store>,
    client: Client,
    _folder: tempfile::TempDir,
}

async fn ledger(url: Option<String>) -> Ledger {
    let folder = tempfile::tempdir().unwrap();
    let sqlite = format!("sqlite:{}", folder.path().join("ledger.db").display());
    let mut options = Options::new(url.unwrap_or(sqlite));
    options.schema = shared::fresh_namespace();
    options.connections_max = 3;
    migrate(&options).await.unwrap();
    let store = connect(&options).await.unwrap();
    let client = Client::new("bw").unwrap().with_store(Arc::clone(&store));
    Ledger {
        options,
        store,
        client,
        _folder: folder,
    }
}

/// Both databases; Postgres is left out only when the run says so.
async fn ledgers() -> Vec<Ledger> {
    let mut all = vec![ledger(None).await];
    if let Some(url) = shared::postgres_url().await.unwrap() {
        all.push(ledger(Some(url)).await);
    }
    all
}

/// The five calls of the facade; the three that make work return its id.
#[tokio::test]
async fn r67_the_facade_has_five_calls() {
    for ledger in ledgers().await {
        let client = &ledger.client;
        let once = client
            .enqueue(&NewExecution::new("pay", Payload::json("1")))
            .await
            .unwrap();
        let first = ledger
            .store
            .execution(once.execution_id())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(
            (first.execution.job.as_str(), first.execution.state),
            ("pay", State::Pending)
        );

        let now = ledger.store.ledger().await.unwrap().now;
        let mut later = NewExecution::new("pay", Payload::json("2"));
        later.run_at = Some(now + chrono::Duration::hours(1));
        let later = client.enqueue(&later).await.unwrap().execution_id();
        let later = ledger
            .store
            .execution(later)
            .await
            .unwrap()
            .unwrap()
            .execution;
        assert!(later.dispatched_at.is_none(), "not before it is due");
        assert!(later.available_at > now + chrono::Duration::minutes(59));

        let timing = Timing::Cron {
            expr: "0 2 * * *".into(),
            zone: "Europe/Berlin".into(),
        };
        let mut schedule = NewSchedule::new("nightly", timing);
        schedule.shard_total = 3;
        let id = client.register(&schedule).await.unwrap();
        let again = client.register(&schedule).await.unwrap_err();
        assert!(matches!(again, Error::ScheduleExists { .. }), "{again}");
        let fire = client.trigger("nightly").await.unwrap();
        let shards = ledger.store.fire_results(fire).await.unwrap();
        assert_eq!(
            shards.iter().map(|s| s.shard_index).collect::<Vec<_>>(),
            [0, 1, 2]
        );

        assert_eq!(client.unregister("nightly").await.unwrap(), id);
        for unknown in [
            client.trigger("nightly").await,
            client.unregister("nightly").await,
        ] {
            let error = unknown.unwrap_err();
            assert!(matches!(error, Error::NoSuchSchedule { .. }), "{error}");
        }
        let kept = ledger.store.fire_results(fire).await.unwrap();
        assert_eq!(kept.len(), 3, "what was planned goes on");
    }
}

/// In the caller's transaction: rolled back it leaves nothing, committed it is there.
#[tokio::test]
async fn enqueue_in_follows_the_callers_transaction() {
    for ledger in ledgers().await {
        let new = NewExecution::new("pay", Payload::json("1"));
        let id = new.execution_id();
        for commit in [false, true] {
            if ledger.options.url.starts_with("sqlite:") {
                let path = ledger.options.url.trim_start_matches("sqlite:");
                let mut connection = SqliteConnection::connect(&format!("sqlite://{path}"))
                    .await
                    .unwrap();
                let mut tx = connection.begin_with("BEGIN IMMEDIATE").await.unwrap();
                let at = Transaction::Sqlite {
                    connection: &mut tx,
                };
                assert_eq!(enqueue_in(at, &new).await.unwrap().execution_id(), id);
                if commit {
                    tx.commit().await.unwrap();
                } else {
                    tx.rollback().await.unwrap();
                }
            } else {
                let mut connection = PgConnection::connect(&ledger.options.url).await.unwrap();
                let mut tx = connection.begin().await.unwrap();
                let schema = ledger.options.schema.as_str();
                let at = Transaction::Postgres {
                    connection: &mut tx,
                    schema,
                };
                assert_eq!(enqueue_in(at, &new).await.unwrap().execution_id(), id);
                let path: String = sqlx::query_scalar("SHOW search_path")
                    .fetch_one(&mut *tx)
                    .await
                    .unwrap();
                assert!(
                    !path.contains(schema),
                    "the caller's search path is put back: {path}"
                );
                if commit {
                    tx.commit().await.unwrap();
                } else {
                    tx.rollback().await.unwrap();
                }
            }
            let there = ledger.store.execution(id).await.unwrap().is_some();
            assert_eq!(there, commit, "{}", ledger.options.url);
        }
        let rows = ledger
            .store
            .claim_outbox(10, Duration::from_secs(5), &[])
            .await
            .unwrap();
        assert_eq!(rows.len(), 1, "one dispatch for the one that was committed");
    }
}

/// What an operator does, by the client: each answer says how it stands.
#[tokio::test]
async fn cancel_and_retry_say_how_it_stands() {
    for ledger in ledgers().await {
        let client = &ledger.client;
        let nobody = Uuid::nil();
        for unknown in [
            client.cancel(nobody).await.map(drop),
            client.retry(nobody).await.map(drop),
        ] {
            let error = unknown.unwrap_err();
            let named = matches!(error, Error::NoSuchExecution { id } if id == nobody);
            assert!(named, "{error}");
        }
        let new = NewExecution::new("pay", Payload::json("1"));
        let id = client.enqueue(&new).await.unwrap().execution_id();
        let error = client.retry(id).await.unwrap_err();
        assert!(error.to_string().contains("cancel it first"), "{error}");

        let cancelled = client.cancel(id).await.unwrap();
        assert_eq!(cancelled, CancelRequested::Cancelled);
        let again = client.cancel_all(&[nobody, id]).await.unwrap();
        let ended = CancelRequested::Ended(State::Cancelled);
        assert_eq!(again, [CancelRequested::NotFound, ended]);

        let retry = client.retry(id).await.unwrap();
        let row = ledger.store.execution(retry).await.unwrap().unwrap();
        assert_eq!(row.execution.retry_of, Some(id));
        assert_eq!(row.execution.operation_id, id, "the same operation");
        match client.retry(id).await.unwrap_err() {
            Error::AlreadyRetried {
                retry: first,
                state,
                ..
            } => assert_eq!((first, state), (retry, State::Pending)),
            other => panic!("{other}"),
        }
    }
}

#[tokio::test]
async fn a_key_stands_for_one_execution() {
    for ledger in ledgers().await {
        let mut new = NewExecution::new("pay", Payload::json("1"));
        new.key = Some("order-17".into());
        let first = ledger.client.enqueue(&new).await.unwrap();
        new.fire_id = bellwether_schemas::ids::fresh();
        let second = ledger.client.enqueue(&new).await.unwrap();
        assert_eq!(
            second,
            Enqueued::Exists {
                execution_id: first.execution_id()
            }
        );
        new.job = "other".into();
        let other = ledger.client.enqueue(&new).await.unwrap();
        assert!(
            matches!(other, Enqueued::Inserted { .. }),
            "a key belongs to its job"
        );
    }
}

/// `wait` ends with the outputs of all shards; unknown things and time-outs are errors.
#[tokio::test]
async fn wait_returns_the_outputs_of_all_shards() {
    for ledger in ledgers().await {
        let mut schedule = NewSchedule::new(
            "sum",
            Timing::Every {
                period_ms: 3_600_000,
                anchor: None,
            },
        );
        schedule.shard_total = 2;
        ledger.client.register(&schedule).await.unwrap();
        let fire = ledger.client.trigger("sum").await.unwrap();

        let early = ledger
            .client
            .wait(What::Fire(fire), Duration::ZERO)
            .await
            .unwrap_err();
        assert!(matches!(early, Error::WaitTimedOut { .. }), "{early}");
        let missing = ledger
            .client
            .wait(What::Fire(Uuid::nil()), Duration::ZERO)
            .await;
        assert!(matches!(missing, Err(Error::NothingToWaitFor { .. })));

        let waiting = ledger.client.clone();
        let waiting =
            tokio::spawn(async move { waiting.wait(What::Fire(fire), Duration::MAX).await });
        finish_all(ledger.store.as_ref()).await;
        let waited = waiting.await.unwrap().unwrap();
        assert!(waited.succeeded());
        let mut outputs = waited.outputs::<u32>().unwrap();
        outputs.sort_unstable();
        assert_eq!(outputs, [10, 11]);
    }
}

/// A broker that is away holds up nobody whose work is committed.
#[tokio::test]
async fn waking_the_relays_never_hangs() {
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("nats://{}", dead.local_addr().unwrap());
    drop(dead);
    let nats = async_nats::ConnectOptions::new()
        .retry_on_initial_connect()
        .client_capacity(1)
        .connect(url)
        .await
        .unwrap();
    let client = Client::new("bw").unwrap().with_nats(nats);
    let woken = async {
        for _ in 0..5 {
            client.wake().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), woken)
        .await
        .unwrap();
}

/// Submitted messages do not wait for the keys that an open transaction holds.
#[tokio::test]
async fn open_transactions_hold_up_only_their_own_keys() {
    let Some(url) = shared::postgres_url().await.unwrap() else {
        return;
    };
    let ledger = ledger(Some(url)).await;
    let store = ledger.store.as_ref();
    let session = open_session(store).await;
    let now = store.ledger().await.unwrap().now;
    let mut connection = PgConnection::connect(&ledger.options.url).await.unwrap();
    let mut tx = connection.begin().await.unwrap();
    let mut asks = vec![submit_ask("free", now)];
    for number in 0..30 {
        let key = format!("held-{number}");
        let mut new = NewExecution::new("sum", Payload::json("1"));
        new.key = Some(key.clone());
        let at = Transaction::Postgres {
            connection: &mut tx,
            schema: &ledger.options.schema,
        };
        enqueue_in(at, &new).await.unwrap();
        asks.push(submit_ask(&key, now));
    }
    let begun = Instant::now();
    let answers = store.claim_submitted(session, &asks).await.unwrap();
    let took = begun.elapsed();
    assert!(
        took < Duration::from_secs(5),
        "30 × 250 ms are not waited for: {took:?}"
    );
    assert!(matches!(answers[0], ClaimAnswer::Claimed(_)), "{answers:?}");
    assert_eq!(answers.len(), asks.len());
    let mut held = answers[1..].iter();
    assert!(
        held.all(|answer| matches!(answer, ClaimAnswer::Busy)),
        "{answers:?}"
    );
    tx.rollback().await.unwrap();
    let answers = store.claim_submitted(session, &asks).await.unwrap();
    let mut all = answers.iter();
    assert!(
        all.all(|answer| matches!(answer, ClaimAnswer::Claimed(_))),
        "{answers:?}"
    );
}

fn submit_ask(key: &str, stored_at: chrono::DateTime<chrono::Utc>) -> SubmitAsk {
    SubmitAsk {
        fire_id: bellwether_schemas::ids::fresh(),
        claim_id: bellwether_schemas::ids::token(),
        job: "sum".into(),
        queue: "default".into(),
        key: key.into(),
        payload: Payload::json("1"),
        run_at: None,
        policy: Policy::default(),
        trace: None,
        stored_at,
        own_timeout: false,
        has_handler: true,
    }
}

async fn open_session(store: &dyn Store) -> Uuid {
    let session = bellwether_schemas::ids::fresh();
    let new = NewSession {
        id: session,
        name: "test".into(),
        host: "test".into(),
        pid: 1,
        version: "0".into(),
        queues: vec!["default".into()],
        jobs: vec!["sum".into()],
        probes: Vec::new(),
        definitions: Vec::new(),
        capabilities: Vec::new(),
        max_concurrent: 10,
        lease: Duration::from_mins(1),
    };
    store.open_session(&new).await.unwrap();
    session
}

/// Claims everything that is dispatched and completes it with `10 + shard_index`.
async fn finish_all(store: &dyn Store) {
    let session = open_session(store).await;
    for row in store
        .claim_outbox(10, Duration::from_secs(5), &[])
        .await
        .unwrap()
    {
        let ask = ClaimAsk {
            execution_id: row.dispatch.execution_id,
            dispatch_no: row.dispatch.dispatch_no,
            claim_id: bellwether_schemas::ids::token(),
        };
        let answers = store.claim(session, &[ask]).await.unwrap();
        let [ClaimAnswer::Claimed(claimed)] = answers.as_slice() else {
            panic!("{answers:?}");
        };
        let output = Payload::json((10 + claimed.shard_index).to_string());
        let commit = Commit {
            execution_id: claimed.execution_id,
            claim_id: claimed.claim_id,
            generation: claimed.generation,
            started_ago: Some(Duration::ZERO),
            outcome: Outcome::Complete(output),
        };
        store.commit(&[commit]).await.unwrap();
    }
}

/// What a submission puts on the subject, and what is refused before anything is sent.
#[tokio::test]
async fn submit_publishes_the_payload_as_it_is() {
    let url = shared::nats_url().await.unwrap();
    let namespace = shared::fresh_namespace();
    let subjects = Subjects::new(&namespace).unwrap();
    let nats = connect_nats(&url, "test").await.unwrap();
    let jetstream = async_nats::jetstream::new(nats.clone());
    let queues = ["pay".to_owned()];
    let limits = StreamLimits {
        work_bytes_max: 16 << 20,
        submit_bytes_max: 16 << 20,
        ..StreamLimits::default()
    };
    declare(
        &jetstream,
        Uuid::from_u128(1),
        &subjects,
        &queues,
        Mode::Create,
        &limits,
    )
    .await
    .unwrap();
    let client = Client::new(&namespace).unwrap().with_nats(nats);

    let submission = Submission::json("pay", &serde_json::json!({"n": 1}))
        .unwrap()
        .queue("pay")
        .key("k1");
    let submitted = client.submit(&submission).await.unwrap();
    assert_eq!((submitted.key.as_str(), submitted.duplicate), ("k1", false));
    let stream = jetstream
        .get_stream(subjects.submit_stream())
        .await
        .unwrap();
    let stored = stream.get_raw_message(1).await.unwrap();
    assert_eq!(stored.subject.as_str(), subjects.submit("pay", "pay"));
    assert_eq!(&stored.payload[..], br#"{"n":1}"#);
    assert_eq!(
        stored
            .headers
            .get(header::KEY)
            .map(async_nats::HeaderValue::as_str),
        Some("k1")
    );

    let large = Submission::new("pay", Payload::json(vec![b' '; 256 * 1024 + 1]));
    let error = client.submit(&large).await.unwrap_err();
    assert!(
        matches!(error, Error::PayloadTooLarge { size } if size == 256 * 1024 + 1),
        "{error}"
    );
    let named = Submission::new("no dots.here", Payload::json("1"));
    assert!(matches!(client.submit(&named).await, Err(Error::Name(_))));
    let keyed = Submission::new("pay", Payload::json("1")).key("~1.2");
    assert!(matches!(
        client.submit(&keyed).await,
        Err(Error::BadKey { .. })
    ));
    let without = Client::new(&namespace).unwrap().submit(&submission).await;
    assert!(matches!(without, Err(Error::NeedsNats { .. })));
    let mut stream = stream;
    assert_eq!(
        stream.info().await.unwrap().state.messages,
        1,
        "nothing refused was sent"
    );
}

/// Another process holds the file: the answer comes within the patience and names the fire.
#[tokio::test]
async fn a_trigger_without_an_answer_names_its_fire() {
    let mut ledger = ledger(None).await;
    let timing = Timing::Every {
        period_ms: 3_600_000,
        anchor: None,
    };
    let schedule = NewSchedule::new("hourly", timing);
    ledger.client.register(&schedule).await.unwrap();
    ledger.options.lock_timeout = Duration::from_millis(100);
    let impatient = connect(&ledger.options).await.unwrap();
    let client = Client::new("bw").unwrap().with_store(impatient);
    let path = ledger.options.url.trim_start_matches("sqlite:").to_owned();
    let mut other = SqliteConnection::connect(&path).await.unwrap();
    sqlx::raw_sql("BEGIN IMMEDIATE")
        .execute(&mut other)
        .await
        .unwrap();
    let begin = Instant::now();
    let error = client.trigger("hourly").await.unwrap_err();
    assert!(begin.elapsed() < Duration::from_secs(20), "{error}");
    let said = error.to_string();
    let Error::TriggerUnknown { fire_id, .. } = error else {
        panic!("{said}")
    };
    assert!(said.contains(&fire_id.to_string()), "{said}");
    sqlx::raw_sql("ROLLBACK").execute(&mut other).await.unwrap();
    let fired = ledger.store.fire_results(fire_id).await.unwrap();
    assert!(fired.is_empty(), "it gave way, this time");
}
