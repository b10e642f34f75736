//! One-shots from the command line.

use bellwether_schemas::limits::PAYLOAD_MAX;
use bellwether_schemas::state::Reason;
use chrono::{DateTime, TimeDelta, Utc};
use serde_json::json;

use crate::bellwether;
use crate::support::{Cluster, bellwether_in};

const NOWHERE: [&str; 2] = ["--nats-url", "nats://127.0.0.1:1"];

#[tokio::test(flavor = "multi_thread")]
async fn the_output_comes_back_and_an_attempt_has_its_timeout() {
    let cluster = Cluster::sqlite().await;
    let _ticker = cluster.ticker(&[]);
    let _relay = cluster.relay();
    let _worker = cluster.worker("clerk", &[]).await;
    let submit = ["submit", "default", "patient"];
    let file = [&submit[..], &["--file", "payload.json", "--wait", "30s"]].concat();
    let missing = cluster.bellwether(&file).await;
    missing.refused(2, &["payload.json"]);
    std::fs::write(cluster.folder().join("payload.json"), r#"{"ms": [1]}"#).unwrap();
    let answer = cluster.bellwether(&file).await.expect(0);
    assert_eq!(answer.stderr, "", "a live worker has the job");
    let lines: Vec<_> = answer.stdout.lines().collect();
    assert!(lines[0].starts_with("submitted patient/"), "{answer:?}");
    assert!(lines[1].ends_with(" succeeded"), "{answer:?}");
    let output: serde_json::Value = serde_json::from_str(&lines[2..].concat()).unwrap();
    assert_eq!(output, json!([1, 0]));

    // Five attempts of a second each: waiting ends earlier, nothing is lost.
    let slow = [&submit[..], &[r#"{"ms": [60000]}"#, "--timeout", "1s"]].concat();
    let slow = [&slow[..], &["--key", "slow", "--wait", "4", "-o", "json"]].concat();
    let answer = cluster.bellwether(&slow).await.expect(6);
    assert!(answer.stderr.contains("nothing was lost"), "{answer:?}");
    assert_eq!(answer.json()["key"], "slow", "the key is told all the same");
    let id = cluster
        .store
        .execution_of_key("patient", "slow")
        .await
        .unwrap();
    let story = cluster.story(id.unwrap()).await;
    let attempts = (story.attempts.iter().map(|past| past.reason))
        .chain([story.execution.reason])
        .flatten();
    let reasons: Vec<_> = attempts.map(Reason::as_str).collect();
    assert!(reasons.contains(&"timeout"), "{reasons:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instant_from_now_on_is_not_early() {
    let cluster = Cluster::sqlite().await;
    let journal = cluster.journal();
    let _ticker = cluster.ticker(&[]);
    let _relay = cluster.relay();
    let _worker = cluster.worker("clerk", &[]).await;
    let payload = String::from_utf8(journal.work(&[0]).payload().bytes).unwrap();
    let before = cluster.store.ledger().await.unwrap().now;
    let submit = [
        "submit", "default", "patient", &payload, "--at", "+3s", "--wait", "30", "-o", "json",
    ];
    let answer = cluster.bellwether(&submit).await.expect(0).json();
    let run_at: DateTime<Utc> = answer["run_at"].as_str().unwrap().parse().unwrap();
    assert!(run_at - before >= TimeDelta::seconds(3), "{answer}");
    let id = answer["execution_id"].as_str().unwrap().parse().unwrap();
    let execution = cluster.execution(id).await;
    assert!(execution.claimed_at.unwrap() >= run_at, "{execution:?}");
    journal.assert_each_ended_once(1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_serves_is_sent_with_a_warning() {
    let cluster = Cluster::sqlite().await;
    let _relay = cluster.relay();
    let _worker = cluster.worker("clerk", &[]).await;
    for (queue, job, words) in [
        (
            "nobody",
            "patient",
            [
                "warning",
                "no worker has served the queue nobody yet; unless one does, this becomes a dead letter after 10m",
            ],
        ),
        (
            "default",
            "unheard-of",
            ["warning", "has the job unheard-of now; this waits for one"],
        ),
    ] {
        let answer = cluster.bellwether(&["submit", queue, job]).await.expect(0);
        assert!(answer.stdout.starts_with("submitted "), "{answer:?}");
        assert_eq!(answer.stderr.lines().count(), 1, "{answer:?}");
        for word in words {
            assert!(answer.stderr.contains(word), "no {word:?} in {answer:?}");
        }
    }
    let quiet = cluster
        .bellwether(&["-q", "submit", "nobody", "patient"])
        .await;
    assert_eq!(quiet.expect(0).stderr, "");
    let bad_key = ["submit", "default", "patient", "--key", "~1.2"];
    cluster.bellwether(&bad_key).await.refused(2, &["~1.2"]);
}

#[tokio::test]
async fn what_is_too_large_or_no_file_is_refused_before_anybody_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let large = format!("\"{}\"", "x".repeat(PAYLOAD_MAX));
    std::fs::write(folder.join("large.json"), large).unwrap();
    std::fs::write(folder.join("bytes"), [0xff, 0x00]).unwrap();
    for (path, words) in [
        ("large.json", ["large.json", "262144"]),
        ("bytes", ["no JSON", "column 1"]),
        ("missing", ["missing", "failed to read"]),
        (".", [".", "failed to read"]),
        ("/dev/zero", ["/dev/zero", "262144"]),
        ("-", ["no JSON", "line 1"]),
    ] {
        let submit = ["submit", "default", "patient", "--file", path];
        let submit = [&submit[..], &NOWHERE].concat();
        bellwether_in(folder, &[], &submit).await.refused(2, &words);
    }
}

#[tokio::test]
async fn hostile_arguments_are_refused_by_name() {
    let long = "x".repeat(300);
    let cases: [(&[&str], &str); 16] = [
        (&["submit"], "<QUEUE>"),
        (&["submit", "a.b", "pay"], "A-Z a-z 0-9 _ -"),
        (&["submit", "default", ""], "1 to 64"),
        (&["submit", "default", "pay", ""], "no JSON"),
        (&["submit", "default", "pay", "{n: 1}"], "no JSON"),
        (&["submit", "default", "pay", "1", "--file", "x"], "--file"),
        (&["submit", "default", "pay", "--key", ""], "key"),
        (
            &["submit", "default", "pay", "--key", &long],
            "1 to 256 bytes",
        ),
        (
            &["submit", "default", "pay", "--at", "2027-01-31T08:00:00"],
            "zone",
        ),
        (&["submit", "default", "pay", "--at", "tomorrow"], "+10m"),
        (
            &["submit", "default", "pay", "--at", "+5000000000h"],
            "calendar",
        ),
        (&["submit", "default", "pay", "--wait", "1 day"], "10m"),
        (&["submit", "default", "pay", "--wait=-1s"], "-1s"),
        (
            &["submit", "default", "pay", "--timeout", "1.5s"],
            "whole seconds",
        ),
        (
            &["submit", "default", "pay", "--timeout", "0"],
            "whole seconds",
        ),
        (&["submit", "default", "pay", "--timeout", "9000h"], "8760h"),
    ];
    for (args, word) in cases {
        println!("{args:?}");
        let args = [args, &NOWHERE].concat();
        bellwether(&args).await.refused(2, &[word]);
    }
}
