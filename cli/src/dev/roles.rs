//! The roles as child processes: started, watched, restarted, stopped.
//!
//! They are the same binary with the same command lines as in production. A child that ended
//! is started again after a pause; one that has not answered for 15 s is killed first: a
//! process stopped inside a SQLite transaction would hold the file for all others.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bellwether_sandbox::{Folder, Launch, Process, Signal, Tie, Usage};

use crate::config::key::{self, CONFIG_ENV};
use crate::exit::Result;
use crate::role::HEARTBEAT_ENV;

const RESTART_AFTER: Duration = Duration::from_secs(5);
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// One role's process, over all its starts.
#[derive(Debug)]
pub(crate) struct Role {
    pub(crate) name: String,
    program: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
    log: PathBuf,
    heartbeat: PathBuf,
    process: Option<Process>,
    ended_at: Option<Instant>,
    heard: (String, Instant),
    cpu_before: Duration,
    usage: Usage,
    starts: u32,
}

/// What a look at a role found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Nothing new.
    Fine,
    /// It ended, by itself or by a signal.
    Ended(String),
    /// It did not answer and was killed.
    Silent,
    /// It was started again.
    Restarted(u32),
}

impl Role {
    /// A role that is not started yet.
    pub(crate) fn new(folder: &Folder, name: &str, args: &[&str]) -> Result<Self> {
        let run = folder.join("run");
        std::fs::create_dir_all(&run)?;
        Ok(Self {
            name: name.to_owned(),
            // Once: a build that replaces the file must not change what is started again.
            program: std::env::current_exe()?,
            args: args.iter().map(|&arg| arg.to_owned()).collect(),
            env: Vec::new(),
            log: folder.logs()?.join(format!("{name}.log")),
            heartbeat: run.join(format!("{name}.beat")),
            process: None,
            ended_at: None,
            heard: (String::new(), Instant::now()),
            cpu_before: Duration::ZERO,
            usage: Usage {
                cpu: Duration::ZERO,
                peak_rss: 0,
            },
            starts: 0,
        })
    }

    /// Adds a variable to its environment.
    pub(crate) fn env(mut self, key: &str, value: &Path) -> Self {
        self.env.push((key.to_owned(), value.display().to_string()));
        self
    }

    fn launch(&self) -> Launch {
        let mut launch = Launch::new(&self.program, &self.log)
            .name(&self.name)
            .args(&self.args)
            .env(HEARTBEAT_ENV, &self.heartbeat)
            .tie(Tie::Stdin);
        // Variables win over the file: the children must use what `dev` made.
        let of_system = key::all().filter(|key| key.section.is_empty());
        for name in of_system
            .map(key::Key::variable)
            .chain([CONFIG_ENV.to_owned()])
        {
            launch = launch.env_remove(name);
        }
        for (key, value) in &self.env {
            launch = launch.env(key, value);
        }
        launch
    }

    /// The command line, as one would type it.
    pub(crate) fn command_line(&self) -> String {
        self.launch().command_line()
    }

    /// Starts it.
    pub(crate) fn start(&mut self) -> Result<()> {
        self.process = Some(self.launch().spawn()?);
        self.ended_at = None;
        self.heard.1 = Instant::now();
        self.starts += 1;
        Ok(())
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// The end of its log.
    pub(crate) fn log_tail(&self) -> String {
        bellwether_sandbox::tail(&self.log)
    }

    pub(crate) fn log(&self) -> &Path {
        &self.log
    }

    /// Looks after it once: samples its usage, notices its end, starts it again when due.
    pub(crate) fn look(&mut self) -> Result<Seen> {
        let Some(process) = &mut self.process else {
            let due = self
                .ended_at
                .is_some_and(|at| at.elapsed() >= RESTART_AFTER);
            if !due {
                return Ok(Seen::Fine);
            }
            self.start()?;
            return Ok(Seen::Restarted(self.starts));
        };
        if let Ok(usage) = process.usage() {
            self.usage.cpu = self.cpu_before + usage.cpu;
            self.usage.peak_rss = self.usage.peak_rss.max(usage.peak_rss);
        }
        if let Some(status) = process.try_wait()? {
            self.left();
            return Ok(Seen::Ended(status.to_string()));
        }
        // A heartbeat that is not written yet counts from the start.
        let beat = std::fs::read_to_string(&self.heartbeat).unwrap_or_default();
        if beat != self.heard.0 {
            self.heard = (beat, Instant::now());
        } else if self.heard.1.elapsed() > SILENCE_MAX {
            process.kill()?;
            self.left();
            return Ok(Seen::Silent);
        }
        Ok(Seen::Fine)
    }

    fn left(&mut self) {
        self.process = None;
        self.cpu_before = self.usage.cpu;
        self.ended_at = Some(Instant::now());
    }

    /// SIGSTOP.
    pub(crate) async fn pause(&mut self) -> Result<()> {
        match &mut self.process {
            Some(process) => Ok(process.pause().await?),
            None => Ok(()),
        }
    }

    /// SIGCONT.
    pub(crate) fn resume(&mut self) -> Result<()> {
        match &mut self.process {
            Some(process) => Ok(process.resume()?),
            None => Ok(()),
        }
    }

    /// SIGKILL; started again after a pause.
    pub(crate) fn kill(&mut self) -> Result<()> {
        if let Some(process) = &mut self.process {
            if let Ok(usage) = process.usage() {
                self.usage.cpu = self.cpu_before + usage.cpu;
                self.usage.peak_rss = self.usage.peak_rss.max(usage.peak_rss);
            }
            process.kill()?;
            self.left();
        }
        Ok(())
    }

    /// SIGTERM, then SIGKILL when it takes too long.
    pub(crate) async fn stop(&mut self, within: Duration) -> Result<()> {
        if let Some(mut process) = self.process.take() {
            process.end(Signal::TERM, within).await?;
        }
        Ok(())
    }

    /// CPU time over all starts and the highest peak of memory.
    pub(crate) fn usage(&self) -> Usage {
        self.usage
    }
}
