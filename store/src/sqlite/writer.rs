//! The one connection of this process to the file, on a thread of its own.
//!
//! Operations are closures, sent through a bounded channel and run one after another as
//! transactions on the thread `bw-ledger`, which has a runtime of its own. So user code
//! that blocks the caller's runtime can delay only its own answer, never a transaction
//! that holds the file. A caller that has given up before its turn is skipped; one that
//! gives up later leaves the outcome unknown and repeats the call with the same ids.

use std::future::Future;
use std::pin::Pin;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use bellwether_telemetry::metrics;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tracing::Instrument;

use super::clock::{self, Millis};
use super::errors::Fault;
use super::file;
use crate::{Error, ErrorKind, Result, abandoned};

/// Calls that may wait for their turn; the next ones wait for room.
const WAITING_MAX: usize = 256;

/// How often a transaction that gave way to another process is tried again.
const RETRIES_MAX: u32 = 3;

/// How an operation uses the file.
#[derive(Debug, Clone, Copy)]
enum Mode {
    /// Takes the write lock at once: nothing read in it can be out of date.
    Write,
    /// One snapshot.
    Read,
}

impl Mode {
    const fn begin(self) -> &'static str {
        match self {
            Self::Write => "BEGIN IMMEDIATE",
            Self::Read => "BEGIN DEFERRED",
        }
    }
}

type Job = Box<dyn for<'l> FnOnce(&'l mut Line) -> Pin<Box<dyn Future<Output = ()> + 'l>> + Send>;

/// A handle to the thread; the thread ends when it is dropped or closed.
pub(super) struct Writer {
    jobs: RwLock<Option<mpsc::Sender<Job>>>,
    /// Closed by the thread when it has closed the connection.
    ended: watch::Receiver<()>,
    /// How long a call may take, the wait for its turn included.
    patience: Duration,
}

