//! Before a worker can begin: a ledger and a broker that may not be there yet.

use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client, jetstream};
use bellwether_schemas::subject::Subjects;
use bellwether_store::{self as store, Store};
use bellwether_telemetry::Trouble;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::sleep;
use uuid::Uuid;

use crate::broker::{self, Found};
use crate::call::{CALL_MAX, bounded};
use crate::error::Error;
use crate::retry::asking_again;

/// Longest wait between tries to reach the ledger or the broker at the start.
const START_CAP: Duration = Duration::from_secs(5);
/// A row that somebody else holds is waited for so long; then its result is sent apart from others.
const HELD_MAX: Duration = Duration::from_secs(1);
/// Waits for the database; a schema of another version is an error.
pub(crate) async fn open_ledger(
    database: &store::Options,
) -> Result<(Arc<dyn Store>, Uuid), Error> {
    let mut database = database.clone();
    database.role = database.role.or(Some(store::grants::Role::Worker));
    // On SQLite it is the wait for the one writer, and holds no row of somebody else's.
    if database.backend()? == store::Backend::Postgres {
        database.lock_timeout = database.lock_timeout.min(HELD_MAX);
    }
    let database = &database;
    patiently("reach the ledger", || {
        let opened = async {
            let ledger = store::connect(database).await?;
            let id = ledger.ledger().await?.id;
            Ok((ledger, id))
        };
        bounded(CALL_MAX, opened).boxed()
    })
    .await
}

/// Repeats what may pass until it is done. Each try is to be bounded.
pub(crate) async fn patiently<'a, T>(
    what: &'static str,
    act: impl Fn() -> BoxFuture<'a, store::Result<T>>,
) -> Result<T, Error> {
    let mut trouble = Trouble::with(what);
    let mut delays = asking_again(START_CAP);
    loop {
        match act().await {
            Ok(done) => {
                trouble.over();
                return Ok(done);
            }
            Err(error) if error.is_transient() => trouble.note(&error),
            Err(error) => return Err(error.into()),
        }
        sleep(delays.next().unwrap_or(START_CAP)).await;
    }
}

/// Waits until the streams are declared; those of another ledger are an error.
pub(crate) async fn wait_for_streams(
    js: &jetstream::Context,
    client: &Client,
    subjects: &Subjects,
    ledger_id: Uuid,
) -> Result<(), Error> {
    let mut trouble = Trouble::with("find the streams").after(Duration::from_secs(1));
    let mut delays = asking_again(START_CAP / 5);
    loop {
        match broker::look(js, client, subjects, ledger_id).await {
            Found::Ours => {
                trouble.over();
                return Ok(());
            }
            Found::NotYet(why) => trouble.note(&why),
            Found::Other(error) => return Err(error),
        }
        sleep(delays.next().unwrap_or(START_CAP)).await;
    }
}
