//! The worker's own configuration: what is in force, and what is refused.

use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::time::Duration;

use bellwether_sandbox::Signal;

use crate::support::{Cluster, bellwether_in, until};

const DATABASE: (&str, &str) = ("BELLWETHER_DATABASE_URL", "sqlite:none.db");

#[tokio::test]
async fn r35_print_config_says_what_is_in_force_and_reaches_no_server() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["worker", "--demo", "--print-config", "-o", "json"];
    let shown = async |more: &[&str]| {
        let answer = bellwether_in(folder.path(), &[DATABASE], &[&args[..], more].concat()).await;
        let rows: serde_json::Value = serde_json::from_str(&answer.expect(0).stdout).unwrap();
        move |setting: &str| {
            let rows = rows.as_array().unwrap();
            let row = rows.iter().find(|row| row["setting"] == setting).unwrap();
            row["value"].clone()
        }
    };
    let cpus = std::thread::available_parallelism().unwrap().get();
    let value = shown(&[]).await;
    assert_eq!(value("max_concurrent"), cpus.max(2));
    assert_eq!(value("prefetch"), value("max_concurrent"));
    assert_eq!(value("queues"), serde_json::json!(["demo"]));
    assert_eq!(value("kill_after"), "1m");
    assert_eq!(value("stop_needs")["total"], "42s");
    assert_eq!(value("persist.high_water"), 512);
    for (clock, default) in [
        ("unclaimed_max", "four fifths of the consumer's AckWait"),
        ("unstarted_max", "2s"),
        ("ahead_max", "1s"),
        ("runtime_max", "2m"),
        ("compare_every", "10s"),
        ("compare_failing_max", "30s"),
        ("probe_timeout", "30s"),
    ] {
        assert_eq!(value(clock), default, "{clock}");
    }
    let args = ["--unclaimed-max", "5s"];
    let more = ["--runtime-max", "5m", "--leaked-max", "1"];
    let value = shown(&[&args[..], &more].concat()).await;
    let chosen = ["unclaimed_max", "runtime_max"].map(&value);
    assert_eq!(chosen, ["5s", "5m"]);
    assert_eq!(value("leaked_max"), 1);
    let value = shown(&["--max-concurrent", "64", "--prefetch", "8"]).await;
    assert_eq!(
        (value("max_concurrent"), value("prefetch")),
        (64.into(), 8.into())
    );
}

#[tokio::test]
async fn clocks_that_contradict_each_other_are_refused_with_both_and_who_set_them() {
    let folder = tempfile::tempdir().unwrap();
    let kill_after = ("BELLWETHER_WORKER_KILL_AFTER", "30s");
    let args = ["worker", "--demo", "--drain", "25s"];
    let answer = bellwether_in(folder.path(), &[DATABASE, kill_after], &args).await;
    answer.refused(
        2,
        &[
            "kill_after of 30s",
            "worker.kill_after = 30s (variable BELLWETHER_WORKER_KILL_AFTER)",
            "worker.drain = 25s (flag --drain)",
        ],
    );
}

#[tokio::test]
async fn r99_a_kill_budget_that_is_too_small_is_refused_wherever_it_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let numbers = ["kill_after of 30s", "drain limit 30s", "= 42s"];
    let worker = ["worker", "--demo"];
    bellwether_in(
        folder,
        &[DATABASE],
        &["worker", "--demo", "--kill-after", "30s"],
    )
    .await
    .refused(2, &numbers);
    let variable = ("BELLWETHER_WORKER_KILL_AFTER", "30s");
    bellwether_in(folder, &[DATABASE, variable], &worker)
        .await
        .refused(2, &numbers);
    let file = "database_url = 'sqlite:none.db'\n[worker]\nkill_after = '30s'\n";
    std::fs::write(folder.join("bellwether.toml"), file).unwrap();
    bellwether_in(folder, &[], &worker)
        .await
        .refused(2, &numbers);
}

/// Linux's `O_NONBLOCK`: a pipe that nobody reads cannot be opened for writing.
const NONBLOCK: i32 = 0o4000;

/// A shard of the report reads the list of its roots on a thread that nothing can stop: here from a
/// pipe into which nobody writes.
#[tokio::test(flavor = "multi_thread")]
async fn p53_a_handler_that_blocks_cannot_keep_the_demos_worker() {
    let cluster = Cluster::sqlite().await;
    let _relay = cluster.relay();
    let budget = ["--drain", "2s", "--kill-after", "20s"];
    let mut worker = cluster.role("worker", &[&["--demo"], &budget[..]].concat());
    let pipe = cluster.folder().join("roots");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let payload = serde_json::json!({ "roots_file": pipe }).to_string();
    let submit = ["-q", "submit", "demo", "nightly-report", &payload];
    cluster.bellwether(&submit).await.expect(0);
    let mut writes = std::fs::File::options();
    writes.write(true).custom_flags(NONBLOCK);
    let mut held = None;
    until("a handler that reads", async || {
        held = writes.open(&pipe).ok();
        held.is_some()
    })
    .await;
    let (ended, took) = worker.end(Signal::TERM).await;
    println!("ended with {ended:?} after {took:?}");
    assert_eq!(ended, Some(0), "{}", worker.log());
    assert!(took < Duration::from_secs(20), "{took:?}");
}
