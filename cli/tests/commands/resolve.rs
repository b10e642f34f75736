//! `executions resolve`: what an operator says of an unknown execution.

use std::time::Duration;

use bellwether_client::{NewExecution, Payload};
use bellwether_schemas::ids;
use bellwether_schemas::state::{OnLost, State};
use bellwether_store::executions::{ClaimAnswer, ClaimAsk};
use bellwether_store::sessions::NewSession;
use serde_json::json;

use crate::bellwether;
use crate::support::Cluster;

const NOBODY: &str = "01890000-0000-7000-8000-000000000000";

impl Cluster {
    /// A one-shot whose worker was lost a moment ago, and whose effect must not be repeated.
    pub(crate) async fn unknown(&self, max_attempts: u32) -> String {
        let session = NewSession {
            id: ids::fresh(),
            name: "lost".to_owned(),
            host: "here".to_owned(),
            pid: 1,
            version: "0".to_owned(),
            queues: vec!["default".to_owned()],
            jobs: vec!["pay".to_owned()],
            probes: Vec::new(),
            definitions: Vec::new(),
            capabilities: Vec::new(),
            max_concurrent: 1,
            lease: Duration::from_mins(5),
        };
        self.store.open_session(&session).await.unwrap();
        let mut new = NewExecution::new("pay", Payload::json("1"));
        new.policy.on_lost = OnLost::Unknown;
        new.policy.max_attempts = max_attempts;
        let id = self.client.enqueue(&new).await.unwrap().execution_id();
        let ask = ClaimAsk {
            execution_id: id,
            dispatch_no: 1,
            claim_id: ids::token(),
        };
        let answers = self.store.claim(session.id, &[ask]).await.unwrap();
        assert!(
            matches!(answers[..], [ClaimAnswer::Claimed(_)]),
            "{answers:?}"
        );
        self.store.close_session(session.id).await.unwrap();
        let taken = self.store.recover_lost(Duration::ZERO, 10).await.unwrap();
        assert_eq!(taken[0].state, State::Unknown);
        id.to_string()
    }

