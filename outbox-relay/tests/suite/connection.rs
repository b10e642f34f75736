//! The first connection is bounded and says what to do.

use std::time::{Duration, Instant};

use bellwether_outbox_relay::connect_nats;
use bellwether_outbox_relay::nats::{self, Error, Options};
use bellwether_sandbox::{NatsOptions, NatsServer, eventually, free_port};

use crate::support::SOON;

#[tokio::test]
async fn an_unreachable_server_is_an_error_in_bounded_time() {
    let url = format!("nats://user:secret@127.0.0.1:{}", free_port().unwrap());
    let options = Options {
        patience: Duration::from_secs(1),
        ..Options::new(&url, "test")
    };
    let start = Instant::now();
    let error = nats::connect(&options).await.unwrap_err();
    assert!(start.elapsed() < options.patience * 20);
    let text = error.to_string();
    assert!(matches!(error, Error::Unreachable { .. }), "{text}");
    assert!(
        text.contains("127.0.0.1") && text.contains("nats-server -js"),
        "{text}"
    );
    assert!(!text.contains("secret"), "{text}");
    let error = connect_nats("nats://127.0.0.1:notaport", "test")
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Url { .. }), "{error}");
}

#[tokio::test]
async fn a_server_that_comes_a_little_later_is_waited_for_and_reconnects_are_endless() {
    let port = free_port().unwrap();
    let url = format!("nats://127.0.0.1:{port}");
    let connecting = tokio::spawn(async move { connect_nats(&url, "test").await });
    let options = NatsOptions {
        port: Some(port),
        ..NatsOptions::default()
    };
    let mut server = NatsServer::start(&options).await.unwrap();
    let client = connecting.await.unwrap().unwrap();
    server.kill().unwrap();
    server.restart().await.unwrap();
    eventually("a reconnect", SOON, async || client.flush().await.is_ok())
        .await
        .unwrap();
    assert!(client.server_info().port == port);
}
