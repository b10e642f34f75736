//! How an embedded system is put together.

use std::path::PathBuf;

use bellwether_outbox_relay as relay;
use bellwether_schemas::address::masked;
use bellwether_schemas::subject::DEFAULT_NAMESPACE;
use bellwether_store as store;
use bellwether_ticker as ticker;
use bellwether_worker as worker;
use tokio_util::sync::CancellationToken;

use crate::{Error, Running, running};

/// A nats-server as a child of the process. It listens on loopback alone.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct ChildNats {
    pub(crate) binary: Option<PathBuf>,
    pub(crate) port: Option<u16>,
}

impl ChildNats {
    /// The program. Default: what the variable `NATS_SERVER` names, else `nats-server` on PATH.
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.binary = Some(path.into());
        self
    }

    /// The port on 127.0.0.1. Default: the one of the last run, or a free one.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }
}

#[derive(Clone)]
pub(crate) enum Broker {
    Url(String),
    Child(ChildNats),
}

impl std::fmt::Debug for Broker {
    /// Without the secrets of the URL.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Url(url) => f.debug_tuple("Url").field(&masked(url)).finish(),
            Self::Child(child) => f.debug_tuple("Child").field(child).finish(),
        }
    }
}

/// Settings of an embedded system; see [`Embedded::builder`](crate::Embedded::builder).
#[derive(Debug, Clone)]
#[must_use]
pub struct Builder {
    pub(crate) folder: PathBuf,
    pub(crate) database: Option<store::Options>,
    pub(crate) migrate: Option<bool>,
    pub(crate) broker: Broker,
    pub(crate) namespace: String,
    pub(crate) worker: Option<worker::Builder>,
    pub(crate) ticker: ticker::Options,
    pub(crate) relay: relay::Options,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            folder: PathBuf::from(".bellwether"),
            database: None,
            migrate: None,
            broker: Broker::Child(ChildNats::default()),
            namespace: DEFAULT_NAMESPACE.to_owned(),
            worker: None,
            ticker: ticker::Options::default(),
            relay: relay::Options::default(),
        }
    }
}

impl Builder {
    /// The folder of the ledger, the child's store and its log; made if it is not there. It is
    /// touched only if one of the two lives here. Default `.bellwether` in the current folder.
    pub fn folder(mut self, path: impl Into<PathBuf>) -> Self {
        self.folder = path.into();
        self
    }

    /// Another database for the ledger. Default: SQLite, `ledger.db` in the folder.
    pub fn database(mut self, options: store::Options) -> Self {
        self.database = Some(options);
        self
    }

    /// Whether the schema and the streams are created and upgraded at the start. Default: on
    /// SQLite yes, because the file is this program's own; on Postgres no, because others may
    /// use it: `bellwether migrate` does it there, and a schema of another version is refused.
    pub fn migrate(mut self, migrate: bool) -> Self {
        self.migrate = Some(migrate);
        self
    }

    /// A nats-server that runs elsewhere, with JetStream: `nats://host:4222`.
    pub fn nats(mut self, url: impl Into<String>) -> Self {
        self.broker = Broker::Url(url.into());
        self
    }

    /// A nats-server as a child of the process. This is the default, with default settings.
    pub fn child_nats(mut self, child: ChildNats) -> Self {
        self.broker = Broker::Child(child);
        self
    }

    /// The namespace of subjects and streams. Default `bw`. Two ledgers on one broker need two.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// The worker with its jobs. Its database, broker and namespace are those set here,
    /// whatever it was given itself. Required.
    pub fn worker(mut self, worker: worker::Builder) -> Self {
        self.worker = Some(worker);
        self
    }

    /// The ticker's options. The defaults need no tuning.
    pub fn ticker(mut self, options: ticker::Options) -> Self {
        self.ticker = options;
        self
    }

    /// The relay's options. The defaults need no tuning. What `streams` says of the broker's
    /// streams and consumers, `ack_wait` among it, holds for the start that declares them, too, and
    /// the worker reads it there: nothing is to be said twice.
    pub fn relay(mut self, options: relay::Options) -> Self {
        self.relay = options;
        self
    }

    /// Starts everything in this runtime. When it returns, the ledger and the broker are there
    /// and the parts run; the worker takes its first work a moment later.
    ///
    /// # Errors
    ///
    /// What is missing or refused, with what to do about it. What was started is stopped again.
    pub async fn start(self) -> Result<Running, Error> {
        Box::pin(running::start(self)).await
    }

    /// Starts everything and runs until `shutdown` is cancelled, then stops in order. Cancelled
    /// during the start, it gives the start up: what was started is stopped again.
    ///
    /// # Errors
    ///
    /// Those of [`start`](Self::start) and of [`Running::shutdown`].
    pub async fn run_until(self, shutdown: CancellationToken) -> Result<(), Error> {
        let Some(started) = shutdown.run_until_cancelled(self.start()).await else {
            return Ok(());
        };
        let mut running = started?;
        tokio::select! {
            () = shutdown.cancelled() => running.shutdown().await,
            ended = running.ended() => ended,
        }
    }

    /// Starts everything and runs until SIGTERM or SIGINT, then stops in order. A second signal
    /// ends the process at once, with status 128 + its number.
    ///
    /// # Errors
    ///
    /// Those of [`run_until`](Self::run_until), and what the system says about signals.
    pub async fn run(self) -> Result<(), Error> {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate()).map_err(Error::Signals)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Signals)?;
        let shutdown = CancellationToken::new();
        let mut work = Box::pin(self.run_until(shutdown.clone()));
        loop {
            let number = tokio::select! {
                ended = &mut work => return ended,
                _ = terminate.recv() => SignalKind::terminate().as_raw_value(),
                _ = interrupt.recv() => SignalKind::interrupt().as_raw_value(),
            };
            if shutdown.is_cancelled() {
                std::process::exit(128 + number);
            }
            tracing::info!("stopping; a second signal ends at once");
            shutdown.cancel();
        }
    }
}
