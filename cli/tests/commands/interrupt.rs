//! Ctrl-C in a command on many things: what it has done by then is told, by real signals.

use bellwether_sandbox::Signal;
use bellwether_schemas::state::State;
use serde_json::Value;

use crate::support::{Cluster, Work, until};

/// Executions that a cancel takes in one transaction.
const BATCH: usize = 200;

const BATCHES: usize = 10;

/// Each batch but the first takes its time. The one under way is ended, since what became of it could
/// not be told otherwise, and no other is begun.
async fn interrupted(signal: Signal, code: i32) {
    let Some(cluster) = Cluster::postgres().await else {
        return;
    };
    let ids = cluster.enqueue(BATCHES * BATCH, &Work::default()).await;
    let slow: Vec<_> = ids.iter().skip(BATCH).step_by(BATCH).collect();
    let slow: Vec<_> = slow.iter().map(|id| format!("'{id}'")).collect();
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
             'BEGIN PERFORM pg_sleep(4); RETURN NEW; END';
         CREATE TRIGGER slow BEFORE UPDATE ON execution FOR EACH ROW
             WHEN (OLD.id IN ({})) EXECUTE FUNCTION slow()",
        slow.join(", ")
    )))
    .execute(&cluster.sql().await)
    .await
    .unwrap();
    let cancelled = async || {
        let counts = cluster.counts().await;
        let count = counts.get(&State::Cancelled).copied().unwrap_or(0);
        usize::try_from(count).unwrap()
    };
    let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
    let named: Vec<_> = ids.iter().map(String::as_str).collect();
    let cancel = [&["executions", "cancel"], &named[..]].concat();
    let command = cluster.command(&cancel);
    until("the end of the first batch", async || {
        cancelled().await >= BATCH
    })
    .await;
    command.signal(signal);

    let answer = command.answer().await.expect(code);
    let told: Vec<_> = answer.stdout.lines().collect();
    let all = BATCHES * BATCH;
    assert!((BATCH..all).contains(&told.len()), "{}", answer.stderr);
    assert_eq!(told.len(), cancelled().await, "{}", answer.stderr);
    for (line, id) in told.iter().zip(&ids) {
        assert_eq!(*line, format!("execution {id} is cancelled"));
    }
    let said = format!(
        "bellwether: ends after what is under way; a second signal ends at once\n\
         bellwether: {} of {all} were not cancelled:\n  interrupted: the others were not tried\n",
        all - told.len()
    );
    assert_eq!(answer.stderr, said);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_cancel_tells_what_was_done() {
    interrupted(Signal::INT, 130).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminated_cancel_tells_what_was_done() {
    interrupted(Signal::TERM, 143).await;
}

/// What was made is told, though nobody waits for its end any more.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_wait_tells_what_was_retried() {
    let cluster = Cluster::sqlite().await;
    let ids = cluster.enqueue(2, &Work::default()).await;
    let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
    let named: Vec<_> = ids.iter().map(String::as_str).collect();
    let cancel = [&["executions", "cancel"], &named[..]].concat();
    cluster.bellwether(&cancel).await.expect(0);
    let retry = ["executions", "retry", "--wait", "1d", "-o", "json"];
    let command = cluster.command(&[&retry[..], &named].concat());
    until("both retries", async || {
        cluster.counts().await.get(&State::Pending) == Some(&2)
    })
    .await;
    command.signal(Signal::INT);
    let answer = command.answer().await.expect(130);
    let rows = answer.json();
    let rows = rows.as_array().unwrap();
    let told: Vec<_> = rows.iter().map(|row| row["id"].as_str()).collect();
    assert_eq!(told, named.iter().map(|id| Some(*id)).collect::<Vec<_>>());
    for row in rows {
        let retry = row["retry"].as_str().unwrap();
        let follow = format!("to follow it: bellwether executions watch {retry}");
        assert!(answer.stderr.contains(&follow), "{}", answer.stderr);
        assert_eq!(row["state"], Value::Null);
    }
}
