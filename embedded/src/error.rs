//! Why an embedded system does not start, or ended.

use std::path::PathBuf;

use bellwether_schemas::names::NameError;

/// Why an embedded system does not start, or ended. What passes by itself (a database or a
/// broker that is away for a while) is waited for once it runs, and is no error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is nothing to run.
    #[error("no worker is named: call `.worker(Worker::builder().register(your_job::job()))`")]
    NoWorker,

    /// The folder cannot be used.
    #[error("failed to use the folder {}: {source}; name another with `.folder(…)`", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },

    /// The folder belongs to another process.
    #[error(
        "{} is in use by process {owner}; end that one, or name another folder with `.folder(…)`",
        path.display()
    )]
    FolderInUse {
        /// The folder.
        path: PathBuf,
        /// The process id that the other one left there.
        owner: String,
    },

    /// There is no nats-server to start as a child.
    #[error(
        "no usable nats-server ({reason}); put one on PATH, name it in the variable NATS_SERVER or \
         with `.child_nats(ChildNats::default().binary(…))`, or use a running one with `.nats(url)`"
    )]
    NoNatsServer {
        /// Where it was looked for, or why what was found does not do.
        reason: String,
    },

    /// The child nats-server did not start, or could not be started again.
    #[error("failed to run the child nats-server: {0}")]
    ChildNats(#[from] bellwether_sandbox::Error),

    /// The broker cannot be reached at the start.
    #[error(transparent)]
    Nats(#[from] bellwether_outbox_relay::nats::Error),

    /// The namespace keeps not to the alphabet.
    #[error(transparent)]
    Name(#[from] NameError),

    /// The ledger cannot be used.
    #[error(transparent)]
    Ledger(#[from] bellwether_store::Error),

    /// The client cannot be made.
    #[error(transparent)]
    Client(#[from] bellwether_client::Error),

    /// The ticker refuses its options, or ended.
    #[error("the ticker ended: {0}")]
    Ticker(#[from] bellwether_ticker::Error),

    /// The relay refuses its options or the streams, or ended.
    #[error("the relay ended: {0}")]
    Relay(#[from] bellwether_outbox_relay::Error),

    /// The worker refuses its settings, or ended.
    #[error("the worker ended: {0}")]
    Worker(#[from] bellwether_worker::Error),

    /// A part panicked: a fault of this program. Start again; nothing is lost.
    #[error("the {part} panicked: {message}; start again, the ledger holds what is to be done")]
    Panicked {
        /// The part.
        part: &'static str,
        /// What the panic said.
        message: String,
    },

    /// A part ended although nobody asked it to.
    #[error("the {part} ended by itself; start again")]
    Ended {
        /// The part.
        part: &'static str,
    },

    /// The operating system does not let it listen for signals.
    #[error("failed to listen for signals: {0}")]
    Signals(#[source] std::io::Error),
}
