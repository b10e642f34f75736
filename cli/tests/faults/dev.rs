//! `bellwether dev`: killed, started twice, stopped by Ctrl-C, and the demo to its end.

use std::path::Path;
use std::time::Duration;

use bellwether_sandbox::{Launch, Signal, nats_server_binary};
use tempfile::TempDir;

use crate::support::{Answer, Role, bellwether_in, clean_environment, serial, until};

/// A `bellwether dev` in a folder of its own.
struct Dev {
    role: Role,
    /// The nats-server's address and process id, as it says itself.
    nats_url: String,
    nats_pid: u32,
}

impl Dev {
    /// Starts it in `folder` and waits until it says that it is up.
    async fn start(folder: &Path, number: u32) -> Self {
        let log = folder.join(format!("dev-{number}.log"));
        let mut role = Role::start(launch(folder, &log, &["dev"]));
        until("dev is up", async || {
            assert!(role.is_running(), "dev ended:\n{}", role.log());
            role.log().contains("Ctrl-C stops everything")
        })
        .await;
        let text = role.log();
        let line = text
            .lines()
            .find(|line| line.starts_with("nats-server"))
            .unwrap();
        let words: Vec<_> = line.split_whitespace().collect();
        let [_, url, "(pid", pid] = words.as_slice() else {
            panic!("{line}")
        };
        Self {
            nats_url: (*url).to_owned(),
            nats_pid: pid.trim_end_matches(')').parse().unwrap(),
            role,
        }
    }
}

fn launch(folder: &Path, log: &Path, args: &[&str]) -> Launch {
    clean_environment(Launch::new(env!("CARGO_BIN_EXE_bellwether"), log))
        .args(args)
        .current_dir(folder)
        .env("NATS_SERVER", nats_server_binary(None).unwrap())
}

/// Processes that have this folder in their command line: the roles and the nats-server of a dev.
fn processes(folder: &Path) -> Vec<String> {
    let folder = folder.to_str().unwrap();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(line) = std::fs::read(entry.path().join("cmdline")) else {
            continue;
        };
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(folder) && entry.file_name() != *std::process::id().to_string() {
            found.push(format!("{} {line}", entry.file_name().display()));
        }
    }
    found
}

async fn until_nothing_runs(folder: &Path) {
    until("nothing of it runs", async || processes(folder).is_empty()).await;
}

async fn in_folder(folder: &Path, args: &[&str]) -> Answer {
    bellwether_in(folder, &[], args).await
}

fn folder() -> TempDir {
    tempfile::Builder::new()
        .prefix("bellwether-dev-test-")
        .tempdir()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn dev_killed_and_started_again_on_its_folder_loses_nothing() {
    let _serial = serial().await;
    let folder = folder();
    let folder = folder.path();
    let mut first = Dev::start(folder, 1).await;
    assert!(
        processes(folder).len() >= 3,
        "nats-server, ticker and relay: {:?}",
        processes(folder)
    );
    // Messages in the stream that nobody has claimed yet.
    let keys = ["one", "two", "three"];
    for key in keys {
        let submit = ["submit", "default", "patient", "{}", "--key", key];
        in_folder(folder, &submit).await.expect(0);
    }

    first.role.kill();
    // At once, while the children of the first may still be ending.
    let mut second = Dev::start(folder, 2).await;
    assert_eq!(second.nats_url, first.nats_url, "the same port");
    assert_ne!(second.nats_pid, first.nats_pid);
    let old = format!("/proc/{}/cmdline", first.nats_pid);
    until("no orphan", async || {
        std::fs::read(&old).map_or(true, |line| {
            !String::from_utf8_lossy(&line).contains("nats")
        })
    })
    .await;
    for log in std::fs::read_dir(folder.join(".bellwether/logs"))
        .unwrap()
        .flatten()
    {
        let text = std::fs::read_to_string(log.path()).unwrap().to_lowercase();
        assert!(
            !text.contains("address already in use"),
            "{}:\n{text}",
            log.path().display()
        );
    }

    // What was submitted before the kill runs now, each once.
    let config = std::fs::read_to_string(folder.join(".bellwether/bellwether.toml")).unwrap();
    let config: toml::Table = toml::from_str(&config).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_bellwether")).with_file_name("patient");
    let mut worker = Role::start(
        clean_environment(Launch::new(program, folder.join("worker.log")))
            .env(
                "BELLWETHER_DATABASE_URL",
                config["database_url"].as_str().unwrap(),
            )
            .env("BELLWETHER_NATS_URL", config["nats_url"].as_str().unwrap())
            .env(
                "BELLWETHER_NAMESPACE",
                config["namespace"].as_str().unwrap(),
            ),
    );
    until("all succeeded", async || {
        assert!(worker.is_running(), "the worker ended:\n{}", worker.log());
        let list = ["executions", "list", "--state", "succeeded", "-o", "json"];
        in_folder(folder, &list)
            .await
            .expect(0)
            .json()
            .as_array()
            .unwrap()
            .len()
            == keys.len()
    })
    .await;
    let all = in_folder(folder, &["executions", "list", "-o", "json"])
        .await
        .json();
    let mut found: Vec<_> = all
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["key"].as_str().unwrap())
        .collect();
    found.sort_unstable();
    assert_eq!(found, ["one", "three", "two"]);
    worker.end(Signal::TERM).await;
    in_folder(folder, &["audit"]).await.expect(0);

    // Ctrl-C.
    let (code, took) = second.role.end(Signal::INT).await;
    println!("dev ended {:.2} s after Ctrl-C", took.as_secs_f64());
    assert_eq!(code, Some(0), "{}", second.role.log());
    until_nothing_runs(folder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_dev_on_a_folder_in_use_is_refused_in_one_line() {
    let _serial = serial().await;
    let folder = folder();
    let mut first = Dev::start(folder.path(), 1).await;
    let pid = format!("pid {}", first.role.pid());
    in_folder(folder.path(), &["dev"])
        .await
        .refused(2, &["another `bellwether dev`", &pid, "--folder"]);
    assert!(first.role.is_running());
    first.role.end(Signal::INT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_ends_by_itself_with_its_end_line() {
    let _serial = serial().await;
    let folder = folder();
    let folder = folder.path();
    let files = folder.join("files");
    std::fs::create_dir_all(files.join("deep")).unwrap();
    for number in 0..50 {
        let name = if number % 2 == 0 {
            format!("{number}.txt")
        } else {
            format!("deep/{number}.rs")
        };
        std::fs::write(files.join(name), "x".repeat(number * 100)).unwrap();
    }
    let dir = files.to_str().unwrap();
    let args = ["dev", "--demo", "--dir", dir, "--exit-after", "2"];
    let mut demo = Role::start(launch(folder, &folder.join("demo.log"), &args));
    let code = demo.ended(Duration::from_secs(150)).await;
    let log = demo.log();
    assert_eq!(code, Some(0), "{log}");
    let end = log.lines().last().unwrap();
    println!("{end}");
    let promised = "reports 2 of 2 equal an independent count · 500 entries published 600 times, \
                    500 booked, sum exact · 1 worker killed, taken over in ";
    assert!(end.starts_with(promised), "{log}");
    assert!(end.ends_with(" rows looked at, 0 violations"), "{log}");
    let report = std::fs::read_to_string(folder.join("report.md")).unwrap();
    // 100 bytes times 0 + 1 + … + 49.
    for line in [
        "| sum of all shards | 50 | 122500 |",
        "| `find -type f` | 50 | 122500 |",
    ] {
        assert!(report.contains(line), "{report}");
    }
    until_nothing_runs(folder).await;
}
