//! One process, a SQLite file and a child nats-server: nothing else.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bellwether_client::{NewExecution, Payload, What};
use bellwether_embedded::{Builder, ChildNats, Embedded, Error};
use bellwether_outbox_relay as relay;
use bellwether_sandbox::{Identity, NatsServer, eventually, shared};
use bellwether_worker::{Context, Intake, Job, Worker};
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_mins(1);

/// A job that fires every second and counts, and one that adds.
fn worker(ticks: &Arc<AtomicU32>) -> bellwether_worker::Builder {
    let ticks = Arc::clone(ticks);
    let tick = Job::new("tick", move |_ctx: Context| {
        ticks.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, std::io::Error>(()) }
    });
    let add = Job::new("add", async |_ctx: Context, (a, b): (i64, i64)| {
        Ok::<_, std::io::Error>(a + b)
    });
    Worker::builder()
        .register(tick.every(Duration::from_secs(1)))
        .register(add)
}

fn system(folder: &Path, ticks: &Arc<AtomicU32>) -> Builder {
    Embedded::builder().folder(folder).worker(worker(ticks))
}

fn addition(a: i64, b: i64) -> NewExecution {
    NewExecution::new("add", Payload::json(format!("[{a}, {b}]")))
}

async fn ticked(ticks: &AtomicU32, more: u32) {
    let wanted = ticks.load(Ordering::Relaxed) + more;
    let what = format!("tick {wanted}");
    let reached = async || ticks.load(Ordering::Relaxed) >= wanted;
    eventually(&what, PATIENCE, reached).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn r64_everything_runs_in_one_process_on_sqlite() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("data");
    let ticks = Arc::new(AtomicU32::new(0));

    let running = system(&folder, &ticks).start().await.unwrap();
    let first = running.client().enqueue(&addition(2, 3)).await.unwrap();
    let waited = running
        .client()
        .wait(What::Execution(first.execution_id()), PATIENCE)
        .await
        .unwrap();
    assert_eq!(waited.outputs::<i64>().unwrap(), [5]);
    ticked(&ticks, 2).await;

    // The folder is one process's; the second is told whose.
    let refused = system(&folder, &ticks).start().await.unwrap_err();
    let ours = std::process::id().to_string();
    assert!(
        matches!(&refused, Error::FolderInUse { owner, .. } if *owner == ours),
        "{refused}"
    );

    // Asked for before the end, due after it.
    let mut later = addition(20, 22);
    later.run_at = Some(ledger_now(&running).await + Duration::from_secs(3));
    let later = running.client().enqueue(&later).await.unwrap();
    let server = Identity::read(&folder.join("nats/nats-server.pid"))
        .unwrap()
        .unwrap();
    assert!(server.is_running());
    let nats_url = running.nats_url().to_owned();
    running.shutdown().await.unwrap();
    assert!(!server.is_running(), "the child ends with the system");

    let running = system(&folder, &ticks).start().await.unwrap();
    assert_eq!(running.nats_url(), nats_url, "the port is kept");
    let ids = [first.execution_id(), later.execution_id()];
    let mut outputs = Vec::new();
    for id in ids {
        let waited = running.client().wait(What::Execution(id), PATIENCE).await;
        outputs.extend(waited.unwrap().outputs::<i64>().unwrap());
    }
    assert_eq!(outputs, [5, 42]);
    ticked(&ticks, 2).await;
    running.shutdown().await.unwrap();

    // What the command line would find.
    let config = std::fs::read_to_string(folder.join("bellwether.toml")).unwrap();
    assert!(config.contains("ledger.db"), "{config}");
}

async fn ledger_now(running: &bellwether_embedded::Running) -> chrono::DateTime<chrono::Utc> {
    let options = bellwether_worker::store::Options::new(running.database_url());
    let store = bellwether_worker::store::connect(&options).await.unwrap();
    let now = store.ledger().await.unwrap().now;
    store.close().await;
    now
}

