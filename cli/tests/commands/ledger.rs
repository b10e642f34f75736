//! Commands on a ledger with something in it: a SQLite file, a ticker, a relay and a worker.

use bellwether_client::{NewSchedule, Timing};
use serde_json::{Value, json};
use sqlx::Connection;

use crate::support::{Cluster, until};

/// The names of an object's fields.
fn fields(value: &Value) -> Vec<&str> {
    value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn submit_list_show_and_workers_tell_one_story() {
    let cluster = Cluster::sqlite().await;
    let journal = cluster.journal();
    let _ticker = cluster.ticker(&[]);
    let _relay = cluster.relay();
    let worker = cluster
        .worker("clerk", &[("PATIENT_MAX_CONCURRENT", "3")])
        .await;

    let mut work = journal.work(&[20]);
    work.panics = 1;
    let payload = String::from_utf8(work.payload().bytes).unwrap();
    let submit = [
        "submit", "default", "patient", &payload, "--key", "k-1", "--wait", "30",
    ];
    let submitted = cluster
        .bellwether(&[&submit[..], &["-o", "json"]].concat())
        .await
        .expect(0);
    let submitted = submitted.json();
    assert_eq!(submitted["key"], "k-1");
    assert_eq!(submitted["state"], "succeeded");
    let id = submitted["execution_id"].as_str().unwrap();
    // The same key again: the same execution, and it is done.
    let again = cluster
        .bellwether(&[&submit[..], &["-o", "json"]].concat())
        .await
        .expect(0)
        .json();
    assert_eq!(again["execution_id"], id);
    journal.assert_each_ended_once(1);

    let none = cluster
        .bellwether(&["executions", "list", "--job", "none"])
        .await
        .expect(0);
    assert_eq!(none.stdout.lines().count(), 1, "only the head: {none:?}");
    let list = ["executions", "list", "--state", "succeeded", "-o", "json"];
    let list = cluster.bellwether(&list).await.expect(0).json();
    let [row] = list.as_array().unwrap().as_slice() else {
        panic!("{list}")
    };
    assert_eq!(row["id"], id);
    assert_eq!(
        (&row["job"], &row["queue"]),
        (&json!("patient"), &json!("default"))
    );
    assert_eq!(
        (&row["attempt"], &row["generation"]),
        (&json!(2), &json!(2))
    );
    for field in [
        "fire_id",
        "operation_id",
        "trigger",
        "priority",
        "shard_index",
        "shard_total",
        "state",
        "reason",
        "max_attempts",
        "dispatch_no",
        "scheduled_at",
        "created_at",
        "claimed_at",
        "started_at",
        "ended_at",
        "session_id",
        "traceparent",
    ] {
        assert!(
            row.get(field).is_some(),
            "no field {field} in {:?}",
            fields(row)
        );
    }

    let shown = cluster
        .bellwether(&["executions", "show", id, "-o", "json"])
        .await
        .expect(0)
        .json();
    assert_eq!(fields(&shown), ["execution", "output", "timeline"]);
    assert_eq!(shown["output"], json!([2, 0]));
    let timeline = shown["timeline"].as_array().unwrap();
    let at: Vec<_> = timeline
        .iter()
        .map(|moment| moment["at"].as_str().unwrap())
        .collect();
    assert!(at.is_sorted(), "{at:?}");
    let what: Vec<_> = timeline
        .iter()
        .map(|moment| moment["what"].as_str().unwrap())
        .collect();
    let story = [
        "due",
        "attempt 1 claimed by session",
        "attempt 1 started",
        "attempt 1 ended: panic",
        "attempt 2 claimed by session",
        "attempt 2 started",
        "ended: succeeded",
    ];
    let mut rest = what.iter();
    for moment in story {
        assert!(
            rest.any(|what| what.starts_with(moment)),
            "{moment:?} is not in place: {what:#?}"
        );
    }
    let text = cluster
        .bellwether(&["executions", "show", id])
        .await
        .expect(0)
        .stdout;
    assert!(
        text.contains("ended: succeeded") && text.contains(id),
        "{text}"
    );

    let workers = cluster
        .bellwether(&["workers", "list", "-o", "json"])
        .await
        .expect(0)
        .json();
    let [session] = workers.as_array().unwrap().as_slice() else {
        panic!("{workers}")
    };
    assert_eq!(session["name"], "clerk");
    assert_eq!(session["state"], "live");
    assert_eq!(session["pid"], worker.pid());
    assert_eq!(
        (&session["max_concurrent"], &session["jobs"]),
        (&json!(3), &json!(["careful", "patient"]))
    );
    let table = cluster
        .bellwether(&["workers", "list"])
        .await
        .expect(0)
        .stdout;
    assert!(
        table.starts_with("WORKER") && table.contains("clerk"),
        "{table}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submit_that_waits_for_a_job_that_fails_exits_7() {
    let cluster = Cluster::sqlite().await;
    let _relay = cluster.relay();
    let _worker = cluster.worker("clerk", &[]).await;
    let timing = Timing::Cron {
        expr: "0 0 0 1 1 *".to_owned(),
        zone: "UTC".to_owned(),
    };
    let mut schedule = NewSchedule::new("once-a-year", timing);
    "patient".clone_into(&mut schedule.job);
    cluster.client.register(&schedule).await.unwrap();
    let listed = cluster
        .bellwether(&["schedules", "list", "-o", "json"])
        .await
        .expect(0)
        .json();
    let [row] = listed.as_array().unwrap().as_slice() else {
        panic!("{listed}")
    };
    assert_eq!(
        (&row["name"], &row["job"]),
        (&json!("once-a-year"), &json!("patient"))
    );
    assert_eq!(
        row["timing"],
        json!({"kind": "cron", "expr": "0 0 0 1 1 *", "zone": "UTC"})
    );
    assert_eq!(
        (&row["enabled"], &row["version"]),
        (&json!(true), &json!(1))
    );
    let table = cluster
        .bellwether(&["schedules", "list"])
        .await
        .expect(0)
        .stdout;
    assert!(table.contains("cron 0 0 0 1 1 * (UTC)"), "{table}");

    let refuses = [
        "submit",
        "default",
        "patient",
        r#"{"refuses": true}"#,
        "--wait",
        "30",
    ];
    let answer = cluster.bellwether(&refuses).await.expect(7);
    assert!(
        answer.stderr.contains("the job ended as failed"),
        "{answer:?}"
    );
    assert!(answer.stdout.contains("failed"), "{answer:?}");
    let nobody = ["submit", "default", "unheard-of", "{}", "--wait", "1"];
    let answer = cluster.bellwether(&nobody).await.expect(6);
    assert!(answer.stderr.contains("nothing was lost"), "{answer:?}");

    let id = "01890000-0000-7000-8000-000000000000";
    let words = [id, "bellwether executions list"];
    cluster
        .bellwether(&["executions", "show", id])
        .await
        .refused(3, &words);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_audit_exits_1_and_names_the_row_that_breaks_a_law() {
    let cluster = Cluster::sqlite().await;
    let journal = cluster.journal();
    let _relay = cluster.relay();
    let worker = cluster.worker("clerk", &[]).await;
    let [id] = cluster.enqueue(1, &journal.work(&[0])).await[..] else {
        unreachable!()
    };
    cluster.until_all_succeeded(1).await;

    let clean = cluster
        .bellwether(&["audit", "-o", "json"])
        .await
        .expect(0)
        .json();
    assert_eq!(fields(&clean), ["laws", "looked_at", "violations"]);
    assert_eq!(clean["violations"], 0);
    let laws = clean["laws"].as_array().unwrap();
    let numbers: Vec<_> = laws
        .iter()
        .map(|law| law["law"].as_u64().unwrap())
        .collect();
    assert_eq!(
        numbers,
        (1..=14).collect::<Vec<_>>(),
        "law 15 has no subject yet"
    );
    let table = cluster.bellwether(&["audit"]).await.expect(0).stdout;
    // No schedule and no term: laws 1, 2 and 12 looked at nothing.
    let second = table.lines().find(|line| line.starts_with("2 ")).unwrap();
    assert!(second.ends_with("not exercised"), "{table}");
    assert!(
        table
            .lines()
            .any(|line| line.starts_with("6 ") && line.ends_with("holds")),
        "{table}"
    );
    assert!(table.ends_with("rows looked at, 0 violations\n"), "{table}");

    drop(worker);
    let file = cluster.database_url().strip_prefix("sqlite:").unwrap();
    let mut planted = sqlx::SqliteConnection::connect(&format!("sqlite:{file}"))
        .await
        .unwrap();
    let broken = "UPDATE execution SET attempt = max_attempts + 1";
    let changed = sqlx::query(broken).execute(&mut planted).await.unwrap();
    assert_eq!(changed.rows_affected(), 1);
    planted.close().await.unwrap();
    until("the audit sees it", async || {
        cluster.bellwether(&["audit"]).await.code == 1
    })
    .await;
    let answer = cluster.bellwether(&["audit"]).await.expect(1);
    assert!(
        answer.stdout.contains("VIOLATED") && answer.stdout.contains(&id.to_string()),
        "{answer:?}"
    );
    assert!(answer.stderr.contains("1 violation"), "{answer:?}");
    let answer = cluster
        .bellwether(&["audit", "-o", "json"])
        .await
        .expect(1)
        .json();
    let eighth = answer["laws"]
        .as_array()
        .unwrap()
        .iter()
        .find(|law| law["law"] == 8)
        .unwrap();
    assert_eq!(eighth["violations"], 1);
    assert!(
        eighth["examples"][0]
            .as_str()
            .unwrap()
            .contains(&id.to_string()),
        "{eighth}"
    );
}