    async fn resolve(&self, id: &str, how: &[&str]) -> crate::support::Answer {
        let reason = ["--reason", "I called the bank"];
        let args = [&["executions", "resolve", id], how, &reason].concat();
        self.bellwether(&args).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_resolves_what_nobody_can_tell() {
    let cluster = Cluster::sqlite().await;
    let id = cluster.unknown(5).await;
    let shown = cluster.bellwether(&["executions", "show", &id]).await;
    let shown = shown.expect(0).stdout;
    for words in [
        "whether its handler had started is not known",
        "No live worker of queue default has the job pay",
        "It is escalated to you at ",
    ] {
        assert!(shown.contains(words), "{words:?} in {shown}");
    }
    let again = cluster.bellwether(&["executions", "retry", &id]).await;
    again.refused(4, &["is unknown", &format!("executions resolve {id}")]);
    let hint = format!("bellwether executions resolve {id} --done|--not-done|--abandon --reason");
    assert!(shown.contains(&hint), "{shown}");
    cluster
        .store
        .escalate_unknown(Duration::ZERO, 10)
        .await
        .unwrap();
    let queues = cluster.bellwether(&["queues", "list"]).await.expect(0);
    let hint = "1 waits for an operator to say what became of it: bellwether executions list \
                --escalated";
    assert!(queues.stderr.contains(hint), "{queues:?}");
    assert!(queues.stdout.contains("1 (1 escalated)"), "{queues:?}");
    let list = ["executions", "list", "--escalated"];
    let list = cluster.bellwether(&list).await.expect(0).stdout;
    assert!(list.contains("unknown, escalated"), "{list}");
    let shown = cluster.bellwether(&["executions", "show", &id]).await;
    let shown = shown.expect(0).stdout;
    assert!(shown.contains("unknown, escalated"), "{shown}");

    let answer = cluster.resolve(&id, &["--done", "-o", "json"]).await;
    assert_eq!(
        answer.expect(0).json(),
        json!({"id": id, "verdict": "done", "state": "succeeded"})
    );
    let again = cluster.resolve(&id, &["--abandon"]).await;
    again.refused(4, &[&id, "is succeeded", "unknown"]);
    let show = ["executions", "show", &id, "-o", "json"];
    let shown = cluster.bellwether(&show).await.expect(0).json();
    assert_eq!(shown["verdicts"][0]["said_by"], "operator");
    assert_eq!(shown["verdicts"][0]["note"], "I called the bank");
    let kinds: Vec<_> = shown["timeline"]
        .as_array()
        .unwrap()
        .iter()
        .map(|moment| moment["kind"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds,
        [
            "due",
            "written",
            "claimed",
            "attempt_ended",
            "escalated",
            "verdict",
            "ended"
        ]
    );
    assert_eq!(shown["timeline"][5]["verdict"], "done");
    assert_eq!(shown["timeline"][5]["generation"], 1);
    let shown = cluster.bellwether(&show[..3]).await.expect(0).stdout;
    for words in [
        "attempt 1 ended: worker_lost",
        "escalated: an operator decides",
        "operator says done (I called the bank): succeeded",
        "ended: succeeded",
    ] {
        assert!(shown.contains(words), "{words:?} in {shown}");
    }
    cluster.audit_clean(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_done_runs_again_while_attempts_are_left() {
    let cluster = Cluster::sqlite().await;
    let id = cluster.unknown(2).await;
    let unsure = cluster.resolve(&id, &["--not-done"]).await;
    unsure.refused(2, &["may still be at work", "--yes"]);
    let sure = ["--not-done", "--yes"];
    let answer = cluster.resolve(&id, &sure).await.expect(0);
    assert_eq!(
        answer.stdout,
        format!("execution {id} is resolved: it runs again\n")
    );
    assert!(
        answer.stderr.contains("may still be at work"),
        "a loss so fresh is pointed out: {answer:?}"
    );
    let last = cluster.unknown(1).await;
    let answer = cluster.resolve(&last, &sure).await.expect(0);
    assert!(answer.stdout.contains("no attempt left"), "{answer:?}");
    let given_up = cluster.unknown(2).await;
    let answer = cluster.resolve(&given_up, &["--abandon"]).await.expect(0);
    assert_eq!(
        answer.stdout,
        format!("execution {given_up} is resolved: it is failed\n")
    );
    let retry = ["executions", "retry", &given_up];
    let retried = cluster.bellwether(&retry).await.expect(0);
    assert!(retried.stderr.contains("was abandoned"), "{retried:?}");
    let running = cluster.resolve(&id, &["--done"]).await;
    running.refused(4, &[&id, "is retrying"]);
    let nobody = cluster.resolve(NOBODY, &["--done"]).await;
    nobody.refused(3, &[NOBODY, "bellwether executions list"]);
    cluster.audit_clean(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_of_what_is_unknown_is_pointed_out_and_shows_the_loss() {
    let cluster = Cluster::sqlite().await;
    let (one, two) = (cluster.unknown(5).await, cluster.unknown(5).await);
    let both = ["executions", "cancel", &one, &two];
    let asked = cluster.bellwether(&both).await;
    asked.refused(2, &["2 of these 2", "effects may exist", "--yes"]);
    let answer = cluster.bellwether(&both[..3]).await.expect(0);
    assert!(answer.stderr.contains("its effect may exist"), "{answer:?}");
    let shown = cluster.bellwether(&["executions", "show", &one]).await;
    let shown = shown.expect(0).stdout;
    for words in ["attempt 1 ended: worker_lost", "ended: cancelled"] {
        assert!(shown.contains(words), "{words:?} in {shown}");
    }
    cluster.audit_clean(&[]).await;
}

#[tokio::test]
async fn a_ruling_needs_one_verdict_and_a_reason() {
    let resolve = ["executions", "resolve", NOBODY];
    let cases: [(&[&str], &str); 4] = [
        (&["--reason", "r"], "--abandon"),
        (&["--done"], "--reason"),
        (&["--done", "--not-done", "--reason", "r"], "--not-done"),
        (&["--done", "--reason", "  "], "say how you know"),
    ];
    for (args, word) in cases {
        let args = [&resolve[..], args].concat();
        println!("{args:?}");
        bellwether(&args).await.refused(2, &[word]);
    }
}
