//! What a submission answers that the broker does not take.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::time::Duration;

use bellwether_client::{Client, Error, Payload, Submission};
use bellwether_outbox_relay::{connect_nats, nats};
use bellwether_sandbox::{Launch, Process, free_port, nats_server_binary};
use bellwether_schemas::refusals::Refusals;

/// A server where `mute` may not submit, `deaf` hears no answers and `adm` may do anything.
fn strict(home: &Path) -> (Process, u16) {
    let port = free_port().unwrap();
    let config = home.join("nats.conf");
    let store = home.join("store");
    let text = format!(
        "listen: \"127.0.0.1:{port}\"\n\
         jetstream {{ store_dir: \"{}\" }}\n\
         authorization {{ users = [\n\
           {{ user: adm, password: x }}\n\
           {{ user: mute, password: x, permissions: {{ publish: {{ deny: \"bw.v1.submit.>\" }} }} }}\n\
           {{ user: deaf, password: x, permissions: {{ subscribe: {{ deny: \"_INBOX.>\" }} }} }}\n\
         ] }}\n",
        store.display()
    );
    std::fs::write(&config, text).unwrap();
    let binary = nats_server_binary(None).unwrap();
    let launch = Launch::new(binary, home.join("nats.log"));
    (launch.arg("-c").arg(&config).spawn().unwrap(), port)
}

async fn answer(client: Client) -> Error {
    let submission = Submission::new("pay", Payload::json("1")).key("k1");
    let answer = tokio::time::timeout(Duration::from_secs(20), client.submit(&submission));
    answer.await.unwrap().unwrap_err()
}

#[tokio::test]
async fn a_refusal_of_the_broker_is_no_timeout() {
    let home = tempfile::tempdir().unwrap();
    let (_server, port) = strict(home.path());
    let url = |user: &str| format!("nats://{user}:x@127.0.0.1:{port}");
    // It waits for the server to be there.
    let adm = connect_nats(&url("adm"), "test").await.unwrap();
    let bw = || Client::new("bw").unwrap();

    let error = answer(bw().with_nats(adm)).await;
    assert!(matches!(error, Error::NoStream { .. }), "{error}");
    let said = error.to_string();
    assert!(
        said.contains("bw.v1.submit") && said.contains("migrate"),
        "{said}"
    );

    let mute = bw().connect_nats(&url("mute")).await.unwrap();
    let refusals = Refusals::default();
    let deaf = nats::Options::new(url("deaf"), "test");
    let deaf = nats::connect_noting(&deaf, &refusals).await.unwrap();
    let deaf = bw().with_nats(deaf).with_refusals(refusals);
    let (mute, deaf) = tokio::join!(answer(mute), answer(deaf));
    for (error, what) in [
        (mute, "Publish to \"bw.v1.submit."),
        (deaf, "Subscription to"),
    ] {
        assert!(matches!(error, Error::NotPermitted { .. }), "{error}");
        let said = error.to_string();
        assert!(said.contains(what) && said.contains("pay/k1"), "{said}");
    }
}
