//! The binary as a user's command.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

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

/// Runs the binary in a folder, with variables of its own.
pub(crate) async fn bellwether_in(folder: &Path, env: &[(&str, &str)], args: &[&str]) -> Answer {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_bellwether"));
    for name in bellwether_variables() {
        command.env_remove(name);
    }
    command
        .args(args)
        .envs(env.iter().copied())
        .current_dir(folder)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = tokio::time::timeout(Duration::from_mins(2), command.output());
    let output = output
        .await
        .unwrap_or_else(|_| panic!("{args:?} hangs"))
        .unwrap();
    Answer {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}
