//! Children: their signals, their end, their log and what they used.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::Duration;

use bellwether_sandbox::{Error, Identity, Launch, Process, Signal, Tie, eventually, usage};
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(10);

struct Scene {
    folder: TempDir,
}

impl Scene {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn sh(&self, script: &str) -> Launch {
        Launch::new("sh", self.folder.path().join("log")).args(["-c", script])
    }
}

async fn says(process: &Process, line: &str) {
    eventually(line, SOON, async || process.log_tail().contains(line))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_child_has_its_own_pid_environment_folder_log_and_exit_code() {
    let scene = Scene::new();
    let mut child = scene
        .sh("echo pid=$$ dir=$(pwd) a=$A home=${HOME-none}; echo oops >&2; read x || exit 7")
        .env("A", "b c")
        .env_remove("HOME")
        .current_dir("/usr")
        .spawn()
        .unwrap();
    assert_eq!(child.wait(SOON).await.unwrap().code(), Some(7));
    let expected = format!("pid={} dir=/usr a=b c home=none\noops", child.pid());
    assert_eq!(child.log_tail(), expected);
    assert!(matches!(
        child.signal(Signal::TERM),
        Err(Error::NotRunning { .. })
    ));
    assert!(matches!(child.usage(), Err(Error::Io { .. })));
}

#[tokio::test]
async fn signals_reach_the_program_itself() {
    let scene = Scene::new();
    let script = "trap 'echo quit' QUIT; trap 'echo int' INT; trap 'exit 3' TERM; echo up
        while :; do sleep 0.02; done";
    let mut child = scene.sh(script).spawn().unwrap();
    says(&child, "up").await;
    child.signal(Signal::INT).unwrap();
    says(&child, "int").await;
    child.signal(Signal::QUIT).unwrap();
    says(&child, "quit").await;
    assert_eq!(child.end(Signal::TERM, SOON).await.unwrap().code(), Some(3));
}

#[tokio::test]
async fn a_paused_child_stands_still_and_goes_on() {
    let scene = Scene::new();
    let mut child = scene
        .sh("while :; do echo tick; sleep 0.02; done")
        .spawn()
        .unwrap();
    says(&child, "tick").await;
    let identity = Identity::of(child.pid()).unwrap();
    child.pause().await.unwrap();
    assert!(identity.is_paused());
    let length = || std::fs::metadata(child.log()).unwrap().len();
    let before = length();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(length(), before);
    child.resume().unwrap();
    let length = || std::fs::metadata(child.log()).unwrap().len();
    eventually("ticks again", SOON, async || length() > before)
        .await
        .unwrap();
    assert_eq!(child.kill().unwrap().signal(), Some(9));
    assert!(!identity.is_running());
}

#[tokio::test]
async fn a_child_that_does_not_obey_is_killed_and_that_is_said() {
    let scene = Scene::new();
    let mut child = scene
        .sh("trap '' TERM; echo deaf; while :; do sleep 0.02; done")
        .spawn()
        .unwrap();
    says(&child, "deaf").await;
    let error = child
        .end(Signal::TERM, Duration::from_millis(200))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::TooSlow { .. }), "{error}");
    assert!(error.to_string().contains("deaf"), "{error}");
    assert_eq!(child.try_wait().unwrap().unwrap().signal(), Some(9));
}

#[tokio::test]
async fn usage_counts_cpu_and_memory() {
    let scene = Scene::new();
    let mut child = scene
        .sh("n=0; while :; do n=$((n + 1)); done")
        .spawn()
        .unwrap();
    let busy = Duration::from_millis(200);
    eventually("used 0.2 s of CPU", SOON, async || {
        child.usage().unwrap().cpu >= busy
    })
    .await
    .unwrap();
    let own = usage(std::process::id()).unwrap();
    assert!(own.peak_rss > 1 << 20 && own.peak_rss < 1 << 34, "{own:?}");
    child.kill().unwrap();
}

#[tokio::test]
async fn a_program_that_does_not_exist_is_an_error_at_once() {
    let scene = Scene::new();
    let log = scene.folder.path().join("log");
    let error = Launch::new("/no/such/program", log).spawn().unwrap_err();
    assert!(matches!(error, Error::Spawn { .. }), "{error}");
    assert!(error.to_string().contains("/no/such/program"), "{error}");
}

/// The number of processes of the group that still run: a child leads a group of its own.
fn family(group: u32) -> usize {
    let stats = std::fs::read_dir("/proc").unwrap().flatten();
    stats.filter(|entry| belongs(&entry.path(), group)).count()
}

fn belongs(path: &Path, group: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(path.join("stat")) else {
        return false;
    };
    let Some((_, rest)) = stat.rsplit_once(") ") else {
        return false;
    };
    let fields: Vec<&str> = rest.split(' ').collect();
    fields[0] != "Z" && fields[2] == group.to_string()
}

#[tokio::test]
async fn a_watcher_ends_with_its_child() {
    let scene = Scene::new();
    let mut child = scene.sh("exec sleep 1000").spawn().unwrap();
    let group = child.pid();
    eventually("child and watcher", SOON, async || family(group) == 2)
        .await
        .unwrap();
    child.kill().unwrap();
    eventually("nobody is left", SOON, async || family(group) == 0)
        .await
        .unwrap();

    let mut brief = scene.sh("exit 0").spawn().unwrap();
    let group = brief.pid();
    brief.wait(SOON).await.unwrap();
    eventually("nobody is left", SOON, async || family(group) == 0)
        .await
        .unwrap();
}

#[tokio::test]
async fn only_a_child_tied_by_stdin_is_told_so_and_waits_on_its_stdin() {
    let scene = Scene::new();
    let script = "echo tied=$BELLWETHER_TIED.; read x; echo eof";
    let mut tied = scene.sh(script).tie(Tie::Stdin).spawn().unwrap();
    says(&tied, "tied=1.").await;
    assert_eq!(tied.try_wait().unwrap(), None);
    assert!(!tied.log_tail().contains("eof"));
    tied.kill().unwrap();

    let scene = Scene::new();
    let mut watched = scene.sh(script).spawn().unwrap();
    watched.wait(SOON).await.unwrap();
    assert_eq!(watched.log_tail(), "tied=.\neof");
}
