//! The worker on real parts: nats-server, a ledger on SQLite and on Postgres, relay, ticker.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

/// One test per store for each body `async fn name(cluster: Cluster)`.
macro_rules! on_both_stores {
    ($($name:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $name() {
                Box::pin(super::$name(crate::cluster::Cluster::on_sqlite().await)).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $name() {
                if let Some(cluster) = crate::cluster::Cluster::on_postgres().await {
                    Box::pin(super::$name(cluster)).await;
                }
            })+
        }
    };
}

mod blackhole;
mod bounds;
mod cancel;
mod cluster;
mod commit_in;
mod definitions;
mod faults;
mod held;
mod hostile;
mod macros;
mod outcomes;
mod path;
mod persist;
mod probes;
mod session;
mod stop;
mod submitted;
