//! What no log line shows, at no level: who connects to the broker, and with what password.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bellwether_client::Client;
use bellwether_outbox_relay::nats;
use bellwether_sandbox::{Launch, Process, eventually, free_port, nats_server_binary};
use bellwether_store::{Options, migrate};
use bellwether_worker::{CancellationToken, Job, Worker};
use tracing_subscriber::filter::LevelFilter;

const SECRET: &str = "S3NATS";
const SOON: Duration = Duration::from_secs(30);

/// Everything that was logged.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A server that asks for a password, and its address with the right one.
fn guarded(home: &Path) -> (Process, String) {
    let port = free_port().unwrap();
    let config = home.join("nats.conf");
    let store = home.join("store");
    let text = format!(
        "listen: \"127.0.0.1:{port}\"\n\
         jetstream {{ store_dir: \"{}\" }}\n\
         authorization {{ user: adm, password: {SECRET} }}\n",
        store.display()
    );
    std::fs::write(&config, text).unwrap();
    let binary = nats_server_binary(None).unwrap();
    let launch = Launch::new(binary, home.join("nats.log"));
    let server = launch.arg("-c").arg(&config).spawn().unwrap();
    (server, format!("nats://adm:{SECRET}@127.0.0.1:{port}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_log_line_shows_the_password_of_the_broker() {
    let lines = Lines::default();
    let writer = lines.clone();
    tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .init();
    let home = tempfile::tempdir().unwrap();
    let (_server, url) = guarded(home.path());

    // Each of the four ways in; each is let in, so each has handed the password over.
    let relay = nats::connect(&nats::Options::new(&url, "relay")).await;
    relay.unwrap().flush().await.unwrap();
    let ticker = nats::connect_later(&nats::Options::new(&url, "ticker")).await;
    let ticker = ticker.unwrap();
    eventually("the ticker's connection", SOON, async || {
        ticker.flush().await.is_ok()
    })
    .await
    .unwrap();
    let client = Client::new("bw").unwrap().connect_nats(&url).await.unwrap();
    client.wake().await;
    let database = Options::new(format!("sqlite:{}", home.path().join("l.db").display()));
    migrate(&database).await.unwrap();
    let job = Job::new("nothing", async || Ok::<_, String>(()));
    let builder = Worker::builder()
        .database(database)
        .nats(url.as_str())
        .register(job);
    let worker = builder.build().unwrap();
    let stop = CancellationToken::new();
    let running = tokio::spawn(worker.run_until(stop.clone()));
    eventually("the worker's connection", SOON, async || {
        lines.text().contains("NATS connected")
    })
    .await
    .unwrap();
    stop.cancel();
    running.await.unwrap().unwrap();

    let wrong = nats::connect(&nats::Options::new(url.replace("adm", "eve"), "eve")).await;
    let refused = wrong.unwrap_err().to_string();
    assert!(refused.contains("eve:***@"), "{refused}");

    let logged = lines.text();
    let attempts = logged.matches("attempting connection").count();
    assert!(
        attempts >= 5,
        "the client library logs its addresses: {attempts}"
    );
    let shown: Vec<_> = logged
        .lines()
        .filter(|line| line.contains(SECRET))
        .collect();
    assert!(shown.is_empty() && !refused.contains(SECRET), "{shown:#?}");
}
