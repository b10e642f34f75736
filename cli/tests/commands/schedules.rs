//! `bellwether schedules` on a ledger.

use bellwether_client::{NewSchedule, Timing};
use bellwether_store::definition::Definition;
use bellwether_store::schedules::Origin;
use bellwether_store::sessions::NewSession;
use serde_json::json;
use std::time::Duration;
use uuid::Uuid;

use crate::support::{Cluster, until};

const LATER: [&str; 2] = ["--cron", "0 2 * * *"];

#[tokio::test(flavor = "multi_thread")]
async fn add_show_edit_pause_resume_and_remove_tell_one_story() {
    let cluster = Cluster::sqlite().await;
    let _worker = cluster.worker("clerk", &[]).await;
    let add = ["schedules", "add", "nightly"];
    let flags = [
        "--tz",
        "Europe/Berlin",
        "--job",
        "patient",
        "--shards",
        "3",
        "--timeout",
        "90s",
        "--description",
        "the books",
        "--payload",
        r#"{"ms":[1]}"#,
    ];
    let added = cluster
        .bellwether(&[&add[..], &LATER, &flags].concat())
        .await
        .expect(0);
    assert!(
        !added.stderr.contains("no live worker"),
        "the worker serves it: {added:?}"
    );
    assert_eq!(added.stdout.matches(" 02:00:00").count(), 3, "{added:?}");
    let words = ["exists", "schedules edit nightly"];
    cluster
        .bellwether(&[&add[..], &LATER].concat())
        .await
        .refused(4, &words);

    let shown = cluster
        .bellwether(&["schedule", "show", "nightly", "-o", "json"])
        .await
        .expect(0)
        .json();
    let row = &shown["schedule"];
    assert_eq!(
        (&row["origin"], &row["edited_at"]),
        (&json!("api"), &json!(null))
    );
    assert_eq!(
        (&row["shard_total"], &row["timeout"]),
        (&json!(3), &json!("90s"))
    );
    assert_eq!(
        (&row["description"], &row["max_attempts"]),
        (&json!("the books"), &json!(5))
    );
    assert_eq!(shown["payload"], json!({"ms": [1]}));
    assert_eq!(shown["next"].as_array().unwrap().len(), 3);
    assert_eq!(shown["fires"], json!([]));

    let edit = ["schedules", "edit", "nightly"];
    let same = [&edit[..], &LATER, &["--shards", "3"]].concat();
    let unchanged = cluster.bellwether(&same).await.expect(0);
    assert!(
        unchanged.stdout.contains("nothing changed"),
        "{unchanged:?}"
    );
    let wishes = ["--every", "90m", "--queue", "slow", "--on-lost", "unknown"];
    let edited = cluster
        .bellwether(&[&edit[..], &wishes].concat())
        .await
        .expect(0);
    for line in ["-> every 90m", "default -> slow", "retry -> unknown"] {
        assert!(edited.stdout.contains(line), "no {line} in {edited:?}");
    }
    assert!(!edited.stdout.contains("timeout"), "{edited:?}");
    // The same period again keeps the anchor.
    let again = cluster
        .bellwether(&[&edit[..], &wishes[..2], &["-o", "json"]].concat())
        .await;
    let again = again.expect(0).json();
    assert_eq!(
        (&again["changed"], &again["changes"]),
        (&json!(false), &json!([]))
    );
    cluster
        .bellwether(&[&edit[..], &["--reset"]].concat())
        .await
        .refused(4, &["no code"]);

    let word = async |action: &str| {
        let answer = cluster
            .bellwether(&["schedules", action, "nightly"])
            .await
            .expect(0);
        answer.stdout
    };
    assert_eq!(word("pause").await, "schedule nightly is paused\n");
    assert_eq!(word("pause").await, "schedule nightly is paused already\n");
    let table = cluster
        .bellwether(&["schedules", "list"])
        .await
        .expect(0)
        .stdout;
    assert!(
        table.contains("every 90m") && table.contains("paused"),
        "{table}"
    );
    assert_eq!(word("resume").await, "schedule nightly is on\n");
    let ids = cluster
        .bellwether(&["schedules", "list", "-o", "id"])
        .await
        .expect(0)
        .stdout;
    assert_eq!(ids, "nightly\n");
    let lines = cluster
        .bellwether(&["schedules", "list", "-o", "jsonl"])
        .await
        .expect(0);
    assert_eq!(lines.json()["name"], "nightly");
    let queues = cluster
        .bellwether(&["queue", "list", "-o", "id"])
        .await
        .expect(0)
        .stdout;
    assert_eq!(queues, "default\nslow\n");
    assert!(word("remove").await.contains("removed"));
    cluster
        .bellwether(&["schedules", "show", "nightly"])
        .await
        .refused(3, &["nightly"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn trigger_waits_and_answers_by_the_end_of_the_job() {
    let cluster = Cluster::sqlite().await;
    let _relay = cluster.relay();
    let _worker = cluster.worker("clerk", &[]).await;
    let payloads = [("good", r#"{"ms":[1]}"#), ("bad", r#"{"refuses":true}"#)];
    for (name, payload) in payloads {
        let add = [
            "schedules",
            "add",
            name,
            "--job",
            "patient",
            "--payload",
            payload,
        ];
        cluster
            .bellwether(&[&add[..], &LATER].concat())
            .await
            .expect(0);
    }
    let trigger = async |name, wait| {
        let trigger = ["schedules", "trigger", name, "--wait", wait, "-o", "json"];
        cluster.bellwether(&trigger).await
    };
    let good = trigger("good", "30s").await.expect(0).json();
    assert_eq!(good["shards"][0]["state"], "succeeded");
    let bad = trigger("bad", "30s").await.expect(7);
    assert_eq!(bad.json()["shards"][0]["state"], "failed");
    assert!(bad.stderr.contains("ended as failed"), "{bad:?}");
    let fire = cluster
        .bellwether(&["schedules", "trigger", "good", "-o", "id"])
        .await
        .expect(0);
    fire.stdout.trim().parse::<Uuid>().unwrap();
    until("the fires are shown with their states", async || {
        let show = ["schedules", "show", "good", "-o", "json"];
        let shown = cluster.bellwether(&show).await.expect(0).json();
        let fires = shown["fires"].as_array().unwrap().clone();
        fires.len() == 2
            && fires
                .iter()
                .all(|fire| fire["states"] == json!({"succeeded": 1}))
    })
    .await;

    let nobody = ["schedules", "add", "lonely", "--job", "unheard-of"];
    let lonely = cluster
        .bellwether(&[&nobody[..], &LATER].concat())
        .await
        .expect(0);
    assert!(lonely.stderr.contains("no live worker"), "{lonely:?}");
    // And that no ticker runs here.
    assert_eq!(lonely.stderr.lines().count(), 2, "{lonely:?}");
    // Whoever is cut off during the look at the workers, or the wait, has the id of what was fired.
    for (more, code) in [(&[][..], 0), (&["--wait", "100ms"][..], 6)] {
        for format in ["table", "id", "json"] {
            let trigger = ["schedules", "trigger", "lonely", "-o", format];
            let said = cluster.said_in_order(&[&trigger[..], more].concat()).await;
            let said = said.expect(code).stdout;
            let id = |line: &str| {
                let mut words = line.split([' ', '"']);
                words.any(|word| word.parse::<Uuid>().is_ok())
            };
            let fired = said.lines().position(id);
            let looked = said
                .lines()
                .position(|line| line.contains("no live worker"));
            assert!(fired.is_some() && fired < looked, "{said}");
        }
    }
    let waits = trigger("lonely", "100ms").await.expect(6);
    let fire = waits.json()["fire_id"].as_str().unwrap().to_owned();
    for words in [
        "no live worker has a handler for job unheard-of",
        &format!("to look at it: bellwether executions list --fire {fire}"),
    ] {
        assert!(waits.stderr.contains(words), "no {words:?} in {waits:?}");
    }
    let quiet = [
        "schedules",
        "add",
        "hushed",
        "--job",
        "unheard-of",
        "--quiet",
    ];
    let quiet = cluster
        .bellwether(&[&quiet[..], &LATER].concat())
        .await
        .expect(0);
    assert_eq!(quiet.stderr, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_stands_above_the_code_until_it_is_reset() {
    let cluster = Cluster::sqlite().await;
    let timing = Timing::Cron {
        expr: "0 0 3 * * *".to_owned(),
        zone: "UTC".to_owned(),
    };
    let mut of_code = NewSchedule::new("books", timing);
    of_code.origin = Origin::Code;
    let definition = Definition::of(&of_code).unwrap();
    let session = NewSession {
        id: Uuid::from_u128(7),
        name: "clerk".to_owned(),
        host: "here".to_owned(),
        pid: 1,
        version: "0".to_owned(),
        queues: vec!["default".to_owned()],
        jobs: vec!["books".to_owned()],
        probes: Vec::new(),
        definitions: vec![(definition.name, definition.hash.clone())],
        capabilities: Vec::new(),
        max_concurrent: 1,
        lease: Duration::from_mins(5),
    };
    let synced = bellwether_store::edit::sync(cluster.store.as_ref(), &[of_code], true).await;
    assert_eq!(synced.unwrap(), [bellwether_store::edit::Synced::Inserted]);
    cluster.store.open_session(&session).await.unwrap();

    let edit = ["schedules", "edit", "books", "--max-attempts", "2"];
    let edited = cluster.bellwether(&edit).await.expect(0);
    assert!(edited.stderr.contains("defined in code"), "{edited:?}");
    assert!(edited.stdout.contains("5 -> 2"), "{edited:?}");
    let text = cluster
        .bellwether(&["schedules", "show", "books"])
        .await
        .expect(0)
        .stdout;
    assert!(text.contains("by an operator at"), "{text}");
    assert!(text.contains(definition.hash.get(..12).unwrap()), "{text}");
    let list = cluster
        .bellwether(&["schedules", "list"])
        .await
        .expect(0)
        .stdout;
    assert!(list.contains("on, edited"), "{list}");
    let with_more = ["schedules", "edit", "books", "--reset", "--queue", "q"];
    cluster
        .bellwether(&with_more)
        .await
        .refused(2, &["--reset", "alone"]);
    let reset = cluster
        .bellwether(&["schedules", "edit", "books", "--reset"])
        .await
        .expect(0);
    assert!(reset.stdout.contains("2 -> 5"), "{reset:?}");
    let again = cluster
        .bellwether(&["schedules", "edit", "books", "--reset"])
        .await
        .expect(0);
    assert!(again.stdout.contains("nothing changed"), "{again:?}");

    let words = ["pause it", "remove it from the code"];
    cluster
        .bellwether(&["schedules", "remove", "books"])
        .await
        .refused(4, &words);
    cluster.store.close_session(session.id).await.unwrap();
    cluster
        .bellwether(&["schedules", "remove", "books"])
        .await
        .expect(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_schedule_is_refused_before_it_is_written() {
    let cluster = Cluster::sqlite().await;
    let long = "x".repeat(1_025);
    for (args, words) in [
        (
            &["x", "--at", "2020-01-01T00:00:00Z"][..],
            ["trigger", "submit"],
        ),
        (&["x", "--every", "500ms"], ["bad_interval", "90s"]),
        (&["x", "--cron", "0 0 31 2 *"], ["never_fires", "instant"]),
        (
            &["x", "--cron", "@daily", "--tz", "Mars/Olympus"],
            ["unknown_zone", "Europe/Berlin"],
        ),
        (
            &["a.b", "--every", "1h"],
            ["schedule name \"a.b\"", "1 to 64"],
        ),
        (
            &["x", "--every", "1h", "--job", "a b"],
            ["job name", "1 to 64"],
        ),
        (
            &["x", "--every", "1h", "--shards", "1001"],
            ["1001", "1..=1000"],
        ),
        (
            &["x", "--every", "1h", "--timeout", "0s"],
            ["--timeout", "1ms to 3660d"],
        ),
        (
            &["x", "--every", "1h", "--description", &long],
            ["description", "1024"],
        ),
        (
            &["x", "--every", "1h", "--cron", "@daily"],
            ["--every", "--cron"],
        ),
        (&["x", "--every", "1h", "--tz", "UTC"], ["--every", "--tz"]),
    ] {
        let add = [&["schedules", "add"], args].concat();
        cluster.bellwether(&add).await.refused(2, &words);
    }
    let edit = ["schedules", "edit", "x"];
    cluster
        .bellwether(&edit)
        .await
        .refused(2, &["nothing to change", "--help"]);
    let list = cluster
        .bellwether(&["schedules", "list", "-o", "json"])
        .await
        .expect(0)
        .json();
    assert_eq!(list, json!([]));
}

/// Without a ticker nothing fires: every command that shows a next instant says why.
#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_that_nobody_leads_says_so_and_one_that_is_led_by_whom() {
    let cluster = Cluster::sqlite().await;
    let why = "schedule tick: nobody leads its partition";
    let show = ["schedules", "show", "tick"];
    let list = ["schedules", "list"];
    let add = ["schedules", "add", "tick", "--every", "1s"];
    let added = cluster.bellwether(&add).await.expect(0);
    assert!(added.stderr.contains(why), "{added:?}");
    until("an overdue instant", async || {
        let listed = cluster.bellwether(&list).await.expect(0);
        assert!(listed.stderr.contains(why), "{listed:?}");
        listed.stdout.contains(" overdue ")
    })
    .await;
    let shown = cluster.bellwether(&show).await.expect(0);
    assert!(shown.stderr.contains(why), "{shown:?}");
    for words in [" overdue ", "partition      0, led by nobody"] {
        assert!(shown.stdout.contains(words), "no {words:?} in {shown:?}");
    }

    let pause = ["schedules", "pause", "tick"];
    let paused = cluster.bellwether(&pause).await.expect(0);
    assert!(!paused.stderr.contains(why), "{paused:?}");
    let edit = ["schedules", "edit", "tick", "--every", "2s"];
    let edited = cluster.bellwether(&edit).await.expect(0);
    assert!(
        edited.stdout.contains("none while it is paused"),
        "{edited:?}"
    );
    let json = [&show[..], &["-o", "json"]].concat();
    let shown = cluster.bellwether(&json).await.expect(0).json();
    assert_eq!(shown["next"], json!([]));
    assert_eq!(shown["schedule"]["overdue_s"], json!(null));
    let resume = ["schedules", "resume", "tick"];
    let resumed = cluster.bellwether(&resume).await.expect(0);
    assert!(resumed.stderr.contains(why), "{resumed:?}");

    let ticker = cluster.ticker(&[]);
    let json = [&list[..], &["-o", "json"]].concat();
    until("a leader", async || {
        let listed = cluster.bellwether(&json).await.expect(0);
        let row = &listed.json()[0];
        let leader = row["leader"].as_str().unwrap_or_default();
        row["partition"] == 0
            && leader.contains(&format!("/{}/", ticker.pid()))
            && !listed.stderr.contains(why)
    })
    .await;
    let shown = cluster.bellwether(&show).await.expect(0).stdout;
    assert!(shown.contains("partition      0, led by "), "{shown}");
    assert!(!shown.contains("nobody"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grace_that_lets_nothing_fire_is_refused() {
    let cluster = Cluster::sqlite().await;
    let words = ["--misfire skip", "--grace 1s"];
    let add = ["schedules", "add", "strict", "--every", "1h"];
    let never = [&add[..], &["--misfire", "skip", "--grace", "0"]].concat();
    cluster.bellwether(&never).await.refused(2, &words);
    let strict = [&add[..], &["--misfire", "skip", "--grace", "1s"]].concat();
    cluster.bellwether(&strict).await.expect(0);
    let edit = ["schedules", "edit", "strict"];
    let tighter = [&edit[..], &["--grace", "999ms"]].concat();
    cluster.bellwether(&tighter).await.refused(2, &words);
    // With another policy what is late still fires.
    let other = [&tighter[..], &["--misfire", "fire_once"]].concat();
    cluster.bellwether(&other).await.expect(0);
    let skip = [&edit[..], &["--misfire", "skip"]].concat();
    cluster.bellwether(&skip).await.refused(2, &words);
}
