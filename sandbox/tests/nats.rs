//! The nats-server of the sandbox, on the real program.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use async_nats::jetstream;
use bellwether_sandbox::{Error, Identity, NatsCluster, NatsOptions, NatsServer, eventually};

async fn start() -> NatsServer {
    NatsServer::start(&NatsOptions::default()).await.unwrap()
}

async fn context(server: &NatsServer) -> jetstream::Context {
    jetstream::new(async_nats::connect(server.url()).await.unwrap())
}

async fn store_one(server: &NatsServer) {
    let context = context(server).await;
    let config = jetstream::stream::Config {
        name: "KEPT".into(),
        subjects: vec!["kept.>".into()],
        ..Default::default()
    };
    context.create_stream(config).await.unwrap();
    context
        .publish("kept.one", "1".into())
        .await
        .unwrap()
        .await
        .unwrap();
}

async fn stored(server: &NatsServer) -> Option<u64> {
    let context = context(server).await;
    let stream = context.get_stream("KEPT").await.ok()?;
    Some(stream.get_info().await.unwrap().state.messages)
}

#[tokio::test]
async fn a_killed_server_comes_back_on_its_port_with_its_store() {
    let mut server = start().await;
    let (url, first) = (server.url(), server.pid().unwrap());
    store_one(&server).await;

    server.kill().unwrap();
    assert_eq!(server.pid(), None);
    assert!(async_nats::connect(server.url()).await.is_err());
    assert!(matches!(server.kill(), Err(Error::NotRunning { .. })));

    server.restart().await.unwrap();
    assert_eq!(server.url(), url);
    assert_ne!(server.pid().unwrap(), first);
    assert_eq!(stored(&server).await, Some(1));
}

#[tokio::test]
async fn a_running_server_can_be_restarted_many_times_while_a_client_redials() {
    let mut server = start().await;
    store_one(&server).await;
    let client = async_nats::connect(server.url()).await.unwrap();
    for _ in 0..3 {
        server.restart().await.unwrap();
    }
    eventually(
        "the client is connected again",
        Duration::from_mins(1),
        async || client.connection_state() == async_nats::connection::State::Connected,
    )
    .await
    .unwrap();
    assert_eq!(stored(&server).await, Some(1));
}

#[tokio::test]
async fn a_wiped_store_forgets_its_streams_and_only_a_stopped_server_can_be_wiped() {
    let mut server = start().await;
    store_one(&server).await;
    assert!(matches!(
        server.wipe_store(),
        Err(Error::StillRunning { .. })
    ));
    server.stop().await.unwrap();
    server.wipe_store().unwrap();
    server.restart().await.unwrap();
    assert_eq!(stored(&server).await, None);
}

#[tokio::test]
async fn a_paused_server_answers_nothing_until_it_goes_on() {
    let mut server = start().await;
    let context = context(&server).await;
    context.query_account().await.unwrap();
    server.pause().await.unwrap();
    let silence = tokio::time::timeout(Duration::from_millis(300), context.query_account()).await;
    assert!(silence.is_err(), "a paused server answered");
    server.resume().unwrap();
    context.query_account().await.unwrap();
}

#[tokio::test]
async fn two_servers_run_side_by_side_and_dropping_one_ends_it() {
    let (one, two) = tokio::join!(start(), start());
    assert_ne!(one.port(), two.port());
    let identity = Identity::of(one.pid().unwrap()).unwrap();
    let store = one.store_dir().to_owned();
    drop(one);
    assert!(!identity.is_running());
    assert!(!store.exists());
    async_nats::connect(two.url()).await.unwrap();
}

#[tokio::test]
async fn a_port_and_a_store_of_ones_own_are_kept_and_not_shared() {
    let folder = tempfile::tempdir().unwrap();
    let options = NatsOptions {
        store_dir: Some(folder.path().join("js")),
        port: Some(bellwether_sandbox::free_port().unwrap()),
        log_file: Some(folder.path().join("log")),
        ..Default::default()
    };
    let first = NatsServer::start(&options).await.unwrap();
    assert_eq!(Some(first.port()), options.port);
    store_one(&first).await;

    let same_store = NatsOptions {
        port: None,
        ..options.clone()
    };
    let refused = NatsServer::start(&same_store).await.unwrap_err();
    assert!(matches!(refused, Error::StoreInUse { .. }), "{refused}");
    let same_port = NatsOptions {
        store_dir: None,
        log_file: None,
        ..options.clone()
    };
    let refused = NatsServer::start(&same_port).await.unwrap_err();
    assert!(matches!(refused, Error::PortTaken { .. }), "{refused}");

    drop(first);
    let second = NatsServer::start(&options).await.unwrap();
    assert_eq!(stored(&second).await, Some(1));
    assert!(bellwether_sandbox::tail(&folder.path().join("log")).contains("Server is ready"));
}

#[tokio::test]
async fn many_large_streams_fit_whatever_the_disk_holds() {
    let server = start().await;
    let context = context(&server).await;
    for n in 0..50 {
        let config = jetstream::stream::Config {
            name: format!("LARGE_{n}"),
            subjects: vec![format!("large.{n}")],
            max_bytes: 100 << 30,
            ..Default::default()
        };
        context
            .create_stream(config)
            .await
            .expect("a stream of 100 GiB at most");
    }
}

#[tokio::test]
async fn a_server_that_cannot_start_shows_the_end_of_its_log() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("jetstream"), "in the way").unwrap();
    let options = NatsOptions {
        store_dir: Some(folder.path().to_owned()),
        ..NatsOptions::default()
    };
    let error = NatsServer::start(&options).await.unwrap_err();
    assert!(matches!(error, Error::Exited { .. }), "{error}");
    assert!(error.to_string().contains("[FTL]"), "{error}");
}

#[tokio::test]
async fn a_cluster_keeps_its_streams_when_a_member_is_killed_and_waits_without_a_quorum() {
    let mut cluster = NatsCluster::start(3).await.unwrap();
    let client = async_nats::connect(cluster.url().split(',').collect::<Vec<_>>())
        .await
        .unwrap();
    let context = jetstream::new(client);
    let config = jetstream::stream::Config {
        name: "KEPT".into(),
        subjects: vec!["kept.>".into()],
        num_replicas: 3,
        ..Default::default()
    };
    let mut stream = context.create_stream(config).await.unwrap();
    let publish = async || {
        let sent = context.publish("kept.one", "1".into()).await.unwrap();
        sent.await.is_ok()
    };
    assert!(publish().await);
    let info = stream.info().await.unwrap();
    let leader = info.cluster.clone().unwrap().leader.unwrap();
    cluster.named(&leader).unwrap().kill().unwrap();
    let minute = Duration::from_mins(1);
    eventually("a new leader", minute, &publish).await.unwrap();

    let second = cluster
        .members()
        .iter_mut()
        .find(|member| member.pid().is_some())
        .unwrap();
    second.kill().unwrap();
    assert!(!publish().await, "one of three is no quorum");
    cluster.restart_all().await.unwrap();
    eventually("a quorum", minute, publish).await.unwrap();
}
