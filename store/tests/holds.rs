//! Who keeps a database from cleaning up is found, on a server of its own: a hold is the whole
//! database's, and other tests have transactions, too.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use bellwether_sandbox::{Postgres, PostgresOptions, eventually, shared};
use bellwether_store::pulse::{Hold, Holder};
use bellwether_store::{Options, Store};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};

const READER: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ";

/// Connections of an application of that name.
async fn named(server: &Postgres, application: &str) -> PgPool {
    let options: PgConnectOptions = server.url().parse().unwrap();
    PgPoolOptions::new()
        .max_connections(3)
        .connect_with(options.application_name(application))
        .await
        .unwrap()
}

/// Waits until the oldest hold is `right`: a statement of the server's own may hold for a moment.
async fn until_held(store: &dyn Store, what: &str, right: impl Fn(Option<&Hold>) -> bool) {
    eventually(what, Duration::from_secs(20), async || {
        right(store.oldest_hold().await.unwrap().as_ref())
    })
    .await
    .unwrap();
}

fn is_session_of(hold: &Hold, name: &str) -> bool {
    matches!(&hold.holder, Holder::Session { application, .. } if application == name)
}

async fn by_hand(pool: &PgPool, statement: &'static str) {
    sqlx::query(statement).execute(pool).await.unwrap();
}

/// A server without another user, with a ledger; none where Postgres is skipped.
async fn alone() -> Option<(Postgres, Arc<dyn Store>)> {
    if shared::postgres_is_skipped() {
        return None;
    }
    let setting = ("max_prepared_transactions".to_owned(), "2".to_owned());
    let server = Postgres::start(&PostgresOptions {
        settings: vec![setting],
        ..PostgresOptions::default()
    })
    .await
    .unwrap();
    let options = Options::new(server.url());
    bellwether_store::migrate(&options).await.unwrap();
    let store = bellwether_store::connect(&options).await.unwrap();
    until_held(&*store, "nothing to hold", |hold| hold.is_none()).await;
    Some((server, store))
}

#[tokio::test]
async fn p28_a_forgotten_reader_that_keeps_dead_rows_is_found_as_far_as_a_role_may_see() {
    let Some((server, store)) = alone().await else {
        return;
    };
    // It reads, and sits there; one that looks anew with each statement holds nothing meanwhile.
    let forgotten = named(&server, "forgotten").await;
    let mut plain = forgotten.begin().await.unwrap();
    sqlx::query("SELECT 1").execute(&mut *plain).await.unwrap();
    assert_eq!(store.oldest_hold().await.unwrap(), None);
    let mut reader = forgotten.begin_with(READER).await.unwrap();
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
        .fetch_one(&mut *reader)
        .await
        .unwrap();
    until_held(&*store, "the reader", |hold| {
        hold.is_some_and(|hold| {
            let Holder::Session { pid: found, .. } = &hold.holder else {
                return false;
            };
            *found == pid && is_session_of(hold, "forgotten") && hold.age.is_some()
        })
    })
    .await;

    // Another role sees who, not since when; the pulse goes on.
    let admin = named(&server, "admin").await;
    by_hand(&admin, "CREATE ROLE plain LOGIN").await;
    by_hand(&admin, "GRANT USAGE ON SCHEMA bellwether TO plain").await;
    by_hand(
        &admin,
        "GRANT SELECT ON ALL TABLES IN SCHEMA bellwether TO plain",
    )
    .await;
    let role = server.url().replace("postgres@", "plain@");
    let other = bellwether_store::connect(&Options::new(role))
        .await
        .unwrap();
    until_held(&*other, "the reader, as far as told", |hold| {
        hold.is_some_and(|hold| is_session_of(hold, "forgotten") && hold.age.is_none())
    })
    .await;
    by_hand(&admin, "GRANT pg_read_all_stats TO plain").await;
    until_held(&*other, "its age", |hold| {
        hold.is_some_and(|hold| is_session_of(hold, "forgotten") && hold.age.is_some())
    })
    .await;
    other.close().await;
    reader.rollback().await.unwrap();
    plain.rollback().await.unwrap();
    until_held(&*store, "an end of it", |hold| hold.is_none()).await;
    store.close().await;
}

#[tokio::test]
async fn p28_the_oldest_transaction_that_keeps_dead_rows_is_found() {
    let Some((server, store)) = alone().await else {
        return;
    };
    // One that writes is the cause of all that those under it need.
    let author = named(&server, "writes").await;
    let forgotten = named(&server, "forgotten").await;
    let mut cause = author.begin().await.unwrap();
    sqlx::query("CREATE TABLE written (id integer)")
        .execute(&mut *cause)
        .await
        .unwrap();
    let mut under = forgotten.begin_with(READER).await.unwrap();
    sqlx::query("SELECT 1").execute(&mut *under).await.unwrap();
    until_held(&*store, "the writer", |hold| {
        hold.is_some_and(|hold| is_session_of(hold, "writes"))
    })
    .await;
    cause.rollback().await.unwrap();
    until_held(&*store, "who is left", |hold| {
        hold.is_some_and(|hold| is_session_of(hold, "forgotten"))
    })
    .await;
    under.rollback().await.unwrap();

    // Nobody is connected, and it holds on.
    let mut two_phases = author.acquire().await.unwrap();
    sqlx::raw_sql("BEGIN; CREATE TABLE half (id integer); PREPARE TRANSACTION 'half'")
        .execute(&mut *two_phases)
        .await
        .unwrap();
    two_phases.close_on_drop();
    drop(two_phases);
    until_held(&*store, "the prepared transaction", |hold| {
        hold.is_some_and(|hold| {
            matches!(&hold.holder, Holder::Prepared { gid, .. } if gid == "half")
                && hold.age.is_some()
        })
    })
    .await;
    by_hand(&author, "ROLLBACK PREPARED 'half'").await;
    until_held(&*store, "an end of it", |hold| hold.is_none()).await;
    store.close().await;
}
