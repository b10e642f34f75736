//! Cancel, retry, watch: what an operator does with executions.

use std::time::Duration;

use bellwether_client::{NewSchedule, Timing};
use bellwether_schemas::ids;
use bellwether_schemas::state::State;
use bellwether_store::executions::{ClaimAnswer, ClaimAsk};
use bellwether_store::sessions::NewSession;
use serde_json::json;

use crate::bellwether;
use crate::support::{Cluster, Work, until};

const NOBODY: &str = "01890000-0000-7000-8000-000000000000";

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_is_cancelled_at_once_and_each_is_told() {
    let cluster = Cluster::sqlite().await;
    let journal = cluster.journal();
    let ids = cluster.enqueue(3, &journal.work(&[0])).await;
    let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
    let [first, second, third] = ids.as_slice() else {
        unreachable!()
    };
    let shown = cluster.bellwether(&["executions", "show", first]).await;
    let shown = shown.expect(0).stdout;
    let hint = format!("to stop it: bellwether executions cancel {first}");
    assert!(shown.contains(&hint), "{shown}");

    let answer = cluster.bellwether(&["executions", "cancel", first]).await;
    let answer = answer.expect(0);
    assert_eq!(answer.stdout, format!("execution {first} is cancelled\n"));
    let again = cluster.bellwether(&["executions", "cancel", first]).await;
    again.refused(4, &[first, "ended before", "cancelled"]);
    let nobody = cluster.bellwether(&["executions", "cancel", NOBODY]).await;
    nobody.refused(3, &[NOBODY, "bellwether executions list"]);
    let nobody = cluster.bellwether(&["executions", "show", NOBODY]).await;
    nobody.refused(
        3,
        &[NOBODY, "or it was deleted by the retention of history"],
    );

    // Several that end differently: what went well on stdout, the rest on stderr.
    let several = ["executions", "cancel", first, NOBODY, second, second];
    let answer = cluster.bellwether(&several).await.expect(8);
    assert_eq!(answer.stdout, format!("execution {second} is cancelled\n"));
    let said: Vec<_> = answer.stderr.lines().collect();
    assert_eq!(
        said[0], "bellwether: 2 of 3 were not cancelled:",
        "one named twice is one"
    );
    assert!(
        said[1].contains(first) && said[2].contains(NOBODY),
        "{said:?}"
    );
    let answer = cluster
        .bellwether(&["executions", "cancel", second, third, "-o", "json"])
        .await
        .expect(8);
    let rows = answer.json();
    assert_eq!(
        rows,
        json!([
            {"id": second, "result": "ended", "state": "cancelled", "told": null},
            {"id": third, "result": "cancelled", "state": "cancelled", "told": null},
        ])
    );
    let none = cluster
        .bellwether(&["executions", "cancel", first, second])
        .await;
    assert_eq!(none.expect(4).stdout, "");
    assert_eq!(journal.starts(), 0);
    cluster.audit_clean(&[14]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fire_and_what_fits_are_cancelled_together() {
    let cluster = Cluster::sqlite().await;
    let journal = cluster.journal();
    let timing = Timing::Cron {
        expr: "0 0 0 1 1 *".to_owned(),
        zone: "UTC".to_owned(),
    };
    let mut sharded = NewSchedule::new("sharded", timing);
    "patient".clone_into(&mut sharded.job);
    sharded.shard_total = 3;
    cluster.client.register(&sharded).await.unwrap();
    let fire = cluster.client.trigger("sharded").await.unwrap().to_string();
    let cancel = ["executions", "cancel", "--fire", &fire];
    let answer = cluster.bellwether(&cancel).await.expect(0);
    assert_eq!(answer.stdout.lines().count(), 3, "{answer:?}");
    let again = cluster.bellwether(&cancel).await;
    again.refused(4, &[&fire, "cancelled"]);
    let nobody = ["executions", "list", "--fire", NOBODY];
    cluster.bellwether(&nobody).await.refused(3, &[NOBODY]);
    let nobody = ["executions", "cancel", "--fire", NOBODY];
    cluster.bellwether(&nobody).await.refused(3, &[NOBODY]);

    cluster.enqueue(5, &journal.work(&[0])).await;
    let alike = ["executions", "cancel", "--job", "patient"];
    let unbound = cluster.bellwether(&alike).await;
    unbound.refused(2, &["--limit"]);
    let alike = [&alike[..], &["--limit", "4"]].concat();
    let unsure = cluster.bellwether(&alike).await;
    unsure.refused(2, &["4 executions to be cancelled", "--yes"]);
    let sure = [&alike[..], &["--yes", "-o", "id"]].concat();
    let answer = cluster.bellwether(&sure).await.expect(0);
    assert_eq!(answer.stdout.lines().count(), 4, "{answer:?}");
    let rest = cluster.bellwether(&sure).await.expect(0);
    assert_eq!(rest.stdout.lines().count(), 1, "{rest:?}");
    cluster.bellwether(&sure).await.refused(3, &[]);
    assert_eq!(cluster.counts().await.get(&State::Cancelled), Some(&8));
}

/// The ledger is lost in the second batch, each time it is asked: what the first one did is told.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_that_loses_its_ledger_tells_what_was_done() {
    const BATCH: usize = 200;
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let ids = cluster.enqueue(BATCH + 2, &Work::default()).await;
    // Named in this order; the last one ends every connection that asks for it.
    let (last, sql) = (ids[BATCH + 1], cluster.sql().await);
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
        "CREATE FUNCTION lost() RETURNS trigger LANGUAGE plpgsql AS
             'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END';
         CREATE TRIGGER lost BEFORE UPDATE ON execution FOR EACH ROW
             WHEN (OLD.id = '{last}') EXECUTE FUNCTION lost()"
    )))
    .execute(&sql)
    .await
    .unwrap();
    let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
    let ids: Vec<_> = ids.iter().map(String::as_str).collect();
    let cancel = [&["executions", "cancel"], &ids[..]].concat();
    let answer = cluster.bellwether(&cancel).await.expect(8);
    let told: Vec<_> = answer.stdout.lines().collect();
    assert_eq!(told.len(), BATCH, "{answer:?}");
    for (line, id) in told.iter().zip(&ids) {
        assert_eq!(*line, format!("execution {id} is cancelled"));
    }
    let said: Vec<_> = answer.stderr.lines().collect();
    assert_eq!(said[0], "bellwether: 2 of 202 were not cancelled:");
    assert_eq!(said.len(), 2, "{answer:?}");
    assert_eq!(
        cluster.counts().await.get(&State::Cancelled),
        Some(&BATCH.try_into().unwrap())
    );

    // The same for a script, which asks again for the rest.
    let again = [&["executions", "cancel", "-o", "json"], &ids[BATCH - 1..]].concat();
    let answer = cluster.bellwether(&again).await.expect(6);
    assert_eq!(answer.json(), json!([]), "one batch: all or nothing");
    sqlx::query("DROP TRIGGER lost ON execution")
        .execute(&sql)
        .await
        .unwrap();
    let answer = cluster.bellwether(&again).await.expect(8).json();
    let results: Vec<_> = answer
        .as_array()
        .unwrap()
        .iter()
        .map(|row| &row["result"])
        .collect();
    assert_eq!(results, ["ended", "cancelled", "cancelled"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_is_told_by_its_worker_and_can_be_waited_for() {
    let cluster = Cluster::sqlite().await;
    let journal = cluster.journal();
    let _ticker = cluster.ticker(&[]);
    let _relay = cluster.relay();
    let _worker = cluster.worker("clerk", &[]).await;
    let [id] = cluster.enqueue(1, &journal.work(&[60_000])).await[..] else {
        unreachable!()
    };
    until("its start", async || journal.starts() == 1).await;
    let id = id.to_string();
    let cancel = ["executions", "cancel", &id, "--wait", "30s", "-o", "json"];
    let answer = cluster.bellwether(&cancel).await.expect(0).json();
    assert_eq!(
        answer,
        json!([{"id": id, "result": "cancelled", "state": "cancelled", "told": true}])
    );
    assert_eq!(journal.all("cancelled").len(), 1);
    let shown = cluster.bellwether(&["executions", "show", &id]).await;
    let shown = shown.expect(0).stdout;
    for words in ["cancel     requested 20", "ended: cancelled", "retry"] {
        assert!(shown.contains(words), "no {words:?} in {shown}");
    }
    cluster.audit_clean(&[6]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_does_not_look_for_requests_is_no_secret() {
    let cluster = Cluster::sqlite().await;
    let new = NewSession {
        id: ids::fresh(),
        name: "of yore".to_owned(),
        host: "here".to_owned(),
        pid: 1,
        version: "0".to_owned(),
        queues: vec!["default".to_owned()],
        jobs: vec!["patient".to_owned()],
        probes: Vec::new(),
        definitions: Vec::new(),
        capabilities: Vec::new(),
        max_concurrent: 1,
        lease: Duration::from_mins(5),
    };
    cluster.store.open_session(&new).await.unwrap();
    let [id] = cluster.enqueue(1, &Work::default()).await[..] else {
        unreachable!()
    };
    let ask = ClaimAsk {
        execution_id: id,
        dispatch_no: 1,
        claim_id: ids::token(),
    };
    let answers = cluster.store.claim(new.id, &[ask]).await.unwrap();
    assert!(
        matches!(answers[..], [ClaimAnswer::Claimed(_)]),
        "{answers:?}"
    );
    let id = id.to_string();
    let cancel = ["executions", "cancel", &id];
    let answer = cluster.bellwether(&cancel).await.expect(0);
    for words in ["does not look for that", "at the latest at 20"] {
        assert!(answer.stdout.contains(words), "no {words:?} in {answer:?}");
    }
    let answer = [&cancel[..], &["--wait", "1", "-o", "json"]].concat();
    let answer = cluster.bellwether(&answer).await.expect(6);
    assert!(answer.stderr.contains("executions watch"), "{answer:?}");
    assert_eq!(
        answer.json(),
        json!([{"id": id, "result": "requested", "state": "running", "told": false}])
    );
    let shown = cluster.bellwether(&["executions", "show", &id]).await;
    let shown = shown.expect(0).stdout;
    assert!(shown.contains("at the latest at 20"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_failed_runs_again_as_a_new_execution() {
    let cluster = Cluster::sqlite().await;
    let _ticker = cluster.ticker(&[]);
    let _relay = cluster.relay();
    let _worker = cluster.worker("clerk", &[]).await;
    let submit = ["submit", "default", "patient"];
    let fails = [
        &submit[..],
        &[r#"{"refuses": true}"#, "--wait", "30", "-o", "id"],
    ]
    .concat();
    let failed = cluster.bellwether(&fails).await.expect(7).stdout;
    let failed = failed.trim();
    let shown = cluster.bellwether(&["executions", "show", failed]).await;
    let shown = shown.expect(0).stdout;
    let hint = format!("bellwether executions retry {failed}");
    assert!(shown.contains(&hint), "{shown}");

    let retry = ["executions", "retry", failed, "--wait", "30"];
    let answer = cluster.bellwether(&retry).await.expect(7);
    assert!(answer.stderr.contains("refused as told"), "{answer:?}");
    // That retry ended without success: one more is possible.
    let retry = ["executions", "retry", failed, "-o", "json"];
    let answer = cluster.bellwether(&retry).await.expect(0).json();
    assert_eq!(answer[0]["result"], "retried");
    let new = answer[0]["retry"].as_str().unwrap();
    let watched = cluster.bellwether(&["executions", "watch", new]).await;
    let watched = watched.expect(7);
    let told: Vec<_> = watched.stdout.lines().collect();
    for words in ["a retry of", "attempt 1 started", "ended: failed"] {
        let times = told.iter().filter(|line| line.contains(words)).count();
        assert_eq!(times, 1, "{words:?} in {told:#?}");
    }
    let show = ["executions", "show", new, "-o", "json"];
    let shown = cluster.bellwether(&show).await.expect(0).json();
    assert_eq!(shown["execution"]["retry_of"], failed);
    assert_eq!(shown["execution"]["trigger"], "retry");
    assert_eq!(shown["execution"]["operation_id"], failed);
    cluster.audit_clean(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_not_failed_is_not_retried() {
    let cluster = Cluster::sqlite().await;
    let journal = cluster.journal();
    let [waiting, cancelled] = cluster.enqueue(2, &journal.work(&[0])).await[..] else {
        unreachable!()
    };
    let retry = |id: &str| ["executions", "retry", id].map(str::to_owned);
    let run = async |args: [String; 3]| {
        cluster
            .bellwether(&args.each_ref().map(String::as_str))
            .await
    };
    let waiting = waiting.to_string();
    let refused = run(retry(&waiting)).await;
    refused.refused(4, &[&waiting, "pending", "cancel it first"]);
    run(retry(NOBODY)).await.refused(3, &[NOBODY]);

    let cancelled = cancelled.to_string();
    let cancel = ["executions", "cancel", &cancelled];
    cluster.bellwether(&cancel).await.expect(0);
    let retried = run(retry(&cancelled)).await.expect(0).stdout;
    let new = retried.trim().rsplit(' ').next().unwrap().to_owned();
    let refused = run(retry(&cancelled)).await;
    refused.refused(4, &[&cancelled, &new, "pending"]);
    let shown = cluster
        .bellwether(&["executions", "show", &cancelled])
        .await;
    let hint = format!("it was retried: bellwether executions show {new}");
    assert!(shown.expect(0).stdout.contains(&hint));
    // A filter does not come back to it.
    let alike = [
        "executions",
        "retry",
        "--job",
        "patient",
        "--limit",
        "5",
        "--yes",
    ];
    let refused = cluster.bellwether(&alike).await;
    refused.refused(3, &["retried before"]);

    let _relay = cluster.relay();
    let _worker = cluster.worker("clerk", &[]).await;
    until("their success", async || {
        cluster.counts().await.get(&State::Succeeded) == Some(&2)
    })
    .await;
    let refused = run(retry(&new)).await;
    refused.refused(4, &[&new, "it succeeded"]);
    let refused = run(retry(&cancelled)).await;
    refused.refused(4, &[&new, "succeeded"]);
    journal.assert_each_ended_once(2);
}

#[tokio::test]
async fn hostile_arguments_are_refused_by_name() {
    let cases: [(&[&str], &str); 16] = [
        (&["executions", "show", "7"], "36 characters"),
        (&["executions", "show", ""], "36 characters"),
        (&["executions", "cancel"], "--fire"),
        (&["executions", "cancel", "nonsense"], "36 characters"),
        (&["executions", "cancel", NOBODY, "--job", "pay"], "--job"),
        (&["executions", "cancel", NOBODY, "--wait", "-5s"], "-5"),
        (&["executions", "cancel", NOBODY, "--wait", "soon"], "10m"),
        (
            &["executions", "cancel", "--state", "failed", "--limit", "5"],
            "pending",
        ),
        (
            &["executions", "retry", "--state", "running", "--limit", "5"],
            "failed",
        ),
        (&["executions", "retry", "--fire", "x"], "36 characters"),
        (&["executions", "watch", NOBODY, "-o", "json"], "jsonl"),
        (&["executions", "list", "--state", "faild"], "'failed'"),
        (&["executions", "list", "--limit", "0"], "1..=10000"),
        (&["executions", "list", "--limit", "-1"], "-1"),
        (&["executions", "list", "--job", "a.b"], "A-Z a-z 0-9 _ -"),
        (&["executions", "list", "--queue", ""], "1 to 64"),
    ];
    for (args, word) in cases {
        println!("{args:?}");
        bellwether(args).await.refused(2, &[word]);
    }
}
