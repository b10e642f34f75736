//! The end of the process: signals, and handlers that would keep it for ever.
//!
//! A thread of its own with a runtime of its own, as the session's: handlers that block every
//! thread of the user's runtime must not keep a signal from being heard, nor the process from
//! ending. A runtime waits for its threads when it is dropped; nothing but the end of the process
//! ends a handler that blocks one.

use std::process::exit;

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::budget::StopBudget;
use crate::error::Error;

/// Ended by handlers that held the stop up.
const FAILED: i32 = 1;

/// How a worker ended whose handlers still run.
struct Over {
    running: usize,
    /// What `main` would say.
    status: i32,
    /// And why.
    error: Option<String>,
}

/// The thread, from outside. Dropping it without a word ends the thread, not the process.
pub(crate) struct End(oneshot::Sender<Over>);

impl End {
    /// Starts the thread: from here on SIGTERM and SIGINT cancel `shutdown`, and the process ends
    /// when the worker has not ended in its part of `budget` after the first of them.
    pub(crate) fn begin(shutdown: CancellationToken, budget: StopBudget) -> Result<Self, Error> {
        let failed = |what| move |source| Error::System { what, source };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed("make the runtime of the signals' thread"))?;
        let signals = {
            let _context = runtime.enter();
            Signals::listen().map_err(failed("listen for signals"))?
        };
        let (say, over) = oneshot::channel();
        let watch = Watch {
            signals,
            shutdown,
            budget,
            over,
        };
        let run = move |runtime: Runtime| runtime.block_on(watch.run());
        std::thread::Builder::new()
            .name("bellwether-end".to_owned())
            .spawn(move || run(runtime))
            .map_err(failed("start the signals' thread"))?;
        Ok(Self(say))
    }

    /// The worker has ended; so many handlers still run.
    pub(crate) fn over(self, running: usize, ended: &Result<(), Error>) {
        if running == 0 {
            return;
        }
        let over = Over {
            running,
            status: if ended.is_ok() { 0 } else { FAILED },
            error: ended.as_ref().err().map(ToString::to_string),
        };
        // Were the thread gone, a panic of it would have said so.
        let _told = self.0.send(over);
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// The number of the next one.
    async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.terminate.recv() => SignalKind::terminate().as_raw_value(),
            _ = self.interrupt.recv() => SignalKind::interrupt().as_raw_value(),
        }
    }
}

struct Watch {
    signals: Signals,
    shutdown: CancellationToken,
    budget: StopBudget,
    over: oneshot::Receiver<Over>,
}

impl Watch {
    async fn run(mut self) {
        let mut latest = None;
        let over = loop {
            let too_late = async {
                match latest {
                    Some(latest) => sleep_until(latest).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                over = &mut self.over => break over,
                number = self.signals.next() => {
                    if latest.is_some() {
                        exit(128 + number);
                    }
                    latest = Some(Instant::now() + self.budget.worker());
                    tracing::info!("stopping; a second signal ends at once");
                    self.shutdown.cancel();
                }
                () = too_late => {
                    tracing::error!(
                        seconds = self.budget.worker().as_secs(),
                        "stop not over in its time: handlers block the runtime; ending the process",
                    );
                    exit(FAILED);
                }
            }
        };
        let Ok(over) = over else {
            // Nothing runs any more, or nobody waits for the worker.
            return;
        };
        // `main` has the time of its last export for its own end.
        let until = Instant::now() + self.budget.export;
        tokio::select! {
            number = self.signals.next() => exit(128 + number),
            () = sleep_until(until) => {}
        }
        tracing::error!(
            running = over.running,
            error = over.error,
            "handlers still run and keep the process: ending it",
        );
        exit(over.status);
    }
}
