//! Start, end, and the system while it runs.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bellwether_client::Client;
use bellwether_outbox_relay::{self as relay, NatsWaker, Relay};
use bellwether_sandbox::{Folder, NatsServer};
use bellwether_schemas::address::masked;
use bellwether_schemas::subject::Subjects;
use bellwether_store::{self as store, Backend, Store};
use bellwether_ticker::{Ticker, Waker};
use bellwether_worker::{self as worker, Worker};
use futures_util::FutureExt;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::builder::{Broker, Builder};
use crate::parts::{Ended, Parts};
use crate::{Error, child};

/// Longest wait for the connection to take its end in: while the broker is away nobody reads
/// what waits to be sent.
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// The name that NATS and the database show for this process.
const NAME: &str = "bellwether embedded";

/// Ticker, relay, worker and ledger in this process.
#[derive(Debug)]
pub enum Embedded {}

impl Embedded {
    /// A system to be put together.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

/// An embedded system that runs. Dropping it asks it to stop and does not wait for that; what
/// the runtime cuts off then is taken up at the next start.
pub struct Running {
    client: Client,
    worker: worker::Handle,
    database_url: String,
    nats_url: String,
    shutdown: DropGuard,
    /// `None` once its end was seen.
    task: Option<JoinHandle<Ended>>,
}

impl std::fmt::Debug for Running {
    /// Without the secrets of the addresses.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running")
            .field("client", &self.client)
            .field("worker", &self.worker)
            .field("database_url", &masked(&self.database_url))
            .field("nats_url", &masked(&self.nats_url))
            .finish_non_exhaustive()
    }
}

impl Running {
    /// A client of this system: enqueue, submit, trigger, wait. Cheap to clone; it works as
    /// long as the system runs.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// A look at the worker: what it has done, and what it does now.
    pub fn worker(&self) -> &worker::Handle {
        &self.worker
    }

    /// Where the ledger is, for other processes and for the user's own transactions.
    pub fn database_url(&self) -> &str {
        &self.database_url
    }

    /// Where the broker is, for other processes.
    pub fn nats_url(&self) -> &str {
        &self.nats_url
    }

    /// Completes when the system ends although nobody asked it to: always with the error of
    /// the part that ended first, after all others were stopped in order.
    ///
    /// # Errors
    ///
    /// Why it ended.
    pub async fn ended(&mut self) -> Result<(), Error> {
        let Some(task) = &mut self.task else {
            return Err(Error::Ended { part: "system" });
        };
        let ended = task.await;
        self.task = None;
        joined(ended)
    }

    /// Stops in order: the worker finishes or gives back what runs (within its drain limit),
    /// the ticker resigns, the relay waits for its answers, then connections close and a child
    /// nats-server stops.
    ///
    /// # Errors
    ///
    /// The error of a part that did not stop in order or had ended before.
    pub async fn shutdown(self) -> Result<(), Error> {
        drop(self.shutdown);
        match self.task {
            Some(task) => joined(task.await),
            None => Err(Error::Ended { part: "system" }),
        }
    }
}

fn joined(ended: Result<Ended, tokio::task::JoinError>) -> Ended {
    ended.unwrap_or_else(|error| {
        Err(Error::Panicked {
            part: "system",
            message: error.to_string(),
        })
    })
}

/// The ticker knows no NATS.
struct Wake(NatsWaker);

impl Waker for Wake {
    fn wake(&self) {
        self.0.wake();
    }
}

/// What was opened, to be closed at the end in this order.
struct Base {
    nats: async_nats::Client,
    store: Arc<dyn Store>,
    lease_store: Arc<dyn Store>,
    server: Option<NatsServer>,
    folder: Option<Folder>,
    options: store::Options,
    nats_url: String,
}

pub(crate) async fn start(builder: Builder) -> Result<Running, Error> {
    let subjects = Subjects::new(&builder.namespace)?;
    let worker = builder.worker.clone().ok_or(Error::NoWorker)?;
    // Before anything is made or changed by them.
    builder.ticker.validate()?;
    builder.relay.validate()?;
    let base = Base::open(&builder, &subjects).await?;
    let client = Client::new(&builder.namespace)?
        .with_store(Arc::clone(&base.store))
        .with_nats(base.nats.clone());
    let worker = worker
        .database(base.options.clone())
        .nats(base.nats_url.clone())
        .namespace(&builder.namespace)
        .build()?;
    let ticker = Ticker::new(
        Arc::clone(&base.store),
        Arc::clone(&base.lease_store),
        Arc::new(Wake(NatsWaker::new(base.nats.clone(), &subjects))),
        builder.ticker,
    )?;
    let relay = Relay::new(
        Arc::clone(&base.store),
        base.nats.clone(),
        subjects,
        builder.relay,
    )?;
    let shutdown = CancellationToken::new();
    Ok(Running {
        client,
        worker: worker.handle(),
        database_url: base.options.url.clone(),
        nats_url: base.nats_url.clone(),
        task: Some(tokio::spawn(run(
            base,
            worker,
            ticker,
            relay,
            shutdown.clone(),
        ))),
        shutdown: shutdown.drop_guard(),
    })
}

