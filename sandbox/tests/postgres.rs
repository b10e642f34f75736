//! The Postgres of the sandbox, on the real program. Like all tests of Postgres it is skipped only
//! under `BELLWETHER_TEST_PG=skip`.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use bellwether_sandbox::{Error, Identity, Postgres, PostgresOptions, eventually, shared};
use sqlx::{Connection, PgConnection};

async fn start() -> Option<Postgres> {
    // Asked through `shared`, which says when it skips.
    if shared::postgres_is_skipped() {
        assert_eq!(shared::postgres_url().await.unwrap(), None);
        return None;
    }
    Some(Postgres::start(&PostgresOptions::default()).await.unwrap())
}

async fn connect(server: &Postgres) -> PgConnection {
    PgConnection::connect(&server.url()).await.unwrap()
}

async fn write_one(server: &Postgres) {
    let mut connection = connect(server).await;
    sqlx::query("CREATE TABLE kept (n int)")
        .execute(&mut connection)
        .await
        .unwrap();
    sqlx::query("INSERT INTO kept VALUES (7)")
        .execute(&mut connection)
        .await
        .unwrap();
}

async fn read_one(server: &Postgres) -> i32 {
    let mut connection = connect(server).await;
    sqlx::query_scalar("SELECT n FROM kept")
        .fetch_one(&mut connection)
        .await
        .unwrap()
}

#[tokio::test]
async fn rows_survive_restart_kill_and_stop_on_the_same_port() {
    let Some(mut server) = start().await else {
        return;
    };
    let url = server.url();
    write_one(&server).await;

    let mut open = connect(&server).await;
    server.restart().await.unwrap();
    assert!(
        open.ping().await.is_err(),
        "a restart must break connections"
    );
    assert_eq!(read_one(&server).await, 7);

    let open = connect(&server).await;
    server.kill().unwrap();
    assert!(matches!(server.kill(), Err(Error::NotRunning { .. })));
    server.restart().await.unwrap();
    assert_eq!(read_one(&server).await, 7);
    drop(open);

    server.stop().await.unwrap();
    assert!(PgConnection::connect(&url).await.is_err());
    server.restart().await.unwrap();
    assert_eq!((server.url(), read_one(&server).await), (url, 7));
}

#[tokio::test]
async fn a_frozen_server_answers_nobody_old_or_new_until_it_goes_on() {
    let Some(mut server) = start().await else {
        return;
    };
    let mut open = connect(&server).await;
    let url = server.url();
    let frozen = server.freeze().await.unwrap();
    // The postmaster, what it does in the background, and the backend of the connection.
    assert!(frozen.count() > 4, "{frozen:?}");
    let brief = Duration::from_millis(300);
    let asked = tokio::time::timeout(brief, open.ping()).await;
    assert!(asked.is_err(), "a frozen backend answered");
    let asked = tokio::time::timeout(brief, PgConnection::connect(&url)).await;
    assert!(asked.is_err(), "a frozen postmaster answered");
    frozen.thaw();
    let number: i32 = sqlx::query_scalar("SELECT 7")
        .fetch_one(&mut connect(&server).await)
        .await
        .unwrap();
    assert_eq!(number, 7);
}

#[tokio::test]
async fn dropping_it_leaves_no_process_and_no_folder() {
    let Some(server) = start().await else { return };
    let folder = server.data_dir().to_owned();
    let postmaster = Identity::of(server.pid().unwrap()).unwrap();
    let mut connection = connect(&server).await;
    let backend: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    let backend = Identity::of(u32::try_from(backend).unwrap()).unwrap();
    assert!(postmaster.is_running() && backend.is_running());
    drop(server);
    assert!(!postmaster.is_running());
    eventually("the backend is gone", Duration::from_secs(5), async || {
        !backend.is_running()
    })
    .await
    .unwrap();
    assert!(!folder.exists());
}

#[tokio::test]
async fn settings_of_ones_own_win_and_a_taken_port_is_refused() {
    let Some(first) = start().await else { return };
    let options = PostgresOptions {
        settings: vec![("max_connections".into(), "17".into())],
        ..PostgresOptions::default()
    };
    let second = Postgres::start(&options).await.unwrap();
    let mut connection = connect(&second).await;
    let found: String = sqlx::query_scalar("SHOW max_connections")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(found, "17");

    let same_port = PostgresOptions {
        port: Some(first.port()),
        ..PostgresOptions::default()
    };
    let refused = Postgres::start(&same_port).await.unwrap_err();
    assert!(matches!(refused, Error::PortTaken { .. }), "{refused}");
}
