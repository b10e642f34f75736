//! What can go wrong with servers and children, each with what to do about it.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

/// Why a server or a child could not be started, used or stopped.
///
/// Messages are fragments that fit behind "failed to …: ".
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A program that is needed is not on this machine, or is too old.
    #[error("no usable {program}: {reason}; run {remedy}")]
    NotFound {
        /// What was looked for.
        program: &'static str,
        /// Where it was looked for, or why what was found does not do.
        reason: String,
        /// The command that provides it.
        remedy: &'static str,
    },

    /// A program could not be started at all.
    #[error("could not start {}", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },

    /// A process ended although it was expected to run.
    #[error("{name} ended by itself ({status}); the end of its log:\n{log}")]
    Exited {
        /// The process.
        name: String,
        /// How it ended.
        status: ExitStatus,
        /// The last lines that it wrote.
        log: String,
    },

    /// A process did not do in time what was waited for.
    #[error("{name} did not {what} within {within:?}; the end of its log:\n{log}")]
    TooSlow {
        /// The process.
        name: String,
        /// What it should have done.
        what: &'static str,
        /// How long it was waited for.
        within: Duration,
        /// The last lines that it wrote.
        log: String,
    },

    /// Something that a test waited for never became true.
    #[error("{what} did not come true within {within:?}")]
    Never {
        /// The condition, in words.
        what: String,
        /// How long it was waited for.
        within: Duration,
    },

    /// The operation needs a running process, and this one was killed or stopped.
    #[error("{name} is not running; call restart() first")]
    NotRunning {
        /// The process.
        name: String,
    },

    /// The operation needs a stopped process, and this one runs.
    #[error("{name} is still running; call stop() or kill() first")]
    StillRunning {
        /// The process.
        name: String,
    },

    /// The port that was asked for belongs to another process.
    #[error("port {port} on 127.0.0.1 is taken; end what listens there or choose another port")]
    PortTaken {
        /// The port.
        port: u16,
    },

    /// A folder of data belongs to a server that still runs.
    #[error("{} is in use by the nats-server with process id {pid}; end that one first", store_dir.display())]
    StoreInUse {
        /// The folder.
        store_dir: PathBuf,
        /// The process that uses it.
        pid: u32,
    },

    /// The folder of a system cannot be used.
    #[error("failed to use the folder {}: {source}", path.display())]
    Folder {
        /// The folder, or the file in it.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },

    /// The folder of a system belongs to another process.
    #[error("{} is in use by process {owner}; end that one or name another folder", path.display())]
    FolderInUse {
        /// The folder.
        path: PathBuf,
        /// The process id that the other one left there.
        owner: String,
    },

    /// A helper program such as initdb reported failure.
    #[error("{program} failed ({status}): {output}")]
    Helper {
        /// The helper.
        program: String,
        /// How it ended.
        status: ExitStatus,
        /// What it printed.
        output: String,
    },

    /// A file, folder or process could not be read or written.
    #[error("could not {doing}")]
    Io {
        /// What was being done.
        doing: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// Gives an I/O error the words for what was being done.
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}
