//! Ctrl-C and SIGTERM in a command on several things: what it has done by then must be told.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::exit::{Failure, INTERRUPTED, Result, TERMINATED};
use crate::output;

/// Whether the command was asked to end.
#[derive(Debug, Clone)]
pub(crate) struct Interrupt {
    asked: CancellationToken,
    /// The exit code that says by which signal.
    code: Arc<AtomicU8>,
}

impl Interrupt {
    /// From here on the first SIGINT or SIGTERM asks the command to end, and the second one ends the
    /// process at once. To be called when nothing is left to connect to or to ask: up to there the
    /// first one ends it, for nothing was done.
    pub(crate) fn listen() -> Result<Self> {
        let mut term = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let this = Self {
            asked: CancellationToken::new(),
            code: Arc::default(),
        };
        let told = this.clone();
        tokio::spawn(async move {
            let mut next = async || {
                tokio::select! {
                    _ = term.recv() => TERMINATED,
                    _ = interrupt.recv() => INTERRUPTED,
                }
            };
            let first = next().await;
            told.code.store(first, Ordering::Release);
            told.asked.cancel();
            output::note("ends after what is under way; a second signal ends at once");
            let second = next().await;
            std::process::exit(second.into());
        });
        Ok(this)
    }

    /// What the command ends with, if it was asked to end.
    pub(crate) fn failure(&self, message: &str) -> Option<Failure> {
        let asked = self.asked.is_cancelled();
        asked.then(|| Failure::new(self.code.load(Ordering::Acquire), message))
    }

    /// Waits until the command is asked to end; the exit code that says so.
    pub(crate) async fn asked(&self) -> u8 {
        self.asked.cancelled().await;
        self.code.load(Ordering::Acquire)
    }
}

impl Failure {
    /// Whether it says that the command was asked to end: then that is its exit code, whatever was done.
    pub(crate) const fn is_interrupt(&self) -> bool {
        matches!(self.code, INTERRUPTED | TERMINATED)
    }
}
