//! Nothing outlives the process that started it: the wrapper `bellwether-sandbox run` is ended in
//! every way, and its servers must be gone.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bellwether_sandbox::{Identity, Signal, TIED_ENV, eventually, shared};
use rustix::process::{Pid, kill_process};
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(20);

/// A wrapper with servers of its own in a temporary folder of its own.
struct Wrapper {
    child: Child,
    tmp: TempDir,
}

impl Wrapper {
    fn run(script: &str) -> Self {
        Self::start(script, "")
    }

    /// One that watches its stdin, as the child of a starter that ties it so.
    fn run_tied(script: &str) -> Self {
        Self::start(script, "1")
    }

    fn start(script: &str, tied: &str) -> Self {
        let tmp = tempfile::tempdir().unwrap();
        // As open as /tmp: Postgres runs as another user when we are root, and its watcher removes
        // its folder.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
        std::fs::set_permissions(tmp.path(), open).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_bellwether-sandbox"))
            .args(["run", "--", "sh", "-c", script, "sh"])
            .arg(tmp.path())
            .env("TMPDIR", tmp.path())
            .env_remove(shared::NATS_URL_ENV)
            .env_remove(shared::POSTGRES_URL_ENV)
            .env(TIED_ENV, tied)
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, tmp }
    }

    /// The process id that the script writes into the file `command` once it runs.
    async fn command(&self) -> Identity {
        let path = self.tmp.path().join("command");
        let pid = || {
            std::fs::read_to_string(&path)
                .ok()?
                .strip_suffix('\n')?
                .parse()
                .ok()
        };
        eventually("the command runs", SOON, async || pid().is_some())
            .await
            .unwrap();
        Identity::of(pid().unwrap()).unwrap()
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    /// The folders of its servers that are still there.
    fn folders(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.tmp.path()).unwrap().flatten();
        let server = |path: &PathBuf| path.to_string_lossy().contains("/bellwether-");
        entries.map(|entry| entry.path()).filter(server).collect()
    }

    /// All processes that were started with something in this wrapper's folder as an argument.
    fn servers(&self) -> Vec<Identity> {
        let needle = format!("{}/bellwether-", self.tmp.path().display());
        let pids = std::fs::read_dir("/proc").unwrap().flatten();
        pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|pid: &u32| {
                std::fs::read(format!("/proc/{pid}/cmdline"))
                    .is_ok_and(|line| String::from_utf8_lossy(&line).contains(&needle))
            })
            .filter_map(|pid| Identity::of(pid).ok())
            .collect()
    }

    async fn is_all_gone(&self) {
        let gone = async || self.servers().iter().all(|server| !server.is_running());
        eventually("all servers are gone", SOON, gone)
            .await
            .unwrap();
        let removed = async || self.folders().is_empty();
        eventually("their folders are removed", SOON, removed)
            .await
            .unwrap();
    }
}

fn expected_servers() -> usize {
    // A nats-server and its watcher, the postmaster and its watcher.
    if shared::postgres_is_skipped() { 2 } else { 4 }
}

const STAY: &str = "echo $$ > $1/command; exec sleep 600";

#[tokio::test]
async fn after_sigkill_of_the_starter_no_server_is_left() {
    let mut wrapper = Wrapper::run(STAY);
    let command = wrapper.command().await;
    let servers = wrapper.servers();
    assert!(servers.len() >= expected_servers(), "{servers:?}");
    // One that is paused can obey nothing but SIGKILL; the tie must hold for it too.
    let nats = servers
        .iter()
        .map(|s| Pid::from_raw(i32::try_from(s.pid()).unwrap()).unwrap());
    for pid in nats {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        if name.starts_with("nats-server") {
            kill_process(pid, Signal::STOP).unwrap();
        }
    }

    wrapper.signal(Signal::KILL);
    wrapper.child.wait().unwrap();
    wrapper.is_all_gone().await;
    assert!(servers.iter().all(|server| !server.is_running()));
    // The command itself is the caller's, not tied.
    let pid = Pid::from_raw(i32::try_from(command.pid()).unwrap()).unwrap();
    assert!(command.is_running());
    kill_process(pid, Signal::KILL).unwrap();
}

#[tokio::test]
async fn sigterm_ends_the_command_and_then_the_servers() {
    let mut wrapper = Wrapper::run(STAY);
    let command = wrapper.command().await;
    wrapper.signal(Signal::TERM);
    let status = wrapper.child.wait().unwrap();
    assert_eq!(status.code(), Some(128 + 15));
    assert!(!command.is_running());
    wrapper.is_all_gone().await;
}

#[tokio::test]
async fn a_program_that_is_tied_by_stdin_sees_the_end_of_its_starter() {
    let mut wrapper = Wrapper::run_tied(STAY);
    let command = wrapper.command().await;
    assert_eq!(wrapper.child.try_wait().unwrap(), None);
    // What the kernel does when the starter ends.
    drop(wrapper.child.stdin.take());
    assert_eq!(wrapper.child.wait().unwrap().code(), Some(128 + 15));
    assert!(!command.is_running());
    wrapper.is_all_gone().await;
}

#[tokio::test]
async fn a_program_that_is_not_tied_does_not_mind_the_end_of_its_stdin() {
    let mut wrapper = Wrapper::run("sleep 0.3; exit 5");
    drop(wrapper.child.stdin.take());
    assert_eq!(wrapper.child.wait().unwrap().code(), Some(5));
    wrapper.is_all_gone().await;
}

#[tokio::test]
async fn the_command_gets_both_addresses_and_its_code_is_handed_on() {
    let script = "echo \"$BELLWETHER_TEST_NATS_URL\" > $1/nats
        echo \"$BELLWETHER_TEST_PG_URL\" > $1/pg; exit 41";
    let mut wrapper = Wrapper::run(script);
    assert_eq!(wrapper.child.wait().unwrap().code(), Some(41));
    let read = |name| std::fs::read_to_string(wrapper.tmp.path().join(name)).unwrap();
    assert!(
        read("nats").starts_with("nats://127.0.0.1:"),
        "{}",
        read("nats")
    );
    if !shared::postgres_is_skipped() {
        assert!(
            read("pg").starts_with("postgres://postgres@127.0.0.1:"),
            "{}",
            read("pg")
        );
    }
    wrapper.is_all_gone().await;
}

#[test]
fn a_wrong_command_line_is_refused_with_the_usage() {
    let output = Command::new(env!("CARGO_BIN_EXE_bellwether-sandbox"))
        .arg("walk")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("usage: "));
}
