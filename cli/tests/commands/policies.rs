//! Misfire, overlap and retry policies on the command line.

use serde_json::json;

use crate::support::{Cluster, until};

const SHOW: [&str; 5] = ["schedules", "show", "nightly", "-o", "json"];

#[tokio::test(flavor = "multi_thread")]
async fn policies_are_written_kept_and_shown() {
    let cluster = Cluster::sqlite().await;
    let add = ["schedules", "add", "nightly", "--cron", "0 2 * * *"];
    cluster.bellwether(&add).await.expect(0);
    let row = async || {
        let shown = cluster.bellwether(&SHOW).await.expect(0).json();
        assert_eq!(
            (&shown["held"], &shown["non_fires"]),
            (&json!(null), &json!([]))
        );
        shown["schedule"].clone()
    };
    let policies = |row: &serde_json::Value| {
        let keys = ["misfire", "catch_up_max", "catch_up_window", "overlap"];
        let retry = ["retry_first", "retry_cap"];
        let all = keys.iter().chain(&retry);
        json!(all.map(|key| row[*key].clone()).collect::<Vec<_>>())
    };
    let defaults = json!(["fire_once", null, null, "allow", "1s", "10m"]);
    assert_eq!(policies(&row().await), defaults);

    let edit = async |flags: &[&str]| {
        let edit = [&["schedules", "edit", "nightly"], flags].concat();
        cluster.bellwether(&edit).await
    };
    let flags = "--misfire catch_up --catch-up-max 10 --catch-up-window 1h --overlap queue_one \
                 --retry-first 250ms --retry-cap 1m";
    let edited = edit(&flags.split(' ').collect::<Vec<_>>()).await.expect(0);
    for line in [
        "fire_once -> catch_up the newest 10 of the last 1h",
        "allow -> queue_one",
        "1s -> 250ms",
        "10m -> 1m",
    ] {
        assert!(edited.stdout.contains(line), "no {line:?} in {edited:?}");
    }
    let written = json!(["catch_up", 10, "1h", "queue_one", "250ms", "1m"]);
    assert_eq!(policies(&row().await), written);
    // The bound that is not named stays.
    edit(&["--catch-up-max", "7"]).await.expect(0);
    assert_eq!(row().await["catch_up_window"], "1h");
    let shown = cluster.bellwether(&SHOW[..3]).await.expect(0).stdout;
    for line in [
        "retry first    250ms",
        "retry cap      1m",
        "misfire        catch_up the newest 7 of the last 1h",
        "overlap        queue_one",
    ] {
        assert!(shown.contains(line), "no {line:?} in {shown}");
    }
    edit(&["--misfire", "skip"]).await.expect(0);
    let written = json!(["skip", null, null, "queue_one", "250ms", "1m"]);
    assert_eq!(policies(&row().await), written);
    let unchanged = edit(&["--misfire", "skip", "--overlap", "queue_one"]).await;
    assert!(unchanged.expect(0).stdout.contains("nothing changed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_that_do_not_fit_are_refused_and_change_nothing() {
    let cluster = Cluster::sqlite().await;
    let new = ["schedules", "add", "nightly", "--cron", "0 2 * * *"];
    cluster.bellwether(&new).await.expect(0);
    let before = cluster.bellwether(&SHOW).await.expect(0).json();
    let cases: [(&str, [&str; 2]); 8] = [
        (
            "--misfire catch_up",
            ["both bounds", "--catch-up-window 1h"],
        ),
        (
            "--misfire catch_up --catch-up-max 3",
            ["both bounds", "--catch-up-max 10"],
        ),
        (
            "--catch-up-window 1h",
            ["is fire_once", "--misfire catch_up"],
        ),
        (
            "--misfire skip --catch-up-max 3",
            ["is skip", "--misfire catch_up"],
        ),
        ("--retry-first 11m", ["11m", "cap of 10m"]),
        ("--retry-cap 500ms", ["delay of 1s", "cap of 500ms"]),
        ("--catch-up-max 1001", ["1001", "1..=1000"]),
        ("--overlap queue", ["queue", "queue_one"]),
    ];
    for (flags, words) in cases {
        let flags: Vec<_> = flags.split(' ').collect();
        let edit = [&["schedules", "edit", "nightly"], flags.as_slice()].concat();
        cluster.bellwether(&edit).await.refused(2, &words);
        let add = [
            &["schedules", "add", "x", "--every", "1h"],
            flags.as_slice(),
        ]
        .concat();
        cluster.bellwether(&add).await.refused(2, &words);
    }
    let after = cluster.bellwether(&SHOW).await.expect(0).json();
    assert_eq!(after["schedule"], before["schedule"]);
    let names = ["schedules", "list", "-o", "id"];
    assert_eq!(
        cluster.bellwether(&names).await.expect(0).stdout,
        "nightly\n"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn show_says_what_did_not_fire_and_which_fire_is_held() {
    let cluster = Cluster::sqlite().await;
    let add = "schedules add nightly --every 1s --overlap queue_one --misfire skip";
    let add: Vec<_> = add.split(' ').collect();
    cluster.bellwether(&add).await.expect(0);
    let _ticker = cluster.ticker(&[]);
    // No worker runs: the first fire is never finished, one is held, the others are passed over.
    let mut shown = json!(null);
    until("instants that are passed over", async || {
        shown = cluster.bellwether(&SHOW).await.expect(0).json();
        shown["non_fires"][0]["instants"].as_u64() >= Some(2)
    })
    .await;
    let non_fires = shown["non_fires"].as_array().unwrap();
    assert_eq!(non_fires.len(), 1, "{shown}");
    assert_eq!(
        (&non_fires[0]["reason"], &non_fires[0]["ranges"]),
        (&json!("coalesced"), &json!(1))
    );
    let fires = shown["fires"].as_array().unwrap();
    assert_eq!(fires.len(), 2, "{shown}");
    assert_eq!(shown["held"]["id"], fires[0]["id"]);
    assert_eq!(shown["held"]["held_behind"], fires[1]["id"]);
    let held = format!("held: fire {}", fires[0]["id"].as_str().unwrap());
    let text = cluster.bellwether(&SHOW[..3]).await.expect(0).stdout;
    for line in [
        held.as_str(),
        "did not fire in the last 24 hours",
        "coalesced",
    ] {
        assert!(text.contains(line), "no {line:?} in {text}");
    }
}

/// The executions of `nightly` in a state, oldest first.
async fn ids_of(cluster: &Cluster, state: &str) -> Vec<String> {
    let list = [
        "executions",
        "list",
        "--job",
        "nightly",
        "--state",
        state,
        "-o",
        "id",
    ];
    let listed = cluster.bellwether(&list).await.expect(0).stdout;
    listed.lines().rev().map(str::to_owned).collect()
}

async fn shown(cluster: &Cluster, id: &str) -> String {
    let shown = cluster.bellwether(&["executions", "show", id]).await;
    shown.expect(0).stdout
}

#[tokio::test(flavor = "multi_thread")]
async fn an_execution_that_is_held_says_behind_which_fire() {
    let cluster = Cluster::sqlite().await;
    let add = "schedules add nightly --every 1s --overlap queue_one";
    let add: Vec<_> = add.split(' ').collect();
    cluster.bellwether(&add).await.expect(0);
    let _ticker = cluster.ticker(&[]);
    let mut waiting = Vec::new();
    until("a held fire", async || {
        waiting = ids_of(&cluster, "pending").await;
        waiting.len() == 2
    })
    .await;
    let [first, held] = waiting.as_slice() else {
        unreachable!()
    };
    let fire = cluster.execution(first.parse().unwrap()).await.fire_id;
    let behind = format!("behind fire {fire} of schedule nightly");
    let text = shown(&cluster, held).await;
    for line in [
        "state      pending, held\n",
        &format!("held       {behind}\n"),
        &format!("  held {behind}\n"),
        "it waits for an earlier fire of its schedule to end",
        &format!("to stop it: bellwether executions cancel {held}"),
    ] {
        assert!(text.contains(line), "no {line:?} in {text}");
    }
    let list = cluster
        .bellwether(&["executions", "list"])
        .await
        .expect(0)
        .stdout;
    let row = |id: &str| list.lines().find(|line| line.starts_with(id)).unwrap();
    assert!(row(held).contains("pending, held"), "{list}");
    assert!(!row(first).contains("held"), "{list}");
    let queues = cluster.bellwether(&["queues", "list"]).await.expect(0);
    assert!(queues.stdout.contains("2 (1 held)"), "{queues:?}");

    // Let go by the end of the one before.
    cluster
        .bellwether(&["executions", "cancel", first])
        .await
        .expect(0);
    until("it is let go", async || {
        shown(&cluster, held)
            .await
            .contains("let go: no longer held")
    })
    .await;
    let text = shown(&cluster, held).await;
    assert!(text.contains("state      pending\n"), "{text}");
    assert!(
        text.contains(&format!("  held {behind}\n")),
        "it is still told: {text}"
    );
    assert!(!text.contains("\nheld  "), "it is no fact any more: {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_execution_that_is_replaced_says_by_which_fire() {
    let cluster = Cluster::sqlite().await;
    let add = "schedules add nightly --every 1s --overlap replace";
    let add: Vec<_> = add.split(' ').collect();
    cluster.bellwether(&add).await.expect(0);
    let _ticker = cluster.ticker(&[]);
    let mut replaced = Vec::new();
    until("a replaced fire", async || {
        replaced = ids_of(&cluster, "cancelled").await;
        !replaced.is_empty()
    })
    .await;
    let show = ["executions", "show", &replaced[0], "-o", "json"];
    let story = cluster.bellwether(&show).await.expect(0).json();
    let by = story["replaced_by"].as_str().unwrap();
    let by = format!("by fire {by} of schedule nightly, which replaces it\n");
    let text = shown(&cluster, &replaced[0]).await;
    for line in [
        "state      cancelled\n",
        "cancel     requested 20",
        &by,
        &format!("  cancel requested {by}"),
        "ended: cancelled\n",
        "to run it again: bellwether executions retry",
    ] {
        assert!(text.contains(line), "no {line:?} in {text}");
    }
}
