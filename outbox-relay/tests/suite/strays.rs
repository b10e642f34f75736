//! What a look for messages of unknown queues must never cost: a message of somebody else.

use std::time::Duration;

use async_nats::HeaderMap;
use bellwether_outbox_relay::{Options, StreamLimits, migrate};
use bellwether_sandbox::eventually;
use bellwether_schemas::header;
use sqlx::{Connection as _, PgConnection};
use tokio::time::Instant;

use crate::support::{Broker, Ledger, NEVER, Running, SOON, shared};

/// Publishes one to a queue; its sequence in the stream.
async fn submit(broker: &Broker, queue: &str, key: &str) -> u64 {
    let mut headers = HeaderMap::new();
    headers.insert(header::KEY, key);
    let subject = broker.subjects.submit(queue, "job");
    let publish = broker
        .js
        .publish_with_headers(subject, headers, "{}".into());
    publish.await.unwrap().await.unwrap().sequence
}

/// Somebody who holds the table of dead letters, so that none is recorded.
struct Holder(PgConnection);

impl Holder {
    async fn of(options: &bellwether_store::Options) -> Self {
        let mut plain = PgConnection::connect(&options.url).await.unwrap();
        let schema = &options.schema;
        let lock = format!("BEGIN; LOCK TABLE {schema}.dead_letter IN SHARE MODE");
        let lock = sqlx::raw_sql(sqlx::AssertSqlSafe(lock));
        lock.execute(&mut plain).await.unwrap();
        Self(plain)
    }

    async fn until_waited_for(&mut self) {
        let deadline = Instant::now() + SOON;
        loop {
            // Else a transaction sees what its first look has seen.
            sqlx::query("SELECT pg_stat_clear_snapshot()")
                .execute(&mut self.0)
                .await
                .unwrap();
            let waits: bool = sqlx::query_scalar(
                "SELECT EXISTS (SELECT FROM pg_stat_activity
                                WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid)))",
            )
            .fetch_one(&mut self.0)
            .await
            .unwrap();
            if waits {
                return;
            }
            assert!(Instant::now() < deadline, "nothing is recorded");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn let_go(mut self) {
        sqlx::query("ROLLBACK").execute(&mut self.0).await.unwrap();
    }
}

/// As often as it was told: at its default of 10 s, which is jittered, it would take more than a
/// minute.
#[tokio::test]
async fn looks_are_as_frequent_as_the_options_say() {
    let (broker, ledger) = shared().await;
    let often = Options {
        strays_every: Duration::from_millis(50),
        strays_after: Duration::ZERO,
        ..Options::default()
    };
    let relay = Running::start(&broker, &ledger, often).await;
    let looks = async || {
        for look in 1..=15 {
            // A queue of its own: what a look has not listed it does not visit.
            let name = format!("nobody-{look}");
            submit(&broker, &name, &name).await;
            eventually("the next look", SOON, async || {
                relay.handle.stats().strays_buried == look
            })
            .await
            .unwrap();
        }
    };
    tokio::time::timeout(SOON, looks()).await.unwrap();
}

/// A stream that somebody replaces counts its messages from 1 again.
#[tokio::test]
async fn a_stream_replaced_between_the_look_and_the_delete_loses_no_message() {
    let Some((ledger, options)) = Ledger::on_postgres().await else {
        return;
    };
    let broker = Broker::shared().await;
    let declare = async || {
        let limits = StreamLimits::default();
        let declared = migrate(&*ledger.store, &broker.js, &broker.subjects, &limits).await;
        declared.unwrap();
    };
    ledger.store.ensure_queue("known").await.unwrap();
    declare().await;
    assert_eq!(submit(&broker, "nobody", "one").await, 1);
    let mut holder = Holder::of(&options).await;
    let strict = Options {
        check_every: NEVER,
        strays_every: Duration::from_millis(50),
        strays_after: Duration::ZERO,
        ..Options::default()
    };
    let relay = Running::start(&broker, &ledger, strict).await;
    holder.until_waited_for().await;

    let stream = broker.subjects.submit_stream();
    broker.js.delete_stream(&stream).await.unwrap();
    declare().await;
    assert_eq!(submit(&broker, "known", "another").await, 1);
    assert_eq!(submit(&broker, "nobody", "two").await, 2);
    holder.let_go().await;

    let stream = broker.js.get_stream(&stream).await.unwrap();
    eventually("the stray of the new stream", SOON, async || {
        stream.get_raw_message(2).await.is_err()
    })
    .await
    .unwrap();
    assert_eq!(relay.handle.stats().strays_buried, 2);
    let left = stream.get_raw_message(1).await.unwrap();
    assert_eq!(left.headers.get(header::KEY).unwrap().as_str(), "another");
}
