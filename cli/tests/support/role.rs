//! One process under test.

use std::time::{Duration, Instant};

use bellwether_sandbox::{Launch, Process, Signal, TIED_ENV};

use super::SOON;

/// A running role. When a test fails, the end of its log is printed.
pub(crate) struct Role {
    process: Process,
}

impl Role {
    pub(crate) fn start(launch: Launch) -> Self {
        Self {
            process: launch.spawn().unwrap(),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }

    /// All that it printed so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.process.log()).unwrap()
    }

    /// SIGKILL. Answers the moment before the signal.
    pub(crate) fn kill(&mut self) -> Instant {
        assert!(
            self.is_running(),
            "{} was to be killed and runs no more",
            self.process.name()
        );
        let before = Instant::now();
        self.process.kill().unwrap();
        before
    }

    /// SIGSTOP.
    pub(crate) async fn pause(&mut self) {
        self.process.pause().await.unwrap();
    }

    /// SIGCONT.
    pub(crate) fn resume(&mut self) {
        self.process.resume().unwrap();
    }

    /// Sends `signal` and waits for the end: the exit code and the time it took.
    pub(crate) async fn end(&mut self, signal: Signal) -> (Option<i32>, Duration) {
        let before = Instant::now();
        let status = self.process.end(signal, SOON).await.unwrap();
        (status.code(), before.elapsed())
    }

    /// Waits for it to end by itself.
    pub(crate) async fn ended(&mut self, within: Duration) -> Option<i32> {
        self.process.wait(within).await.unwrap().code()
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "--- the end of the log of {}:\n{}",
                self.process.name(),
                self.process.log_tail()
            );
        }
    }
}

/// Takes out of a child's environment what would configure it behind the test's back.
pub(crate) fn clean_environment(mut launch: Launch) -> Launch {
    for name in bellwether_variables() {
        launch = launch.env_remove(name);
    }
    launch
}

/// The variables of this process that configure the binary under test.
pub(crate) fn bellwether_variables() -> impl Iterator<Item = String> {
    std::env::vars()
        .map(|(name, _)| name)
        .filter(|name| name.starts_with("BELLWETHER_") || name.starts_with("OTEL_"))
        .filter(|name| !name.starts_with("BELLWETHER_TEST_"))
        .chain([TIED_ENV.to_owned()])
}