async fn run(
    base: Base,
    worker: Worker,
    ticker: Ticker,
    relay: Relay,
    shutdown: CancellationToken,
) -> Ended {
    let mut parts = Parts::default();
    // In the order of their end: whoever needs another ends before it.
    parts.spawn("worker", async move |stop| {
        Ok(worker.run_until(stop).await?)
    });
    parts.spawn("ticker", async move |stop| Ok(ticker.run(stop).await?));
    parts.spawn("relay", async move |stop| Ok(relay.run(stop).await?));
    let Base {
        nats,
        store,
        lease_store,
        server,
        folder,
        ..
    } = base;
    // It is watched as the others are, and ends after the connections to it.
    let mut broker = Parts::default();
    if let Some(server) = server {
        broker.spawn("child nats-server", |stop| {
            child::watch(server, stop).boxed()
        });
    }
    let failed = tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        error = parts.failure() => Err(error),
        error = broker.failure() => Err(error),
    };
    if let Err(error) = &failed {
        tracing::error!(%error, "a part ended; stopping the others");
    }
    let stopped = parts.stop().await;
    close(&nats, store.as_ref(), lease_store.as_ref()).await;
    let broker_stopped = broker.stop().await;
    // Last: the next process may have the folder now.
    drop(folder);
    failed.and(stopped).and(broker_stopped)
}

async fn close(nats: &async_nats::Client, store: &dyn Store, lease_store: &dyn Store) {
    lease_store.close().await;
    store.close().await;
    match tokio::time::timeout(DRAIN_MAX, nats.drain()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "the connection was closed already"),
        Err(_elapsed) => tracing::debug!("the connection takes nothing and is given up"),
    }
}

impl Base {
    /// Folder, broker, schema, ledger, streams: each needs the one before.
    async fn open(builder: &Builder, subjects: &Subjects) -> Result<Self, Error> {
        let mut folder = None;
        let (nats_url, server) = match &builder.broker {
            Broker::Url(url) => (url.clone(), None),
            Broker::Child(child) => {
                let folder = opened(&mut folder, &builder.folder)?;
                let server = child::start(folder, child).await?;
                (server.url(), Some(server))
            }
        };
        let mut options = if let Some(options) = &builder.database {
            options.clone()
        } else {
            let folder = opened(&mut folder, &builder.folder)?;
            store::Options::new(folder.database_url())
        };
        if options.application_name == store::Options::new("").application_name {
            NAME.clone_into(&mut options.application_name);
        }
        let migrate = match builder.migrate {
            Some(asked) => asked,
            None => options.backend()? == Backend::Sqlite,
        };
        if migrate {
            let migrated = store::migrate(&options).await?;
            tracing::info!(from = migrated.from, to = migrated.to, "schema migrated");
        }
        let store = store::connect(&options).await?;
        let lease_store = store::connect(&options).await?;
        let nats = relay::connect_nats(&nats_url, NAME).await?;
        if migrate {
            let jetstream = async_nats::jetstream::new(nats.clone());
            let limits = &builder.relay.streams;
            relay::migrate(store.as_ref(), &jetstream, subjects, limits).await?;
        }
        if let (Some(folder), None) = (&folder, &builder.database) {
            let written = folder.write_config(&nats_url, subjects.namespace());
            written.map_err(child::in_words)?;
        }
        Ok(Self {
            nats,
            store,
            lease_store,
            server,
            folder,
            options,
            nats_url,
        })
    }
}

/// The folder, opened by whoever needs it first.
fn opened<'a>(folder: &'a mut Option<Folder>, path: &Path) -> Result<&'a Folder, Error> {
    let opened = match folder.take() {
        Some(opened) => opened,
        None => Folder::open(path).map_err(child::in_words)?,
    };
    Ok(folder.insert(opened))
}
