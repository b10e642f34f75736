//! The shared servers, whoever started them: the wrapper, or this process.

use std::collections::HashSet;

use bellwether_sandbox::shared;
use sqlx::{Connection, PgConnection};

#[tokio::test]
async fn the_shared_servers_answer_and_stay_the_same() {
    let nats = shared::nats_url().await.unwrap();
    assert_eq!(shared::nats_url().await.unwrap(), nats);
    async_nats::connect(nats).await.unwrap();

    let Some(postgres) = shared::postgres_url().await.unwrap() else {
        return;
    };
    assert_eq!(
        shared::postgres_url().await.unwrap().as_ref(),
        Some(&postgres)
    );
    let mut connection = PgConnection::connect(&postgres).await.unwrap();
    let schema = shared::fresh_namespace();
    let create = sqlx::AssertSqlSafe(format!("CREATE SCHEMA {schema}"));
    sqlx::query(create).execute(&mut connection).await.unwrap();
    let drop = sqlx::AssertSqlSafe(format!("DROP SCHEMA {schema}"));
    sqlx::query(drop).execute(&mut connection).await.unwrap();
}

/// The server is shared by tests that have a runtime each, so it must outlive the first one's.
#[test]
fn a_shared_server_outlives_the_runtime_that_started_it() {
    let run = |future: std::pin::Pin<Box<dyn Future<Output = ()>>>| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(future);
    };
    run(Box::pin(async {
        shared::nats_url().await.unwrap();
    }));
    run(Box::pin(async {
        async_nats::connect(shared::nats_url().await.unwrap())
            .await
            .unwrap();
    }));
}

#[test]
fn fresh_namespaces_are_unique_and_fit_nats_and_postgres() {
    let names: HashSet<String> = (0..1000).map(|_| shared::fresh_namespace()).collect();
    assert_eq!(names.len(), 1000);
    for name in names {
        assert!(name.len() <= 40, "{name}");
        assert!(name.starts_with("t_"), "{name}");
        assert!(
            name.chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        );
    }
}
