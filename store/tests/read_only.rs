//! A pool leaves a server that has stopped to take writes.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use bellwether_sandbox::{Postgres, PostgresOptions, eventually, shared};
use bellwether_store::{ErrorKind, Options};
use sqlx::postgres::{PgPool, PgPoolOptions};

/// Connections that are open turn read-only, as those to a primary that becomes a standby do; new
/// ones do not.
async fn demote(plain: &PgPool) {
    for statement in [
        "ALTER DATABASE postgres SET default_transaction_read_only = off",
        "ALTER SYSTEM SET default_transaction_read_only = on",
        "SELECT pg_reload_conf()",
    ] {
        sqlx::query(statement).execute(plain).await.unwrap();
    }
}

async fn is_read_only(plain: &PgPool) -> bool {
    let asked = sqlx::query_scalar("SELECT current_setting('transaction_read_only') = 'on'");
    asked.fetch_one(plain).await.unwrap()
}

#[tokio::test]
async fn a_pool_leaves_connections_that_turned_read_only() {
    if shared::postgres_is_skipped() {
        return;
    }
    let server = Postgres::start(&PostgresOptions::default()).await.unwrap();
    let mut options = Options::new(server.url());
    options.connections_max = 3;
    bellwether_store::migrate(&options).await.unwrap();
    let store = bellwether_store::connect(&options).await.unwrap();
    let all = ["a", "b", "c"].map(|queue| store.ensure_queue(queue));
    for done in futures_util::future::join_all(all).await {
        done.unwrap();
    }
    let one = PgPoolOptions::new().max_connections(1);
    let plain = one.connect(&server.url()).await.unwrap();
    demote(&plain).await;
    eventually("the change", Duration::from_secs(20), async || {
        is_read_only(&plain).await
    })
    .await
    .unwrap();

    // Each open connection may fail once, as a database that is away does, and is closed by that.
    let mut failures = 0;
    for queue in ["d", "e", "f", "g", "h", "i"] {
        if let Err(error) = store.ensure_queue(queue).await {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            failures += 1;
        }
    }
    assert!(
        failures <= options.connections_max,
        "{failures} failed calls"
    );
    store.ensure_queue("last").await.unwrap();
    store.close().await;
}
