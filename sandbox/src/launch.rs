//! How a child is started, and what ties it to the process that starts it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::{Error, Process, Signal, User};

/// Set to `1` in the environment of a child started with [`Tie::Stdin`].
pub const TIED_ENV: &str = "BELLWETHER_TIED";

const WATCH: &str = include_str!("watch.sh");

/// What makes a child end together with the process that started it, even when that process is
/// killed by SIGKILL.
///
/// Both kinds rest on a pipe to which only the starter holds the writing end: the kernel closes it
/// when the starter ends, however it ends, and the reader sees the end of the file.
#[derive(Debug, Clone)]
pub enum Tie {
    /// A small shell process reads the pipe and ends the child. Works for any program, also for
    /// one that hangs or is paused. The child's own stdin is empty.
    Watcher {
        /// The signal that ends the child, for example [`Signal::KILL`].
        signal: Signal,
        /// If the child still runs this long after `signal`, it gets SIGKILL; in steps of 0.1 s.
        grace: Duration,
        /// A folder to remove once the child is gone, since the starter no longer can.
        remove: Option<PathBuf>,
    },
    /// The pipe is the child's stdin and the child watches it by itself: for programs that call
    /// [`parent_gone`]. Costs no further process, but a child that is paused or hangs stays.
    Stdin,
}

impl Default for Tie {
    /// A watcher that ends the child with SIGKILL at once and removes nothing.
    fn default() -> Self {
        Self::Watcher {
            signal: Signal::KILL,
            grace: Duration::ZERO,
            remove: None,
        }
    }
}

/// A child process to be started: a program, its arguments, environment and log.
///
/// The child gets a process group of its own, so that Ctrl-C on the terminal reaches only the
/// process in front, which then ends its children in the order it chooses.
#[derive(Debug, Clone)]
pub struct Launch {
    name: String,
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, Option<OsString>)>,
    current_dir: Option<PathBuf>,
    log: PathBuf,
    user: Option<User>,
    tie: Tie,
}

impl Launch {
    /// A child that runs `program` (a path, or a name to be found on PATH) and appends all that it
    /// prints to the file `log`. Tied by a watcher with SIGKILL unless [`tie`](Self::tie) says
    /// otherwise.
    pub fn new(program: impl Into<PathBuf>, log: impl Into<PathBuf>) -> Self {
        let program = program.into();
        let name = program.file_name().unwrap_or(program.as_os_str());
        Self {
            name: name.to_string_lossy().into_owned(),
            program,
            args: Vec::new(),
            env: Vec::new(),
            current_dir: None,
            log: log.into(),
            user: None,
            tie: Tie::default(),
        }
    }

    /// What messages call the child, for example `worker-2`; default: the program's file name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Adds one argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args
            .extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets a variable of the child's environment, which otherwise is this process's own.
    #[must_use]
    pub fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env
            .push((key.as_ref().to_owned(), Some(value.as_ref().to_owned())));
        self
    }

    /// Takes a variable out of the child's environment.
    #[must_use]
    pub fn env_remove(mut self, key: impl AsRef<OsStr>) -> Self {
        self.env.push((key.as_ref().to_owned(), None));
        self
    }

    /// The child's working folder; default: this process's own.
    #[must_use]
    pub fn current_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.current_dir = Some(folder.into());
        self
    }

    /// Runs the child as another user (only root can); `None`: as this process's own.
    #[must_use]
    pub fn user(mut self, user: Option<User>) -> Self {
        self.user = user;
        self
    }

    /// What ties the child to this process.
    #[must_use]
    pub fn tie(mut self, tie: Tie) -> Self {
        self.tie = tie;
        self
    }

    /// The command line as one would type it, for showing; see [`spawn`](Self::spawn).
    pub fn command_line(&self) -> String {
        let words = std::iter::once(self.program.as_os_str()).chain(self.args.iter().map(|a| &**a));
        words.map(quoted).collect::<Vec<_>>().join(" ")
    }

    /// Starts the child.
    ///
    /// # Errors
    ///
    /// [`Error::Spawn`] if the program does not exist or cannot be run, [`Error::Io`] if the log
    /// cannot be opened.
    pub fn spawn(self) -> Result<Process, Error> {
        let program = self.resolved()?;
        let (out, err) = self.open_log()?;
        let mut command = match &self.tie {
            Tie::Stdin => Command::new(&program),
            Tie::Watcher {
                signal,
                grace,
                remove,
            } => {
                let mut shell = Command::new("/bin/sh");
                shell.args(["-c", &watch_script(), "watch"]);
                shell.arg(signal.as_raw().to_string());
                shell.arg((grace.as_millis() / 100).to_string());
                shell.arg(remove.as_deref().unwrap_or(Path::new("")));
                shell.arg(&program);
                shell
            }
        };
        command
            .args(&self.args)
            .stdin(Stdio::piped())
            .stdout(out)
            .stderr(err)
            .process_group(0);
        match &self.tie {
            Tie::Stdin => command.env(TIED_ENV, "1"),
            Tie::Watcher { .. } => command.env_remove(TIED_ENV),
        };
        for (key, value) in &self.env {
            match value {
                Some(value) => command.env(key, value),
                None => command.env_remove(key),
            };
        }
        if let Some(folder) = &self.current_dir {
            command.current_dir(folder);
        }
        if let Some(user) = self.user {
            command.uid(user.uid).gid(user.gid);
        }
        let child = command
            .spawn()
            .map_err(|source| Error::Spawn { program, source })?;
        Ok(Process::new(self.name, child, self.log))
    }

    /// The program as an absolute path. Looked up here, because the shell that starts it could
    /// only say so in the log.
    fn resolved(&self) -> Result<PathBuf, Error> {
        crate::find::program(&self.program).ok_or_else(|| Error::Spawn {
            program: self.program.clone(),
            source: std::io::Error::new(std::io::ErrorKind::NotFound, "no such program"),
        })
    }

    fn open_log(&self) -> Result<(File, File), Error> {
        let doing = || format!("open the log {}", self.log.display());
        let out = File::options().create(true).append(true).open(&self.log);
        let out = out.map_err(Error::io(doing()))?;
        let err = out.try_clone().map_err(Error::io(doing()))?;
        Ok((out, err))
    }
}

/// Completes when the process that started this one with [`Tie::Stdin`] has ended.
///
/// Never completes in a process that was started in any other way ([`TIED_ENV`] is not set), so
/// that a service run with an empty stdin, as by systemd, does not stop at once. To be awaited
/// once in the life of a process; it reads stdin.
pub async fn parent_gone() {
    if std::env::var_os(TIED_ENV).is_none_or(|value| value != "1") {
        return std::future::pending().await;
    }
    let (sender, receiver) = tokio::sync::oneshot::channel();
    // A thread of its own: a read of stdin in the runtime's pool would keep the runtime from
    // shutting down when the process wants to end first.
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while std::io::stdin()
            .lock()
            .read(&mut buffer)
            .is_ok_and(|n| n > 0)
        {}
        let _nobody_waits_any_more = sender.send(());
    });
    if receiver.await.is_err() {
        // The thread sends before it ends, so this is a panic in it: no news about the parent.
        std::future::pending::<()>().await;
    }
}

/// The script without its comments, since all of it is seen in the list of processes.
fn watch_script() -> String {
    WATCH
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .collect::<Vec<_>>()
        .join("\n")
}

fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_can_be_pasted_into_a_shell() {
        let launch = Launch::new("/bin/echo", "/dev/null").args(["a=b", "it's 5", ""]);
        assert_eq!(launch.command_line(), r"/bin/echo a=b 'it'\''s 5' ''");
    }
}