/// What the relay is told is declared, and the worker needs not be told: a message may be held for
/// longer than the default of 10 s.
#[tokio::test(flavor = "multi_thread")]
async fn one_ack_wait_is_in_force_for_all_parts() {
    let home = tempfile::tempdir().unwrap();
    let ticks = Arc::new(AtomicU32::new(0));
    let mut relay = relay::Options::default();
    relay.streams.ack_wait = Duration::from_mins(1);
    relay.lost_after = Duration::from_mins(2);
    let intake = Intake {
        unclaimed_max: Some(Duration::from_secs(40)),
        ..Intake::default()
    };
    let builder = system(home.path(), &ticks).relay(relay);
    let running = builder.worker(worker(&ticks).intake(intake)).start().await;
    let running = running.unwrap();
    ticked(&ticks, 2).await;
    let nats = relay::connect_nats(running.nats_url(), "test").await;
    let js = async_nats::jetstream::new(nats.unwrap());
    for (stream, consumer) in [("BW_WORK", "default-normal"), ("BW_SUBMIT", "default")] {
        let stream = js.get_stream_no_info(stream).await.unwrap();
        let info = stream.consumer_info(consumer).await.unwrap();
        assert_eq!(info.config.ack_wait, Duration::from_mins(1), "{consumer}");
    }
    running.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_is_killed_comes_back_and_the_work_goes_on() {
    let home = tempfile::tempdir().unwrap();
    let ticks = Arc::new(AtomicU32::new(0));
    let shutdown = CancellationToken::new();
    let builder = system(home.path(), &ticks);
    let run = tokio::spawn(builder.run_until(shutdown.clone()));
    ticked(&ticks, 1).await;
    let pid_file = home.path().join("nats/nats-server.pid");
    let before = Identity::read(&pid_file).unwrap().unwrap();
    let killed = std::process::Command::new("kill")
        .args(["-KILL", &before.pid().to_string()])
        .status();
    assert!(killed.unwrap().success());
    let again = async || {
        let now = Identity::read(&pid_file).ok().flatten();
        now.is_some_and(|now| now.pid() != before.pid() && now.is_running())
    };
    eventually("another nats-server", PATIENCE, again)
        .await
        .unwrap();
    ticked(&ticks, 2).await;
    shutdown.cancel();
    run.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_said_with_its_remedy() {
    let home = tempfile::tempdir().unwrap();
    let ticks = Arc::new(AtomicU32::new(0));
    let error = Embedded::builder().folder(home.path()).start().await;
    assert!(error.unwrap_err().to_string().contains(".worker("));

    let child = ChildNats::default().binary("/no/such/nats-server");
    let error = system(home.path(), &ticks).child_nats(child).start().await;
    let said = error.unwrap_err().to_string();
    for part in ["/no/such/nats-server", "NATS_SERVER", "PATH", ".nats(url)"] {
        assert!(said.contains(part), "{said}");
    }

    // An external broker with the streams of another ledger.
    let server = NatsServer::start(&bellwether_sandbox::NatsOptions::default())
        .await
        .unwrap();
    let (one, two) = (home.path().join("one"), home.path().join("two"));
    let first = system(&one, &ticks)
        .nats(server.url())
        .start()
        .await
        .unwrap();
    let error = system(&two, &ticks).nats(server.url()).start().await;
    let said = error.unwrap_err().to_string();
    assert!(said.contains("ledger"), "{said}");
    first.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_takes_long_is_given_up_when_asked_to_stop() {
    let home = tempfile::tempdir().unwrap();
    let ticks = Arc::new(AtomicU32::new(0));
    let shutdown = CancellationToken::new();
    // Nobody answers there, which is waited for.
    let builder = system(home.path(), &ticks).nats("nats://u:s3cret@127.0.0.1:1");
    let shown = format!("{builder:?}");
    assert!(!shown.contains("s3cret"), "{shown}");
    let run = tokio::spawn(builder.run_until(shutdown.clone()));
    let ledger = home.path().join("ledger.db");
    eventually("a start", PATIENCE, async || ledger.exists())
        .await
        .unwrap();
    shutdown.cancel();
    let ended = tokio::time::timeout(PATIENCE, run).await;
    ended.unwrap().unwrap().unwrap();
}

/// On Postgres others may use the schema: it is changed only when that was asked for.
#[tokio::test(flavor = "multi_thread")]
async fn postgres_is_migrated_only_when_asked() {
    let Some(url) = shared::postgres_url().await.unwrap() else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let ticks = Arc::new(AtomicU32::new(0));
    let mut options = bellwether_worker::store::Options::new(url);
    options.schema = shared::fresh_namespace();
    options.connections_max = 3;
    let builder = system(home.path(), &ticks).database(options);
    let error = builder.clone().start().await;
    let said = error.unwrap_err().to_string();
    assert!(said.contains("bellwether migrate"), "{said}");

    let running = builder.migrate(true).start().await.unwrap();
    let asked = running.client().enqueue(&addition(1, 1)).await.unwrap();
    let ended = What::Execution(asked.execution_id());
    let waited = running.client().wait(ended, PATIENCE).await.unwrap();
    assert_eq!(waited.outputs::<i64>().unwrap(), [2]);
    running.shutdown().await.unwrap();
    let config = home.path().join("bellwether.toml");
    assert!(
        !config.exists(),
        "no address with a password is written down"
    );
}
