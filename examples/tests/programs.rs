//! The examples do what they say, once, on real servers.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::time::Duration;

use bellwether_client::Submission;
use bellwether_embedded::Embedded;
use bellwether_sandbox::{Launch, Process, Signal, eventually, shared};
use bellwether_store::inspect::ExecutionFilter;
use bellwether_store::{Options, Store};
use bellwether_worker::{Context, Job, Worker};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(40);

fn launch(program: &str, home: &Path) -> Launch {
    let mut launch = Launch::new(program, home.join("log")).current_dir(home);
    for name in ["DATABASE_URL", "DATABASE_SCHEMA", "NATS_URL", "NAMESPACE"] {
        launch = launch.env_remove(format!("BELLWETHER_{name}"));
    }
    let nats_server = bellwether_sandbox::nats_server_binary(None).unwrap();
    launch.env("NATS_SERVER", nats_server)
}

/// Waits for a line that begins so; answers its rest.
async fn line(process: &mut Process, begins: &str) -> String {
    let path = process.log().to_owned();
    let find = || {
        let log = std::fs::read_to_string(&path).unwrap_or_default();
        // Only a line that is written to its end.
        let whole = log.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let rest = whole.lines().find_map(|line| line.strip_prefix(begins));
        rest.map(str::to_owned)
    };
    let mut over = || find().is_some() || process.try_wait().unwrap().is_some();
    eventually(begins, PATIENCE, || std::future::ready(over()))
        .await
        .ok();
    find().unwrap_or_else(|| panic!("no {begins:?} in:\n{}", process.log_tail()))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_example_runs_and_stops() {
    let home = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_embedded");
    let mut process = launch(program, home.path()).spawn().unwrap();
    line(&mut process, "hello, flock").await;
    line(&mut process, "tidied up for ").await;
    let status = process.end(Signal::INT, PATIENCE).await.unwrap();
    assert!(status.success(), "{status}: {}", process.log_tail());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_web_service_writes_its_row_and_the_job_together() {
    let Some(url) = shared::postgres_url().await.unwrap() else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let mut options = Options::new(url);
    options.schema = shared::fresh_namespace();
    options.connections_max = 2;
    bellwether_store::migrate(&options).await.unwrap();
    let store = bellwether_store::connect(&options).await.unwrap();

    let mut service = launch(env!("CARGO_BIN_EXE_axum_enqueue"), home.path())
        .env("BELLWETHER_DATABASE_URL", &options.url)
        .env("BELLWETHER_DATABASE_SCHEMA", &options.schema)
        .env("SHOP_ADDRESS", "127.0.0.1:0")
        .spawn()
        .unwrap();
    let address = line(&mut service, "listening on ").await;

    let answer = post(&address, r#"{"account": "A-1", "cents": 1250}"#).await;
    assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
    let order = answer.trim_end().rsplit(' ').next().unwrap();
    let key = format!("order-{order}");
    let execution = store.execution_of_key("pay", &key).await.unwrap();
    assert!(execution.is_some(), "{key}");

    // The service's own rule refuses the row: no job either.
    let answer = post(&address, r#"{"account": "A-1", "cents": -1}"#).await;
    assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
    assert_eq!(payments(store.as_ref()).await, 1);
}

async fn payments(store: &dyn Store) -> usize {
    let filter = ExecutionFilter {
        job: Some("pay".to_owned()),
        limit: 10,
        ..ExecutionFilter::default()
    };
    store.executions(&filter).await.unwrap().len()
}

async fn post(address: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "POST /orders HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn a_booking_and_the_end_of_its_execution_are_one_transaction() {
    let home = tempfile::tempdir().unwrap();
    let idle = Job::new("idle", async |_ctx: Context| Ok::<_, std::io::Error>(())).queue("idle");
    let system = Embedded::builder()
        .folder(home.path().join("data"))
        .worker(Worker::builder().register(idle));
    let running = system.start().await.unwrap();

    let mut worker = launch(env!("CARGO_BIN_EXE_transactional_completion"), home.path())
        .env("BELLWETHER_DATABASE_URL", running.database_url())
        .env("BELLWETHER_NATS_URL", running.nats_url())
        .spawn()
        .unwrap();
    let mut balances = Vec::new();
    for cents in [1_250, 50] {
        let booking = json!({ "account": "A-1", "cents": cents });
        let submission = Submission::json("book", &booking).unwrap();
        let submitted = running.client().submit(&submission).await.unwrap();
        let ended = running.client().wait(&submitted, PATIENCE).await;
        let ended = ended.unwrap_or_else(|error| panic!("{error}:\n{}", worker.log_tail()));
        balances.extend(ended.outputs::<i64>().unwrap());
    }
    assert_eq!(balances, [1_250, 1_300]);
    let status = worker.end(Signal::TERM, PATIENCE).await.unwrap();
    assert!(status.success(), "{status}: {}", worker.log_tail());
    running.shutdown().await.unwrap();
}