impl Writer {
    /// Starts the thread and opens the file.
    pub(super) async fn start(options: SqliteConnectOptions, patience: Duration) -> Result<Self> {
        const OP: &str = "open the ledger";
        let (jobs, queue) = mpsc::channel(WAITING_MAX);
        let (end, ended) = watch::channel(());
        let (opened, open) = oneshot::channel();
        let path = options.get_filename().to_owned();
        std::thread::Builder::new()
            .name("bw-ledger".to_owned())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_time()
                    .build();
                match runtime {
                    Ok(runtime) => runtime.block_on(serve(options, queue, opened)),
                    // A caller that has given up needs no answer.
                    Err(error) => drop(opened.send(Err(sqlx::Error::Io(error).into()))),
                }
                drop(end);
            })
            .map_err(|error| Fault::from(sqlx::Error::Io(error)).of(OP))?;
        open.await
            .map_err(|_| gone(OP))?
            .map_err(|fault| file::cannot_open(OP, &path, fault))?;
        Ok(Self {
            jobs: RwLock::new(Some(jobs)),
            ended,
            patience,
        })
    }

    /// Runs `work` as one `BEGIN IMMEDIATE` transaction with the ledger's now, taken under
    /// the lock. `work` may run again when the file was locked; it awaits nothing but SQL.
    pub(super) async fn write<T, F>(&self, op: &'static str, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: AsyncFn(&mut SqliteConnection, Millis) -> Result<T, Fault> + Send + 'static,
    {
        self.call(op, Mode::Write, work).await
    }

    /// Runs `work` on one snapshot with the ledger's now.
    pub(super) async fn read<T, F>(&self, op: &'static str, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: AsyncFn(&mut SqliteConnection, Millis) -> Result<T, Fault> + Send + 'static,
    {
        self.call(op, Mode::Read, work).await
    }

    /// Lets the calls in flight finish, closes the connection and waits for that.
    pub(super) async fn close(&self) {
        self.jobs
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        // Nothing is ever sent: the error says that the thread has let go of its end.
        while self.ended.clone().changed().await.is_ok() {}
    }

    async fn call<T, F>(&self, op: &'static str, mode: Mode, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: AsyncFn(&mut SqliteConnection, Millis) -> Result<T, Fault> + Send + 'static,
    {
        let since = Instant::now();
        let deadline = since + self.patience;
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(move |line| {
            Box::pin(async move {
                if answer.is_closed() {
                    return;
                }
                let result = line.run(mode, deadline, &work).await;
                if answer.send(result).is_err() {
                    tracing::debug!(op, "nobody waits for the answer any more");
                }
            })
        });
        let jobs = self
            .jobs
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let jobs = jobs.ok_or_else(|| gone(op))?;
        let turn = async {
            jobs.send(job).await.map_err(|_| gone(op))?;
            // A caller whose runtime is blocked must not keep a closing thread alive.
            drop(jobs);
            answered.await.map_err(|_| gone(op))
        };
        let turn = turn.instrument(tracing::debug_span!("ledger", op));
        let mut caller = Caller {
            since,
            settled: false,
        };
        let answer = tokio::time::timeout_at(deadline, turn).await;
        caller.settled = true;
        match answer {
            Ok(result) => result?.map_err(|fault| {
                count_failed(fault.word());
                fault.of(op)
            }),
            Err(_elapsed) => {
                count_failed("timeout");
                Err(Error::new(
                    op,
                    ErrorKind::Unavailable,
                    format!(
                        "the ledger gave no answer within {:?}: the disk is slow, or another \
                         process holds the file",
                        self.patience
                    ),
                ))
            }
        }
    }
}

/// Who waits for an answer.
struct Caller {
    since: Instant,
    /// It was told how the call ended.
    settled: bool,
}

impl Drop for Caller {
    fn drop(&mut self) {
        if !self.settled {
            // It has given the call up before the call's own time was over.
            count_failed(abandoned::word(self.since.elapsed()));
        }
    }
}

fn count_failed(why: &'static str) {
    let why = [metrics::reason(why)];
    metrics::counters().db_errors.add(1, &why);
}

fn gone(op: &'static str) -> Error {
    Error::new(op, ErrorKind::Unavailable, "the ledger is closed")
}

/// The thread's work.
async fn serve(
    options: SqliteConnectOptions,
    mut queue: mpsc::Receiver<Job>,
    opened: oneshot::Sender<Result<(), Fault>>,
) {
    let mut line = Line {
        options,
        connection: None,
    };
    let first = line.connection().await.map(|_| ());
    let usable = first.is_ok();
    if opened.send(first).is_err() || !usable {
        return;
    }
    while let Some(job) = queue.recv().await {
        job(&mut line).await;
    }
    line.hang_up().await;
}

/// The connection; opened anew after an error that left it in doubt.
struct Line {
    options: SqliteConnectOptions,
    connection: Option<SqliteConnection>,
}

impl Line {
    async fn run<T>(
        &mut self,
        mode: Mode,
        deadline: Instant,
        work: &impl AsyncFn(&mut SqliteConnection, Millis) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let mut retries = 0;
        loop {
            match self.attempt(mode, work).await {
                Err(fault)
                    if fault.is_busy() && retries < RETRIES_MAX && Instant::now() < deadline =>
                {
                    retries += 1;
                    tokio::time::sleep(file::jitter()).await;
                }
                result => return result,
            }
        }
    }

    async fn attempt<T>(
        &mut self,
        mode: Mode,
        work: &impl AsyncFn(&mut SqliteConnection, Millis) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let mut transaction = self.connection().await?.begin_with(mode.begin()).await?;
        let result = match mode {
            Mode::Write => clock::now(&mut transaction).await,
            Mode::Read => clock::peek(&mut transaction).await,
        };
        let result = match result {
            Ok(now) => work(&mut transaction, now).await,
            Err(fault) => Err(fault),
        };
        let ended = match result {
            Ok(_) => transaction.commit().await,
            Err(_) => transaction.rollback().await,
        };
        if let Err(error) = ended {
            // SQLite may have rolled back by itself (a full disk), or may still be inside
            // the transaction: only a new connection is certain to hold no lock.
            self.hang_up().await;
            return result.and(Err(error.into()));
        }
        result
    }

    async fn connection(&mut self) -> Result<&mut SqliteConnection, Fault> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => file::open(&self.options).await?,
        };
        Ok(self.connection.insert(connection))
    }

    async fn hang_up(&mut self) {
        if let Some(connection) = self.connection.take()
            && let Err(error) = connection.close().await
        {
            tracing::warn!(%error, "the ledger's file was not closed cleanly");
        }
    }
}
