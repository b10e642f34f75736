//! A running child: its signals, its end and its log.

use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::Instant;

use crate::{Error, Identity, Usage, tail};

/// How long to wait between two looks at whether a child has ended.
const PAUSE: Duration = Duration::from_millis(5);

/// A child started by [`Launch::spawn`](crate::Launch::spawn).
///
/// Dropping it kills the child with SIGKILL and waits until it is gone.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    /// The end of the pipe whose closing tells the child's watcher that we are gone. Kept until
    /// the child has been seen to end.
    tie: Option<ChildStdin>,
    log: PathBuf,
    ended: Option<ExitStatus>,
}

impl Process {
    pub(crate) fn new(name: String, mut child: Child, log: PathBuf) -> Self {
        let tie = child.stdin.take();
        Self {
            name,
            child,
            tie,
            log,
            ended: None,
        }
    }

    /// What messages call this child.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id, which stays its own until its end has been seen by a method of this type.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The file that holds all that it printed.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The last 4 KiB of what it printed.
    pub fn log_tail(&self) -> String {
        tail(&self.log)
    }

    /// CPU time and peak memory so far.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if it has ended: ask before you stop it.
    pub fn usage(&self) -> Result<Usage, Error> {
        crate::usage(self.pid())
    }

    /// How it ended, or `None` while it runs.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the system cannot say.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>, Error> {
        if self.ended.is_none() {
            let doing = format!("wait for {}", self.name);
            self.ended = self.child.try_wait().map_err(Error::io(doing))?;
            if self.ended.is_some() {
                self.tie = None;
            }
        }
        Ok(self.ended)
    }

    /// Waits until it has ended, at most for `within`, and says how.
    ///
    /// # Errors
    ///
    /// [`Error::TooSlow`] if it still runs then.
    pub async fn wait(&mut self, within: Duration) -> Result<ExitStatus, Error> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                return Err(self.too_slow("end", within));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Sends it a signal.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`] if it has ended.
    pub fn signal(&mut self, signal: Signal) -> Result<(), Error> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        // Collected first: until then nobody else can have got its process id.
        match (self.try_wait()?, pid) {
            (None, Some(pid)) => kill_process(pid, signal)
                .map_err(|errno| Error::io(format!("signal {}", self.name))(errno.into())),
            _ => Err(Error::NotRunning {
                name: self.name.clone(),
            }),
        }
    }

    /// Kills it with SIGKILL and waits until it is gone. Fine if it has ended already.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the system refuses.
    pub fn kill(&mut self) -> Result<ExitStatus, Error> {
        if let Some(status) = self.try_wait()? {
            return Ok(status);
        }
        let doing = format!("kill {}", self.name);
        let status = self
            .child
            .kill()
            .and_then(|()| self.child.wait())
            .map_err(Error::io(doing))?;
        self.ended = Some(status);
        self.tie = None;
        Ok(status)
    }

    /// Asks it to end with `signal`, waits at most `within`, then kills it with SIGKILL.
    ///
    /// A paused child is continued, since it could not obey otherwise.
    ///
    /// # Errors
    ///
    /// [`Error::TooSlow`] if SIGKILL was needed; it is gone then all the same.
    pub async fn end(&mut self, signal: Signal, within: Duration) -> Result<ExitStatus, Error> {
        if let Some(status) = self.try_wait()? {
            return Ok(status);
        }
        self.signal(signal)?;
        self.signal(Signal::CONT).or_else(unless_gone)?;
        match self.wait(within).await {
            Err(too_slow @ Error::TooSlow { .. }) => {
                self.kill()?;
                Err(too_slow)
            }
            other => other,
        }
    }

    /// Like [`end`](Self::end), for where nothing can be awaited: drop.
    pub(crate) fn end_blocking(&mut self, signal: Signal, within: Duration) -> Result<(), Error> {
        let deadline = std::time::Instant::now() + within;
        self.signal(signal)?;
        self.signal(Signal::CONT).or_else(unless_gone)?;
        while self.try_wait()?.is_none() && std::time::Instant::now() < deadline {
            std::thread::sleep(PAUSE);
        }
        self.kill().map(|_status| ())
    }

    /// Stops it where it stands with SIGSTOP and waits until it stands.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`] if it has ended, [`Error::Never`] if it does not stop within 5 s.
    pub async fn pause(&mut self) -> Result<(), Error> {
        self.signal(Signal::STOP)?;
        let identity = Identity::of(self.pid())?;
        let what = format!("pause of {}", self.name);
        crate::eventually(&what, Duration::from_secs(5), async || identity.is_paused()).await
    }

    /// Lets a paused child go on.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`] if it has ended.
    pub fn resume(&mut self) -> Result<(), Error> {
        self.signal(Signal::CONT)
    }

    /// Waits until `ready` answers true; fails at once if the child ends before.
    ///
    /// Not an `AsyncFnMut`: a future with one in it cannot be spawned by callers.
    pub(crate) async fn until_ready<Fut: Future<Output = bool>>(
        &mut self,
        within: Duration,
        mut ready: impl FnMut() -> Fut,
    ) -> Result<(), Error> {
        let deadline = Instant::now() + within;
        loop {
            let is_ready = ready().await;
            if let Some(status) = self.try_wait()? {
                let (name, log) = (self.name.clone(), self.log_tail());
                return Err(Error::Exited { name, status, log });
            }
            if is_ready {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(self.too_slow("answer", within));
            }
            tokio::time::sleep(PAUSE * 4).await;
        }
    }

    fn too_slow(&self, what: &'static str, within: Duration) -> Error {
        Error::TooSlow {
            name: self.name.clone(),
            what,
            within,
            log: self.log_tail(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nobody is left to hear of an error; closing the pipe ends the child as well.
        let _best_effort = self.kill();
    }
}

/// A child that ended between two signals has obeyed the first.
fn unless_gone(error: Error) -> Result<(), Error> {
    match error {
        Error::NotRunning { .. } => Ok(()),
        other => Err(other),
    }
}
