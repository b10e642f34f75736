//! Dead letters: listed, shown, replayed, discarded.

use bellwether_client::Payload;
use bellwether_schemas::state::DeadReason;
use bellwether_store::dead::{DeadFilter, DeadLetter};
use serde_json::json;

use crate::bellwether;
use crate::support::Cluster;

const NOBODY: &str = "01890000-0000-7000-8000-000000000000";

/// Records a dead letter and answers its id.
async fn letter(cluster: &Cluster, key: &str, reason: DeadReason, payload: Payload) -> String {
    let letter = DeadLetter {
        job: "patient".to_owned(),
        queue: "default".to_owned(),
        key: key.to_owned(),
        reason,
        detail: "as the test says".to_owned(),
        payload,
    };
    cluster.store.record_dead_letter(&letter).await.unwrap();
    let all = DeadFilter {
        resolved: true,
        limit: 100,
        ..DeadFilter::default()
    };
    let letters = cluster.store.dead_letters(&all).await.unwrap();
    let found = letters.iter().find(|letter| letter.key == key).unwrap();
    found.id.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_is_shown_replayed_once_and_runs() {
    let cluster = Cluster::sqlite().await;
    let journal = cluster.journal();
    let _relay = cluster.relay();
    let _worker = cluster.worker("clerk", &[]).await;
    let none = cluster.bellwether(&["dead", "list", "-o", "json"]).await;
    assert_eq!(none.expect(0).json(), json!([]));

    let work = journal.work(&[0]).payload();
    let id = letter(&cluster, "k-1", DeadReason::BadHeader, work).await;
    let other = letter(&cluster, "k-2", DeadReason::Stale, Payload::json("1")).await;
    let list = ["dead", "list", "--reason", "bad_header", "-o", "json"];
    let list = cluster.bellwether(&list).await.expect(0).json();
    let [row] = list.as_array().unwrap().as_slice() else {
        panic!("{list}")
    };
    for (field, value) in [
        ("id", id.as_str()),
        ("job", "patient"),
        ("queue", "default"),
        ("key", "k-1"),
        ("reason", "bad_header"),
        ("detail", "as the test says"),
        ("content_type", "application/json"),
    ] {
        assert_eq!(row[field], value, "{row}");
    }
    let ids = cluster.bellwether(&["dead", "list", "-o", "id"]).await;
    assert_eq!(ids.expect(0).stdout, format!("{other}\n{id}\n"));

    let shown = cluster.bellwether(&["dead", "show", &id]).await;
    let shown = shown.expect(0).stdout;
    let replay = format!("bellwether dead replay {id}");
    for words in [
        "does not read",
        "as the test says",
        "\"ms\": [\n",
        &replay,
        "bellwether dead discard",
    ] {
        assert!(shown.contains(words), "no {words:?} in {shown}");
    }

    let replayed = cluster
        .bellwether(&["dead", "replay", &id, "-o", "json"])
        .await;
    let replayed = replayed.expect(0).json();
    assert_eq!(replayed[0]["result"], "replayed");
    cluster.until_all_succeeded(1).await;
    journal.assert_each_ended_once(1);
    let execution = replayed[0]["execution_id"].as_str().unwrap();
    assert_eq!(journal.all("end")[0].execution.to_string(), execution);
    let again = cluster.bellwether(&["dead", "replay", &id]).await;
    again.refused(4, &[&id, "replayed before"]);
    let shown = cluster.bellwether(&["dead", "show", &id]).await;
    assert!(shown.expect(0).stdout.contains(execution));

    let several = ["dead", "discard", &id, &other, NOBODY, "--yes"];
    let answer = cluster.bellwether(&several).await.expect(8);
    assert_eq!(answer.stdout, format!("dead letter {other} is discarded\n"));
    let open = cluster.bellwether(&["dead", "list", "-o", "id"]).await;
    assert_eq!(open.expect(0).stdout, "");
    let all = cluster.bellwether(&["dead", "list", "--all"]).await;
    let all = all.expect(0).stdout;
    assert!(
        all.contains("replayed") && all.contains("discarded"),
        "{all}"
    );
    cluster.audit_clean(&[]).await;
}

/// A letter knows nothing of its job's policy: the first worker that has the job pins it.
#[tokio::test(flavor = "multi_thread")]
async fn a_replayed_letter_takes_its_jobs_policy_from_the_worker_that_runs_it() {
    let cluster = Cluster::sqlite().await;
    let _relay = cluster.relay();
    let unread = DeadLetter {
        job: "pay".to_owned(),
        queue: "default".to_owned(),
        key: "k-1".to_owned(),
        reason: DeadReason::BadHeader,
        detail: "as the test says".to_owned(),
        payload: Payload::json(r#"{"account": "A-1", "cents": 5}"#),
    };
    cluster.store.record_dead_letter(&unread).await.unwrap();
    let letters = cluster.bellwether(&["dead", "list", "-o", "id"]).await;
    let letter = letters.expect(0).stdout.trim().to_owned();
    let replay = ["dead", "replay", &letter, "-o", "id"];
    let id = cluster.bellwether(&replay).await.expect(0).stdout;
    let id = id.trim().parse().unwrap();
    let waiting = cluster.execution(id).await;
    assert_eq!(
        (waiting.attempt, waiting.max_attempts),
        (0, 5),
        "the default"
    );
    let _worker = cluster.example("readme_worker", "payer", &[]).await;
    cluster.until_all_succeeded(1).await;
    let done = cluster.execution(id).await;
    assert_eq!((done.attempt, done.max_attempts), (1, 3), "the job's");
    let ran = done.deadline_at.unwrap() - done.claimed_at.unwrap();
    assert!(
        ran < chrono::TimeDelta::minutes(1),
        "30 s and a little: {ran}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_any_bytes_does_no_harm() {
    let cluster = Cluster::sqlite().await;
    let raw = Payload {
        bytes: b"\x1b[2J\0\xff{}".to_vec(),
        content_type: "text/plain\u{1b}[31m".to_owned(),
    };
    let id = letter(&cluster, "raw", DeadReason::UnsupportedContentType, raw).await;
    let shown = cluster.bellwether(&["dead", "show", &id]).await;
    let shown = shown.expect(0).stdout;
    let harmless = |c: char| c == '\n' || !c.is_control();
    assert!(shown.chars().all(harmless), "{shown:?}");
    assert!(shown.contains(r"\x1b[2J\x00\xff{}"), "{shown}");
    assert!(shown.contains("--content-type json"), "{shown}");
    let shown = cluster
        .bellwether(&["dead", "show", &id, "-o", "json"])
        .await;
    assert_eq!(shown.expect(0).json()["body_hex"], "1b5b324a00ff7b7d");

    let refused = cluster.bellwether(&["dead", "replay", &id]).await;
    refused.refused(4, &[&id, "content type", "bellwether dead show"]);
    let unsure = cluster.bellwether(&["dead", "discard", &id]).await;
    unsure.refused(2, &[&id, "--yes"]);
    let discard = ["dead", "discard", &id, "--yes"];
    cluster.bellwether(&discard).await.expect(0);
    cluster
        .bellwether(&discard)
        .await
        .refused(4, &["discarded before"]);
    let shown = cluster.bellwether(&["dead", "show", &id]).await;
    assert!(shown.expect(0).stdout.contains("no body is kept"));

    let text = Payload {
        bytes: b"{}".to_vec(),
        content_type: "text/json".to_owned(),
    };
    let id = letter(&cluster, "json", DeadReason::UnsupportedContentType, text).await;
    let replay = ["dead", "replay", &id, "--content-type", "json"];
    cluster.bellwether(&replay).await.expect(0);

    for verb in ["show", "replay"] {
        let nobody = cluster.bellwether(&["dead", verb, NOBODY]).await;
        nobody.refused(3, &[NOBODY, "bellwether dead list"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_never_run_says_why() {
    let cluster = Cluster::sqlite().await;
    let bad = DeadLetter {
        job: "b$d".to_owned(),
        queue: "default".to_owned(),
        key: "bad".to_owned(),
        reason: DeadReason::BadHeader,
        detail: "as the test says".to_owned(),
        payload: Payload::json("1"),
    };
    cluster.store.record_dead_letter(&bad).await.unwrap();
    let list = ["dead", "list", "--job", "b$d", "-o", "id"];
    let bad = cluster.bellwether(&list).await.expect(0).stdout;
    let bad = bad.trim();
    let shown = cluster.bellwether(&["dead", "show", bad]).await;
    let shown = shown.expect(0).stdout;
    assert!(
        shown.contains("can never run") && !shown.contains("dead replay"),
        "{shown}"
    );
    let replay = ["dead", "replay", bad, bad];
    let refused = cluster.bellwether(&replay).await;
    refused.refused(4, &[bad, "b$d", "A-Z a-z 0-9 _ -"]);

    let body = Payload::json("[1");
    let large = letter(&cluster, "large", DeadReason::TooLarge, body).await;
    let shown = cluster.bellwether(&["dead", "show", &large]).await;
    let shown = shown.expect(0).stdout;
    assert!(
        shown.contains("only its first 2 bytes were kept"),
        "{shown}"
    );
    let raw = cluster
        .bellwether(&["dead", "show", &large, "--body"])
        .await;
    let raw = raw.expect(0);
    assert_eq!(raw.stdout, "[1");
    assert!(raw.stderr.contains("the beginning"), "{raw:?}");
    let refused = cluster.bellwether(&["dead", "replay", &large]).await;
    refused.refused(4, &[&large, "first 2 bytes"]);
}

#[tokio::test]
async fn hostile_arguments_are_refused_by_name() {
    let cases: [(&[&str], &str); 6] = [
        (&["dead", "list", "--reason", "stall"], "'stale'"),
        (&["dead", "list", "--limit", "0"], "1..=10000"),
        (
            &["dead", "show", NOBODY, "--body", "-o", "json"],
            "--output",
        ),
        (&["dead", "show", "x"], "36 characters"),
        (&["dead", "replay"], "<ID>"),
        (
            &["dead", "replay", NOBODY, "--content-type", "xml"],
            "msgpack",
        ),
    ];
    for (args, word) in cases {
        println!("{args:?}");
        bellwether(args).await.refused(2, &[word]);
    }
}
