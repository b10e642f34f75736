//! The binary as a user's command.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use bellwether_sandbox::Signal;
use rustix::process::Pid;
use tokio::process::Child;

use super::role::bellwether_variables;

/// How a command ended and what it printed.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Answer {
    /// The one JSON document on stdout.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Fails unless it ended with `code`.
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }

    /// Fails unless it refused with `code`, nothing on stdout and one line on stderr that says
    /// each of `words`.
    pub(crate) fn refused(self, code: i32, words: &[&str]) -> Self {
        let answer = self.expect(code);
        assert_eq!(answer.stdout, "", "{answer:#?}");
        assert_eq!(answer.stderr.lines().count(), 1, "{answer:#?}");
        assert!(answer.stderr.starts_with("bellwether: "), "{answer:#?}");
        for word in words {
            assert!(answer.stderr.contains(word), "no {word:?} in {answer:#?}");
        }
        answer
    }
}

/// A command that runs.
pub(crate) struct Command {
    child: Child,
    what: String,
}

impl Command {
    /// Starts the binary in a folder, with variables of its own.
    pub(crate) fn start(folder: &Path, env: &[(&str, &str)], args: &[&str]) -> Self {
        let binary = tokio::process::Command::new(env!("CARGO_BIN_EXE_bellwether"));
        Self::spawn(binary, folder, env, args)
    }

    /// The same with stderr written to stdout: what it says stands in the order in which it says it.
    pub(crate) fn start_in_order(folder: &Path, env: &[(&str, &str)], args: &[&str]) -> Self {
        let mut shell = tokio::process::Command::new("sh");
        let binary = env!("CARGO_BIN_EXE_bellwether");
        shell.args(["-c", r#"exec "$0" "$@" 2>&1"#, binary]);
        Self::spawn(shell, folder, env, args)
    }

    fn spawn(
        mut command: tokio::process::Command,
        folder: &Path,
        env: &[(&str, &str)],
        args: &[&str],
    ) -> Self {
        for name in bellwether_variables() {
            command.env_remove(name);
        }
        command
            .args(args)
            .envs(env.iter().copied())
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let what = args.join(" ").chars().take(200).collect();
        let child = command.spawn().unwrap();
        Self { child, what }
    }

    /// Sends a signal to it alone. It is not collected before [`Self::answer`]: the id is still its own.
    pub(crate) fn signal(&self, signal: Signal) {
        let id = self.child.id().unwrap();
        let pid = Pid::from_raw(i32::try_from(id).unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits for its end.
    pub(crate) async fn answer(self) -> Answer {
        let Self { child, what } = self;
        let output = tokio::time::timeout(Duration::from_mins(2), child.wait_with_output());
        let output = output
            .await
            .unwrap_or_else(|_| panic!("{what} hangs"))
            .unwrap();
        Answer {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// Runs the binary in a folder, with variables of its own.
pub(crate) async fn bellwether_in(folder: &Path, env: &[(&str, &str)], args: &[&str]) -> Answer {
    Command::start(folder, env, args).answer().await
}
